"""`minimise`: minima, bounds, saddles, failures, derivatives."""

import jax
import jax.numpy as jnp
import mgh_problems
import numpy as np
import pytest
import scipy.optimize

from sciml import RESULTS, solvers


METHODS = {
    "TrustRegionNewton": solvers.TrustRegionNewton(),
    "NewtonCG": solvers.NewtonCG(),
    "BFGS": solvers.BFGS(),
    "LBFGS": solvers.LBFGS(),
}
methods = pytest.mark.parametrize("method", METHODS.values(), ids=list(METHODS))
second_order = pytest.mark.parametrize("method", list(METHODS.values())[:2], ids=list(METHODS)[:2])


def rosenbrock(y, args):
    return jnp.sum(100 * (y[1:] - y[:-1] ** 2) ** 2 + (1 - y[:-1]) ** 2)


def saddle(y, args):
    """A saddle at the origin, minima at (0, -sqrt 2) and (0, sqrt 2)."""
    return y[0] ** 2 - y[1] ** 2 + y[1] ** 4 / 4


@methods
def test_rosenbrock(method):
    sol = solvers.minimise(rosenbrock, jnp.full(6, -1.0), method=method)
    np.testing.assert_allclose(sol.value, 1.0, rtol=1e-7)
    assert bool(sol.ok) and sol.loss < 1e-13
    assert 0 < sol.stats["steps"] <= sol.stats["evaluations"] < 130


@pytest.mark.slow
@methods
def test_units_of_the_unknowns_and_of_the_value(method):
    scale = jnp.array([1e6, 1e-3])
    fn = lambda y, _: 1e-9 * (rosenbrock(y / scale, None) + jnp.sum((y / scale - 1) ** 2))
    sol = solvers.minimise(fn, jnp.array([-1.2e6, 1e-3]), method=method, throw=False)
    if type(method) is solvers.TrustRegionNewton:  # the only one that scales them
        np.testing.assert_allclose(sol.value, scale, rtol=1e-6)
    else:
        assert sol.loss < fn(jnp.array([-1.2e6, 1e-3]), None)


@pytest.mark.slow
@pytest.mark.parametrize("problem", mgh_problems.LEAST_SQUARES, ids=str)
def test_more_garbow_hillstrom(problem):
    if problem.name == "Biggs EXP6":
        pytest.xfail("the exact Newton path goes to a plateau at infinity; BFGS finds the minimum")
    sol = solvers.minimise(problem.sum_of_squares, problem.start, throw=False)
    assert bool(sol.ok) and problem.solved(float(sol.loss))


@pytest.mark.slow
@pytest.mark.parametrize("problem", mgh_problems.LEAST_SQUARES, ids=str)
def test_more_garbow_hillstrom_by_bfgs(problem):
    sol = solvers.minimise(
        problem.sum_of_squares, problem.start, method=solvers.BFGS(), throw=False
    )
    # The Hessian of Watson's problem with 12 unknowns has a condition of 1e13: a flat valley to walk along.
    assert bool(sol.ok)
    assert problem.solved(float(sol.loss)) or (problem.name == "Watson n=12" and sol.loss < 1e-8)


def test_lbfgs_takes_no_more_evaluations_than_scipy():
    y0 = jnp.tile(jnp.array([-1.2, 1.0]), 50)
    sol = solvers.minimise(rosenbrock, y0, method=solvers.LBFGS())
    value = jax.jit(jax.value_and_grad(lambda y: rosenbrock(y, None)))
    want = scipy.optimize.minimize(
        lambda y: tuple(map(np.asarray, value(y))),
        y0,
        jac=True,
        method="L-BFGS-B",
        options={"gtol": 1e-9, "ftol": 1e-15},
    )
    np.testing.assert_allclose(sol.value, 1.0, rtol=1e-6)
    assert int(sol.stats["evaluations"]) <= 1.2 * want.nfev


@methods
def test_a_bound_that_holds(method):
    upper = jnp.array([0.5, 2.0])
    sol = solvers.minimise(rosenbrock, jnp.array([-1.2, 1.0]), bounds=(-2.0, upper), method=method)
    np.testing.assert_allclose(sol.value, [0.5, 0.25], rtol=1e-7)
    assert sol.value[0] == 0.5
    np.testing.assert_array_equal(sol.active, [1, 0])


@pytest.mark.slow
@methods
def test_case_34_bounds_are_not_ignored(method):
    fn = lambda y, _: (y[0] - 2) ** 2 + (y[1] - 3) ** 2
    sol = solvers.minimise(fn, jnp.array([0.0, 0.5]), bounds=(0.0, 1.0), method=method)
    np.testing.assert_array_equal(sol.value, [1.0, 1.0])
    np.testing.assert_array_equal(sol.active, [1, 1])


@methods
def test_many_bounds_against_scipy(method):
    rng = np.random.default_rng(0)
    n = 40
    root = rng.standard_normal((n, n))
    matrix, slope = (
        jnp.array(root @ root.T / n + 0.1 * np.eye(n)),
        jnp.array(rng.standard_normal(n)),
    )
    fn = lambda y, _: y @ (matrix @ y) / 2 - slope @ y
    low, high = np.full(n, -0.2), np.full(n, 0.3)
    low[3] = high[3] = 0.1  # fixed
    start = np.clip(np.zeros(n), low, high)
    sol = solvers.minimise(
        fn, jnp.array(start), bounds=(jnp.array(low), jnp.array(high)), method=method
    )
    value = jax.jit(jax.value_and_grad(lambda y: fn(y, None)))
    want = scipy.optimize.minimize(
        lambda y: tuple(map(np.asarray, value(y))),
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=list(zip(low, high, strict=True)),
        options={"ftol": 1e-15, "gtol": 1e-10},
    )
    np.testing.assert_allclose(sol.value, want.x, atol=1e-6)
    np.testing.assert_array_equal(sol.active != 0, (want.x == low) | (want.x == high))
    assert sol.value[3] == 0.1


@pytest.mark.slow
@methods
def test_no_evaluation_leaves_the_bounds(method):
    def fn(y, _):
        inside = jnp.all((y >= -0.5) & (y <= 0.75))
        return jnp.where(inside, rosenbrock(y, None), jnp.nan)

    sol = solvers.minimise(fn, jnp.array([-0.5, 0.75, 0.1]), bounds=(-0.5, 0.75), method=method)
    assert sol.stats["failures"] == 0 and bool(sol.ok)


@second_order
def test_functions_that_fail_somewhere(method):
    fn = lambda y, _: jnp.sum(y - jnp.log(y))
    sol = solvers.minimise(fn, jnp.array([30.0, 0.01]), method=method)
    np.testing.assert_allclose(sol.value, 1.0, rtol=1e-7)


@second_order
def test_saddle_points_are_left(method):
    # Once where the gradient has no part along the way down, once where it vanishes.
    for start in ([1.0, 0.0], [0.0, 0.0]):
        sol = solvers.minimise(saddle, jnp.array(start), method=method)
        np.testing.assert_allclose(np.abs(sol.value), [0.0, np.sqrt(2)], atol=1e-7)
        if type(method) is solvers.TrustRegionNewton:
            np.testing.assert_allclose(sol.curvature, 2.0, rtol=1e-6)


@second_order
def test_a_ridge_along_a_bound_is_left_on_the_side_that_is_open(method):
    bounds = (-5.0, jnp.array([5.0, 0.0]))
    sol = solvers.minimise(saddle, jnp.array([1.0, 0.0]), bounds=bounds, method=method)
    np.testing.assert_allclose(sol.value, [0.0, -np.sqrt(2)], atol=1e-7)


def test_a_saddle_that_bounds_make_a_minimum():
    narrow = (jnp.array([-1.0, 0.0]), jnp.array([1.0, 0.0]))
    sol = solvers.minimise(saddle, jnp.array([0.5, 0.0]), bounds=narrow)
    assert bool(sol.ok) and sol.curvature > 0
    np.testing.assert_allclose(sol.value, 0.0, atol=1e-12)


def test_a_direction_without_effect():
    sol = solvers.minimise(lambda y, _: (y[0] + y[1] - 3) ** 2, jnp.array([0.0, 1.0]))
    np.testing.assert_allclose(jnp.sum(sol.value), 3.0, rtol=1e-9)
    np.testing.assert_allclose(sol.null[0], -sol.null[1], rtol=1e-6)
    assert abs(sol.curvature) < 1e-9


def test_what_has_no_minimum():
    falls = solvers.minimise(lambda y, _: -jnp.exp(y), 0.0, throw=False)
    assert not bool(falls.ok)
    bad = solvers.minimise(lambda y, _: jnp.log(y), jnp.array(-1.0), throw=False)
    assert RESULTS.nonfinite_residual == bad.result


@methods
def test_what_falls_for_ever_is_found_out_soon(method):
    for bounds in (None, (0.0, jnp.array([3.0, jnp.inf, jnp.inf]))):
        sol = solvers.minimise(
            lambda y, _: -jnp.sum(y), jnp.ones(3), method=method, bounds=bounds, throw=False
        )
        assert RESULTS.unbounded == sol.result and sol.stats["evaluations"] < 120


@pytest.mark.slow
@methods
def test_running_out(method):
    sol = solvers.minimise(
        rosenbrock, jnp.full(6, -1.0), method=method, max_steps=3, throw=False, history=True
    )
    assert RESULTS.max_iterations_reached == sol.result and sol.stats["evaluations"] == 4
    assert sol.history.shape == (4,) and np.isfinite(sol.history).all()


def test_what_can_not_be_meant():
    with pytest.raises(ValueError, match=r"returned 2.* use `solvers.least_squares`"):
        solvers.minimise(lambda y, _: y, jnp.ones(2))
    with pytest.raises(
        TypeError, match="`minimise` takes one of the methods BFGS, LBFGS, NewtonCG"
    ):
        solvers.minimise(rosenbrock, jnp.ones(2), method=solvers.LevenbergMarquardt())
    with pytest.raises(TypeError, match="real unknowns"):
        solvers.minimise(rosenbrock, jnp.ones(2, complex))
    with pytest.raises(ValueError, match=r"`ftol` must lie in \[0, 1\)"):
        solvers.minimise(rosenbrock, jnp.ones(2), ftol=-1.0)


@methods
def test_derivatives_in_every_mode(method):
    # The minimum of (y - a)^2 + exp(y): y' = 2 / (2 + exp(y)).
    fn = lambda a: (
        solvers.minimise(lambda y, a: (y - a) ** 2 + jnp.exp(y), 0.0, a, method=method).value
    )
    y = fn(1.0)
    want = 2 / (2 + np.exp(y))
    bend = -2 * np.exp(y) * want / (2 + np.exp(y)) ** 2
    for derivative in (jax.grad, jax.jacfwd):
        np.testing.assert_allclose(jax.jit(derivative(fn))(1.0), want, rtol=1e-7)
    np.testing.assert_allclose(jax.jit(jax.hessian(fn))(1.0), bend, rtol=1e-6)


def test_derivatives_with_a_bound_that_holds():
    def value(a, high):
        upper = jnp.stack([high, jnp.full_like(high, 5.0)])
        fn = lambda y, a: jnp.sum((y - a) ** 2) + y[0] * y[1]
        return solvers.minimise(fn, jnp.zeros(2), a, bounds=(-1.0, upper)).value

    # y0 sits at its bound; y1 = a1 - y0 / 2.
    a, high = jnp.array([3.0, 1.0]), jnp.array(0.5)
    by_a, by_high = jax.jit(jax.jacrev(value, argnums=(0, 1)))(a, high)
    np.testing.assert_allclose(by_a, [[0, 0], [0, 1]], atol=1e-9)
    np.testing.assert_allclose(by_high, [1, -0.5], atol=1e-9)


@pytest.mark.slow
@methods
def test_members_of_a_batch_end_by_themselves(method):
    starts = jnp.array([[-1.0, 1.0], [3.0, -2.0], [jnp.nan, 0.0]])
    run = lambda y0: solvers.minimise(rosenbrock, y0, method=method, throw=False)
    many = jax.jit(jax.vmap(run))(starts)
    np.testing.assert_array_equal(many.ok, [True, True, False])
    np.testing.assert_allclose(many.value[:2], 1.0, rtol=1e-6)
    alone = run(starts[0])
    assert abs(int(many.stats["evaluations"][0]) - int(alone.stats["evaluations"])) <= 2


@methods
def test_float32(method):
    sol = solvers.minimise(rosenbrock, jnp.full(3, -1.0, jnp.float32), method=method)
    assert sol.value.dtype == jnp.float32
    np.testing.assert_allclose(sol.value, 1.0, rtol=2e-3)


def test_a_large_problem_without_its_hessian():
    n = 2000
    fn = lambda y, a: jnp.sum((y[1:] - y[:-1]) ** 2) + jnp.sum((y - a) ** 4) + jnp.sum((y - a) ** 2)
    a = jnp.sin(jnp.arange(n) / 50)
    one = solvers.minimise(fn, jnp.zeros(n), a, method=solvers.NewtonCG())
    two = solvers.minimise(fn, jnp.zeros(n), a)  # L-BFGS by default
    np.testing.assert_allclose(one.value, two.value, atol=1e-6)
    slope = jax.grad(lambda a: jnp.sum(solvers.minimise(fn, jnp.zeros(n), a).value))(a)
    np.testing.assert_allclose(slope, 1.0, atol=0.05)  # shifting all of `a` shifts all of `y`
    np.testing.assert_allclose(jnp.sum(slope), n, rtol=1e-6)


def test_the_structure_of_a_hessian():
    y0 = jnp.full(50, 0.5)
    plain = solvers.minimise(rosenbrock, y0, method=solvers.NewtonCG())
    pattern = np.abs(np.subtract.outer(np.arange(50), np.arange(50))) <= 1
    for hess in (solvers.Banded(1, 1), solvers.Sparse(pattern)):
        sol = solvers.minimise(rosenbrock, y0, method=solvers.NewtonCG(hess=hess))
        np.testing.assert_allclose(sol.value, 1.0, rtol=1e-7)
        assert abs(int(sol.stats["steps"]) - int(plain.stats["steps"])) <= 2
    with pytest.raises(TypeError, match="`hess` must be a structure"):
        solvers.NewtonCG(hess="banded")

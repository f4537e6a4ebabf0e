"""`root` and `fixed_point`: values, robustness, structure, failures, derivatives."""

import jax
import jax.numpy as jnp
import mgh_problems
import numpy as np
import pytest
import scipy.optimize

from sciml import RESULTS, solvers
from sciml.solvers._gmres import gmres


GLOBALISATIONS = {
    "full": solvers.FullStep(),
    "backtracking": solvers.Backtracking(),
    "dogleg": solvers.Dogleg(),
    "damping": solvers.Damping(),
}
METHODS = {k: solvers.Newton(globalisation=g) for k, g in GLOBALISATIONS.items()} | {
    "default": solvers.Newton(),
    "Broyden": solvers.Broyden(),
    "LevenbergMarquardt": solvers.LevenbergMarquardt(),
}
ROOT_METHODS = {k: m for k, m in METHODS.items() if k != "LevenbergMarquardt"}


def square(y, a):
    return y**2 - a


def coupled(y, args):
    """A tree of unknowns; the root is u = 1, v = (2, 3)."""
    u, v = y["u"], y["v"]
    return {"a": u * v[0] - 2 + (u - 1) ** 2, "b": jnp.stack([v[1] - 3 * u, v[0] + v[1] - 5])}


def tridiagonal(y, args):
    """Broyden's tridiagonal system."""
    zero = jnp.zeros(1, y.dtype)
    left, right = jnp.concatenate([zero, y[:-1]]), jnp.concatenate([y[1:], zero])
    return (3 - 2 * y) * y - left - 2 * right + 1


@pytest.mark.slow
@pytest.mark.parametrize("problem", mgh_problems.SYSTEMS, ids=str)
def test_all_square_systems_by_default(problem):
    sol = solvers.root(problem.residuals, problem.start)
    assert np.max(np.abs(problem.residuals(sol.value))) < 1e-6


HARD = (
    "Generalized Rosenbrock",
    "Trigonometric",
    "Hammarling 2x2 matrix square root",
    "Freudenstein-Roth",
)


@pytest.mark.parametrize("name", HARD)
def test_systems_on_which_one_globalisation_or_another_fails(name):
    (problem,) = (p for p in mgh_problems.SYSTEMS if p.name == name)
    sol = solvers.root(problem.residuals, problem.start)
    assert np.max(np.abs(problem.residuals(sol.value))) < 1e-6


@pytest.mark.parametrize("name", ROOT_METHODS)
def test_every_method_on_a_tree(name):
    y0 = {"u": jnp.array(2.0), "v": jnp.array([1.0, 1.0])}
    sol = solvers.root(coupled, y0, method=ROOT_METHODS[name])
    np.testing.assert_allclose(sol.value["u"], 1.0, rtol=1e-9)
    np.testing.assert_allclose(sol.value["v"], [2.0, 3.0], rtol=1e-9)
    assert bool(sol.ok) and sol.optimality < 1e-9
    np.testing.assert_array_equal(sol.active["v"], [0, 0])


@pytest.mark.parametrize("name", ["default", "backtracking", "dogleg", "damping", "Broyden"])
def test_case_32_newton_must_not_run_away(name):
    # Plain Newton steps end at -3.8e292, and below zero.
    far = solvers.root(lambda y, _: jnp.arctan(y), jnp.array(3.0), method=ROOT_METHODS[name])
    np.testing.assert_allclose(far.value, 0.0, atol=1e-8)
    edge = solvers.root(lambda y, _: jnp.sqrt(y) - 0.01, jnp.array(4.0), method=ROOT_METHODS[name])
    np.testing.assert_allclose(edge.value, 1e-4, rtol=1e-9)


@pytest.mark.parametrize(
    "jac",
    [solvers.Banded(1, 1), solvers.Krylov(), solvers.BlockDiagonal(60)],
    ids=["banded", "krylov", "whole"],
)
def test_structures_of_the_jacobian(jac):
    y0 = -jnp.ones(60)
    dense = solvers.root(tridiagonal, y0)
    sol = solvers.root(tridiagonal, y0, jac=jac)
    np.testing.assert_allclose(sol.value, dense.value, rtol=1e-9)
    assert sol.stats["evaluations"] <= dense.stats["evaluations"] + 1
    want = scipy.optimize.root(jax.jit(lambda y: tridiagonal(y, None)), -np.ones(60), tol=1e-12).x
    np.testing.assert_allclose(sol.value, want, rtol=1e-9)


def test_a_sparse_pattern_found_by_looking():
    pattern = solvers.sparsity(lambda t, y, args: tridiagonal(y, args), -jnp.ones(30))
    sol = solvers.root(tridiagonal, -jnp.ones(30), jac=solvers.Sparse(pattern))
    np.testing.assert_allclose(tridiagonal(sol.value, None), 0, atol=1e-12)


@pytest.mark.parametrize("jac", [None, solvers.Banded(1, 1)], ids=["dense", "banded"])
def test_derivatives_of_a_system_with_structure(jac):
    def total(scale):
        fn = lambda y, s: tridiagonal(y, None) + s * y**3
        return jnp.sum(solvers.root(fn, -jnp.ones(8), scale, jac=jac).value)

    h = 1e-5
    want = (total(0.1 + h) - total(0.1 - h)) / (2 * h)
    for derivative in (jax.grad, jax.jacfwd):
        np.testing.assert_allclose(jax.jit(derivative(total))(0.1), want, rtol=1e-8)


@pytest.mark.parametrize("name", ["default", "Broyden", "bracket"])
def test_derivatives_in_every_mode(name):
    method = {"bracket": solvers.Bracket()}.get(name) or ROOT_METHODS[name]
    bounds = (0.1, 9.0) if name == "bracket" else None
    fn = lambda a: solvers.root(square, jnp.array(1.0), a, method=method, bounds=bounds).value
    for derivative in (jax.grad, jax.jacfwd, jax.jacrev):
        np.testing.assert_allclose(jax.jit(derivative(fn))(2.0), 0.5 / np.sqrt(2), rtol=1e-9)
    np.testing.assert_allclose(jax.jit(jax.hessian(fn))(2.0), -0.25 * 2**-1.5, rtol=1e-9)
    np.testing.assert_allclose(
        jax.vmap(jax.grad(fn))(jnp.array([1.0, 4.0])), [0.5, 0.25], rtol=1e-9
    )


def test_members_of_a_batch_end_by_themselves():
    starts = jnp.array([1.0, 3.0, 100.0, jnp.nan])
    run = lambda y0: solvers.root(lambda y, _: jnp.arctan(y - 0.5), y0, throw=False)
    many = jax.jit(jax.vmap(run))(starts)
    np.testing.assert_array_equal(many.ok, [True, True, True, False])
    for i, y0 in enumerate(starts):
        alone = run(y0)
        np.testing.assert_allclose(many.value[i], alone.value, rtol=1e-12)
        assert many.stats["evaluations"][i] == alone.stats["evaluations"]


def test_bounds_are_never_left():
    def fn(y, args):
        return jnp.where((y >= 0) & (y <= 4), y**2 - 2, jnp.nan)

    sol = solvers.root(fn, jnp.array(0.1), bounds=(0.0, 4.0))
    np.testing.assert_allclose(sol.value, np.sqrt(2), rtol=1e-9)
    assert sol.stats["failures"] == 0


def test_a_system_that_says_the_same_twice_is_named():
    fn = lambda y, _: {"p": y["x"] * y["z"] - 1, "q": y["x"] * y["z"] - 2}
    y0 = {"x": 1.3, "z": 1.0}
    sol = solvers.root(fn, y0, throw=False)
    assert not bool(sol.ok) and RESULTS.singular_system == sol.result
    # Along the null direction x z does not change.
    slope = sol.null["x"] * sol.value["z"] + sol.null["z"] * sol.value["x"]
    np.testing.assert_allclose(slope, 0, atol=1e-6)
    with pytest.raises(RuntimeError, match=r"Nothing changes along the direction .* in y\['x'\]"):
        solvers.root(fn, y0)


def test_no_root_and_no_evaluation():
    none = solvers.root(lambda y, _: y**2 + 1, jnp.array(1.0), throw=False)
    assert not bool(none.ok)
    bad = solvers.root(lambda y, _: jnp.log(y), jnp.array(-1.0), throw=False)
    assert RESULTS.nonfinite_residual == bad.result and bad.stats["evaluations"] <= 4


def test_what_can_not_be_meant():
    with pytest.raises(ValueError, match="returned 2 numbers for 1 unknowns"):
        solvers.root(lambda y, _: jnp.stack([y, y]), 1.0)
    with pytest.raises(TypeError, match=r"`root` takes one of the methods .*Newton"):
        solvers.root(square, 1.0, 2.0, method=solvers.LBFGS())
    with pytest.raises(TypeError, match=r"write `Newton\(\)`"):
        solvers.root(square, 1.0, 2.0, method=solvers.Newton)
    with pytest.raises(ValueError, match="`jac` has no meaning for `Broyden`"):
        solvers.root(square, 1.0, 2.0, method=solvers.Broyden(), jac=solvers.Banded(1, 1))
    with pytest.raises(ValueError, match="dense Jacobian"):
        solvers.Newton(jac=solvers.Banded(1, 1), globalisation=solvers.Damping())


def test_float32():
    sol = solvers.root(square, jnp.float32(1.0), jnp.float32(2.0))
    assert sol.value.dtype == jnp.float32
    np.testing.assert_allclose(sol.value, np.sqrt(2), rtol=1e-6)


def test_nothing_is_compiled_twice():
    count = []

    def fn(y, a):
        count.append(1)
        return y**2 - a

    run = lambda y0, a, **kw: solvers.root(fn, jnp.array(y0), jnp.array(a), **kw)
    run(1.0, 2.0)
    before = len(count)
    run(3.0, 5.0)
    run(3.0, 5.0, xtol=1e-3)
    assert 0 < before == len(count)


@pytest.mark.parametrize(
    ("low", "high", "start"), [(0.0, 10.0, 2.0), (-50.0, 2.5, 1.0), (1.7, 30.0, 29.0)]
)
def test_the_bracket_against_scipy(low, high, start):
    fn = lambda y, _: jnp.exp(y) - 5 * y - 5.0
    sol = solvers.root(fn, jnp.array(start), bounds=(low, high), method=solvers.Bracket())
    roots = [
        scipy.optimize.brentq(lambda y: np.exp(y) - 5 * y - 5, *b, xtol=1e-14)
        for b in ((-2, 0), (1, 4))
    ]
    assert min(abs(sol.value - r) for r in roots) < 1e-13
    assert sol.stats["evaluations"] < 40


def test_a_bracket_without_a_root():
    sol = solvers.root(
        lambda y, _: y**2 + 1, 1.0, bounds=(0.0, 3.0), method=solvers.Bracket(), throw=False
    )
    assert RESULTS.no_sign_change == sol.result
    with pytest.raises(ValueError, match="needs `bounds="):
        solvers.root(square, 1.0, 2.0, method=solvers.Bracket())


@pytest.mark.parametrize("method", [None, solvers.Anderson(), solvers.Anderson(depth=1)], ids=str)
def test_fixed_points(method):
    fn = lambda y, a: {"x": a * jnp.cos(y["x"]), "z": jnp.sin(y["x"]) + y["z"] / 3}
    run = lambda a: solvers.fixed_point(
        fn, {"x": jnp.full(2, 0.2), "z": jnp.zeros(2)}, a, method=method
    )
    sol = run(1.0)
    np.testing.assert_allclose(sol.value["x"], 0.7390851332151607, rtol=1e-10)
    np.testing.assert_allclose(sol.value["z"], 1.5 * np.sin(0.7390851332151607), rtol=1e-10)
    slope = jax.jacfwd(lambda a: run(a).value["x"][0])(1.0)
    x = 0.7390851332151607
    np.testing.assert_allclose(slope, np.cos(x) / (1 + np.sin(x)), rtol=1e-9)


def test_anderson_is_faster_than_iteration():
    matrix = jnp.diag(jnp.linspace(0.5, 0.99, 100)) + 0.001
    fn = lambda y, b: jnp.tanh(matrix @ y / 2 + b)
    sol = solvers.fixed_point(fn, jnp.zeros(100), jnp.linspace(-1, 1, 100))
    np.testing.assert_allclose(fn(sol.value, jnp.linspace(-1, 1, 100)), sol.value, atol=1e-11)
    assert sol.stats["evaluations"] < 25


def test_pseudo_time_finds_the_rest_state():
    # A stiff network whose Newton steps from here lead to negative concentrations.
    def fn(y, k):
        a, b = y[0], y[1]
        return jnp.stack([1.0 - k * a * b - a, k * a * b - 0.5 * b])

    method = solvers.Newton(globalisation=solvers.PseudoTransient())
    sol = solvers.root(fn, jnp.array([0.1, 5.0]), 10.0, method=method)
    np.testing.assert_allclose(sol.value, [0.05, 1.9], rtol=1e-9)


def poisson(u, force):
    wide = jnp.concatenate([jnp.zeros(1), u, jnp.zeros(1)])
    return wide[:-2] - 2 * u + wide[2:] - 1e-3 * (jnp.exp(u) - force)


def test_a_preconditioner_cuts_the_number_of_products():
    def inverse(u, force):
        matrix = jax.jacfwd(poisson)(u, force)
        return lambda v: jnp.linalg.solve(matrix, v)

    u0 = jnp.zeros(100)
    few = {"max_steps": 20, "restart": 10}
    assert not solvers.root(poisson, u0, 3.0, jac=solvers.Krylov(**few), throw=False).ok
    good = solvers.Krylov(**few, preconditioner=inverse)
    total = lambda force, jac: jnp.sum(solvers.root(poisson, u0, force, jac=jac).value ** 2)
    for jac in (good, solvers.Banded(1, 1)):
        np.testing.assert_allclose(total(3.0, jac), total(3.0, None), rtol=1e-9)
        np.testing.assert_allclose(jax.grad(total)(3.0, jac), jax.grad(total)(3.0, None), rtol=1e-8)


def test_preconditioners_are_for_roots():
    identity = solvers.Krylov(preconditioner=lambda y, args: lambda v: v)
    with pytest.raises(ValueError, match="`preconditioner` of Krylov is for `root`"):
        solvers.solve(
            lambda t, y, k: -y, np.ones(2), np.arange(2.0), method=solvers.Rodas5P(), jac=identity
        )
    with pytest.raises(TypeError, match="`preconditioner` of Krylov must be a function"):
        solvers.Krylov(preconditioner=1)


@pytest.mark.parametrize("restart", [5, 40, 300])
def test_gmres_against_a_factorisation(restart):
    rng = np.random.default_rng(0)
    matrix = jnp.array(rng.standard_normal((100, 100)) + np.diag(np.linspace(20, 2000, 100)))
    b = jnp.array(rng.standard_normal(100))
    run = jax.jit(
        lambda about: gmres(lambda v: matrix @ v, b, jnp.array(1e-10), restart, 1000, about),
        static_argnums=0,
    )
    x, ok, products = run(None)
    np.testing.assert_allclose(x, np.linalg.solve(matrix, b), rtol=1e-7, atol=1e-10)
    y, fine, fewer = run(lambda v: v / jnp.diag(matrix))
    np.testing.assert_allclose(x, y, rtol=1e-7, atol=1e-10)
    assert ok and fine and fewer < products


def test_gmres_on_a_singular_system():
    x, ok, _ = gmres(lambda v: v * jnp.array([1.0, 0.0]), jnp.ones(2), jnp.array(1e-8), 2, 100)
    assert not ok and jnp.all(jnp.isfinite(x))
    x, ok, products = gmres(lambda v: 2 * v, jnp.zeros(2), jnp.array(1e-8), 2, 100)
    assert ok and products == 0 and not x.any()

"""`least_squares`: values, bounds, scales, failures, and the ways it may be called."""

import helpers
import jax
import jax.numpy as jnp
import mgh_problems
import numpy as np
import pytest
import scipy.optimize

from sciml import RESULTS, solvers
from sciml.solvers._nonlinear._loop import Box, Look, run
from sciml.solvers._nonlinear._quadratic import Rows


X = jnp.linspace(0.1, 5, 40)


def exponential(p, scale):
    """Cases 34 and 36: made from (2.5, 1.3) in units of the scales."""
    return p[0] * jnp.exp(-p[1] / scale[1] * X) - 2.5 * scale[0] * jnp.exp(-1.3 * X)


ONE = jnp.ones(2)


def test_it_recovers_what_the_data_were_made_from():
    sol = solvers.least_squares(exponential, jnp.array([1.0, 0.5]), ONE)
    np.testing.assert_allclose(sol.value, [2.5, 1.3], rtol=1e-9)
    assert bool(sol.ok) and RESULTS.successful == sol.result
    assert sol.loss < 1e-20 and sol.optimality >= 0
    np.testing.assert_array_equal(sol.active, [0, 0])
    assert 0 < sol.stats["steps"] < 30 and sol.stats["failures"] == 0
    assert sol.stats["evaluations"] == sol.stats["steps"] + 1


def test_parameters_of_very_different_size():
    # Case 36.
    scale = jnp.array([1e6, 1e-9])
    sol = solvers.least_squares(exponential, jnp.array([1e6, 2e-9]), scale)
    np.testing.assert_allclose(sol.value, [2.5e6, 1.3e-9], rtol=1e-8)


def test_units_do_not_change_the_path():
    # Powers of two, so that the two runs round alike.
    scale = jnp.array([2.0**40, 2.0**-40])
    one = solvers.least_squares(exponential, jnp.array([1.0, 0.5]), ONE, history=True)
    two = solvers.least_squares(exponential, jnp.array([1.0, 0.5]) * scale, scale, history=True)
    assert abs(int(one.stats["steps"]) - int(two.stats["steps"])) <= 2
    np.testing.assert_allclose(two.history[:5], one.history[:5] * scale[0] ** 2, rtol=1e-6)


def test_a_bound_that_holds():
    # Case 34.
    bounds = (jnp.zeros(2), jnp.array([10.0, 1.0]))
    sol = solvers.least_squares(exponential, jnp.array([1.0, 0.5]), ONE, bounds=bounds)
    np.testing.assert_allclose(sol.value, [2.148051345366, 1.0], rtol=1e-9)
    assert sol.value[1] == 1.0
    np.testing.assert_array_equal(sol.active, [0, 1])
    np.testing.assert_allclose(2 * sol.loss, 0.291756269809, rtol=1e-9)


def test_scalar_bounds_hold_for_all():
    target = lambda p, _: p - jnp.array([2.0, 3.0, -4.0, 0.5])
    sol = solvers.least_squares(target, jnp.full(4, 0.25), bounds=(0.0, 1.0))
    np.testing.assert_allclose(sol.value, [1.0, 1.0, 0.0, 0.5], rtol=1e-6)
    np.testing.assert_array_equal(sol.active, [1, 1, -1, 0])


@pytest.mark.parametrize(
    ("start", "low", "high", "value", "active"),
    [
        (
            [1.0, 1.0],
            [0.0, 0.0],
            [10.0, 1.0],
            [2.148051345366, 1.0],
            [0, 1],
        ),  # on the bound that holds
        ([1.0, 0.0], [0.0, 0.0], [10.0, 5.0], [2.5, 1.3], [0, 0]),  # on a bound that must be left
        ([0.0, 0.0], [0.0, 0.0], [10.0, 1.0], [2.148051345366, 1.0], [0, 1]),  # in a corner
        (
            [1.0, 1.0],
            [0.0, 1.0],
            [10.0, 1.0],
            [2.148051345366, 1.0],
            [0, -1],
        ),  # fixed by equal bounds
    ],
    ids=["held", "left", "corner", "fixed"],
)
def test_starts_on_bounds(start, low, high, value, active):
    bounds = (jnp.array(low), jnp.array(high))
    sol = solvers.least_squares(exponential, jnp.array(start), ONE, bounds=bounds)
    np.testing.assert_allclose(sol.value, value, rtol=1e-8)
    np.testing.assert_array_equal(sol.active, active)


def test_no_evaluation_leaves_the_bounds():
    def fn(p, args):
        inside = jnp.all((p >= 0) & (p <= jnp.array([3.0, 1.0])))
        return jnp.where(inside, exponential(p, ONE), jnp.nan)

    sol = solvers.least_squares(fn, jnp.array([0.5, 0.1]), bounds=(0.0, jnp.array([3.0, 1.0])))
    np.testing.assert_allclose(sol.value, [2.148051345366, 1.0], rtol=1e-9)
    assert sol.stats["failures"] == 0


def test_trial_points_that_fail_shrink_the_region():
    # The full first step leads to p < 0, where the logarithm is not a number.
    fn = lambda p, _: jnp.log(p) + 3
    sol = solvers.least_squares(fn, jnp.array([30.0]), history=True)
    np.testing.assert_allclose(sol.value, np.exp(-3), rtol=1e-9)
    assert sol.stats["failures"] >= 1
    history = sol.history[jnp.isfinite(sol.history)]
    assert (jnp.diff(history) <= 0).all()


def test_michaelis_menten():
    # Case 41's kinetics as the closed rate law, with bounds that the first step would cross.
    s = jnp.array([0.02, 0.06, 0.11, 0.22, 0.56, 1.10])
    rate = lambda p, s: p["Vm"] * s / (p["Km"] + s)
    data = rate({"Vm": 1.2, "Km": 0.3}, s)
    start = {"Vm": 10.0, "Km": 50.0}
    sol = solvers.least_squares(lambda p, s: rate(p, s) - data, start, s, bounds=(1e-6, jnp.inf))
    helpers.assert_close(sol.value, {"Vm": 1.2, "Km": 0.3}, rtol=1e-8)
    assert set(sol.active) == {"Vm", "Km"} and not any(map(int, sol.active.values()))


def test_pytrees_in_and_out():
    start = {"a": 1.0, "b": (jnp.zeros(2), 3)}
    fn = lambda p, target: jax.tree.map(jnp.subtract, p, target)
    target = {"a": jnp.array(2.0), "b": (jnp.array([5.0, -5.0]), jnp.array(0.5))}
    bounds = ({"a": 0.0, "b": (-1.0, 1.0)}, {"a": 1.5, "b": (jnp.array([9.0, 9.0]), jnp.inf)})
    sol = solvers.least_squares(fn, start, target, bounds=bounds)
    helpers.assert_close(sol.value, {"a": 1.5, "b": (jnp.array([5.0, -1.0]), 1.0)}, rtol=1e-9)
    assert jax.tree.map(lambda x: x.tolist(), sol.active) == {"a": 1, "b": ([0, -1], -1)}
    assert sol.value["b"][1].dtype == jnp.float64  # the integer


def test_one_number():
    sol = solvers.least_squares(lambda x, a: x**2 - a, 1.0, 2.0)
    np.testing.assert_allclose(sol.value, np.sqrt(2), rtol=1e-12)
    assert sol.value.shape == () and sol.active.shape == ()


def test_fewer_residuals_than_unknowns():
    sol = solvers.least_squares(lambda p, _: p.sum() - 6, jnp.array([1.0, 1.0, 1.0]))
    np.testing.assert_allclose(sol.value.sum(), 6.0, rtol=1e-9)


def test_an_unknown_without_effect_stays():
    sol = solvers.least_squares(lambda p, _: p[:1] - 3, jnp.array([1.0, 7.0]))
    np.testing.assert_allclose(sol.value, [3.0, 7.0], rtol=1e-9)


def test_a_start_at_the_solution():
    sol = solvers.least_squares(exponential, jnp.array([2.5, 1.3]), ONE)
    assert bool(sol.ok) and sol.stats["steps"] <= 1
    np.testing.assert_allclose(sol.value, [2.5, 1.3], rtol=1e-14)


@pytest.mark.parametrize("start", [-1.0, np.nan])
def test_a_start_that_can_not_be_evaluated(start):
    fn = lambda p, _: jnp.log(p)
    sol = solvers.least_squares(fn, jnp.array([start]), throw=False)
    assert not bool(sol.ok) and RESULTS.nonfinite_residual == sol.result
    assert sol.stats["failures"] == 1 and sol.stats["evaluations"] == 1
    with pytest.raises(
        RuntimeError,
        match=r"failed after 1 evaluations at loss nan: The function, its residuals .* not finite",
    ):
        solvers.least_squares(fn, jnp.array([start]))


def test_a_value_whose_derivative_is_not_finite():
    sol = solvers.least_squares(lambda p, _: jnp.sqrt(p) - 1, jnp.array([0.0]), throw=False)
    assert RESULTS.nonfinite_residual == sol.result


def test_running_out_of_iterations():
    sol = solvers.least_squares(
        exponential, jnp.array([1.0, 0.5]), ONE, max_steps=2, throw=False, history=True
    )
    assert not bool(sol.ok) and RESULTS.max_iterations_reached == sol.result
    assert sol.stats["evaluations"] == 3 and sol.history.shape == (3,)
    with pytest.raises(
        RuntimeError, match=r"failed after 3 evaluations at loss .* ran out of iterations"
    ):
        solvers.least_squares(exponential, jnp.array([1.0, 0.5]), ONE, max_steps=2)


def test_a_jump_that_is_no_minimum_is_called_stalled():
    # |p| has no vanishing gradient: it ends at the kink, and says that it could not go on.
    fn = lambda p, _: jnp.where(p > 1, p, p + 10)
    sol = solvers.least_squares(fn, jnp.array([3.0]), throw=False)
    assert RESULTS.stalled == sol.result


def test_the_history_falls():
    sol = solvers.least_squares(exponential, jnp.array([1.0, 0.5]), ONE, history=True)
    n = int(sol.stats["evaluations"])
    assert np.isfinite(sol.history[:n]).all() and np.isnan(sol.history[n:]).all()
    assert (np.diff(sol.history[:n]) <= 0).all()
    np.testing.assert_allclose(
        sol.history[0], np.sum(exponential(jnp.array([1.0, 0.5]), ONE) ** 2) / 2
    )
    assert sol.history[n - 1] == sol.loss


def test_looser_tolerances_stop_earlier():
    run = lambda **kw: solvers.least_squares(
        exponential, jnp.array([1.0, 0.5]), ONE, bounds=(0.0, jnp.array([9.0, 1.0])), **kw
    )
    loose = run(ftol=0.1, xtol=0.1)
    assert loose.stats["evaluations"] < run().stats["evaluations"]
    np.testing.assert_allclose(loose.value, [2.148, 1.0], rtol=0.2)


def test_inside_jit_and_vmap():
    starts = jnp.array([[1.0, 0.5], [5.0, 3.0], [jnp.nan, 1.0]])
    run = lambda y0: solvers.least_squares(exponential, y0, ONE, throw=False)
    many = jax.jit(jax.vmap(run))(starts)
    np.testing.assert_array_equal(many.ok, [True, True, False])
    np.testing.assert_allclose(many.value[:2], [[2.5, 1.3]] * 2, rtol=1e-8)
    for i in range(2):
        alone = run(starts[i])
        np.testing.assert_array_equal(many.stats["steps"][i], alone.stats["steps"])
        np.testing.assert_allclose(many.value[i], alone.value, rtol=1e-10)


def test_inside_jit_a_failure_raises():
    run = jax.jit(lambda y0: solvers.least_squares(exponential, y0, ONE).value)
    np.testing.assert_allclose(run(jnp.array([1.0, 0.5])), [2.5, 1.3], rtol=1e-9)
    with pytest.raises(Exception, match="`least_squares` did not converge"):
        jax.block_until_ready(run(jnp.array([jnp.nan, 0.5])))


def test_float32():
    with jax.enable_x64(False):
        x = jnp.linspace(0.1, 5.0, 40)
        fn = lambda p, _: p[0] * jnp.exp(-p[1] * x) - 2.5 * jnp.exp(-1.3 * x)
        sol = solvers.least_squares(fn, jnp.array([1.0, 0.5]))
        assert sol.value.dtype == jnp.float32 and bool(sol.ok)
        np.testing.assert_allclose(sol.value, [2.5, 1.3], rtol=1e-5)
        bounded = solvers.least_squares(
            fn, jnp.array([1.0, 0.5]), bounds=(0.0, 1.0 + 0 * sol.value)
        )
        assert bounded.value.dtype == jnp.float32
    single = solvers.least_squares(lambda p, _: p - 1, jnp.ones(2, jnp.float32) * 3)
    assert single.value.dtype == jnp.float32


def test_nothing_is_traced_twice():
    traces = []

    def fn(p, args):
        traces.append(1)
        return p - args

    def run(start, target, upper, **tolerances):
        return solvers.least_squares(
            fn, jnp.array([start]), jnp.array([target]), bounds=(-9.0, upper), **tolerances
        )

    run(0.0, 1.0, 9.0)
    before = len(traces)
    assert 0 < before < 20
    run(0.5, 2.0, 8.0, ftol=1e-6)
    run(0.5, 2.0, jnp.array([8.0]), xtol=1e-6)
    assert len(traces) == before


def test_case_42_finds_the_minimum_that_is_near():
    # A single start is a local search; see `fit.estimate` for many.
    x = jnp.linspace(0, 2 * jnp.pi, 50)
    y = 10 * jnp.sin(2 * jnp.pi * 0.34 * x + jnp.pi / 6)
    fn = lambda p, _: p[0] * jnp.sin(2 * jnp.pi * p[1] * x + p[2]) - y
    near = solvers.least_squares(fn, jnp.array([7.0, 0.33, 0.3]))
    np.testing.assert_allclose(near.value, [10.0, 0.34, 0.523598775598], rtol=1e-8)
    far = solvers.least_squares(fn, jnp.array([7.0, 0.9, 0.0]))
    # As MINPACK at the tightest tolerances.
    np.testing.assert_allclose(far.value, [1.04394714, 0.87214026, -0.28461124], rtol=1e-5)
    np.testing.assert_allclose(far.loss, 1263.852972311803, rtol=1e-10)


# Moré, Garbow & Hillstrom, ACM TOMS 7 (1981): residuals, start, and the sum of squares at the minimum.
_Y = jnp.array(
    [0.14, 0.18, 0.22, 0.25, 0.29, 0.32, 0.35, 0.39, 0.37, 0.58, 0.73, 0.96, 1.34, 2.1, 4.39]
)
_U = jnp.arange(1.0, 16.0)
_W = jnp.minimum(_U, 16 - _U)
_T = jnp.arange(1.0, 21.0) / 5
_I = jnp.arange(1.0, 11.0)
MGH = {
    "Rosenbrock": (lambda x: jnp.stack([10 * (x[1] - x[0] ** 2), 1 - x[0]]), [-1.2, 1.0], 0.0),
    "Freudenstein and Roth": (
        lambda x: jnp.stack([
            -13 + x[0] + ((5 - x[1]) * x[1] - 2) * x[1], -29 + x[0] + ((x[1] + 1) * x[1] - 14) * x[1],
        ]), [0.5, -2.0], 48.98425367924,
    ),
    "Powell badly scaled": (
        lambda x: jnp.stack([1e4 * x[0] * x[1] - 1, jnp.exp(-x[0]) + jnp.exp(-x[1]) - 1.0001]), [0.0, 1.0], 0.0,
    ),
    "Brown badly scaled": (
        lambda x: jnp.stack([x[0] - 1e6, x[1] - 2e-6, x[0] * x[1] - 2]), [1.0, 1.0], 0.0,
    ),
    "Jennrich and Sampson": (
        lambda x: 2 + 2 * _I - (jnp.exp(_I * x[0]) + jnp.exp(_I * x[1])), [0.3, 0.4], 124.36218235561,
    ),
    "Bard": (lambda x: _Y - (x[0] + _U / ((16 - _U) * x[1] + _W * x[2])), [1.0, 1.0, 1.0], 0.008214877306579),
    "Powell singular": (
        lambda x: jnp.stack([
            x[0] + 10 * x[1], jnp.sqrt(5.0) * (x[2] - x[3]),
            (x[1] - 2 * x[2]) ** 2, jnp.sqrt(10.0) * (x[0] - x[3]) ** 2,
        ]), [3.0, -1.0, 0.0, 1.0], 0.0,
    ),
    "Brown and Dennis": (
        lambda x: (x[0] + _T * x[1] - jnp.exp(_T)) ** 2 + (x[2] + x[3] * jnp.sin(_T) - jnp.cos(_T)) ** 2,
        [25.0, 5.0, -5.0, -1.0], 85822.20162635628,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MGH)
def test_more_garbow_hillstrom(name):
    residuals, start, minimum = MGH[name]
    sol = solvers.least_squares(lambda x, _: residuals(x), jnp.array(start))
    assert bool(sol.ok)
    np.testing.assert_allclose(2 * sol.loss, minimum, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("Rosenbrock", [-2.0, -1.0], [0.5, 2.0]),
        ("Brown and Dennis", [-10.0, 0.0, -10.0, -10.0], [100.0, 15.0, 0.0, 0.2]),
        ("Bard", [0.1, 0.0, 0.0], [1.0, 1.5, 2.0]),
    ],
)
def test_against_scipy_in_a_box(name, low, high):
    residuals, start, _ = MGH[name]
    low, high = np.array(low), np.array(high)
    start = np.clip(start, low, high)
    sol = solvers.least_squares(
        lambda x, _: residuals(x), jnp.array(start), bounds=(jnp.array(low), jnp.array(high))
    )
    inside = np.clip(start, low + 1e-3, high - 1e-3)
    f, jac = jax.jit(residuals), jax.jit(jax.jacfwd(residuals))
    want = scipy.optimize.least_squares(
        f, inside, jac, bounds=(low, high), ftol=1e-15, xtol=1e-15, gtol=1e-12, max_nfev=2000
    )
    np.testing.assert_allclose(sol.loss, want.cost, rtol=1e-8)
    # SciPy stays strictly inside, so it ends just beside the bounds.
    np.testing.assert_allclose(sol.value, want.x, rtol=1e-4, atol=1e-5)
    near = np.where(
        want.x - low < 1e-4 * (high - low), -1, np.where(high - want.x < 1e-4 * (high - low), 1, 0)
    )
    np.testing.assert_array_equal(sol.active, near)
    assert np.abs(near).sum() >= 1, "no bound holds: the problem tests nothing"


def test_the_core_takes_likelihoods():
    # Mean and log standard deviation of normal data, by the Fisher information: no residuals in sight.
    data = jnp.array([1.0, 2.0, 2.5, 4.0, 5.5])
    n = data.size

    def look(x):
        mean, log_sigma = x
        z = (data - mean) / jnp.exp(log_sigma)
        misfit = jnp.sum(z**2) / 2
        gradient = jnp.stack([-jnp.sum(z) / jnp.exp(log_sigma), n - jnp.sum(z**2)])
        rows = jnp.diag(jnp.sqrt(jnp.stack([n / jnp.exp(2 * log_sigma), jnp.full((), 2.0 * n)])))
        none = jnp.zeros(2)
        there = Look(x, misfit + n * log_sigma, none, misfit, jnp.isfinite(misfit))
        return there, Rows(rows, none, gradient)

    method = solvers.LevenbergMarquardt(geodesic=False, extra=True)
    box = Box(jnp.full(2, -jnp.inf), jnp.full(2, jnp.inf), True)
    end = jax.jit(lambda x: run(method, look, x, box, 200))(jnp.zeros(2)).here
    np.testing.assert_allclose(end.x, [np.mean(data), np.log(np.std(data))], rtol=1e-6)


@pytest.mark.slow
def test_more_garbow_hillstrom_from_afar_against_scipy():
    # From 1, 10 and 100 times the start: as many as MINPACK and the trust region of SciPy together, but for those whose
    # starts lead them elsewhere by chance.
    missed, gained = [], []
    for problem in mgh_problems.LEAST_SQUARES:
        for factor in (1, 10, 100):
            sol = solvers.least_squares(problem.residuals, problem.start * factor, throw=False)
            scipy_solves = any(
                problem.solved(r["f"]) for r in problem.scipy if r["start_factor"] == factor
            )
            if problem.solved(2 * float(sol.loss)):
                assert bool(sol.ok), (problem.name, factor)
                gained += [] if scipy_solves else [(problem.name, factor)]
            elif scipy_solves:
                missed.append((problem.name, factor))
    assert len(missed) <= 3, missed


@pytest.mark.parametrize(
    "loss",
    ["cauchy", *(pytest.param(x, marks=pytest.mark.slow) for x in ("huber", "soft_l1", "arctan"))],
)
def test_robust_losses_against_scipy(loss):
    noise = 0.05 * jnp.sin(37 * X)
    data = (2.5 * jnp.exp(-1.3 * X) + noise).at[jnp.array([3, 20])].add(5.0)
    fn = lambda p, data: p[0] * jnp.exp(-p[1] * X) - data
    run = lambda data: solvers.least_squares(
        fn, jnp.array([2.0, 1.0]), data, loss=loss, f_scale=0.1
    )
    sol = run(data)
    want = scipy.optimize.least_squares(
        jax.jit(lambda p: fn(p, data)),
        [2.0, 1.0],
        loss=loss,
        f_scale=0.1,
        xtol=1e-14,
        ftol=1e-15,
        gtol=1e-12,
    )
    np.testing.assert_allclose(sol.value, want.x, rtol=2e-5)
    np.testing.assert_allclose(sol.loss, want.cost, rtol=1e-8)
    assert abs(sol.value[1] - 1.3) < 0.1  # the outliers do little
    slope = jax.jit(jax.jacfwd(lambda s: run(data + s * noise).value))(0.0)
    h = 1e-5
    np.testing.assert_allclose(
        slope,
        (run(data + h * noise).value - run(data - h * noise).value) / (2 * h),
        rtol=1e-4,
        atol=1e-6,
    )


def test_losses_have_names():
    with pytest.raises(ValueError, match="`loss` must be one of 'linear', 'huber'"):
        solvers.least_squares(exponential, jnp.ones(2), ONE, loss="tukey")
    with pytest.raises(ValueError, match="`f_scale` must be a positive number"):
        solvers.least_squares(exponential, jnp.ones(2), ONE, loss="huber", f_scale=0.0)


def test_steps_follow_the_curvature_of_a_valley():
    valley = lambda y, _: jnp.stack([10 * (y[1] - y[0] ** 2), 1 - y[0]])
    run = lambda **kw: solvers.least_squares(
        valley, jnp.array([-1.2, 1.0]), method=solvers.LevenbergMarquardt(**kw)
    )
    bent, plain = run(), run(geodesic=False)
    np.testing.assert_allclose(bent.value, 1.0, rtol=1e-12)
    assert int(bent.stats["evaluations"]) < int(plain.stats["evaluations"])


def test_a_product_that_can_not_be_taken_apart_is_named():
    x = jnp.linspace(0, 1, 9)
    sol = solvers.least_squares(
        lambda p, _: p["a"] * p["b"] * x - 3 * x + 0.1 * jnp.sin(9 * x), {"a": 1.0, "b": 2.0}
    )
    ratio = sol.null["a"] / sol.null["b"]
    np.testing.assert_allclose(ratio, -sol.value["a"] / sol.value["b"], rtol=1e-5)


def test_a_second_attempt_leaves_no_flat_end():
    # The first runs to where the residuals no longer depend on an unknown.
    (problem,) = (p for p in mgh_problems.LEAST_SQUARES if p.name == "Gaussian")
    start = problem.start * 100
    sol = solvers.least_squares(problem.residuals, start, history=True)
    assert bool(sol.ok) and problem.solved(2 * float(sol.loss)) and not sol.null.any()
    count = int(sol.stats["evaluations"])
    assert np.isfinite(sol.history[:count]).all() and np.isnan(sol.history[count:]).all()
    # Both share the evaluations that are allowed.
    few = solvers.least_squares(problem.residuals, start, max_steps=count - 5, throw=False)
    assert few.stats["evaluations"] <= count - 4

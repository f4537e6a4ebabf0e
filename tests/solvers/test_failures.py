"""A numerical failure is a value with a text that explains it, or that text as an error."""

import helpers
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import decay, lotka_volterra

from sciml import RESULTS, solvers


TS = jnp.arange(11.0)
P = jnp.array([1.5, 1.0, 0.5, 1.0])
SHORT = {"rtol": 1e-8, "atol": 1e-10, "max_steps": 20}  # case 5


def root(t, y, args):
    """Case 2: not a number from t = 0.5 on."""
    return -jnp.sqrt(0.5 - t) * y


def square(t, y, args):
    """Blows up at t = 1 / y0."""
    return y**2


def text(sol) -> str:
    return RESULTS[sol.result]


def test_nan_on_fixed_steps_is_a_failure_that_names_the_time():
    ts = jnp.linspace(0.0, 1.0, 11)
    sol = solvers.solve(root, 1.0, ts, method=solvers.RK4(), steps=1, throw=False)
    assert not bool(sol.ok) and RESULTS.nonfinite_field == sol.result
    assert 0.4 <= sol.stats["reached"] <= 0.6
    np.testing.assert_array_equal(sol.valid, ts < 0.55)
    np.testing.assert_array_equal(np.isnan(sol.ys), ~sol.valid)
    with pytest.raises(RuntimeError, match=r"t = 0\.5 of 1: .*non-finite"):
        solvers.solve(root, 1.0, ts, method=solvers.RK4(), steps=1)


def test_nan_in_adaptive_steps_is_found_at_once():
    sol = solvers.solve(root, 1.0, jnp.array([0.0, 0.25, 1.0]), throw=False)
    assert not bool(sol.ok) and "non-finite" in text(sol) and "max_steps" not in text(sol)
    np.testing.assert_allclose(sol.stats["reached"], 0.5, atol=1e-6)
    assert sol.stats["accepted"] + sol.stats["rejected"] < 200  # not all of `max_steps`
    np.testing.assert_array_equal(sol.valid, [True, True, False])
    np.testing.assert_allclose(sol.ys[1], np.exp(-2 / 3 * (0.5**1.5 - 0.25**1.5)), rtol=1e-5)
    assert np.isnan(sol.ys[2])


def test_the_state_just_before_the_singularity_is_right():
    y = solvers.solve(root, 1.0, jnp.array([0.0, 0.25, 0.5]), rtol=1e-9, atol=1e-11, throw=False)
    reached = solvers.solve(root, 1.0, jnp.array([0.0, 0.25, 0.5 - 1e-9]), rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(reached.ys[-1], 0.790015857928, rtol=1e-7)
    assert np.isnan(y.ys[-1]) or abs(y.ys[-1] - 0.790015857928) < 1e-6


@pytest.mark.parametrize("steps", [None, 20])
def test_blow_up_never_saves_infinity(steps):
    ts = jnp.linspace(0.0, 2.0, 41)
    sol = solvers.solve(square, jnp.array([1.0, 0.1]), ts, steps=steps, throw=False)
    assert not bool(sol.ok)
    # The fixed steps walk over the pole and overflow a bit later.
    assert 0.95 < sol.stats["reached"] < 1.3
    finite = np.isfinite(sol.ys).all(axis=1)
    np.testing.assert_array_equal(finite, sol.valid)
    assert np.isnan(sol.ys[~finite]).all()
    np.testing.assert_allclose(sol.ys[:10, 0], 1 / (1 - ts[:10]), rtol=1e-4)
    assert steps is not None or "collapsed" in text(sol) or "non-finite" in text(sol)


def test_running_out_of_steps_reports_where_and_how():
    with pytest.raises(RuntimeError) as error:
        solvers.solve(lotka_volterra, jnp.ones(2), TS, P, **SHORT)
    message = str(error.value)
    sol = solvers.solve(lotka_volterra, jnp.ones(2), TS, P, throw=False, **SHORT)
    stats = {k: float(v) for k, v in sol.stats.items()}
    assert stats["accepted"] + stats["rejected"] == 20
    for part in (
        f"failed at t = {stats['reached']:.6g} of 10",
        f"{stats['accepted']:.0f} steps accepted, {stats['rejected']:.0f} rejected",
        f"the last of size {stats['last_step']:.3g}",
        "ran out of steps (`max_steps`)",
        "Method AutoSwitch, rtol 1e-08, atol 1e-10, max_steps 20",
        "throw=False",
    ):
        assert part in message
    assert not bool(sol.ok) and RESULTS.out_of_steps == sol.result
    n = int(sol.valid.sum())
    assert 0 < stats["reached"] < 10 and n == np.floor(stats["reached"]) + 1
    np.testing.assert_array_equal(sol.valid, np.arange(11) < n)
    assert np.isfinite(sol.ys[:n]).all() and np.isnan(sol.ys[n:]).all()
    assert "failed: The solver ran out of steps" in repr(sol)


def test_the_same_problem_with_enough_steps():
    sol = solvers.solve(lotka_volterra, jnp.ones(2), TS, P, rtol=1e-8, atol=1e-10)
    want = [
        [1.954588062784, 0.738806421089],
        [0.869474530740, 1.204527263715],
        [0.820679769136, 1.473577692496],
    ]
    np.testing.assert_allclose(sol.ys[jnp.array([1, 5, 10])], want, rtol=1e-7)


def test_half_a_solution_has_no_gradient():
    def loss(p):
        sol = solvers.solve(lotka_volterra, jnp.ones(2), TS, p, throw=False, **SHORT)
        return sol.ys.sum()

    value, grad = jax.jit(jax.value_and_grad(loss))(P)
    assert np.isnan(value) and np.isnan(grad).all()


def test_half_a_solution_on_fixed_steps_has_no_gradient():
    def loss(y0):
        return solvers.solve(square, y0, jnp.linspace(0.0, 2.0, 5), steps=20, throw=False).ys.sum()

    value, grad = jax.value_and_grad(loss)(jnp.array([1.0]))
    assert np.isnan(value) and not np.isfinite(grad).any()


@pytest.mark.parametrize("where", ["y0", "args"])
def test_a_start_that_is_not_finite(where):
    y0, k = (jnp.array([jnp.nan]), 1.0) if where == "y0" else (jnp.array([1.0]), jnp.inf)
    sol = solvers.solve(decay, y0, jnp.array([0.0, 1.0]), k, throw=False)
    assert RESULTS.nonfinite_start == sol.result
    assert sol.stats["accepted"] == 0 and sol.stats["rejected"] == 0
    assert not sol.valid.any() or where == "args"
    assert np.isnan(sol.ys[-1]).all()
    with pytest.raises(RuntimeError, match="initial state"):
        solvers.solve(decay, y0, jnp.array([0.0, 1.0]), k)


def test_a_start_that_is_not_finite_on_fixed_steps():
    sol = solvers.solve(
        decay, jnp.array([jnp.nan]), jnp.array([0.0, 1.0]), 1.0, steps=3, throw=False
    )
    assert not bool(sol.ok) and not sol.valid.any() and sol.stats["reached"] == 0.0
    sol = solvers.solve(
        decay, jnp.array([jnp.inf]), jnp.array([0.0, 1.0]), 1.0, steps=3, throw=False
    )
    assert np.isnan(sol.ys).all()


@pytest.mark.parametrize("steps", [None, 20])
def test_inside_jit_a_failure_raises_too(steps):
    run = jax.jit(lambda y0: solvers.solve(square, y0, jnp.array([0.0, 0.5, 2.0]), steps=steps).ys)
    with pytest.raises(Exception, match=r"`sciml\.solvers\.solve` failed"):
        jax.block_until_ready(run(jnp.array([1.0, 0.1])))
    np.testing.assert_allclose(run(jnp.array([0.1, 0.2]))[-1], [0.125, 1 / 3], rtol=1e-5)


def test_stiffness_is_told_from_hard_work():
    # An explicit method that was asked for is kept, and advised against.
    ts, y0 = jnp.array([0.0, 1e5]), jnp.array([1.0, 0.0, 0.0])
    with pytest.raises(RuntimeError, match=r"looks stiff.*solvers\.Rodas5P"):
        solvers.solve(helpers.robertson, y0, ts, method=solvers.Tsit5())
    # Many oscillations are work, not stiffness.
    osc = lambda t, y, w: jnp.stack([y[1], -(w**2) * y[0]])
    sol = solvers.solve(
        osc, jnp.array([1.0, 0.0]), ts, 10.0, max_steps=1000, method=solvers.Tsit5(), throw=False
    )
    assert RESULTS.out_of_steps == sol.result


def test_stiffness_is_met_by_itself():
    sol = solvers.solve(
        helpers.van_der_pol,
        jnp.array([2.0, 0.0]),
        jnp.array([0.0, 2000.0]),
        1e3,
        rtol=1e-8,
        atol=1e-8,
    )
    np.testing.assert_allclose(sol.ys[-1], [1.706167732171, -8.928097010e-04], rtol=1e-5)
    assert sol.stats["accepted"] + sol.stats["rejected"] < 2000


def test_dense_output_ends_where_the_solve_did():
    sol = solvers.solve(
        lotka_volterra, jnp.ones(2), jnp.array([0.0, 10.0]), P, dense=True, throw=False, **SHORT
    )
    reached = sol.stats["reached"]
    assert np.isfinite(sol.at(0.99 * reached)).all() and np.isnan(sol.at(1.01 * reached)).all()


def test_texts_say_what_to_do():
    assert RESULTS[RESULTS.successful] == ""
    advice = {
        "out_of_steps": "max_steps=",
        "looks_stiff": "Rodas5P",
        "nonfinite_start": "starting values",
        "nonfinite_field": "logarithms",
        "step_collapsed": "jax_enable_x64",
        "implicit_failed": "tolerances",
        "max_iterations_reached": "max_steps",
        "stalled": "tolerances",
        "nonfinite_residual": "starting values",
    }
    for item, part in advice.items():
        assert part in RESULTS[getattr(RESULTS, item)], item

"""`solve`: accuracy, the time axis, what a solution holds."""

import diffrax
import equinox as eqx
import helpers
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import decay, problem

from sciml import RESULTS, solvers


TWO = jnp.array([0.0, 1.0])


@pytest.mark.parametrize("problem", helpers.exact_problems, ids=str)
def test_adaptive_meets_its_tolerance(problem):
    ts = problem.times()
    sol = solvers.solve(problem.fn, problem.y0, ts, problem.args, rtol=1e-9, atol=1e-11)
    assert bool(sol.ok) and bool(sol.valid.all())
    assert RESULTS.successful == sol.result
    assert jnp.array_equal(sol.ts, ts)
    helpers.assert_close(sol.ys, problem.solution(ts), rtol=2e-7, atol=1e-9)


@pytest.mark.parametrize(
    "method", [diffrax.Dopri5(), diffrax.Kvaerno3(), diffrax.Kvaerno5()], ids=helpers.name
)
def test_diffrax_solvers(method):
    p = problem["logistic"]
    sol = solvers.solve(p.fn, p.y0, p.times(), p.args, method=method, rtol=1e-8, atol=1e-10)
    helpers.assert_close(sol.ys, p.solution(p.times()), rtol=1e-6)


def test_tighter_tolerances_cost_steps_and_buy_accuracy():
    p = problem["logistic"]
    steps, errors = [], []
    for rtol in (1e-4, 1e-6, 1e-8):
        sol = solvers.solve(p.fn, p.y0, p.times(), p.args, rtol=rtol, atol=rtol / 100)
        steps.append(int(sol.stats["accepted"]))
        errors.append(float(jnp.abs(sol.ys - p.solution(p.times())).max()))
    assert steps == sorted(steps) and steps[-1] > 2 * steps[0]
    assert errors[1] < errors[0] / 5 and errors[2] < errors[1] / 5


def test_robertson_is_found_to_be_stiff_and_solved():
    # Case 1; values by Radau at 1e-12.
    ts = jnp.array([0.0, 0.4, 40.0, 1e5])
    sol = solvers.solve(helpers.robertson, jnp.array([1.0, 0.0, 0.0]), ts, rtol=1e-8, atol=1e-11)
    want = [
        [0.985172113861, 3.38639537897e-05, 0.0147940221852],
        [0.715827068719, 9.18553476456e-06, 0.284163745746],
        [0.0178659211421, 7.274751468436e-08, 0.9821340061103],
    ]
    # Between steps Diffrax interpolates Kvaerno5 by a cubic, which is less accurate than the steps.
    np.testing.assert_allclose(sol.ys[1:], want, rtol=1e-5)
    np.testing.assert_allclose(sol.ys[-1], want[-1], rtol=1e-6)
    # The repaired root finder: Diffrax's own makes 1643 attempts, 836 of them rejected.
    assert sol.stats["accepted"] + sol.stats["rejected"] <= 250
    assert sol.stats["rejected"] <= 30


def test_pytree_states_and_scalars():
    def fn(t, y, args):
        return {"a": -y["a"], "b": (y["a"], -2 * y["b"][1])}

    y0 = {"a": 1.0, "b": (0.0, jnp.ones((2, 2)))}
    sol = solvers.solve(fn, y0, TWO, rtol=1e-9, atol=1e-11)
    e = np.exp(-1)
    last = {"a": e, "b": (1 - e, np.full((2, 2), e**2))}
    helpers.assert_close(jax.tree.map(lambda x: x[-1], sol.ys), last, rtol=1e-7)
    assert jax.tree.map(jnp.shape, sol.ys) == {"a": (2,), "b": ((2,), (2, 2, 2))}
    helpers.assert_close(jax.tree.map(lambda x: x[0], sol.ys), y0)


def test_a_state_that_is_a_module():
    class State(eqx.Module):
        x: jax.Array
        v: jax.Array

    fn = lambda t, y, args: State(y.v, -y.x)
    sol = solvers.solve(fn, State(jnp.array(0.0), jnp.array(1.0)), TWO, steps=40)
    assert isinstance(sol.ys, State)
    np.testing.assert_allclose(sol.ys.x[-1], np.sin(1), rtol=1e-8)


@pytest.mark.parametrize("steps", [None, 50])
def test_duplicate_times(steps):
    ts = jnp.array([0.0, 0.0, 1.0, 1.0, 2.0, 2.0])
    sol = solvers.solve(
        decay, jnp.array([2.0]), ts, jnp.array(1.0), steps=steps, rtol=1e-9, atol=1e-11
    )
    assert bool(sol.ok) and bool(sol.valid.all())
    np.testing.assert_array_equal(sol.ys[::2], sol.ys[1::2])
    np.testing.assert_array_equal(sol.ys[0], [2.0])
    np.testing.assert_allclose(sol.ys[:, 0], 2 * np.exp(-ts), rtol=1e-6)


@pytest.mark.parametrize("steps", [None, 7])
def test_an_empty_span_returns_the_start(steps):
    sol = solvers.solve(decay, jnp.array([2.0]), jnp.array([1.0, 1.0]), jnp.array(1.0), steps=steps)
    assert bool(sol.ok) and bool(sol.valid.all())
    np.testing.assert_array_equal(sol.ys, [[2.0], [2.0]])
    assert sol.stats["reached"] == 1.0


@pytest.mark.parametrize("steps", [None, 60])
def test_backward_time(steps):
    # Depends on time, so that a sign error in the clock shows.
    p = problem["forced"]
    ts = p.times(4)[::-1]
    start = jax.tree.map(lambda x: x[-1], p.solution(p.times()))
    sol = solvers.solve(p.fn, start, ts, p.args, steps=steps, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(sol.ys, p.solution(ts), rtol=1e-6)
    assert sol.stats["reached"] == 0.0
    assert sol.stats["last_step"] < 0


@pytest.mark.parametrize("steps", [None, 40])
def test_times_may_start_anywhere(steps):
    p = problem["bell"]
    ts = jnp.linspace(-0.5, 1.5, 5)
    sol = solvers.solve(p.fn, p.solution(ts[:1])[0], ts, p.args, steps=steps, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(sol.ys, p.solution(ts), rtol=1e-6)


def test_save_times_do_not_steer_the_adaptive_steps():
    p = problem["oscillator"]
    early = jnp.array([0.0, 1e-3, 2e-3, 3e-3, p.t1])
    late = jnp.array([0.0, p.t1, p.t1, p.t1, p.t1])
    one, two = (solvers.solve(p.fn, p.y0, ts, p.args) for ts in (early, late))
    assert one.stats["accepted"] == two.stats["accepted"]
    assert one.ys["x"][-1] == two.ys["x"][-1]


def test_fixed_and_adaptive_solve_the_same_equation():
    p = problem["logistic"]
    fixed = solvers.solve(p.fn, p.y0, p.times(), p.args, steps=200)
    adaptive = solvers.solve(p.fn, p.y0, p.times(), p.args, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(fixed.ys, adaptive.ys, rtol=1e-9)


def test_statistics_count():
    p = problem["decay"]
    sol = solvers.solve(p.fn, p.y0, p.times(), p.args)
    accepted, rejected = int(sol.stats["accepted"]), int(sol.stats["rejected"])
    assert accepted > 0 and rejected >= 0
    assert sol.stats["evaluations"] == 2 + 6 * (accepted + rejected)  # two for the first step
    assert sol.stats["reached"] == p.t1
    fixed = solvers.solve(p.fn, p.y0, p.times(), p.args, steps=10)
    assert fixed.stats["accepted"] == 40 and fixed.stats["rejected"] == 0
    assert fixed.stats["evaluations"] == 240
    np.testing.assert_allclose(fixed.stats["last_step"], p.t1 / 40)
    assert fixed.stats["reached"] == p.t1


@pytest.fixture(scope="module")
def dense():
    p = problem["forced"]
    return solvers.solve(p.fn, p.y0, p.times(2), p.args, rtol=1e-9, atol=1e-11, dense=True)


def test_dense_output(dense):
    p = problem["forced"]
    np.testing.assert_allclose(dense.at(1.234), p.solution(jnp.array([1.234]))[0], rtol=1e-6)
    ts = jnp.linspace(0.0, p.t1, 24).reshape(4, 6)
    ys = dense.at(ts)
    assert ys.shape == (4, 6, 1)
    np.testing.assert_allclose(ys.reshape(24, 1), p.solution(ts.reshape(24)), rtol=1e-6)
    np.testing.assert_allclose(dense.at(jnp.array([0.0, p.t1])), dense.ys, rtol=1e-12)
    np.testing.assert_array_equal(dense.at(1), dense.at(1.0))  # an integer is a time


def test_dense_output_is_nan_outside(dense):
    np.testing.assert_array_equal(
        np.isnan(dense.at(jnp.array([-1e-3, 0.0, 3.0, 3.001]))[:, 0]), [1, 0, 0, 1]
    )


def test_dense_output_in_backward_time(dense):
    p = problem["forced"]
    back = solvers.solve(
        p.fn, dense.ys[-1], p.times(2)[::-1], p.args, rtol=1e-9, atol=1e-11, dense=True
    )
    np.testing.assert_allclose(back.at(1.234), p.solution(jnp.array([1.234]))[0], rtol=1e-6)
    assert np.isnan(back.at(3.1)).all() and np.isnan(back.at(-0.1)).all()


def test_dense_output_must_be_asked_for():
    sol = solvers.solve(decay, jnp.array([1.0]), TWO, jnp.array(0.5), steps=4)
    with pytest.raises(ValueError, match=r"solve\(\.\.\., dense=True\)"):
        sol.at(0.5)


def test_a_solution_prints_itself():
    sol = solvers.solve(decay, jnp.array([1.0]), TWO, jnp.array(0.5), steps=4)
    text = repr(sol)
    assert "Solution on 0 .. 1 at 2 times, ok" in text and "accepted 4" in text
    jax.jit(lambda s: repr(s) and s.ok)(sol)  # under a transformation too


def test_inside_jit_it_is_the_same_solve():
    p = problem["decay"]
    run = jax.jit(lambda y0, k: solvers.solve(p.fn, y0, p.times(), k, rtol=1e-9, atol=1e-11))
    inside = run(p.y0, p.args)
    outside = solvers.solve(p.fn, p.y0, p.times(), p.args, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(inside.ys, outside.ys, rtol=1e-13)
    assert inside.stats["accepted"] == outside.stats["accepted"]


TRACES = []


class Counted(eqx.Module):
    """A decay that counts how often it is traced."""

    k: jax.Array | float

    def __call__(self, t, y, args):
        TRACES.append(1)
        return -self.k * y


@pytest.mark.parametrize(
    "options", [{"method": solvers.Tsit5}, {"steps": 5}], ids=["adaptive", "fixed"]
)
def test_nothing_is_traced_twice(options):
    def run(k, y=1.0, t1=1.0, rtol=1e-5, atol=1e-8, args=0.0):
        # Everything built afresh, as in a loop over data.
        fresh = {k: v() if isinstance(v, type) else v for k, v in options.items()}
        ts = jnp.array([0.0, 0.5, t1])
        return solvers.solve(Counted(k), jnp.array([y]), ts, args, rtol=rtol, atol=atol, **fresh).ys

    first = run(1.0)
    before = len(TRACES)
    assert before > 0
    np.testing.assert_allclose(run(2.0, y=3.0, t1=2.0)[-1], [3 * np.exp(-4)], rtol=3e-3)
    tight = run(1.0, rtol=1e-9, atol=1e-9)
    assert (tight[-1] != first[-1]).all() == ("method" in options)
    run(1.0, rtol=jnp.array(1e-7), atol=np.float64(1e-7))
    run(1.0, args=1.0)
    assert len(TRACES) == before


def test_numbers_in_a_module_may_change_without_a_trace():
    run = lambda k: solvers.solve(Counted(k), jnp.ones(3), TWO, steps=3).ys
    run(0.5)
    before = len(TRACES)
    run(0.25)
    assert len(TRACES) == before


def test_any_pytree_may_be_args():
    net = eqx.nn.MLP(1, 1, 4, 1, key=jax.random.key(0))  # holds functions
    ts = jnp.array([0.0, 1.0])
    got = solvers.solve(lambda t, y, a: a(y), jnp.array([1.0]), ts, net).ys
    np.testing.assert_allclose(got, solvers.solve(lambda t, y, a: net(y), jnp.array([1.0]), ts).ys)
    tagged = {"name": "x", "k": 0.5, "none": None}
    sol = solvers.solve(lambda t, y, a: -a["k"] * y, jnp.array([1.0]), ts, tagged)
    np.testing.assert_allclose(sol.ys[-1], np.exp(-0.5), rtol=1e-5)


def test_what_is_static_is_told_apart_by_type():
    fn = lambda t, y, a: -(3.0 if a is True else 1.0) * y
    got = [float(solvers.solve(fn, 1.0, jnp.array([0.0, 1.0]), a).ys[-1]) for a in (1, True)]
    np.testing.assert_allclose(got, np.exp([-1.0, -3.0]), rtol=1e-5)


def test_a_new_step_budget_compiles_nothing():
    traces = []

    def fn(t, y, args):
        traces.append(1)
        return -y

    for n in (100, 200, 300):
        solvers.solve(fn, jnp.array([1.0]), jnp.array([0.0, 1.0]), max_steps=n)
        if n == 100:
            first = len(traces)
    assert len(traces) == first

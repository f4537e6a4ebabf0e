"""Events: found at the right time, in the right order, with derivatives, and acted on."""

import helpers
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sciml import solvers


TIGHT = {"rtol": 1e-9, "atol": 1e-11}
WAYS = {
    "Tsit5": TIGHT | {"method": solvers.Tsit5()},
    "Rodas5P": TIGHT | {"method": solvers.Rodas5P()},
    "fixed": {"steps": 40, "method": solvers.RK4()},
}
TSIT5 = WAYS["Tsit5"]
ways = pytest.mark.parametrize(
    "options",
    [
        pytest.param(WAYS["Tsit5"], id="Tsit5"),
        pytest.param(WAYS["Rodas5P"], id="Rodas5P", marks=pytest.mark.slow),
        pytest.param(WAYS["fixed"], id="fixed"),
    ],
)


def fall(t, y, p):
    """A ball: height and speed; `p` is gravity and what is left of the speed after a bounce."""
    return jnp.stack([y[1], -p[0]])


def height(t, y, p):
    return y[0]


def bounce(t, y, p):
    return jnp.stack([0 * y[0], -p[1] * y[1]])


GROUND = solvers.Event(height, direction=-1)
BOUNCE = solvers.Event(height, direction=-1, apply=bounce)


def landing(q, **options):
    """When and how fast a ball lands, for `q`: height, gravity."""
    y0, ts = jnp.stack([q[0], 0 * q[0]]), jnp.array([0.0, 10.0])
    sol = solvers.solve(fall, y0, ts, jnp.stack([q[1], q[1]]), events=GROUND, **options)
    return jnp.stack([sol.event.t, sol.event.y[1]])


@ways
def test_time_and_state_have_derivatives(options):
    """Acceptance: 1.427843122927, and by the height 0.071392156146."""
    q = jnp.array([10.0, 9.81])
    exact = lambda q: jnp.stack([jnp.sqrt(2 * q[0] / q[1]), -jnp.sqrt(2 * q[0] * q[1])])
    f = lambda q: landing(q, **options)
    np.testing.assert_allclose(jax.jit(f)(q), exact(q), rtol=1e-10)
    for mode in (jax.jacfwd, jax.jacrev):
        np.testing.assert_allclose(jax.jit(mode(f))(q), mode(exact)(q), rtol=1e-8, atol=1e-10)


@pytest.mark.slow
@ways
def test_time_and_state_have_second_derivatives(options):
    q = jnp.array([10.0, 9.81])
    exact = lambda q: jnp.stack([jnp.sqrt(2 * q[0] / q[1]), -jnp.sqrt(2 * q[0] * q[1])])
    got = jax.jit(jax.hessian(lambda q: landing(q, **options)))(q)
    np.testing.assert_allclose(got, jax.hessian(exact)(q), rtol=1e-6, atol=1e-8)


@ways
def test_a_bouncing_ball(options):
    """Case 32 of the field: the jump moves with the time of the bounce."""

    def end(p):
        g, e, h = p
        y0 = jnp.stack([h, 0 * h])
        args = jnp.stack([g, e])
        ts = jnp.array([0.0, 3.0])
        sol = solvers.solve(fall, y0, ts, args, events=BOUNCE, max_events=2, **options)
        return sol.ys[-1, 0], (sol.events.t, sol.events.count)

    p = jnp.array([9.81, 0.8, 10.0])
    (y, (times, count)), by_p = jax.jit(jax.value_and_grad(end, has_aux=True))(p)
    np.testing.assert_allclose(times, [1.42784312293, np.nan, np.nan], rtol=1e-9)
    assert int(count) == 1
    np.testing.assert_allclose(y, 5.49356159394, rtol=1e-9)
    np.testing.assert_allclose(by_p, [-0.644823568, 22.0214231078, 1.18192808], rtol=1e-7)
    np.testing.assert_allclose(jax.jit(jax.jacfwd(end, has_aux=True))(p)[0], by_p, rtol=1e-9)


@pytest.mark.slow
def test_second_derivatives_through_bounces():
    """Against differences of gradients."""

    def end(p):
        y0, ts = jnp.stack([p[2], 0 * p[2]]), jnp.array([0.0, 4.0])
        return solvers.solve(fall, y0, ts, p[:2], events=BOUNCE, max_events=2, **TSIT5).ys[-1, 0]

    p, h = jnp.array([9.81, 0.8, 10.0]), 1e-5
    gradient = jax.jit(jax.grad(end))
    want = [(gradient(p + h * e) - gradient(p - h * e)) / (2 * h) for e in jnp.eye(3)]
    np.testing.assert_allclose(jax.jit(jax.hessian(end))(p), jnp.stack(want), rtol=1e-5)


@ways
def test_the_first_of_several_wins(options):
    """Case 11, in any order they are given."""
    late = solvers.Event(lambda t, y, a: t - 1.0)
    early = solvers.Event(lambda t, y, a: y[0] - 0.5)
    rise = lambda t, y, a: jnp.ones(1)
    for index, events in ((1, (late, early)), (0, (early, late))):
        sol = solvers.solve(rise, jnp.zeros(1), jnp.array([0.0, 2.0]), events=events, **options)
        np.testing.assert_allclose(sol.event.t, 0.5, rtol=1e-12)
        assert int(sol.event.index) == index
        assert sol.ok and int(sol.count) == 1 and np.isnan(sol.ys[-1, 0])


def test_several_crossings_in_one_step():
    """Case 1 of the field: a cubic with three roots is solved in few large steps."""
    note = solvers.Event(lambda t, y, a: y, terminate=False)
    fn = lambda t, y, a: 3 * t**2 + 12 * t - 4
    sol = solvers.solve(fn, -120.0, jnp.array([-8.0, 4.0]), events=note, max_events=5)
    np.testing.assert_allclose(sol.events.t[:3], [-6.0, -2.0, 2.0], atol=1e-9)
    assert int(sol.events.count) == 3
    np.testing.assert_allclose(sol.ys[-1], 120.0)
    only_down = solvers.Event(lambda t, y, a: y, direction=-1)
    sol = solvers.solve(fn, -120.0, jnp.array([-8.0, 4.0]), events=only_down)
    np.testing.assert_allclose(sol.event.t, -2.0, atol=1e-9)


@ways
def test_what_lies_behind_the_end_is_nan_and_marked(options):
    """Case 15, and 3 of the field."""
    low = solvers.Event(lambda t, y, k: y[0] - 0.1)
    ts = jnp.array([0.0, 2.0, 4.0, 6.0])

    def run(k):
        return solvers.solve(helpers.decay, jnp.ones(1), ts, k, events=low, **options)

    sol = run(1.0)
    np.testing.assert_allclose(sol.event.t, np.log(10), rtol=1e-5)
    np.testing.assert_allclose(sol.event.y, [0.1], rtol=1e-12)
    np.testing.assert_array_equal(sol.valid, [True, True, False, False])
    assert sol.ok and int(sol.count) == 2 and np.isnan(sol.ys[2:]).all()
    total = lambda k: jnp.sum(jnp.where(run(k).valid[:, None], run(k).ys, 0))
    np.testing.assert_allclose(jax.grad(total)(1.0), -2 * np.exp(-2), rtol=1e-5)
    after = solvers.solve(helpers.decay, jnp.ones(1), jnp.array([0.0, 6.0]), 1.0, events=low)
    assert int(after.count) == 1


def test_zero_at_the_start_is_no_event():
    """A ball thrown from the ground comes back."""
    y0 = jnp.array([0.0, 5.0])
    for event in (GROUND, solvers.Event(height)):
        sol = solvers.solve(fall, y0, jnp.array([0.0, 4.0]), jnp.array([9.81, 1.0]), events=event)
        np.testing.assert_allclose(sol.event.t, 2 * 5 / 9.81, rtol=1e-8)


def test_integrate_and_fire():
    """`apply` may lead far away from where the event was."""
    fn = lambda t, v, current: current - v
    fire = solvers.Event(lambda t, v, a: v - 1.0, direction=1, apply=lambda t, v, a: 0 * v)
    sol = solvers.solve(fn, 0.0, jnp.array([0.0, 5.0]), 1.5, events=fire, max_events=9, **TSIT5)
    period = np.log(1.5 / 0.5)
    np.testing.assert_allclose(sol.events.t[:4], period * np.arange(1, 5), rtol=1e-8)
    assert int(sol.events.count) == 4


@pytest.mark.parametrize("dense", [False, True])
def test_too_many_events_are_a_failure(dense):
    p = jnp.array([9.81, 0.8])
    sol = solvers.solve(
        fall, jnp.array([1.0, 0.0]), jnp.array([0.0, 9.0]), p,
        events=BOUNCE, max_events=3, throw=False, dense=dense,
    )  # fmt: skip
    assert not sol.ok and int(sol.events.count) == 4  # the one too many as well
    assert "max_events" in solvers.RESULTS[sol.result]
    np.testing.assert_array_equal(sol.valid, [True, False])


def test_a_truth_value_has_a_time_but_no_derivative():
    rich = solvers.Event(lambda t, y, k: y > 2.0)

    def f(k):
        grow = lambda t, y, k: k * y
        return solvers.solve(grow, 1.0, jnp.array([0.0, 9.0]), k, events=rich).event.t

    np.testing.assert_allclose(f(0.5), np.log(2) / 0.5, rtol=1e-5)
    with pytest.raises(TypeError, match="truth value has no derivative"):
        jax.grad(f)(0.5)


def test_members_of_a_batch_have_their_own_events():
    low = solvers.Event(lambda t, y, k: y[0] - 0.1)
    ts, ks = jnp.array([0.0, 2.0, 4.0]), jnp.array([0.1, 1.0, 5.0])
    time = lambda k: solvers.solve(helpers.decay, jnp.ones(1), ts, k, events=low, **TSIT5).event.t
    got, by_k = jax.jit(jax.vmap(jax.value_and_grad(time)))(ks)
    np.testing.assert_allclose(got, [np.nan, np.log(10), np.log(10) / 5], rtol=1e-8)
    np.testing.assert_allclose(by_k[1:], -np.log(10) / ks[1:] ** 2, rtol=1e-7)
    assert by_k[0] == 0  # what did not happen can be masked
    sol = solvers.solve_ensemble(helpers.decay, jnp.ones((3, 1)), ts, ks, events=low)
    np.testing.assert_array_equal(sol.event.index, [-1, 0, 0])
    np.testing.assert_array_equal(sol.count, [3, 2, 1])


def test_in_backward_time_and_at_the_very_end():
    half = solvers.Event(lambda t, y, k: t - 0.5)
    sol = solvers.solve(helpers.decay, 1.0, jnp.array([2.0, 0.0]), 1.0, events=half)
    np.testing.assert_allclose(sol.event.t, 0.5, rtol=1e-12)
    end = solvers.Event(lambda t, y, k: t - 2.0)
    sol = solvers.solve(helpers.decay, 1.0, jnp.array([0.0, 2.0]), 1.0, events=end)
    np.testing.assert_allclose(sol.event.t, 2.0, rtol=1e-12)


def test_stiff_problems_and_mass_matrices():
    """Van der Pol's oscillator jumps once; and an index-1 DAE whose algebraic part is watched."""
    up = solvers.Event(lambda t, y, mu: y[0], direction=1, terminate=False)
    vdp = lambda t, y, mu: jnp.stack([y[1], mu * (1 - y[0] ** 2) * y[1] - y[0]])
    ts, y0 = jnp.array([0.0, 2000.0]), jnp.array([2.0, 0.0])
    sol = solvers.solve(vdp, y0, ts, 1000.0, events=up, max_events=3, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(sol.ys[-1], [1.706167732171, -8.928097010e-04], rtol=1e-5)
    assert int(sol.events.count) == 1

    def square(t, y, k):
        return jnp.stack([-k * y[0], y[1] - y[0] ** 2])

    quarter = solvers.Event(lambda t, y, k: y[1] - 0.25)

    def time(k):
        return solvers.solve(
            square, jnp.array([1.0, 5.0]), jnp.array([0.0, 4.0]), k,
            mass=[1.0, 0.0], events=quarter, **TIGHT,
        ).event.t  # fmt: skip

    value, by_k = jax.jit(jax.value_and_grad(time))(0.5)
    np.testing.assert_allclose([value, by_k], [np.log(2) / 0.5, -np.log(2) / 0.25], rtol=1e-7)


@pytest.mark.slow
def test_dense_output_and_steps_around_events():
    p = jnp.array([9.81, 0.8])
    sol = solvers.solve(
        fall, jnp.array([10.0, 0.0]), jnp.array([0.0, 3.0]), p, events=BOUNCE, dense=True,
        max_events=3, **TSIT5,
    )  # fmt: skip
    t1 = np.sqrt(20 / 9.81)
    t = np.array([0.0, 0.5, t1 + 0.3, 2.0, 3.0])
    v1 = 0.8 * 9.81 * t1
    exact = np.where(t < t1, 10 - 9.81 * t**2 / 2, v1 * (t - t1) - 9.81 * (t - t1) ** 2 / 2)
    np.testing.assert_allclose(sol.at(t)[:, 0], exact, rtol=1e-8)
    steps = sol.steps()
    assert (np.diff(steps.ts) >= 0).all()
    i = int(np.argmax(np.diff(steps.ys[:, 1])))  # the bounce is in it, before and after
    np.testing.assert_allclose(steps.ys[i : i + 2, 1], [-9.81 * t1, v1], rtol=1e-5)
    low = solvers.Event(lambda t, y, k: y[0] - 0.1)
    ended = solvers.solve(
        helpers.decay, jnp.ones(1), jnp.array([0.0, 9.0]), 1.0, events=low, dense=True
    )
    np.testing.assert_array_equal(np.isnan(ended.at([1.0, 2.4])[:, 0]), [False, True])


def test_nothing_is_traced_twice():
    traces = []

    def fn(t, y, k):
        traces.append(1)
        return -k * y

    level = lambda t, y, k: y[0] - 0.3

    def run(k):
        event = solvers.Event(level)
        return solvers.solve(fn, jnp.ones(1), jnp.array([0.0, 3.0]), k, events=(event,)).event.t

    run(1.0)
    n = len(traces)
    run(2.0)
    assert len(traces) == n


@pytest.mark.parametrize(
    ("event", "error", "text"),
    [
        (lambda: solvers.Event(height, direction=2), ValueError, "direction"),
        (lambda: solvers.Event(3.0), TypeError, "function of"),
        (lambda: solvers.Event(lambda t, y: y[0]), TypeError, r"fn\(t, y, args\)"),
        (lambda: solvers.Event(lambda t, y, a: y), ValueError, "one real number or truth value"),
        (lambda: solvers.Event(height, apply=lambda t, y, a: y[0]), ValueError, "shaped as `y0`"),
    ],
)
def test_bad_input(event, error, text):
    """Case 13: functions are called by position."""
    with pytest.raises(error, match=text):
        solvers.solve(fall, jnp.ones(2), jnp.array([0.0, 1.0]), jnp.ones(2), events=event())


def test_diffrax_solvers_are_refused():
    import diffrax

    with pytest.raises(ValueError, match="one of our methods"):
        solvers.solve(
            fall, jnp.ones(2), jnp.array([0.0, 1.0]), jnp.ones(2),
            events=GROUND, method=diffrax.Tsit5(),
        )  # fmt: skip


def test_jumps_that_lead_across_zero():
    """By a dose, an input or another event: at the time of the jump, not where the flow would be zero."""
    ts = jnp.array([0.0, 1.0, 2.0])
    full = solvers.Event(lambda t, y, a: y[0] - 1.0, direction=1, terminate=False)
    for options in (TSIT5, {"steps": 10}):
        sol = solvers.solve(
            helpers.decay, jnp.zeros(1), ts, 1.0,
            doses=solvers.Doses([1.5], 2.0), events=full, max_events=2, **options,
        )  # fmt: skip
        np.testing.assert_allclose([sol.events.t[0], sol.events.y[0, 0]], [1.5, 2.0], rtol=1e-9)
        np.testing.assert_allclose(sol.ys[2, 0], 2 * np.exp(-0.5), rtol=1e-6)
    u = solvers.Input([0.0, 1.0], [3.0, 0.25], kind="zoh")
    above = solvers.Event(lambda t, y, u: y - u(t))
    sol = solvers.solve(lambda t, y, u: jnp.ones(()), 0.0, ts, u, events=above)
    np.testing.assert_allclose([sol.event.t, sol.event.y], [1.0, 1.0], rtol=1e-9)


def test_events_at_the_same_time():
    """Each happens, once."""
    fn = lambda t, y, a: jnp.array([1.0, -0.5])
    events = (
        solvers.Event(lambda t, y, a: y[0] - 0.5, apply=lambda t, y, a: y.at[1].add(2.0)),
        solvers.Event(lambda t, y, a: y[1] - 1.0, direction=1, terminate=False),
        solvers.Event(lambda t, y, a: t - 0.5, terminate=False),
    )
    options = {"events": events, "max_events": 4, "method": solvers.Tsit5()}
    sol = solvers.solve(fn, jnp.zeros(2), jnp.array([0.0, 1.0]), **options)
    np.testing.assert_allclose(sol.events.t[:3], 0.5, rtol=1e-9)
    assert sorted(sol.events.index[:3].tolist()) == [0, 1, 2] and int(sol.events.count) == 3
    np.testing.assert_allclose(sol.ys[-1], [1.0, 1.5], rtol=1e-9)


def test_a_reset_close_to_the_threshold():
    fn = lambda t, y, a: jnp.ones(())
    for back, end in ((1e-3, 1.0025), (2e-5, 1.00005)):
        reset = solvers.Event(lambda t, y, a: y - 1.0, direction=1, apply=lambda t, y, a: 1.0 - a)
        sol = solvers.solve(
            fn, 0.0, jnp.array([0.0, end]), back,
            events=reset, max_events=4, method=solvers.Tsit5(),
        )  # fmt: skip
        np.testing.assert_allclose(sol.events.t[:3], 1.0 + back * np.arange(3), rtol=1e-9)


def test_a_truth_value_that_becomes_false_is_no_event():
    low = solvers.Event(lambda t, y, k: y[0] > 0.5)
    sol = solvers.solve(helpers.decay, jnp.ones(1), jnp.array([0.0, 3.0]), 1.0, events=low)
    assert int(sol.event.index) == -1 and int(sol.count) == 2

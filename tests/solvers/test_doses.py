"""Doses: added at their time, on a declared side, with derivatives by times, amounts and durations."""

import helpers
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sciml import solvers


TIGHT = {"rtol": 1e-9, "atol": 1e-12}
TSIT5 = TIGHT | {"method": solvers.Tsit5()}
THREE = solvers.Doses([0.0, 12.0, 24.0], 100.0)
WAYS = {"default": TIGHT, "Rodas5P": TIGHT | {"method": solvers.Rodas5P()}, "fixed": {"steps": 30}}


@pytest.mark.parametrize("options", WAYS.values(), ids=WAYS.keys())
@pytest.mark.parametrize("side", ["before", "after"])
def test_bolus(options, side):
    """Case 10: a save time at a dose shows the declared side of it."""
    ts = jnp.array([0.0, 6.0, 12.0, 18.0, 24.0, 36.0])
    sol = solvers.solve(helpers.decay, jnp.zeros(1), ts, 0.2, doses=THREE, side=side, **options)
    at = {
        "before": [0.0, 9.071795328941, 9.894770033843],
        "after": [100.0, 109.071795328941, 109.894770033843],
    }[side]
    want = [at[0], 30.119421191, at[1], 32.851793436, at[2], 9.969428614681]
    np.testing.assert_allclose(sol.ys[:, 0], want, rtol=1e-6)


@pytest.mark.parametrize("options", [TSIT5, {"steps": 30}], ids=["Tsit5", "fixed"])
def test_derivatives(options):
    """Case 10: dA(36)/dk = -131.300645775099; and closed forms for the rest."""

    def f(k, times, amounts):
        doses = solvers.Doses(times, amounts)
        ts = jnp.array([0.0, 36.0])
        return solvers.solve(helpers.decay, jnp.zeros(1), ts, k, doses=doses, **options).ys[-1, 0]

    exact = lambda k, times, amounts: jnp.sum(amounts * jnp.exp(-k * (36 - times)))
    p = (0.2, jnp.array([0.0, 12.0, 24.0]), jnp.array([100.0, 100.0, 100.0]))
    got = jax.jit(jax.grad(f, (0, 1, 2)))(*p)
    np.testing.assert_allclose(got[0], -131.300645775099, rtol=1e-6)
    want = jax.grad(exact, (0, 1, 2))(*p)
    forward = jax.jit(jax.jacfwd(f, (0, 1, 2)))(*p)
    for one in (got, forward):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), one, want)


@pytest.mark.slow
def test_second_derivatives():
    def f(k, times):
        doses, ts = solvers.Doses(times, 100.0), jnp.array([0.0, 36.0])
        return solvers.solve(helpers.decay, jnp.zeros(1), ts, k, doses=doses, **TSIT5).ys[-1, 0]

    exact = lambda k, times: jnp.sum(100.0 * jnp.exp(-k * (36 - times)))
    p = (0.2, jnp.array([0.0, 12.0, 24.0]))
    second, want = (jax.jit(jax.hessian(g, (0, 1)))(*p) for g in (f, exact))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), second, want)


def test_repeated_doses_and_the_end_time():
    """Case 10 of the field: none is lost, and one at the very end is given."""
    doses = solvers.Doses.every(24.0, 4, 10.0)
    ts = jnp.array([0.0, 24.0, 48.0, 72.0])
    run = lambda side: solvers.solve(
        helpers.decay, jnp.array([10.0]), ts, 1.0, doses=doses, side=side, rtol=1e-12, atol=1e-16
    ).ys[:, 0]
    before, after = run("before"), run("after")
    np.testing.assert_allclose(after, before + 10, rtol=1e-12)
    np.testing.assert_allclose(after[0], 20.0)
    np.testing.assert_allclose(before[1:3], [7.55026909e-10, 3.77513454e-10], rtol=1e-6)
    np.testing.assert_allclose(after[3], 10.00000000037751, rtol=1e-12)


def test_an_observation_at_a_dose_is_one_row():
    """Case 11 of the field."""
    for side, at in (("before", 0.183156388887), ("after", 10.1831563888873)):
        sol = solvers.solve(
            helpers.decay, jnp.array([10.0]), jnp.array([0.0, 4.0, 10.0]), 1.0,
            doses=solvers.Doses(4.0, 10.0), side=side, **TSIT5,
        )  # fmt: skip
        np.testing.assert_allclose(sol.ys[1:, 0], [at, 0.0252415210643], rtol=1e-7)


def test_observations_before_the_first_dose():
    """Case 12 of the field: one compartment, by mouth; and a named state."""
    ts = jnp.array([-0.05, 1.1167, 2.1167, 4.1167, 8.1833, 24.1333])

    def fn(t, y, p):
        ka, ke = p
        return {"gut": -ka * y["gut"], "blood": ka * y["gut"] - ke * y["blood"]}

    doses = solvers.Doses([0.0], 100.0, into=lambda y: y["gut"])
    sol = solvers.solve(
        fn, {"gut": 0.0, "blood": 0.0}, ts, jnp.array([1.0, 0.1]),
        doses=doses, output=lambda t, y, p: y["blood"] / 10.0, **TSIT5,
    )  # fmt: skip
    want = [0.0, 6.299789381, 7.653370142, 7.180496325, 4.898761234, 0.994630078]
    np.testing.assert_allclose(sol.ys, want, rtol=1e-7, atol=1e-12)


def infused(t, k, starts, amounts, duration):
    """Closed form of y' = -k y with infusions."""
    on = jnp.clip(t - starts, 0, duration)
    left = jnp.exp(-k * jnp.maximum(t - starts - duration, 0))
    return jnp.sum(amounts / duration / k * (1 - jnp.exp(-k * on)) * left)


@pytest.mark.parametrize("options", [TSIT5, {"steps": 30}], ids=["Tsit5", "fixed"])
def test_infusions(options):
    """Overlapping, one running at the start and one beyond the end; with a bolus in a second table."""
    starts, amounts = jnp.array([-1.0, 2.0, 3.0, 9.0]), jnp.array([4.0, 10.0, 20.0, 5.0])
    ts = jnp.linspace(0.0, 10.0, 6)
    bolus = solvers.Doses([4.5], 7.0)

    def f(duration, k):
        doses = (solvers.Doses(starts, amounts, duration=duration), bolus)
        return solvers.solve(helpers.decay, jnp.zeros(1), ts, k, doses=doses, **options).ys[:, 0]

    def exact(duration, k):
        # What was given before the start is not in the state there.
        given = infused(0.0, k, starts[:1], amounts[:1], duration)
        rest = jnp.stack([infused(t, k, starts, amounts, duration) for t in ts])
        late = jnp.where(ts > 4.5, 7.0 * jnp.exp(-k * (ts - 4.5)), 0)
        return rest - given * jnp.exp(-k * ts) + late

    p = (2.5, 0.3)
    np.testing.assert_allclose(f(*p), exact(*p), rtol=1e-6, atol=1e-9)
    got = jax.jit(jax.jacrev(f, (0, 1)))(*p)
    want = jax.jacfwd(exact, (0, 1))(*p)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), got, want)


def test_members_have_their_own_doses():
    times = jnp.array([[0.0, 2.0], [1.0, 3.0], [4.0, 4.0]])
    ks, ts = jnp.array([0.1, 0.3, 5.0]), jnp.linspace(0.0, 6.0, 7)

    def run(k, times):
        doses = solvers.Doses(times, 1.0)
        return solvers.solve(helpers.decay, jnp.zeros(1), ts, k, doses=doses, **TSIT5).ys[:, 0]

    exact = lambda k, times: jnp.sum(
        jnp.where(ts[:, None] > times[None], jnp.exp(-k * (ts[:, None] - times[None])), 0), axis=1
    )
    got = jax.jit(jax.vmap(run))(ks, times)
    np.testing.assert_allclose(got, jax.vmap(exact)(ks, times), rtol=1e-7, atol=1e-11)


def test_a_dose_that_crosses_a_threshold_is_an_event():
    full = solvers.Event(lambda t, y, k: y[0] - 50.0, direction=1)
    sol = solvers.solve(
        helpers.decay, jnp.zeros(1), jnp.array([0.0, 30.0]), 0.2,
        doses=solvers.Doses([6.0], 80.0), events=full, **TSIT5,
    )  # fmt: skip
    np.testing.assert_allclose(sol.event.t, 6.0, rtol=1e-6)


def test_what_is_known_between_doses():
    sol = solvers.solve(
        helpers.decay, jnp.zeros(1), jnp.array([0.0, 36.0]), 0.2, doses=THREE, dense=True, **TSIT5
    )
    t = np.array([0.0, 6.0, 12.0, 18.0, 36.0])
    want = [0.0, 30.119421191, 9.071795328941, 32.851793436, 9.969428614681]
    np.testing.assert_allclose(sol.at(t)[:, 0], want, rtol=1e-7, atol=1e-12)
    steps = sol.steps()
    assert int(steps.count) == len(steps.ts)
    np.testing.assert_allclose([steps.ts[0], steps.ts[-1]], [0.0, 36.0])
    jumps = steps.ys[1:, 0] - steps.ys[:-1, 0]
    np.testing.assert_allclose(np.sort(jumps)[-3:], 100.0, rtol=1e-9)


@pytest.mark.parametrize(
    ("doses", "options", "text"),
    [
        (lambda: solvers.Doses([0.0], [1.0, 2.0]), {}, "one for each of the 1 doses"),
        (lambda: solvers.Doses([0.0], 1.0, duration=0.0), {}, "must be positive"),
        (lambda: solvers.Doses([np.nan], 1.0), {}, "must be finite"),
        (lambda: solvers.Doses([0.0], 1.0, into=7), {}, "state of 1 numbers"),
        (lambda: solvers.Doses([0.0], 1.0, into=lambda y: y), {}, "pick one number"),
        (lambda: solvers.Doses([0.0], 1.0, into=lambda y: 2 * y[0]), {}, "as it is"),
        (lambda: solvers.Doses([0.0], 1.0, into=lambda y: y["gut"]), {}, "could not pick"),
        (lambda: solvers.Doses([0.0], 1j), {}, "complex"),
        (lambda: solvers.Doses([-1.0], 1.0), {}, "would be lost"),
        (lambda: THREE, {"side": "left"}, '"before" or "after"'),
        (lambda: THREE, {"ts": jnp.array([1.0, 0.0])}, "backwards in time"),
    ],
)
def test_bad_input(doses, options, text):
    ts = options.pop("ts", jnp.array([0.0, 1.0]))
    with pytest.raises(ValueError, match=text):
        solvers.solve(helpers.decay, jnp.ones(1), ts, 1.0, doses=doses(), **options)


def test_a_traced_dose_that_would_be_lost_is_a_failure():
    def end(time):
        doses = solvers.Doses(time, 1.0)
        ts = jnp.array([0.0, 1.0])
        return solvers.solve(helpers.decay, jnp.zeros(1), ts, 1.0, doses=doses, throw=False)

    sol = jax.jit(end)(jnp.array([-1.0]))
    assert not sol.ok and "before the start" in solvers.RESULTS[sol.result]

"""Inputs u(t) as data, and declared discontinuities: steps end on knots, values come from the right side."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.interpolate

from sciml import solvers


TIGHT = {"rtol": 1e-8, "atol": 1e-10}
METHODS = [solvers.Tsit5(), solvers.Rodas5P(), None]


def follow(t, y, u):
    return -y + u(t)


HELD = solvers.Input([0.0, 1.0, 2.0, 3.0], [1.0, 0.5, -0.5, 0.3], kind="zoh")
HELD_VALUES = [0.632120558829, 0.548604437349, -0.114239985578, 0.147609625595]


@pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)
def test_zero_order_hold(method):
    """Case 8, with adaptive steps."""
    sol = solvers.solve(follow, jnp.zeros(1), jnp.arange(5.0), HELD, method=method, **TIGHT)
    np.testing.assert_allclose(sol.ys[1:, 0], HELD_VALUES, atol=1e-8)


@pytest.mark.parametrize("method", [solvers.RK4(), solvers.Rodas5P()], ids=["RK4", "Rodas5P"])
@pytest.mark.parametrize("ts", [[0.0, 1.0, 2.0, 3.0, 4.0], [0.0, 2.0, 4.0]])
def test_zero_order_hold_with_fixed_steps(method, ts):
    """Case 8: the knots are ends of steps even where nothing is saved."""
    sol = solvers.solve(follow, jnp.zeros(1), jnp.array(ts), HELD, method=method, steps=20)
    want = dict(zip([1.0, 2.0, 3.0, 4.0], HELD_VALUES, strict=True))
    np.testing.assert_allclose(sol.ys[1:, 0], [want[t] for t in ts[1:]], atol=1e-7)


def test_one_sample_that_is_not_zero():
    """Case 8 of the field: default tolerances."""
    knots = np.linspace(0.0, 10.0, 100)
    u = solvers.Input(knots, (np.arange(100) == 6).astype(float))
    fn = lambda t, y, u: jnp.stack([y[1], u(t) - y[0] - y[1]])
    ts = jnp.array([0.0, knots[10], knots[50], 10.0])
    sol = solvers.solve(fn, jnp.zeros(2), ts, u)
    want = [0.0325906211339, -0.00820352918596, 0.00102198832873]
    np.testing.assert_allclose(sol.ys[1:, 0], want, rtol=1e-4)
    late = solvers.solve(fn, jnp.zeros(2), ts, u, steps=4)
    np.testing.assert_allclose(late.ys[1:, 0], want, rtol=1e-4)


KNOTS = np.array([0.0, 0.7, 1.0, 2.2, 3.0, 4.5])
DATA = np.stack([np.sin(2 * KNOTS), [0.0, 0.1, 2.0, 2.1, 1.0, 3.0]], axis=1)


@pytest.mark.parametrize(
    ("kind", "oracle"),
    [
        ("linear", lambda x, y: scipy.interpolate.make_interp_spline(x, y, k=1)),
        ("pchip", scipy.interpolate.PchipInterpolator),
        (
            "hermite",
            lambda x, y: scipy.interpolate.CubicHermiteSpline(x, y, np.gradient(y, x, axis=0)),
        ),
    ],
)
def test_values_between_knots(kind, oracle):
    u = solvers.Input(KNOTS, DATA, kind=kind)
    t = np.linspace(0.0, 4.5, 50)
    np.testing.assert_allclose(jax.vmap(u)(t), oracle(KNOTS, DATA)(t), rtol=1e-12, atol=1e-13)
    outside = jax.vmap(u)(jnp.array([-1.0, 9.0]))
    np.testing.assert_allclose(outside, DATA[[0, -1]])


def test_missing_values():
    """Case 28: what is not known comes from its neighbours."""
    nan = np.nan
    values = np.array([nan, 1.0, nan, 3.0, nan])
    t = np.arange(5.0)
    linear, held = solvers.Input(t, values), solvers.Input(t, values, kind="zoh")
    np.testing.assert_allclose(jax.vmap(linear)(t), [1.0, 1.0, 2.0, 3.0, 3.0])
    np.testing.assert_allclose(jax.vmap(held)(t), [1.0, 1.0, 1.0, 3.0, 3.0])
    slope = jax.grad(lambda v: solvers.Input(t, v)(2.25))(jnp.asarray(values))
    np.testing.assert_allclose(slope, [0.0, 0.375, 0.0, 0.625, 0.0])
    with pytest.raises(ValueError, match="Column 1 of `values` is missing"):
        solvers.Input(t, np.stack([values, np.full(5, nan)], axis=1))


@pytest.mark.parametrize("kind", ["zoh", pytest.param("pchip", marks=pytest.mark.slow)])
def test_derivatives_by_values_and_knots(kind):
    """Against differences; a zero-order hold moves with its knots, too."""
    ts = jnp.array([0.0, 2.5])

    def f(knots, values, kind):
        u = solvers.Input(knots, values, kind=kind)
        return solvers.solve(follow, 0.3, ts, u, method=solvers.Tsit5(), **TIGHT).ys[-1]

    knots, values, h = jnp.array([0.0, 1.0, 2.0]), jnp.array([1.0, 0.5, -0.5]), 1e-4
    g = jax.jit(lambda knots, values: f(knots, values, kind))
    by_both = jax.jit(jax.grad(g, (0, 1)))(knots, values)
    move = lambda k, e: g(*((knots + e, values) if k == 0 else (knots, values + e)))
    want = [[(move(k, h * e) - move(k, -h * e)) / (2 * h) for e in jnp.eye(3)] for k in (0, 1)]
    # The first knot is the start itself: moved to the right it adds a stretch, to the left none.
    np.testing.assert_allclose(by_both[0][1:], want[0][1:], rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(by_both[1], want[1], rtol=1e-5, atol=1e-8)
    forward = jax.jit(jax.jacfwd(g, (0, 1)))(knots, values)
    np.testing.assert_allclose(forward, by_both, rtol=1e-7, atol=1e-10)


class Plant(eqx.Module):
    """A module that holds one input and gets another as `args`, with other knots."""

    u: solvers.Input

    def __call__(self, t, y, v):
        return -y + self.u(t) * v(t)


def test_several_inputs_in_modules_and_args():
    u = solvers.Input([0.0, 1.5], [1.0, 2.0], kind="zoh")
    v = solvers.Input([0.0, 1.0, 2.0], [1.0, 0.0, 1.0], kind="zoh")
    sol = solvers.solve(Plant(u), 0.0, jnp.array([0.0, 1.0, 2.0, 3.0]), v, **TIGHT)
    first = 1 - np.exp(-1)
    second = first * np.exp(-1)
    third = second * np.exp(-1) + 2 * (1 - np.exp(-1))
    np.testing.assert_allclose(sol.ys[1:], [first, second, third], rtol=1e-7)
    batch = jax.vmap(lambda x: solvers.Input([0.0, 1.0], x * jnp.ones(2), kind="zoh"))
    inputs = batch(jnp.array([1.0, 2.0]))
    many = solvers.solve_ensemble(follow, jnp.zeros((2, 1)), jnp.array([0.0, 2.0]), inputs)
    np.testing.assert_allclose(many.ys[1], 2 * many.ys[0], rtol=1e-6)


def test_an_input_in_a_closure_is_refused():
    """A solve can't step onto what it doesn't see."""
    import diffrax

    for options in ({}, {"steps": 5}, {"method": diffrax.Tsit5()}):
        with pytest.raises(ValueError, match="Pass it in `args`"):
            solvers.solve(lambda t, y, a: -y + HELD(t), 0.0, jnp.arange(3.0), **options)


def pulse(t, y, width):
    """On for a short time only; and nan outside the span."""
    on = (t >= 50.0) & (t < 50.0 + width)
    return jnp.where(on, 1.0 / width, 0.0) - 0 * y + jnp.where((t < 0) | (t > 100), jnp.nan, 0.0)


@pytest.mark.parametrize("options", [TIGHT, {"steps": 3}], ids=["adaptive", "fixed"])
def test_a_short_pulse_is_not_missed(options):
    width = 1e-3
    ts = jnp.array([0.0, 50.0, 100.0])
    at = [50.0, 50.0 + width]
    sol = solvers.solve(pulse, 0.0, ts, width, discontinuities=at, **options)
    np.testing.assert_allclose(sol.ys, [0.0, 0.0, 1.0], atol=1e-9)
    assert int(sol.stats["accepted"]) < 60


@pytest.mark.parametrize(
    "options",
    [{"method": solvers.Tsit5()}, {"method": solvers.Rodas5P()}, {"steps": 3}],
    ids=["Tsit5", "Rodas5P", "fixed"],
)
def test_the_field_is_never_evaluated_outside_the_span(options):
    """Not by a rounding error either."""

    def fn(t, y, ends):
        outside = (t < jnp.min(ends)) | (t > jnp.max(ends))
        return jnp.where(outside, jnp.nan, -y)

    rng = np.random.default_rng(0)
    for dtype in (np.float64, np.float32):
        ends = rng.uniform(-5.0, 5.0, (200, 2)).astype(dtype)
        t0, t1 = ends.T
        assert (np.abs(t0 + (t1 - t0)) > np.abs(t1)).any()  # so it would happen
        y0 = jnp.ones(1, dtype)
        run = lambda ts, y0=y0: solvers.solve(fn, y0, ts, ts, throw=False, **options).ok
        assert jax.jit(jax.vmap(run))(jnp.asarray(ends)).all()


def test_backwards_and_at_an_edge():
    there = solvers.solve(follow, jnp.zeros(1), jnp.array([0.0, 3.5]), HELD, **TIGHT)
    back = solvers.solve(follow, there.ys[-1], jnp.array([3.5, 1.0, 0.0]), HELD, **TIGHT)
    np.testing.assert_allclose(back.ys[1:, 0], [HELD_VALUES[0], 0.0], atol=1e-7)


def test_single_precision():
    u = solvers.Input(jnp.arange(3, dtype=jnp.float32), jnp.ones(3, jnp.float32))
    ts = jnp.array([0.0, 3.0], jnp.float32)
    sol = solvers.solve(follow, jnp.zeros(1, jnp.float32), ts, u)
    assert sol.ys.dtype == jnp.float32
    np.testing.assert_allclose(sol.ys[-1], 1 - np.exp(-3.0), rtol=1e-4)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: solvers.Input([0.0, 1.0], [1.0]), "one row for each of the 2 knots"),
        (lambda: solvers.Input([1.0, 0.0], [1.0, 2.0]), "must increase"),
        (lambda: solvers.Input([0.0, np.nan], [1.0, 2.0]), "must be finite"),
        (lambda: solvers.Input([0.0, 1.0], [1.0, 2.0], slopes=[0.0, 0.0]), 'for `kind="hermite"`'),
    ],
)
def test_bad_input(make, text):
    with pytest.raises(ValueError, match=text):
        make()


def test_jumps_between_smooth_stretches():
    """Two knots at the same time: each side is a curve of its own."""
    x, v = np.array([0.0, 1.0, 1.5, 1.5, 2.0, 3.0]), np.array([0.0, 1.0, 1.2, 5.0, 5.5, 7.0])
    u = solvers.Input(x, v, kind="pchip")
    left = scipy.interpolate.PchipInterpolator(x[:3], v[:3])
    right = scipy.interpolate.PchipInterpolator(x[3:], v[3:])
    got = jax.vmap(u)(jnp.array([1.25, 1.5, 1.75]))
    np.testing.assert_allclose(got, [left(1.25), right(1.5), right(1.75)], rtol=1e-12)
    both = solvers.Input(x, v + 2j * v, kind="pchip")
    np.testing.assert_allclose(both(1.75), right(1.75) * (1 + 2j), rtol=1e-12)


def test_traced_knots_that_make_no_sense_are_a_failure():
    def end(knots):
        u = solvers.Input(knots, jnp.ones(2))
        return solvers.solve(follow, 0.0, jnp.array([0.0, 1.0]), u, throw=False)

    sol = jax.jit(end)(jnp.array([1.0, 0.0]))
    assert not sol.ok and "do not increase" in solvers.RESULTS[sol.result]
    assert np.isnan(sol.ys).all()

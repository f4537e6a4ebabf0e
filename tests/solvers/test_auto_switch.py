"""The default method: when it changes, and that everything goes on across a change."""

import equinox as eqx
import helpers
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import robertson, van_der_pol

from sciml import solvers


AUTO, STIFF = solvers.AutoSwitch(), solvers.Rodas5P()
MU = 30.0
START = jnp.array([2.0, 0.0])
# Two jumps and the slow parts between: it changes to and fro.
JUMPS = jnp.linspace(0.0, 60.0, 9)


def run(mu, method=AUTO, ts=JUMPS, rtol=1e-6):
    return solvers.solve(
        van_der_pol, START, ts, mu, method=method, rtol=rtol, atol=rtol / 1e3, throw=False
    )


last = jax.jit(lambda mu: run(mu).ys[-1])


def last_by(method):
    return jax.jit(lambda mu: run(mu, method).ys[-1])


def test_it_is_the_default_and_changes_to_and_fro():
    sol = run(MU, None)
    same = run(MU)
    np.testing.assert_array_equal(sol.ys, same.ys)
    stiff = int(sol.stats["stiff_attempts"])
    attempts = int(sol.stats["accepted"] + sol.stats["rejected"])
    assert 50 < stiff < attempts - 100
    # Tsit5 evaluates six times a step, Rodas5P eight times.
    entries = int(sol.stats["evaluations"]) - 6 * (attempts - stiff) - 8 * stiff
    assert 0 <= entries <= 10
    want = run(MU, STIFF, rtol=1e-10).ys
    np.testing.assert_allclose(sol.ys, want, rtol=1e-4, atol=1e-5)


def test_problems_of_one_kind_stay_with_one_method():
    p = helpers.problem["oscillator"]
    sol = solvers.solve(p.fn, p.y0, p.times(), p.args)
    assert sol.stats["stiff_attempts"] == 0
    plain = solvers.solve(p.fn, p.y0, p.times(), p.args, method=solvers.Tsit5())
    helpers.assert_close(sol.ys, plain.ys, rtol=1e-14)
    ts = jnp.array([0.0, 1e5])
    sol = solvers.solve(robertson, jnp.array([1.0, 0.0, 0.0]), ts)
    explicit = sol.stats["accepted"] + sol.stats["rejected"] - sol.stats["stiff_attempts"]
    assert 10 <= explicit < 50  # the initial layer
    assert sol.stats["accepted"] < 150


@pytest.mark.parametrize("transform", [jax.jit, jax.vmap, lambda f: jax.vmap(jax.jit(f))])
def test_it_changes_inside_transformations(transform):
    mus = jnp.array([MU, 1.0, 1000.0])
    f = lambda mu: run(mu).ys[-1]
    got = transform(f)(mus) if transform is not jax.jit else jnp.stack([last(m) for m in mus])
    for mu, y in zip(mus, got, strict=True):
        np.testing.assert_allclose(y, run(float(mu)).ys[-1], rtol=1e-6, atol=1e-9)


@pytest.mark.slow
def test_derivatives_take_the_same_steps():
    by_hand = lambda f, x: (f(x + 1e-4) - f(x - 1e-4)) / 2e-4
    slope = by_hand(last_by(STIFF), MU)
    reverse = jax.jit(jax.jacrev(lambda mu: run(mu).ys[-1]))(MU)
    forward = jax.jit(jax.jacfwd(lambda mu: run(mu).ys[-1]))(MU)
    np.testing.assert_allclose(reverse, slope, rtol=2e-3)
    np.testing.assert_allclose(forward, reverse, rtol=1e-9)
    batch = jax.jit(jax.vmap(jax.grad(lambda mu: run(mu).ys[-1, 0])))(jnp.array([MU, 1.0, 1000.0]))
    np.testing.assert_allclose(batch[0], reverse[0], rtol=1e-6)
    one = jax.jit(jax.grad(lambda mu: run(mu).ys[-1, 0]))
    np.testing.assert_allclose(batch[1:], [one(1.0), one(1000.0)], rtol=1e-6)


@pytest.mark.slow
def test_second_derivatives_in_all_modes():
    # Where steps are at the limit of stability second derivatives are rough: of a tight solve.
    loss = lambda mu: run(mu, ts=jnp.array([0.0, 24.0]), rtol=1e-8).ys[-1, 1]
    exact = lambda mu: run(mu, STIFF, ts=jnp.array([0.0, 24.0]), rtol=1e-9).ys[-1, 1]
    slope = jax.jit(jax.grad(exact))
    want = (slope(MU + 1e-3) - slope(MU - 1e-3)) / 2e-3
    for outer in (jax.jacfwd, jax.jacrev):
        for inner in (jax.jacfwd, jax.jacrev):
            np.testing.assert_allclose(jax.jit(outer(inner(loss)))(MU), want, rtol=1e-2)


def test_an_explicit_method_alone_has_no_gradient_here():
    """What switching saves us from: steps at the limit of stability, frozen, magnify tangents."""
    wrong = jax.jit(jax.grad(lambda mu: run(mu, solvers.Tsit5()).ys[-1, 0]))(MU)
    assert not abs(wrong) < 1e3


def test_dense_output_across_changes():
    sol = solvers.solve(van_der_pol, START, JUMPS, MU, rtol=1e-8, atol=1e-11, dense=True)
    ts = jnp.linspace(0.0, 60.0, 301)
    want = solvers.solve(van_der_pol, START, ts, MU, method=STIFF, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(sol.at(ts), want.ys, rtol=1e-4, atol=1e-4)


def test_single_precision_and_backwards():
    y0 = jnp.array([1.0, 0.0, 0.0], jnp.float32)
    sol = solvers.solve(robertson, y0, jnp.array([0.0, 40.0], jnp.float32))
    np.testing.assert_allclose(sol.ys[-1, 0], 0.715827068719, rtol=1e-4)
    assert sol.ys.dtype == jnp.float32 and sol.stats["stiff_attempts"] > 0
    relax = lambda t, y, k: k * (y - jnp.cos(t))
    sol = solvers.solve(relax, jnp.array([0.0]), jnp.array([1.0, 0.0]), 1e5)
    np.testing.assert_allclose(sol.ys[-1], 1.0, rtol=1e-5)
    assert sol.stats["stiff_attempts"] > 0


def test_a_component_that_stays_zero():
    """With no absolute tolerance nothing is no part of nothing, in the vote as in the error."""
    fn = lambda t, y, k: jnp.stack([-k * (y[0] - 1), 0.0 * y[1]])
    sol = solvers.solve(fn, jnp.array([2.0, 0.0]), jnp.array([0.0, 1.0]), 1e5, atol=0.0)
    assert sol.stats["stiff_attempts"] > 0 and sol.stats["accepted"] < 300


def fast_oscillator(t, y, p):
    """Follows c cos t; lightly damped, with eigenvalues beside the imaginary axis."""
    c, w, z = p
    follow = -(w**2) * (y[0] - c * jnp.cos(t)) - 2 * z * w * (y[1] + c * jnp.sin(t))
    return jnp.stack([y[1], follow - c * jnp.cos(t)])


@pytest.mark.parametrize(("damping", "t1"), [(0.001, 4.0), (0.003, 3.0), (0.01, 2.0)])
def test_gradients_beside_the_imaginary_axis(damping, t1):
    """There stability ends earlier than on the real axis; frozen steps at the limit magnified tangents to 1e5."""
    np.testing.assert_allclose(fast_gradient(1.0, damping, t1), np.cos(t1), rtol=1e-3)


@jax.jit
def fast_gradient(c, damping, t1):
    def last(c):
        p = jnp.stack([c, 1e3, damping])
        return solvers.solve(fast_oscillator, jnp.stack([c, 0 * c]), jnp.stack([0.0, t1]), p).ys[
            -1, 0
        ]

    return jax.grad(last)(c)


@pytest.mark.parametrize("damping", [0.5, 0.9, 2.0])
def test_damped_fast_oscillators_are_stiff(damping):
    sol = solvers.solve(fast_oscillator, jnp.zeros(2), jnp.array([0.0, 10.0]), (1.0, 1e5, damping))
    assert sol.stats["stiff_attempts"] > 200 and sol.stats["accepted"] < 8000
    np.testing.assert_allclose(sol.ys[-1, 0], np.cos(10.0), rtol=1e-4)


def test_a_useless_trial_is_not_repeated_soon():
    # Accuracy holds the steps where stability would, too: 1,200 periods at a loose tolerance.
    turn = lambda t, y, w: jnp.stack([y[1], -(w**2) * y[0]])
    options = {"rtol": 1e-2, "atol": 1e-4}
    sol = solvers.solve(turn, jnp.array([1.0, 0.0]), jnp.array([0.0, 100.0]), 75.0, **options)
    assert int(sol.stats["stiff_attempts"]) < 0.2 * int(sol.stats["accepted"])


def test_another_stiff_method():
    sol = run(MU, solvers.AutoSwitch(solvers.Rosenbrock23()), rtol=1e-4)
    assert sol.ok and sol.stats["stiff_attempts"] > 0
    np.testing.assert_allclose(sol.ys[-1], run(MU, STIFF).ys[-1], rtol=1e-2, atol=1e-4)
    with pytest.raises(TypeError, match=r"Rosenbrock method.*Dopri8"):
        solvers.AutoSwitch(solvers.Dopri8())
    with pytest.raises(ValueError, match="can't take explicit steps of M y' = f"):
        solvers.AutoSwitch(solvers.Rodas5P(mass=np.ones(2)))
    with pytest.raises(ValueError, match="error estimates of adaptive steps"):
        solvers.solve(van_der_pol, START, JUMPS, MU, method=AUTO, steps=10)


def test_large_states_are_left_to_tsit5():
    heat = lambda t, y, k: k * (jnp.roll(y, 1) - 2 * y + jnp.roll(y, -1))
    y0 = jnp.zeros(600).at[300].set(1.0)
    with pytest.raises(RuntimeError, match="looks stiff"):
        solvers.solve(heat, y0, jnp.array([0.0, 1.0]), 1e5, max_steps=200)
    sol = solvers.solve(heat, y0, jnp.array([0.0, 1.0]), 1.0)
    assert "stiff_attempts" not in sol.stats


def test_an_ensemble_changes_member_by_member():
    mus = jnp.array([1.0, 300.0, MU])
    y0 = jnp.tile(START, (3, 1))
    sol = solvers.solve_ensemble(van_der_pol, y0, jnp.array([0.0, 20.0]), mus)
    counts = np.asarray(sol.stats["stiff_attempts"])
    assert counts[0] == 0 and counts[1] > 0 and counts[2] > 0
    for i, mu in enumerate(mus):
        alone = solvers.solve(van_der_pol, START, jnp.array([0.0, 20.0]), float(mu))
        np.testing.assert_allclose(sol.ys[i], alone.ys, rtol=1e-9)
        assert counts[i] == alone.stats["stiff_attempts"]


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_units_do_not_matter(scale):
    """Robertson's problem with its second species in other units."""

    def fn(t, y, args):
        return robertson(t, y / units, args) * units

    units = jnp.array([1.0, scale, 1.0])
    sol = eqx.filter_jit(solvers.solve)(
        fn, units * jnp.array([1.0, 0.0, 0.0]), jnp.array([0.0, 0.4, 1e5]), atol=1e-9 * units
    )
    np.testing.assert_allclose(sol.ys[-1, 0], 0.0178659211421, rtol=1e-5)
    assert sol.stats["accepted"] < 150

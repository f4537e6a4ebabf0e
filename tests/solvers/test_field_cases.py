"""What users of other libraries ran into when they solved: units, precision, spans, starts, stiffness."""

import warnings

import helpers
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import decay, lotka_volterra

from sciml import solvers


def turning(t, y, w):
    return jnp.stack([y[1], -(w**2) * y[0]])


@pytest.mark.slow
def test_dense_output_agrees_with_the_steps():
    ts = jnp.asarray(np.sort(np.random.default_rng(0).uniform(0, 20, 10_000)))
    for method in (None, solvers.Rodas5P(), solvers.Dopri8()):
        sol = solvers.solve(
            turning, jnp.array([1.0, 0.0]), jnp.array([0.0, 20.0]), 1.0, method=method, dense=True,
            rtol=1e-6, atol=1e-8,
        )  # fmt: skip
        np.testing.assert_allclose(sol.at(ts)[:, 0], jnp.cos(ts), atol=2e-5)


def test_backwards_and_its_dense_output():
    p = jnp.array([1.5, 1.0, 1.0, 3.0])
    there = solvers.solve(
        lotka_volterra, jnp.ones(2), jnp.array([0.0, 10.0]), p, rtol=1e-12, atol=1e-13
    )
    np.testing.assert_allclose(there.ys[-1], [1.02634476757509, 0.909691078136], rtol=1e-9)
    back = solvers.solve(
        lotka_volterra,
        there.ys[-1],
        jnp.array([10.0, 7.5, 0.0]),
        p,
        rtol=1e-12,
        atol=1e-13,
        dense=True,
    )
    np.testing.assert_allclose(back.ys[-1], [1.0, 1.0], rtol=1e-9)
    np.testing.assert_allclose(back.at(7.5), back.ys[1], rtol=1e-9)


def test_integer_starts_are_not_truncated():
    fn = lambda t, y, a: {"x": y["v"], "v": -jnp.pi * y["x"] - 0.5 * y["v"]}
    sol = solvers.solve(fn, {"x": 1, "v": 0}, np.array([0, 5]), rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(
        [sol.ys["x"][-1], sol.ys["v"][-1]], [-0.203150956138, -0.310878567521], rtol=1e-8
    )


def test_a_state_below_the_tolerance_is_warned_of():
    ts = jnp.array([0.0, 1.0])
    with pytest.warns(UserWarning, match=r"smaller than atol = 1e-09 throughout.*pass an `atol=`"):
        solvers.solve(decay, 1e-12, ts, 1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sol = solvers.solve(decay, 1e-12, ts, 1.0, atol=1e-20)
        np.testing.assert_allclose(sol.ys[-1], 3.67879441171e-13, rtol=1e-6)
        # nothing at all is no such case, nor is one small part
        solvers.solve(decay, 0.0, ts, 1.0)
        solvers.solve(decay, jnp.array([1.0, 1e-12]), ts, 1.0)


def test_an_inconsistent_start_is_projected():
    fn = lambda t, y, a: jnp.stack([-y[0], y[1] - y[0] ** 2])
    sol = solvers.solve(
        fn, jnp.array([1.0, 5.0]), jnp.array([0.0, 2.0]), mass=[1.0, 0.0], rtol=1e-8, atol=1e-11
    )
    np.testing.assert_allclose(sol.ys, [[1.0, 1.0], [0.135335283237, 0.0183156388887]], rtol=1e-7)


def test_robertson_to_1e11():
    sol = solvers.solve(
        helpers.robertson, jnp.array([1.0, 0.0, 0.0]), jnp.array([0.0, 1e11]), rtol=1e-8, atol=1e-20
    )
    np.testing.assert_allclose(
        sol.ys[-1], [2.083340149701e-8, 8.333360770335e-14, 0.999999979166505], rtol=1e-5
    )


def test_what_is_forgotten_has_no_gradient():
    """Stiff decay to p/100: backwards in time it would explode."""
    fn = lambda t, y, p: -100 * y + p
    last = lambda y0, p: solvers.solve(fn, y0, jnp.array([0.0, 10.0]), p, rtol=1e-8, atol=1e-11).ys[
        -1
    ]
    by_y0, by_p = jax.jit(jax.grad(last, argnums=(0, 1)))(1.0, 2.0)
    np.testing.assert_allclose(by_p, 0.01, rtol=1e-6)
    assert abs(by_y0) < 1e-9


@pytest.mark.parametrize("unit", [1e-9, 1e11])
@pytest.mark.parametrize("method", [None, solvers.Rodas5P()], ids=["default", "Rodas5P"])
def test_spans_in_any_unit(unit, method):
    """Nanoseconds and 1e11 seconds: the steps are those of the same problem in other units."""
    p = jnp.array([1.5, 1.0, 1.0, 3.0])
    options = {"method": method, "rtol": 1e-7, "atol": 1e-9}
    want = solvers.solve(lotka_volterra, jnp.ones(2), jnp.array([0.0, 5.0, 10.0]), p, **options)
    got = solvers.solve(
        lotka_volterra, jnp.ones(2), jnp.array([0.0, 5.0, 10.0]) * unit, p / unit, **options
    )
    np.testing.assert_allclose(got.ys, want.ys, rtol=1e-5)
    assert abs(int(got.stats["accepted"]) - int(want.stats["accepted"])) <= 2


@pytest.mark.parametrize("method", [None, solvers.Rodas5P()], ids=["default", "Rodas5P"])
def test_single_precision_far_from_zero(method):
    """At t = 1e6 float32 resolves 0.06; an autonomous problem does not depend on where it starts."""
    y0, p = jnp.ones(2, jnp.float32), jnp.array([1.5, 1.0, 1.0, 3.0], jnp.float32)
    ts = jnp.array([0.0, 2.0, 4.0], jnp.float32)
    near = solvers.solve(lotka_volterra, y0, ts, p, method=method)
    far = solvers.solve(lotka_volterra, y0, ts + jnp.float32(1e6), p, method=method)
    np.testing.assert_allclose(far.ys, near.ys, rtol=1e-5)


def test_very_long_oscillations_say_what_is_left():
    with pytest.raises(
        RuntimeError,
        match=r"failed at t = [\d.]+ of 100000.*rest of the time takes about [\d.]+e\+0[67] more steps",
    ):
        solvers.solve(turning, jnp.array([1.0, 0.0]), jnp.array([0.0, 1e5]), 10.0, max_steps=1000)


def test_complex_states_with_the_stiff_method():
    fn = lambda t, y, k: (1j * 50.0 - k) * y
    for method in (None, solvers.Rodas5P()):
        sol = solvers.solve(
            fn,
            jnp.array([1.0 + 0j]),
            jnp.array([0.0, 0.5]),
            1.0,
            method=method,
            rtol=1e-8,
            atol=1e-10,
        )
        np.testing.assert_allclose(sol.ys[-1], np.exp((50j - 1) * 0.5), rtol=1e-5)

"""Derivatives where the state rests: the error of its steps is none, that of the tangents is not."""

import functools

import helpers
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sciml import solvers
from sciml._custom_types import Derivatives
from sciml.solvers._core import solve_core


TIMES = jnp.array([5.0, 10.0, 20.0, 50.0])
OFFSETS = jnp.array([0.0, 1e-6, 1e-3])
MIX = np.array([[1.0, 1.0], [-0.5, 1.0]])


def towards(t, y, p):
    """Linear, and at rest where y = c."""
    a, c = p
    return a @ (y - c)


def end(c, a, offset, t1, rtol, method=None, derivatives: Derivatives = "any"):
    method = solvers.AutoSwitch() if method is None else method
    ts, y0 = jnp.stack([0 * t1, t1]), jax.lax.stop_gradient(c) - offset
    options = (method, rtol, 1e-3 * rtol, None, 10_000)
    # All numbers are traced, so that one program serves all tests.
    sol = solve_core(towards, y0, ts, (a, c), *options, derivatives=derivatives)
    return sol.ys[-1], (sol.ys[-1], sol.stats)


@functools.partial(jax.jit, static_argnames="method")
def _by_reverse(*operands, method=None):
    return jax.jacrev(end, has_aux=True)(*operands, method)


@jax.jit
def _by_forward(*operands):
    return jax.jacfwd(end, has_aux=True)(*operands, None, "forward")


def _strong(x):
    return jnp.asarray(x, float)


def by_reverse(*operands, method=None):
    return _by_reverse(*map(_strong, operands), method=method)


def by_forward(*operands):
    return _by_forward(*map(_strong, operands))


def matrix(*rates):
    return jnp.asarray(MIX @ np.diag(rates) @ np.linalg.inv(MIX))


def slope(a, t1):
    return np.eye(len(a)) - np.asarray(jax.scipy.linalg.expm(t1 * a))


@pytest.mark.parametrize("mode", [by_reverse, by_forward])
def test_one_state_in_a_batch(mode):
    cases = jnp.stack(jnp.meshgrid(OFFSETS, TIMES, jnp.array([1e-6, 1e-8])), -1).reshape(-1, 3)
    one = lambda case: mode(jnp.ones(1), -jnp.ones((1, 1)), *case)
    got, (value, stats) = jax.jit(jax.vmap(one))(cases)
    offset, t1, rtol = cases.T
    np.testing.assert_allclose(got[:, 0, 0], 1 - np.exp(-t1), atol=1e-6)
    assert bool((abs(value[:, 0] - 1 + offset * jnp.exp(-t1)) <= rtol).all())
    # z = 1/2, and the few steps of the start
    assert np.all(np.asarray(stats["accepted"]) <= 2 * np.asarray(t1) + 8)


@pytest.mark.parametrize("mode", [by_reverse, by_forward])
@pytest.mark.parametrize("offset", [0.0, 1e-6, 1e-3])
@pytest.mark.parametrize("rtol", [1e-6, 1e-8])
def test_two_rates(mode, offset, rtol):
    a = matrix(-1.0, -50.0)
    for t1 in TIMES:
        got, (value, stats) = mode(jnp.array([1.0, 2.0]), a, offset, t1, rtol)
        np.testing.assert_allclose(got, slope(a, t1), atol=1e-6)
        np.testing.assert_allclose(value, [1.0, 2.0], atol=10 * rtol + offset)
        assert stats["accepted"] < 1010


def test_an_explicit_method_takes_all_its_steps():
    """Also if the first one it tries is so long that it is refused."""
    a = matrix(-1.0, -50.0)
    tsit5 = functools.partial(by_reverse, jnp.array([1.0, 2.0]), a, 1e-6, method=solvers.Tsit5())
    got, (_, stats) = tsit5(10.0, 1e-6)
    np.testing.assert_allclose(got, slope(a, 10.0), atol=1e-6)
    assert stats["accepted"] >= 1000
    # More than the record holds: no derivative is better than a plausible one.
    got, (_, stats) = tsit5(100.0, 1e-6)
    assert bool(jnp.isnan(got).all()) and stats["accepted"] == 4096


@pytest.mark.parametrize("mode", [by_reverse, by_forward])
def test_the_stiff_method_takes_over(mode):
    a = matrix(-1.0, -1e6)
    got, (_, stats) = mode(jnp.array([1.0, 2.0]), a, 0.0, 100.0, 1e-6)
    np.testing.assert_allclose(got, np.eye(2), atol=1e-6)
    assert stats["accepted"] < 100 and stats["stiff_attempts"] > 10
    # Not for what oscillates, whose tangents it would damp.
    a = jnp.array([[0.0, 1.0], [-25.0, 0.0]])
    got, (_, stats) = mode(jnp.array([1.0, 0.0]), a, 0.0, 120.0, 1e-6)
    np.testing.assert_allclose(got, slope(a, 120.0), atol=0.03)
    assert stats["stiff_attempts"] == 0 and stats["accepted"] < 1220


def test_values_alone_take_large_steps():
    plain = lambda c: end(c, -jnp.ones((1, 1)), 0.0, jnp.array(50.0), 1e-6)[1][1]["accepted"]
    assert jax.jit(plain)(jnp.ones(1)) < 10
    fn = lambda t, y, c: c - y
    assert solvers.solve(fn, 1.0, jnp.array([0.0, 50.0]), 1.0).stats["accepted"] < 10


def test_what_moves_takes_the_same_steps():
    p = helpers.problem["oscillator"]

    def run(y0):
        sol = solvers.solve(p.fn, y0, p.times(), p.args)
        return sum(jnp.sum(x) for x in jax.tree.leaves(sol.ys)), sol.stats["accepted"]

    plain = jax.jit(run)(p.y0)
    (value, accepted), _ = jax.jit(jax.value_and_grad(run, has_aux=True))(p.y0)
    np.testing.assert_allclose(value, plain[0], rtol=1e-13)
    assert accepted == plain[1]

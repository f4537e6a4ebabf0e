"""Tsit5: error estimate and dense output; its other coefficients are proved in `test_fixed_steps.py`."""

import diffrax
import helpers
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import problem

from sciml import solvers


METHOD = solvers.Tsit5()


def test_error_weights():
    np.testing.assert_allclose(METHOD.error_weights, diffrax.Tsit5.tableau.b_error, rtol=1e-13)
    np.testing.assert_allclose(METHOD.error_weights.sum(), 0, atol=1e-15)
    # What remains is an embedded solution whose error is of order 4.
    a = np.zeros((7, 7))
    a[:6, :6], a[6, :6] = METHOD.a, METHOD.b
    c, d = a.sum(1), METHOD.error_weights
    quadratures = [d @ c**k for k in range(1, 4)]
    others = [d @ a @ c, d @ (c * (a @ c)), d @ a @ c**2, d @ a @ a @ c]
    np.testing.assert_allclose(quadratures + others, 0, atol=1e-13)
    assert abs(d @ c**4) > 1e-5


def test_dense_output_is_that_of_diffrax():
    stages = jnp.asarray(np.random.default_rng(0).normal(size=(7, 3)))
    y0 = jnp.array([1.0, -2.0, 0.5])
    theirs = diffrax.Tsit5.interpolation_cls(
        t0=jnp.array(0.0), t1=jnp.array(1.0), y0=y0, y1=y0, k=stages
    )
    for theta in (0.0, 0.1, 0.5, 0.77, 1.0):
        got = y0 + METHOD.weights(jnp.array(theta)) @ stages
        np.testing.assert_allclose(got, theirs.evaluate(theta), rtol=1e-12)
    weights = METHOD.weights(jnp.array(1.0))
    np.testing.assert_allclose(weights, [*METHOD.b, 0], atol=1e-13)
    np.testing.assert_array_equal(METHOD.weights(jnp.array(0.0)), np.zeros(7))


@pytest.mark.parametrize("method", helpers.adaptive_methods, ids=helpers.name)
def test_slopes_of_the_error_estimate_and_the_dense_output(method):
    """Within one step, both against the exact solution."""
    p = problem["forced"]
    field = lambda s, y: p.fn(s, y, p.args)

    @jax.jit
    def one(h):
        _, stages = method.replay(field, jnp.array(0.0), p.y0, h)
        thetas = jnp.array([0.2, 0.5, 0.8])
        inside = p.y0[None] + jax.vmap(method.weights)(thetas) @ stages
        exact = jax.vmap(p.exact, in_axes=(0, None, None))(thetas * h, p.y0, p.args)
        return jnp.linalg.norm(method.error(stages)), jnp.linalg.norm(inside - exact)

    coarse, fine = (np.array(one(jnp.array(h))) for h in (0.1, 0.05))
    np.testing.assert_allclose(np.log2(coarse / fine), 5, atol=0.35)


@pytest.mark.parametrize("method", helpers.adaptive_methods, ids=helpers.name)
def test_three_routes_of_one_step(method):
    """As the loop, the derivatives and fixed steps take it; the last stage is the next first one."""
    p = problem["forced"]
    field = lambda s, y: p.fn(s, y, p.args)
    s, h = jnp.array(0.3), jnp.array(0.2)
    f = field(s, p.y0) if method.shares_last_stage else None
    y1, stages, f1 = method.step(field, s, p.y0, h, f)
    again, same = method.replay(field, s, p.y0, h)
    np.testing.assert_allclose(again, y1, rtol=1e-14)
    np.testing.assert_allclose(same, stages, rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(method.advance(field, s, p.y0, h), y1, rtol=1e-14)
    if method.shares_last_stage:
        np.testing.assert_allclose(f1, field(s + h, y1), rtol=1e-14)


@pytest.mark.parametrize("method", helpers.adaptive_methods, ids=helpers.name)
def test_a_step_of_no_length_does_nothing(method):
    """Unused rows of a record are such steps."""
    y, stages = method.replay(
        lambda s, y: jnp.exp(3 * y), jnp.array(1.0), jnp.array([1.0, 2.0]), jnp.array(0.0)
    )
    np.testing.assert_array_equal(y, [1.0, 2.0])
    assert np.all(np.isfinite(stages))

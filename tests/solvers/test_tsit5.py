"""Tsit5: error estimate and dense output; proved in `test_methods.py`, compared with Diffrax's here."""

import diffrax
import jax.numpy as jnp
import numpy as np

from sciml import solvers


METHOD = solvers.Tsit5()


def test_error_weights():
    np.testing.assert_allclose(METHOD.error_weights, diffrax.Tsit5.tableau.b_error, rtol=1e-13)
    np.testing.assert_allclose(METHOD.error_weights.sum(), 0, atol=1e-15)


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

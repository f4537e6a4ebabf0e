"""Sizes of errors, in units of the tolerances."""

import jax.numpy as jnp
from jaxtyping import Array


def norm(x: Array) -> Array:
    """The Euclidean length of a vector."""
    return jnp.sqrt(jnp.sum(x * x))


def rms(x: Array) -> Array:
    return jnp.sqrt(jnp.mean(x * x))


def ratio(x: Array, scale: Array) -> Array:
    """`x / scale`, where nothing is no part of nothing (`atol = 0` at a zero of the state)."""
    safe = jnp.where(scale > 0, scale, jnp.ones_like(scale))
    return jnp.where(scale > 0, x / safe, jnp.where(x == 0, jnp.zeros_like(x), jnp.inf))

"""Single rows of arrays, read and replaced in place."""

import jax
import jax.numpy as jnp
from jaxtyping import Array


def put(x: Array, i: Array | int, row: Array) -> Array:
    """`x` with one row replaced, in place; `x.at[i].set` would be a scatter, which is slow."""
    return jax.lax.dynamic_update_index_in_dim(x, row, i, 0)


def put2(x: Array, i: Array, k: Array, row: Array) -> Array:
    """The same for the row `x[i, k]`."""
    zeros = (jnp.zeros_like(i),) * (x.ndim - 2)
    return jax.lax.dynamic_update_slice(x, row[None, None], (i, k, *zeros))


def take(x: Array, i: Array) -> Array:
    return jax.lax.dynamic_index_in_dim(x, i, 0, keepdims=False)

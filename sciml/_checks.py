"""Checks that several front functions share."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PyTree

from ._compat import varies


def integer_at_least(name: str, value, least: int = 1) -> int:
    """`value` as a plain integer, or a message."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        wanted = "a positive integer" if least == 1 else f"an integer of at least {least}"
        raise ValueError(f"`{name}` must be {wanted}, but got {value!r}.")
    return int(value)


def error_unless(tree: PyTree, ok: Bool[Array, "..."], text: str) -> PyTree:
    """`tree`, or an error with a fixed text, from inside a transformation.

    In a `shard_map` nothing can be raised: there it becomes nan.
    """
    if varies(ok):
        return jax.tree.map(lambda x: jnp.where(ok, x, jnp.nan), tree)
    return eqx.error_if(tree, ~ok, text)

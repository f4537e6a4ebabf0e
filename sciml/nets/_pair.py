"""The state of mechanical systems: positions, and momenta or velocities."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array


def pair(y: Any, size: int, state: str, second: str) -> tuple[Array, Array]:
    """The state taken apart, or a message."""
    if not isinstance(y, tuple | list) or len(y) != 2:
        raise ValueError(
            f"The state must be a pair `{state}` of positions and {second}, each of shape ({size},), "
            f"but is {jax.tree.map(jnp.shape, y)}. Split a vector: `(y[:{size}], y[{size}:])`."
        )
    for x in y:
        if jnp.shape(x) != (size,):
            raise ValueError(
                f"The state must be a pair `{state}` of positions and {second}, each of shape "
                f"({size},), but got shapes {jnp.shape(y[0])} and {jnp.shape(y[1])}. For a batch "
                "use `jax.vmap`."
            )
    return y[0], y[1]

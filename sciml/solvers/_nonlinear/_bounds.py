"""Bounds as a user gives them, as one flat vector for each side."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from ..._compat import is_traced


def flat_bounds(bounds, y0) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """The lower and the upper bound of each unknown.

    **Arguments:**

    - `bounds`: a pair; each a number for all, structured as `y0` with numbers or arrays of the same shape, or
      `None` for no bound on that side.

    **Raises:**

    `ValueError` and `TypeError` for what can't be meant, such as bounds that are swapped.
    """
    if not (isinstance(bounds, tuple | list) and len(bounds) == 2):
        raise ValueError(f"`bounds` must be a pair `(lower, upper)`, but got {bounds!r}.")
    lower, upper = (ravel_pytree(side)[0] for side in two_sides(bounds, y0))
    _check(ravel_pytree(y0)[0], lower, upper)
    return lower, upper


def two_sides(bounds, y0) -> list[PyTree]:
    sides = zip(("lower", "upper"), bounds, (-jnp.inf, jnp.inf), strict=True)
    return [one_side(name, bound, y0, default) for name, bound, default in sides]


def one_side(name: str, bound, y0, default) -> PyTree:
    """One side of the bounds, as arrays structured as `y0`."""
    if bound is None:
        bound = jax.tree.map(lambda _: default, y0)
    structure = jax.tree.structure(y0)
    if jax.tree.structure(bound) != structure:
        if jax.tree_util.all_leaves([y0]) and isinstance(bound, list | tuple):
            bound = np.asarray(bound) if not any(map(is_traced, bound)) else jnp.stack(bound)
        elif not (jax.tree_util.all_leaves([bound]) and np.ndim(bound) == 0):
            raise ValueError(
                f"The {name} one of `bounds` must be a number or structured as `y0`, {structure}, but is structured as "
                f"{jax.tree.structure(bound)}."
            )
        else:
            bound = jax.tree.map(lambda _: bound, y0)
    return jax.tree.map(lambda b, y: _part(name, b, y), bound, y0)


def _part(name: str, bound, y):
    if isinstance(bound, str) or jnp.result_type(bound).kind not in "fiub":
        raise TypeError(f"`bounds` must be real numbers, but the {name} one holds {bound!r}.")
    shape = jnp.shape(bound)
    if shape not in ((), y.shape):
        raise ValueError(
            f"The {name} one of `bounds` has shape {shape}, but the unknowns that it bounds have shape {y.shape}."
        )
    return jnp.broadcast_to(jnp.asarray(bound, y.dtype), y.shape)


def _check(x, lower, upper):
    if any(is_traced(v) for v in (x, lower, upper)):
        return
    x, lower, upper = np.asarray(x), np.asarray(lower), np.asarray(upper)
    for i in np.flatnonzero(~(lower <= upper)):
        raise ValueError(
            f"The bounds of unknown {i} are {lower[i]:g} .. {upper[i]:g}: swapped or nan."
        )
    for i in np.flatnonzero(~((x >= lower) & (x <= upper)) & np.isfinite(x)):
        raise ValueError(
            f"The start of unknown {i} is {x[i]:g}, outside its bounds {lower[i]:g} .. {upper[i]:g}."
        )

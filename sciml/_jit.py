"""A jit for calls that cost less than their dispatch."""

import functools
from collections.abc import Callable

import jax
import numpy as np


def flat_jit(fn: Callable) -> Callable:
    """`eqx.filter_jit` for functions of positional arguments, with less call overhead: an eager
    solve of a small problem takes 0.20 ms instead of 0.32.

    Arrays are traced, everything else is static and must be hashable, and the result must be a
    pytree of arrays.
    """

    @functools.partial(jax.jit, static_argnums=0)
    def run(key, arrays):
        treedef, static = key
        arrays = iter(arrays)
        leaves = [next(arrays) if leaf is _ARRAY else leaf[1] for leaf in static]
        return fn(*jax.tree.unflatten(treedef, leaves))

    @functools.wraps(fn)
    def call(*args):
        leaves, treedef = jax.tree.flatten(args)
        arrays = [x for x in leaves if isinstance(x, _KINDS)]
        # with types, since 1 == True
        static = tuple(_ARRAY if isinstance(x, _KINDS) else (type(x), x) for x in leaves)
        return run((treedef, static), arrays)

    return call


_KINDS = (jax.Array, np.ndarray, np.number, np.bool)


class _Array:
    """Stands where an array was."""

    def __repr__(self):
        return "array"


_ARRAY = _Array()

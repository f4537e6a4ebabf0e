"""Arrays of a module that are saved with it, and never trained."""

from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array


class Constant(eqx.Module):
    """Holds an array that is no parameter. Static fields are none either, but aren't saved."""

    array: Array

    @property
    def value(self) -> Array:
        return jax.lax.stop_gradient(self.array)


def is_parameter(tree: Any) -> Any:
    """A pytree of bools: floating-point arrays that may be trained."""
    constant = lambda x: isinstance(x, Constant)
    fixed = lambda x: jax.tree.map(lambda _: False, x)
    one = lambda x: fixed(x) if constant(x) else eqx.is_inexact_array(x)
    return jax.tree.map(one, tree, is_leaf=constant)

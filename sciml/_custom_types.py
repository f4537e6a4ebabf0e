"""Aliases that several modules share."""

from collections.abc import Callable
from typing import Any, TypeAlias

from jaxtyping import Array, ArrayLike, Bool, Float, PyTree


# A vector field `fn(t, y, args) -> dy`, as in Diffrax.
VectorField: TypeAlias = Callable[..., Any]
State: TypeAlias = PyTree[Any]
Args: TypeAlias = PyTree[Any]
Times: TypeAlias = Float[Array, " time"]
RealLike: TypeAlias = ArrayLike
Flat: TypeAlias = Float[Array, " parameter"]
Mask: TypeAlias = Bool[Array, "..."]

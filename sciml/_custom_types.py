"""Aliases that several modules share."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

from jaxtyping import ArrayLike


# A vector field `fn(t, y, args) -> dy`, as in Diffrax.
VectorField: TypeAlias = Callable[..., Any]

# Which derivatives a solve must serve: the fewer, the cheaper.
Derivatives: TypeAlias = Literal["none", "any", "forward", "reverse"]

# Numbers as people write them: an array, a number, or a (nested) list of numbers.
Numbers: TypeAlias = ArrayLike | Sequence[Any]

"""Aliases that several modules share."""

from collections.abc import Callable
from typing import Any, Literal, TypeAlias


# A vector field `fn(t, y, args) -> dy`, as in Diffrax.
VectorField: TypeAlias = Callable[..., Any]

# Which derivatives a solve must serve: the fewer, the cheaper.
Derivatives: TypeAlias = Literal["any", "forward", "reverse"]

"""What training minimises, as the loop sees it."""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int


class Seen(eqx.Module):
    """A loss at some parameters.

    - `terms`: its parts by name, before they are weighed. `ok`: whether every solve went well.
    - `comparable`: whether it is on all data, so that it may be held against others.
    """

    terms: dict[str, Array]
    ok: Array
    comparable: Array


class Part(eqx.Module):
    """What one device of several sees, which are `count` and lie along `axes` of a mesh."""

    index: Array
    count: int = eqx.field(static=True)
    axes: tuple[str, ...] = eqx.field(static=True)

    def total(self, x: Array) -> Array:
        """The sum over all devices."""
        return jax.lax.psum(x, self.axes)

    def share(self, at: Int[Array, " item"]) -> tuple[Int[Array, " mine"], Bool[Array, " mine"]]:
        """Those of the items that are for this device, filled up, and which are no filling."""
        items = at.shape[0]
        size = -(-items // self.count)
        place = self.index * size + jnp.arange(size)
        return at[jnp.minimum(place, items - 1)], place < items


class AbstractGoal(eqx.Module):
    """A loss to be minimised over a pytree of parameters.

    A `step` counts from the begin of training, over all phases; `steps` are those of the first phase.
    """

    @property
    @abc.abstractmethod
    def judges(self) -> bool:
        """Whether some of its losses may be held against others."""

    @abc.abstractmethod
    def loss(
        self,
        params: Any,
        batch: Any,
        key: Any,
        step: Array,
        steps: Array,
        part: Part | None = None,
    ) -> tuple[Array, Seen]:
        """The loss at a step; of a part, what it adds to it."""

    @abc.abstractmethod
    def whole(self, params: Any, key: Any) -> tuple[Array, Array] | None:
        """The loss of the validation, else on all data, and whether it can be trusted; `None` if nobody can tell."""

    @abc.abstractmethod
    def project(self, params: Any) -> Any:
        """The nearest parameters within bounds."""

    @abc.abstractmethod
    def settled(self, step: int, steps: int) -> bool:
        """Whether the loss means the same from now on."""

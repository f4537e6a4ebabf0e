"""In which order the items of the data come: each once before any comes again, in an order drawn anew."""

import itertools
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int


def shuffled(key: Array, epoch: Array, items: int) -> Int[Array, " item"]:
    return jax.random.permutation(jax.random.fold_in(jax.random.fold_in(key, 1), epoch), items)


class Deck(eqx.Module):
    """The items in the order of this epoch, and how many of them were taken. What is left over at the end of an epoch
    goes into a batch with the first of the next.
    """

    order: Array
    at: Array
    epoch: Array

    @staticmethod
    def fresh(key: Array, items: int) -> "Deck":
        zero = jnp.zeros((), int)
        return Deck(shuffled(key, zero, items), zero, zero.copy())

    def draw(self, key: Array, size: int) -> tuple[Int[Array, " size"], "Deck"]:
        """The next items, at most all of them, and what remains."""
        n = self.order.shape[0]
        over = self.at + size >= n
        following = jax.lax.cond(over, lambda: shuffled(key, self.epoch + 1, n), lambda: self.order)
        place = self.at + jnp.arange(size)
        at = place % n
        picked = jnp.where(place < n, self.order[at], following[at])
        left = jnp.where(over, self.at + size - n, self.at + size)
        return picked, Deck(following, left, jnp.where(over, self.epoch + 1, self.epoch))


def drawn(key: Array, step: Array, size: int, items: int) -> Int[Array, " size"]:
    """The same without a memory, for few items: those of one step."""
    place = step * size + jnp.arange(size)
    epoch = place[0] // items
    here, following = shuffled(key, epoch, items), shuffled(key, epoch + 1, items)
    at = place % items
    return jnp.where(place // items == epoch, here[at], following[at])


class Stacked(eqx.Module):
    """Batches of an iterator, stacked; the first belongs to the first step."""

    batches: Any


class Stream:
    """Batches of an iterator, several at a time; those of the steps that are done are skipped."""

    def __init__(self, data: Iterator, done: int):
        self.data = data
        for _ in itertools.islice(data, done):
            pass

    def take(self, count: int, room: int) -> tuple[Stacked | None, int]:
        """Up to `count` batches, stacked and filled up to `room` so that nothing is compiled anew."""
        batches = list(itertools.islice(self.data, count))
        if not batches:
            return None, 0
        full = batches + [batches[-1]] * (room - len(batches))
        try:
            return Stacked(jax.tree.map(lambda *xs: np.stack(xs), *full)), len(batches)
        except ValueError as error:
            raise ValueError(
                "All batches of an iterator must have the same structure and shapes, the last one too (drop it, or "
                f"fill it up): {error}"
            ) from None

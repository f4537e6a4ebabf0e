"""The solution between the save times."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

from ._field import FlatField, ravel
from ._loop import Record, SEGMENT, take


class Dense(eqx.Module):
    """Dense output from a record of steps: the step that holds the time is taken again.

    Costs up to one segment of steps for each time, and no more memory than derivatives do.
    """

    method: Any
    field: FlatField
    record: Record
    y0: Any
    origin: Array  # the first time, in the precision in which it was given
    reached: Array  # on normalised time

    def at(self, t: ArrayLike) -> Any:
        span = self.field.span
        return _evaluate(self, _elapsed(t, self.origin).astype(span.dtype) / span)


class DiffraxDense(eqx.Module):
    """Dense output of a Diffrax solve, on the time elapsed."""

    interpolation: Any
    origin: Array
    sign: Array
    reached: Array

    def at(self, t: ArrayLike) -> Any:
        return _interpolate(self, self.sign * _elapsed(t, self.origin).astype(self.sign.dtype))


def _elapsed(t: ArrayLike, origin: Array) -> Array:
    return jnp.asarray(t).astype(origin.dtype) - origin


def _within(s: Array, reached: Array) -> tuple[Array, Array]:
    """Whether `s` was solved, up to rounding, and the nearest point that was."""
    slack = 8 * jnp.finfo(s.dtype).eps * jnp.maximum(reached, 1)
    # `where`, not `clip`: at a tie the derivative is that of `s`.
    near = jnp.where(s > reached, reached, jnp.where(s < 0, jnp.zeros_like(s), s))
    return (s >= -slack) & (s <= reached + slack), near


@eqx.filter_jit
def _evaluate(dense: Dense, s):
    rec, method, field = dense.record, dense.method, dense.field
    _, unravel = ravel(dense.y0, field.t0.dtype)

    def one(s):
        inside, s = _within(s, dense.reached)
        i = jnp.maximum(jnp.sum(rec.s < s) - 1, 0)
        sizes = take(rec.h, i)
        begins = take(rec.s, i) + jnp.cumsum(sizes) - sizes
        # The last step that begins before; in a batch there are steps of size zero between.
        k = jnp.max(jnp.where((begins < s) & (sizes > 0), jnp.arange(SEGMENT), 0))

        def within(part, number, y):
            # Steps of size zero where it was another part: of both, one does nothing.
            mine = jnp.where(take(rec.parts, i) == number, sizes, 0)

            def again(y, j):
                h = jnp.where(j < k, take(mine, j), 0)
                return part.replay(field, take(begins, j), y, h)[0], None

            y, _ = jax.lax.scan(again, y, jnp.arange(SEGMENT))
            h = take(mine, k)
            _, stages = part.replay(field, take(begins, k), y, h)
            theta = (s - take(begins, k)) / jnp.where(h > 0, h, 1)
            along = part.weights(theta) @ stages
            return y + jnp.where(h > 0, along, jnp.zeros_like(y))

        y = take(rec.starts, i)
        for number, part in enumerate(method.parts):
            y = within(part, number, y)
        return unravel(jnp.where(inside, y, jnp.nan))

    return _over(one, s)


@eqx.filter_jit
def _interpolate(dense: DiffraxDense, s):
    def one(s):
        inside, s = _within(s, dense.reached)
        y = dense.interpolation.evaluate(s)
        return jax.tree.map(lambda x: jnp.where(inside, x, jnp.nan), y)

    return _over(one, s)


def _over(fn, s):
    for _ in range(s.ndim):
        fn = jax.vmap(fn)
    return fn(s)

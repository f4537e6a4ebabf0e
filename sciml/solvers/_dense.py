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
    reached: Array  # on normalised time

    def at(self, t: ArrayLike) -> Any:
        dtype = self.field.t0.dtype
        span = self.field.span
        s = (jnp.asarray(t).astype(dtype) - self.field.t0) / jnp.where(span == 0, 1, span)
        return _evaluate(self, s)


class DiffraxDense(eqx.Module):
    """Dense output of a Diffrax solve, on the time elapsed."""

    interpolation: Any
    t0: Array
    sign: Array
    reached: Array

    def at(self, t: ArrayLike) -> Any:
        return _interpolate(self, self.sign * (jnp.asarray(t).astype(self.t0.dtype) - self.t0))


@eqx.filter_jit
def _evaluate(dense: Dense, s):
    rec, method, field = dense.record, dense.method, dense.field
    _, unravel = ravel(dense.y0, field.t0.dtype)

    def one(s):
        inside = (s >= 0) & (s <= dense.reached)
        i = jnp.maximum(jnp.sum(rec.s < s) - 1, 0)
        sizes = take(rec.h, i)
        begins = take(rec.s, i) + jnp.cumsum(sizes) - sizes
        k = jnp.maximum(jnp.sum((begins < s) & (sizes > 0)) - 1, 0)

        def again(y, j):
            h = jnp.where(j < k, take(sizes, j), 0)
            return method.replay(field, take(begins, j), y, h)[0], None

        y, _ = jax.lax.scan(again, take(rec.starts, i), jnp.arange(SEGMENT))
        h = take(sizes, k)
        _, stages = method.replay(field, take(begins, k), y, h)
        theta = (s - take(begins, k)) / jnp.where(h > 0, h, 1)
        y = y + method.weights(theta) @ stages
        return unravel(jnp.where(inside, y, jnp.nan))

    return _over(one, s)


@eqx.filter_jit
def _interpolate(dense: DiffraxDense, s):
    def one(s):
        inside = (s >= 0) & (s <= dense.reached)
        y = dense.interpolation.evaluate(jnp.where(inside, s, jnp.zeros_like(s)))
        return jax.tree.map(lambda x: jnp.where(inside, x, jnp.nan), y)

    return _over(one, s)


def _over(fn, s):
    for _ in range(s.ndim):
        fn = jax.vmap(fn)
    return fn(s)

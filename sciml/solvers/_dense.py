"""The solution between the save times."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int, PyTree

from .._compat import is_traced
from ._field import FlatField, ravel
from ._indexing import take
from ._record import Record, SEGMENT
from ._switching import NONSTIFF


class Steps(eqx.Module):
    """The accepted steps of a solve.

    **Attributes:**

    - `ts`, `ys`: times and states at the start and after each step; at doses, events and knots before and after
      them. Of an eager solve exactly these; inside
      `jit` there is room for as many as the record holds, and the last one is repeated.
    - `count`: how many there are, the start included.
    """

    ts: Float[Array, " step"]
    ys: PyTree[Any]
    count: Int[Array, ""]


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

    def steps(self) -> Steps:
        return _trimmed(_steps(self))


class PiecewiseDense(eqx.Module):
    """Dense output of a solve in pieces; at an edge that of the piece before it, or `after`.

    - `pieces`: stacked along a first axis, in the order in which they were solved. Those with a span of zero
      are passed over.
    - `final`: the flat state after everything, a dose or an event at the very end included.
    """

    method: Any
    pieces: Any
    y0: Any
    final: Array
    origin: Array
    sign: Array
    after: bool = eqx.field(static=True)

    def at(self, t: ArrayLike) -> Any:
        return _evaluate_pieces(self, _elapsed(t, self.origin).astype(self.sign.dtype))

    def steps(self) -> Steps:
        return _trimmed(_steps_of_pieces(self))


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
    _, unravel = ravel(dense.y0, dense.field.t0.dtype)
    one = _in_record(dense.method, dense.field, dense.record, dense.reached)
    return _over(lambda s: unravel(one(s)), s)


@eqx.filter_jit
def _evaluate_pieces(dense: PiecewiseDense, e):
    pieces, sign = dense.pieces, dense.sign
    initial, unravel = ravel(dense.y0, sign.dtype)
    begins = sign * pieces.begin
    last = jnp.max(jnp.where(pieces.span != 0, sign * pieces.end, 0))

    def one(e):
        u = sign * e
        passed = begins <= u if dense.after else begins < u
        # A start belongs to the first piece.
        candidate = (pieces.span != 0) & (passed | (begins <= 0))
        k = jnp.max(jnp.where(candidate, jnp.arange(begins.shape[0]), 0))
        piece = jax.tree.map(lambda x: x[k], pieces)
        s = (e - piece.begin) / jnp.where(piece.span != 0, piece.span, 1)
        # Past the end of a piece that an event cut short, up to rounding.
        inside, _ = _within(u / jnp.where(last > 0, last, 1), jnp.ones_like(u))
        s = jnp.where(s > piece.reached, piece.reached, s)
        y = _in_record(dense.method, piece.field, piece.record, piece.reached)(s)
        y = jnp.where(u >= last, dense.final, y) if dense.after else jnp.where(u <= 0, initial, y)
        return unravel(jnp.where(inside, y, jnp.nan))

    return _over(one, e)


def _in_record(method, field, rec: Record, reached):
    """The flat state at a normalised time, from a record."""

    def one(s):
        inside, s = _within(s, reached)
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
        return jnp.where(inside, y, jnp.nan)

    return one


def _in_order(taken, ts, ys, t0, y0, origin, unravel) -> Steps:
    """The steps that were taken, behind the start, with what is left filled by the last one."""
    count = jnp.sum(taken)
    order = jnp.argsort(~taken, stable=True)
    order = order[jnp.minimum(jnp.arange(taken.shape[0]), jnp.maximum(count - 1, 0))]
    started = count > 0
    ts = jnp.where(started, ts[order], t0)
    ys = jnp.where(started, ys[order], y0)
    ts, ys = jnp.concatenate([t0[None], ts]), jnp.concatenate([y0[None], ys])
    return Steps(origin + ts.astype(origin.dtype), jax.vmap(unravel)(ys), count + 1)


def _steps_in_record(method, field, rec: Record):
    """Of all slots of a record: whether a step was taken, its end on normalised time, and the state there."""

    def segment(y, begin, sizes, number):
        ends = begin + jnp.cumsum(sizes)

        def one(y, k):
            s = ends[k] - sizes[k]
            each = [part.replay(field, s, y, sizes[k])[0] for part in method.parts]
            y1 = each[0] if len(each) == 1 else jnp.where(number == NONSTIFF, *each)
            y = jnp.where(sizes[k] > 0, y1, y)
            return y, y

        return ends, jax.lax.scan(one, y, jnp.arange(SEGMENT))[1]

    ends, ys = jax.vmap(segment)(rec.starts, rec.s, rec.h, rec.parts)
    return rec.h.reshape(-1) > 0, ends.reshape(-1), ys.reshape(-1, ys.shape[-1])


@eqx.filter_jit
def _steps(dense: Dense) -> Steps:
    flat, unravel = ravel(dense.y0, dense.field.t0.dtype)
    taken, ends, ys = _steps_in_record(dense.method, dense.field, dense.record)
    span = dense.field.span
    return _in_order(taken, ends * span, ys, 0 * span, flat, dense.origin, unravel)


@eqx.filter_jit
def _steps_of_pieces(dense: PiecewiseDense) -> Steps:
    flat, unravel = ravel(dense.y0, dense.sign.dtype)

    def one(piece):
        taken, ends, ys = _steps_in_record(dense.method, piece.field, piece.record)
        start = piece.record.starts[0]
        # Where a piece begins as well: a dose or an event may have moved the state.
        moved = (piece.begin != 0) | jnp.any(start != flat)
        taken = jnp.concatenate([moved[None], taken]) & (piece.span != 0)
        ends = piece.begin + jnp.concatenate([0 * ends[:1], ends]) * piece.span
        # The last step of a piece may lead past its event by a rounding error of the step.
        ends = jnp.where(dense.sign * (ends - piece.end) > 0, piece.end, ends)
        return taken, ends, jnp.concatenate([start[None], ys])

    taken, ends, ys = jax.tree.map(
        lambda x: x.reshape(-1, *x.shape[2:]), jax.vmap(one)(dense.pieces)
    )
    return _in_order(taken, ends, ys, 0 * dense.sign, flat, dense.origin, unravel)


def _trimmed(steps: Steps) -> Steps:
    if is_traced(steps.count):
        return steps
    n = int(steps.count)
    return Steps(steps.ts[:n], jax.tree.map(lambda x: x[:n], steps.ys), steps.count)


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

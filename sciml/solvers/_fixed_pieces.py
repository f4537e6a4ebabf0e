"""Fixed steps with inputs, doses and events: the same number of equal steps between all neighbours among save
times, knots and doses.

Event functions are looked at at the ends of steps. A step in which one changes sign is divided there, by
taking steps of several sizes; one event in each step.
"""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._compat import unvmap_any, varying_like
from ._event import Event
from ._field import flatten_field, ravel
from ._happen import happen
from ._indexing import take
from ._input import bound
from ._march import before_first, March, noted, watch
from ._method import AbstractOneStepMethod
from ._pieces import within
from ._state import NONFINITE_FIELD, NONFINITE_START, RUNNING, TOO_MANY_EVENTS
from ._timeline import Timeline
from ._watch import signs_at_start


_BISECTIONS = 50


def march_fixed(
    fn: Any,
    y0: Any,
    args: Any,
    t0: Array,
    elapsed: Array,
    line: Timeline,
    events: tuple[Event, ...],
    directions: tuple[int, ...],
    max_events: int,
    method: AbstractOneStepMethod,
    steps: int,
    side: str,
) -> March:
    """As `march` in `_pieces.py`."""
    dtype, count = elapsed.dtype, elapsed.shape[0]
    flat, unravel = ravel(y0, dtype)
    # Inside `shard_map` all varies like all, from here on.
    arrays, static = eqx.partition((fn, args, events, line, t0, elapsed), eqx.is_array)
    flat, arrays = varying_like((flat, arrays))
    fn, args, events, line, t0, elapsed = eqx.combine(arrays, static)
    sign = jnp.sign(elapsed[-1])
    stops = line.edges[1:-1]
    # At a tie a save time lies before or after a stop, as `side` says.
    is_row = jnp.concatenate([jnp.ones(count, bool), jnp.zeros(stops.shape, bool)])
    points = jnp.concatenate([elapsed, stops])
    if side == "after":
        is_row, points = (jnp.roll(x, stops.shape[0]) for x in (is_row, points))
    order = jnp.argsort(jax.lax.stop_gradient(sign * points), stable=True)
    points, is_row = points[order], is_row[order]
    passed = jnp.cumsum(jnp.where(is_row, 0, 1))  # stops up to each point

    first = before_first(flat, count, events, max_events, method)
    fine = jnp.all(jnp.isfinite(flat))
    first = eqx.tree_at(
        lambda c: (c.live, c.status),
        first,
        (fine, jnp.where(fine, RUNNING, NONFINITE_START).astype(first.status.dtype)),
    )

    def interval(c: March, k):
        low, high = take(points, jnp.maximum(k - 1, 0)), take(points, k)
        stop = ~take(is_row, k)
        piece = take(passed, k) - jnp.where(stop, 1, 0)
        span = high - low
        fn_here, args_here, events_here = bound(
            (fn, args, events), [take(i, piece) for i in line.intervals]
        )
        edges = take(line.edges, piece), take(line.edges, piece + 1)
        field, y, _ = flatten_field(
            within(fn_here, t0 + edges[0], t0 + edges[1], line, piece, unravel, method),
            unravel(c.y),
            args_here,
            t0 + low,
            span,
            None,
            watch(events_here),
            directions=directions,
        )
        h = varying_like(jnp.ones((), dtype) / steps, y)
        advance = jax.checkpoint(functools.partial(method.advance, field), prevent_cse=False)

        def one(c: March, i):
            s = i.astype(dtype) * h
            y = advance(s, c.y, h)
            c = eqx.tree_at(lambda c: c.e, c, low + s * span)
            if events:
                after, ends = _with_events(
                    field, advance, t0, args_here, events_here, unravel, c, s, h, y
                )
            else:
                after, ends = eqx.tree_at(lambda c: c.y, c, y), jnp.array(False)
            good = jnp.all(jnp.isfinite(after.y))
            too_many = (after.happened > max_events) & ~ends
            add = lambda x: x + jnp.where(c.live & good & (span != 0), 1, 0).astype(x.dtype)
            reached = jnp.where(ends, after.e, low + (s + h) * span)
            after = eqx.tree_at(
                lambda c: (c.live, c.status, c.accepted, c.attempted, c.reached, c.last_step),
                after,
                (
                    c.live & good & ~ends & ~too_many,
                    jnp.where(
                        too_many, TOO_MANY_EVENTS, jnp.where(good, c.status, NONFINITE_FIELD)
                    ).astype(c.status.dtype),
                    add(c.accepted),
                    add(c.attempted),
                    jax.lax.stop_gradient(jnp.where(good, reached, c.reached)),
                    jax.lax.stop_gradient(h * span),
                ),
            )
            return jax.tree.map(lambda new, old: jnp.where(c.live, new, old), after, c), None

        c = eqx.tree_at(lambda c: c.y, c, y)
        c, _ = jax.lax.scan(one, c, jnp.arange(steps))
        jump = 0 if line.jumps is None else jnp.where(stop & c.live, take(line.jumps, piece + 1), 0)
        c = eqx.tree_at(lambda c: c.y, c, c.y + jump)
        return c, (c.y, c.live)

    c, (ys, live) = jax.lax.scan(
        jax.checkpoint(interval, prevent_cse=False), first, jnp.arange(points.shape[0])
    )
    at = jnp.nonzero(is_row, size=count)[0]
    # Where a solve ended well, it is no longer live at the last point, but that is no failure.
    return eqx.tree_at(
        lambda c: (c.ys, c.valid, c.live), c, (ys[at], live[at], jnp.zeros_like(c.live))
    )


def _with_events(field, advance, t0, args, events, unravel, c: March, s, h, y1):
    """The solve after one step, which is divided where an event lies in it.

    **Returns:**

    The solve, and whether it ends.
    """
    assert c.signs is not None
    assert c.fired is not None
    was_fired = c.fired
    still = jax.lax.stop_gradient
    arrays, static = eqx.partition(field, eqx.is_array)
    field_, y, s_, h_ = eqx.combine(still(arrays), static), *still((c.y, s, h))
    signs, jumped = signs_at_start(field_, s_, y, field_(s_, y), c.signs, was_fired, h_)
    jumped = c.live & jumped
    directions = jnp.asarray(field.traced.directions, h.dtype)
    end = jnp.sign(field_.watch(s_ + h_, still(y1)))
    crosses = c.live & ((signs * end < 0) | ((end == 0) & (signs != 0))) & (directions * signs <= 0)

    def halve(carry):
        k, low, high = carry
        middle = (low + high) / 2

        def value(theta):
            return field_.watch(s_ + theta * h_, still(advance(s_, y, theta * h_)))

        before = jnp.sign(jnp.diagonal(jax.vmap(value)(middle))) == signs
        return k + 1, jnp.where(before, middle, low), jnp.where(before, high, middle)

    any_ = jnp.any(crosses | jumped)
    zero = jnp.zeros_like(c.piece)
    low = jnp.zeros_like(signs)
    going = lambda carry: unvmap_any(any_) & (carry[0] < _BISECTIONS)
    _, _, high = jax.lax.while_loop(going, halve, (zero, low, jnp.ones_like(low)))
    thetas = jnp.where(jumped, 0.0, jnp.where(crosses, high, 2.0))
    which = jnp.argmin(thetas)
    coarse = jnp.abs(h_ * field_.span)

    def divided(_):
        theta = jnp.where(any_, thetas[which], 1).astype(h.dtype)
        at = advance(s, c.y, theta * h)
        e = c.e + theta * h * field.span
        e, at, new, ends = happen(
            field, t0, args, events, None, unravel, any_, which, e, at, at, coarse
        )
        rest = (s + h) - (e - c.e + s * field.span) / jnp.where(field.span == 0, 1, field.span)
        following = advance(s + h - rest, new, jnp.where(ends, 0, rest))
        fields = noted(c, any_, t0 + e, at, which)
        fired = jnp.where(any_, which, -1).astype(was_fired.dtype)
        return following, jnp.where(ends, e, c.e), ends, fields, fired

    def plain(_):
        kept = {name: getattr(c, name) for name in ("times", "states", "which", "happened")}
        return y1, c.e, jnp.zeros_like(any_), kept, jnp.full_like(was_fired, -1)

    y, e, ends, fields, fired = jax.lax.cond(any_, divided, plain, None)
    values = jnp.sign(field_.watch(s_ + h_, still(y)))
    # Others that were due in this step follow at the beginning of the next one.
    waiting = jnp.arange(signs.shape[0]) != jnp.where(any_, which, -1)
    values = jnp.where(waiting & jumped, c.signs, jnp.where(waiting & crosses, signs, values))
    names = ("y", "e", "signs", "fired", *fields)
    new = (y, e, jnp.where(values == 0, signs, values), fired, *fields.values())
    return eqx.tree_at(lambda c: tuple(getattr(c, name) for name in names), c, new), ends

"""Solves in pieces: up to the next knot, dose or event, and on from there.

Each piece is a solve of its own, with the derivatives of one, on a span whose two ends are parameters. What
happens between pieces is ordinary JAX: a dose is added, an event's time is refined and its `apply` called. So
derivatives by dose times, knots and events are those of the composition.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._compat import varying_like
from .._custom_types import Derivatives
from . import _state
from ._dae import consistent
from ._declared import check_declared
from ._event import Event
from ._field import Between, flatten_field, ravel
from ._happen import happen
from ._indexing import take
from ._input import bound
from ._march import before_first, March, noted, repeats, watch
from ._replay import solver_for
from ._state import Begin, Tolerances
from ._switching import Switching
from ._symplectic import AbstractSymplecticMethod
from ._timeline import Timeline


# Pieces from which their records are not kept for derivatives, but made again.
_MANY = 8


_OF_EVENTS = ("times", "states", "which", "happened", "signs", "fired", "coarse")


class Piece(eqx.Module):
    """What dense output needs of a piece: its field and record; its begin, span and end, of the time elapsed;
    and how far it came, on normalised time."""

    field: Any
    record: Any
    begin: Float[Array, ""]
    span: Float[Array, ""]
    end: Float[Array, ""]
    reached: Float[Array, ""]


def march(
    fn: Any,
    y0: Any,
    args: Any,
    t0: Array,
    elapsed: Array,
    line: Timeline,
    events: tuple[Event, ...],
    directions: tuple[int, ...],
    max_events: int,
    method: Any,
    jac: Any,
    tol: Tolerances,
    derivatives: Derivatives,
    dense: bool,
) -> tuple[March, Piece | None]:
    """Solves all pieces.

    **Returns:**

    The solve at its end, and what dense output needs of each piece, if it is asked for.
    """
    dtype = elapsed.dtype
    flat, unravel = ravel(y0, dtype)
    pieces, count = line.edges.shape[0] - 1, elapsed.shape[0]
    mass = method.mass
    solve = solver_for(derivatives)
    # Inside `shard_map` all varies like all, from here on.
    arrays, static = eqx.partition((fn, args, events, line, t0, elapsed, tol), eqx.is_array)
    flat, arrays = varying_like((flat, arrays))
    fn, args, events, line, t0, elapsed, tol = eqx.combine(arrays, static)
    first = before_first(flat, count, events, max_events, method)

    def run(c: March) -> tuple[March, Piece]:
        low = c.e
        high = jnp.where(c.live, take(line.edges, c.piece + 1), low)
        span = high - low
        empty = span == 0
        scale = jnp.where(empty, jnp.ones_like(span), span)
        fn_here, args_here, events_here = bound(
            (fn, args, events), [take(k, c.piece) for k in line.intervals]
        )
        field, y, _ = flatten_field(
            within(fn_here, t0 + low, t0 + high, line, c.piece, unravel, method),
            unravel(c.y),
            args_here,
            t0 + low,
            span,
            jac,
            watch(events_here),
            directions=directions,
            is_piece=True,
        )
        check_declared(method, field, y)
        found, left = jnp.array(True), c.left
        if mass is not None and mass.equations:
            # On a span of zero all equations vanish: it is a little longer then.
            field = eqx.tree_at(lambda f: f.span, field, jnp.where(empty, 1e-30, span))
            y, found, left = consistent(mass, field, y, tol.rtol, tol.atol)
            y, left = jnp.where(found, y, jnp.nan), left / field.span
        begin = Begin(
            h=jnp.where(empty, 1, jnp.abs(c.h / scale)),
            coarse=jnp.abs(c.coarse / scale),
            switching=c.switching,
            signs=c.signs,
            fired=c.fired,
        )
        budget = Tolerances(tol.rtol, tol.atol, tol.max_steps - c.attempted, begin)
        due = c.live & (line.piece_of_row == c.piece) & ~c.valid
        saves, back = _rows_of_piece(due, c.valid, (elapsed - low) / scale)
        ys, valid, counts, record = solve(method, field, y, saves, budget, dense)
        at_event = counts["status"] == _state.AT_EVENT
        status = jnp.where(at_event, _state.RUNNING, counts["status"])
        status = jnp.where(found, status, _state.INCONSISTENT_START)
        fine = status == _state.RUNNING
        # The last row is the end of the piece.
        last = jnp.maximum(jnp.sum(valid) - 1, 0)
        end = take(ys, last)
        got = due & jnp.where(fine, back < last, valid[back])
        length = jax.lax.stop_gradient(span)
        reached = low + counts["s"] * span
        following = c.piece + jnp.where(at_event, 0, 1)
        e, y, ends = jnp.where(at_event, reached, high), end, jnp.array(False)
        if line.jumps is not None:
            y = y + jnp.where(at_event, 0, take(line.jumps, following))
        happening = {x: getattr(c, x) for x in _OF_EVENTS}
        if events:
            which, seen = counts["fired"], counts["coarse"] * jnp.abs(length)
            coarse = jnp.where(at_event, jnp.where(counts["s"] == 0, c.coarse, seen), 0)
            e, at, y, ends = happen(
                field, t0, args_here, events_here, mass, unravel, at_event, which, e, end, y, coarse
            )
            too_many = at_event & ~ends & (c.happened >= max_events)
            status = jnp.where(too_many, _state.TOO_MANY_EVENTS, status)
            happening = noted(c, at_event, t0 + e, at, which) | {
                "signs": counts["signs"],
                "fired": jnp.where(at_event, which, -1),
                "coarse": coarse,
            }
        fine = status == _state.RUNNING
        over = ends | (~at_event & (c.piece == pieces - 1))
        after = March(
            e=e,
            y=y,
            piece=jnp.minimum(following, pieces - 1),
            live=c.live & fine & ~over,
            status=status,
            ys=jnp.where(got[:, None], ys[back], c.ys),
            valid=c.valid | got,
            attempted=c.attempted + counts["attempted"],
            accepted=c.accepted + counts["accepted"],
            reached=jax.lax.stop_gradient(jnp.where(at_event, e, reached)),
            last_step=counts["last_step"] * length,
            h=jnp.where(empty, c.h, jnp.abs(counts["h"] * length)),
            switching=_on(counts["switching"]),
            left=left,
            **happening,
        )
        return after, Piece(field, record, low, span, jnp.where(fine, e, reached), counts["s"])

    length = pieces + (max_events if repeats(events) else 0)
    if length == 1:
        end, piece = run(first)
        return end, jax.tree.map(lambda x: x[None], piece) if dense else None
    if dense:
        return jax.lax.scan(lambda c, _: _unless_over(c, *run(c)), first, None, length=length)
    alone = lambda c: run(c)[0]
    taken = jax.checkpoint(alone, prevent_cse=False) if length > _MANY else alone
    one = lambda c, _: (jax.lax.cond(c.live, taken, lambda c: c, c), None)
    return jax.lax.scan(one, first, None, length=length)[0], None


def _unless_over(before: March, after: March, piece: Piece) -> tuple[March, Piece]:
    """What was done in vain after the end is not kept; its piece has a span of zero."""
    return jax.tree.map(lambda a, b: jnp.where(before.live, a, b), after, before), piece


def _rows_of_piece(due, reached, fractions) -> tuple[Array, Array]:
    """The save times of a piece, those of its rows first, and where each row is among them."""
    count, saved = due.shape[0], jnp.sum(reached)
    order = (jnp.arange(count + 1) + saved) % (count + 1)
    # Rounding must not put a row behind the end.
    fractions = jnp.where(fractions > 1, jnp.ones_like(fractions), fractions)
    never = jnp.full((1,), 2, fractions.dtype)
    mine = jnp.concatenate([due, jnp.zeros((1,), bool)])[order]
    saves = jnp.where(mine, jnp.concatenate([fractions, never])[order], never)
    return saves, (jnp.arange(count) - saved) % (count + 1)


def within(fn, low, high, line: Timeline, piece, unravel, method):
    """The vector field on one piece: never evaluated at its very ends, where it may belong to a neighbour,
    and with the rates of infusions. (Symplectic compositions go back and forth in time, beyond the ends.)"""
    first, last = jnp.nextafter(low, high), jnp.nextafter(high, low)
    first, last = jax.lax.stop_gradient((jnp.minimum(first, last), jnp.maximum(first, last)))
    free = isinstance(method, AbstractSymplecticMethod)
    inside, rates = fn if free else Between(fn, first, last), line.rates
    if rates is None:
        return inside

    def field(t, y, args):
        dy = inside(t, y, args)
        more = unravel(take(rates, piece))
        return jax.tree.map(lambda d, r: jnp.asarray(d).astype(r.dtype) + r, dy, more)

    return field


def _on(switching: Switching | None) -> Switching | None:
    """As the next piece takes it over, in which steps have other units."""
    if switching is None:
        return None
    return eqx.tree_at(lambda s: s.h_before, switching, jnp.zeros_like(switching.h_before))

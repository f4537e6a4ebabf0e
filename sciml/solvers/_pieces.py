"""Solves in pieces: up to the next knot, dose or event, and on from there.

Each piece is a solve of its own, with the derivatives of one, on a span whose two ends are parameters. What
happens between pieces is ordinary JAX: a dose is added, an event's time is refined and its `apply` called. So
derivatives by dose times, knots and events are those of the composition.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._compat import varying_like
from . import _dae, _loop
from ._dae import consistent
from ._declared import check_declared
from ._event import Event, is_boolean, value_of
from ._field import flatten_field, ravel
from ._input import bound, in_a_field
from ._loop import Begin, take, Tolerances
from ._refine import refined, without_derivative
from ._replay import solve_flat, solve_forwards
from ._switching import at_start, Switching
from ._timeline import Timeline
from ._watch import ARRIVED


# Pieces from which their records are not kept for derivatives, but made again.
_MANY = 8


_OF_EVENTS = ("times", "states", "which", "happened", "signs", "fired", "coarse")


class March(eqx.Module):
    """The solve between two pieces.

    - `e`: the time elapsed; `y`: the flat state; `piece`: the piece that comes next.
    - `live`: whether the solve goes on.
    - `ys`, `valid`: the saved rows.
    - `h`: the size of the last piece's next step; `signs`, `fired`, `coarse`, `switching`: as in `Begin`.
    - `times`, `states`, `which`, `happened`: of the events.
    - `left`: what algebraic equations left over at the start of the last piece.
    """

    e: Float[Array, ""]
    y: Float[Array, " n"]
    piece: Int[Array, ""]
    live: Bool[Array, ""]
    status: Int[Array, ""]
    ys: Float[Array, "time n"]
    valid: Bool[Array, " time"]
    attempted: Int[Array, ""]
    accepted: Int[Array, ""]
    reached: Float[Array, ""]
    last_step: Float[Array, ""]
    h: Float[Array, ""]
    switching: Switching | None
    signs: Float[Array, " event"] | None
    fired: Int[Array, ""] | None
    coarse: Float[Array, ""]
    times: Float[Array, " happened"] | None
    states: Float[Array, "happened n"] | None
    which: Int[Array, " happened"] | None
    happened: Int[Array, ""]
    left: Float[Array, " equation"] | None


class Piece(eqx.Module):
    """What dense output needs of a piece: its field and record; its begin, span and end, of the time elapsed;
    and how far it came, on normalised time."""

    field: Any
    record: Any
    begin: Float[Array, ""]
    span: Float[Array, ""]
    end: Float[Array, ""]
    reached: Float[Array, ""]


def before_first(
    flat: Array, count: int, events: tuple[Event, ...], max_events: int, method: Any
) -> March:
    """The solve at its start.

    **Arguments:**

    - `flat`: the initial state; `count`: of save times.
    """
    dtype, integer = flat.dtype, jnp.result_type(int)
    room = (max_events + 1 if repeats(events) else 1) if events else 0
    mass = method.mass
    like = lambda x: varying_like(x, flat)
    zero, none = like((jnp.zeros((), dtype), jnp.zeros((), integer)))
    return March(
        e=zero,
        y=flat,
        piece=none,
        live=none == 0,
        status=none,
        ys=like(jnp.zeros((count, flat.shape[0]), dtype)),
        valid=like(jnp.zeros((count,), bool)),
        attempted=none,
        accepted=none,
        reached=zero,
        last_step=zero,
        h=zero,
        switching=at_start(none, zero) if len(method.parts) > 1 else None,
        signs=like(jnp.zeros(len(events), dtype)) if events else None,
        fired=none - 1 if events else None,
        coarse=zero,
        times=like(jnp.full((room,), jnp.nan, dtype)) if events else None,
        states=like(jnp.full((room, flat.shape[0]), jnp.nan, dtype)) if events else None,
        which=like(jnp.full((room,), -1, integer)) if events else None,
        happened=none,
        left=None if mass is None or not mass.equations else like(jnp.zeros(mass.equations, dtype)),
    )


def repeats(events: tuple[Event, ...]) -> bool:
    """Whether the solve may go on after an event."""
    return any(not event.ends for event in events)


def watch(events: tuple[Event, ...]):
    """Their functions as one."""
    if not events:
        return None
    return lambda t, y, args: jnp.stack([value_of(event, t, y, args) for event in events])


def noted(c: March, at_event, time, state, which) -> dict[str, Any]:
    """The list of events with one more, if there is one."""
    assert c.times is not None
    slot = jnp.where(at_event, c.happened, c.times.shape[0])
    note = lambda xs, x: xs.at[slot].set(x, mode="drop")
    return {
        "times": note(c.times, time),
        "states": note(c.states, state),
        "which": note(c.which, which),
        "happened": c.happened + jnp.where(at_event, 1, 0),
    }


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
    derivatives: str,
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
    solve = solve_forwards if derivatives == "forward" else solve_flat
    flat = varying_like(flat, line, elapsed, t0, eqx.filter((fn, args, events), eqx.is_array))
    first = before_first(flat, count, events, max_events, method)

    def run(c: March) -> tuple[March, Piece]:
        low = c.e
        high = jnp.where(c.live, take(line.edges, c.piece + 1), low)
        span = high - low
        empty = span == 0
        fn_here, args_here, events_here = bound(
            (fn, args, events), [take(k, c.piece) for k in line.intervals]
        )
        field, y, _ = flatten_field(
            within(fn_here, t0 + low, t0 + high, line, c.piece, unravel),
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
        due = c.live & (line.piece_of_row == c.piece) & ~c.valid
        saved = jnp.sum(c.valid)
        # The rows of this piece come first.
        order = (jnp.arange(count + 1) + saved) % (count + 1)
        fractions = (elapsed - low) / jnp.where(empty, jnp.ones_like(span), span)
        fractions = jnp.where(fractions > 1, jnp.ones_like(fractions), fractions)
        never = jnp.full((1,), 2, dtype)
        mine = jnp.concatenate([due, jnp.zeros((1,), bool)])[order]
        saves = jnp.where(mine, jnp.concatenate([fractions, never])[order], never)
        fired = c.fired
        begin = Begin(
            h=jnp.where(empty, 1, jnp.abs(c.h / jnp.where(empty, 1, span))),
            coarse=jnp.abs(c.coarse / jnp.where(empty, 1, span)),
            switching=c.switching,
            signs=c.signs,
            fired=fired,
        )
        budget = Tolerances(tol.rtol, tol.atol, tol.max_steps - c.attempted, begin)
        ys, valid, counts, record = solve(method, field, y, saves, budget, dense)
        status = counts["status"]
        at_event = status == _loop.AT_EVENT
        status = jnp.where(at_event, _loop.RUNNING, status)
        if mass is not None and mass.equations:
            status = jnp.where(found, status, _loop.INCONSISTENT_START)
        fine = status == _loop.RUNNING
        # The last row is the end of the piece.
        last = jnp.maximum(jnp.sum(valid) - 1, 0)
        end = take(ys, last)
        back = (jnp.arange(count) - saved) % (count + 1)
        got = due & jnp.where(fine, back < last, valid[back])
        reached = low + counts["s"] * span
        next_piece = c.piece + jnp.where(at_event, 0, 1)
        e = jnp.where(at_event, reached, high)
        y = (
            end
            if line.jumps is None
            else end + jnp.where(at_event, 0, take(line.jumps, next_piece))
        )
        ends = jnp.array(False)
        happening = {x: getattr(c, x) for x in _OF_EVENTS}
        if events:
            which = counts["fired"]
            seen = counts["coarse"] * jax.lax.stop_gradient(jnp.abs(span))
            coarse = jnp.where(at_event, jnp.where(counts["s"] == 0, c.coarse, seen), 0)
            limit = 4 * ARRIVED * coarse
            e, at, y, ends = happen(
                field, t0, args_here, events_here, mass, unravel, at_event, which, e, end, y, limit
            )
            too_many = at_event & ~ends & (c.happened >= max_events)
            status = jnp.where(too_many, _loop.TOO_MANY_EVENTS, status)
            fine = fine & ~too_many
            happening = noted(c, at_event, t0 + e, at, which) | {
                "signs": counts["signs"],
                "fired": jnp.where(at_event, which, -1),
                "coarse": coarse,
            }
        over = ends | (~at_event & (c.piece == pieces - 1))
        after = March(
            e=e,
            y=y,
            piece=jnp.minimum(next_piece, pieces - 1),
            live=c.live & fine & ~over,
            status=status,
            ys=jnp.where(got[:, None], ys[back], c.ys),
            valid=c.valid | got,
            attempted=c.attempted + counts["attempted"],
            accepted=c.accepted + counts["accepted"],
            reached=jax.lax.stop_gradient(jnp.where(at_event, e, reached)),
            last_step=counts["last_step"] * jax.lax.stop_gradient(span),
            h=jnp.where(empty, c.h, jnp.abs(counts["h"] * jax.lax.stop_gradient(span))),
            switching=_on(counts["switching"]),
            left=left,
            **happening,
        )
        finish = jnp.where(fine, e, reached)
        return after, Piece(field, record, low, field.span, finish, counts["s"])

    length = pieces + (max_events if repeats(events) else 0)
    if length == 1:
        end, piece = run(first)
        return end, jax.tree.map(lambda x: x[None], piece) if dense else None
    if dense:
        end, kept = jax.lax.scan(lambda c, _: run(c), first, None, length=length)
        return end, kept
    taken = (
        jax.checkpoint(lambda c: run(c)[0], prevent_cse=False)
        if length > _MANY
        else lambda c: run(c)[0]
    )
    one = lambda c, _: (jax.lax.cond(c.live, taken, lambda c: c, c), None)
    return jax.lax.scan(one, first, None, length=length)[0], None


def within(fn, low, high, line: Timeline, piece, unravel):
    """The vector field on one piece: never evaluated at its very ends, where it may belong to a neighbour,
    and with the rates of infusions."""
    first, last = jnp.nextafter(low, high), jnp.nextafter(high, low)
    first, last = jax.lax.stop_gradient((jnp.minimum(first, last), jnp.maximum(first, last)))

    def field(t, y, args):
        t = t + jax.lax.stop_gradient(jnp.clip(t, first, last) - t)
        dy = fn(t, y, args)
        if line.rates is None:
            return dy
        more = unravel(take(line.rates, piece))
        return jax.tree.map(lambda d, r: jnp.asarray(d).astype(r.dtype) + r, dy, more)

    return field


def happen(field, t0, args, events, mass, unravel, at_event, which, e, end, otherwise, limit):
    """What an event does.

    **Arguments:**

    - `limit`: how far from where the solve stopped it may lie. One farther away is none of the flow: a jump has
      led across zero, and it happens there.

    **Returns:**

    The time elapsed and the state at the event, the state with which the solve goes on, and whether it ends.
    Without an event: `(e, end, otherwise, False)`.
    """
    plain = eqx.tree_at(lambda f: (f.t0, f.span), field, (t0 + e, jnp.ones_like(field.span)))
    slope = plain if mass is None else lambda t, y: _dae.slope(mass, plain, t, y)
    value = lambda t, y: take(plain.watch(t, y), jnp.maximum(which, 0))
    with in_a_field():
        shift, at = refined(slope, value, end, jnp.zeros_like(e))
        if any(is_boolean(event.fn(t0 + e, unravel(end), args)) for event in events):
            shift, at = without_derivative((shift, at))
        near = at_event & (jnp.abs(shift) <= limit)
        shift, at = jnp.where(near, shift, 0), jnp.where(near, at, end)
        e = e + shift
        dtype = end.dtype

        def applied(event, y):
            if event.apply is None:
                return y
            tree = unravel(y)
            return ravel(event.apply(t0 + e, tree, args), dtype, like=tree)[0]

        branches = [lambda y, event=event: applied(event, y) for event in events]
        y = branches[0](at) if len(events) == 1 else jax.lax.switch(which, branches, at)
    ends = at_event & take(jnp.asarray([event.ends for event in events]), jnp.maximum(which, 0))
    return e, at, jnp.where(at_event, y, otherwise), ends


def _on(switching: Switching | None) -> Switching | None:
    """As the next piece takes it over, in which steps have other units."""
    if switching is None:
        return None
    return eqx.tree_at(lambda s: s.h_before, switching, jnp.zeros_like(switching.h_before))


@jax.custom_jvp
def poisoned(x: Array, ok: Array) -> Array:
    """`x`, whose derivatives are nan unless `ok`: half a solution has none."""
    return x


@poisoned.defjvp
def _(primals, tangents):
    (x, ok), (dx, _) = primals, tangents
    return x, dx * jnp.where(ok, 1.0, jnp.nan).astype(dx.dtype)

"""A solve in pieces, between two of them."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._compat import varying_like
from ._event import Event, value_of
from ._switching import at_start, Switching


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

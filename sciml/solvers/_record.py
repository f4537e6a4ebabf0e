"""The adaptive loop once more, for derivatives (see `_tangents.py`): it keeps the sizes of all accepted
steps, every `SEGMENT`-th state, all states of the first `KEPT` segments if they are small, and where each
saved row lies.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._compat import unvmap_any, varying_like
from ._indexing import put, put2, take
from ._loop import alternate, at_once, attempt, goes_on, start, taking_over
from ._rows import finish, first_rows, save, save_end
from ._state import blank, RECORD_FULL, Tolerances


SEGMENT = 32  # accepted steps between two recorded states
SEGMENTS = 128  # recorded states at most
KEPT = 16  # segments of which all states are kept, for states of up to KEPT_SIZE numbers
KEPT_SIZE = 512


class Record(eqx.Module):
    """What derivatives need of a solve: its accepted steps, in segments of up to `SEGMENT`.

    The members of a batch share the slots of their record: one that rejects a step, or has come
    to its end, has a step of size zero there.

    - `starts`, `s`: states and times at the beginning of the segments.
    - `h`: sizes of the steps.
    - `states`: the state before each step of the first segments, if they are small enough.
    - `lengths`, `parts`: how many steps a segment has, and which part of the method took them.
    - `count`: up to which slot they are used. Unused ones hold a state where the field is finite,
      and steps of size zero.
    - `rows`, `slots`, `fractions`: how many rows were reached, the slot of each (-1 at the
      start), and where in its step it lies.
    """

    starts: Float[Array, "segment n"]
    s: Float[Array, " segment"]
    h: Float[Array, "segment step"]
    states: Float[Array, "kept step n"] | None
    lengths: Int[Array, " segment"]
    parts: Int[Array, " segment"]
    count: Int[Array, ""]
    rows: Int[Array, ""]
    slots: Int[Array, " row"]
    fractions: Float[Array, " row"]


def record(method, field, y0, saves, tol: Tolerances, differentiated: bool):
    """`integrate`, which also writes the steps down.

    **Returns:**

    `(Record, ys, valid, State)`.
    """
    c = blank(method, field, y0, tol, differentiated)
    rows = first_rows(c, saves, recorded=True)
    n, dtype, integer = y0.shape[0], y0.dtype, jnp.result_type(int)
    like = lambda x: varying_like(x, c.h)
    filled = lambda shape, x: jnp.broadcast_to(like(jnp.asarray(x, dtype)), shape) + 0
    steps = (
        filled((SEGMENTS, n), y0),
        filled((SEGMENTS,), 1.0),
        filled((SEGMENTS, SEGMENT), 0.0),
        filled((KEPT + 1, SEGMENT, n), y0) if n <= KEPT_SIZE else None,
        like(jnp.zeros((SEGMENTS,), integer)),
        like(jnp.zeros((SEGMENTS,), integer)),
    )
    count = like(jnp.zeros((), integer))

    def going(carry, part=None):
        c, rows, _, count = carry
        return unvmap_any(goes_on(c, rows, part)) & (count < SEGMENTS * SEGMENT)

    def march(part, carry):
        method_of_part = method.parts[part]

        def one(carry):
            before, rows, (starts, s, h, states, lengths, parts), count = carry
            i, k = count // SEGMENT, count % SEGMENT
            on = goes_on(before, rows, part)
            c, stages = attempt(method_of_part, part, field, tol, before, on)
            stepped = c.accepted > before.accepted
            rows = save(method_of_part, saves, before, c, stages, rows, count)
            rows = save_end(field, before, c, rows, count)
            # Where nobody stepped the next attempt overwrites this.
            h = put2(h, i, k, jnp.where(stepped, c.h_tried, 0))
            starts = put(starts, i, jnp.where(k == 0, before.y, take(starts, i)))
            s = put(s, i, jnp.where(k == 0, before.s, take(s, i)))
            if states is not None:
                states = put2(states, jnp.minimum(i, KEPT), k, before.y)
            count = jnp.where(unvmap_any(stepped), count + 1, count)
            lengths = put(lengths, i, count - i * SEGMENT)
            parts = put(parts, i, like(jnp.asarray(part, integer)))
            return c, rows, (starts, s, h, states, lengths, parts), count

        c, rows, steps, count = carry
        # A segment has steps of one part only.
        count = (count + SEGMENT - 1) // SEGMENT * SEGMENT
        carry = (taking_over(method_of_part, field, c), rows, steps, count)
        return jax.lax.while_loop(lambda carry: going(carry, part), one, carry)

    def whole(carry):
        c = start(method, field, y0, tol, differentiated)
        return alternate(method, going, march, (c, first_rows(c, saves, recorded=True), *carry[2:]))

    c, rows, steps, count = at_once(whole, (c, rows, steps, count))
    assert rows.slots is not None
    assert rows.fractions is not None
    starts, s, h, states, lengths, parts = steps
    rec = Record(
        starts, s, h, states, lengths, parts, count, rows.next, rows.slots[:-1], rows.fractions[:-1]
    )
    status = jnp.where(goes_on(c, rows), RECORD_FULL, c.status)
    c = eqx.tree_at(lambda c: c.status, c, status)
    return rec, *finish(c, rows), c

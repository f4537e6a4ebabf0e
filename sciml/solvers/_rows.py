"""The rows that a solve saves, read off the dense output of its steps."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._compat import unvmap_any, varying_like
from ._indexing import put, take
from ._state import AT_EVENT, NONFINITE_START, State


class Rows(eqx.Module):
    """The saved rows: the first `next` of `ys` are filled in. The last one is a spare, which takes
    the writes of members of a batch that have nothing to save.

    - `slots`, `fractions`: of a recorded solve, the step in which each row lies, -1 for the
      start, and where in it.
    """

    ys: Float[Array, "row_and_one n"]
    next: Int[Array, ""]
    slots: Int[Array, " row_and_one"] | None = None
    fractions: Float[Array, " row_and_one"] | None = None


def first_rows(state: State, saves, recorded: bool = False) -> Rows:
    """Room for the saved rows, those at the very start filled in, with the end of a piece that ends there."""
    rows = saves.shape[0] + 1
    integer = jnp.result_type(int)
    there = jnp.sum(saves <= 0).astype(integer) + jnp.where(state.status == AT_EVENT, 1, 0)
    like = lambda x: varying_like(x, state.h, saves)
    return Rows(
        jnp.broadcast_to(state.y, (rows, *state.y.shape)) + 0,
        like(jnp.where(state.status == NONFINITE_START, 0, there)),
        like(jnp.full((rows,), -1, integer)) if recorded else None,
        like(jnp.zeros((rows,), saves.dtype)) if recorded else None,
    )


def save(method, saves, before: State, after: State, stages, rows: Rows, slot=None) -> Rows:
    """Fills in the rows that lie in the step between two states; after a rejected one, none."""
    count = saves.shape[0]

    def due(rows):
        stepped = after.accepted > before.accepted
        return stepped & (rows.next < count) & (take(saves, rows.next) <= after.s)

    def one(rows):
        on = due(rows)
        at = jnp.where(on, rows.next, count)
        theta = (take(saves, rows.next) - before.s) / after.h_tried
        ys = put(rows.ys, at, before.y + method.weights(theta) @ stages)
        following = jnp.where(on, rows.next + 1, rows.next)
        if slot is None:
            return Rows(ys, following)
        return Rows(ys, following, put(rows.slots, at, slot), put(rows.fractions, at, theta))

    return jax.lax.while_loop(lambda rows: unvmap_any(due(rows)), one, rows)


def save_end(field, before: State, after: State, rows: Rows, slot=None) -> Rows:
    """Adds the end of a piece as the last row, with its step at fraction 1."""
    if not field.traced.is_piece:
        return rows
    on = (after.accepted > before.accepted) & ((after.s >= 1) | (after.status == AT_EVENT))
    at = jnp.where(on, rows.next, rows.ys.shape[0] - 1)
    ys, following = put(rows.ys, at, after.y), jnp.where(on, rows.next + 1, rows.next)
    if slot is None:
        return Rows(ys, following)
    assert rows.slots is not None
    assert rows.fractions is not None
    one = jnp.ones((), rows.fractions.dtype)
    return Rows(ys, following, put(rows.slots, at, slot), put(rows.fractions, at, one))


def finish(state: State, rows: Rows):
    """Rows that were not reached become the last state times nan."""
    valid = jnp.arange(rows.ys.shape[0] - 1) < rows.next
    return jnp.where(valid[:, None], rows.ys[:-1], jnp.nan * state.y[None]), valid

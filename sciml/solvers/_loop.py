"""The adaptive loop: steps under error control, on normalised time `s` in [0, 1].

`integrate` keeps nothing but the last step, and reads saved rows off its dense output. `record`
keeps what derivatives need instead (see `_tangents.py`): the sizes of all accepted steps, every
`SEGMENT`-th state, all states of the first `KEPT` segments if they are small, and where each saved
row lies.

Under `jax.vmap` the members march in lockstep: the loops go on while *any* member does, a
condition that is not batched, so that JAX doesn't copy every carried buffer at every turn to keep
those of the finished members. What has come to its end stays as it is by `where` on single
states, and writes what nobody wants into a spare row.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._compat import unvmap_any, varying_like


# What ended a solve; `_results.py` has the words. Plain integers, since they live in loops.
RUNNING, OUT_OF_STEPS, COLLAPSED, NONFINITE_FIELD, NONFINITE_START = range(5)
RECORD_FULL, UNORDERED_TIMES = 5, 6

SEGMENT = 32  # accepted steps between two recorded states
SEGMENTS = 128  # recorded states at most
KEPT = 16  # segments of which all states are kept, for states of up to KEPT_SIZE numbers
KEPT_SIZE = 512


class Tolerances(eqx.Module):
    """Of the error of a step, and how many steps may be tried."""

    rtol: Array
    atol: Array
    max_steps: Array


class State(eqx.Module):
    """The solve between two steps.

    - `h`, `h_tried`: the sizes of the next step to try and of the last one tried.
    """

    s: Float[Array, ""]
    y: Float[Array, " n"]
    f: Float[Array, " n"] | None  # the field here, for methods that share it between steps
    h: Float[Array, ""]
    h_tried: Float[Array, ""]
    attempted: Int[Array, ""]
    accepted: Int[Array, ""]
    status: Int[Array, ""]


def put(x: Array, i: Array, row: Array) -> Array:
    """`x` with one row replaced, in place; `x.at[i].set` would be a scatter, which is slow."""
    return jax.lax.dynamic_update_index_in_dim(x, row, i, 0)


def put2(x: Array, i: Array, k: Array, row: Array) -> Array:
    """The same for the row `x[i, k]`."""
    zeros = (jnp.zeros_like(i),) * (x.ndim - 2)
    return jax.lax.dynamic_update_slice(x, row[None, None], (i, k, *zeros))


def take(x: Array, i: Array) -> Array:
    return jax.lax.dynamic_index_in_dim(x, i, 0, keepdims=False)


def rms(x: Array) -> Array:
    return jnp.sqrt(jnp.mean(x * x))


def ratio(x: Array, scale: Array) -> Array:
    """`x / scale`, where nothing is no part of nothing (`atol = 0` at a zero of the state)."""
    safe = jnp.where(scale > 0, scale, jnp.ones_like(scale))
    return jnp.where(scale > 0, x / safe, jnp.where(x == 0, jnp.zeros_like(x), jnp.inf))


def start(method, field, y0: Array, tol: Tolerances) -> State:
    """The state before the first step, whose size is estimated as by Hairer, Nørsett and
    Wanner, *Solving ordinary differential equations I* (1993), section II.4."""
    dtype = y0.dtype
    zero = varying_like(jnp.zeros((), dtype), y0)
    f0 = field(zero, y0)
    frozen_y, frozen_f = jax.lax.stop_gradient((y0, f0))
    scale = tol.atol + tol.rtol * jnp.abs(frozen_y)
    largest = lambda x: jnp.maximum(jnp.max(jnp.abs(x)), jnp.finfo(dtype).tiny)
    # Divided by the largest first: squares of errors in units of a tiny `atol` overflow.
    size = lambda x: largest(ratio(x, scale)) * rms(ratio(x, scale) / largest(ratio(x, scale)))
    d0, d1 = size(frozen_y), size(frozen_f)
    h0 = jnp.where((d0 < 1e-5) | (d1 < 1e-5), 1e-6, 0.01 * d0 / jnp.where(d1 > 0, d1, 1))
    h0 = jnp.where(jnp.isfinite(h0) & (h0 > 0), jnp.minimum(h0, 1.0), 1e-6)
    f1 = jax.lax.stop_gradient(field(h0, frozen_y + h0 * frozen_f))
    d2 = size(f1 - frozen_f) / h0
    h1 = (0.01 / jnp.maximum(jnp.maximum(d1, d2), 1e-15)) ** (1 / method.error_order)
    h = jnp.minimum(jnp.minimum(100 * h0, h1), 1.0)
    h = jnp.where(jnp.isfinite(h) & (h > 0), h, h0)
    fine = jnp.all(jnp.isfinite(y0)) & jnp.all(jnp.isfinite(f0))
    count = varying_like(jnp.zeros((), jnp.result_type(int)), y0)
    return State(
        s=zero,
        y=y0,
        f=f0 if method.shares_last_stage else None,
        h=jax.lax.stop_gradient(h),
        h_tried=zero,
        attempted=count,
        accepted=count,
        status=jnp.where(fine, RUNNING, NONFINITE_START).astype(jnp.result_type(int)),
    )


def attempt(method, field, tol: Tolerances, c: State, on: Array) -> tuple[State, Array]:
    """Tries one step, if it is `on`; keeps it if its error is within the tolerances.

    **Returns:**

    The state after it, and the stages of the step.
    """
    eps = float(jnp.finfo(c.s.dtype).eps)
    final = c.s + c.h * (1 + 1e-6) >= 1  # no sliver of a step is left for the end
    h = jnp.where(final, 1 - c.s, c.h)
    y, stages, f = method.step(field, c.s, c.y, h, c.f)
    size = jnp.maximum(jnp.abs(c.y), jnp.abs(y))
    error = rms(ratio(method.error(stages), tol.atol + tol.rtol * size))
    error = jax.lax.stop_gradient(error)
    finite = jnp.isfinite(error)
    error = jnp.where(finite, error, 1e10)
    ok = error <= 1
    # notation: safety 0.9; a step changes by at most a factor of 5 (Hairer et al., II.4)
    factor = jnp.clip(0.9 * jnp.maximum(error, 1e-10) ** (-1 / method.error_order), 0.2, 5.0)
    h_next = h * factor
    # `~(a > b)`, since a step size of nan is a collapse, too.
    collapsed = ~ok & ~(h_next > jnp.maximum(4 * eps * c.s, eps**2))
    collapsed = collapsed | (ok & ~final & (c.s + h == c.s))
    one = lambda flag: jnp.where(flag, 1, 0).astype(jnp.result_type(int))
    attempted = c.attempted + one(on)
    status = jnp.where(
        collapsed,
        jnp.where(finite, COLLAPSED, NONFINITE_FIELD),
        jnp.where((attempted >= tol.max_steps) & ~(ok & final), OUT_OF_STEPS, c.status),
    ).astype(jnp.result_type(int))
    ok = ok & on
    keep = lambda new, old: jnp.where(ok, new, old)
    following = State(
        s=keep(jnp.where(final, jnp.ones_like(c.s), c.s + h), c.s),
        y=keep(y, c.y),
        f=keep(f, c.f) if method.shares_last_stage else None,
        h=jnp.where(on, h_next, c.h),
        h_tried=jnp.where(on, h, c.h_tried),
        attempted=attempted,
        accepted=c.accepted + one(ok),
        status=jnp.where(on, status, c.status),
    )
    return following, stages


def goes_on(c: State, rows) -> Array:
    """Whether a member has not come to its end yet."""
    # `s < 1` as well: a row that can't come, for times out of order, must not be waited for.
    return (c.status == RUNNING) & (c.s < 1) & (rows.next < rows.ys.shape[0] - 1)


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
    """Room for the saved rows, those at the very start filled in."""
    rows = saves.shape[0] + 1
    integer = jnp.result_type(int)
    there = jnp.sum(saves <= 0).astype(integer)
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


def finish(state: State, rows: Rows):
    """Rows that were not reached become the last state times nan."""
    valid = jnp.arange(rows.ys.shape[0] - 1) < rows.next
    return jnp.where(valid[:, None], rows.ys[:-1], jnp.nan * state.y[None]), valid


def integrate(method, field, y0, saves, tol: Tolerances):
    """Solves and saves at the increasing fractions `saves`, of which the first is 0.

    **Returns:**

    `(ys, valid, State)`; rows that were not reached are the last state times nan.
    """
    c = start(method, field, y0, tol)

    def one(carry):
        before, rows = carry
        c, stages = attempt(method, field, tol, before, goes_on(before, rows))
        return c, save(method, saves, before, c, stages, rows)

    going = lambda carry: unvmap_any(goes_on(*carry))
    c, rows = jax.lax.while_loop(going, one, (c, first_rows(c, saves)))
    return *finish(c, rows), c


class Record(eqx.Module):
    """What derivatives need of a solve: its accepted steps, in segments of `SEGMENT`.

    The members of a batch share the slots of their record: one that rejects a step, or has come
    to its end, has a step of size zero there.

    - `starts`, `s`: states and times at the beginning of the segments.
    - `h`: sizes of the steps.
    - `states`: the state before each step of the first segments, if they are small enough.
    - `count`: how many slots are used. Unused ones hold a state where the field is finite, and
      steps of size zero.
    - `rows`, `slots`, `fractions`: how many rows were reached, the slot of each (-1 at the
      start), and where in its step it lies.
    """

    starts: Float[Array, "segment n"]
    s: Float[Array, " segment"]
    h: Float[Array, "segment step"]
    states: Float[Array, "kept step n"] | None
    count: Int[Array, ""]
    rows: Int[Array, ""]
    slots: Int[Array, " row"]
    fractions: Float[Array, " row"]


def record(method, field, y0, saves, tol: Tolerances):
    """`integrate`, which also writes the steps down.

    **Returns:**

    `(Record, ys, valid, State)`.
    """
    c = start(method, field, y0, tol)
    rows = first_rows(c, saves, recorded=True)
    n, dtype = y0.shape[0], y0.dtype
    filled = lambda shape, x: jnp.broadcast_to(varying_like(jnp.asarray(x, dtype), c.h), shape) + 0
    steps = (
        filled((SEGMENTS, n), y0),
        filled((SEGMENTS,), 1.0),
        filled((SEGMENTS, SEGMENT), 0.0),
        filled((KEPT + 1, SEGMENT, n), y0) if n <= KEPT_SIZE else None,
    )
    count = varying_like(jnp.zeros((), jnp.result_type(int)), c.h)

    def one(carry):
        before, rows, (starts, s, h, states), count = carry
        i, k = count // SEGMENT, count % SEGMENT
        c, stages = attempt(method, field, tol, before, goes_on(before, rows))
        stepped = c.accepted > before.accepted
        rows = save(method, saves, before, c, stages, rows, count)
        # Where nobody stepped the next attempt overwrites this.
        h = put2(h, i, k, jnp.where(stepped, c.h_tried, 0))
        starts = put(starts, i, jnp.where(k == 0, before.y, take(starts, i)))
        s = put(s, i, jnp.where(k == 0, before.s, take(s, i)))
        if states is not None:
            states = put2(states, jnp.minimum(i, KEPT), k, before.y)
        return c, rows, (starts, s, h, states), jnp.where(unvmap_any(stepped), count + 1, count)

    def going(carry):
        c, rows, _, count = carry
        return unvmap_any(goes_on(c, rows)) & (count < SEGMENTS * SEGMENT)

    c, rows, steps, count = jax.lax.while_loop(going, one, (c, rows, steps, count))
    assert rows.slots is not None
    assert rows.fractions is not None
    rec = Record(*steps, count, rows.next, rows.slots[:-1], rows.fractions[:-1])
    status = jnp.where(goes_on(c, rows), RECORD_FULL, c.status)
    c = eqx.tree_at(lambda c: c.status, c, status)
    return rec, *finish(c, rows), c

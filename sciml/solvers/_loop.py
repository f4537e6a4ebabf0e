"""The adaptive loop: steps under error control, on normalised time `s` in [0, 1].

`integrate` keeps nothing but the last step: between two save times it runs a plain
`while_loop`, then reads the dense output off the last step, so that saving costs the steps
nothing. `record` keeps what derivatives need instead (see `_replay.py`): the sizes of all
accepted steps and every `SEGMENT`-th state.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._compat import varying_like


# What ended a solve; `_results.py` has the words. Plain integers, since they live in loops.
RUNNING, OUT_OF_STEPS, COLLAPSED, NONFINITE_FIELD, NONFINITE_START = range(5)
RECORD_FULL, UNORDERED_TIMES = 5, 6

SEGMENT = 32  # accepted steps between two recorded states
SEGMENTS = 128  # recorded states at most


class Tolerances(eqx.Module):
    rtol: Array
    atol: Array
    max_steps: Array


class State(eqx.Module):
    """The solve between two steps, and the last accepted step for the dense output."""

    s: Float[Array, ""]
    y: Float[Array, " n"]
    f: Float[Array, " n"] | None  # the field here, for methods that share it between steps
    h: Float[Array, ""]
    s_last: Float[Array, ""]
    y_last: Float[Array, " n"]
    h_last: Float[Array, ""]
    h_tried: Float[Array, ""]
    stages: Float[Array, "stage n"]
    attempted: Int[Array, ""]
    accepted: Int[Array, ""]
    status: Int[Array, ""]


def put(x: Array, i: Array, row: Array) -> Array:
    """`x` with one row replaced, in place; `x.at[i].set` would be a scatter, which is slow."""
    return jax.lax.dynamic_update_index_in_dim(x, row, i, 0)


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
    h1 = (0.01 / jnp.maximum(jnp.maximum(d1, d2), 1e-15)) ** (1 / method.order)
    h = jnp.minimum(jnp.minimum(100 * h0, h1), 1.0)
    h = jnp.where(jnp.isfinite(h) & (h > 0), h, h0)
    fine = jnp.all(jnp.isfinite(y0)) & jnp.all(jnp.isfinite(f0))
    count = varying_like(jnp.zeros((), jnp.result_type(int)), y0)
    return State(
        s=zero,
        y=y0,
        f=f0 if method.shares_last_stage else None,
        h=jax.lax.stop_gradient(h),
        s_last=zero,
        y_last=y0,
        h_last=zero + 1,
        h_tried=zero,
        stages=varying_like(jnp.zeros((method.stage_count, *y0.shape), y0.dtype), y0),
        attempted=count,
        accepted=count,
        status=jnp.where(fine, RUNNING, NONFINITE_START).astype(jnp.result_type(int)),
    )


def attempt(method, field, tol: Tolerances, c: State) -> State:
    """Tries one step; keeps it if its error is within the tolerances."""
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
    factor = jnp.clip(0.9 * jnp.maximum(error, 1e-10) ** (-1 / method.order), 0.2, 5.0)
    h_next = h * factor
    # `~(a > b)`, since a step size of nan is a collapse, too.
    collapsed = ~ok & ~(h_next > jnp.maximum(4 * eps * c.s, eps**2))
    collapsed = collapsed | (ok & ~final & (c.s + h == c.s))
    attempted = c.attempted + 1
    status = jnp.where(
        collapsed,
        jnp.where(finite, COLLAPSED, NONFINITE_FIELD),
        jnp.where((attempted >= tol.max_steps) & ~(ok & final), OUT_OF_STEPS, c.status),
    ).astype(jnp.result_type(int))
    keep = lambda new, old: jax.tree.map(lambda a, b: jnp.where(ok, a, b), new, old)
    s_next = jnp.where(final, jnp.ones_like(c.s), c.s + h)
    return State(
        s=keep(s_next, c.s),
        y=keep(y, c.y),
        f=keep(f, c.f) if method.shares_last_stage else None,
        h=h_next,
        s_last=keep(c.s, c.s_last),
        y_last=keep(c.y, c.y_last),
        h_last=keep(h, c.h_last),
        h_tried=h,
        stages=keep(stages, c.stages),
        attempted=attempted,
        accepted=c.accepted + jnp.where(ok, 1, 0).astype(jnp.result_type(int)),
        status=status,
    )


def goes_on(c: State) -> Array:
    return (c.status == RUNNING) & (c.s < 1)


def step_and_save(method, field, tol: Tolerances, saves, c: State, ys, j):
    """Tries a step, then saves what lies inside it: `ys[j]` is the next row to come."""
    c = attempt(method, field, tol, c)

    def save(carry):
        ys, j = carry
        theta = (take(saves, j) - c.s_last) / c.h_last
        return put(ys, j, c.y_last + method.weights(theta) @ c.stages), j + 1

    def due(carry):
        j = carry[1]
        return (j < saves.shape[0]) & (take(saves, j) <= c.s)

    ys, j = jax.lax.while_loop(due, save, (ys, j))
    return c, ys, j


def first_rows(state: State, saves):
    """Room for the saved rows, those at the very start filled in, and how many these are."""
    ys = jnp.broadcast_to(state.y, (saves.shape[0], *state.y.shape)) + 0
    j = jnp.sum(saves <= 0).astype(jnp.result_type(int))
    return ys, varying_like(jnp.where(state.status == NONFINITE_START, 0, j), state.h, saves)


def finish(state: State, ys, j):
    """Rows that were not reached become the last state times nan."""
    valid = jnp.arange(ys.shape[0]) < j
    return jnp.where(valid[:, None], ys, jnp.nan * state.y[None]), valid


def integrate(method, field, y0, saves, tol: Tolerances):
    """Solves and saves at the increasing fractions `saves`, of which the first is 0.

    **Returns:**

    `(ys, valid, State)`; rows that were not reached are the last state times nan.
    """
    c = start(method, field, y0, tol)
    ys, j = first_rows(c, saves)
    # `s < 1` as well: a row that can't come, for times out of order, must not be waited for.
    going = lambda carry: goes_on(carry[0]) & (carry[2] < saves.shape[0])
    one = lambda carry: step_and_save(method, field, tol, saves, *carry)
    c, ys, j = jax.lax.while_loop(going, one, (c, ys, j))
    return *finish(c, ys, j), c


class Record(eqx.Module):
    """What derivatives need of a solve.

    - `starts`: states at the beginning of the segments; unused rows hold `y0`, where the field is
      finite, unlike at zero.
    - `s`: the times there. `h`: sizes of the accepted steps; unused ones are zero.
    - `states`: all states, if they are small enough to be kept.
    - `count`: how many steps there are.
    """

    starts: Float[Array, "segment n"]
    s: Float[Array, " segment"]
    h: Float[Array, "segment step"]
    states: Float[Array, "segment step n"] | None
    count: Int[Array, ""]


def record(method, field, y0, saves, tol: Tolerances):
    """`integrate`, which also writes the steps down.

    The loop over segments carries the long buffers and the loop over steps only short ones: under
    `jax.vmap` a loop's carry is copied at every turn.

    **Returns:**

    `(Record, ys, valid, State)`.
    """
    c = start(method, field, y0, tol)
    ys, j = first_rows(c, saves)
    like = lambda x: varying_like(x, c.h)
    n, dtype, rows = y0.shape[0], y0.dtype, saves.shape[0]
    stored = keeps_all(n)
    empty_sizes = like(jnp.zeros((SEGMENT,), dtype))
    empty_states = jnp.broadcast_to(y0, (SEGMENT if stored else 1, n)) + 0

    def segment(carry):
        i, c, ys, j, rec = carry
        rec = Record(put(rec.starts, i, c.y), put(rec.s, i, c.s), rec.h, rec.states, c.accepted)

        def one(inner):
            c, ys, j, sizes, states = inner
            k = c.accepted - i * SEGMENT
            states = put(states, k, c.y) if stored else states
            c, ys, j = step_and_save(method, field, tol, saves, c, ys, j)
            # after a rejected step `k` comes again and overwrites this
            return c, ys, j, put(sizes, k, c.h_last), states

        def going(inner):
            c, _, j, *_ = inner
            return goes_on(c) & (j < rows) & (c.accepted < (i + 1) * SEGMENT)

        inner = (c, ys, j, empty_sizes, empty_states)
        c, ys, j, sizes, states = jax.lax.while_loop(going, one, inner)
        all_states = rec.states if rec.states is None else put(rec.states, i, states)
        rec = Record(rec.starts, rec.s, put(rec.h, i, sizes), all_states, c.accepted)
        return i + 1, c, ys, j, rec

    def going(carry):
        i, c, _, j, _ = carry
        return goes_on(c) & (j < rows) & (i < SEGMENTS)

    rec = Record(
        starts=jnp.broadcast_to(y0, (SEGMENTS, n)) + 0,
        s=like(jnp.ones((SEGMENTS,), dtype)),
        h=like(jnp.zeros((SEGMENTS, SEGMENT), dtype)),
        states=jnp.broadcast_to(y0, (SEGMENTS, *empty_states.shape)) + 0 if stored else None,
        count=c.accepted,
    )
    first = like(jnp.zeros((), jnp.result_type(int)))
    _, c, ys, j, rec = jax.lax.while_loop(going, segment, (first, c, ys, j, rec))
    full = goes_on(c) & (j < rows)
    c = eqx.tree_at(lambda c: c.status, c, jnp.where(full, RECORD_FULL, c.status))
    return rec, *finish(c, ys, j), c


def keeps_all(n: int) -> bool:
    """Whether all states are kept, not only the first of each segment: up to 16 MB."""
    return n <= 512

"""The linear system behind the derivatives of an adaptive solve.

The tangents of the recorded steps solve a system with ones on the diagonal and -d phi_k / d y_k
below it. `lax.custom_linear_solve` is told how to multiply with its matrix, how to solve it (a
loop forwards) and how to solve its transpose (a loop backwards), and JAX makes every mode of
differentiation of that: forward, reverse, and each over the other.

The unknowns are the tangents at the starts of the recorded segments and of the saved rows. Inside
a segment states are recomputed; memory is O(segments + steps in a segment) states, and for small
ones those of the first `KEPT` segments.

The parameters join the unknowns, so that one loop does all. In a batch that shares many of them (a
network's weights under `jax.vmap`) they would be materialised for each member; there they stay
outside, in the right-hand side: one more sweep over the segments, whose transpose sums over the
batch on the way.
"""

import functools

import jax
import jax.numpy as jnp

from .._compat import is_batched, unvmap_any, varies, varying_like
from ._field import ravel
from ._indexing import put, take
from ._record import KEPT, Record, SEGMENT, SEGMENTS


_FEW = 16384  # parameters up to which they join the unknowns in a batch, too
# States up to which a step is differentiated with its stages written out: up to twice as fast to run, and up to twice
# as long to compile.
_SMALL = 64


def is_zero(tangent) -> bool:
    return isinstance(tangent, jax.custom_derivatives.SymbolicZero)


def share_many(y0, theta, count: int) -> bool:
    """Whether the members of a batch share more parameters than can be kept for each."""
    return count > _FEW and is_batched(y0) and not is_batched(theta)


def tangents_at_fixed_fractions(static, primals, tangents, rec: Record, fine):
    """Tangents of the segments' starts and of the rows, whose times keep their fractions.

    Half a solution has no derivative: then all are nan, in every mode, not plausible numbers for
    some.

    **Arguments:**

    - `static`: method and field.
    - `primals`, `tangents`: of `(y0, theta, saves, (rest, tolerances))`.
    - `rec`: the recorded steps; `fine`: whether they are all.

    **Returns:**

    `(starts, rows)`, of shapes `(segment, n)` and `(row, n)`.

    **Raises:**

    `ValueError` inside `shard_map`, for parameters that all devices share.
    """
    y0, theta, saves, (rest, _) = primals
    dy0, dtheta, _, _ = tangents
    dtype, n, count = y0.dtype, y0.shape[0], saves.shape[0]
    leaves, treedef = jax.tree.flatten(theta)
    dleaves = jax.tree.leaves(dtheta, is_leaf=is_zero)
    moving = [k for k, d in enumerate(dleaves) if not is_zero(d)]
    # Parameters keep their values and dtypes; what is flat is how far they move, from zero.
    mark = lambda x: x * jnp.where(fine, 1.0, jnp.nan).astype(x.dtype)
    dmoving = [mark(dleaves[k]) for k in moving]
    dflat, unravel = ravel(dmoving, dtype, like=[leaves[k] for k in moving])
    pull_back = jax.linear_transpose(unravel, varying_like(jnp.zeros_like(dflat), y0))
    still = [varying_like(jnp.zeros_like(leaves[k]), leaves[k]) for k in moving]
    dy0 = mark(jnp.zeros_like(y0) if is_zero(dy0) else dy0)
    if varies(y0) and not all(varies(leaves[k]) for k in moving):
        raise ValueError(_SHARED_IN_SHARDS)
    joined = not share_many(y0, theta, dflat.shape[0])
    small = n <= _SMALL

    def moved(deltas):
        new = list(leaves)
        for k, d in zip(moving, deltas, strict=True):
            new[k] = new[k] + d
        return static.field(jax.tree.unflatten(treedef, new), rest)

    parts = range(len(static.replays))

    def by_part(i, fn, *operands):
        """`fn(part, *operands)` with the part of the method that took the steps of a segment."""
        if len(parts) == 1:
            return fn(0, *operands)
        branches = [functools.partial(fn, part) for part in parts]
        return jax.lax.switch(take(rec.parts, i), branches, *operands)

    def phi(part, y, deltas, s, h):
        return static.replays[part](moved(deltas), s, y, h)

    def phi_fast(part, y, deltas, s, h):
        return static.steps[part](moved(deltas), s, y, h) if small else phi(part, y, deltas, s, h)

    def step_jvp(step, y, s, h, dy, deltas):
        if deltas is None:
            (y1, _), (dy1, dk) = jax.jvp(lambda y: step(y, still, s, h), (y,), (dy,))
        else:
            both = lambda y, deltas: step(y, deltas, s, h)
            (y1, _), (dy1, dk) = jax.jvp(both, (y, still), (dy, deltas))
        return y1, dy1, dk

    def step_vjp(part, y, s, h, gy, gk, gv):
        """Cotangents of the state before a step, and `gv`, one for each parameter, with theirs added."""
        if gv is None:
            _, vjp = jax.vjp(lambda y: phi_fast(part, y, still, s, h), y)
            return vjp((gy, gk))[0], None
        _, vjp = jax.vjp(lambda y, deltas: phi_fast(part, y, deltas, s, h), y, still)
        gy, g = vjp((gy, gk))
        return gy, jax.tree.map(jnp.add, gv, g)

    starts, sizes, slots, fractions = jax.lax.stop_gradient(
        (rec.s, rec.h, rec.slots, rec.fractions)
    )
    # A row at the start lies at the beginning of the first step, if there is one.
    flat_sizes = sizes.reshape(-1)
    started = jnp.any(flat_sizes > 0) & (jnp.arange(count) < rec.rows)
    slots = jnp.where((slots < 0) & started, jnp.argmax(flat_sizes > 0).astype(slots.dtype), slots)
    # Save times that are differentiated move within their step.
    steps = flat_sizes[jnp.maximum(slots, 0)]
    motion = saves - jax.lax.stop_gradient(saves)
    if static.traced.is_piece:  # whose end is a row, not at a save time
        motion = jnp.where(jnp.arange(count) < rec.rows - 1, motion, 0)
    fractions = fractions + motion / jnp.where(steps > 0, steps, jnp.ones_like(steps))
    at_start = slots < 0
    segment_of, local = slots // SEGMENT, slots % SEGMENT
    weights = jax.vmap(static.weights)(fractions, rec.parts[jnp.maximum(segment_of, 0)])
    used = (rec.count + SEGMENT - 1) // SEGMENT
    steps_in = lambda i: take(rec.lengths, i)
    zero = jnp.zeros_like(used)

    def steps_of(i, one):
        """The loop over the steps of a segment, for `by_part`."""
        going = lambda inner: inner[0] < steps_in(i)
        return lambda part, inner: jax.lax.while_loop(going, functools.partial(one, part), inner)

    def times_and_sizes_of(i):
        row = take(sizes, i)
        return take(starts, i) + jnp.cumsum(row) - row, row

    def forwards(_, b):
        dv, dx, dout = unpack(b)
        deltas = None if dv is None else unravel(dv)

        def segment(carry):
            i, r, x, out, d = carry
            row = take(sizes, i)

            def one(part, inner):
                j, s, y, d, r, out = inner
                h = take(row, j)
                y1, d1, dk = step_jvp(functools.partial(phi_fast, part), y, s, h, d, deltas)

                def due(rows):
                    r, _ = rows
                    return (r < count) & (take(slots, r) == i * SEGMENT + j)

                def save(rows):
                    r, out = rows
                    on = due(rows)
                    new = take(out, r) + d + take(weights, r) @ dk
                    # what is not due goes into a spare row
                    return jnp.where(on, r + 1, r), put(out, jnp.where(on, r, count), new)

                r, out = jax.lax.while_loop(lambda rows: unvmap_any(due(rows)), save, (r, out))
                return j + 1, s + h, y1, d1, r, out

            inner = (zero, take(starts, i), take(rec.starts, i), d, r, out)
            *_, d, r, out = by_part(i, steps_of(i, one), inner)
            following = jnp.minimum(i + 1, SEGMENTS - 1)
            d = d + take(dx, following)
            return i + 1, r, put(x, following, d), out, d

        first_row = jnp.sum(at_start & (jnp.arange(count) < rec.rows)).astype(used.dtype)
        room = jnp.concatenate([dout, jnp.zeros_like(dout[:1])])
        carry = (zero, first_row, dx, room, dx[0])
        _, _, x, out, _ = jax.lax.while_loop(lambda c: c[0] < used, segment, carry)
        return pack(dv, x, out[:-1])

    no_states, no_stages = varying_like(
        (jnp.zeros((SEGMENT, n), dtype), jnp.zeros((static.stage_count, n), dtype)), rec.starts
    )

    def states_of(i, ss, hs):
        """The states of a segment: kept, or recomputed."""

        def again(part, inner):
            j, y, ys = inner
            return j + 1, phi_fast(part, y, still, take(ss, j), take(hs, j))[0], put(ys, j, y)

        def recompute():
            return by_part(i, steps_of(i, again), (zero, take(rec.starts, i), no_states))[2]

        kept = rec.states
        if kept is None:
            return recompute()
        return jax.lax.cond(i < KEPT, lambda: take(kept, jnp.minimum(i, KEPT)), recompute)

    def backwards(_, b):
        gv, gx, gout = unpack(b)
        # Added up leaf by leaf: the flat vector would be written anew for every step.
        sums = None if gv is None else [varying_like(jnp.zeros_like(x), x, b) for x in still]

        def segment(carry):
            i, r, gv, x, lam = carry
            ss, hs = times_and_sizes_of(i)
            ys = states_of(i, ss, hs)

            def one(part, inner):
                j, r, lam, gv = inner

                def due(rows):
                    r = rows[0]
                    return (r >= 0) & (take(slots, r) == i * SEGMENT + j)

                def save(rows):
                    r, gy, gk = rows
                    on = due(rows)
                    g = jnp.where(on, take(gout, r), 0)
                    return jnp.where(on, r - 1, r), gy + g, gk + take(weights, r)[:, None] * g[None]

                rows = (r, jnp.zeros_like(lam), no_stages)
                r, gy, gk = jax.lax.while_loop(lambda rows: unvmap_any(due(rows)), save, rows)
                g, gv = step_vjp(part, take(ys, j), take(ss, j), take(hs, j), lam, gk, gv)
                return j - 1, r, gy + g, gv

            back = lambda part, inner: jax.lax.while_loop(
                lambda inner: inner[0] >= 0, functools.partial(one, part), inner
            )
            _, r, lam, gv = by_part(i, back, (steps_in(i) - 1, r, lam, gv))
            lam = lam + take(gx, i)
            return i - 1, r, gv, put(x, i, lam), lam

        last = rec.rows.astype(used.dtype) - 1
        carry = (used - 1, last, sums, gx, 0 * gx[0])
        _, _, sums, x, _ = jax.lax.while_loop(lambda c: c[0] >= 0, segment, carry)
        return pack(None if gv is None else gv + pull_back(sums)[0], x, gout)

    def sweep(deltas, x):
        """What the segments make of tangents at their starts: `(tangents at the ends, rows)`."""

        @functools.partial(jax.checkpoint, prevent_cse=False)
        def segment(i, s, y, row, d, out):
            def one(part, carry, h):
                s, y, d = carry
                y1, d1, dk = step_jvp(functools.partial(phi, part), y, s, h, d, deltas)
                return (s + h, y1, d1), (d, dk)

            scan = lambda part, carry: jax.lax.scan(functools.partial(one, part), carry, row)
            (_, _, d), (dys, dks) = by_part(i, scan, (s, y, d))
            new = dys[local] + jnp.einsum("rk,rkn->rn", weights, dks[local])
            return jnp.where((segment_of == i)[:, None], new, out), d

        def one(out, operands):
            # Segments behind the last one are skipped.
            skip = lambda i, s, y, row, d, out: (out, jnp.zeros_like(d))
            return jax.lax.cond(operands[0] < used, segment, skip, *operands, out)

        index = jnp.arange(SEGMENTS, dtype=used.dtype)
        out, ends = jax.lax.scan(
            one, jnp.zeros((count, n), dtype) + 0 * x[:1], (index, starts, rec.starts, sizes, x)
        )
        inside = (index[1:] < used)[:, None]
        return jnp.where(inside, ends[:-1], 0), out

    def multiply(b):
        dv, x, out = unpack(b)
        ends, made = sweep(None if dv is None else unravel(dv), x)
        return pack(dv, jnp.concatenate([x[:1], x[1:] - ends]), out - made)

    # One vector, since a part of the right-hand side that is constantly zero can't be transposed.
    first = dflat.shape[0] if joined else 0
    second = first + SEGMENTS * n

    def pack(v, x, out):
        parts = [x.reshape(-1), out.reshape(-1)]
        return jnp.concatenate([v, *parts] if joined else parts)

    def unpack(b):
        x, out = b[first:second].reshape(SEGMENTS, n), b[second:].reshape(count, n)
        return (b[:first] if joined else None), x, out

    later, out = jnp.zeros((SEGMENTS - 1, n), dtype), jnp.zeros((count, n), dtype)
    if not joined:
        later, out = sweep(dmoving, varying_like(jnp.zeros((SEGMENTS, n), dtype), y0))
    # Where there is no step, rows move with the initial state.
    out = jnp.where(at_start[:, None], dy0[None], out)
    b = varying_like(pack(dflat, jnp.concatenate([dy0[None], later]), out), y0, saves)
    _, at_starts, out = unpack(jax.lax.custom_linear_solve(multiply, b, forwards, backwards))
    return at_starts, mark(out)


_SHARED_IN_SHARDS = (
    "Inside `jax.shard_map`, the vector field of an adaptive solve uses, from a closure, a "
    "parameter that all devices share: the sum of its derivative over the devices would be taken "
    "inside a loop. Pass it as `args` or as a field of a module, or let it vary first, by "
    "`jax.lax.pcast(parameter, axis_name, to='varying')`."
)

"""Derivatives of adaptive solves: record the steps, then differentiate exactly these.

The step sizes are constants of the derivative ("discretise, then optimise"). What is left is a
recursion over the accepted steps, y_{k+1} = phi_k(y_k, theta), whose tangents solve a linear
system with ones on the diagonal and -d phi_k / d y_k below it. `lax.custom_linear_solve` is told
how to multiply with its matrix, how to solve it (a loop forwards) and how to solve its transpose
(a loop backwards), and JAX makes every mode of differentiation of that: forward, reverse, and
each over the other. Inside a `custom_jvp` whose own value is the plain loop, nothing of this
exists until somebody differentiates.

The unknowns are the tangents at the starts of the recorded segments and of the saved rows; inside
a segment states are recomputed. Memory is O(segments + steps in a segment) states.

The parameters join the unknowns, so that one loop does all. In a batch that shares many of them (a
network's weights under `jax.vmap`) they would be materialised for each member; there they stay
outside, in the right-hand side: one more sweep over the segments, whose transpose sums over the
batch on the way.
"""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp

from .._compat import is_batched, unvmap_max, varies, varying_like
from ._field import FlatField, ravel
from ._loop import integrate, put, Record, record, RUNNING, SEGMENT, SEGMENTS, take


_FEW = 16384  # parameters up to which they join the unknowns in a batch, too


class _Static:
    """What JAX need not see of a solve."""

    def __init__(self, method, field: FlatField):
        self.method, self.jaxpr, self.is_theta = method, field.jaxpr, field.is_theta

    def field(self, theta, rest) -> FlatField:
        arrays, t0, span = theta
        return FlatField(self.jaxpr, self.is_theta, arrays, rest, t0, span)


def solve_flat(method, field: FlatField, y0, saves, tol, dense: bool = False):
    """`integrate`, with derivatives in every mode by `y0`, `saves` and all of `field`.

    **Returns:**

    `(ys, valid, counts, record)`: `counts` a dict of what has no derivatives, and the record of
    the steps if `dense`, else `None`.
    """
    theta = (field.theta, field.t0, field.span)
    # Inside `shard_map` a carry must enter a loop as it leaves it: varying like all it meets.
    y0, saves = varying_like((y0, saves), theta, field.rest)
    operands = (_Static(method, field), y0, theta, saves, (field.rest, tol))
    if dense:
        rec, out = _record(*operands)
        return *out, rec
    return *_solve(*operands), None


def solve_forwards(method, field: FlatField, y0, saves, tol, dense: bool = False):
    """The same for forward mode only: the plain loop, which carries its tangents along."""
    if dense:
        rec, ys, valid, state = record(method, field, y0, saves, tol)
        return ys, valid, counts_of(state), rec
    ys, valid, state = integrate(method, field, y0, saves, tol)
    return ys, valid, counts_of(state), None


def counts_of(state) -> dict:
    return {
        "accepted": state.accepted,
        "attempted": state.attempted,
        "status": state.status,
        "s": jax.lax.stop_gradient(state.s),
        "last_step": jax.lax.stop_gradient(state.h_tried),
        "y": jax.lax.stop_gradient(state.y),
    }


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _solve(static, y0, theta, saves, rest):
    field = static.field(theta, rest[0])
    ys, valid, state = integrate(static.method, field, y0, saves, rest[1])
    return ys, valid, counts_of(state)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _record(static, y0, theta, saves, rest):
    field = static.field(theta, rest[0])
    rec, ys, valid, state = record(static.method, field, y0, saves, rest[1])
    return rec, (ys, valid, counts_of(state))


def _record_jvp(static, primals, tangents):
    rec, out = _record(static, *primals)
    starts, rows = _tangents(static, primals, tangents, rec, out)
    rec_tangent = eqx.tree_at(lambda r: r.starts, jax.tree.map(_zero, rec), starts)
    return (rec, out), (rec_tangent, (rows, *jax.tree.map(_zero, out[1:])))


def _solve_jvp(static, primals, tangents):
    rec, out = _record(static, *primals)
    _, rows = _tangents(static, primals, tangents, rec, out)
    return out, (rows, *jax.tree.map(_zero, out[1:]))


# What is not differentiated is told apart: its derivative may be infinite, and 0 * inf is nan.
_record.defjvp(_record_jvp, symbolic_zeros=True)
_solve.defjvp(_solve_jvp, symbolic_zeros=True)


def _zero(x):
    """The tangent of what has none; it varies like `x` inside `shard_map`."""
    return jax.custom_derivatives.zero_from_primal(x, symbolic_zeros=True)


def _tangents(static, primals, tangents, rec: Record, out):
    """Tangents of the segments' starts, and of the saved rows."""
    ys, _, counts = out
    _, theta, saves, rest = primals
    starts, rows = _at_fixed_fractions(static, primals, tangents, rec)
    if not _is_zero(tangents[2]):
        # The derivative by a save time is the field there.
        slopes = jax.vmap(static.field(theta, rest[0]))(saves, ys)
        rows = rows + slopes * tangents[2][:, None]
    # Half a solution has no derivative: nan for all, not plausible numbers for some.
    fine = counts["status"] == RUNNING
    rows = rows * jnp.where(fine, 1.0, jnp.nan).astype(ys.dtype)
    return varying_like(starts, rec.starts), varying_like(rows, ys)


def _is_zero(tangent) -> bool:
    return isinstance(tangent, jax.custom_derivatives.SymbolicZero)


def _at_fixed_fractions(static, primals, tangents, rec: Record):
    y0, theta, saves, (rest, _) = primals
    dy0, dtheta, _, _ = tangents
    method, dtype, n, rows = static.method, y0.dtype, y0.shape[0], saves.shape[0]
    leaves, treedef = jax.tree.flatten(theta)
    dleaves = jax.tree.leaves(dtheta, is_leaf=_is_zero)
    moving = [k for k, d in enumerate(dleaves) if not _is_zero(d)]
    # Parameters keep their values and dtypes; what is flat is how far they move, from zero.
    dmoving = [dleaves[k] for k in moving]
    dflat, unravel = ravel(dmoving, dtype, like=[leaves[k] for k in moving])
    pull_back = jax.linear_transpose(unravel, varying_like(jnp.zeros_like(dflat), y0))
    still = [varying_like(jnp.zeros_like(leaves[k]), leaves[k]) for k in moving]
    dy0 = jnp.zeros_like(y0) if _is_zero(dy0) else dy0

    def moved(deltas):
        new = list(leaves)
        for k, d in zip(moving, deltas, strict=True):
            new[k] = new[k] + d
        return jax.tree.unflatten(treedef, new)

    if varies(y0) and not all(varies(leaves[k]) for k in moving):
        raise ValueError(
            "Inside `jax.shard_map`, the derivative of an adaptive solve by parameters that all "
            "devices share is not supported: its sum over the devices would be taken inside a loop. "
            "Let them vary first, by `jax.lax.pcast(parameter, axis_name, to='varying')`, or use fixed "
            "steps (`steps=`)."
        )
    few = dflat.shape[0] <= _FEW or not (is_batched(y0) and not is_batched(theta))
    joined = few
    times, sizes = jax.lax.stop_gradient((rec.s, rec.h))
    used = (rec.count + SEGMENT - 1) // SEGMENT
    steps_in = lambda i: jnp.minimum(SEGMENT, rec.count - i * SEGMENT)

    # Where each saved row lies: its segment, the step in it, and its weights of the stages.
    inner_times = times[:, None] + jnp.cumsum(sizes, axis=1) - sizes
    behind = lambda begins: jnp.maximum(jnp.sum(begins < saves[:, None], axis=-1) - 1, 0)
    at_start = saves <= 0
    segment_of = jnp.where(at_start, -1, behind(times[None]))
    begins = jnp.where(sizes > 0, inner_times, 2)[segment_of]
    local = behind(begins)
    at_h = sizes[segment_of, local]
    fraction = (saves - inner_times[segment_of, local]) / jnp.where(at_h > 0, at_h, 1)
    weights = jax.vmap(method.weights)(fraction)
    # A product with ones and zeros is faster than a scatter, which loops over the rows.
    picks = jax.nn.one_hot(local, SEGMENT, dtype=dtype)

    def phi(y, deltas, s, h):
        return method.replay(static.field(moved(deltas), rest), s, y, h)

    def step_jvp(y, s, h, dy, deltas):
        if deltas is None:
            (y1, _), (dy1, dk) = jax.jvp(lambda y: phi(y, still, s, h), (y,), (dy,))
        else:
            step = lambda y, deltas: phi(y, deltas, s, h)
            (y1, _), (dy1, dk) = jax.jvp(step, (y, still), (dy, deltas))
        return y1, dy1, dk

    def put_rows(i, out, dys, dks):
        """Writes the rows that lie in segment `i`, from the tangents of its states and stages."""
        new = dys[local] + jnp.einsum("rk,rkn->rn", weights, dks[local])
        return jnp.where((segment_of == i)[:, None], new, out)

    states = jnp.zeros((SEGMENT, n), dtype)
    stages = jnp.zeros((SEGMENT, method.stage_count, n), dtype)
    states, stages = varying_like((states, stages), rec.starts)

    def forwards(_, b):
        dv, dx, dout = unpack(b)

        def segment(carry):
            i, x, out, d = carry
            x, row = put(x, i, d), take(sizes, i)

            def one(inner):
                j, s, y, d, dys, dks = inner
                dys, h = put(dys, j, d), take(row, j)
                y, d, dk = step_jvp(y, s, h, d, None if dv is None else unravel(dv))
                return j + 1, s + h, y, d, dys, put(dks, j, dk)

            inner = (jnp.zeros_like(i), take(times, i), take(rec.starts, i), d, states, stages)
            *_, d, dys, dks = jax.lax.while_loop(lambda c: c[0] < steps_in(i), one, inner)
            following = take(dx, jnp.minimum(i + 1, SEGMENTS - 1))
            return i + 1, x, put_rows(i, out, dys, dks), d + following

        carry = (jnp.zeros_like(used), dx, jnp.zeros_like(dout), dx[0])
        _, x, out, _ = jax.lax.while_loop(lambda c: c[0] < used, segment, carry)
        return pack(dv, x, dout + out)

    def backwards(_, b):
        gv, gx, gout = unpack(b)

        def segment(carry):
            i, gv, x, lam = carry
            row = take(sizes, i)

            # The states of the segment: kept, or recomputed.
            def again(inner):
                j, s, y, ss, ys = inner
                ss, ys, h = put(ss, j, s), put(ys, j, y), take(row, j)
                return j + 1, s + h, phi(y, still, s, h)[0], ss, ys

            if rec.states is None:
                inner = (jnp.zeros_like(i), take(times, i), take(rec.starts, i), 0 * row, states)
                *_, ss, ys = jax.lax.while_loop(lambda c: c[0] < steps_in(i), again, inner)
            else:
                ss, ys = take(inner_times, i), take(rec.states, i)
            mine = jnp.where((segment_of == i)[:, None], gout, 0)
            gys = picks.T @ mine
            gks = jnp.einsum("rj,rk,rn->jkn", picks, weights, mine)

            def one(inner):
                j, lam, gv = inner
                s, h, y = take(ss, j), take(row, j), take(ys, j)
                if gv is None:
                    _, vjp = jax.vjp(lambda y: phi(y, still, s, h), y)
                    (gy,) = vjp((lam, take(gks, j)))
                else:
                    _, vjp = jax.vjp(lambda y, deltas: phi(y, deltas, s, h), y, still)
                    gy, g = vjp((lam, take(gks, j)))
                    gv = gv + pull_back(g)[0]
                return j - 1, gy + take(gys, j), gv

            inner = (steps_in(i) - 1, lam, gv)
            _, lam, gv = jax.lax.while_loop(lambda c: c[0] >= 0, one, inner)
            lam = lam + take(gx, i)
            return i - 1, gv, put(x, i, lam), lam

        carry = (used - 1, gv, gx, 0 * gx[0])
        _, gv, x, _ = jax.lax.while_loop(lambda c: c[0] >= 0, segment, carry)
        return pack(gv, x, gout)

    # Segments behind the last one are skipped; in a batch, behind the last one of all members.
    most = unvmap_max(used)

    def sweep(deltas, x):
        """What the segments make of tangents at their starts: `(tangents at the ends, rows)`."""

        @functools.partial(jax.checkpoint, prevent_cse=False)
        def segment(i, s, y, row, d, out):
            def one(carry, h):
                s, y, d = carry
                y1, d1, dk = step_jvp(y, s, h, d, deltas)
                return (s + h, y1, d1), (d, dk)

            (_, _, d), (dys, dks) = jax.lax.scan(one, (s, y, d), row)
            return put_rows(i, out, dys, dks), d

        def one(out, operands):
            skip = lambda i, s, y, row, d, out: (out, jnp.zeros_like(d))
            return jax.lax.cond(operands[0] < most, segment, skip, *operands, out)

        index = jnp.arange(SEGMENTS, dtype=used.dtype)
        out, ends = jax.lax.scan(
            one, jnp.zeros((rows, n), dtype) + 0 * x[:1], (index, times, rec.starts, sizes, x)
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
        x, out = b[first:second].reshape(SEGMENTS, n), b[second:].reshape(rows, n)
        return (b[:first] if joined else None), x, out

    later, out = jnp.zeros((SEGMENTS - 1, n), dtype), jnp.zeros((rows, n), dtype)
    if not joined:
        later, out = sweep(dmoving, varying_like(jnp.zeros((SEGMENTS, n), dtype), y0))
    # Rows at the very start lie in no step: they move with the initial state.
    out = jnp.where(at_start[:, None], dy0[None], out)
    b = varying_like(pack(dflat, jnp.concatenate([dy0[None], later]), out), y0, saves)
    _, starts, out = unpack(jax.lax.custom_linear_solve(multiply, b, forwards, backwards))
    return starts, out

"""Derivatives of adaptive solves: record the steps, then differentiate exactly these.

The step sizes are constants of the derivative ("discretise, then optimise"). What is left is a
recursion over the accepted steps, y_{k+1} = phi_k(y_k, theta), whose tangents solve a linear
system (see `_tangents.py`). Inside a `custom_jvp` whose own value is the plain loop, nothing of
this exists until somebody differentiates.
"""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp

from .._compat import varying_like
from .._custom_types import Derivatives
from . import _dae
from ._field import FlatField
from ._loop import integrate
from ._record import Record, record
from ._state import AT_EVENT, RUNNING
from ._switching import NONSTIFF
from ._tangents import is_zero, tangents_at_fixed_fractions


class _Static:
    """What JAX need not see of a solve."""

    def __init__(self, method, field: FlatField):
        self.method, self.traced = method, field.traced
        rows = max(part.stage_count for part in method.parts)
        self.stage_count = rows
        # For each part. Jitted, so that each is traced once for all the loops that take steps. A step
        # of the record has no neighbour to share its last stage with: `None`.
        self.replays = [jax.jit(_padded(part.replay, rows)) for part in method.parts]
        step = lambda part: lambda field, *a: part.step(field.unfused(), *a, None)[:2]
        self.steps = [jax.jit(_padded(step(part), rows)) for part in method.parts]

    def field(self, theta, rest) -> FlatField:
        arrays, t0, span = theta
        return FlatField(self.traced, arrays, rest, t0, span)

    def slope(self, field, s, y):
        """dy/ds."""
        mass = self.method.mass
        return field(s, y) if mass is None else _dae.slope(mass, field, s, y)

    def weights(self, theta, part):
        """Weights of the stages at the fractions `theta` of steps of these parts."""
        each = [_with_rows(p.weights(theta), self.stage_count) for p in self.method.parts]
        return each[0] if len(each) == 1 else jnp.where(part == NONSTIFF, *each)


def _with_rows(x, rows: int):
    """`x` with rows of zeros at its end: parts have different numbers of stages."""
    missing = rows - x.shape[0]
    if not missing:
        return x
    zeros = varying_like(jnp.zeros((missing, *x.shape[1:]), x.dtype), x)
    return jnp.concatenate([x, zeros])


def _padded(step, rows: int):
    def padded(*args):
        y, stages = step(*args)
        return y, _with_rows(stages, rows)

    return padded


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
        rec, out = _record(operands[0], False, *operands[1:])
        return *out, rec
    return *_solve(*operands), None


def solve_plainly(method, field: FlatField, y0, saves, tol, dense=False, differentiated=False):
    """The same by the plain loop, for values, or for forward mode only: it carries its tangents along."""
    if dense:
        rec, ys, valid, state = record(method, field, y0, saves, tol, differentiated)
        return ys, valid, counts_of(state), rec
    ys, valid, state = integrate(method, field, y0, saves, tol, differentiated)
    return ys, valid, counts_of(state), None


def solver_for(derivatives: Derivatives):
    """Which of the two serves these derivatives."""
    if derivatives in ("none", "forward"):
        return functools.partial(solve_plainly, differentiated=derivatives == "forward")
    return solve_flat


def counts_of(state) -> dict:
    return {
        "accepted": state.accepted,
        "attempted": state.attempted,
        "stiff": None if state.switching is None else state.switching.stiff_attempts,
        "status": state.status,
        "s": jax.lax.stop_gradient(state.s),
        "last_step": jax.lax.stop_gradient(state.h_tried),
        "y": jax.lax.stop_gradient(state.y),
        "h": jax.lax.stop_gradient(state.h),
        "switching": state.switching,
        "signs": state.signs,
        "fired": state.fired,
        "coarse": state.coarse,
    }


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _solve(static, y0, theta, saves, rest):
    field = static.field(theta, rest[0])
    ys, valid, state = integrate(static.method, field, y0, saves, rest[1])
    return ys, valid, counts_of(state)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _record(static, differentiated, y0, theta, saves, rest):
    field = static.field(theta, rest[0])
    rec, ys, valid, state = record(static.method, field, y0, saves, rest[1], differentiated)
    return rec, (ys, valid, counts_of(state))


def _record_jvp(static, _, primals, tangents):
    rec, out = _record(static, True, *primals)
    starts, rows = _tangents(static, primals, tangents, rec, out)
    rec_tangent = eqx.tree_at(lambda r: r.starts, jax.tree.map(_zero, rec), starts)
    return (rec, out), (rec_tangent, (rows, *jax.tree.map(_zero, out[1:])))


def _solve_jvp(static, primals, tangents):
    rec, out = _record(static, True, *primals)
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
    fine = (counts["status"] == RUNNING) | (counts["status"] == AT_EVENT)
    starts, rows = tangents_at_fixed_fractions(static, primals, tangents, rec, fine)
    if not is_zero(tangents[2]):
        # The derivative by a save time is the field there.
        moves = tangents[2]
        if static.traced.is_piece:
            # Its end is a row, too, at no save time; and not all save times lie in it.
            inside = jnp.arange(saves.shape[0]) < rec.rows - 1
            moves, saves = jnp.where(inside, moves, 0), jnp.where(inside, saves, 0)
            ys = jnp.where(inside[:, None], ys, primals[0])
        slopes = jax.vmap(functools.partial(static.slope, static.field(theta, rest[0])))(saves, ys)
        rows = rows + slopes * moves[:, None]
    return varying_like(starts, rec.starts), varying_like(rows, out[0])

"""Adaptive steps by the solvers of Diffrax, through `diffrax.diffeqsolve`.

Two things are added to Diffrax here. Time is measured from the start, `s = |t - t0|`, so that
float32 far from zero keeps its resolution and the direction of time is plain. And a controller
that wraps PID control notices when the step size collapses, at once instead of after
`max_steps` attempts.
"""

from collections.abc import Callable
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import optimistix as optx

from .._results import RESULTS


def all_finite(tree):
    return jnp.stack([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(tree)]).all()


class _Guarded(diffrax.AbstractAdaptiveStepSizeController):
    """PID control that stops when a rejected step has no room left to shrink."""

    rtol: Any
    atol: Any
    smallest: Any  # steps below this are a collapse even at time zero
    norm: Callable = optx.rms_norm

    def _pid(self):
        return diffrax.PIDController(rtol=self.rtol, atol=self.atol, norm=self.norm)

    def wrap(self, direction):
        return self

    def init(self, terms, t0, t1, y0, dt0, args, func, error_order):
        t_next, state = self._pid().init(terms, t0, t1, y0, dt0, args, func, error_order)
        return t_next, (state, t_next - t0)

    def adapt_step_size(self, t0, t1, y0, y1_candidate, args, y_error, error_order, state):
        inner, _ = state
        keep, t_prev, t_next, jump, inner, result = self._pid().adapt_step_size(
            t0, t1, y0, y1_candidate, args, y_error, error_order, inner
        )
        eps = jnp.finfo(jnp.result_type(t_prev)).eps
        floor = jnp.maximum(self.smallest, 4 * eps * t_prev)
        collapsed = ~keep & (t_next - t_prev <= floor)
        result = diffrax.RESULTS.where(collapsed, diffrax.RESULTS.dt_min_reached, result)
        return keep, t_prev, t_next, jump, (inner, t1 - t0), result


def solve_diffrax(solver, fields, y0, elapsed, rtol, atol, max_steps: int, adjoint, dense: bool):
    """Integrates the sum of `fields`, each `field(s, y)`, over `elapsed` times `s` (the first is 0) with error
    control.

    **Returns:**

    `(ys, valid, result, stats, end, interpolation)`, where `end` is the state where it stopped.
    """
    eps = float(jnp.finfo(elapsed.dtype).eps)

    def field(s, y):
        return jax.tree.map(lambda *dy: sum(dy[1:], dy[0]), *(f(s, y) for f in fields))

    started = all_finite(y0) & all_finite(field(elapsed[0], y0))
    # A start that is not finite ends here: an empty span takes no step.
    end = jnp.where(started, elapsed[-1], elapsed[0])
    terms = [diffrax.ODETerm(lambda s, y, _, f=f: f(s, y)) for f in fields]
    subs = [
        diffrax.SubSaveAt(ts=jnp.minimum(elapsed, end)),
        diffrax.SubSaveAt(t1=True),
    ]
    sol = diffrax.diffeqsolve(
        terms[0] if len(terms) == 1 else diffrax.MultiTerm(*terms),
        solver,
        elapsed[0],
        end,
        None,
        y0,
        saveat=diffrax.SaveAt(subs=subs, dense=dense, controller_state=True),
        stepsize_controller=_Guarded(rtol, atol, smallest=elapsed[-1] * eps**2),
        max_steps=max_steps,
        adjoint=adjoint,
        throw=False,
    )
    (ts, ts_end), (ys, y_end) = sol.ts, sol.ys  # pyright: ignore[reportGeneralTypeIssues]
    reached, y_last = ts_end[0], jax.tree.map(lambda x: x[0], y_end)
    last_step = jax.lax.stop_gradient(sol.controller_state[1])  # pyright: ignore[reportOptionalSubscript]
    result = _translate(sol.result, started, field, reached, last_step, y_last)
    ok = result == RESULTS.successful
    valid = jnp.isfinite(ts) & started

    # Times that were not reached become nan times the last state: so that a loss over all
    # times has a nan gradient too, not the finite gradient of half a solution. The factor is
    # 1 where all went well, for 0 * nan in the backward pass would be nan as well.
    factor = jnp.where(ok, 1.0, jnp.nan)

    def fill(xs, last):
        rows = valid.reshape(valid.shape + (1,) * (xs.ndim - 1))
        return jnp.where(rows, xs, last[None] * factor.astype(xs.dtype))

    ys = jax.tree.map(fill, ys, y_last)
    valid = valid & _finite_rows(ys)
    attempted = sol.stats["num_steps"]
    stats = {
        "accepted": sol.stats["num_accepted_steps"],
        "rejected": sol.stats["num_rejected_steps"],
        "evaluations": _evaluations(solver, attempted),
        "reached": jax.lax.stop_gradient(reached),
        "last_step": last_step,
    }
    return ys, valid, result, stats, jax.lax.stop_gradient(y_last), sol.interpolation


def _finite_rows(ys):
    rows = [jnp.isfinite(x).reshape(x.shape[0], -1).all(axis=1) for x in jax.tree.leaves(ys)]
    return jnp.stack(rows).all(axis=0)


def _evaluations(solver, attempted):
    """Evaluations of the vector field by an explicit method; -1 where iterations decide."""
    tableau = getattr(solver, "tableau", None)
    if tableau is None or isinstance(solver, diffrax.AbstractImplicitSolver):
        return jnp.full_like(attempted, -1)
    stages = tableau.num_stages - (1 if tableau.fsal else 0)
    return 1 + attempted * stages


def _translate(result, started, field, reached, last_step, y_last):
    """Diffrax's result as one of ours, telling a non-finite field from a collapsed step."""
    item = diffrax.RESULTS
    ahead = field(reached + last_step, y_last)
    broken = ~all_finite(ahead) | ~all_finite(y_last)
    collapsed = RESULTS.where(broken, RESULTS.nonfinite_field, RESULTS.step_collapsed)
    out = RESULTS.implicit_failed
    out = RESULTS.where(result == item.dt_min_reached, collapsed, out)
    out = RESULTS.where(result == item.max_steps_reached, RESULTS.out_of_steps, out)
    out = RESULTS.where(result == item.successful, RESULTS.successful, out)
    out = RESULTS.where(started, out, RESULTS.nonfinite_start)
    finite_end = all_finite(y_last)
    return RESULTS.where((out == RESULTS.successful) & ~finite_end, RESULTS.nonfinite_field, out)

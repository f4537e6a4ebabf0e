"""`solve` behind its checks: the same for one solve, for ensembles, and inside fits."""

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp

from .._compat import varying_like
from .._custom_types import Derivatives
from .._results import RESULTS
from . import _state
from ._auto_switch import AutoSwitch
from ._checks import check_field, check_tolerances
from ._dae import consistent
from ._declared import check_declared, without_function
from ._dense import Dense, DiffraxDense
from ._diffrax import solve_diffrax
from ._event import check_events
from ._field import Between, flatten_field
from ._fixed import solve_fixed
from ._in_pieces import solve_in_pieces
from ._input import bound, in_a_field, inputs_of
from ._method import AbstractMethod, AbstractOneStepMethod
from ._replay import solver_for
from ._root_finder import repair
from ._solution import Solution
from ._split import check_split, is_imex
from ._state import Tolerances
from ._status import as_result
from ._stops import NONE, Stops
from ._symplectic import AbstractSymplecticMethod, check_separable


_ADJOINTS = {
    "none": diffrax.ForwardMode(),
    "any": diffrax.DirectAdjoint(),
    "forward": diffrax.ForwardMode(),
    "reverse": diffrax.RecursiveCheckpointAdjoint(),
}


def solve_core(
    fn,
    y0,
    ts,
    args,
    method,
    rtol,
    atol,
    steps,
    max_steps,
    dense: bool = False,
    derivatives: Derivatives = "any",
    adjoint=None,
    stops: Stops = NONE,
    output=None,
) -> Solution:
    """Solves, never raising for numerical reasons.

    **Arguments:**

    - `derivatives`: which modes of differentiation the caller may use. `"forward"` lets our own
      methods differentiate their plain loop (of `"none"` it is the same loop, with steps for the values
      only), and picks the adjoint of Diffrax's solvers.
    - `adjoint`: of Diffrax's solvers, if the user chose one.
    - `stops`: events, doses and discontinuities.
    - `output`: `output(t, y, args)`, to be saved in place of the state.
    """
    operands = (fn, y0, ts, args, method, rtol, atol, steps, max_steps, dense, derivatives, adjoint)
    sol = _solve_states(*operands, stops)
    if output is None:
        return sol
    # Where nothing was reached, derivatives of the output at nan would be nan, though nobody uses them.
    known = lambda x, start: jax.vmap(jnp.where, (0, 0, None))(sol.valid, x, start)
    out = jax.vmap(lambda t, y: output(t, y, args))(sol.ts, jax.tree.map(known, sol.ys, y0))
    inexact = lambda x: x if jnp.issubdtype(x.dtype, jnp.inexact) else x.astype(sol.ts.dtype)
    blank = lambda x: jax.vmap(lambda ok, x: jnp.where(ok, x, jnp.nan))(sol.valid, inexact(x))
    return eqx.tree_at(lambda s: s.ys, sol, jax.tree.map(blank, out), is_leaf=lambda x: x is sol.ys)


def _solve_states(
    fn,
    y0,
    ts,
    args,
    method,
    rtol,
    atol,
    steps,
    max_steps,
    dense,
    derivatives,
    adjoint,
    stops: Stops,
) -> Solution:
    dtype = jax.tree.leaves(y0)[0].real.dtype
    # Differences first, in the precision in which the times were given.
    elapsed = ts - ts[0]
    t0, elapsed = ts[0].astype(dtype), elapsed.astype(dtype)
    inputs = inputs_of((fn, args, stops.events))
    told = bound((fn, args, stops.events), [jnp.zeros((), jnp.result_type(int)) for _ in inputs])
    with in_a_field():
        check_field(told[0], t0, y0, told[1])
        check_events(told[2], t0, y0, told[1])
    in_pieces = bool(inputs) or not stops.none
    if isinstance(method, AbstractSymplecticMethod):
        check_separable(fn, t0, y0, args)
    if in_pieces and not isinstance(method, AbstractMethod):
        raise ValueError(
            "Inputs, doses, events and discontinuities need one of our methods, such as `solvers.Tsit5()` or the "
            f"default, but `method` is Diffrax's {type(method).__name__}; `diffrax.diffeqsolve` has events of its own."
        )
    if not isinstance(method, AbstractMethod):
        adjoint = _ADJOINTS[derivatives] if adjoint is None else adjoint
        tols = (rtol, atol, max_steps)
        return _by_diffrax(fn, y0, ts, t0, elapsed, args, method, tols, dense, adjoint)

    # On an empty span all rows are the start; one stands in for zero, so that they keep their
    # derivatives by time.
    span = jnp.where(elapsed[-1] == 0, jnp.ones_like(elapsed[-1]), elapsed[-1])
    saves = elapsed / span
    ordered = jnp.all(saves[1:] >= saves[:-1])
    # Rounding must not put a row behind the end.
    saves = jnp.where(saves > 1, jnp.ones_like(saves), saves)
    y0 = varying_like(y0, rtol, atol, max_steps)  # what steers the steps moves the state
    if isinstance(method, AutoSwitch):
        method = method.for_state(y0)
    method, jac = without_function(method)
    if in_pieces:
        tol = Tolerances(
            jnp.asarray(rtol), jnp.asarray(atol), jnp.asarray(max_steps, jnp.result_type(int))
        )
        return solve_in_pieces(
            fn,
            y0,
            ts,
            args,
            t0,
            elapsed,
            inputs,
            stops,
            method,
            jac,
            tol,
            steps,
            derivatives,
            dense,
        )
    if not isinstance(method, AbstractSymplecticMethod):  # compositions go back and forth in time
        ends = jax.lax.stop_gradient((t0, ts[-1].astype(dtype)))
        fn = Between(fn, jnp.minimum(*ends), jnp.maximum(*ends))
    field, flat, unravel = flatten_field(fn, y0, args, t0, span, jac)
    check_tolerances(rtol, atol, flat.shape[0])
    check_declared(method, field, flat)
    mass = method.mass
    fine = found = left = None
    if mass is not None and mass.equations:
        fine = jnp.isfinite(flat).all() & jnp.isfinite(field(jnp.zeros_like(span), flat)).all()
        flat, found, left = consistent(mass, field, flat, rtol, atol)
        flat = jnp.where(found, flat, jnp.nan)
    record = None
    if steps is not None:
        assert isinstance(method, AbstractOneStepMethod)
        ys, valid, counts = solve_fixed(method, field, flat, saves, steps)
    else:
        tol = Tolerances(
            jnp.asarray(rtol), jnp.asarray(atol), jnp.asarray(max_steps, jnp.result_type(int))
        )
        ys, valid, counts, record = solver_for(derivatives)(method, field, flat, saves, tol, dense)
        stiff = counts["stiff"]
        attempts = [counts["attempted"]] if stiff is None else [counts["attempted"] - stiff, stiff]
        parts = zip(method.parts, attempts, strict=True)
        counts["evaluations"] = 2 + sum(part.evaluations(tried) for part, tried in parts)
    status = jnp.where(ordered, counts["status"], _state.UNORDERED_TIMES)
    if found is not None:
        assert fine is not None
        failure = jnp.where(fine, _state.INCONSISTENT_START, _state.NONFINITE_START)
        status = jnp.where(found, status, failure)
    valid = valid & ordered
    ys = ys * jnp.where(ordered, 1.0, jnp.nan).astype(ys.dtype)
    result = as_result(status)
    stats: dict[str, Any] = {
        "accepted": counts["accepted"],
        "rejected": counts["attempted"] - counts["accepted"],
        "evaluations": counts["evaluations"],
        "reached": t0 + counts["s"] * span,
        "last_step": counts["last_step"] * span,
    }
    if counts.get("stiff") is not None:
        stats["stiff_attempts"] = counts["stiff"]
    if left is not None:
        stats["inconsistency"] = left / span
    if steps is None:
        # Then any constant would have passed for a solution.
        sizes = jax.lax.stop_gradient(jnp.max(jnp.abs(ys), axis=0))
        stats["below_atol"] = jnp.all(sizes <= atol) & jnp.any(sizes > 0)
    return Solution(
        ts=ts,
        ys=jax.vmap(unravel)(ys),
        valid=valid,
        ok=status == _state.RUNNING,
        result=result,
        stats=stats,
        _end=jax.lax.stop_gradient(unravel(counts["y"])) if "y" in counts else None,
        _dense=None if record is None else Dense(method, field, record, y0, ts[0], counts["s"]),
    )


def _by_diffrax(fn, y0, ts, t0, elapsed, args, method, tols, dense, adjoint) -> Solution:
    sign = jnp.where(elapsed[-1] < 0, -1, 1).astype(elapsed.dtype)

    def along_s(fn):
        def field(s, y):
            dy = fn(t0 + sign * s, y, args)
            signed = lambda d, x: sign.astype(x.dtype) * jnp.asarray(d).astype(x.dtype)
            return jax.tree.map(signed, dy, y)

        return field

    rtol, atol, max_steps = tols
    check_split(fn, method)
    parts = (fn.explicit, fn.implicit) if is_imex(method) else (fn,)
    fields = [along_s(part) for part in parts]
    out = solve_diffrax(
        repair(method), fields, y0, sign * elapsed, rtol, atol, max_steps, adjoint, dense
    )
    ys, valid, result, stats, end, interpolation = out
    reached = stats["reached"]
    stats = stats | {
        "reached": t0 + sign * reached,
        "last_step": sign * stats["last_step"],
    }
    return Solution(
        ts=ts,
        ys=ys,
        valid=valid,
        ok=result == RESULTS.successful,
        result=result,
        stats=stats,
        _end=end,
        _dense=DiffraxDense(interpolation, ts[0], sign, reached) if dense else None,
    )

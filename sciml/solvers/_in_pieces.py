"""`solve` with inputs, doses, events or discontinuities, behind its checks."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._custom_types import Derivatives
from . import _state
from ._checks import check_tolerances
from ._dense import PiecewiseDense
from ._event import directions_of, Events
from ._field import ravel
from ._fixed_pieces import march_fixed
from ._happen import poisoned
from ._input import bound
from ._pieces import march
from ._solution import Solution
from ._state import Tolerances
from ._status import as_result
from ._stops import Stops
from ._timeline import timeline


def solve_in_pieces(
    fn: Any,
    y0: Any,
    ts: Array,
    args: Any,
    t0: Array,
    elapsed: Array,
    inputs: list,
    stops: Stops,
    method: Any,
    jac: Any,
    tol: Tolerances,
    steps: int | None,
    derivatives: Derivatives,
    dense: bool,
) -> Solution:
    """As `solve_core`, for one of our methods."""
    dtype = elapsed.dtype
    flat, unravel = ravel(y0, dtype)
    n = flat.shape[0]
    check_tolerances(tol.rtol, tol.atol, n)
    columns = [table.columns(y0, unravel, n) for table in stops.doses]
    line = timeline(ts, inputs, stops.doses, stops.discontinuities, stops.side, columns, n, dtype)
    ordered = jnp.all(jnp.sign(elapsed[-1]) * jnp.diff(elapsed) >= 0)
    told = bound((stops.events, args), [jnp.zeros((), jnp.result_type(int)) for _ in inputs])
    directions = directions_of(told[0], t0, y0, told[1])
    operands = (fn, y0, args, t0, elapsed, line, stops.events, directions, stops.max_events)
    if steps is None:
        end, pieces = march(*operands, method, jac, tol, derivatives, dense)
    else:
        end, pieces = march_fixed(*operands, method, steps, stops.side), None
    status = jnp.where(line.sound, end.status, _state.UNSOUND)
    status = jnp.where(ordered, status, _state.UNORDERED_TIMES)
    ok = status == _state.RUNNING
    valid = end.valid & ordered & line.sound
    ys = jnp.where(valid[:, None], poisoned(end.ys, ok), jnp.nan)
    stats = {
        "accepted": end.accepted,
        "rejected": end.attempted - end.accepted,
        "evaluations": jnp.full_like(end.accepted, -1),
        "reached": t0 + end.reached,
        "last_step": end.last_step,
    }
    if end.switching is not None:
        stats["stiff_attempts"] = end.switching.stiff_attempts
    if end.left is not None:
        stats["inconsistency"] = end.left
    events = None
    if stops.events:
        assert end.times is not None
        assert end.which is not None
        events = Events(
            t=poisoned(end.times, ok),
            y=jax.vmap(unravel)(poisoned(end.states, ok)),
            index=end.which,
            count=end.happened,
        )
    return Solution(
        ts=ts,
        ys=jax.vmap(unravel)(ys),
        valid=valid,
        ok=ok,
        result=as_result(status),
        stats=stats,
        events=events,
        _end=jax.lax.stop_gradient(unravel(end.y)),
        _dense=None
        if pieces is None
        else PiecewiseDense(
            method, pieces, y0, end.y, ts[0], jnp.sign(elapsed[-1]), stops.side == "after"
        ),
    )

"""What `solve` returns."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from .._compat import is_traced
from .._custom_types import Numbers
from .._results import RESULTS
from ._dense import Steps
from ._event import Events, LastEvent


class Solution(eqx.Module):
    """The solution of a differential equation.

    **Attributes:**

    - `ts`: the save times, as they were asked for.
    - `ys`: the state at these times, or what `output=` makes of it; each leaf is the leaf of `y0` with a leading
      time axis. After a failure, or an event that ended the solve, the rest is nan, never inf.
    - `valid`: which of the saved times were reached; `count` is their number.
    - `ok`: whether the solve came to its end, the last time or an event. `result` says why not:
      `RESULTS[sol.result]` is a text, or for an ensemble an array of texts.
    - `stats`: `accepted` and `rejected` steps, `evaluations` of the vector field (-1 where an
      implicit method doesn't count them), and `reached` and `last_step`: the time reached and the
      size of the last step tried. By the default `stiff_attempts`: how many of the steps tried were stiff ones;
      of adaptive solves `below_atol`: whether the solution was smaller than that throughout; with a singular
      `mass` `inconsistency`: what the algebraic equations left over at the start.
    - `events`: the [`Events`][sciml.solvers.Events] that happened; `None` if none were declared.
    """

    ts: Float[Array, " *batch time"]
    ys: PyTree[Any]
    valid: Bool[Array, " *batch time"]
    ok: Bool[Array, " *batch"]
    result: RESULTS
    stats: dict[str, Any]
    events: Events | None = None
    _end: Any = None
    _dense: Any = None

    @property
    def event(self) -> LastEvent | None:
        """The last event that happened, which is the one that ended the solve if one did: its time `t`, the
        state `y` there, and its `index` in `events=`."""
        return None if self.events is None else self.events.last

    def at(self, t: Numbers) -> PyTree[Any]:
        """Evaluates the solution between the save times. Needs `solve(..., dense=True)`.

        **Arguments:**

        - `t`: one time or an array of them, inside the span of the solve.

        **Returns:**

        The state; an array of times adds leading axes. nan outside of what was solved.
        """
        if self._dense is None:
            raise ValueError("`sol.at(t)` needs dense output: call `solve(..., dense=True)`.")
        return self._dense.at(jnp.asarray(t))

    @property
    def count(self) -> Int[Array, "*batch"]:
        """How many of the saved times were reached."""
        return jnp.sum(self.valid, axis=-1)

    def steps(self) -> "Steps":
        """All accepted steps: where the solver itself stood still. Needs `solve(..., dense=True)`, and one of
        our methods."""
        if self._dense is None or not hasattr(self._dense, "steps"):
            raise ValueError(
                "`sol.steps()` needs the record of our adaptive methods: call `solve(..., dense=True)`."
            )
        return self._dense.steps()

    def __repr__(self) -> str:
        if is_traced(self.ok) or self.ok.ndim > 0:
            return eqx.tree_pformat(self)
        span = f"{self.ts[0]:.6g} .. {self.ts[-1]:.6g}"
        how = "ok" if self.ok else f"failed: {RESULTS[self.result]}"
        last = self.event
        if self.events is not None and last is not None and int(last.index) >= 0:
            how += f", {int(self.events.count)} events, the last at t = {float(last.t):.6g}"
            how += f", {int(self.count)} of the times reached"
        plain = {k: v for k, v in self.stats.items() if v.ndim == 0 and v.dtype != bool}
        known = {k: v for k, v in plain.items() if k != "evaluations" or v >= 0}
        counts = ", ".join(f"{k} {v:.6g}" for k, v in known.items())
        return f"Solution on {span} at {self.ts.shape[0]} times, {how}\n  {counts}"

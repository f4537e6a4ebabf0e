"""Estimation from one or many starts."""

import functools
import os
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._checks import integer_at_least
from ..solvers._nonlinear._front import iterations
from ..solvers._nonlinear._lbfgs import LBFGS
from ..solvers._nonlinear._levenberg_marquardt import LevenbergMarquardt
from ..solvers._nonlinear._method import check_tolerance
from ..solvers._nonlinear._trust_region_newton import TrustRegionNewton
from ._conclude import conclude
from ._problem import check_problem, Problem
from ._result import Result, Starts
from ._search import reasons, search
from ._starts import draw, SAMPLERS, screen as best_of
from ._strategies import approach, as_strategies, prefer_shots


_LEVEL = re.compile(r"\.(sigma|size)\b")
_MANY = 500  # parameters in one array, above which sensitivities cost more than gradients


def estimate(
    problem: Problem,
    *,
    starts: int = 1,
    key: Any = None,
    method: str | None = None,
    strategy: Any = None,
    sampler: str = "hypercube",
    screen: int = 1,
    max_time: float | None = None,
    checkpoint: str | os.PathLike | None = None,
    ftol: float | None = None,
    xtol: float | None = None,
    max_steps: int = 200,
) -> Result:
    """Finds the most likely parameters, with error bars.

    Bounded trust-region Levenberg-Marquardt on the exact sensitivities; for noise laws other than the normal
    one, noise levels that are estimated too, or priors, the same method on the Fisher information. A start or a
    trial point at which the solve fails is counted and passed over, never raised.

    ```python
    import equinox as eqx
    import jax, jax.numpy as jnp
    from sciml import fit


    class Decay(eqx.Module):
        k: jax.Array | float

        def __call__(self, t, y, args):
            return -self.k * y


    ts = jnp.arange(5.0)
    ys = 3 * jnp.exp(-0.4 * ts) + jnp.array([0.02, -0.01, 0.01, 0.0, -0.02])
    problem = fit.Problem(
        Decay(0.2), fit.Data(ts, ys), y0=2.0, free={"k": fit.Free(0, 10), "y0": fit.Free(0, 10)}
    )
    result = fit.estimate(problem)
    assert result.ok and abs(result.values["k"] - 0.4) < 0.02
    print(result)
    ```

    **Arguments:**

    - `problem`: a [`Problem`][sciml.fit.Problem].
    - `starts`: how many starts. The first one is the problem's own.
    - `key`: a JAX random key, for more than one start.
    - `method`: `"least_squares"` as described above; `"newton"`, a trust region with the exact Hessian (the
      default if a law has free parameters besides its level, for which there is no Fisher information);
      `"lbfgs"` on gradients in reverse mode (the default for arrays of more than 500 parameters).
    - `strategy`: what brings each start nearer before: [`MultipleShooting`][sciml.fit.MultipleShooting],
      [`Matching`][sciml.fit.Matching], [`GrowingHorizon`][sciml.fit.GrowingHorizon], or several in a tuple. Where
      an optimiser of the whole trajectory can't stay near what multiple shooting found, as in chaotic systems,
      that is the result, and the report says so.
    - `sampler`: `"hypercube"` spreads the starts over the bounds (a Latin hypercube, on the scale of each
      parameter), or around the initial value where there are none; `"sobol"` as evenly by Sobol's sequence;
      `"prior"` draws from the priors of those that have one.
    - `screen`: that many times as many starts are drawn, and the best are kept by their loss alone, which is
      cheap.
    - `max_time`: in seconds, after which no further starts are begun.
    - `checkpoint`: a file that holds what is done, from which an interrupted fit goes on if it is called again
      with the same arguments. Starts are done in chunks of 16.
    - `ftol`, `xtol`: as in [`least_squares`][sciml.solvers.least_squares], by default eps^(7/8) and eps^(5/8).
    - `max_steps`: iterations for each start.

    **Returns:**

    A [`Result`][sciml.fit.Result] for the best start.

    **Raises:**

    `RuntimeError` if no start could even be evaluated.
    """
    check_problem(problem)
    strategies = as_strategies(strategy)
    starts, screening = integer_at_least("starts", starts), integer_at_least("screen", screen)
    if not problem.slots:
        raise ValueError("Nothing is free in this problem: name parameters in `free`.")
    if sampler not in SAMPLERS:
        raise ValueError(
            f"`sampler` must be one of {', '.join(map(repr, SAMPLERS))}, but got {sampler!r}."
        )
    xs = draw(problem, (starts - 1) * screening + 1, key, sampler)
    if screening > 1 and starts > 1:
        xs = best_of(problem, xs, starts)
    begun = np.asarray(xs)[0]
    xs, shots, troubles = approach(problem, xs, strategies)
    chosen = _method(problem, method, ftol, xtol, xs.dtype)
    ends = search(problem, xs, chosen, iterations(max_steps), max_time, checkpoint)
    xs = xs[: ends.loss.shape[0]]
    why = [r and (t or r) for t, r in zip(troubles, reasons(problem, xs, ends), strict=False)]
    ends, by_shooting = prefer_shots(problem, ends, shots)
    order = np.argsort(np.where(np.isfinite(ends.loss), ends.loss, np.inf), kind="stable")
    sorted_starts = Starts(
        loss=np.asarray(ends.loss)[order],
        ok=np.asarray(ends.ok)[order],
        reason=tuple("" if i in by_shooting else why[i] for i in order),
        values=np.asarray(ends.x)[order],
    )
    best = int(order[0])
    if not np.isfinite(ends.loss[best]):
        raise RuntimeError(f"No start could be evaluated. The first one: {why[0]}")
    end = jax.tree.map(lambda v: v[best], ends)
    shot = shots[best] if best in by_shooting else None
    return conclude(problem, end, sorted_starts, begun, shot)


def _method(problem: Problem, method: str | None, ftol, xtol, dtype) -> Any:
    """The optimiser: by default Levenberg-Marquardt on the Fisher information, unless that has no meaning."""
    check_tolerance("ftol", ftol)
    check_tolerance("xtol", xtol)
    # What the law has besides its level is not seen by the Fisher information.
    shapes = [s.name for s in problem.slots if s.root == "noise" and not _LEVEL.search(s.name)]
    if method is None:
        longest = max((slot.size for slot in problem.slots), default=0)
        method = "lbfgs" if longest > _MANY else "newton" if shapes else "least_squares"
    if method == "least_squares" and shapes:
        raise ValueError(
            f'`method="least_squares"` can\'t estimate {shapes[0]!r}, of which it has no derivatives: use "newton".'
        )
    if method == "least_squares":
        return _least_squares(ftol, xtol, np.dtype(dtype))
    if method == "newton":
        return TrustRegionNewton(ftol=ftol, xtol=xtol)
    if method == "lbfgs":
        return LBFGS(ftol=ftol, xtol=xtol)
    raise ValueError(f'`method` must be "least_squares", "newton" or "lbfgs", but got {method!r}.')


@functools.lru_cache
def _least_squares(ftol: float | None, xtol: float | None, dtype: np.dtype) -> LevenbergMarquardt:
    # Where the parameters change by far less than their error bars.
    eps = float(np.finfo(dtype).eps)
    tolerances = (
        jnp.asarray(eps**0.875 if ftol is None else ftol, dtype),
        jnp.asarray(eps**0.625 if xtol is None else xtol, dtype),
    )
    return LevenbergMarquardt(*tolerances, geodesic=False, extra=True)

"""Estimation by bounded Levenberg-Marquardt from one or many starts."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._checks import integer_at_least
from .._results import RESULTS
from ..solvers._checks import check_method
from ..solvers._nonlinear._front import iterations
from ..solvers._nonlinear._levenberg_marquardt import LevenbergMarquardt
from ..solvers._nonlinear._loop import as_result, Box, run
from ..solvers._nonlinear._method import check_tolerance
from ._densities import log_constant
from ._laws import LogNormal
from ._levels import laws_of, level_is_free, levelled
from ._likelihood import look, prior_terms
from ._problem import check_problem, Problem
from ._progress import progress
from ._result import Result, Starts
from ._simulate import solve_result, solve_tolerances
from ._uncertainty import uncertainty


_NOT_POSITIVE = (
    "The model predicts values that are not positive, which log-normal noise does not allow."
)
_CHUNK = 16  # starts compiled into one program, between two ticks of the bar


def estimate(
    problem: Problem,
    *,
    starts: int = 1,
    key: Any = None,
    ftol: float | None = None,
    xtol: float | None = None,
    max_steps: int = 200,
) -> Result:
    """Finds the most likely parameters, with error bars.

    Bounded trust-region Levenberg-Marquardt on the exact sensitivities; with a noise level that
    is estimated too, or priors, the same method on the Fisher information. A start or a trial
    point at which the solve fails is counted and passed over, never raised.

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
    - `starts`: how many starts. The first one is the problem's own; the others are spread over
      the bounds (a Latin hypercube, on the scale of each parameter), or around the initial value
      where there are none.
    - `key`: a JAX random key, for more than one start.
    - `ftol`, `xtol`: as in [`least_squares`][sciml.solvers.least_squares], by default eps^(7/8) and eps^(5/8).
    - `max_steps`: iterations for each start.

    **Returns:**

    A [`Result`][sciml.fit.Result] for the best start.

    **Raises:**

    `RuntimeError` if no start could even be evaluated.
    """
    check_problem(problem)
    starts = integer_at_least("starts", starts)
    if not problem.slots:
        raise ValueError("Nothing is free in this problem: name parameters in `free`.")
    xs = _draw(problem, starts, key)
    check_tolerance("ftol", ftol)
    check_tolerance("xtol", xtol)
    # Where the parameters change by far less than their error bars.
    eps = float(jnp.finfo(xs.dtype).eps)
    tolerances = (
        jnp.asarray(eps**0.875 if ftol is None else ftol, xs.dtype),
        jnp.asarray(eps**0.625 if xtol is None else xtol, xs.dtype),
    )
    method = LevenbergMarquardt(*tolerances, geodesic=False, extra=True)
    ends = _run(problem, xs, method, iterations(max_steps))
    order = np.argsort(np.where(np.isfinite(ends.loss), ends.loss, np.inf), kind="stable")
    reasons = _reasons(problem, xs, ends)
    sorted_starts = Starts(
        loss=np.asarray(ends.loss)[order],
        ok=np.asarray(ends.result == RESULTS.successful)[order],
        reason=tuple(reasons[i] for i in order),
        values=np.asarray(ends.x)[order],
    )
    best = int(order[0])
    if not np.isfinite(ends.loss[best]):
        raise RuntimeError(f"No start could be evaluated. The first one: {reasons[0]}")
    end = jax.tree.map(lambda v: v[best], ends)
    return conclude(problem, end, sorted_starts, xs[0])


class End(eqx.Module):
    """Where a start ended, with `rows^T rows` the curvature there."""

    x: Array
    loss: Array
    misfit: Array
    rows: Array
    result: RESULTS
    active: Array
    steps: Array
    failures: Array
    history: Array


def conclude(problem: Problem, end: End, starts: Starts, x0: Array) -> Result:
    """Statistics and error bars at an optimum."""
    fitted = problem.at(end.x)
    active = np.asarray(end.active)
    data = problem.size
    free = int(np.sum(active == 0))
    dof = data - free
    prior = float(prior_terms(problem, end.x)[0])
    scaleless = not levelled(problem)
    chi2 = 2 * (float(end.misfit) - abs(prior))
    variance = (chi2 / dof if dof > 0 else math.nan) if scaleless else 1.0
    log_likelihood, parameters = _log_likelihood(problem, end, prior, chi2, scaleless)
    statistics = describe_problem(problem, active) | {
        "chi2": chi2,
        "reduced chi2": chi2 / dof if dof > 0 else math.nan,
        "log likelihood": log_likelihood,
        "aic": 2 * parameters - 2 * log_likelihood,
        "bic": parameters * math.log(data) - 2 * log_likelihood,
        "residual sigma": math.sqrt(variance) if scaleless and dof > 0 else None,
        "steps": int(end.steps),
        "failed trial points": int(end.failures),
    }
    rows = np.asarray(end.rows)
    history = np.asarray(end.history)
    ok = bool(end.result == RESULTS.successful)
    return Result(
        ok=ok,
        message=f"converged in {int(end.steps)} steps" if ok else RESULTS[end.result],
        problem=fitted,
        loss=float(end.loss),
        starts=starts,
        history=history[np.isfinite(history)],
        statistics=statistics,
        initial=by_name(problem, x0),
        active=active,
        verb="estimate",
        uncertainty=uncertainty(rows, active, variance),
    )


def _log_likelihood(problem, end, prior, chi2, scaleless) -> tuple[float, int]:
    n, p = problem.size, int(end.x.size)
    constant = float(log_constant(problem, end.x))
    if scaleless:
        # The most likely sigma is sqrt(SSR / n), and counts as a parameter.
        level = math.log(max(chi2 / n, np.finfo(float).tiny))
        constant_without_2pi = constant - n * math.log(2 * math.pi) / 2
        return -n / 2 * (math.log(2 * math.pi) + level + 1) - constant_without_2pi, p + 1
    return -(float(end.loss) - prior + constant), p


def describe_problem(problem: Problem, active: np.ndarray) -> dict[str, Any]:
    """What a report says of any fit of this problem."""
    data = problem.size
    known = "estimated" if level_is_free(problem) else "given"
    sigma = known if levelled(problem) else "from residuals"
    laws = [type(law).__name__ for law, _ in laws_of(problem.noise, problem.observables)]
    return {
        "experiments": len(problem.experiments),
        "data": data,
        "parameters": len(active),
        "dof": data - int(np.sum(active == 0)),
        "noise": ", ".join(dict.fromkeys(laws)),
        "sigma": sigma,
        "solver": solver_name(problem),
        "rtol": rtol_of(problem),
        "precision": problem.dtype.name,
    }


def solver_name(problem: Problem) -> str:
    options = problem.solve
    method, *_ = check_method(options.method, options.steps, options.max_steps)
    name = type(method).__name__
    return name if options.steps is None else f"{name} on {options.steps} fixed steps"


def rtol_of(problem: Problem) -> float:
    return float(solve_tolerances(problem)[0])


def by_name(problem: Problem, x) -> dict[str, Any]:
    return {
        s.name: float(v) if s.shape == () else np.asarray(v)
        for s, v in zip(problem.slots, problem.naturals(x), strict=True)
    }


@eqx.filter_jit
def _chunk(problem: Problem, xs: Array, method: LevenbergMarquardt, max_steps: int) -> End:
    box = Box(problem.lower, problem.upper, True)

    def one(x):
        end = run(method, lambda x: look(problem, x), x, box, max_steps, history=True)
        here, finish = end.here, method.finish(end, box)
        assert end.history is not None
        return End(
            x=here.x,
            loss=here.loss,
            misfit=here.misfit,
            rows=end.memory.model.r,
            result=as_result(finish.code),
            active=box.active(here.x),
            steps=end.evaluations - 1,
            failures=end.failures,
            history=end.history,
        )

    # One after the other: on a CPU members in lockstep would all wait for the slowest.
    return jax.lax.map(one, xs)


def _run(problem: Problem, xs: Array, method: LevenbergMarquardt, max_steps: int) -> End:
    n = xs.shape[0]
    chunks = math.ceil(n / _CHUNK)
    size = math.ceil(n / chunks)
    padded = jnp.concatenate([xs, jnp.broadcast_to(xs[-1:], (chunks * size - n, xs.shape[1]))])
    ends = []
    with progress(n, "starts") as tick:
        for i in range(chunks):
            end = _chunk(problem, padded[i * size : (i + 1) * size], method, max_steps)
            ends.append(jax.block_until_ready(end))
            tick(min(size, n - i * size))
    return jax.tree.map(lambda *parts: jnp.concatenate(parts)[:n], *ends)


def _draw(problem: Problem, starts: int, key) -> Array:
    """Flat starts, shape `(start, parameter)`; the first is the problem's own."""
    own = problem.initial()[None]
    if starts == 1:
        return own
    if key is None:
        raise ValueError(
            "`starts` > 1 draws at random: pass `key=jax.random.key(0)` or another seed."
        )
    n = own.shape[1]
    shuffle, place, spread = jax.random.split(key, 3)
    rows = starts - 1
    # A Latin hypercube: each parameter's range is cut into as many cells as there are starts.
    cells = jax.vmap(lambda k: jax.random.permutation(k, rows), out_axes=1)(
        jax.random.split(shuffle, n)
    )
    unit = (cells.astype(own.dtype) + jax.random.uniform(place, (rows, n), own.dtype)) / rows
    low, high = problem.lower[None], problem.upper[None]
    boxed = jnp.isfinite(low) & jnp.isfinite(high)
    inside = jnp.where(boxed, low, 0) + unit * jnp.where(boxed, high - low, 0)
    # Around the initial value: a factor of e on a log scale, its own size on a linear one.
    logs = jnp.asarray(problem.log_scaled())[None]
    size = jnp.where(logs, 1.0, jnp.maximum(jnp.abs(own), 1e-3)).astype(own.dtype)
    around = own + size * jax.random.normal(spread, (rows, n), own.dtype)
    around = jnp.where(around < low, 2 * low - around, around)  # mirrored at a single bound
    around = jnp.where(around > high, 2 * high - around, around)
    drawn = jnp.clip(jnp.where(boxed, inside, around), low, high)
    return jnp.concatenate([own, drawn])


def _reasons(problem: Problem, xs: Array, ends: End) -> list[str]:
    """Why each start did not converge; an empty text for those that did."""
    out = []
    for i in range(xs.shape[0]):
        result = jax.tree.map(lambda v, i=i: v[i], ends.result)
        if not np.isfinite(ends.loss[i]):
            solved = _compiled_result(problem, xs[i])
            if bool(solved != RESULTS.successful):
                result = solved
            elif any(
                isinstance(law, LogNormal) for law, _ in laws_of(problem.noise, problem.observables)
            ):
                out.append(_NOT_POSITIVE)
                continue
        out.append(RESULTS[result])
    return out


_compiled_result = eqx.filter_jit(solve_result)

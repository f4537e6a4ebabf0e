"""Statistics and error bars at an optimum."""

import math
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Array

from ..solvers._checks import check_method
from ..solvers._nonlinear._quadratic import Quadratic
from ._laws import AbstractNoise
from ._levels import laws_of, level_is_free, levelled
from ._likelihood import look
from ._problem import Problem
from ._result import Result, Starts
from ._search import End
from ._shooting import Shot
from ._simulate import solve_tolerances
from ._uncertainty import uncertainty


def conclude(
    problem: Problem, end: End, starts: Starts, x0: np.ndarray, shot: Shot | None = None
) -> Result:
    """Statistics and error bars at an optimum."""
    fitted = problem.at(np.asarray(end.x))
    active = np.asarray(end.active)
    data = problem.size
    free = int(np.sum(active == 0))
    dof = data - free
    prior = float(end.prior)
    scaleless = not levelled(problem)
    if end.rows is None or end.misfit is None or not problem_has_plain_steps(problem):
        misfit, rows = _compiled_look(problem, end.x)
    else:
        misfit, rows = end.misfit, end.rows
    chi2 = 2 * (float(misfit) - abs(prior))
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
    if shot is not None:
        statistics["gap between windows"] = shot.gap
    history = np.asarray([end.loss] if shot is not None else end.history)
    ok = bool(end.ok)
    return Result(
        ok=ok,
        message=f"converged in {int(end.steps)} steps" if ok else starts.reason[0],
        problem=fitted,
        loss=float(end.loss),
        starts=starts,
        history=history[np.isfinite(history)],
        statistics=statistics,
        initial=by_name(problem, x0),
        active=active,
        verb="estimate",
        uncertainty=uncertainty(np.asarray(rows), active, variance),
    )


def _log_likelihood(problem, end, prior, chi2, scaleless) -> tuple[float, int]:
    n, p = problem.size, int(end.x.size)
    constant = float(end.constant)
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
        for s, v in zip(problem.slots, problem.naturals(np.asarray(x)), strict=True)
    }


def problem_has_plain_steps(problem: Problem) -> bool:
    """Whether steps are made of the expected information, as standard errors are."""
    laws = laws_of(problem.noise, problem.observables)
    return all(type(law).curvature is AbstractNoise.curvature for law, _ in laws)


@eqx.filter_jit
def _compiled_look(problem: Problem, x: Array) -> tuple[Array, Array]:
    here, rows = look(problem, x, expected=True)
    return here.misfit, Quadratic.of(rows).r

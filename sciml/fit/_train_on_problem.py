"""Training of a problem."""

from typing import Any

import numpy as np

from ._conclude import by_name, describe_problem
from ._data import Data
from ._descending import Options
from ._experiment import with_fields
from ._grow import Grow
from ._layout import Layout
from ._levels import levelled
from ._members import on_other_data
from ._phases import Phase
from ._problem import Problem
from ._problem_goal import for_training, join, mean_loss, ProblemGoal, split
from ._result import Result, Starts
from ._stores import as_store
from ._strategies import as_strategies
from ._trained import Course
from ._training import Rules, Training


def train_on_problem(
    problem: Problem,
    phases: list[Phase],
    rules: Rules,
    key: Any,
    batch: int | None,
    checkpoint: Any,
    validation: Any,
    *,
    horizon: Grow | None,
    strategy: Any,
    balance: bool,
    steer: float,
    layout: Layout | None,
) -> Result:
    """See `train`."""
    if not problem.slots:
        raise ValueError("Nothing is free in this problem: name parameters in `free`.")
    if not 0 <= steer <= 1:
        raise ValueError(f"`steer` must lie between 0 and 1, but is {steer}.")
    if horizon is not None and not isinstance(horizon, Grow):
        raise TypeError(f"`horizon` must be a `fit.Grow(…)` or `None`, but got {horizon!r}.")
    strategies = as_strategies(strategy)
    if layout is not None and len(problem.experiments) == 1:
        raise ValueError("`mesh` shares experiments out among devices, but this problem has one.")
    if batch is not None:
        count = len(problem.experiments)
        most, what = (count, "experiments") if count > 1 else (problem.rows[0], "rows")
        if batch > most:
            raise ValueError(f"`batch={batch}` is more than the {most} {what} of the data.")
    horizon = Grow(1.0, 1.0) if horizon is None else horizon
    working = for_training(problem, balance)
    held = None if validation is None else _held_out(problem, working, validation)
    parts = {
        "problem": problem,
        "validation": held,
        "key": key,
        "batch": batch,
        "horizon": horizon,
        "strategy": strategies,
        "balance": balance,
        "steer": float(steer),
        "ema": rules.ema,
    }
    store = as_store(checkpoint, parts, phases, horizon.grows)
    begun = problem
    for s in strategies:
        begun = begun.at(s.start(begun))
    x = begun.initial()
    goal = ProblemGoal(working, held, horizon, batch, float(steer))
    training = Training(
        goal,
        phases,
        rules,
        options=Options(rules.ema, None, None, layout),
        key=key,
        store=store,
        validated=held is not None,
        model_of=lambda params: problem.at(join(problem, params)).model,
    )
    course = training.run(split(problem, x))
    return _result(problem, working, course, held is not None, x)


def _held_out(problem: Problem, working: Problem, validation: Any) -> Problem:
    if isinstance(validation, Problem):
        names = lambda p: [(s.name, s.shape, s.scale) for s in p.slots]
        if names(validation) != names(problem):
            raise ValueError(
                "`validation` must have the same free parameters as the problem: "
                f"{', '.join(s.name for s in problem.slots)}."
            )
        return with_fields(validation, noise=working.noise, solve=working.solve)
    if not isinstance(validation, Data):
        raise TypeError(
            f"`validation` must be a `fit.Data` or a `fit.Problem`, but got a {type(validation).__name__}."
        )
    return with_fields(on_other_data(problem, validation), noise=working.noise, solve=working.solve)


def _result(problem: Problem, working: Problem, course: Course, validated: bool, x0: Any) -> Result:
    log = course.log
    rejected = int(np.sum(~log.accepted))
    done = log.loss.shape[0]
    x = join(problem, course.best)
    loss, ok = mean_loss(with_fields(problem, solve=working.solve), split(problem, x))
    if not np.isfinite(course.loss) or (done and rejected == done) or not bool(ok):
        raise RuntimeError(
            f"Training failed: {rejected} of {done} steps were rejected because the solve or its "
            "gradient was not finite, and no other parameters solve the whole span. Lower the "
            "learning rate, let the horizon grow from a smaller share, or start from weights nearer "
            "to zero."
        )
    message = f"best of {done} steps"
    if rejected:
        message = f"{rejected} of {done} steps were rejected (solve failed)"
    if course.ended:
        message = f"{course.ended}; {message}"
    total = float(loss) * problem.size
    n = x.shape[0]
    statistics = describe_problem(with_fields(working, noise=problem.noise), np.zeros(n, int))
    statistics |= {"rejected steps": rejected, "ended": course.ended}
    if not levelled(problem):
        statistics["sigma"] = "not given"
    if validated:
        statistics["validation loss"] = course.loss
    return Result(
        ok=not course.failed,
        message=message,
        problem=problem.at(x),
        loss=total,
        starts=Starts(np.array([total]), np.array([True]), ("",), np.asarray(x)[None]),
        history=log.loss,
        statistics=statistics,
        initial=by_name(problem, x0),
        active=np.zeros(n, int),
        verb="train",
        uncertainty=None,
    )

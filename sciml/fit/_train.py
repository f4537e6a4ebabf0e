"""Training by gradients: the verb."""

import math
from collections.abc import Callable, Iterator
from os import PathLike
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .._checks import integer_at_least
from ._checkpoints import mark_of, Store
from ._conclude import by_name, describe_problem
from ._data import Data
from ._descending import Options
from ._experiment import with_fields
from ._grow import Grow
from ._loss_goal import as_items, LossGoal, positional, trainable_filter
from ._members import on_other_data
from ._phases import as_phases, Phase
from ._problem import Problem
from ._problem_goal import for_training, join, mean_loss, ProblemGoal, split
from ._result import Result, Starts
from ._strategies import as_strategies
from ._training import Course, Rules, run, Trained


def train(
    target: Problem | Callable,
    optimiser: Any,
    *,
    steps: int | None = None,
    model: Any = None,
    data: Any = None,
    key: Any = None,
    batch: int | None = None,
    horizon: Grow | None = Grow(0.2, 1.0),
    strategy: Any = None,
    balance: bool = True,
    steer: float = 0.0,
    weights: dict[str, Any] | None = None,
    trainable: Any = None,
    compute: Any = None,
    ema: float | None = None,
    validation: Any = None,
    patience: int | None = None,
    min_delta: float = 0.0,
    every: int = 100,
    callbacks: Any = (),
    checkpoint: str | PathLike | None = None,
) -> Result | Trained:
    """Trains by gradient descent: the free parameters of a problem, or a model on any loss.

    A step after which the loss or its gradient is not finite is taken back, and half of it is tried, then a quarter.
    The best parameters are kept, not the last. For a few physical parameters use `fit.estimate`,
    which is faster and gives error bars; the two can be chained.

    ```python
    import equinox as eqx
    import jax, jax.numpy as jnp, optax
    from sciml import fit, nets


    class Model(eqx.Module):
        rate: jax.Array
        net: nets.MLP

        def __call__(self, t, y, args):
            return -self.rate * y + self.net(y)


    ts = jnp.linspace(0.0, 2.0, 21)
    model = Model(jnp.array(1.0), nets.MLP(1, 1, width=4, depth=1, key=jax.random.key(0)))
    problem = fit.Problem(
        model,
        fit.Data(ts, jnp.exp(-2 * ts)),
        y0=jnp.array([1.0]),
        free={"net": fit.Free()},
        solve=fit.Solve(steps=2),
    )
    result = fit.train(problem, optax.adam(1e-2), steps=200)
    assert result.model.rate == 1.0 and result.loss < 0.1
    ```

    Any other loss is `loss(model, batch, key)`, or with fewer arguments, and gives a number or a dict of named
    terms:

    ```python
    def loss(model, batch):
        x, y = batch
        return jnp.mean((jax.vmap(model)(x) - y) ** 2)


    x = jnp.linspace(-1.0, 1.0, 64)[:, None]
    net = nets.MLP(1, 1, width=8, depth=1, key=jax.random.key(0))
    trained = fit.train(
        loss,
        optax.adam(1e-2),
        steps=300,
        model=net,
        data=(x, x**2),
        batch=16,
        key=jax.random.key(1),
    )
    assert loss(trained.model, (x, x**2)) < 0.05
    ```

    **Arguments:**

    - `target`: a [`Problem`][sciml.fit.Problem], whose tolerances are 1e-6 and 1e-8 here unless its `solve` says
      otherwise (`fit.Solve(steps=…)` is often the fastest choice); or a loss.
    - `optimiser`: any Optax optimiser, chain or schedule (of a problem it sees the mean loss per measured value, and
      the parameters as a dict by name, on their scales); a method of [`minimise`][sciml.solvers.minimise]; or a list
      of [`Phase`][sciml.fit.Phase].
    - `steps`: how many updates; `None` if the phases say it.
    - `key`: a JAX random key; needed for `batch`, `steer` and losses that draw at random.
    - `batch`: of a problem, how many of its experiments enter a step, or if it has one, how many of its rows; of
      other data, how many items. By default all. Each epoch takes them in an order of its own, which depends on
      `key` alone.
    - `ema`: return an exponential moving average of the parameters, with this decay, say 0.999.
    - `validation`: what decides which parameters are the best and when to stop: of a problem a
      [`Data`][sciml.fit.Data] or another `Problem` with the same free parameters; of a loss, items like `data`, or
      a function of the model.
    - `patience`: stop after so many looks without an improvement by more than `min_delta`.
    - `every`: steps between two looks at the validation, the callbacks and the checkpoint.
    - `callbacks`: functions of a [`Progress`][sciml.fit.Progress]; one that returns `True` stops.
    - `checkpoint`: a file that holds all that is needed to go on: called again with the same arguments, or
      more steps, training goes on from there, bit for bit as if it had not been interrupted.

    Of problems only:

    - `horizon`: a [`Grow`][sciml.fit.Grow], or `None` for the whole span from the start; in the first phase.
    - `strategy`: what brings the parameters nearer before, as in [`estimate`][sciml.fit.estimate]:
      [`Matching`][sciml.fit.Matching] to smoothed data, [`MultipleShooting`][sciml.fit.MultipleShooting].
    - `balance`: count several observables without a known sigma in units of how much each varies.
    - `steer`: in [0, 1], shifts times at random by up to this share of half the gaps between them, which keeps the
      dynamics smooth (Ghosh et al. 2020).

    Of losses only:

    - `model`: a pytree, such as an Equinox module. `trainable`: which of it is trained: a filter such as
      `eqx.is_inexact_array` (the default), a pytree of bools, or `where(model)` as in `eqx.tree_at`. The
      rest stays as it is, under weight decay too.
    - `data`: a pytree of arrays with a leading axis of items; or an iterator of batches; or `None`.
    - `weights`: of the named terms, numbers or functions of the step.
    - `compute`: a dtype, say `"bfloat16"`, in which model and batch enter the loss. Parameters, gradients and the
      optimiser keep theirs.

    **Returns:**

    A [`Result`][sciml.fit.Result] without error bars, whose `history` is the mean loss by step; or, of a loss, a
    [`Trained`][sciml.fit.Trained].

    **Raises:**

    `RuntimeError` if no step on the final horizon could be evaluated; `ValueError`, `TypeError` for arguments that
    don't fit together.

    **Reference:** A. Ghosh, H. S. Behl, E. Dupont, P. H. S. Torr, V. Namboodiri, *STEER: simple temporal
    regularization for neural ODEs*, NeurIPS 2020, arXiv 2006.10711.
    """
    phases = as_phases(optimiser, steps)
    callbacks = (callbacks,) if callable(callbacks) else tuple(callbacks)
    if patience is not None:
        integer_at_least("patience", patience)
    if ema is not None and not 0 < ema < 1:
        raise ValueError(f"`ema` must lie between 0 and 1, but is {ema}.")
    integer_at_least("every", every)
    if batch is not None:
        integer_at_least("batch", batch)
        _need(key, "batch")
    if steer:
        _need(key, "steer")
    of_losses = {
        "model": model,
        "data": data,
        "weights": weights,
        "trainable": trainable,
        "compute": compute,
    }
    if isinstance(target, Problem):
        given = [name for name, value in of_losses.items() if value is not None]
        if given:
            raise TypeError(
                f"`{given[0]}` is for a loss of your own; a `Problem` has its own model and data."
            )
        goal, params, seen = _problem_goal(
            target, strategy, horizon, batch, balance, steer, validation
        )
        rules = Rules(every, patience, min_delta, Options(ema, None, None), callbacks)
        store = _store(checkpoint, target, phases, batch, ema)
        model_of = lambda params: target.at(join(target, params)).model
        course = run(goal, phases, params, None, _or_zero(key), rules, store, model_of)
        return _result(target, goal.problem, course, sum(p.steps for p in phases), seen)
    if not callable(target):
        raise TypeError(
            f"`train` takes a `fit.Problem` or a loss `loss(model, batch, key)`, but got a {type(target).__name__}."
        )
    return _on_loss(
        target,
        phases,
        key,
        batch,
        ema,
        every,
        patience,
        min_delta,
        callbacks,
        checkpoint,
        validation,
        **of_losses,
    )


def _need(key: Any, what: str) -> None:
    if key is None:
        raise ValueError(f"`{what}` draws at random: pass `key=jax.random.key(0)`.")


def _or_zero(key: Any) -> Any:
    return jax.random.key(0) if key is None else key


def _store(checkpoint: Any, start: Any, phases: list[Phase], batch: Any, ema: Any) -> Store | None:
    if checkpoint is None:
        return None
    optimisers = [str(jax.tree.structure(p.optimiser)) for p in phases if p.second_order]
    marks = (start, np.asarray([-1 if v is None else v for v in (batch, ema)]))
    return Store(checkpoint, mark_of(*marks) + "".join(optimisers))


def _problem_goal(problem, strategy, horizon, batch, balance, steer, validation):
    if not problem.slots:
        raise ValueError("Nothing is free in this problem: name parameters in `free`.")
    if not 0 <= steer <= 1:
        raise ValueError(f"`steer` must lie between 0 and 1, but is {steer}.")
    if horizon is not None and not isinstance(horizon, Grow):
        raise TypeError(f"`horizon` must be a `fit.Grow(…)` or `None`, but got {horizon!r}.")
    for s in as_strategies(strategy):
        problem = problem.at(s.start(problem))
    horizon = Grow(1.0, 1.0) if horizon is None else horizon
    working = for_training(problem, balance)
    held = None if validation is None else _held_out(problem, working, validation)
    if batch is not None:
        count = len(problem.experiments)
        batch = min(batch, count if count > 1 else problem.rows[0])
    x = problem.initial()
    goal = ProblemGoal(working, held, horizon, batch, float(steer))
    return goal, split(problem, x), x


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


def _result(problem: Problem, working: Problem, course: Course, steps: int, x0: Any) -> Result:
    log = course.log
    rejected = int(np.sum(~log.accepted))
    done = log.loss.shape[0]
    x = join(problem, course.best)
    loss, ok = mean_loss(with_fields(problem, solve=working.solve), split(problem, x))
    if not np.isfinite(course.loss) or rejected == done or not bool(ok):
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
    extra: dict[str, Any] = {"rejected steps": rejected}
    if log.looks.shape[0]:
        extra["validation loss"] = course.loss
    return Result(
        ok="rejected" not in course.ended,
        message=message,
        problem=problem.at(x),
        loss=total,
        starts=Starts(np.array([total]), np.array([True]), ("",), np.asarray(x)[None]),
        history=log.loss,
        statistics=describe_problem(working, np.zeros(n, int)) | extra,
        initial=by_name(problem, x0),
        active=np.zeros(n, int),
        verb="train",
        uncertainty=None,
    )


def _on_loss(
    loss, phases, key, batch, ema, every, patience, min_delta, callbacks, checkpoint, validation,
    *, model, data, weights, trainable, compute,
) -> Trained:  # fmt: skip
    if model is None:
        raise ValueError("Which model is trained? Pass `model=`.")
    takes = positional(loss)
    if takes == 3:
        _need(key, "key")
    if takes < 2 and data is not None:
        raise ValueError(
            "There are `data`, but the loss takes the model alone: `loss(model, batch)`."
        )
    if takes >= 2 and data is None and takes != 3:
        raise ValueError("The loss takes a batch: pass `data=`, or write it as `loss(model)`.")
    params, rest = eqx.partition(model, trainable_filter(model, trainable))
    if not jax.tree.leaves(params):
        raise ValueError(
            "Nothing of the model is trained: it has no floating-point arrays that are `trainable`."
        )
    items = None
    if batch is not None and data is not None and not isinstance(data, Iterator):
        data, items = as_items(data)
        if batch > items:
            raise ValueError(f"`batch={batch}` is more than the {items} items of `data`.")
    elif isinstance(data, Iterator):
        if batch is not None:
            raise ValueError("An iterator gives batches of its own: leave out `batch`.")
        if any(p.second_order for p in phases):
            raise ValueError("A method of `minimise` needs all data at once, not an iterator.")
    else:
        data = jax.tree.map(jnp.asarray, data)
    dtype = None if compute is None else jnp.dtype(compute)
    on_all = batch is None and not isinstance(data, Iterator)
    if validation is not None and not callable(validation):
        validation = jax.tree.map(jnp.asarray, validation)
    goal = LossGoal(loss, rest, weights or {}, dtype, takes, on_all, validation)
    rules = Rules(
        every, patience, min_delta, Options(ema, items, batch if items else None), callbacks
    )
    start = (params, data) if not isinstance(data, Iterator) else params
    store = _store(checkpoint, start, phases, batch, ema)
    course = run(goal, phases, params, data, _or_zero(key), rules, store, goal.model)
    log = course.log
    if log.accepted.size and not log.accepted.any():
        raise RuntimeError(
            f"Training failed: in none of {log.loss.shape[0]} steps were the loss and its gradient finite. Look at "
            "the loss at the start."
        )
    finite = math.isfinite(course.loss)
    return Trained(
        model=goal.model(course.best),
        last=goal.model(course.last),
        loss=course.loss if finite else math.nan,
        history={"loss": log.loss} | log.terms,
        validation=log.looks,
        steps=log.loss.shape[0],
        rejected=int(np.sum(~log.accepted)),
        message=course.ended or f"{log.loss.shape[0]} steps",
    )

"""The phases of training, each with an optimiser of its own."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp

from .._checks import integer_at_least
from ..solvers._nonlinear._levenberg_marquardt import LevenbergMarquardt
from ..solvers._nonlinear._method import AbstractLeastSquaresMethod, AbstractMinimiser
from ..solvers._nonlinear._minimise import minimise
from ._experiment import with_fields
from ._goal import AbstractGoal
from ._loss_goal import LossGoal
from ._problem_goal import join, ProblemGoal, split
from ._search import search


class Phase(eqx.Module):
    """A part of training with an optimiser of its own, which goes on from the best of the phase before.

    ```python
    import optax
    from sciml import fit, solvers

    phases = [fit.Phase(optax.adam(1e-2), 500), fit.Phase(solvers.LBFGS(), 200)]
    ```

    **Arguments:**

    - `optimiser`: an Optax optimiser; or a method of [`minimise`][sciml.solvers.minimise] or, for a problem, of
      [`least_squares`][sciml.solvers.least_squares], which takes all data at once.
    - `steps`: how many updates, or iterations.
    """

    optimiser: Any
    steps: int = eqx.field(static=True)

    def __check_init__(self):
        integer_at_least("steps", self.steps)
        _check_optimiser(self.optimiser)

    @property
    def second_order(self) -> bool:
        """Whether the optimiser is a method of ours, that looks at all data at once."""
        return isinstance(self.optimiser, AbstractMinimiser | AbstractLeastSquaresMethod)


def _check_optimiser(optimiser: Any) -> None:
    known = isinstance(optimiser, AbstractMinimiser | AbstractLeastSquaresMethod)
    optax_like = all(callable(getattr(optimiser, name, None)) for name in ("init", "update"))
    if isinstance(optimiser, type) or not (known or optax_like):
        raise TypeError(
            "`optimiser` must be an Optax optimiser, a method of `solvers.minimise` or a list of `fit.Phase(…)`, "
            f"but got {optimiser!r}."
        )


def as_phases(optimiser: Any, steps: int | None) -> list[Phase]:
    if isinstance(optimiser, Phase):
        optimiser = [optimiser]
    # Chains of Optax are tuples themselves.
    if isinstance(optimiser, tuple | list) and any(isinstance(p, Phase) for p in optimiser):
        for p in optimiser:
            if not isinstance(p, Phase):
                raise TypeError(f"Phases must be `fit.Phase(optimiser, steps)`, but one is {p!r}.")
        if steps is not None:
            raise ValueError("Leave out `steps`: each `fit.Phase` has its own.")
        return list(optimiser)
    _check_optimiser(optimiser)
    if steps is None:
        raise ValueError("How many `steps`? Pass `steps=1000`, or phases that have their own.")
    return [Phase(optimiser, steps)]


def by_second_order(
    goal: AbstractGoal, method: Any, params: Any, data: Any, key: Any, steps: int, before: int
) -> tuple[Any, Any]:
    """Minimises on all data at once: the parameters, and the losses on the way, at least one.

    `before`: how many steps were done before, which weights and random losses depend on.
    """
    if isinstance(goal, ProblemGoal):
        problem = goal.problem
        if isinstance(method, LevenbergMarquardt):  # laws and priors have a part that is no square
            method = with_fields(method, extra=True, geodesic=False)
        ends = search(problem, join(problem, params)[None], method, steps, None, None)
        losses = ends.history[0][jnp.isfinite(ends.history[0])]
        return split(problem, jnp.asarray(ends.x[0])), _some(losses) / problem.size
    assert isinstance(goal, LossGoal)
    if isinstance(method, AbstractLeastSquaresMethod):
        raise TypeError(
            f"`{type(method).__name__}` needs residuals, which a loss does not show. Take `solvers.LBFGS()` or "
            "`solvers.BFGS()`, or state a `fit.Problem`."
        )
    arrays, static = eqx.partition((goal, data, key), eqx.is_array)
    now = jnp.asarray(before)

    def fn(params, arrays):
        goal, data, key = eqx.combine(arrays, static)
        return goal.loss(params, data, key, now, now)[0]

    end = minimise(
        fn, params, args=arrays, method=method, max_steps=steps, history=True, throw=False
    )
    assert end.history is not None
    return end.value, _some(end.history[jnp.isfinite(end.history)])


def _some(losses: Any) -> Any:
    if not losses.size:
        raise RuntimeError("Training failed: the loss is not finite where a phase starts.")
    return losses

"""The front function `least_squares`."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import ArrayLike, PyTree

from ..._jit import flat_jit
from ._front import (
    box_of,
    chosen,
    finished,
    flat_function,
    NonlinearSolution,
    numbers,
    prepare,
    solution,
    Task,
)
from ._levenberg_marquardt import LevenbergMarquardt
from ._looking import at_residuals
from ._loop import run
from ._method import AbstractLeastSquaresMethod
from ._robust import check_loss, weights


def least_squares(
    fn: Callable[[PyTree, PyTree], PyTree],
    y0: PyTree[Any],
    args: PyTree[Any] = None,
    *,
    method: Any = None,
    bounds: Any = None,
    loss: Any = "linear",
    f_scale: Any = 1.0,
    ftol: ArrayLike | None = None,
    xtol: ArrayLike | None = None,
    max_steps: Any = 500,
    history: Any = False,
    throw: Any = True,
) -> NonlinearSolution:
    """Minimises half the sum of squares of `fn(y, args)` within bounds.

    By trust-region Levenberg-Marquardt with an exact Jacobian by forward mode, columns scaled so that the units of
    the unknowns don't matter. Suits up to a few hundred unknowns and residuals that may be non-finite away from the
    solution. The solution itself has derivatives in every mode, by `args`, bounds and closures (implicit
    differentiation). It finds a local minimum: start it from several points if there are many.

    ```python
    import jax.numpy as jnp
    from sciml import solvers

    x = jnp.linspace(0.0, 1.0, 20)
    sol = solvers.least_squares(
        lambda p, _: p[0] * jnp.exp(p[1] * x) - 2 * jnp.exp(-x), jnp.ones(2)
    )
    assert jnp.allclose(sol.value, jnp.array([2.0, -1.0]), atol=1e-4)
    ```

    **Arguments:**

    - `fn`: `fn(y, args) -> residuals`, any pytree of real arrays.
    - `y0`: the start; a number, an array or any pytree of them.
    - `args`: passed on to `fn`. Arrays and floats may change without a new compilation, other things can't.
    - `method`: by default [`LevenbergMarquardt`][sciml.solvers.LevenbergMarquardt].
    - `bounds`: `(lower, upper)`, each structured as `y0` or one number for all. The start must lie inside; no
      evaluation leaves them.
    - `loss`: what is summed up instead of squares, so that outliers weigh less: `"linear"` (squares), `"huber"`,
      `"soft_l1"`, `"cauchy"` or `"arctan"`, of residuals in units of `f_scale`, as in SciPy.
    - `ftol`, `xtol`: relative reduction of the loss, and relative length of a step, at which the iteration ends. By
      default eps^(9/8) and eps^(3/4).
    - `max_steps`: evaluations after the first.
    - `history`: whether to keep the loss after each evaluation.
    - `throw`: raise `RuntimeError` if it does not converge.

    **Returns:**

    A [`NonlinearSolution`][sciml.solvers.NonlinearSolution].

    **Raises:**

    `ValueError`, `TypeError` for input that can't be meant; `RuntimeError` without convergence if `throw` is true.
    """
    task = prepare("least_squares", fn, y0, args, bounds)
    check_loss(loss, f_scale)
    method = chosen(
        "least_squares",
        method,
        LevenbergMarquardt(),
        AbstractLeastSquaresMethod,
        task.y0,
        {"ftol": ftol, "xtol": xtol},
    )
    options = (loss, jnp.asarray(f_scale, float), *numbers(max_steps, history))
    return finished("least_squares", _least_squares, _compiled, throw, task, method, options)


def _least_squares(task: Task, method, options, derivatives: bool) -> NonlinearSolution:
    loss, f_scale, max_steps, history = options
    x0, residuals = flat_function(task)
    f_scale = f_scale.astype(x0.dtype)
    box = box_of(task, x0)
    look = at_residuals(residuals, getattr(method, "geodesic", False), loss, f_scale)

    shape = jax.eval_shape(residuals, x0)

    def gradient(x):
        """Zero at the solution: the gradient, or the distance from a bound that is active."""
        rows, r = jax.jacfwd(lambda x: (r := residuals(x), r), has_aux=True)(x)
        g = rows.T @ (r * weights(loss, f_scale, r))
        if not box.real:
            return g
        at_low, at_high = x <= box.lower, x >= box.upper
        return jnp.where(at_low, x - box.lower, jnp.where(at_high, x - box.upper, g))

    def optimise(_, start):
        end = run(method, look, start, box, max_steps, history, shape)
        return end.here.x, (end, method.finish(end, box))

    def solve_tangent(linear, b):
        return jnp.linalg.solve(jax.jacfwd(linear)(b), b)

    if derivatives:
        # The implicit function theorem: how the solution moves with all that goes in.
        x, (end, finish) = jax.lax.custom_root(gradient, x0, optimise, solve_tangent, has_aux=True)
    else:
        x, (end, finish) = optimise(None, x0)
    return solution(task, x, end, finish)


_compiled = flat_jit(_least_squares)

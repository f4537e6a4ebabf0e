"""The front function `least_squares`."""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import ArrayLike, PyTree

from ..._jit import flat_jit
from ._attempts import attempts
from ._conjugate_gradients import solve_dense, solve_symmetric
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
from ._gauss_newton_cg import GaussNewtonCG
from ._levenberg_marquardt import LevenbergMarquardt
from ._looking import at_products, at_residuals
from ._loop import BAD_START, Box, Finish, NOT_LINEAR, run
from ._method import AbstractLeastSquaresMethod
from ._robust import check_loss, weights
from ._separable import linear_places, Separation


def least_squares(
    fn: Callable[[PyTree, PyTree], PyTree],
    y0: PyTree[Any],
    args: PyTree[Any] = None,
    *,
    method: Any = None,
    bounds: Any = None,
    linear: Any = None,
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
    - `method`: by default [`LevenbergMarquardt`][sciml.solvers.LevenbergMarquardt]; for thousands of unknowns
      [`GaussNewtonCG`][sciml.solvers.GaussNewtonCG].
    - `bounds`: `(lower, upper)`, each structured as `y0` or one number for all. The start must lie inside; no
      evaluation leaves them.
    - `linear`: unknowns in which the residuals are linear, such as amplitudes and offsets: a function that picks them,
      `lambda y: (y["height"], y["floor"])`, or booleans structured as `y0`. They are eliminated (variable projection):
      their start doesn't matter, and there are fewer steps. They can't have bounds, nor another `loss`.
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
    places = None
    if linear is not None:
        if loss != "linear" or not isinstance(method, LevenbergMarquardt):
            raise ValueError("`linear` needs `LevenbergMarquardt` and `loss='linear'`.")
        places = linear_places(linear, task.y0, bounds).tobytes()
        method = dataclasses.replace(method, geodesic=False)
    options = (loss, jnp.asarray(f_scale, float), places, *numbers(max_steps, history))
    return finished("least_squares", _least_squares, _compiled, throw, task, method, options)


def _least_squares(task: Task, method, options, derivatives: bool) -> NonlinearSolution:
    loss, f_scale, places, max_steps, history = options
    x0, residuals = flat_function(task)
    f_scale = f_scale.astype(x0.dtype)
    box = box_of(task, x0)
    products = isinstance(method, GaussNewtonCG)
    if products:
        look, shape = at_products(residuals, loss, f_scale), jax.eval_shape(lambda x: x, x0)
    else:
        look = at_residuals(residuals, getattr(method, "geodesic", False), loss, f_scale)
        shape = jax.eval_shape(residuals, x0)

    def gradient(x):
        """Zero at the solution: the gradient, or the distance from a bound that is active."""
        if products:
            r, across = jax.vjp(residuals, x)
            (g,) = across(r * weights(loss, f_scale, r))
        else:
            rows, r = jax.jacfwd(lambda x: (r := residuals(x), r), has_aux=True)(x)
            g = rows.T @ (r * weights(loss, f_scale, r))
        if not box.real:
            return g
        at_low, at_high = x <= box.lower, x >= box.upper
        return jnp.where(at_low, x - box.lower, jnp.where(at_high, x - box.upper, g))

    def optimise(_, start):
        if places is not None:
            return _separately(Separation(residuals, places), method, start, box, options)
        if isinstance(method, LevenbergMarquardt):
            end, finish = attempts(method, look, start, box, max_steps, history, shape)
        else:
            end = run(method, look, start, box, max_steps, history, shape)
            finish = method.finish(end, box)
        return end.here.x, (end, finish)

    solve_tangent = solve_symmetric if products else solve_dense

    if derivatives:
        # The implicit function theorem: how the solution moves with all that goes in.
        x, (end, finish) = jax.lax.custom_root(gradient, x0, optimise, solve_tangent, has_aux=True)
    else:
        x, (end, finish) = optimise(None, x0)
    return solution(task, x, end, finish)


def _separately(separation: Separation, method, start, box: Box, options):
    """The search over the unknowns that are not linear, as if it had been over all of them."""
    *_, max_steps, history = options
    inner = separation.box(box)
    first = separation.nonlinear(start)
    shape = separation.shape(start)
    end, finish = attempts(method, separation.look, first, inner, max_steps, history, shape)
    best, bent = end.here.value[:-1], end.here.value[-1]
    x = separation.join(end.here.x, best)
    crooked = (bent > jnp.sqrt(jnp.finfo(x.dtype).eps)) & (finish.code != BAD_START)
    null = separation.join(finish.null, jnp.zeros_like(best))
    finish = Finish(jnp.where(crooked, NOT_LINEAR, finish.code), finish.optimality, null)
    return x, (eqx.tree_at(lambda s: s.here.x, end, x), finish)


_compiled = flat_jit(_least_squares)

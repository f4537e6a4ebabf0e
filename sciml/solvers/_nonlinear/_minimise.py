"""The front function `minimise`."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import ArrayLike, PyTree

from ..._jit import flat_jit
from ._conjugate_gradients import solve_symmetric
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
from ._lbfgs import LBFGS
from ._looking import at_function
from ._loop import Look, run, UNBOUNDED
from ._method import AbstractMinimiser
from ._trust_region_newton import TrustRegionNewton


_FEW = 64  # unknowns up to which the exact Hessian and its eigenvalues are the default


def minimise(
    fn: Callable[[PyTree, PyTree], Any],
    y0: PyTree[Any],
    args: PyTree[Any] = None,
    *,
    method: Any = None,
    bounds: Any = None,
    ftol: ArrayLike | None = None,
    xtol: ArrayLike | None = None,
    max_steps: Any = 2000,
    history: Any = False,
    throw: Any = True,
) -> NonlinearSolution:
    """Finds a local minimum of the number `fn(y, args)` within bounds.

    By Newton's method with the exact Hessian in a trust region for up to 64 unknowns, and by L-BFGS for more. The
    minimum has derivatives in every mode, by `args`, bounds and closures (implicit differentiation). For a sum of
    squares use [`least_squares`][sciml.solvers.least_squares], which knows more of it.

    ```python
    import jax.numpy as jnp
    from sciml import solvers

    rosenbrock = lambda y, a: (a - y[0]) ** 2 + 100 * (y[1] - y[0] ** 2) ** 2
    sol = solvers.minimise(rosenbrock, jnp.array([-1.2, 1.0]), 1.0)
    assert jnp.allclose(sol.value, 1.0, atol=1e-4)
    upper = jnp.array([0.5, 2.0])
    sol = solvers.minimise(rosenbrock, jnp.array([-1.2, 1.0]), 1.0, bounds=(-2.0, upper))
    assert jnp.allclose(sol.value, jnp.array([0.5, 0.25]), atol=1e-4)
    assert sol.active.tolist() == [1, 0]
    ```

    **Arguments:**

    - `fn`: `fn(y, args) -> number`, differentiable once or, for Newton's method, twice.
    - `y0`: the start; a number, an array or any pytree of them.
    - `args`: passed on to `fn`. Arrays and floats may change without a new compilation, other things can't.
    - `method`: one of [`TrustRegionNewton`][sciml.solvers.TrustRegionNewton], [`NewtonCG`][sciml.solvers.NewtonCG],
      [`LBFGS`][sciml.solvers.LBFGS], [`BFGS`][sciml.solvers.BFGS].
    - `bounds`: `(lower, upper)`, each structured as `y0` or one number for all. The start must lie inside; no
      evaluation leaves them.
    - `ftol`, `xtol`: promised reduction relative to the function's value, and relative length of a step, at which the
      iteration ends.
    - `max_steps`: evaluations after the first.
    - `history`: whether to keep the function's value after each evaluation.
    - `throw`: raise `RuntimeError` if it does not converge.

    **Returns:**

    A [`NonlinearSolution`][sciml.solvers.NonlinearSolution]. Its `curvature` tells a minimum from a saddle point.

    **Raises:**

    `ValueError`, `TypeError` for input that can't be meant; `RuntimeError` without convergence if `throw` is true.
    """
    task = prepare("minimise", fn, y0, args, bounds)
    few = sum(x.size for x in jax.tree.leaves(task.y0)) <= _FEW
    default = TrustRegionNewton() if few else LBFGS()
    options = {"ftol": ftol, "xtol": xtol}
    method = chosen("minimise", method, default, AbstractMinimiser, task.y0, options)
    sizes = numbers(max_steps, history)
    return finished("minimise", _minimise, _compiled, throw, task, method, sizes)


def _minimise(task: Task, method, options, derivatives: bool) -> NonlinearSolution:
    max_steps, history = options
    x0, flat = flat_function(task)
    out = jax.eval_shape(flat, x0)
    if out.shape != (1,):
        raise ValueError(
            f"`minimise` needs a function that returns one number, but `fn` returned {out.shape[0]}. For residuals "
            "use `solvers.least_squares`."
        )
    fn = lambda x: flat(x)[0]
    box = box_of(task, x0)

    def conditions(x):
        """Zero at the solution: the gradient, or the distance from a bound that is active."""
        g = jax.grad(fn)(x)
        if not box.real:
            return g
        at_low, at_high = x <= box.lower, x >= box.upper
        return jnp.where(at_low, x - box.lower, jnp.where(at_high, x - box.upper, g))

    def search(_, start):
        look = at_function(fn, method.order)
        away = lambda here: _away(here, start)
        shape = jax.eval_shape(lambda: start)
        end = run(method, look, start, box, max_steps, history, shape, lost=away)
        curvature = getattr(method, "curvature", None)
        extra = None if curvature is None else curvature(end, box)
        finish = method.finish(end, box)
        code = jnp.where(away(end.here), UNBOUNDED, finish.code)
        return end.here.x, (end, eqx.tree_at(lambda f: f.code, finish, code), extra)

    if derivatives:
        # The implicit function theorem: how the minimum moves with all that goes in.
        x, (end, finish, curvature) = jax.lax.custom_root(
            conditions, x0, search, solve_symmetric, has_aux=True
        )
    else:
        x, (end, finish, curvature) = search(None, x0)
    return solution(task, x, end, finish, curvature)


def _away(here: Look, start):
    """Whether a point lies where no problem has its minimum."""
    far = 1 / jnp.finfo(start.dtype).eps ** 2
    distant = jnp.max(jnp.abs(here.x)) > far * (1 + jnp.max(jnp.abs(start)))
    return distant | (here.loss < -(far**2))


_compiled = flat_jit(_minimise)

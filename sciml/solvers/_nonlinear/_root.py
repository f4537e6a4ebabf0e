"""The front function `root`."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import ArrayLike, PyTree

from ..._jit import flat_jit
from .._jacobian import FlatPreconditioner
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
from ._looking import at_equations
from ._loop import run
from ._method import AbstractRootMethod
from ._newton import Newton


def root(
    fn: Callable[[PyTree, PyTree], PyTree],
    y0: PyTree[Any],
    args: PyTree[Any] = None,
    *,
    method: Any = None,
    bounds: Any = None,
    jac: Any = None,
    ftol: ArrayLike | None = None,
    xtol: ArrayLike | None = None,
    max_steps: Any = 1000,
    history: Any = False,
    throw: Any = True,
) -> NonlinearSolution:
    """Solves `fn(y, args) = 0`, as many equations as unknowns.

    By Newton's method with exact derivatives, made robust: a line search, a trust region and full steps are
    tried one after the other. The root has derivatives in every mode, by
    `args` and closures (implicit differentiation).

    ```python
    import jax
    import jax.numpy as jnp
    from sciml import solvers

    square = lambda y, a: y**2 - a
    sol = solvers.root(square, 1.0, 2.0)
    assert jnp.allclose(sol.value, 2**0.5)
    slope = jax.grad(lambda a: solvers.root(square, 1.0, a).value)(2.0)
    assert jnp.allclose(slope, 0.5 / 2**0.5)
    ```

    **Arguments:**

    - `fn`: `fn(y, args) -> residuals`, any pytree of real arrays with as many numbers as `y`.
    - `y0`: the start; a number, an array or any pytree of them.
    - `args`: passed on to `fn`. Arrays and floats may change without a new compilation, other things can't.
    - `method`: by default [`Newton`][sciml.solvers.Newton].
    - `bounds`: `(lower, upper)`, each structured as `y0` or one number for all. The start must lie inside; no
      evaluation leaves them.
    - `jac`: the structure of the Jacobian, such as `solvers.Banded(1, 1)`: short for `method=Newton(jac=...)`.
    - `ftol`, `xtol`: the residuals, absolute, and the relative error of the unknowns at which the iteration ends.
      By default 0, which only rounding errors pass, and the root of eps, after which one more step is taken.
    - `max_steps`: evaluations after the first.
    - `history`: whether to keep half the sum of squares after each evaluation.
    - `throw`: raise `RuntimeError` if it does not converge.

    **Returns:**

    A [`NonlinearSolution`][sciml.solvers.NonlinearSolution].

    **Raises:**

    `ValueError`, `TypeError` for input that can't be meant; `RuntimeError` without convergence if `throw` is true.
    """
    options = {"ftol": ftol, "xtol": xtol, "jac": jac}
    sizes = numbers(max_steps, history)
    task = prepare("root", fn, y0, args, bounds)
    return find("root", task, method, options, sizes, throw)


def find(name: str, task: Task, method, options: dict, sizes: tuple, throw):
    """The root of a task, for the front function `name`."""
    method = chosen(name, method, Newton(), AbstractRootMethod, task.y0, options)
    return finished(name, _root, _compiled, throw, task, method, sizes)


def _root(task: Task, method, options, derivatives: bool) -> NonlinearSolution:
    max_steps, history = options
    x0, fn = flat_function(task)
    shape = jax.eval_shape(fn, x0)
    if shape.shape != x0.shape:
        raise ValueError(
            f"`fn` returned {shape.shape[0]} numbers for {x0.shape[0]} unknowns: `root` needs as many equations as "
            "unknowns. Use `solvers.least_squares` for more or fewer."
        )
    box = box_of(task, x0)
    method, at_start = _bound(method, task, x0)

    def search(_, start):
        end = run(
            method, at_equations(fn, method.derivatives), start, box, max_steps, history, shape
        )
        return end.here.x, (end, method.finish(end, box))

    def solve_tangent(linear, b):
        structure = getattr(at_start, "jac", None)
        if structure is None:
            return jnp.linalg.solve(jax.jacfwd(linear)(b), b)
        linearisation = structure.at(linear, None, b, None)
        return -linearisation.solver(jnp.zeros_like(b, shape=()))(b)

    if derivatives:
        # The implicit function theorem: how the root moves with all that goes in.
        x, (end, finish) = jax.lax.custom_root(fn, x0, search, solve_tangent, has_aux=True)
    else:
        x, (end, finish) = search(None, x0)
    return solution(task, x, end, finish)


def _bound(method, task: Task, x0):
    """The method with a preconditioner of flat vectors: once as it is, once kept at the start, since what solves for
    derivatives is not told where the root is."""
    given = getattr(getattr(method, "jac", None), "preconditioner", None)
    if given is None:
        return method, method
    y0, args = jax.lax.stop_gradient((task.y0, task.args))
    unravel = ravel_pytree(y0)[1]

    def flat(x):
        solve = given(unravel(x), args)
        return lambda v: ravel_pytree(solve(unravel(v)))[0].astype(v.dtype)

    bind = lambda fn: eqx.tree_at(lambda m: m.jac.preconditioner, method, FlatPreconditioner(fn))
    start = jax.lax.stop_gradient(x0)
    return bind(flat), bind(lambda _: flat(start))


_compiled = flat_jit(_root)

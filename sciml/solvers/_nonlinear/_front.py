"""What the front functions share: unknowns as one flat vector, bounds, results and complaints."""

import dataclasses
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from ..._checks import error_unless, integer_at_least
from ..._compat import is_eager, is_interpreted, varying_like
from ..._dtypes import as_state, float_leaves_as_arrays
from ..._results import RESULTS
from ._bounds import flat_bounds
from ._loop import as_result, Box, State
from ._method import AbstractNonlinearMethod, check_tolerance, Finish


class NonlinearSolution(eqx.Module):
    """The result of [`root`][sciml.solvers.root], [`least_squares`][sciml.solvers.least_squares],
    [`minimise`][sciml.solvers.minimise] and [`fixed_point`][sciml.solvers.fixed_point].

    **Attributes:**

    - `value`: the best point found, structured as `y0`.
    - `ok`, `result`: whether it converged; `RESULTS[sol.result]` says why not.
    - `active`: structured as `y0`: -1 at the lower bound, 1 at the upper, 0 free.
    - `loss`: half the sum of squared residuals, or the value of the function that was minimised.
    - `optimality`: how far from the solution it is: for least squares by how much of its value the loss could still
      fall by a Gauss-Newton step; for a minimum the same by a Newton step; for a root the largest residual.
    - `null`: structured as `y0`: the direction in which the residuals don't change, where the system is singular: what
      can't be determined. Zero otherwise.
    - `curvature`: of a minimum, the smallest eigenvalue of the Hessian in the unknowns that are free: positive at a
      minimum, negative at a saddle point. `nan` from methods other than `TrustRegionNewton`.
    - `stats`: `steps`, `evaluations` and `failures` (points at which something was not finite).
    - `history`: with `history=True` the loss after each evaluation, nan behind the last; otherwise `None`.
    """

    value: PyTree[Any]
    ok: Any
    result: RESULTS
    active: PyTree[Any]
    loss: Any
    optimality: Any
    null: PyTree[Any]
    curvature: Any
    stats: dict[str, Any]
    history: Float[Array, "*batch iteration"] | None


class Task(NamedTuple):
    """A problem as it enters the compiled part."""

    fn: Callable
    y0: PyTree
    args: PyTree
    lower: Array | None
    upper: Array | None


def prepare(name: str, fn, y0, args, bounds) -> Task:
    if not callable(fn):
        raise TypeError(f"`fn` must be a function `fn(y, args)`, but got {fn!r}.")
    y0, _ = as_state(y0)
    if any(jnp.iscomplexobj(x) for x in jax.tree.leaves(y0)):
        raise TypeError(
            f"`{name}` needs real unknowns: write real and imaginary parts as two arrays."
        )
    for leaf in jax.tree.leaves(y0):
        if jnp.finfo(leaf.dtype).bits < 32:
            raise TypeError(
                f"`{name}` needs single or double precision, but `y0` is {leaf.dtype}: write `y0.astype(float)`."
            )
    fn, args = float_leaves_as_arrays(fn), float_leaves_as_arrays(args)
    for leaf in jax.tree.leaves(args):
        if not (eqx.is_array_like(leaf) or isinstance(leaf, Hashable)):
            raise TypeError(
                f"`args` may hold numbers, arrays and what can be hashed, but holds {leaf!r}: make it a tuple, or let "
                "`fn` close over it."
            )
    if bounds is None:
        return Task(fn, y0, args, None, None)
    return Task(fn, y0, args, *flat_bounds(bounds, y0))


def finished(name: str, run: Callable, compiled: Callable, throw, *operands):
    """Runs the compiled part, and says what went wrong if it did and `throw` is true.

    `run` takes whether derivatives are wanted behind the operands.
    """
    if not isinstance(throw, bool | np.bool):
        raise TypeError(f"`throw` must be True or False, but got {throw!r}.")
    eager = is_eager()
    sol = (compiled if is_interpreted() else run)(*operands, not eager)
    if throw and eager and not sol.ok:
        raise RuntimeError(_complaint(name, sol))
    if throw and not eager:
        text = f"`{name}` did not converge; `throw=False` returns `sol.result`."
        sol = eqx.tree_at(lambda s: s.value, sol, error_unless(sol.value, sol.ok, text))
    return sol


def _complaint(name: str, sol: NonlinearSolution) -> str:
    text = (
        f"`{name}` failed after {int(sol.stats['evaluations'])} evaluations at loss "
        f"{float(sol.loss):.6g}: {RESULTS[sol.result]}"
    )
    null, _ = ravel_pytree(sol.null)
    null = np.asarray(null)
    if null.any():
        names = [
            f"{jax.tree_util.keystr(path)}{list(map(int, index)) if index else ''}"
            for path, leaf in jax.tree_util.tree_leaves_with_path(sol.value)
            for index in np.ndindex(np.shape(leaf))
        ]
        large = [i for i in np.argsort(-np.abs(null))[:4] if abs(null[i]) > 1e-3]
        parts = ", ".join(f"{null[i]:+.3g} in y{names[i]}" for i in large)
        text += f" Nothing changes along the direction {parts}."
    return text


def solution(task: Task, value, state: State, finish: Finish, curvature=None) -> NonlinearSolution:
    """The result, from flat vectors."""
    _, unravel = ravel_pytree(task.y0)
    _, unravel_int = ravel_pytree(jax.tree.map(lambda x: x.astype(int), task.y0))
    result = as_result(finish.code)
    active = box_of(task, state.here.x).active(state.here.x)
    return NonlinearSolution(
        value=unravel(value),
        ok=result == RESULTS.successful,
        result=result,
        active=unravel_int(active),
        loss=state.here.loss,
        optimality=finish.optimality,
        null=unravel(jax.lax.stop_gradient(finish.null)),
        curvature=jnp.full_like(state.here.loss, jnp.nan) if curvature is None else curvature,
        stats={
            "steps": state.steps,
            "evaluations": state.evaluations,
            "failures": state.failures,
        },
        history=state.history,
    )


def box_of(task: Task, x0: Array) -> Box:
    if task.lower is None:
        return Box(jnp.full_like(x0, -jnp.inf), jnp.full_like(x0, jnp.inf), False)
    assert task.upper is not None
    lower, upper = varying_like((task.lower, task.upper), x0)
    return Box(lower, upper, True)


def flat_function(task: Task) -> tuple[Array, Callable[[Array], Array]]:
    """The start, and the function of flat vectors whose values are flat too."""
    x0, unravel = ravel_pytree(task.y0)

    def fn(x):
        out = task.fn(unravel(x), task.args)
        for leaf in jax.tree.leaves(out):
            if not eqx.is_array_like(leaf):
                raise TypeError(
                    f"`fn` must return real numbers or a tree of arrays of them, but returned {leaf!r}."
                )
        out, _ = ravel_pytree(out)
        if jnp.iscomplexobj(out):
            raise TypeError("`fn` returned complex numbers: stack real and imaginary parts.")
        if not out.size:
            raise ValueError("`fn` returned no numbers.")
        return out.astype(x.dtype)

    if task.lower is not None and task.upper is not None:
        # Bounds known only at run time can't be complained about, but must not pass either.
        sound = jnp.all((task.lower <= x0) & (x0 <= task.upper))
        x0 = jnp.where(sound, x0, jnp.nan)
    # In a `shard_map` the start differs between devices as soon as anything else does.
    return varying_like(x0, eqx.filter(task, eqx.is_array), jax.eval_shape(fn, x0)), fn


def chosen(name: str, method, default, kind: type, y0, options: dict) -> AbstractNonlinearMethod:
    """The method, with the options that were given in place of its own, and tolerances as arrays, so that
    other ones need no compilation.

    **Raises:**

    `TypeError` for a method of another kind, `ValueError` for a tolerance out of range.
    """
    method = default if method is None else method
    if isinstance(method, type) and issubclass(method, AbstractNonlinearMethod):
        raise TypeError(f"`method` must be an instance: write `{method.__name__}()`.")
    if not isinstance(method, kind):
        names = ", ".join(sorted(k.__name__ for k in concrete(kind)))
        raise TypeError(f"`{name}` takes one of the methods {names}, but got {method!r}.")
    given = {k: v for k, v in options.items() if v is not None}
    for key, value in given.items():
        if not hasattr(method, key):
            raise ValueError(f"`{key}` has no meaning for `{type(method).__name__}`.")
        if key in ("ftol", "xtol"):
            check_tolerance(key, value)
    assert isinstance(method, AbstractNonlinearMethod)
    method = dataclasses.replace(method, **given)
    ftol, xtol = method.tolerances(jax.tree.leaves(y0)[0].dtype)
    return float_leaves_as_arrays(dataclasses.replace(method, ftol=ftol, xtol=xtol))


def concrete(kind: type) -> list[type]:
    """All methods of a kind that a user may choose."""
    out = []
    for sub in kind.__subclasses__():
        if not sub.__name__.startswith(("_", "Abstract")):
            out.append(sub)
        out.extend(concrete(sub))
    return out


def numbers(max_steps, history) -> tuple[int, bool]:
    """What decides about shapes: these can't be arrays."""
    if not isinstance(history, bool | np.bool):
        raise TypeError(f"`history` must be True or False, but got {history!r}.")
    return iterations(max_steps), bool(history)


def iterations(max_steps) -> int:
    return integer_at_least("max_steps", max_steps)

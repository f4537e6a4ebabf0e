"""What the front functions share: unknowns as one flat vector, bounds, results and complaints."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from ..._checks import error_unless, integer_at_least
from ..._compat import is_eager, is_interpreted, is_traced, varying_like
from ..._dtypes import as_state, float_leaves_as_arrays
from ..._results import RESULTS
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
    fn, args = float_leaves_as_arrays(fn), float_leaves_as_arrays(args)
    if bounds is None:
        return Task(fn, y0, args, None, None)
    flat, _ = ravel_pytree(y0)
    if not (isinstance(bounds, tuple | list) and len(bounds) == 2):
        raise ValueError(f"`bounds` must be a pair `(lower, upper)`, but got {bounds!r}.")
    lower, upper = (_flat_bound(b, y0, flat) for b in bounds)
    _check_bounds(flat, lower, upper)
    return Task(fn, y0, args, lower, upper)


def finished(name: str, run: Callable, compiled: Callable, throw: bool, *operands):
    """Runs the compiled part, and says what went wrong if it did and `throw` is true.

    `run` takes whether derivatives are wanted behind the operands.
    """
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
        out, _ = ravel_pytree(task.fn(unravel(x), task.args))
        if jnp.iscomplexobj(out):
            raise TypeError("`fn` returned complex numbers: stack real and imaginary parts.")
        if not out.size:
            raise ValueError("`fn` returned no numbers.")
        return out.astype(x.dtype)

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


def iterations(max_steps) -> int:
    return integer_at_least("max_steps", max_steps)


def _flat_bound(bound, y0, flat):
    """One bound for each unknown, from a number for all or a tree shaped like `y0`."""
    if jax.tree.structure(bound) == jax.tree.structure(y0):
        parts = jax.tree.map(
            lambda b, y: jnp.broadcast_to(jnp.asarray(b, y.dtype), y.shape), bound, y0
        )
        return ravel_pytree(parts)[0]
    if jax.tree_util.all_leaves([bound]) and jnp.ndim(bound) == 0:
        return jnp.full_like(flat, bound)
    raise ValueError(
        f"`bounds` must be numbers or structured as `y0`, {jax.tree.structure(y0)}, "
        f"but got {jax.tree.structure(bound)}."
    )


def _check_bounds(x, lower, upper):
    if any(is_traced(v) for v in (x, lower, upper)):
        return
    x, lower, upper = np.asarray(x), np.asarray(lower), np.asarray(upper)
    for i in np.flatnonzero(~(lower <= upper)):
        raise ValueError(
            f"The bounds of unknown {i} are {lower[i]:g} .. {upper[i]:g}: swapped or nan."
        )
    for i in np.flatnonzero(~((x >= lower) & (x <= upper)) & np.isfinite(x)):
        raise ValueError(
            f"The start of unknown {i} is {x[i]:g}, outside its bounds {lower[i]:g} .. {upper[i]:g}."
        )

"""The front function `least_squares`."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from .._checks import integer_at_least
from .._compat import is_eager, is_interpreted, is_traced
from .._dtypes import as_state, float_leaves_as_arrays
from .._results import RESULTS
from ._levenberg_marquardt import default_options, Local, minimise_in_box


class LeastSquaresSolution(eqx.Module):
    """The result of [`least_squares`][sciml.solvers.least_squares].

    **Attributes:**

    - `value`: the best point found, structured as `y0`.
    - `ok`, `result`: whether it converged; `RESULTS[sol.result]` says why not.
    - `active`: structured as `y0`: -1 at the lower bound, 1 at the upper, 0 free.
    - `loss`: half the sum of squared residuals. `optimality`: by how much of it another
      undamped Gauss-Newton step promises to lower it.
    - `stats`: `steps`, `evaluations` and `failures` (trial points that were non-finite).
    - `history`: the loss after each iteration; nan behind the last.
    """

    value: PyTree[Any]
    ok: Any
    result: RESULTS
    active: PyTree[Any]
    loss: Any
    optimality: Any
    stats: dict[str, Any]
    history: Float[Array, " iteration"]


def least_squares(
    fn: Callable[[PyTree, PyTree], PyTree],
    y0: PyTree[Any],
    args: PyTree[Any] = None,
    *,
    bounds: tuple[PyTree, PyTree] | None = None,
    ftol: float | None = None,
    xtol: float | None = None,
    max_steps: int = 500,
    throw: bool = True,
) -> LeastSquaresSolution:
    """Minimises half the sum of squares of `fn(y, args)` within bounds.

    Trust-region Levenberg-Marquardt with an exact Jacobian by forward mode, columns scaled so
    that the units of the unknowns don't matter. Suits up to a few hundred unknowns and residuals
    that may be non-finite away from the solution. The solution itself has derivatives in every mode,
    by `args`, bounds and closures (implicit differentiation). It finds a local minimum: start it from
    several points if there are many.

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
    - `args`: passed on to `fn`.
    - `bounds`: `(lower, upper)`, each structured as `y0` or one number for all. The start must
      lie inside; no evaluation leaves them.
    - `ftol`, `xtol`: relative reduction of the loss, and relative length of a step, at which
      the iteration ends. By default eps^(7/8) and eps^(5/8).
    - `max_steps`: iterations.
    - `throw`: raise `RuntimeError` if it does not converge.

    **Returns:**

    A [`LeastSquaresSolution`][sciml.solvers.LeastSquaresSolution].

    **Raises:**

    `ValueError`, `TypeError` for input that can't be meant; `RuntimeError` without convergence
    if `throw` is true.
    """
    y0, _ = as_state(y0)
    if any(jnp.iscomplexobj(x) for x in jax.tree.leaves(y0)):
        raise TypeError("`least_squares` needs real unknowns: split them into real and imaginary.")
    fn, args = float_leaves_as_arrays(fn), float_leaves_as_arrays(args)
    flat, _ = jax.flatten_util.ravel_pytree(y0)
    if bounds is not None and not (isinstance(bounds, tuple | list) and len(bounds) == 2):
        raise ValueError(f"`bounds` must be a pair `(lower, upper)`, but got {bounds!r}.")
    lower, upper = (_flat_bound(b, y0, flat) for b in (bounds or (-np.inf, np.inf)))
    _check_bounds(flat, lower, upper)
    options = default_options(flat.dtype, ftol, xtol, integer_at_least("max_steps", max_steps))
    eager = is_eager()
    run = _compiled if is_interpreted() else _least_squares
    sol = run(fn, y0, args, lower, upper, options, not eager)
    if throw and eager and not sol.ok:
        raise RuntimeError(
            f"`least_squares` failed after {int(sol.stats['steps'])} steps at loss "
            f"{float(sol.loss):.6g}: {RESULTS[sol.result]}"
        )
    if throw and not eager:
        text = "`least_squares` did not converge; `throw=False` returns `sol.result`."
        sol = eqx.tree_at(lambda s: s.value, sol, eqx.error_if(sol.value, ~sol.ok, text))
    return sol


def _least_squares(fn, y0, args, lower, upper, options, derivatives: bool) -> LeastSquaresSolution:
    x0, unravel = jax.flatten_util.ravel_pytree(y0)

    def residuals(x):
        r, _ = jax.flatten_util.ravel_pytree(fn(unravel(x), args))
        if jnp.iscomplexobj(r):
            raise TypeError("`fn` returned complex residuals; stack real and imaginary parts.")
        r = r.astype(x.dtype)
        return r, r

    def evaluate(x):
        jacobian, r = jax.jacfwd(residuals, has_aux=True)(x)
        loss = jnp.sum(r**2) / 2
        return Local(loss, jacobian.T @ r, jacobian.T @ jacobian, loss)

    def conditions(x):
        """Zero at the solution: the gradient, or the distance from a bound that is active."""
        jacobian, r = jax.jacfwd(residuals, has_aux=True)(x)
        at_low, at_high = x <= lower, x >= upper
        return jnp.where(at_low, x - lower, jnp.where(at_high, x - upper, jacobian.T @ r))

    def optimise(_, start):
        end = minimise_in_box(evaluate, start, lower, upper, options)
        return end.x, end

    def solve_tangent(linear, b):
        return jnp.linalg.solve(jax.jacfwd(linear)(b), b)

    if derivatives:
        # The implicit function theorem: how the solution moves with all that goes in.
        x, end = jax.lax.custom_root(conditions, x0, optimise, solve_tangent, has_aux=True)
    else:
        x, end = optimise(None, x0)
    _, unravel_int = jax.flatten_util.ravel_pytree(jax.tree.map(lambda x: x.astype(int), y0))
    stats = {"steps": end.steps, "evaluations": end.steps + 1, "failures": end.failures}
    return LeastSquaresSolution(
        value=unravel(x),
        ok=end.result == RESULTS.successful,
        result=end.result,
        active=unravel_int(end.active.astype(jnp.result_type(int))),
        loss=end.local.loss,
        optimality=end.optimality,
        stats=stats,
        history=end.history,
    )


_compiled = eqx.filter_jit(_least_squares)


def _flat_bound(bound, y0, flat):
    """One bound for each unknown, from a number for all or a tree shaped like `y0`."""
    if jax.tree.structure(bound) == jax.tree.structure(y0):
        parts = jax.tree.map(
            lambda b, y: jnp.broadcast_to(jnp.asarray(b, y.dtype), y.shape), bound, y0
        )
        return jax.flatten_util.ravel_pytree(parts)[0]
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

"""Periodic steady states: what repeated doses or a periodic force settle to."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike, PyTree

from .._checks import error_unless
from .._compat import is_eager, is_interpreted, is_traced
from .._custom_types import Numbers, VectorField
from .._dtypes import as_state, float_leaves_as_arrays, tolerances
from .._jit import flat_jit
from .._results import RESULTS
from ._checks import check_method
from ._core import solve_core
from ._doses import Doses
from ._field import ravel
from ._happen import poisoned
from ._method import AbstractMethod
from ._norms import ratio, rms
from ._steady_state import SteadyState
from ._stops import as_stops


_ITERATIONS = 30


def steady_cycle(
    fn: VectorField,
    y0: PyTree[Any],
    period: ArrayLike,
    args: PyTree[Any] = None,
    *,
    t0: ArrayLike = 0.0,
    doses: Doses | tuple[Doses, ...] | None = None,
    discontinuities: Numbers | None = None,
    method: AbstractMethod | None = None,
    rtol: ArrayLike | None = None,
    atol: ArrayLike | None = None,
    max_steps: int = 16384,
    throw: bool = True,
) -> SteadyState:
    """Finds the state that comes back after each `period`, from the guess `y0`.

    With `doses` inside one period it is the state right before the first dose once the regimen has been
    repeated for long (the trough): start a [`solve`][sciml.solvers.solve] from it for dosing at steady state.
    By Newton's method on the map of one period; where that does not help, by going through one.
    Derivatives are those of the periodic state, in every mode.

    ```python
    import jax.numpy as jnp
    from sciml import solvers

    daily = solvers.Doses([0.0], 100.0)
    trough = solvers.steady_cycle(lambda t, a, k: -k * a, jnp.zeros(1), 24.0, 0.2, doses=daily)
    assert jnp.allclose(trough.value, 100 / jnp.expm1(0.2 * 24), rtol=1e-3)
    ```

    **Arguments:**

    - `fn`, `y0`, `args`, `doses`, `discontinuities`, `method`, `max_steps`: as for `solve`; `y0` is a guess.
    - `period`, `t0`: one period goes from `t0` to `t0 + period`. All doses lie within it; one at its
      end belongs to the beginning.
    - `rtol`, `atol`: of the state, and of the solves; by default 1e-6 and 1e-9 in double, 1e-5 and 1e-7 in
      single precision.
    - `throw`: raise `RuntimeError` if there is none.

    **Returns:**

    A [`SteadyState`][sciml.solvers.SteadyState]; its `stats` hold `cycles`, how many periods were solved.

    **Raises:**

    `ValueError`, `TypeError` for input that can't be meant; `RuntimeError` if no periodic state is found
    and `throw` is true.
    """
    y0, dtype = as_state(y0)
    fn, args = float_leaves_as_arrays(fn), float_leaves_as_arrays(args)
    rtol, atol = tolerances(rtol, atol, dtype, default=(1e-6, 1e-9))
    chosen, _, max_steps = check_method(method, None, max_steps)
    t0 = jnp.asarray(t0, jnp.result_type(float))
    ts = jnp.stack([t0, t0 + jnp.asarray(period, t0.dtype)])
    stops = as_stops((), doses, discontinuities, "before", 1, ts)
    for table in stops.doses:
        _check_inside(table, ts)
    eager = is_eager()
    run = _compiled if is_interpreted() else _steady_cycle
    sol = run(fn, y0, ts, args, chosen, rtol, atol, jnp.asarray(max_steps), stops)
    if throw and eager and not sol.ok:
        raise RuntimeError(
            f"`steady_cycle` failed after {int(sol.stats['cycles'])} periods: {RESULTS[sol.result]}"
        )
    if throw and not eager:
        text = "`steady_cycle` found no periodic state; `throw=False` returns `sol.result`."
        sol = eqx.tree_at(lambda s: s.value, sol, error_unless(sol.value, sol.ok, text))
    return sol


def _check_inside(table: Doses, ts):
    """Doses of a cycle must be given within it, or they would be lost."""
    if any(is_traced(x) for x in jax.tree.leaves((table, ts))):
        return
    start, end = np.asarray(ts)
    times = np.asarray(table.times, start.dtype)
    ends = times if table.duration is None else times + np.asarray(table.duration)
    for k in np.flatnonzero((times < start) | (times >= end) | (ends > end)):
        raise ValueError(
            f"The dose at t = {times[k]:g} is not given within one period, from {start:g} to {end:g}. Move it into "
            "the period, and divide an infusion that goes on into the next one."
        )


def _steady_cycle(fn, y0, ts, args, method, rtol, atol, max_steps, stops) -> SteadyState:
    flat, unravel = ravel(y0, jax.tree.leaves(y0)[0].real.dtype)
    frozen = jax.lax.stop_gradient

    def after_one(operands, y):
        (fn, args, stops), ts = operands
        options = (method, rtol, atol, None, max_steps)
        sol = solve_core(fn, unravel(y), ts, args, *options, stops=stops)
        return ravel(jax.tree.map(lambda x: x[-1], sol.ys), y.dtype)[0]

    operands = ((fn, args, stops), ts)
    arrays, static = eqx.partition(operands, eqx.is_array)
    plain = eqx.combine(frozen(arrays), static)
    size = lambda x, y: rms(ratio(x, atol + rtol * jnp.abs(y)))

    def one(carry):
        y, _, k = carry
        end = after_one(plain, y)
        slope = jax.jacfwd(lambda y: after_one(plain, y))(y)
        root = y + jnp.linalg.solve(slope - jnp.eye(y.shape[0], dtype=y.dtype), y - end)
        # A root whose cycle changes less than that of the state is progress.
        better = size(after_one(plain, root) - root, root) < size(end - y, y)
        following = jnp.where(better, root, end)
        return following, size(following - y, following), k + 1

    start = frozen(flat)
    inf = jnp.full_like(start[0], jnp.inf)
    going = lambda carry: (carry[1] > 1) & (carry[2] < _ITERATIONS)
    root, last, count = jax.lax.while_loop(going, one, (start, inf, jnp.zeros((), int)))
    found = last <= 1
    result = RESULTS.where(found, RESULTS.successful, RESULTS.no_cycle)
    value = jax.lax.custom_root(
        lambda y: after_one(operands, y) - y,
        root,
        lambda _, root: root,
        lambda linear, b: jnp.linalg.solve(jax.jacfwd(linear)(b), b),
    )
    return SteadyState(unravel(poisoned(value, found)), found, result, {"cycles": 2 * count})


_compiled = flat_jit(_steady_cycle)

"""Steady states: where a system comes to rest."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, PyTree

from .._checks import error_unless
from .._compat import is_eager, is_interpreted, varying_like
from .._custom_types import VectorField
from .._dtypes import as_state, float_leaves_as_arrays, tolerances
from .._jit import flat_jit
from .._results import RESULTS
from ._checks import check_field
from ._field import FlatField, flatten_field
from ._happen import poisoned
from ._input import inputs_of
from ._loop import integrate, RUNNING, Tolerances
from ._norms import ratio, rms
from ._rodas5p import Rodas5P


_CHUNKS = 16
_GROWTH = 8.0  # each lets eight times as much time pass as all before
_ITERATIONS = 20


class SteadyState(eqx.Module):
    """Where a system comes to rest.

    **Attributes:**

    - `value`: the state there, structured as `y0`; after a failure the last one reached.
    - `ok`: whether it was found. `result` says why not: `RESULTS[sol.result]` is a text.
    - `stats`: `steps` of the integration that confirmed it, and the `time` it took.
    """

    value: PyTree[Any]
    ok: Bool[Array, " *batch"]
    result: RESULTS
    stats: dict[str, Any]


def steady_state(
    fn: VectorField,
    y0: PyTree[Any],
    args: PyTree[Any] = None,
    *,
    t: ArrayLike = 0.0,
    max_time: ArrayLike = 1e6,
    rtol: ArrayLike | None = None,
    atol: ArrayLike | None = None,
    max_steps: int = 16384,
    throw: bool = True,
) -> SteadyState:
    """Finds the state at which `dy/dt = fn(t, y, args)` comes to rest, from `y0`.

    By Newton's method, which alone would also find states that are unstable, or not reached from `y0`. So the
    equations are integrated as well, over times that grow by a factor: a root is taken once they have
    brought the state to half the distance from it. What never settles is a failure.

    Quantities that are conserved (a total of several components) keep their initial value, if they are
    linear. The state has derivatives in every mode by `args`, by what `fn` holds, and by `y0` as far as it
    sets what is conserved (implicit function theorem).

    ```python
    import jax.numpy as jnp
    from sciml import solvers

    sol = solvers.steady_state(lambda t, y, k: k[0] - k[1] * y, 0.0, jnp.array([2.0, 0.5]))
    assert jnp.allclose(sol.value, 4.0)
    ```

    **Arguments:**

    - `fn`, `y0`, `args`: as for [`solve`][sciml.solvers.solve]; `fn` is evaluated at the time `t` only.
    - `max_time`: after which it must have settled.
    - `rtol`, `atol`: of the state; by default 1e-6 and 1e-9 in double, 1e-5 and 1e-7 in single precision.
    - `max_steps`: of the integration, for each of the 16 times.
    - `throw`: raise `RuntimeError` if it does not settle.

    **Returns:**

    A [`SteadyState`][sciml.solvers.SteadyState].

    **Raises:**

    `ValueError`, `TypeError` for input that can't be meant; `RuntimeError` if it does not settle and `throw`
    is true.
    """
    y0, dtype = as_state(y0)
    fn, args = float_leaves_as_arrays(fn), float_leaves_as_arrays(args)
    rtol, atol = tolerances(rtol, atol, dtype, default=(1e-6, 1e-9))
    times = jnp.asarray(t, dtype), jnp.asarray(max_time, dtype)
    if inputs_of((fn, args)):
        raise ValueError(
            "`steady_state` takes no `Input`: `fn` is evaluated at the time `t` only. Pass the value of the input, "
            "`u(t)`, as a number."
        )
    eager = is_eager()
    run = _compiled if is_interpreted() else _steady_state
    sol = run(fn, y0, args, times, rtol, atol, jnp.asarray(max_steps))
    if throw and eager and not sol.ok:
        raise RuntimeError(
            f"`steady_state` failed: {RESULTS[sol.result]} It came to t = {float(sol.stats['time']):.6g} of "
            f"max_time = {float(times[1]):.6g}, in {int(sol.stats['steps'])} steps."
        )
    if throw and not eager:
        text = "`steady_state` found no state of rest; `throw=False` returns `sol.result`."
        sol = eqx.tree_at(lambda s: s.value, sol, error_unless(sol.value, sol.ok, text))
    return sol


def _steady_state(fn, y0, args, times, rtol, atol, max_steps) -> SteadyState:
    t, max_time = times
    check_field(fn, t, y0, args)
    still = lambda _, y, args: fn(t, y, args)
    field, flat, unravel = flatten_field(still, y0, args, t, jnp.ones_like(t))
    rate = lambda field, y: field(jnp.zeros_like(t), y)
    frozen = jax.lax.stop_gradient
    arrays, static = eqx.partition(field, eqx.is_array)
    plain: FlatField = eqx.combine(frozen(arrays), static)
    start = frozen(flat)
    size = lambda x, y: rms(ratio(x, atol + rtol * jnp.abs(y)))

    def laws(y):
        """The projection on what is conserved: the left null space of the Jacobian."""
        u, s, _ = jnp.linalg.svd(jax.jacfwd(lambda y: rate(plain, y))(y))
        limit = 10 * y.shape[0] * jnp.finfo(y.dtype).eps * s[0]
        kept = jnp.where(s > limit, jnp.zeros_like(s), jnp.ones_like(s))
        return (u * kept[None]) @ u.T

    def conditions(field, y, conserved, y0):
        return rate(field, y) + conserved @ (y - y0)

    def newton(y):
        """A root near `y`, and what is conserved there."""

        def one(carry):
            y, _, k = carry
            conserved = laws(y)
            f = lambda y: conditions(plain, y, conserved, start)
            step = jnp.linalg.solve(jax.jacfwd(f)(y), -f(y))
            return y + step, size(step, y + step), k + 1

        # Two orders below the tolerances, so that the last step is small by quadratic convergence.
        going = lambda carry: (carry[1] > 1e-2) & (carry[2] < _ITERATIONS)
        inf = varying_like(jnp.full((), jnp.inf, y.dtype), y)
        root, last, _ = jax.lax.while_loop(going, one, (y, inf, jnp.zeros((), int)))
        return jnp.where(last <= 1e-2, root, jnp.nan)

    def follow(carry):
        k, y, root, time, steps, _, fine = carry
        later = max_time * _GROWTH ** (k + 1 - _CHUNKS).astype(time.dtype)
        stretch = eqx.tree_at(lambda f: f.span, plain, later - time)
        tol = Tolerances(jnp.asarray(rtol), jnp.asarray(atol), max_steps)
        method = Rodas5P()
        end = integrate(method, stretch, y, varying_like(jnp.ones((1,), y.dtype), y), tol)[2]
        new = newton(end.y)
        before, after = size(y - root, root), size(end.y - new, new)
        near = (after <= 1) | ((after <= before / 2) & (size(new - root, new) <= 1))
        fine = end.status == RUNNING
        return k + 1, end.y, new, later, steps + end.accepted, near & fine, fine

    none = varying_like(jnp.zeros((), jnp.result_type(int)), start)
    # Rest at the very start is not motion that has died away, but it is rest.
    root = newton(start)
    at_rest = size(start - root, root) <= 1
    zero = varying_like(jnp.zeros_like(t), start)
    carry = (none, start, root, zero, none, at_rest, jnp.all(jnp.isfinite(start)))
    going = lambda c: ~c[5] & c[6] & (c[0] < _CHUNKS)
    _, y, root, time, steps, found, _ = jax.lax.while_loop(going, follow, carry)
    root = jnp.where(found, root, y)
    conserved = laws(root)
    value = jax.lax.custom_root(
        lambda y: conditions(field, y, conserved, flat),
        root,
        lambda _, root: root,
        lambda linear, b: jnp.linalg.solve(jax.jacfwd(linear)(b), b),
    )
    result = RESULTS.where(found, RESULTS.successful, RESULTS.not_settled)
    stats = {"steps": steps, "time": time}
    return SteadyState(unravel(poisoned(value, found)), found, result, stats)


_compiled = flat_jit(_steady_state)

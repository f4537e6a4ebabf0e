"""The front function `solve`."""

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike, PyTree

from .._compat import is_eager, is_traced
from .._custom_types import VectorField
from .._dtypes import as_state, float_leaves_as_arrays, tolerances
from .._results import RESULTS
from ._adaptive import solve_adaptive, stiffness_ratio
from ._fixed import solve_fixed
from ._methods import AbstractExplicitMethod, Tsit5
from ._root_finder import repair
from ._solution import Solution


# Beyond this multiple of 1/(spectral radius) an explicit method of order 5 is unstable at 3.3;
# a step size near it was chosen by stability.
_STIFF = 1.5


def solve(
    fn: VectorField,
    y0: PyTree[Any],
    ts: ArrayLike,
    args: PyTree[Any] = None,
    *,
    method: AbstractExplicitMethod | diffrax.AbstractSolver | None = None,
    rtol: ArrayLike | None = None,
    atol: ArrayLike | None = None,
    steps: int | None = None,
    max_steps: int = 16384,
    dense: bool = False,
    events: tuple = (),
    doses: Any = None,
    side: str = "before",
    adjoint: diffrax.AbstractAdjoint | None = None,
    throw: bool = True,
) -> Solution:
    """Solves the initial value problem `dy/dt = fn(t, y, args)`, `y(ts[0]) = y0`.

    Every JAX transformation may surround it. Called with concrete values it compiles once per
    `fn`, shapes and options: a new parameter value, tolerance or an equal module compiles
    nothing new, but a fresh `lambda` is a new function.

    ```python
    import jax.numpy as jnp
    from sciml import solvers


    def decay(t, y, k):
        return -k * y


    sol = solvers.solve(decay, jnp.array([1.0]), jnp.linspace(0.0, 2.0, 5), 0.7)
    assert sol.ok and sol.ys.shape == (5, 1)
    ```

    **Arguments:**

    - `fn`: the vector field `fn(t, y, args) -> dy`; `dy` has the structure and shapes of `y`.
      A function or a callable `equinox.Module`.
    - `y0`: initial state: a number, an array, or any pytree of them. Integers and Python
      numbers become the default floating dtype; arrays keep theirs.
    - `ts`: save times of shape `(time,)`, increasing or decreasing, the first one the start.
      Duplicates are allowed. They take the precision of the state.
    - `args`: passed on to `fn`; any pytree.
    - `method`: `None` takes `Tsit5` and, when called with concrete values, changes to the stiff
      `diffrax.Kvaerno5` if `Tsit5` ran out of steps because of stiffness (inside `jit` and
      other transformations it doesn't change: pass a stiff method there). Or one of
      `solvers.Tsit5()`, `solvers.RK4()`, or any Diffrax solver.
    - `rtol`, `atol`: tolerances of the adaptive methods; by default 1e-6 and 1e-9 in double,
      1e-5 and 1e-7 in single precision.
    - `steps`: take this many equal steps between neighbouring save times instead, without
      error control, by `lax.scan`. With `method=None` it is `Tsit5`'s formula.
    - `max_steps`: how many steps may be tried in the whole solve.
    - `dense`: keep what `sol.at(t)` needs (memory grows with `max_steps`).
    - `events`, `doses`, `side`: reserved; anything but the defaults is refused so far.
    - `adjoint`: an expert's choice of a Diffrax adjoint. By default every mode of
      differentiation works.
    - `throw`: raise `RuntimeError` if the solve fails. Otherwise see `Solution.ok`.

    **Returns:**

    A [`Solution`][sciml.solvers.Solution].

    **Raises:**

    `ValueError`, `TypeError` for input that can't be meant; `RuntimeError` if the solve fails
    and `throw` is true, with the time reached and advice.
    """
    _refuse_unsupported(events, doses, side)
    y0, dtype = as_state(y0)
    ts = check_times(ts)
    fn, args = float_leaves_as_arrays(fn), float_leaves_as_arrays(args)
    rtol, atol = tolerances(rtol, atol, dtype, default=(1e-6, 1e-9))
    chosen, steps, max_steps = check_method(method, steps, max_steps)
    eager = is_eager()
    if adjoint is None:
        # Forward mode's plain loop is the cheapest, and enough when nobody differentiates.
        adjoint = diffrax.ForwardMode() if eager else diffrax.DirectAdjoint()

    def run(chosen):
        core = _compiled if eager else solve_core
        return core(fn, y0, ts, args, chosen, rtol, atol, steps, max_steps, dense, adjoint)

    sol = run(chosen)
    if not eager:
        if throw:
            ys = eqx.error_if(sol.ys, ~sol.ok, _STATIC_ADVICE)
            sol = eqx.tree_at(lambda s: s.ys, sol, ys)
        return sol
    ran_out = steps is None and bool(sol.result == RESULTS.out_of_steps)
    if ran_out and _explicit(chosen) and _is_stiff(fn, args, sol):
        sol = eqx.tree_at(lambda s: s.result, sol, RESULTS.looks_stiff)
        if method is None:
            chosen = diffrax.Kvaerno5()
            sol = run(chosen)
    if throw and not sol.ok:
        raise RuntimeError(_failure_text(sol, chosen, rtol, atol, max_steps))
    return sol


_STATIC_ADVICE = (
    "`sciml.solvers.solve` failed: it ran out of `max_steps`, the step size collapsed, or the "
    "state became non-finite. Call it outside of `jit`, or with `throw=False` and look at "
    "`RESULTS[sol.result]`, to learn which. For stiff problems pass a stiff method such as "
    "`method=diffrax.Kvaerno5()`."
)


def solve_core(fn, y0, ts, args, method, rtol, atol, steps, max_steps, dense, adjoint) -> Solution:
    """`solve` after its checks at the door, never raising for numerical reasons."""
    dtype = jax.tree.leaves(y0)[0].real.dtype
    t0 = ts[0]
    # Differences first, in the precision in which the times were given.
    elapsed = ts - t0
    sign = jnp.where(elapsed[-1] < 0, -1, 1).astype(dtype)
    elapsed = sign * elapsed.astype(dtype)
    t0 = t0.astype(dtype)
    _check_field(fn, t0, y0, args)

    def field(s, y):
        dy = fn(t0 + sign * s, y, args)
        signed = lambda d, x: sign.astype(x.dtype) * jnp.asarray(d).astype(x.dtype)
        return jax.tree.map(signed, dy, y)

    dense_info, end = None, None
    if steps is not None and isinstance(method, AbstractExplicitMethod):
        ys, valid, result, stats = solve_fixed(method, field, y0, elapsed, steps)
    else:
        out = solve_adaptive(
            diffrax_solver(method), field, y0, elapsed, rtol, atol, max_steps, adjoint, dense
        )
        ys, valid, result, stats, end, interpolation = out
        if dense:
            dense_info = (interpolation, t0, sign, stats["reached"])
    stats = stats | {
        "reached": t0 + sign * stats["reached"],
        "last_step": sign * stats["last_step"],
    }
    ok = result == RESULTS.successful
    return Solution(
        ts=ts, ys=ys, valid=valid, ok=ok, result=result, stats=stats, event=None,
        _end=end, _dense=dense_info,
    )  # fmt: skip


_compiled = eqx.filter_jit(solve_core)


def diffrax_solver(method) -> diffrax.AbstractSolver:
    if isinstance(method, AbstractExplicitMethod):
        assert method.diffrax_solver is not None
        return method.diffrax_solver()
    return repair(method)


def check_times(ts: ArrayLike) -> jax.Array:
    """Save times as an array; what can be seen of them is checked."""
    times = jnp.asarray(ts)
    if times.ndim != 1:
        raise ValueError(
            f"`ts` must be one-dimensional, but has shape {times.shape}. "
            "It holds the save times; the first one is the start."
        )
    if times.shape[0] < 2:
        raise ValueError("`ts` needs at least two times: the start and one more.")
    if not jnp.issubdtype(times.dtype, jnp.floating):
        times = times.astype(jnp.result_type(float))
    if not is_traced(times):
        values = np.asarray(times)
        bad = np.flatnonzero(~np.isfinite(values))
        if bad.size:
            raise ValueError(f"`ts` must be finite, but ts[{bad[0]}] is {values[bad[0]]}.")
        forward = values[-1] >= values[0]
        wrong = np.flatnonzero(np.diff(values) < 0 if forward else np.diff(values) > 0)
        if wrong.size:
            i = int(wrong[0])
            raise ValueError(
                "`ts` must be increasing or decreasing throughout, but "
                f"ts[{i}] = {values[i]:g} is followed by ts[{i + 1}] = {values[i + 1]:g}."
            )
    return times


def check_method(method, steps, max_steps):
    """The method that will run, and `steps` and `max_steps` as plain integers."""
    for name, value in (("steps", steps), ("max_steps", max_steps)):
        if value is None and name == "steps":
            continue
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
            raise ValueError(f"`{name}` must be a positive integer, but got {value!r}.")
    if method is None:
        method = Tsit5()
    if isinstance(method, type):
        raise TypeError(f"`method` must be an instance: pass `{method.__name__}()`.")
    if not isinstance(method, AbstractExplicitMethod | diffrax.AbstractSolver):
        raise TypeError(
            f"`method` must be `solvers.Tsit5()`, `solvers.RK4()`, a Diffrax solver such as "
            f"`diffrax.Kvaerno5()`, or None, but got {method!r}."
        )
    if steps is None and getattr(method, "diffrax_solver", method) is None:
        raise ValueError(
            f"`{type(method).__name__}` has no error estimate: pass `steps=`, the number of equal "
            "steps between save times, or take `solvers.Tsit5()`."
        )
    if steps is not None and isinstance(method, diffrax.AbstractSolver):
        raise ValueError(
            "`steps=` runs our own methods (`solvers.RK4()`, `solvers.Tsit5()`). For fixed steps "
            "with a Diffrax solver call `diffrax.diffeqsolve`."
        )
    return method, None if steps is None else int(steps), int(max_steps)


def _refuse_unsupported(events, doses, side):
    if len(events) or doses is not None or side != "before":
        raise NotImplementedError(
            "`events=`, `doses=` and `side=` are not supported yet. Until then split the solve "
            "at known times, or use `diffrax.Event` with `diffrax.diffeqsolve`."
        )


def _check_field(fn, t0, y0, args):
    """The vector field must give back what the state is made of."""
    got = jax.eval_shape(fn, t0, y0, args)
    want_tree, got_tree = jax.tree.structure(y0), jax.tree.structure(got)
    if want_tree != got_tree:
        raise ValueError(
            f"The vector field must return the structure of `y0`, {want_tree}, "
            f"but returned {got_tree}."
        )
    for (path, want), have in zip(
        jax.tree_util.tree_leaves_with_path(y0), jax.tree.leaves(got), strict=True
    ):
        where = f"`y0{jax.tree_util.keystr(path)}`"
        if want.shape != have.shape:
            raise ValueError(
                f"The vector field returned shape {have.shape} for {where} of shape {want.shape}. "
                "It must return one derivative for each number of the state."
            )
        if jnp.iscomplexobj(have) and not jnp.iscomplexobj(want):
            raise ValueError(
                f"The vector field returned complex numbers for the real {where}. "
                "Start from a complex state, e.g. `y0 = y0 + 0j`."
            )


def _explicit(method) -> bool:
    return not isinstance(method, diffrax.AbstractImplicitSolver)


def _is_stiff(fn, args, sol) -> bool:
    """Whether the last step size sat at the limit of stability."""
    t, h = sol.stats["reached"], sol.stats["last_step"]
    return bool(stiffness_ratio(fn, args, t, sol._end, h) > _STIFF)


def _failure_text(sol: Solution, method, rtol, atol, max_steps) -> str:
    stats = sol.stats
    return (
        f"`solve` failed at t = {float(stats['reached']):.6g} of "
        f"{float(sol.ts[-1]):.6g}: {RESULTS[sol.result]}\n"
        f"Method {type(method).__name__}, rtol {np.max(rtol):.3g}, atol {np.max(atol):.3g}, "
        f"max_steps {max_steps}; {int(stats['accepted'])} steps accepted, "
        f"{int(stats['rejected'])} rejected, the last of size {float(stats['last_step']):.3g}. "
        "`throw=False` returns what was solved, with a mask."
    )

"""The front function `solve`."""

import warnings
from collections.abc import Callable
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike, PyTree

from .._compat import is_eager, is_interpreted, varies
from .._custom_types import Numbers, VectorField
from .._dtypes import as_state, float_leaves_as_arrays, HERE, tolerances
from .._jit import flat_jit
from .._results import RESULTS
from ._checks import check_method, check_times
from ._core import solve_core
from ._declared import declared
from ._doses import Doses
from ._event import Event
from ._method import AbstractMethod
from ._solution import Solution
from ._stiffness import looks_stiff
from ._stops import as_stops
from ._tangents import share_many


def solve(
    fn: VectorField,
    y0: PyTree[Any],
    ts: ArrayLike,
    args: PyTree[Any] = None,
    *,
    method: AbstractMethod | diffrax.AbstractSolver | None = None,
    rtol: ArrayLike | None = None,
    atol: ArrayLike | None = None,
    steps: int | None = None,
    max_steps: int = 16384,
    dense: bool = False,
    output: Callable[[Any, Any, Any], Any] | None = None,
    events: Event | tuple[Event, ...] = (),
    doses: Doses | tuple[Doses, ...] | None = None,
    discontinuities: Numbers | None = None,
    side: str = "before",
    max_events: int = 100,
    jac: Any = None,
    mass: Any = None,
    adjoint: diffrax.AbstractAdjoint | None = None,
    throw: bool = True,
) -> Solution:
    """Solves the initial value problem `dy/dt = fn(t, y, args)`, `y(ts[0]) = y0`.

    Every JAX transformation may surround it. Derivatives are those of the numerical solution, with
    the steps as they were. Where stability held an explicit method's steps down, at a stiff problem,
    they may be far off though the values are right: pass a stiff method.

    Called with concrete values it compiles once per `fn`, shapes and options: a new parameter value,
    tolerance or an equal module compiles nothing new, but a fresh `lambda` is a new function. As with
    `jax.jit`, what `fn` reads from around it must not change between calls: pass what changes as
    `args` or as a field of a module.

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
      Duplicates are allowed: pad the ragged times of a batch by repeating the last one, which
      costs no steps. They take the precision of the state.
    - `args`: passed on to `fn`; any pytree.
    - `method`: `None` takes [`AutoSwitch`][sciml.solvers.AutoSwitch]: `Tsit5`, and `Rodas5P` as long
      as the problem is stiff. Or one of ours, such as `solvers.Tsit5()`, `solvers.Rodas5P()` or
      `solvers.RK4()`, or any Diffrax solver.
    - `rtol`, `atol`: tolerances of the adaptive methods; by default 1e-6 and 1e-9 in double,
      1e-5 and 1e-7 in single precision.
    - `steps`: take this many equal steps between neighbouring save times instead, without
      error control, by `lax.scan`. With `method=None` it is `Tsit5`'s formula.
    - `max_steps`: how many steps may be tried in the whole solve.
    - `dense`: keep what `sol.at(t)` needs, for at most 4096 accepted steps of our own methods
      (in a batch, steps that any member takes): 128 segments of up to 32; a change of method begins a new one. With
      inputs, doses and events each piece between them has so many. `sol.steps()` needs it, too.
    - `output`: `output(t, y, args)`, any pytree of numbers, is saved in place of the state.
    - `events`: one [`Event`][sciml.solvers.Event] or a tuple of them. `sol.event` is the last that happened,
      `sol.events` are all; rows behind one that ends the solve are nan and not `valid`.
    - `doses`: a table, [`Doses`][sciml.solvers.Doses], or a tuple of them. (An input u(t) known at some times is an
      [`Input`][sciml.solvers.Input], in `args` or in `fn`.)
    - `discontinuities`: times at which `fn` jumps or is not smooth: steps end there, and `fn` is evaluated on
      either side, not at them.
    - `side`: which state a save time at a dose shows, the one `"before"` or `"after"` it. A dose at the very end
      is given, too: `"after"` shows it.
    - `max_events`: how many events may happen that do not end the solve.
    - `jac`: what is known of the Jacobian df/dy, for the stiff methods: a function `jac(t, y, args)` that
      returns it, or its structure, [`Banded`][sciml.solvers.Banded],
      [`BlockTridiagonal`][sciml.solvers.BlockTridiagonal], [`BlockDiagonal`][sciml.solvers.BlockDiagonal],
      [`Sparse`][sciml.solvers.Sparse] or [`Krylov`][sciml.solvers.Krylov], for large states. By default it
      is dense, by automatic differentiation. Rows and columns are the real numbers of the state, in the
      order of `jax.flatten_util.ravel_pytree` (of a complex leaf first all real, then all imaginary parts).
    - `mass`: a constant matrix M for `M y' = fn(t, y, args)`, of shape `(n, n)` or its diagonal, of
      shape `(n,)`; or a [`Mass`][sciml.solvers.Mass], made once. If it is singular, the equations
      without a derivative must determine the rest of the state (index 1). What they determine is moved
      to a consistent start first: `y0` is a guess for it.
    - `adjoint`: for Diffrax's solvers, an expert's choice of a Diffrax adjoint. By default, and
      with our own methods, every mode of differentiation works.
    - `throw`: raise `RuntimeError` if the solve fails. Otherwise see `Solution.ok`. Inside `jit` a
      program that uses only derivatives may drop the check; they are nan then.

    **Returns:**

    A [`Solution`][sciml.solvers.Solution].

    **Raises:**

    `ValueError`, `TypeError` for input that can't be meant; `RuntimeError` if the solve fails
    and `throw` is true, with the time reached and advice.
    """
    y0, dtype = as_state(y0)
    ts = check_times(ts)
    stops = as_stops(events, doses, discontinuities, side, max_events, ts)
    fn, args = float_leaves_as_arrays(fn), float_leaves_as_arrays(args)
    rtol, atol = tolerances(rtol, atol, dtype, default=(1e-6, 1e-9))
    chosen, steps, max_steps = check_method(method, steps, max_steps)
    chosen = declared(chosen, jac, mass)
    eager = is_eager()
    if adjoint is not None and isinstance(chosen, AbstractMethod):
        raise ValueError(
            "`adjoint=` is for Diffrax's solvers: our own methods serve every mode of "
            "differentiation as they are. Leave it out."
        )
    if dense and steps is not None:
        raise ValueError(
            "`dense=` needs adaptive steps. With `steps=` ask for more save times instead."
        )
    # As an array a new budget compiles nothing new; Diffrax's loops need a number.
    budget = np.asarray(max_steps) if isinstance(chosen, AbstractMethod) else max_steps
    # With concrete values nobody differentiates, and the plain loop is the cheapest.
    derivatives = "none" if eager else "any"

    core = _compiled if eager or _is_compiled_alone(fn, y0, args) else solve_core
    options = (rtol, atol, steps, budget, dense, derivatives, adjoint, stops, output)
    sol = core(fn, y0, ts, args, chosen, *options)
    if not eager:
        # Inside `shard_map` nothing can be raised; the rows of a failed solve are nan.
        if throw and not varies(sol.ok):
            ys = eqx.error_if(sol.ys, ~sol.ok, _STATIC_ADVICE)
            sol = eqx.tree_at(lambda s: s.ys, sol, ys)
        return sol
    if sol.ok:
        if "below_atol" in sol.stats and bool(sol.stats["below_atol"]):
            warnings.warn(
                f"The solution is smaller than atol = {np.max(np.asarray(atol)):.3g} throughout, so that its "
                "error was not controlled: pass an `atol=` far below the size of the state.",
                skip_file_prefixes=(HERE,),  # point to the line that called us
            )
        return sol
    ran_out = steps is None and bool(sol.result == RESULTS.out_of_steps)
    if ran_out and looks_stiff(chosen, fn, args, sol):
        sol = eqx.tree_at(lambda s: s.result, sol, RESULTS.looks_stiff)
    if throw and not sol.ok:
        raise RuntimeError(_failure_text(sol, chosen, rtol, atol, max_steps))
    return sol


def _is_compiled_alone(fn, y0, args) -> bool:
    """Whether a solve that is not eager is a program of its own: under an eager derivative each operation
    would be one. But a jit hides from our rules what the members of an eager batch share."""
    parameters = eqx.filter((fn, args), eqx.is_inexact_array)
    count = sum(jnp.size(x) for x in jax.tree.leaves(parameters))
    return is_interpreted() and not share_many(y0, parameters, count)


_STATIC_ADVICE = (
    "`sciml.solvers.solve` failed: it ran out of `max_steps`, the step size collapsed, or the "
    "state became non-finite. Call it outside of `jit`, or with `throw=False` and look at "
    "`RESULTS[sol.result]`, to learn which. For stiff problems pass a stiff method such as "
    "`method=solvers.Rodas5P()`."
)


_compiled = flat_jit(solve_core)


def _failure_text(sol: Solution, method, rtol, atol, max_steps) -> str:
    stats = sol.stats
    where = ""
    if bool(sol.result == RESULTS.out_of_steps):
        begin, end, reached = float(sol.ts[0]), float(sol.ts[-1]), float(stats["reached"])
        tried = int(stats["accepted"] + stats["rejected"])
        if reached != begin:
            rest = tried * (end - reached) / (reached - begin)
            where = f"At this pace the rest of the time takes about {rest:.2g} more steps. "
    if "inconsistency" in stats and bool(sol.result == RESULTS.inconsistent_start):
        left = np.asarray(stats["inconsistency"])
        k = int(np.argmax(np.abs(np.where(np.isfinite(left), left, np.inf))))
        mass = method.mass
        row = f"equation {mass.algebraic[k]}" if mass.diagonal is not None else f"combination {k}"
        where = f"The largest residual is {left[k]:.3g}, of {row}. "
    return (
        f"`solve` failed at t = {float(stats['reached']):.6g} of "
        f"{float(sol.ts[-1]):.6g}: {RESULTS[sol.result]} {where}\n"
        f"Method {type(method).__name__}, rtol {np.max(rtol):.3g}, atol {np.max(atol):.3g}, "
        f"max_steps {max_steps}; {int(stats['accepted'])} steps accepted, "
        f"{int(stats['rejected'])} rejected, the last of size {float(stats['last_step']):.3g}. "
        "`throw=False` returns what was solved, with a mask."
    )

"""Many members of one differential equation at once, also spread over devices."""

from collections.abc import Callable
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike, PyTree

from .._compat import is_eager, is_interpreted, is_traced
from .._custom_types import Numbers, VectorField
from .._dtypes import as_state, float_leaves_as_arrays, tolerances
from .._jit import flat_jit
from .._mesh import as_mesh
from .._results import RESULTS
from ._checks import check_method, check_times
from ._core import solve_core
from ._doses import Doses
from ._event import Event
from ._method import AbstractMethod
from ._solution import Solution
from ._stops import as_stops


def solve_ensemble(
    fn: VectorField,
    y0: PyTree[Any],
    ts: ArrayLike,
    args: PyTree[Any] = None,
    *,
    in_axes: tuple = (0, None, 0),
    mesh: jax.sharding.Mesh | int | str | None = None,
    method: AbstractMethod | diffrax.AbstractSolver | None = None,
    rtol: ArrayLike | None = None,
    atol: ArrayLike | None = None,
    steps: int | None = None,
    max_steps: int = 16384,
    output: Callable[[Any, Any, Any], Any] | None = None,
    events: Event | tuple[Event, ...] = (),
    doses: Doses | tuple[Doses, ...] | None = None,
    discontinuities: Numbers | None = None,
    side: str = "before",
    max_events: int = 100,
    throw: bool = True,
) -> Solution:
    """Solves one differential equation for many initial states, times or parameters.

    The steps and values of a member are those of its single solve. A member that fails is a
    value, `sol.ok[i]`, and leaves the others alone; but derivatives by what all members share are
    nan as soon as one fails. All members march in step until the last one
    is done: put easy and hard ones into different calls.

    ```python
    import jax.numpy as jnp
    from sciml import solvers

    rates = jnp.array([0.5, 1.0, 2.0])
    sol = solvers.solve_ensemble(
        lambda t, y, k: -k * y, jnp.ones((3, 1)), jnp.linspace(0.0, 1.0, 5), rates, steps=10
    )
    assert sol.ys.shape == (3, 5, 1) and bool(sol.ok.all())
    ```

    **Arguments:**

    - `fn`, `method`, `rtol`, `atol`, `steps`, `max_steps`, `output`: as in `solve`.
    - `events`, `doses`, `discontinuities`, `side`, `max_events`: as in `solve`, the same for all members. Where
      each has its own doses, take `jax.vmap` of `solve`. An `Input` in `args` may have a member axis.
    - `y0`, `ts`, `args`: as in `solve`, those named by `in_axes` with a member axis.
    - `in_axes`: the member axes of `(y0, ts, args)`, as in `jax.vmap`.
    - `mesh`: a `jax.sharding.Mesh`, how many devices, or `"all"`; the members are spread over
      them, each of which works on its own ones without talking to the others. For our own methods.
      A number of members that does not divide is padded inside.
    - `throw`: raise `RuntimeError` if any member fails.

    **Returns:**

    A [`Solution`][sciml.solvers.Solution] whose arrays have a leading member axis.
    """
    y0, dtype = as_state(y0)
    fn, args = float_leaves_as_arrays(fn), float_leaves_as_arrays(args)
    rtol, atol = tolerances(rtol, atol, dtype, default=(1e-6, 1e-9))
    chosen, steps, max_steps = check_method(method, steps, max_steps)
    mesh = as_mesh(mesh)
    if mesh is not None and not isinstance(chosen, AbstractMethod):
        raise ValueError(
            "`mesh=` needs one of our own methods, such as `solvers.Tsit5()` or "
            f"`solvers.Rodas5P()`, but got {chosen!r}. Diffrax's loops don't run on a mesh."
        )
    members = _count_members((y0, ts, args), in_axes)
    ts = _check_times(ts, in_axes[1])
    eager = is_eager()
    derivatives = "none" if eager else "any"
    stops = as_stops(events, doses, discontinuities, side, max_events, ts if ts.ndim == 1 else None)
    fn_arrays, fn_static = eqx.partition((fn, stops, output), eqx.is_array)
    args_arrays, args_static = eqx.partition(args, eqx.is_array)

    static = (fn_static, args_static, in_axes, members, chosen, steps, max_steps, derivatives)
    core = _compiled if is_interpreted() else _ensemble
    sol = core(fn_arrays, (y0, ts, args_arrays), (rtol, atol), mesh, static)
    if throw and eager and not sol.ok.all():
        bad = jnp.flatnonzero(~sol.ok)
        raise RuntimeError(
            f"{bad.size} of {members} members failed, the first is member {int(bad[0])}: "
            f"{RESULTS[jax.tree.map(lambda x: x[bad[0]], sol.result)]} "
            "`throw=False` returns all of them with `sol.ok` and `sol.result`."
        )
    if throw and not eager:
        text = "A member of `solve_ensemble` failed; `throw=False` returns all with `sol.ok`."
        sol = eqx.tree_at(lambda s: s.ys, sol, eqx.error_if(sol.ys, ~sol.ok, text))
    return sol


def _ensemble(fn_arrays, operands, tols, mesh, static) -> Solution:
    fn_static, args_static, in_axes, members, method, steps, max_steps, derivatives = static

    def one(fn_arrays, tols, y0, ts, args):
        fn, stops, output = eqx.combine(fn_arrays, fn_static)
        args = eqx.combine(args, args_static)
        rtol, atol = tols
        options = (rtol, atol, steps, max_steps, False, derivatives, None)
        return solve_core(fn, y0, ts, args, method, *options, stops, output)

    batched = jax.vmap(one, in_axes=(None, None, *in_axes))
    if mesh is None:
        return batched(fn_arrays, tols, *operands)

    devices = mesh.size
    axes = tuple(mesh.axis_names)
    member = jax.P(axes)
    padding = -members % devices
    # `device_put` does not batch on Explicit axes, and `reshard` knows no others.
    explicit = jax.sharding.AxisType.Explicit in mesh.axis_types
    move = jax.sharding.reshard if explicit else jax.device_put

    def place(x, spec):
        return None if x is None else move(x, jax.NamedSharding(mesh, spec))

    def pad(x, axis):
        if axis is None:
            return x
        x = jnp.moveaxis(jnp.asarray(x), axis, 0)
        x = jnp.concatenate([x, jnp.broadcast_to(x[-1:], (padding, *x.shape[1:]))])
        # Gathered, so that its gradient comes back gathered: what does not divide can't be cut
        # from what is spread over an Explicit mesh.
        return place(x, jax.P())

    flat_axes = [_axes_of(tree, axis) for tree, axis in zip(operands, in_axes, strict=True)]
    operands = tuple(
        jax.tree.map(pad, tree, ax, is_leaf=_is_none)
        for tree, ax in zip(operands, flat_axes, strict=True)
    )
    leading = [
        jax.tree.map(lambda a: None if a is None else 0, ax, is_leaf=_is_none) for ax in flat_axes
    ]
    specs = [
        jax.tree.map(lambda a: jax.P() if a is None else member, ax, is_leaf=_is_none)
        for ax in flat_axes
    ]
    operands = tuple(
        jax.tree.map(place, tree, spec, is_leaf=_is_none)
        for tree, spec in zip(operands, specs, strict=True)
    )
    fn_arrays, tols = jax.tree.map(lambda x: place(x, jax.P()), (fn_arrays, tols))
    local = jax.vmap(one, in_axes=(None, None, *leading))
    sharded = jax.shard_map(local, mesh=mesh, in_specs=(jax.P(), jax.P(), *specs), out_specs=member)
    sol = sharded(fn_arrays, tols, *operands)
    if not padding:
        return sol
    # A size that does not divide can't stay sharded: gather, then cut.
    return jax.tree.map(lambda x: move(x, jax.NamedSharding(mesh, jax.P()))[:members], sol)


_compiled = flat_jit(_ensemble)


def _is_none(x) -> bool:
    return x is None


def _axes_of(tree, axis):
    """One axis (or None) for each array of `tree`, from a prefix of axes as in `jax.vmap`."""
    spread = lambda a, sub: jax.tree.map(lambda x: None if x is None else a, sub, is_leaf=_is_none)
    return jax.tree.map(spread, axis, tree, is_leaf=_is_none)


def _check_times(ts, axis) -> jax.Array:
    """`check_times` for times that all members share, or of which each has its own."""
    if axis is None:
        return check_times(ts)
    ts = jnp.asarray(ts)
    if ts.ndim != 2:
        raise ValueError(
            "`ts` has a member axis by `in_axes`, so it must be two-dimensional, but has shape "
            f"{ts.shape}."
        )
    first = check_times(jnp.take(ts, 0, axis))
    if is_traced(ts):
        return ts.astype(first.dtype)
    rows = np.moveaxis(np.asarray(ts), axis, 0)
    steps = np.diff(rows)
    ordered = (steps >= 0).all(axis=1) | (steps <= 0).all(axis=1)
    for i in np.flatnonzero(~(ordered & np.isfinite(rows).all(axis=1))):
        try:
            check_times(rows[i])
        except ValueError as e:
            raise ValueError(f"Member {i}: {e}") from None
    return ts.astype(first.dtype)


def _count_members(operands, in_axes) -> int:
    if not (isinstance(in_axes, tuple) and len(in_axes) == 3):
        raise ValueError(
            f"`in_axes` must have three entries, for `(y0, ts, args)`, but got {in_axes!r}."
        )
    sizes = {}
    for name, tree, axis in zip(("y0", "ts", "args"), operands, in_axes, strict=True):
        axes = _axes_of(tree, axis)
        leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=_is_none)
        flat = jax.tree.leaves(axes, is_leaf=_is_none)
        for (path, leaf), a in zip(leaves, flat, strict=True):
            if a is not None and eqx.is_array_like(leaf):
                where = name + jax.tree_util.keystr(path)
                if jnp.ndim(leaf) <= a:
                    raise ValueError(
                        f"`in_axes` gives `{where}` the member axis {a}, but it has shape "
                        f"{jnp.shape(leaf)}. Pass `in_axes=(…, None, …)` for what all share."
                    )
                sizes[where] = jnp.shape(leaf)[a]
    if len(set(sizes.values())) != 1:
        listed = ", ".join(f"{k}: {v}" for k, v in sizes.items()) or "no member axis at all"
        raise ValueError(f"The members must agree in number, but `in_axes` gives {listed}.")
    return next(iter(sizes.values()))

"""What `solve` and its relatives check at the door."""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike

from .._checks import integer_at_least
from .._compat import is_traced
from ._auto_switch import AutoSwitch
from ._method import AbstractMethod


_DEFAULT = AutoSwitch()  # once: to build a module takes a tenth of an eager solve


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
    steps = None if steps is None else integer_at_least("steps", steps)
    max_steps = integer_at_least("max_steps", max_steps)
    if method is None:
        method = _DEFAULT if steps is None else _DEFAULT.nonstiff_method
    if isinstance(method, type):
        raise TypeError(f"`method` must be an instance: pass `{method.__name__}()`.")
    if not isinstance(method, AbstractMethod | diffrax.AbstractSolver):
        raise TypeError(
            "`method` must be one of ours, such as `solvers.Tsit5()`, `solvers.Rodas5P()` or "
            "`solvers.RK4()`, a Diffrax solver such as `diffrax.Kvaerno5()`, or None, but got "
            f"{method!r}."
        )
    if steps is None and isinstance(method, AbstractMethod) and not method.adaptive:
        raise ValueError(
            f"`{type(method).__name__}` has no error estimate: pass `steps=`, the number of equal "
            "steps between save times, or take `solvers.Tsit5()`."
        )
    if steps is not None and isinstance(method, AutoSwitch):
        raise ValueError(
            "`AutoSwitch` goes by the error estimates of adaptive steps. With `steps=` pass one method, "
            "such as `solvers.Tsit5()` or `solvers.Rodas5P()`."
        )
    if steps is not None and isinstance(method, diffrax.AbstractSolver):
        raise ValueError(
            "`steps=` runs our own methods, such as `solvers.RK4()` or `solvers.Tsit5()`. For fixed "
            "steps with a Diffrax solver call `diffrax.diffeqsolve`."
        )
    return method, steps, max_steps


def check_tolerances(rtol, atol, size: int):
    """Tolerances are numbers, or vectors of the flat state."""
    for name, value in (("rtol", rtol), ("atol", atol)):
        if np.shape(value) not in ((), (1,), (size,)):
            raise ValueError(
                f"`{name}` must be a number, or one for each of the {size} real numbers of the state, "
                "in the order of its leaves (of a complex leaf first all real, then all imaginary "
                f"parts), but has shape {np.shape(value)}."
            )


def check_field(fn, t0, y0, args):
    """The vector field must give back what the state is made of."""
    arrays = lambda t, y, args: jax.tree.map(jnp.asarray, fn(t, y, args))
    got = eqx.filter_eval_shape(arrays, t0, y0, args)
    want_tree, got_tree = jax.tree.structure(y0), jax.tree.structure(got)
    if want_tree != got_tree:
        hint = " For a vector write `y0=jnp.array([…])`." if isinstance(y0, list) else ""
        raise ValueError(
            f"The vector field must return the structure of `y0`, {want_tree}, "
            f"but returned {got_tree}.{hint}"
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

"""Inputs u(t) given as data."""

import contextlib
import contextvars
import dataclasses
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Inexact

from .._compat import is_traced
from .._custom_types import Numbers
from .._dtypes import as_floating


Kind = Literal["zoh", "linear", "hermite", "pchip"]
KINDS = ("zoh", "linear", "hermite", "pchip")

_in_a_field = contextvars.ContextVar("in_a_field", default=False)


class Input(eqx.Module):
    """An input u(t) known at some times, its knots; `u(t)` evaluates it.

    Pass it to [`solve`][sciml.solvers.solve] in `args`, or as a field of the module that is the vector
    field. The solve then steps exactly onto every knot and takes the values of the right side, with fixed
    steps, too. It has derivatives by values and by knots.

    Before the first and after the last knot it keeps the value there. Values that are nan are missing:
    for `"zoh"` the last one known is kept, for the others it is interpolated between its neighbours
    (before the first and after the last one known: that one).

    ```python
    import jax.numpy as jnp
    from sciml import solvers

    u = solvers.Input(jnp.array([0.0, 1.0, 2.0]), jnp.array([1.0, 0.5, -0.5]), kind="zoh")
    sol = solvers.solve(lambda t, y, u: -y + u(t), 0.0, jnp.linspace(0.0, 3.0, 4), u)
    assert jnp.allclose(sol.ys[1], 1 - jnp.exp(-1.0), atol=1e-6)
    ```

    **Arguments:**

    - `times`: the knots, shape `(knot,)`, increasing. Two that are equal make a jump.
    - `values`: shape `(knot, ...)`.
    - `kind`: `"zoh"` (zero-order hold: the value of the last knot), `"linear"`, `"hermite"` (cubic, with the
      `slopes` given, else Catmull and Rom's finite differences) or `"pchip"` (cubic, monotone where the data
      are; Fritsch and Carlson, *Monotone piecewise cubic interpolation*, 1980).
    - `slopes`: of `"hermite"`, du/dt at the knots, shaped as `values`.

    **Raises:**

    `ValueError` for shapes, kinds and knots that can't be meant.
    """

    times: Float[Array, " knot"]
    values: Inexact[Array, "knot ..."]
    slopes: Inexact[Array, "knot ..."] | None
    kind: Kind = eqx.field(static=True)
    _interval: Any = None

    def __init__(
        self,
        times: Numbers,
        values: Numbers,
        kind: Kind = "linear",
        slopes: Numbers | None = None,
    ):
        times, values = as_floating(times), as_floating(values)
        _check(times, values, kind, slopes)
        missing = jnp.isnan(values)
        if is_traced(missing) or bool(missing.any()):
            values = _filled(times, values, kind)
        self.times, self.values, self.kind = times, values, kind
        if kind == "hermite":
            given = slopes is not None
            self.slopes = as_floating(slopes) if given else _finite_differences(times, values)
        else:
            self.slopes = _monotone(times, values) if kind == "pchip" else None

    def __call__(self, t: ArrayLike) -> Inexact[Array, "..."]:
        """The value at one time, shape `values.shape[1:]`. At a jump it is that of the right side."""
        if self._interval is None and _in_a_field.get():
            raise ValueError(
                "`solve` met an `Input` that is used from around a function, from a closure or a global, so that "
                "it can't step onto the knots. Pass it in `args`, or make it a field of the module."
            )
        t = jnp.asarray(t).astype(self.times.dtype)
        k = self._interval
        if k is None:
            k = jnp.searchsorted(self.times, t, side="right") - 1
        last = self.times.shape[0] - 1
        i = jnp.clip(k, 0, last)
        if self.kind == "zoh" or last == 0:
            return self.values[i]
        j = jnp.clip(k + 1, 0, last)
        t0, t1, u0, u1 = self.times[i], self.times[j], self.values[i], self.values[j]
        width = jnp.where(t1 > t0, t1 - t0, 1)
        x = jnp.where(t1 > t0, (t - t0) / width, 0)  # 0 outside, where i and j are the same knot
        x = x.astype(self.values.dtype)
        if self.kind == "linear":
            return u0 + x * (u1 - u0)
        assert self.slopes is not None
        m0, m1 = self.slopes[i] * width.astype(x.dtype), self.slopes[j] * width.astype(x.dtype)
        cubic = u0 + x * (m0 + x * (3 * (u1 - u0) - 2 * m0 - m1 + x * (2 * (u0 - u1) + m0 + m1)))
        return jnp.where(t1 > t0, cubic, u0)

    def _at(self, interval: Array) -> "Input":
        """The same, told where it is evaluated."""
        new = object.__new__(Input)
        for field in dataclasses.fields(self):
            object.__setattr__(new, field.name, getattr(self, field.name))
        object.__setattr__(new, "_interval", interval)
        return new


def inputs_of(tree: Any) -> list[Input]:
    """All inputs in a pytree."""
    found = [x for x in jax.tree.leaves(tree, is_leaf=_is_input) if _is_input(x)]
    for u in found:
        if jnp.ndim(u.times) != 1:
            raise ValueError(
                f"The knots of an `Input` have shape {jnp.shape(u.times)}: inputs that were stacked by "
                "`jax.vmap` belong into a solve under `jax.vmap`. For several channels give `values` more axes."
            )
    return found


def bound(tree: Any, intervals: list[Array]) -> Any:
    """The tree with its inputs told in which interval between their knots they are evaluated."""
    each = iter(intervals)

    def one(x):
        if not _is_input(x):
            return x
        return x._at(next(each))

    return jax.tree.map(one, tree, is_leaf=_is_input)


@contextlib.contextmanager
def in_a_field():
    """Inside, an input that is not bound refuses to be evaluated."""
    token = _in_a_field.set(True)
    try:
        yield
    finally:
        _in_a_field.reset(token)


def _is_input(x) -> bool:
    return isinstance(x, Input)


def _check(times, values, kind, slopes):
    if kind not in KINDS:
        raise ValueError(f"`kind` must be one of {', '.join(KINDS)}, but is {kind!r}.")
    if jnp.iscomplexobj(times):
        raise ValueError("`times` must be real numbers, but are complex.")
    if times.ndim != 1 or times.shape[0] < 1:
        raise ValueError(f"`times` must be a vector of knots, but has shape {times.shape}.")
    if values.ndim < 1 or values.shape[0] != times.shape[0]:
        raise ValueError(
            f"`values` needs one row for each of the {times.shape[0]} knots, but has shape {values.shape}."
        )
    if slopes is not None and kind != "hermite":
        raise ValueError(f'`slopes` are for `kind="hermite"`, but `kind` is {kind!r}.')
    if slopes is not None and jnp.shape(slopes) != values.shape:
        raise ValueError(
            f"`slopes` must be shaped as `values`, {values.shape}, but is {jnp.shape(slopes)}."
        )
    if not is_traced(times):
        bad = np.flatnonzero(~np.isfinite(times))
        if bad.size:
            raise ValueError(f"The knots must be finite, but times[{bad[0]}] is {times[bad[0]]}.")
        wrong = np.flatnonzero(np.diff(np.asarray(times)) < 0)
        if wrong.size:
            i = int(wrong[0])
            raise ValueError(
                f"The knots must increase, but times[{i}] = {times[i]:g} is followed by "
                f"times[{i + 1}] = {times[i + 1]:g}."
            )
    for name, x in (("values", values), ("slopes", slopes)):
        if x is None or is_traced(x):
            continue
        bad = np.isinf(x) if name == "values" else ~np.isfinite(x)
        if bad.any():
            where = np.argwhere(bad)[0].tolist()
            raise ValueError(
                f"`{name}` must be finite, but {name}{where} is {np.asarray(x)[tuple(where)]}."
            )
    if not is_traced(values):
        flat = np.asarray(values).reshape(values.shape[0], -1)
        empty = np.flatnonzero(np.isnan(flat).all(axis=0))
        if empty.size:
            raise ValueError(f"Column {empty[0]} of `values` is missing (nan) at every knot.")


def _filled(times, values, kind):
    """Values without nan."""
    n = times.shape[0]
    index = jnp.arange(n)

    def column(v):
        known = ~jnp.isnan(v)
        last = jax.lax.cummax(jnp.where(known, index, -1))
        following = jax.lax.cummin(jnp.where(known, index, n), reverse=True)
        i = jnp.where(last < 0, following, last)
        j = jnp.where((following >= n) | (kind == "zoh"), i, following)
        safe = jnp.where(known, v, 0)
        i, j = jnp.clip(i, 0, n - 1), jnp.clip(j, 0, n - 1)
        width = times[j] - times[i]
        x = jnp.where(width > 0, (times - times[i]) / jnp.where(width > 0, width, 1), 0)
        filled = safe[i] + x.astype(v.dtype) * (safe[j] - safe[i])
        return jnp.where(jnp.any(known), filled, jnp.nan)

    flat = values.reshape(n, -1)
    return jax.vmap(column, in_axes=1, out_axes=1)(flat).reshape(values.shape)


def _secants(times, values):
    """Widths of the intervals, and slopes across them; 0 across a jump."""
    width = jnp.diff(times).reshape(-1, *(1,) * (values.ndim - 1)).astype(values.real.dtype)
    safe = jnp.where(width > 0, width, 1)
    return width, jnp.where(width > 0, jnp.diff(values, axis=0) / safe, 0)


def _by_knot(times, values, inner, end):
    """Slopes at the knots: `inner(h0, h1, d0, d1)` from the intervals on both sides, `end(h0, h1, d0, d1)` from
    the two nearest on one side, beside a jump as well."""
    width, secant = _secants(times, values)
    n = times.shape[0]
    # Interval k lies between the knots k and k + 1; those outside and jumps have no width.
    pad = lambda x: jnp.concatenate(
        [jnp.zeros_like(x[:1]), jnp.zeros_like(x[:1]), x, x[:1] * 0, x[:1] * 0]
    )
    h, d = pad(width), pad(secant)
    at = lambda x, shift: x[2 + shift : 2 + shift + n]
    far, left, right, beyond = [(at(h, k), at(d, k)) for k in (-2, -1, 0, 1)]
    one = lambda x: jnp.where(x > 0, x, 1)

    def one_sided(near, next_):
        curve = end(one(near[0]), one(next_[0]), near[1], next_[1])
        return jnp.where(next_[0] > 0, curve, near[1])

    both = inner(one(left[0]), one(right[0]), left[1], right[1])
    has_left, has_right = left[0] > 0, right[0] > 0
    return jnp.where(
        has_left & has_right,
        both,
        jnp.where(has_right, one_sided(right, beyond), one_sided(left, far)),
    )


def _finite_differences(times, values):
    if times.shape[0] == 1:
        return jnp.zeros_like(values)
    if jnp.iscomplexobj(values):
        parts = (_finite_differences(times, part) for part in (values.real, values.imag))
        return jax.lax.complex(*parts)
    inner = lambda h0, h1, d0, d1: (h1 * d0 + h0 * d1) / (h0 + h1)
    return _by_knot(times, values, inner, lambda h0, h1, d0, d1: d0)


def _monotone(times, values):
    """Slopes of PCHIP: a weighted harmonic mean of the secants, zero at extrema (Fritsch and Butland, *A
    method for constructing local monotone piecewise cubic interpolants*, 1984); one-sided at the ends."""
    if times.shape[0] == 1:
        return jnp.zeros_like(values)
    if jnp.iscomplexobj(values):
        return jax.lax.complex(*(_monotone(times, part) for part in (values.real, values.imag)))

    def inner(h0, h1, d0, d1):
        w0, w1 = 2 * h1 + h0, h1 + 2 * h0
        same = d0 * d1 > 0
        left, right = jnp.where(same, d0, 1), jnp.where(same, d1, 1)
        return jnp.where(same, (w0 + w1) / (w0 / left + w1 / right), 0)

    def end(h0, h1, d0, d1):
        m = ((2 * h0 + h1) * d0 - h0 * d1) / (h0 + h1)
        m = jnp.where(jnp.sign(m) != jnp.sign(d0), 0, m)
        too_large = (jnp.sign(d0) != jnp.sign(d1)) & (jnp.abs(m) > 3 * jnp.abs(d0))
        return jnp.where(too_large, 3 * d0, m)

    return _by_knot(times, values, inner, end)

"""The neural controlled differential equation.

An ordinary differential equation is determined by its start, so what is measured later can't
enter it. A controlled one is driven by the path of the measurements, X: dz = f(z) dX, that is
dz/dt = f(z) dX/dt with a matrix f(z). It is to a recurrent net what a neural ODE is to a residual
one, and reads series with irregular times and missing values as they are.
"""

import pathlib
import warnings
from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import jaxtyping
from jaxtyping import Array, Float

from .._checks import integer_at_least
from .._dtypes import HERE
from ..solvers import AbstractMethod, Input, RK4, solve
from ._mlp import MLP


# Equinox and jaxtyping wrap what a module does when it is made.
_BETWEEN = tuple(str(pathlib.Path(m.__file__ or "").parent) for m in (eqx, jaxtyping))


class NeuralCDE(eqx.Module):
    """Reads a time series, irregular and with gaps, and returns an output for all of it.

    For classification and regression of series, or with `evolve` an output at each time. Train a batch
    of series under `jax.vmap`; pad those that are shorter by repeating the last time, with rows
    of nan. Not for forecasting beyond the last measurement (see [`LatentODE`][sciml.nets.LatentODE]),
    and slow for thousands of measurements a series.

    ```python
    import jax, jax.numpy as jnp
    from sciml import nets

    model = nets.NeuralCDE(2, 4, 1, width=8, depth=1, key=jax.random.key(0))
    ts = jnp.array([0.0, 0.3, 1.0, 1.1])
    xs = jnp.array([[0.0, 1.0], [0.2, jnp.nan], [0.5, 0.3], [0.4, 0.2]])
    assert model(ts, xs).shape == (1,)
    assert model.evolve(ts, xs).shape == (4, 1)
    ```

    **Arguments:**

    - `in_size`, `hidden`, `out_size`: numbers of channels measured, of states, and of outputs.
    - `width`, `depth`, `activation`: of the two nets, one for the start from the first measurement, one
      for the field. The output of the latter is bounded by `tanh`: without, states explode.
    - `time`: whether time is a channel of the path. Without it the output does not depend on how fast
      the path is run through, nor on the times at all; that is seldom meant, and warned of.
    - `path`: how the measurements are joined: `"hermite"`, cubics with backward differences, smooth enough for
      adaptive steps, or `"linear"`. With both, what is read at the time of a measurement depends on those up to
      there only; where one is missing, on the next one as well.
    - `method`, `rtol`, `atol`, `steps`, `max_steps`: as in [`solve`][sciml.solvers.solve]. By default one
      step of `RK4` from each measurement to the next, for training many times as fast as adaptive steps. For
      those pass `steps=None` and a method. Our own methods step exactly onto the measurements, Diffrax's do not.
    - `dtype`: of the weights; by default JAX's floating dtype.
    - `key`: a JAX random key.

    **Reference:** P. Kidger, J. Morrill, J. Foster, T. Lyons, *Neural controlled differential equations
    for irregular time series*, NeurIPS 2020, arXiv 2005.08926; Hermite cubics: J. Morrill, P. Kidger,
    L. Yang, T. Lyons, *Neural controlled differential equations for online prediction tasks*,
    2021, arXiv 2106.11028.
    """

    initial: MLP
    field: MLP
    readout: eqx.nn.Linear
    hidden: int = eqx.field(static=True)
    time: bool = eqx.field(static=True)
    path: Literal["hermite", "linear"] = eqx.field(static=True)
    method: Any = eqx.field(static=True)
    rtol: float | None = eqx.field(static=True)
    atol: float | None = eqx.field(static=True)
    steps: int | None = eqx.field(static=True)
    max_steps: int = eqx.field(static=True)

    def __init__(
        self,
        in_size: int,
        hidden: int,
        out_size: int,
        *,
        width: int,
        depth: int,
        activation: Callable = jax.nn.softplus,
        time: bool = True,
        path: Literal["hermite", "linear"] = "hermite",
        method: Any = RK4(),  # noqa: B008
        rtol: float | None = None,
        atol: float | None = None,
        steps: int | None = 1,
        max_steps: int = 16384,
        dtype: Any = None,
        key: Any,
    ):
        integer_at_least("in_size", in_size)
        integer_at_least("hidden", hidden)
        if path not in ("hermite", "linear"):
            raise ValueError(f'`path` must be "hermite" or "linear", but is {path!r}.')
        if not time:
            warnings.warn(
                "With `time=False` the output of a `NeuralCDE` does not depend on the times of the "
                "measurements. Unless that is meant, leave `time=` out.",
                skip_file_prefixes=(HERE, *_BETWEEN),  # point to the line that called us
            )
        channels = in_size + time
        k1, k2, k3 = jax.random.split(key, 3)
        options = {"width": width, "depth": depth, "activation": activation, "dtype": dtype}
        self.initial = MLP(channels, hidden, key=k1, **options)
        self.field = MLP(hidden, hidden * channels, bound=1.0, key=k2, **options)
        weights = self.field.layers[0].weight.dtype
        self.readout = eqx.nn.Linear(hidden, out_size, dtype=weights, key=k3)
        self.hidden, self.time, self.path = hidden, time, path
        self.method, self.rtol, self.atol = method, rtol, atol
        self.steps, self.max_steps = steps, max_steps

    def __call__(
        self, ts: Float[Array, " time"], xs: Float[Array, "time in"], *, throw: bool = True
    ) -> Float[Array, " out"]:
        """The output for the whole series.

        **Arguments:**

        - `ts`: times of measurement, shape `(time,)`, increasing; equal ones only at the end.
        - `xs`: measurements, shape `(time, in_size)`; nan where one is missing.
        - `throw`: raise if the solve fails; otherwise the output is nan.

        **Returns:**

        Shape `(out_size,)`.
        """
        return self.readout(self._states(ts, xs, throw)[-1])

    def evolve(
        self, ts: Float[Array, " time"], xs: Float[Array, "time in"], *, throw: bool = True
    ) -> Float[Array, "time out"]:
        """The output at each time, from the path up to there; arguments as above.

        **Returns:**

        Shape `(time, out_size)`.
        """
        return jax.vmap(self.readout)(self._states(ts, xs, throw))

    def _states(self, ts, xs, throw: bool) -> Float[Array, "time hidden"]:
        path = _Path(ts, self._channels(ts, xs), self.path)
        ours = self.method is None or isinstance(self.method, AbstractMethod)
        return solve(
            _Driven(self.field, path), self.initial(path.values[0]), ts,
            method=self.method, rtol=self.rtol, atol=self.atol, steps=self.steps,
            max_steps=self.max_steps, discontinuities=ts if ours else None, throw=throw,
        ).ys  # fmt: skip

    def _channels(self, ts, xs) -> Float[Array, "time channel"]:
        """What the path goes through: time and the measurements without gaps."""
        want = self.initial.layers[0].weight.shape[1] - self.time
        if jnp.ndim(xs) != 2 or jnp.shape(xs) != (*jnp.shape(ts), want):
            raise ValueError(
                f"`xs` needs one row for each time and {want} columns, but has shape {jnp.shape(xs)} "
                f"for `ts` of shape {jnp.shape(ts)}. For a batch of series use `jax.vmap`."
            )
        if jnp.shape(ts)[0] < 2:
            raise ValueError("A series needs at least two times, but `ts` has one.")
        values = Input(ts, xs).values  # fills gaps
        if not self.time:
            return values
        return jnp.concatenate([ts.astype(values.dtype)[:, None], values], axis=1)


class _Path(eqx.Module):
    """The path X through the measurements, known by its derivative."""

    times: Float[Array, " time"]
    values: Float[Array, "time channel"]
    secants: Float[Array, "interval channel"]
    slopes: Float[Array, "time channel"] | None

    def __init__(self, times, values, kind: str):
        width = jnp.diff(times).astype(values.dtype)[:, None]
        safe = jnp.where(width > 0, width, 1)
        secants = jnp.where(width > 0, jnp.diff(values, axis=0) / safe, 0)  # 0 where padded
        self.times, self.values, self.secants = times, values, secants
        # Backward differences: a measurement changes the path back to the one before it only.
        self.slopes = jnp.concatenate([secants[:1], secants]) if kind == "hermite" else None

    def derivative(self, t) -> Float[Array, " channel"]:
        t = jnp.asarray(t).astype(self.times.dtype)
        last = self.times.shape[0] - 2
        i = jnp.clip(jnp.searchsorted(self.times, t, side="right") - 1, 0, last)
        d = self.secants[i]
        if self.slopes is None:
            return d
        width = self.times[i + 1] - self.times[i]
        x = jnp.where(width > 0, (t - self.times[i]) / jnp.where(width > 0, width, 1), 0)
        x, m0, m1 = x.astype(d.dtype), self.slopes[i], self.slopes[i + 1]
        return m0 + x * (6 * d - 4 * m0 - 2 * m1 + x * (3 * m0 + 3 * m1 - 6 * d))


class _Driven(eqx.Module):
    """The vector field dz/dt = f(z) dX/dt."""

    net: MLP
    path: _Path

    def __call__(self, t, z, args):
        return self.net(z).reshape(z.shape[0], -1) @ self.path.derivative(t)

"""The latent ordinary differential equation.

A variational autoencoder for time series: an encoder reads the measurements, backwards, and says what it
believes of the state at their beginning, as a normal distribution; a neural ODE carries a draw from it
through time; a decoder turns states into measurements. Times may be irregular and values missing, and the
trajectory goes on beyond the last measurement.
"""

from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from .._checks import integer_at_least
from ..solvers import RK4
from ._mlp import MLP
from ._neural_ode import NeuralODE


class LatentODE(eqx.Module):
    """A generative model of time series: encodes a series, reconstructs it, continues it, and draws new ones.

    For many short series of one kind, irregular and with gaps. Not for one long series, and not where the
    state itself is measured: a [`NeuralODE`][sciml.nets.NeuralODE] is easier to train. On data that
    no ODE made, compare with a constant forecast first; it is hard to beat.

    ```python
    import jax, jax.numpy as jnp
    from sciml import nets

    k1, k2 = jax.random.split(jax.random.key(0))
    model = nets.LatentODE(2, latent=3, hidden=4, width=8, depth=1, key=k1)
    ts = jnp.array([0.0, 0.3, 1.0])
    ys = jnp.array([[1.0, 0.0], [0.9, jnp.nan], [0.6, 0.2]])
    terms = model.loss(ts, ys, key=k2)
    total = terms["reconstruction"] + terms["kl"]
    future = model(ts, ys, jnp.linspace(0.0, 3.0, 7), key=k2)
    new = model.sample(jnp.linspace(0.0, 3.0, 7), key=k2)
    assert future.shape == new.shape == (7, 2)
    ```

    **Arguments:**

    - `size`: how many values are measured at a time.
    - `latent`: length of the vector that stands for a series.
    - `hidden`: length of the state of the ODE, and of the encoder.
    - `width`, `depth`: of the nets of the field and between latent vector and first state.
    - `encoder`: `"gru"`, a gated recurrent unit that is told the gaps between measurements, or
      `"ode-rnn"`, where between them its state follows an ODE of its own (one Euler step
      a gap): slower, for gaps that differ much.
    - `noise`: standard deviation of a measurement about the trajectory. It weighs the two terms of the loss.
    - `method`, `rtol`, `atol`, `steps`, `max_steps`: as in [`solve`][sciml.solvers.solve]. By default one
      step of `RK4` between neighbouring times.
    - `dtype`: of the weights; by default JAX's floating dtype.
    - `key`: a JAX random key.

    **Reference:** Y. Rubanova, R. T. Q. Chen, D. Duvenaud, *Latent ODEs for irregularly-sampled time
    series*, NeurIPS 2019, arXiv 1907.03907.
    """

    cell: eqx.nn.GRUCell
    drift: MLP | None
    belief: eqx.nn.Linear
    start: MLP
    ode: NeuralODE
    readout: eqx.nn.Linear
    size: int = eqx.field(static=True)
    latent: int = eqx.field(static=True)
    noise: float = eqx.field(static=True)

    def __init__(
        self,
        size: int,
        *,
        latent: int,
        hidden: int,
        width: int,
        depth: int,
        encoder: Literal["gru", "ode-rnn"] = "gru",
        noise: float = 1.0,
        method: Any = RK4(),  # noqa: B008
        rtol: float | None = None,
        atol: float | None = None,
        steps: int | None = 1,
        max_steps: int = 16384,
        dtype: Any = None,
        key: Any,
    ):
        for name, value in {"size": size, "latent": latent, "hidden": hidden}.items():
            integer_at_least(name, value)
        if encoder not in ("gru", "ode-rnn"):
            raise ValueError(f'`encoder` must be "gru" or "ode-rnn", but is {encoder!r}.')
        if not noise > 0:
            raise ValueError(f"`noise` must be positive, but got {noise}.")
        keys = jax.random.split(key, 6)
        shape = {"width": width, "depth": depth, "activation": jax.nn.softplus, "dtype": dtype}
        self.start = MLP(latent, hidden, key=keys[0], **shape)
        dtype = self.start.layers[0].weight.dtype
        # A bounded field, whose bound is learnt, can't blow up however long the span.
        bounded = {**shape, "bound": jnp.ones((), dtype)}
        self.ode = NeuralODE(
            MLP(hidden, hidden, key=keys[1], **bounded),
            method=method, rtol=rtol, atol=atol, steps=steps, max_steps=max_steps,
        )  # fmt: skip
        self.drift = MLP(hidden, hidden, key=keys[2], **bounded) if encoder == "ode-rnn" else None
        # The values, which of them are there, and the gap to what was read before.
        self.cell = eqx.nn.GRUCell(2 * size + 1, hidden, dtype=dtype, key=keys[3])
        self.belief = eqx.nn.Linear(hidden, 2 * latent, dtype=dtype, key=keys[4])
        self.readout = eqx.nn.Linear(hidden, size, dtype=dtype, key=keys[5])
        self.size, self.latent, self.noise = size, latent, noise

    def encode(
        self, ts: Float[Array, " time"], ys: Float[Array, "time size"]
    ) -> tuple[Float[Array, " latent"], Float[Array, " latent"]]:
        """What is believed of the latent vector of a series.

        **Arguments:**

        - `ts`: times of measurement, shape `(time,)`, increasing. Pad a shorter series by repeating
          the last one, with rows of nan.
        - `ys`: measurements, shape `(time, size)`; nan where one is missing.

        **Returns:**

        The mean and the standard deviation, each of shape `(latent,)`.
        """
        if jnp.ndim(ys) != 2 or jnp.shape(ys) != (*jnp.shape(ts), self.size):
            raise ValueError(
                f"`ys` needs one row for each time and {self.size} columns, but has shape "
                f"{jnp.shape(ys)} for `ts` of shape {jnp.shape(ts)}. For a batch of series use `jax.vmap`."
            )
        dtype = self.belief.weight.dtype
        known = ~jnp.isnan(ys)
        gaps = jnp.append(jnp.diff(ts), 0).astype(dtype)
        features = [jnp.where(known, ys, 0).astype(dtype), known.astype(dtype), gaps[:, None]]

        def read(carry, x):
            state, unread = carry
            row, any_known, gap = x
            if self.drift is not None:
                state = state - gap * self.drift(state)  # back in time
            # Rows without a value are only gaps: they add to that of the next row that has one.
            gap = gap + unread
            new = self.cell(row.at[-1].set(gap), state)
            state = jnp.where(any_known, new, state)
            return (state, jnp.where(any_known, 0, gap)), None

        rows = jnp.concatenate(features, axis=1)
        first = jnp.zeros(self.cell.hidden_size, dtype), jnp.zeros((), dtype)
        (state, _), _ = jax.lax.scan(read, first, (rows, known.any(axis=1), gaps), reverse=True)
        mean, log_std = jnp.split(self.belief(state), 2)
        return mean, jnp.exp(log_std)

    def decode(
        self, z: Float[Array, " latent"], ts: ArrayLike, *, throw: bool = True
    ) -> Float[Array, "time size"]:
        """The trajectory of a latent vector at the times `ts`, the first of which is the start."""
        return jax.vmap(self.readout)(self.ode(self.start(z), ts, throw=throw))

    def __call__(
        self,
        ts: Float[Array, " time"],
        ys: Float[Array, "time size"],
        at: Float[Array, " at"] | None = None,
        *,
        key: Any,
        throw: bool = True,
    ) -> Float[Array, "at size"]:
        """A trajectory that may have given a series; another key gives another one.

        **Arguments:**

        - `ts`, `ys`: the series, as for `encode`.
        - `at`: times to return, starting from `ts[0]`, and beyond `ts[-1]` for a forecast; by default
          `ts`.
        - `key`: a JAX random key.
        - `throw`: raise if the solve fails; otherwise the rest is nan.

        **Returns:**

        Shape `(at, size)`.
        """
        mean, std = self.encode(ts, ys)
        z = mean + std * jax.random.normal(key, mean.shape, mean.dtype)
        return self.decode(z, ts if at is None else at, throw=throw)

    def sample(self, ts: ArrayLike, *, key: Any, throw: bool = True) -> Float[Array, "time size"]:
        """A new trajectory, of a latent vector drawn from the standard normal distribution."""
        dtype = self.belief.weight.dtype
        return self.decode(jax.random.normal(key, (self.latent,), dtype), ts, throw=throw)

    def loss(
        self,
        ts: Float[Array, " time"],
        ys: Float[Array, "time size"],
        *,
        key: Any,
        kl_weight: ArrayLike = 1.0,
        throw: bool = True,
    ) -> dict[str, Float[Array, ""]]:
        """The negative evidence lower bound of one series, in two terms to be added.

        **Arguments:**

        - `ts`, `ys`, `throw`: as of `__call__`.
        - `key`: a JAX random key, a new one in every step.
        - `kl_weight`: multiplies the second term. Raised from 0 to 1 in the beginning of a training it
          keeps the encoder from being ignored.

        **Returns:**

        `"reconstruction"`, minus the log-likelihood of the values that are there (less the constant
        ½ log 2π of each), and `"kl"`, the divergence of what is believed from the standard normal
        distribution.
        """
        mean, std = self.encode(ts, ys)
        z = mean + std * jax.random.normal(key, mean.shape, mean.dtype)
        missing = jnp.isnan(ys)
        misfit = (jnp.where(missing, 0, ys) - self.decode(z, ts, throw=throw)) / self.noise
        each = misfit**2 / 2 + jnp.log(jnp.asarray(self.noise, misfit.dtype))
        divergence = jnp.sum((mean**2 + std**2 - 1) / 2 - jnp.log(std))
        return {
            "reconstruction": jnp.sum(jnp.where(missing, 0, each)),
            "kl": jnp.asarray(kl_weight).astype(mean.dtype) * divergence,
        }

"""The neural stochastic differential equation."""

from collections.abc import Callable
from typing import Any, Literal

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jaxtyping import Array, Float

from .._checks import integer_at_least


class NeuralSDE(eqx.Module):
    """Maps an initial state to random trajectories: dy = drift(y) dt + diffusion(y) dW.

    For what is random by itself, and not only measured with noise. Each component has a Brownian motion of its
    own (diagonal noise). Steps are fixed; the solvers are Diffrax's, since the library's own solve ordinary
    equations. How to train it: by simulation against moments or distributions of the data, or, as the posterior of a
    latent SDE, by `divergence`. Do not minimise the squared distance between trajectories and data: that only
    teaches it to have no noise. Without reason for noise in the dynamics take a
    [`NeuralODE`][sciml.nets.NeuralODE].

    ```python
    import jax, jax.numpy as jnp
    from sciml import nets

    k1, k2, k3 = jax.random.split(jax.random.key(0), 3)
    drift = nets.MLP(2, 2, width=8, depth=1, key=k1)
    diffusion = nets.MLP(2, 2, width=8, depth=1, key=k2)
    model = nets.NeuralSDE(drift, diffusion, steps=4)
    ys = model(jnp.array([1.0, 0.0]), jnp.linspace(0.0, 1.0, 11), key=k3)
    assert ys.shape == (11, 2)
    ```

    **Arguments:**

    - `drift`, `diffusion`: `net(y)`, or `net([y, t])` with `time=True`; both return a vector of the state's
      length. The diffusion is the softplus of its net's output, plus `floor`.
    - `kind`: how the equation is meant, in the sense of `"ito"` or `"stratonovich"`.
    - `time`: append the time to the nets' input.
    - `floor`: the least diffusion. Latent SDEs otherwise tend to lose their noise, and their divergence
      divides by it.
    - `method`: a Diffrax solver for SDEs of this kind; by default `diffrax.Euler()` (Itô) or `diffrax.Heun()`
      (Stratonovich).
    - `steps`: how many equal steps to take between neighbouring save times.

    **Reference:** X. Li, T.-K. L. Wong, R. T. Q. Chen, D. Duvenaud, *Scalable gradients for stochastic
    differential equations*, AISTATS 2020, arXiv 2001.01328.
    """

    drift: Callable
    diffusion: Callable
    kind: Literal["ito", "stratonovich"] = eqx.field(static=True)
    time: bool = eqx.field(static=True)
    floor: float = eqx.field(static=True)
    method: Any = eqx.field(static=True)
    steps: int = eqx.field(static=True)

    def __init__(
        self,
        drift: Callable,
        diffusion: Callable,
        *,
        kind: Literal["ito", "stratonovich"] = "ito",
        time: bool = False,
        floor: float = 1e-3,
        method: Any = None,
        steps: int = 1,
    ):
        for name, net in (("drift", drift), ("diffusion", diffusion)):
            if not callable(net):
                raise TypeError(f"`{name}` must be callable, but is a {type(net).__name__}.")
        if kind not in ("ito", "stratonovich"):
            raise ValueError(f'`kind` must be "ito" or "stratonovich", but is {kind!r}.')
        if not floor >= 0:
            raise ValueError(f"`floor` must not be negative, but got {floor}.")
        self.drift, self.diffusion, self.kind, self.time = drift, diffusion, kind, time
        self.floor, self.method = float(floor), _check_method(method, kind)
        self.steps = integer_at_least("steps", steps)

    def __call__(
        self,
        y0: Float[Array, " state"],
        ts: Float[Array, " time"],
        *,
        key: Any,
        throw: bool = True,
    ) -> Float[Array, "time state"]:
        """**Arguments:**

        - `y0`: initial state of shape `(state,)`.
        - `ts`: save times of shape `(time,)`, strictly increasing, the first one the start.
        - `key`: a JAX random key: one realisation of the noise. For many, `jax.vmap` over keys.
        - `throw`: raise if the solve fails; otherwise the rest is not finite.

        **Returns:**

        The trajectory, shape `(time, state)`.
        """
        return self._solve(self._told(self.drift), self._noise, y0, ts, key, throw)

    def divergence(
        self,
        prior: Callable,
        y0: Float[Array, " state"],
        ts: Float[Array, " time"],
        *,
        key: Any,
        throw: bool = True,
    ) -> tuple[Float[Array, "time state"], Float[Array, ""]]:
        """A trajectory, and how far its law is from one with another drift and the same diffusion.

        The Kullback-Leibler divergence between the two laws of paths is the mean of what is
        returned, E ½∫|(drift - prior) / diffusion|² dt (Girsanov; section 5 of the paper). Together with
        the likelihood of the data it is the loss of a latent SDE whose prior has the drift `prior`.

        **Arguments:**

        - `prior`: a net as `drift`.
        - `y0`, `ts`, `key`, `throw`: as of `__call__`.

        **Returns:**

        The trajectory, shape `(time, state)`, and one number.
        """
        drift, prior = self._told(self.drift), self._told(prior)
        n = y0.shape[0]

        def with_rate(t, z):
            y = z[:n]
            f, g = drift(t, y), self._noise(t, y)
            rate = jnp.sum(((f - prior(t, y)) / g) ** 2) / 2
            return jnp.append(f, rate)

        def without_noise(t, z):
            return jnp.append(self._noise(t, z[:n]), jnp.zeros((), z.dtype))

        start = jnp.append(y0, jnp.zeros((), y0.dtype))
        zs = self._solve(with_rate, without_noise, start, ts, key, throw)
        return zs[:, :n], zs[-1, n]

    def _told(self, net: Callable) -> Callable:
        if not self.time:
            return lambda t, y: net(y)
        return lambda t, y: net(jnp.append(y, jnp.asarray(t).astype(y.dtype)))

    def _noise(self, t, y):
        return self.floor + jax.nn.softplus(self._told(self.diffusion)(t, y))

    def _solve(self, drift, noise, y0, ts, key, throw: bool) -> Array:
        if jnp.ndim(ts) != 1 or jnp.shape(ts)[0] < 2:
            raise ValueError(
                f"`ts` must be a vector of at least two times, but has shape {jnp.shape(ts)}."
            )
        ts = ts.astype(y0.dtype)
        gaps = jnp.diff(ts)
        ts = eqx.error_if(ts, jnp.any(gaps <= 0), "`ts` must increase strictly.")
        parts = jnp.arange(self.steps, dtype=ts.dtype) / self.steps
        inner = (ts[:-1, None] + gaps[:, None] * parts[None]).reshape(-1)
        nodes = jnp.append(inner, ts[-1])
        path = diffrax.VirtualBrownianTree(
            ts[0], ts[-1],
            tol=jax.lax.stop_gradient(jnp.min(gaps)) / (2 * self.steps),
            shape=jax.ShapeDtypeStruct(y0.shape, y0.dtype), key=key,
            levy_area=getattr(self.method, "minimal_levy_area", diffrax.BrownianIncrement),
        )  # fmt: skip
        terms = diffrax.MultiTerm(
            diffrax.ODETerm(lambda t, y, args: drift(t, y)),
            diffrax.ControlTerm(lambda t, y, args: lx.DiagonalLinearOperator(noise(t, y)), path),
        )
        sol = diffrax.diffeqsolve(
            terms, self.method, ts[0], ts[-1], None, y0,
            saveat=diffrax.SaveAt(ts=ts), stepsize_controller=diffrax.StepTo(nodes),
            max_steps=nodes.shape[0], throw=throw,
        )  # fmt: skip
        assert isinstance(sol.ys, jax.Array)
        return sol.ys


def _check_method(method: Any, kind: str):
    ito = kind == "ito"
    if method is None:
        return diffrax.Euler() if ito else diffrax.Heun()
    wanted = diffrax.AbstractItoSolver if ito else diffrax.AbstractStratonovichSolver
    if isinstance(method, wanted):
        return method
    example = "`diffrax.Euler()` or `diffrax.ItoMilstein()`" if ito else "`diffrax.Heun()`"
    raise TypeError(
        f'With `kind="{kind}"` the method must be a Diffrax solver for SDEs of that kind, such as '
        f"{example}, but is {method!r}. The library's own methods solve ordinary equations only."
    )

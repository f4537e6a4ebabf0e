"""The neural ordinary differential equation."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, PyTree

from ..solvers import Input, solve


class NeuralODE(eqx.Module):
    """Maps an initial state to a trajectory: dy/dt = net(y), solved by `sciml.solvers.solve`.

    For trajectories whose law nobody knows. Where part of it is known, write a module with the
    physics and a net inside instead, and hand it to `fit.Problem` as it is. Train a batch of
    trajectories under `equinox.filter_jit` and `equinox.filter_grad` with `jax.vmap` over `y0`; over
    `ts` as well where each has its own times.

    ```python
    import jax, jax.numpy as jnp
    from sciml import nets, solvers

    net = nets.MLP(2, 2, width=8, depth=1, key=jax.random.key(0))
    model = nets.NeuralODE(net, steps=4)
    ys = model(jnp.array([1.0, 0.0]), jnp.linspace(0.0, 1.0, 11))
    assert ys.shape == (11, 2)
    ```

    Driven by a known input u(t), and told a number that differs between trajectories:

    ```python
    driven = nets.MLP(2 + 1 + 1, 2, width=8, depth=1, key=jax.random.key(0))
    u = solvers.Input(jnp.array([0.0, 0.5]), jnp.array([1.0, -1.0]), kind="zoh")
    model = nets.NeuralODE(driven, steps=4)
    ys = model(jnp.array([1.0, 0.0]), jnp.linspace(0.0, 1.0, 11), (u, 0.3))
    ```

    **Arguments:**

    - `net`: `net(y) -> dy`, of one vector; what else it is told is appended to the state.
    - `time`: append the time.
    - `method`, `rtol`, `atol`, `steps`, `max_steps`: as in [`solve`][sciml.solvers.solve], with our methods
      or Diffrax's. They are part of the compiled program. `steps=` is the fastest for training.

    **Reference:** R. T. Q. Chen, Y. Rubanova, J. Bettencourt, D. Duvenaud, *Neural ordinary
    differential equations*, NeurIPS 2018, arXiv 1806.07366.
    """

    net: Callable
    time: bool = eqx.field(static=True)
    method: Any = eqx.field(static=True)
    rtol: float | None = eqx.field(static=True)
    atol: float | None = eqx.field(static=True)
    steps: int | None = eqx.field(static=True)
    max_steps: int = eqx.field(static=True)

    def __init__(
        self,
        net: Callable,
        *,
        time: bool = False,
        method: Any = None,
        rtol: float | None = None,
        atol: float | None = None,
        steps: int | None = None,
        max_steps: int = 16384,
    ):
        if not callable(net):
            raise TypeError(f"`net` must be callable, but is a {type(net).__name__}.")
        self.net, self.time, self.method = net, time, method
        self.rtol, self.atol, self.steps = rtol, atol, steps
        self.max_steps = max_steps

    def field(self, t: Any, y: Float[Array, " state"], args: Any = None) -> Float[Array, " state"]:
        """The vector field, in the form that every solver takes."""
        told = [jnp.asarray(t)] if self.time else []
        for x in jax.tree.leaves(args, is_leaf=_is_input):
            told.append(x(t) if _is_input(x) else jnp.asarray(x))
        flat = [x.astype(y.dtype).reshape(-1) for x in told]
        return self.net(jnp.concatenate([y, *flat]) if flat else y)

    def __call__(
        self,
        y0: Float[Array, " state"],
        ts: ArrayLike,
        args: PyTree[Any] = None,
        *,
        throw: bool = True,
    ) -> Float[Array, "time state"]:
        """**Arguments:**

        - `y0`: initial state of shape `(state,)`.
        - `ts`: save times of shape `(time,)`, the first one the start.
        - `args`: what the net is told beside the state: any pytree of numbers, arrays and
          [`Input`][sciml.solvers.Input]s, whose values at the time are appended in order.
        - `throw`: raise if the solve fails; otherwise the rest is nan.

        **Returns:**

        The trajectory, shape `(time, state)`.
        """
        if not hasattr(y0, "dtype") or jnp.ndim(y0) != 1:
            raise ValueError(
                f"`y0` must be a vector, such as `jnp.array([1.0, 0.0])`, but got {y0!r}. For a batch use `jax.vmap`."
            )
        sol = solve(
            self.field, y0, ts, args,
            method=self.method, rtol=self.rtol, atol=self.atol, steps=self.steps,
            max_steps=self.max_steps, throw=throw,
        )  # fmt: skip
        return sol.ys


def _is_input(x: Any) -> bool:
    return isinstance(x, Input)

"""The augmented neural ordinary differential equation."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, PyTree

from .._checks import integer_at_least
from ._neural_ode import NeuralODE


class AugmentedODE(eqx.Module):
    """A neural ODE with room: further components, zero at the start, evolve with the state.

    Solutions of an ODE can't cross, so a [`NeuralODE`][sciml.nets.NeuralODE] can't map, say, x to -x. With a
    component more they pass each other. For maps from states to states, and for dynamics of
    which a part is not observed (memory, a delay) as long as it starts from the same. Not where all of the
    state is observed and the law itself is wanted: what is learnt is then harder to read.

    ```python
    import jax, jax.numpy as jnp
    from sciml import nets

    net = nets.MLP(2 + 3, 2 + 3, width=8, depth=1, key=jax.random.key(0))
    model = nets.AugmentedODE(net, 3, steps=4)
    ys = model(jnp.array([1.0, 0.0]), jnp.array([0.0, 0.5, 1.0]))
    assert ys.shape == (3, 2)
    ```

    **Arguments:**

    - `net`: as in [`NeuralODE`][sciml.nets.NeuralODE], for the state with `extra` further components.
    - `extra`: how many components to add. One to five do.
    - `time`, `method`, `rtol`, `atol`, `steps`, `max_steps`: as in `NeuralODE`.

    **Reference:** E. Dupont, A. Doucet, Y. W. Teh, *Augmented neural ODEs*, NeurIPS 2019,
    arXiv 1904.01681.
    """

    ode: NeuralODE
    extra: int = eqx.field(static=True)

    def __init__(
        self,
        net: Callable,
        extra: int,
        *,
        time: bool = False,
        method: Any = None,
        rtol: float | None = None,
        atol: float | None = None,
        steps: int | None = None,
        max_steps: int = 16384,
    ):
        self.extra = integer_at_least("extra", extra)
        self.ode = NeuralODE(
            net, time=time, method=method, rtol=rtol, atol=atol, steps=steps, max_steps=max_steps
        )

    def augment(self, y: Float[Array, " state"]) -> Float[Array, " augmented"]:
        """The state with zeros behind it, where the solve begins."""
        return jnp.concatenate([y, jnp.zeros(self.extra, y.dtype)])

    def field(
        self, t: Any, y: Float[Array, " augmented"], args: Any = None
    ) -> Float[Array, " augmented"]:
        """The vector field of the augmented state, in the form that every solver takes."""
        return self.ode.field(t, y, args)

    def __call__(
        self,
        y0: Float[Array, " state"],
        ts: ArrayLike,
        args: PyTree[Any] = None,
        *,
        throw: bool = True,
    ) -> Float[Array, "time state"]:
        """**Arguments:**

        - `y0`: initial state of shape `(state,)`, without what is added.
        - `ts`, `args`, `throw`: as of `NeuralODE`.

        **Returns:**

        The trajectory of the state, shape `(time, state)`. As a map, `model(x, ts)[-1]`.
        """
        return self.ode(self.augment(y0), ts, args, throw=throw)[:, : y0.shape[0]]

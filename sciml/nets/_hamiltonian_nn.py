"""The Hamiltonian neural network."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._checks import integer_at_least
from ._mlp import MLP
from ._pair import pair


class HamiltonianNN(eqx.Module):
    """A vector field that conserves an energy, which is learnt: dq/dt = ∂H/∂p, dp/dt = -∂H/∂q.

    For mechanics without friction whose canonical momenta are measured, often p = m v. It is a vector
    field for [`solve`][sciml.solvers.solve] with any method; the state is the pair `(q, p)`. Not
    for velocities that are no momenta (see [`LagrangianNN`][sciml.nets.LagrangianNN]), nor for a law of
    energy that is known (see [`hamiltonian`][sciml.solvers.hamiltonian]).

    ```python
    import jax, jax.numpy as jnp
    from sciml import nets, solvers

    model = nets.HamiltonianNN(1, width=8, depth=1, separable=True, key=jax.random.key(0))
    y0 = jnp.array([1.0]), jnp.array([0.0])
    ts = jnp.linspace(0.0, 2.0, 5)
    q, p = solvers.solve(model, y0, ts, method=solvers.Leapfrog(), steps=10).ys
    energy = jax.vmap(model.energy)(q, p)
    assert jnp.allclose(energy, energy[0], atol=1e-2)
    ```

    **Arguments:**

    - `size`: how many positions, and as many momenta.
    - `width`, `depth`, `activation`, `init`: of the net, as in [`MLP`][sciml.nets.MLP]. The
      activation must be smooth: the field is the net's derivative. By default orthogonal weights,
      as in the paper.
    - `separable`: H = T(p) + V(q), two nets. Only so may symplectic methods (`solvers.Leapfrog()`)
      be used; many mechanical systems in Cartesian coordinates are.
    - `dissipative`: also learn friction: dp/dt = -∂H/∂q - D ∂H/∂p with a constant, positive
      semidefinite matrix `D`. The energy then never grows.
    - `dtype`: of the weights; by default JAX's floating dtype.
    - `key`: a JAX random key.

    **Reference:** S. Greydanus, M. Dzamba, J. Yosinski, *Hamiltonian neural networks*, NeurIPS 2019,
    arXiv 1906.01563; with friction: Y. D. Zhong, B. Dey, A. Chakraborty, *Dissipative SymODEN*,
    2020, arXiv 2002.08860.
    """

    nets: tuple[MLP, ...]
    friction: Float[Array, "size size"] | None
    size: int = eqx.field(static=True)

    def __init__(
        self,
        size: int,
        *,
        width: int,
        depth: int,
        activation: Callable = jnp.tanh,
        init: Callable | None = jax.nn.initializers.orthogonal(),  # noqa: B008
        separable: bool = False,
        dissipative: bool = False,
        dtype: Any = None,
        key: Any,
    ):
        integer_at_least("size", size)
        integer_at_least("depth", depth)  # without a hidden layer the field would be constant
        sizes = (size, size) if separable else (2 * size,)
        keys = jax.random.split(key, len(sizes))
        options = {"width": width, "depth": depth, "activation": activation, "init": init}
        self.nets = tuple(
            MLP(n, 1, dtype=dtype, key=k, **options) for n, k in zip(sizes, keys, strict=True)
        )
        # D = R Rᵀ. At R = 0 its derivative would be zero, and it would stay there.
        start = 0.1 * jnp.eye(size, dtype=self.nets[0].layers[0].weight.dtype)
        self.friction = start if dissipative else None
        self.size = size

    def energy(self, q: Float[Array, " size"], p: Float[Array, " size"]) -> Float[Array, ""]:
        """The energy H(q, p); it is determined up to a constant."""
        if len(self.nets) == 1:
            return self.nets[0](jnp.concatenate([q, p]))[0]
        kinetic, potential = self.nets
        return kinetic(p)[0] + potential(q)[0]

    def __call__(self, t: Any, y: tuple[Array, Array], args: Any = None) -> tuple[Array, Array]:
        """The vector field, in the form that every solver takes.

        **Arguments:**

        - `y`: the pair `(q, p)`, each of shape `(size,)`.

        **Returns:**

        The pair `(dq/dt, dp/dt)`.
        """
        del t, args
        q, p = pair(y, self.size, "(q, p)", "momenta")
        by_q, by_p = jax.grad(self.energy, argnums=(0, 1))(q, p)
        if self.friction is None:
            return by_p, -by_q
        return by_p, -by_q - self.friction @ (self.friction.T @ by_p)

    def loss(
        self,
        q: Float[Array, "batch size"],
        p: Float[Array, "batch size"],
        dq: Float[Array, "batch size"],
        dp: Float[Array, "batch size"],
    ) -> Float[Array, ""]:
        """The mean squared error of the derivatives, for states where they are known.

        **Arguments:**

        - `q`, `p`, `dq`, `dp`: positions, momenta and their time derivatives, of shape
          `(batch, size)`.

        **Returns:**

        One number. Where only trajectories are known, solve and compare those instead.
        """
        field = jax.vmap(lambda q, p: self(None, (q, p)))
        got_q, got_p = field(q, p)
        return (jnp.mean((got_q - dq) ** 2) + jnp.mean((got_p - dp) ** 2)) / 2

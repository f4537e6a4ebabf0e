"""The Lagrangian neural network."""

from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._checks import integer_at_least
from ._mlp import begin, MLP
from ._pair import pair


class LagrangianNN(eqx.Module):
    """A vector field that conserves an energy, for positions and velocities in any coordinates.

    The Lagrangian L(q, v) is learnt; the accelerations follow from the Euler-Lagrange equation,
    (∂²L/∂v²) a = ∂L/∂q - (∂²L/∂q∂v) v. It is a vector field for [`solve`][sciml.solvers.solve]; the
    state is the pair `(q, v)`. For mechanics without friction where no momenta are measured. Where they
    are, a [`HamiltonianNN`][sciml.nets.HamiltonianNN] is cheaper and trains more easily; a field
    here takes second derivatives of the net and solves a linear system.

    ```python
    import jax, jax.numpy as jnp
    from sciml import nets, solvers

    model = nets.LagrangianNN(2, width=16, depth=2, key=jax.random.key(0))
    y0 = jnp.array([0.1, 0.2]), jnp.array([0.0, 0.3])
    q, v = solvers.solve(model, y0, jnp.linspace(0.0, 0.1, 3), method=solvers.RK4(), steps=5).ys
    assert q.shape == v.shape == (3, 2)
    ```

    **Arguments:**

    - `size`: how many positions, and as many velocities.
    - `width`, `depth`, `activation`: of the net, as in [`MLP`][sciml.nets.MLP]. The activation needs two
      derivatives that are not zero, unlike `relu` (the paper takes
      `jax.nn.softplus`).
    - `angles`: whether positions are angles. The net then sees their cosines and sines.
    - `init`: `"unit"`, where L = ½|v|² + net(q, v) and the net is small at first, so that the linear system begins
      near the identity, or `"cranmer"`, the paper's: L = net(q, v), with deviations of the weights that were found by
      search.
    - `ridge`: the linear system is solved by least squares with this weight, relative to the size of the
      matrix, on the size of `a`, so that a matrix that is singular on the way gives finite accelerations. By
      default the precision of the dtype.
    - `dtype`: of the weights; by default JAX's floating dtype.
    - `key`: a JAX random key.

    **Reference:** M. Cranmer, S. Greydanus, S. Hoyer, P. Battaglia, D. Spergel, S. Ho, *Lagrangian neural
    networks*, 2020, arXiv 2003.04630.
    """

    net: MLP
    size: int = eqx.field(static=True)
    angles: bool = eqx.field(static=True)
    init: Literal["unit", "cranmer"] = eqx.field(static=True)
    ridge: float | None = eqx.field(static=True)

    def __init__(
        self,
        size: int,
        *,
        width: int,
        depth: int,
        activation: Callable = jax.nn.silu,
        angles: bool = False,
        init: Literal["unit", "cranmer"] = "unit",
        ridge: float | None = None,
        dtype: Any = None,
        key: Any,
    ):
        integer_at_least("size", size)
        integer_at_least("depth", depth)  # without a hidden layer the matrix would be zero
        if init not in ("unit", "cranmer"):
            raise ValueError(f'`init` must be "unit" or "cranmer", but is {init!r}.')
        if ridge is not None and not ridge > 0:
            raise ValueError(f"`ridge` must be positive, but got {ridge}.")
        k1, k2 = jax.random.split(key)
        inputs = (3 if angles else 2) * size
        shape = {"width": width, "depth": depth, "activation": activation, "scale": 0.1}
        net = MLP(inputs, 1, dtype=dtype, key=k1, **shape)
        self.net = _as_cranmer(net, width, k2) if init == "cranmer" else net
        self.size, self.angles, self.init, self.ridge = size, angles, init, ridge

    def lagrangian(self, q: Float[Array, " size"], v: Float[Array, " size"]) -> Float[Array, ""]:
        """The Lagrangian L(q, v). It is not unique: other functions give the same motion."""
        positions = [jnp.cos(q), jnp.sin(q)] if self.angles else [q]
        learnt = self.net(jnp.concatenate([*positions, v]))[0]
        return learnt + v @ v / 2 if self.init == "unit" else learnt

    def energy(self, q: Float[Array, " size"], v: Float[Array, " size"]) -> Float[Array, ""]:
        """The energy v · ∂L/∂v - L, which the motion conserves; in units of the net's own."""
        value, momentum = jax.value_and_grad(self.lagrangian, argnums=1)(q, v)
        return v @ momentum - value

    def __call__(self, t: Any, y: tuple[Array, Array], args: Any = None) -> tuple[Array, Array]:
        """The vector field, in the form that every solver takes.

        **Arguments:**

        - `y`: the pair `(q, v)`, each of shape `(size,)`.

        **Returns:**

        The pair `(v, a)` of velocities and accelerations.
        """
        del t, args
        q, v = pair(y, self.size, "(q, v)", "velocities")
        force = jax.grad(self.lagrangian)(q, v)
        momentum = jax.grad(self.lagrangian, argnums=1)
        _, drift = jax.jvp(lambda q: momentum(q, v), (q,), (v,))
        mass = jax.jacfwd(momentum, argnums=1)(q, v)
        return v, _solve_damped(mass, force - drift, self.ridge)

    def loss(
        self,
        q: Float[Array, "batch size"],
        v: Float[Array, "batch size"],
        a: Float[Array, "batch size"],
    ) -> Float[Array, ""]:
        """The mean squared error of the accelerations, for states where they are known.

        **Arguments:**

        - `q`, `v`, `a`: positions, velocities and accelerations, of shape `(batch, size)`.

        **Returns:**

        One number.
        """
        got = jax.vmap(lambda q, v: self(None, (q, v))[1])(q, v)
        return jnp.mean((got - a) ** 2)


def _as_cranmer(net: MLP, width: int, key: Any) -> MLP:
    """Normal weights with the deviations of the paper's appendix, biases zero."""
    depth = len(net.layers) - 1
    deviations = (
        [2.2 * width**-0.5] + [0.58 * i * width**-0.5 for i in range(1, depth)] + [width**0.5]
    )
    keys = jax.random.split(key, depth + 1)
    layers = tuple(
        begin(jax.nn.initializers.normal(std), layer, k)
        for layer, std, k in zip(net.layers, deviations, keys, strict=True)
    )
    return eqx.tree_at(lambda n: n.layers, net, layers)


def _solve_damped(m: Array, b: Array, ridge: float | None) -> Array:
    """The a that makes |m a - b|² + r² |a|² least, r = ridge * |m|.

    Not the pseudo-inverse of the paper: that jumps where the rank changes, and its derivative is infinite where
    singular values meet. By QR of the stacked matrix, since the normal equations would square the condition.
    """
    n = b.shape[0]
    ridge = float(jnp.finfo(m.dtype).eps) if ridge is None else ridge
    size = jnp.sqrt(jnp.sum(m**2) / n + jnp.finfo(m.dtype).eps ** 2)
    stacked = jnp.concatenate([m, ridge * size * jnp.eye(n, dtype=m.dtype)])
    unitary, triangle = jnp.linalg.qr(stacked)
    return jax.scipy.linalg.solve_triangular(triangle, unitary[:n].T @ b)

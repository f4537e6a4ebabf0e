"""The multilayer perceptron."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._checks import integer_at_least
from .._dtypes import default_float, require_dtype


class MLP(eqx.Module):
    """A multilayer perceptron with a smooth activation, for use inside vector fields.

    Unlike `equinox.nn.MLP` its activation is static, so every array of it is a weight, named
    `layers[i].weight` and `layers[i].bias` in a problem. Vector fields want smooth activations:
    with `relu` their derivatives jump, which adaptive solvers pay for with small steps.

    ```python
    import jax, jax.numpy as jnp
    from sciml import nets

    net = nets.MLP(2, 3, width=8, depth=2, key=jax.random.key(0))
    assert net(jnp.ones(2)).shape == (3,)
    ```

    **Arguments:**

    - `in_size`, `out_size`: lengths of input and output.
    - `width`, `depth`: size and number of the hidden layers; `depth=0` is one linear layer.
    - `activation`: applied after each hidden layer.
    - `scale`: multiplies the weights of the last layer at the start. A small one starts the
      vector field near zero, where long solves are safe.
    - `dtype`: of the weights; by default JAX's floating dtype.
    - `key`: a JAX random key.
    """

    layers: tuple[eqx.nn.Linear, ...]
    activation: Callable = eqx.field(static=True)

    def __init__(
        self,
        in_size: int,
        out_size: int,
        *,
        width: int,
        depth: int,
        activation: Callable = jnp.tanh,
        scale: float = 1.0,
        dtype: Any = None,
        key: Any,
    ):
        for name, value in {"in_size": in_size, "out_size": out_size, "width": width}.items():
            integer_at_least(name, value)
        integer_at_least("depth", depth, least=0)
        dtype = default_float() if dtype is None else require_dtype(dtype, "`MLP(dtype=…)`")
        sizes = [in_size] + [width] * depth + [out_size]
        keys = jax.random.split(key, depth + 1)
        layers = [
            eqx.nn.Linear(m, n, dtype=dtype, key=k)
            for m, n, k in zip(sizes[:-1], sizes[1:], keys, strict=True)
        ]
        layers[-1] = jax.tree.map(lambda w: scale * w, layers[-1])
        self.layers = tuple(layers)
        self.activation = activation

    def __call__(self, x: Float[Array, " in"], *, key: Any = None) -> Float[Array, " out"]:
        del key  # accepted so that it fits into `equinox.nn.Sequential`
        for layer in self.layers[:-1]:
            x = self.activation(layer(x))
        return self.layers[-1](x)

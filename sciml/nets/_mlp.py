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
    `layers[i].weight` and `layers[i].bias` in a problem. Vector fields want smooth activations
    (`jnp.tanh`, `jax.nn.softplus`, `jax.nn.silu`, [`rbf`][sciml.nets.rbf]): with `relu` their
    derivatives jump, which adaptive solvers pay for with small steps.

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
    - `bound`: the output becomes `bound * tanh(output)`, which no solve can follow to infinity in
      finite time. A number stays as it is, in a `fit.Problem` too; an array such as `jnp.array(1.0)` is trained.
    - `residual`: hidden layers after the first add to what they are given, for deep nets.
    - `init`: how weights begin, one of `jax.nn.initializers`; biases are then zero. By default
      Equinox's: both uniform within ±1/√(inputs of the layer).
    - `dtype`: of the weights; by default JAX's floating dtype.
    - `key`: a JAX random key.
    """

    layers: tuple[eqx.nn.Linear, ...]
    bound: Float[Array, ""] | None
    fixed_bound: float | None = eqx.field(static=True)
    activation: Callable = eqx.field(static=True)
    residual: bool = eqx.field(static=True)

    def __init__(
        self,
        in_size: int,
        out_size: int,
        *,
        width: int,
        depth: int,
        activation: Callable = jnp.tanh,
        scale: float = 1.0,
        bound: float | Float[Array, ""] | None = None,
        residual: bool = False,
        init: Callable | None = None,
        dtype: Any = None,
        key: Any,
    ):
        for name, value in {"in_size": in_size, "out_size": out_size, "width": width}.items():
            integer_at_least(name, value)
        integer_at_least("depth", depth, least=0)
        if not callable(activation):
            raise TypeError(
                "`activation` must be a function such as `jnp.tanh`, but is a "
                f"{type(activation).__name__}."
            )
        if isinstance(bound, int | float) and not bound > 0:
            raise ValueError(
                f"`bound` must be positive, but got {bound}. Leave it out for no bound."
            )
        dtype = default_float() if dtype is None else require_dtype(dtype, "`MLP(dtype=…)`")
        sizes = [in_size] + [width] * depth + [out_size]
        keys = jax.random.split(key, depth + 1)
        layers = [
            eqx.nn.Linear(m, n, dtype=dtype, key=k)
            for m, n, k in zip(sizes[:-1], sizes[1:], keys, strict=True)
        ]
        if init is not None:
            layers = [begin(init, layer, k) for layer, k in zip(layers, keys, strict=True)]
        layers[-1] = jax.tree.map(lambda w: scale * w, layers[-1])
        self.layers = tuple(layers)
        learnt = isinstance(bound, jax.Array)
        self.bound = bound.astype(dtype) if learnt else None
        self.fixed_bound = None if learnt or bound is None else float(bound)
        self.activation, self.residual = activation, residual

    def __call__(self, x: Float[Array, " in"], *, key: Any = None) -> Float[Array, " out"]:
        del key  # accepted so that it fits into `equinox.nn.Sequential`
        wanted = self.layers[0].weight.shape[1:]
        if x.shape != wanted:
            raise ValueError(
                f"This net takes a vector of {wanted[0]} numbers, but got shape {x.shape}. For a batch use `jax.vmap`."
            )
        for i, layer in enumerate(self.layers[:-1]):
            y = self.activation(layer(x))
            x = x + y if self.residual and i else y
        x = self.layers[-1](x)
        bound = self.fixed_bound if self.bound is None else self.bound
        return x if bound is None else bound * jnp.tanh(x)


def begin(init: Callable, layer: eqx.nn.Linear, key) -> eqx.nn.Linear:
    """The layer with weights from one of `jax.nn.initializers`, and no biases."""
    weight, bias = layer.weight, layer.bias
    assert bias is not None
    # JAX's initialisers take the inputs to be the rows, Equinox has them as columns.
    weight = init(key, weight.shape[::-1], weight.dtype).T
    return eqx.tree_at(lambda k: (k.weight, k.bias), layer, (weight, jnp.zeros_like(bias)))

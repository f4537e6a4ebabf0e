"""The sinusoidal representation network."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._checks import integer_at_least
from .._dtypes import default_float, require_dtype


class SIREN(eqx.Module):
    """A multilayer perceptron with sine activations, for functions of time and space.

    It represents signals and fields with fine detail, together with their derivatives of every
    order. As a vector field it is a poor choice: it oscillates between and outside of the data, where a
    trajectory soon arrives; take an [`MLP`][sciml.nets.MLP].

    ```python
    import jax, jax.numpy as jnp
    from sciml import nets

    net = nets.SIREN(2, 1, width=16, depth=2, key=jax.random.key(0))
    assert net(jnp.ones(2)).shape == (1,)
    ```

    **Arguments:**

    - `in_size`, `out_size`: lengths of input and output. Scale inputs to [-1, 1].
    - `width`, `depth`: size and number of the hidden layers.
    - `frequency`: the factor in `sin(frequency * (W x + b))`. 30 is the paper's, for images and
      sounds; smooth fields want less.
    - `dtype`: of the weights; by default JAX's floating dtype.
    - `key`: a JAX random key.

    **Reference:** V. Sitzmann, J. N. P. Martel, A. W. Bergman, D. B. Lindell, G. Wetzstein,
    *Implicit neural representations with periodic activation functions*, NeurIPS 2020,
    arXiv 2006.09661.
    """

    layers: tuple[eqx.nn.Linear, ...]
    frequency: float = eqx.field(static=True)

    def __init__(
        self,
        in_size: int,
        out_size: int,
        *,
        width: int,
        depth: int,
        frequency: float = 30.0,
        dtype: Any = None,
        key: Any,
    ):
        sizes = {"in_size": in_size, "out_size": out_size, "width": width, "depth": depth}
        for name, value in sizes.items():
            integer_at_least(name, value)
        if not frequency > 0:
            raise ValueError(f"`frequency` must be positive, but got {frequency}.")
        dtype = default_float() if dtype is None else require_dtype(dtype, "`SIREN(dtype=…)`")
        lengths = [in_size] + [width] * depth + [out_size]
        keys = jax.random.split(key, depth + 1)
        layers = []
        for i, k in enumerate(keys):
            m, n = lengths[i : i + 2]
            layer = eqx.nn.Linear(m, n, dtype=dtype, key=k)
            # Section 3.2 of the paper: what enters a sine is then normally distributed with
            # variance one in every layer, the first of which spans several periods.
            limit = 1 / m if i == 0 else (6 / m) ** 0.5 / frequency
            weight = jax.random.uniform(k, (n, m), dtype, minval=-limit, maxval=limit)
            layers.append(eqx.tree_at(lambda x: x.weight, layer, weight))
        self.layers, self.frequency = tuple(layers), frequency

    def __call__(self, x: Float[Array, " in"], *, key: Any = None) -> Float[Array, " out"]:
        del key  # accepted so that it fits into `equinox.nn.Sequential`
        for layer in self.layers[:-1]:
            x = jnp.sin(self.frequency * layer(x))
        return self.layers[-1](x)

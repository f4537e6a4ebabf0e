"""Random Fourier features."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._checks import integer_at_least
from .._constant import Constant
from .._dtypes import default_float, require_dtype


class FourierFeatures(eqx.Module):
    """Sines and cosines of random multiples of the input: cos(2π B x), sin(2π B x).

    In front of a net they let it learn what varies fast, in time or space, which by itself it
    learns late or not at all. The frequencies in `B` are drawn once and are not trained, neither by `fit.train` nor
    in a `fit.Problem`. In a loop of your own their gradient is zero; if the optimiser has weight decay, it must be
    told to leave them alone. Not for what is smooth on the scale of the data, where they only add noise, nor
    outside of the data.

    ```python
    import equinox as eqx, jax, jax.numpy as jnp
    from sciml import nets

    k1, k2 = jax.random.split(jax.random.key(0))
    features = nets.FourierFeatures(1, 16, scale=5.0, key=k1)
    net = eqx.nn.Sequential([features, nets.MLP(32, 1, width=32, depth=2, key=k2)])
    assert net(jnp.array([0.3])).shape == (1,)
    ```

    **Arguments:**

    - `in_size`: length of the input.
    - `count`: how many frequencies; the output has length `2 * count`.
    - `scale`: standard deviation of the frequencies, in cycles per unit of the input. Of all that
      can be chosen here this matters most: about the highest frequency that you expect.
    - `dtype`: of the frequencies; by default JAX's floating dtype.
    - `key`: a JAX random key.

    **Reference:** M. Tancik et al., *Fourier features let networks learn high frequency functions
    in low dimensional domains*, NeurIPS 2020, arXiv 2006.10739.
    """

    drawn: Constant

    def __init__(
        self, in_size: int, count: int, *, scale: float = 1.0, dtype: Any = None, key: Any
    ):
        integer_at_least("in_size", in_size)
        integer_at_least("count", count)
        if not scale > 0:
            raise ValueError(f"`scale` must be positive, but got {scale}.")
        name = "`FourierFeatures(dtype=…)`"
        dtype = default_float() if dtype is None else require_dtype(dtype, name)
        self.drawn = Constant(scale * jax.random.normal(key, (count, in_size), dtype))

    @property
    def frequencies(self) -> Float[Array, "count in"]:
        return self.drawn.value

    def __call__(self, x: Float[Array, " in"], *, key: Any = None) -> Float[Array, " out"]:
        del key  # accepted so that it fits into `equinox.nn.Sequential`
        phase = 2 * jnp.pi * (self.frequencies @ x)
        return jnp.concatenate([jnp.cos(phase), jnp.sin(phase)])

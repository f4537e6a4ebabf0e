"""Activations that JAX does not have."""

import jax.numpy as jnp
from jaxtyping import Array, Float


def rbf(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """The Gaussian bump exp(-x²), an activation for small nets inside of known physics.

    Smooth and local: a weight changes the net in one place, so that few of them go far, and far from
    the data the net is constant. For wide or deep nets `jnp.tanh` or `jax.nn.silu` trains more easily.

    ```python
    import jax, jax.numpy as jnp
    from sciml import nets

    net = nets.MLP(2, 2, width=5, depth=3, activation=nets.rbf, key=jax.random.key(0))
    assert net(jnp.ones(2)).shape == (2,)
    ```

    **Reference:** used so in Ch. Rackauckas et al., *Universal differential equations for scientific
    machine learning*, 2020, arXiv 2001.04385.
    """
    return jnp.exp(-(x**2))

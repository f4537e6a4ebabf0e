"""Conjugate gradients for a symmetric, positive definite matrix that is known by its products."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def conjugate_gradients(
    product: Callable[[Array], Array], b: Float[Array, " n"], rtol: float, max_steps: int
) -> Float[Array, " n"]:
    """`product`^-1 b to a residual of `rtol |b|`, or as far as `max_steps` products lead."""
    start = jnp.sum(b**2)

    def cond(carry):
        _, _, _, rr, k = carry
        return (rr > rtol**2 * start) & (k < max_steps)

    def body(carry):
        x, r, d, rr, k = carry
        image = product(d)
        bend = jnp.sum(d * image)
        alpha = rr / jnp.where(bend == 0, 1, bend)
        r = r - alpha * image
        new = jnp.sum(r**2)
        d_new = r + new / jnp.where(rr == 0, 1, rr) * d
        return x + alpha * d, r, d_new, new, k + 1

    count = (0 * start).astype(jnp.result_type(int))
    return jax.lax.while_loop(cond, body, (0 * b, b, b, start, count))[0]

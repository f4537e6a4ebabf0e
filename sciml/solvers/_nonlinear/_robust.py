"""Losses that outliers don't dominate.

With `z = (r / s)^2` a residual adds `s^2 rho(z) / 2` to the loss. Near a point that is a sum of squares again, of
residuals and rows that are scaled so that gradient and curvature are right.

**Reference:** B. Triggs et al., *Bundle adjustment - a modern synthesis*, in: Vision algorithms, LNCS 1883 (2000),
298-372, doi 10.1007/3-540-44480-7_21 (section 4.3).
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..._compat import is_traced


def _huber(z):
    inside = z <= 1
    return jnp.where(inside, z, 2 * jnp.sqrt(jnp.where(inside, 1, z)) - 1)


_LOSSES: dict[str, Callable] = {
    "linear": lambda z: z,
    "huber": _huber,
    "soft_l1": lambda z: 2 * (jnp.sqrt(1 + z) - 1),
    "cauchy": jnp.log1p,
    "arctan": jnp.arctan,
}


def check_loss(loss, f_scale):
    if not (isinstance(loss, str) and loss in _LOSSES):
        names = ", ".join(map(repr, _LOSSES))
        raise ValueError(f"`loss` must be one of {names}, but got {loss!r}.")
    if is_traced(f_scale):
        return
    if isinstance(f_scale, str) or np.ndim(f_scale) or not f_scale > 0:
        raise ValueError(f"`f_scale` must be a positive number, but got {f_scale!r}.")


def weights(loss: str, f_scale, r):
    """By what the residuals are multiplied in the gradient."""
    if loss == "linear":
        return jnp.ones_like(r)
    return jax.jvp(_LOSSES[loss], ((r / f_scale) ** 2,), (jnp.ones_like(r),))[1]


def robust(loss: str, f_scale, rows, r) -> tuple[Array, Array, Array, Array]:
    """The loss, rows and residuals of the sum of squares that looks like it here, and what scales the rows."""
    if loss == "linear":
        return jnp.asarray(jnp.sum(r**2) / 2), rows, r, jnp.ones_like(r)
    rho = _LOSSES[loss]
    one = jnp.ones_like(r)
    slope_of = lambda z: jax.jvp(rho, (z,), (one,))
    z = (r / f_scale) ** 2
    (value, slope), (_, bend) = jax.jvp(slope_of, (z,), (one,))
    # The curvature of a loss that flattens is negative: what is left of it at least.
    curvature = jnp.maximum(slope + 2 * bend * z, jnp.finfo(r.dtype).eps)
    root = jnp.sqrt(curvature)
    return f_scale**2 * jnp.sum(value) / 2, rows * root[:, None], r * slope / root, root

"""Whether an explicit method was held back by stability."""

import diffrax
import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp

from ._auto_switch import AutoSwitch
from ._method import AbstractMethod


# Explicit methods are unstable on the negative axis beyond 2 (Heun) to 5.2 (Dopri8); a step size
# near this multiple of 1 / (spectral radius) was chosen by stability, not by accuracy.
_LIMIT = 1.5


def looks_stiff(method, fn, args, sol) -> bool:
    """Whether the last step size of a failed solve sat at the limit of stability."""
    if isinstance(method, AutoSwitch):
        method = method.for_state(sol._end)
    if isinstance(method, AbstractMethod):
        implicit = method.stiff and bool(sol.stats.get("stiff_attempts", 1))
    else:
        implicit = isinstance(method, diffrax.AbstractImplicitSolver)
    if implicit:
        return False
    t, h = sol.stats["reached"], sol.stats["last_step"]
    return bool(_ratio(fn, args, t, sol._end, h) > _LIMIT)


@eqx.filter_jit
def _ratio(field, args, t, y, h):
    """|h| times the spectral radius of the field's Jacobian, by power iteration."""
    flat, unravel = jax.flatten_util.ravel_pytree(y)

    def f(v):
        return jax.flatten_util.ravel_pytree(field(t, unravel(v), args))[0].astype(flat.dtype)

    jvp = jax.linearize(f, flat)[1]
    # Uneven, for a vector of ones may be what the Jacobian takes to nothing.
    start = jnp.sin(1 + jnp.arange(flat.size, dtype=flat.real.dtype) ** 2).astype(flat.dtype)
    start = start / jnp.linalg.norm(start)

    def one(v, _):
        w = jvp(v)
        size = jnp.linalg.norm(w)
        return w / jnp.where(size > 0, size, jnp.ones_like(size)).astype(w.dtype), size

    _, sizes = jax.lax.scan(one, start, length=30)
    # Complex pairs make single ratios oscillate: take the geometric mean of the later ones.
    tiny = jnp.finfo(sizes.dtype).tiny
    radius = jnp.exp(jnp.mean(jnp.log(jnp.maximum(sizes[10:], tiny))))
    return jnp.abs(h) * radius

"""A convex quadratic programme in a box: the trust-region step of a bounded problem.

Minimises `g.p + p.A.p / 2` over `low <= p <= high`, for `A` positive definite and small, by a
primal-dual active set: guess which bounds hold, solve for the rest, let go of bounds whose
multiplier has the wrong sign and take up those that the solution crosses, until nothing
changes. It ends after a few solves when `A` is nearly diagonal, as it is under strong damping.

**Reference:** M. Hintermüller, K. Ito, K. Kunisch, *The primal-dual active set strategy as a
semismooth Newton method*, SIAM J. Optim. 13 (2002), 865-888, doi 10.1137/S1052623401383558.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def box_qp(
    a: Float[Array, "n n"], g: Float[Array, " n"], low: Float[Array, " n"], high: Float[Array, " n"]
) -> Float[Array, " n"]:
    """The minimiser; nan if `a` is not positive definite. Always inside the box otherwise."""
    n = g.shape[0]
    # Unit diagonal first: the columns may differ by many orders of magnitude.
    scale = jax.lax.rsqrt(jnp.diag(a))
    a, g = a * jnp.outer(scale, scale), g * scale
    box = low, high
    low, high = low / scale, high / scale

    def solve(at_low, at_high):
        fixed = at_low | at_high
        value = jnp.where(at_low, low, jnp.where(at_high, high, 0))
        free = ~fixed
        rhs = jnp.where(free, -(g + a @ value), value)
        matrix = jnp.where(jnp.outer(free, free), a, jnp.eye(n, dtype=a.dtype))
        factor = jax.scipy.linalg.cho_factor(matrix, lower=True)
        return jax.scipy.linalg.cho_solve(factor, rhs)

    def cond(state):
        _, _, _, changed, k = state
        return changed & (k < 3 * n + 10)

    def body(state):
        at_low, at_high, _, _, k = state
        p = solve(at_low, at_high)
        multiplier = a @ p + g
        new_low = jnp.where(at_low, multiplier > 0, p < low)
        new_high = jnp.where(at_high, multiplier < 0, p > high)
        changed = jnp.any((new_low != at_low) | (new_high != at_high))
        return new_low, new_high, p, changed, k + 1

    # Start from the bounds that are touched already and that the gradient presses against.
    at_low, at_high = (low >= 0) & (g > 0), (high <= 0) & (g < 0)
    start = (at_low, at_high, jnp.zeros_like(g), jnp.all(g == g) | True, jnp.asarray(0))
    _, _, p, _, _ = jax.lax.while_loop(cond, body, start)
    # On a bound exactly, which scaling to and fro would miss by rounding.
    p, at_low, at_high = p * scale, p <= low, p >= high
    return jnp.where(at_low, box[0], jnp.where(at_high, box[1], jnp.clip(p, *box)))

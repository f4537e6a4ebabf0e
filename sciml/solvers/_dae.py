"""Differential-algebraic equations of index 1: `M y' = f` with a singular M.

Some combinations of the equations hold no derivative; they determine part of the state. It must fulfil
them from the start, and its slope follows from differentiating them once.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._compat import varying_like
from ._mass import Mass
from ._norms import ratio


_ITERATIONS = 200


def consistent(mass: Mass, field, y0: Array, rtol, atol) -> tuple[Array, Array, Array]:
    """Moves what the algebraic equations determine, and only that, until they hold at the start.

    By Newton's method with damping. Derivatives are those of the solution: the two last iterations, from the
    converged value, are differentiated as they are, which gives first and second derivatives. By the
    initial guess of what is determined they are zero.

    **Returns:**

    The consistent state, whether it was found, and what the equations left over.
    """
    s = varying_like(jnp.zeros((), y0.dtype), y0)
    frozen = jax.lax.stop_gradient(y0)
    eps = jnp.finfo(y0.dtype).eps
    none = varying_like(jnp.zeros((mass.equations,), y0.dtype), y0)

    def residual(y, z):
        return mass.residual(field(s, mass.moved(y, z)))

    def newton(y, z):
        # The Jacobian at `z` by columns.
        g, slope = jax.linearize(lambda z: residual(y, z), z)
        columns = jax.vmap(slope, out_axes=1)(varying_like(jnp.eye(z.shape[0], dtype=z.dtype), z))
        return g, jnp.linalg.solve(columns, -g)

    def one(carry):
        z, damping, _, k = carry
        g, step = newton(frozen, z)
        trial = z + damping * step
        better = jnp.sum(residual(frozen, trial) ** 2) <= jnp.sum(g**2)
        size = jnp.abs(mass.moved(frozen, trial))
        goal = jax.lax.stop_gradient(1e-3 * (atol + rtol * size) + 8 * eps * size)
        moves = jnp.abs(mass.moved(jnp.zeros_like(frozen), step))
        small = jnp.max(ratio(moves, goal)) <= 1
        z = jnp.where(better | small, trial, z)
        damping = jnp.where(better, jnp.minimum(2 * damping, 1), damping / 4)
        return z, damping, small, k + 1

    going = lambda carry: ~carry[2] & (carry[3] < _ITERATIONS)
    one_, false = varying_like(jnp.ones((), y0.dtype), y0), varying_like(jnp.array(False), y0)
    z, _, found, _ = jax.lax.while_loop(going, one, (none, one_, false, jnp.zeros((), int)))
    found = found & jnp.all(jnp.isfinite(z))
    z = jax.lax.stop_gradient(jnp.where(found, z, none))
    # The guess itself, whatever it was, has no derivative.
    guess = mass.projected(y0)
    y = y0 - guess + jax.lax.stop_gradient(guess)
    left = jax.lax.stop_gradient(residual(frozen, z))
    for _ in range(2):
        z = z + newton(y, z)[1]
    return mass.moved(y, z), found, left


def slope(mass: Mass, field, s: Array, y: Array) -> Array:
    """y' on a consistent state: the algebraic equations, differentiated by time, determine the rest."""
    f, along = jax.linearize(field, s, y)
    dy = mass.derivative(f)
    if not mass.equations:
        return dy
    still, one = jnp.zeros_like(s), jnp.ones_like(s)
    moved = lambda w: mass.moved(jnp.zeros_like(y), w)
    by_w = lambda w: mass.residual(along(still, moved(w)))
    matrix = jax.vmap(by_w, out_axes=1)(jnp.eye(mass.equations, dtype=y.dtype))
    return dy + moved(jnp.linalg.solve(matrix, -mass.residual(along(one, dy))))

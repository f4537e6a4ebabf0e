"""Linear least squares by orthogonal triangularisation, small ones without calls to a library.

All methods here need of a QR factorisation is R and Q^T b. Both stand in the triangle of the matrix `[A b]`.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._indexing import put, take


_SMALL = 28  # columns up to which reflections in place beat LAPACK's calls, on a CPU
_FEW = 4096  # numbers in the matrix up to which they do


def triangle(a: Float[Array, "m k"]) -> Float[Array, "k k"]:
    """The upper triangle R with R^T R = A^T A, by Householder reflections."""
    m, k = a.shape
    if m < k:
        a = jnp.concatenate([a, jnp.zeros((k - m, k), a.dtype)])
    if k > _SMALL or a.size > _FEW:
        return jnp.linalg.qr(a, mode="r")
    row = jnp.arange(a.shape[0])

    def reflect(j, a):
        column = jnp.where(row >= j, jax.lax.dynamic_index_in_dim(a, j, 1, keepdims=False), 0)
        head = jax.lax.dynamic_index_in_dim(column, j, keepdims=False)
        # Of a column with entries beyond the root of the largest number the squares would overflow.
        size = jnp.max(jnp.abs(column))
        size = jnp.where(size > 0, size, jnp.ones_like(size))
        norm = size * jnp.sqrt(jnp.sum((column / size) ** 2))
        end = jnp.where(head > 0, -norm, norm)
        u = put(column, j, head - end) / size
        length = jnp.sum(u**2)
        factor = jnp.where(length > 0, 2 / jnp.where(length > 0, length, 1), 0)
        return a - (factor * u)[:, None] * jnp.sum(u[:, None] * a, axis=0)[None]

    return jnp.triu(jax.lax.fori_loop(0, k, reflect, a)[:k])


def back(r: Float[Array, "n n"], b: Float[Array, " n"]) -> Float[Array, " n"]:
    """R^-1 b."""
    n = b.shape[0]
    if n > _SMALL:
        return jax.scipy.linalg.solve_triangular(r, b)

    def eliminate(i, x):
        k = n - 1 - i
        column = jax.lax.dynamic_index_in_dim(r, k, 1, keepdims=False)
        value = take(x, k) / take(column, k)
        above = jnp.arange(n) < k
        return put(x - jnp.where(above, value * column, 0), k, value)

    return jax.lax.fori_loop(0, n, eliminate, b)


def back_transposed(r: Float[Array, "n n"], b: Float[Array, " n"]) -> Float[Array, " n"]:
    """R^-T b."""
    n = b.shape[0]
    if n > _SMALL:
        return jax.scipy.linalg.solve_triangular(r, b, trans=1)

    def eliminate(k, x):
        row = take(r, k)
        value = take(x, k) / take(row, k)
        below = jnp.arange(n) > k
        return put(x - jnp.where(below, value * row, 0), k, value)

    return jax.lax.fori_loop(0, n, eliminate, b)


def null_direction(r: Float[Array, "n n"]) -> tuple[Float[Array, " n"], Float[Array, ""]]:
    """The direction in which a triangle with columns of unit length does least, and how much that is.

    By inverse iteration, which a tiny number in place of a zero on the diagonal does not disturb.
    """
    eps = jnp.finfo(r.dtype).eps
    diagonal = jnp.diag(r)
    tiny = jnp.where(jnp.abs(diagonal) > eps**2, diagonal, eps**2)
    regular = r + jnp.diag(tiny - diagonal)

    def iterate(_, v):
        v = back(regular, back_transposed(regular, v))
        v = v / jnp.max(jnp.abs(v))
        return v / jnp.sqrt(jnp.sum(v**2))

    v = jax.lax.fori_loop(0, 3, iterate, 1 + 0 * diagonal)
    return v, jnp.sqrt(jnp.sum((r @ v) ** 2))

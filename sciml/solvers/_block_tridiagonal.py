"""Block-tridiagonal systems by cyclic reduction.

Every second block row is eliminated, all of them at once, until few are left, which are taken row by
row: O(n) work in O(log n) vector operations. A banded matrix is
block-tridiagonal with blocks of its bandwidth. There is no pivoting between blocks (inside one there
is): whoever uses it must look at the residual.

Blocks are kept as arrays of shape `(b, b, m)`, vectors as `(b, m)`, so that m, which is long, is
what the machine's vector units run along.

**Reference:** W. Gander, G. H. Golub, *Cyclic reduction: history and applications*, in: Scientific
computing, Springer (1997), 73-85.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ._linear import inverse


_FEW = 128  # block rows up to which elimination row by row is as fast, and quicker to compile


class BlockTridiagonalMatrix(NamedTuple):
    """Block row k is `lower[k] x[k-1] + diag[k] x[k] + upper[k] x[k+1]`.

    `lower` of the first and `upper` of the last row are zero.
    """

    lower: Float[Array, "b b m"]
    diag: Float[Array, "b b m"]
    upper: Float[Array, "b b m"]


def product(a: Array, x: Array) -> Array:
    """Blocks times vectors, or times blocks."""
    if a.shape[0] > 8:  # then a library multiplies faster
        return jnp.einsum("ijm,j...m->i...m", a, x)
    # Written out, since XLA runs a sum over few numbers that are far apart slowly.
    if x.ndim == 2:
        terms = [a[:, j] * x[None, j] for j in range(len(x))]
        return sum(terms[1:], terms[0])
    terms = [a[:, j, None] * x[None, j] for j in range(len(x))]
    return sum(terms[1:], terms[0])


def matrix_vector(matrix: BlockTridiagonalMatrix, x: Array) -> Array:
    """The matrix times a vector of shape `(b, m)`."""
    before = jnp.pad(x[:, :-1], ((0, 0), (1, 0)))
    after = jnp.pad(x[:, 1:], ((0, 0), (0, 1)))
    return product(matrix.lower, before) + product(matrix.diag, x) + product(matrix.upper, after)


def factorise(matrix: BlockTridiagonalMatrix) -> Callable[[Array], Array]:
    """The function that solves for a right-hand side of shape `(b, m)`, linear in it."""
    b, _, m = matrix.diag.shape
    if m <= _FEW:
        return _row_by_row(matrix)
    if m % 2:
        wider = factorise(_with_identity(matrix))
        return lambda d: wider(jnp.pad(d, ((0, 0), (0, 1))))[:, :m]
    lower, diag, upper = (x[:, :, 0::2] for x in matrix)
    odd_lower, odd_diag, odd_upper = (x[:, :, 1::2] for x in matrix)
    inv = inverse(odd_diag)
    left, right = product(inv, odd_lower), product(inv, odd_upper)
    # The odd row before each even one; before the first there is none.
    shift = lambda x: jnp.pad(x[..., :-1], ((0, 0),) * (x.ndim - 1) + ((1, 0),))
    reduced = BlockTridiagonalMatrix(
        -product(lower, shift(left)),
        diag - product(lower, shift(right)) - product(upper, left),
        -product(upper, right),
    )
    solve_reduced = factorise(reduced)

    def solve(d):
        odd = product(inv, d[:, 1::2])
        x = solve_reduced(d[:, 0::2] - product(lower, shift(odd)) - product(upper, odd))
        after = jnp.pad(x[:, 1:], ((0, 0), (0, 1)))
        odd = odd - product(left, x) - product(right, after)
        return jnp.stack([x, odd], axis=-1).reshape(b, m)

    return solve


def _row_by_row(matrix: BlockTridiagonalMatrix) -> Callable[[Array], Array]:
    """Block Gaussian elimination, in order."""
    rows = lambda x: jnp.moveaxis(x, -1, 0)
    times = lambda a, x: product(a[:, :, None], x[..., None])[..., 0]

    def eliminate(before, row):
        lower, diag, upper = row
        inv = inverse((diag - times(lower, before))[:, :, None])[:, :, 0]
        after = times(inv, upper)
        return after, (inv, after)

    zero = 0 * matrix.diag[:, :, 0]
    lower = rows(matrix.lower)
    _, (inv, upper) = jax.lax.scan(eliminate, zero, (lower, rows(matrix.diag), rows(matrix.upper)))

    def forwards(before, row):
        inv, lower, d = row
        x = times(inv, d - times(lower, before))
        return x, x

    def backwards(after, row):
        upper, d = row
        x = d - times(upper, after)
        return x, x

    def solve(d):
        zero = 0 * d[:, 0]
        _, x = jax.lax.scan(forwards, zero, (inv, lower, d.T))
        _, x = jax.lax.scan(backwards, zero, (upper, x), reverse=True)
        return x.T

    return solve


def _with_identity(matrix: BlockTridiagonalMatrix) -> BlockTridiagonalMatrix:
    """One more block row, of the identity."""
    b = matrix.diag.shape[0]
    one = jnp.eye(b, dtype=matrix.diag.dtype)[:, :, None]
    wider = lambda x, last: jnp.concatenate([x, last], axis=2)
    zero = jnp.zeros_like(one)
    lower, diag, upper = matrix
    return BlockTridiagonalMatrix(wider(lower, zero), wider(diag, one), wider(upper, zero))

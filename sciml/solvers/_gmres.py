"""GMRES: linear systems by products alone, with the least residual in a growing Krylov space.

The space is built by Arnoldi's process, orthogonalised twice, and stops as soon as the residual, which Givens rotations
keep track of, is small enough. A preconditioner acts from the right, so that this residual is the true one.

**Reference:** Y. Saad, M. H. Schultz, *GMRES: a generalized minimal residual algorithm for solving nonsymmetric linear
systems*, SIAM J. Sci. Stat. Comput. 7 (1986), 856-869, doi 10.1137/0907058.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._compat import varying_like
from ._indexing import put, take
from ._norms import norm


def gmres(
    product: Callable[[Array], Array],
    b: Float[Array, " n"],
    rtol: Float[Array, ""],
    restart: int,
    max_steps: int,
    precondition: Callable[[Array], Array] | None = None,
) -> tuple[Float[Array, " n"], Bool[Array, ""], Int[Array, ""]]:
    """`product`^-1 b to a residual of `rtol |b|`.

    **Arguments:**

    - `restart`: directions kept. `max_steps`: products at most, to within one cycle.
    - `precondition`: about the inverse of `product`.

    **Returns:**

    The solution, whether it is one, and how many products it took.
    """
    restart = min(restart, b.shape[0])
    precondition = precondition or (lambda v: v)
    dtype = b.dtype
    # What the products of a `shard_map` vary over is known only by tracing one.
    like = jax.eval_shape(lambda b: product(precondition(b)), b)
    b = varying_like(b, like)
    size = norm(b)
    target = rtol * size
    count = (0 * size).astype(jnp.result_type(int))
    zero = lambda *shape: varying_like(jnp.zeros(shape, dtype), b)
    one = varying_like(jnp.eye(restart + 1, dtype=dtype), b)

    def cycle(carry):
        x, r, _, steps = carry
        beta = norm(r)
        basis = put(zero(restart + 1, b.shape[0]), 0 * steps, r / jnp.where(beta > 0, beta, 1))

        def extend(carry):
            basis, upper, turns, _, k = carry
            w = product(precondition(take(basis, k)))
            h = basis @ w
            w = w - h @ basis
            again = basis @ w
            w, h = w - again @ basis, h + again
            length = norm(w)
            basis = put(basis, k + 1, w / jnp.where(length > 0, length, 1))
            column = turns @ h
            # The rotation that turns `length` into the diagonal.
            head = take(column, k)
            diagonal = jnp.sqrt(head**2 + length**2)
            safe = jnp.where(diagonal > 0, diagonal, 1)
            c, s = jnp.where(diagonal > 0, head / safe, 1), length / safe
            a, e = take(turns, k), take(one, k + 1)
            turns = put(put(turns, k, c * a + s * e), k + 1, c * e - s * a)
            upper = put(
                upper, k, put(jnp.where(jnp.arange(restart + 1) < k, column, 0), k, diagonal)
            )
            left = beta * jnp.abs(take(take(turns, k + 1), 0 * k))
            return basis, upper, turns, left, k + 1

        going = lambda c: (c[3] > target) & (c[4] < restart)
        start = (basis, zero(restart, restart + 1), one, beta, 0 * steps)
        basis, upper, turns, _, k = jax.lax.while_loop(going, extend, start)
        used = jnp.arange(restart) < k
        upper = jnp.where(used[:, None], upper[:, :restart], one[:restart, :restart])
        right = jnp.where(used, beta * turns[:restart, 0], 0)
        y = jax.scipy.linalg.solve_triangular(upper, right, trans=1, lower=True)
        new = x + precondition(y @ basis[:restart])
        left = b - product(new)
        better = norm(left) < beta
        x, r = jnp.where(better, new, x), jnp.where(better, left, r)
        # A cycle that hardly helps won't be followed by one that does.
        stuck = ~(norm(left) < 0.9 * beta)
        return x, r, stuck, steps + k + 1

    # Twice, lest rounding asks for a cycle that brings nothing.
    solved = lambda r: norm(r) <= 2 * target
    going = lambda c: ~solved(c[1]) & ~c[2] & (c[3] < max_steps)
    x, r, _, steps = jax.lax.while_loop(going, cycle, (zero(b.shape[0]), b, size < 0, count))
    return x, solved(r), steps

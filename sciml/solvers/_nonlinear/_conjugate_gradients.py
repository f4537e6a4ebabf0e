"""What can be learnt of a symmetric matrix by its products: solutions, and its lowest eigenvalue."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._indexing import put, take
from .._norms import norm


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


_MANY = 1000  # unknowns above which a matrix is not formed


def solve_dense(linear: Callable[[Array], Array], b: Float[Array, " n"]) -> Float[Array, " n"]:
    """Solves `linear(x) = b`, differentiably, by the matrix."""
    return jnp.linalg.solve(jax.jacfwd(linear)(b), b)


def solve_symmetric(linear: Callable[[Array], Array], b: Float[Array, " n"]) -> Float[Array, " n"]:
    """Solves `linear(x) = b`, differentiably, by conjugate gradients if there are many unknowns."""
    if b.shape[0] <= _MANY:
        return solve_dense(linear, b)
    solve = lambda product, b: conjugate_gradients(product, b, 1e-10, 10 * b.shape[0])
    return jax.lax.custom_linear_solve(linear, b, solve, solve, symmetric=True)


def lowest_curvature(
    product: Callable[[Array], Array], weight: Float[Array, " n"], steps: int = 20
) -> tuple[Float[Array, " n"], Float[Array, ""], Float[Array, ""]]:
    """About the lowest eigenvalue, by Lanczos' process from a vector without pattern.

    **Arguments:**

    - `weight`: what the start is multiplied by: zero for unknowns to be left out.

    **Returns:**

    Its eigenvector of unit length, the eigenvalue, and the largest absolute one.
    """
    n = weight.shape[0]
    steps = min(steps, n)
    start = weight * jnp.sin(1 + 12.9898 * jnp.arange(n, dtype=weight.dtype) ** 1.5)
    length = norm(start)
    none = start[None] * jnp.zeros((steps + 1, 1), weight.dtype)
    basis = put(none, 0, start / jnp.where(length > 0, length, 1))

    def extend(k, carry):
        basis, images = carry
        image = product(take(basis, k))
        w = image
        for _ in range(2):
            w = w - (basis @ w) @ basis
        length = norm(w)
        # What is left of a space that is exhausted is rounding.
        more = length > 1e3 * jnp.finfo(w.dtype).eps * norm(image)
        basis = put(basis, k + 1, jnp.where(more, w / jnp.where(length > 0, length, 1), 0))
        return basis, put(images, k, image)

    basis, images = jax.lax.fori_loop(0, steps, extend, (basis, none))
    basis, images = basis[:steps], images[:steps]
    small = basis @ images.T
    values, vectors = jnp.linalg.eigh((small + small.T) / 2)
    v = vectors[:, 0] @ basis
    length = norm(v)
    # A zero vector of the basis has the eigenvalue zero, which does no harm.
    return v / jnp.where(length > 0, length, 1), values[0], jnp.max(jnp.abs(values))

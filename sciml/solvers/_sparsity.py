"""The sparsity pattern of a Jacobian, found by looking at it."""

from typing import Any

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike, PyTree

from .._custom_types import VectorField
from .._dtypes import as_state


_SAMPLES = 3
_CHUNK = 256  # columns at a time


def sparsity(
    fn: VectorField, y0: PyTree[Any], args: PyTree[Any] = None, *, t: ArrayLike = 0.0
) -> Any:
    """The pattern of df/dy, for [`Sparse`][sciml.solvers.Sparse].

    Computes the Jacobian at three states near `y0`, a few hundred columns at a time, and keeps where it is not
    zero. An entry that is zero at all of them, behind a condition that none of them fulfils, is missed: the
    steps then lose accuracy, and more of them are taken. Costs 3 n derivatives of the field, once.

    ```python
    import jax.numpy as jnp
    from sciml import solvers


    def ring(t, y, k):
        return k * (jnp.roll(y, 1) - 2 * y + jnp.roll(y, -1))


    y0 = jnp.zeros(200).at[0].set(1.0)
    structure = solvers.Sparse(solvers.sparsity(ring, y0, 1.0))
    sol = solvers.solve(ring, y0, jnp.array([0.0, 1.0]), 1e4, jac=structure)
    assert jnp.allclose(sol.ys[-1], 1 / 200, atol=1e-4)
    ```

    **Arguments:**

    - `fn`, `y0`, `args`: as in [`solve`][sciml.solvers.solve], with concrete values. `t`: the time.

    **Returns:**

    A boolean `scipy.sparse` array of shape `(n, n)` for the n real numbers of the state.
    """
    import scipy.sparse  # JAX requires SciPy, but does not import all of it

    y0, dtype = as_state(y0)
    flat, unravel = jax.flatten_util.ravel_pytree(y0)
    if jnp.iscomplexobj(flat):
        raise TypeError(
            "`sparsity` takes real states: write the real and imaginary parts as two leaves."
        )
    n = flat.shape[0]

    def field(v):
        dy = jax.tree.map(
            lambda d, x: jnp.asarray(d, x.dtype), fn(jnp.asarray(t, dtype), unravel(v), args), y0
        )
        return jax.flatten_util.ravel_pytree(dy)[0]

    @jax.jit
    def columns(v, first):
        seeds = (first + jnp.arange(min(_CHUNK, n)))[:, None] == jnp.arange(n)[None]
        slope = jax.linearize(field, v)[1]
        return jax.vmap(slope)(seeds.astype(v.dtype)) != 0  # nan counts as an entry

    noise = np.random.default_rng(0).uniform(-1, 1, (_SAMPLES, n))
    size = np.abs(np.asarray(flat))
    typical = float(size.mean()) or 1.0
    pattern = scipy.sparse.csr_array((n, n), dtype=bool)
    for row in noise:
        v = flat + jnp.asarray(0.1 * row * np.where(size > 0, size, typical), flat.dtype)
        parts = [
            scipy.sparse.coo_array(np.asarray(columns(v, first))[: n - first])
            for first in range(0, n, _CHUNK)
        ]
        pattern = pattern + scipy.sparse.vstack(parts).T
    return scipy.sparse.csr_array(pattern).astype(bool)

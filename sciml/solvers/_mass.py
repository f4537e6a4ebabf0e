"""Mass matrices: M y' = f, singular ones included."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._compat import is_traced


_LARGEST = 2000  # rows of a matrix that is not diagonal, which is decomposed as a dense one


class Mass:
    """A constant mass matrix M of `M y' = f`, as a value that can be compared.

    **Arguments:**

    - `matrix`: of shape `(n, n)`, dense or of `scipy.sparse`, or its diagonal, of shape `(n,)`.

    **Raises:**

    `ValueError` for shapes that are not square, numbers that are not finite, and matrices of more than 2,000
    rows that are not diagonal.
    """

    # `rows`, `cols`, `values`: its entries; `diagonal`: of a diagonal one, else None; `algebraic`: which rows
    # are zero, of a diagonal one, else bases of its left and right null spaces; `pseudo_inverse`: gives the
    # part of y' that the differential equations determine.

    def __init__(self, matrix: Any):
        import scipy.sparse  # JAX requires SciPy, but does not import all of it

        if is_traced(matrix):
            raise TypeError(
                "`mass` is a constant of the program, but is traced here: make it with NumPy, or outside of "
                "`jit` and the like."
            )
        if not scipy.sparse.issparse(matrix):
            try:
                matrix = np.asarray(matrix)
                matrix = matrix.astype(
                    float, casting="same_kind" if matrix.dtype.kind == "c" else "unsafe"
                )
            except (TypeError, ValueError):
                raise TypeError(
                    f"`mass` must be a matrix of real numbers, but got {matrix!r}."
                ) from None
            matrix = np.atleast_2d(matrix) if matrix.ndim != 1 else scipy.sparse.diags_array(matrix)
        coo: Any = scipy.sparse.coo_array(matrix, copy=True)
        coo.sum_duplicates()
        if coo.ndim != 2 or coo.shape[0] != coo.shape[1]:
            raise ValueError(
                f"`mass` must be a square matrix or the diagonal of one, but has shape {coo.shape}."
            )
        n = int(coo.shape[0])
        values = np.asarray(coo.data, float)
        if not np.isfinite(values).all():
            raise ValueError("`mass` must be finite.")
        used = values != 0
        self.size = n
        self.rows, self.cols = (np.asarray(x)[used].astype(np.int64) for x in coo.coords)
        self.values = values[used]
        self._key = (n, self.rows.tobytes(), self.cols.tobytes(), self.values.tobytes())
        self.diagonal = None
        if (self.rows == self.cols).all():
            self.diagonal = np.zeros(n)
            self.diagonal[self.rows] = self.values
        self._decompose()

    def _decompose(self):
        n = self.size
        if self.diagonal is not None:
            self.algebraic = np.flatnonzero(self.diagonal == 0)
            safe = np.where(self.diagonal == 0, 1.0, self.diagonal)
            self.pseudo_inverse = np.where(self.diagonal == 0, 0.0, 1 / safe)
            return
        if n > _LARGEST:
            raise ValueError(
                f"A `mass` matrix that is not diagonal is decomposed as a dense one, for up to {_LARGEST} "
                f"numbers; this state has {n}."
            )
        u, sizes, vt = np.linalg.svd(self._dense())
        rank = int((sizes > n * np.finfo(float).eps * sizes.max(initial=1e-300)).sum())
        self.algebraic = (u[:, rank:].T, vt[rank:])
        # by the same rank as the null spaces
        self.pseudo_inverse = (vt[:rank].T / sizes[:rank]) @ u[:, :rank].T

    @property
    def equations(self) -> int:
        """How many equations are algebraic; none of a regular matrix."""
        return len(self.algebraic if self.diagonal is not None else self.algebraic[0])

    def residual(self, f: Array) -> Array:
        """What the algebraic equations leave over."""
        if self.diagonal is not None:
            return f[jnp.asarray(self.algebraic)]
        return jnp.asarray(self.algebraic[0], f.dtype) @ f

    def projected(self, y: Array) -> Array:
        """The part of `y` that the algebraic equations determine."""
        if self.diagonal is not None:
            return jnp.where(jnp.asarray(self.diagonal == 0), y, 0)
        right = jnp.asarray(self.algebraic[1], y.dtype)
        return right.T @ (right @ y)

    def moved(self, y: Array, z: Array) -> Array:
        """`y` with what the algebraic equations determine moved by `z`."""
        if self.diagonal is not None:
            return y.at[jnp.asarray(self.algebraic)].add(z)
        return y + z @ jnp.asarray(self.algebraic[1], y.dtype)

    def times(self, x: Array) -> Array:
        if self.diagonal is not None:
            return jnp.asarray(self.diagonal, x.dtype) * x
        if 8 * self.values.size > self.size**2:
            return self.dense(x.dtype) @ x
        products = jnp.asarray(self.values, x.dtype) * x[jnp.asarray(self.cols)]
        return jnp.zeros_like(x).at[jnp.asarray(self.rows)].add(products)

    def derivative(self, f: Array) -> Array:
        """The part of y' that `M y' = f` determines."""
        inverse = jnp.asarray(self.pseudo_inverse, f.dtype)
        return inverse * f if inverse.ndim == 1 else inverse @ f

    def dense(self, dtype) -> Array:
        return jnp.asarray(self._dense(), dtype)

    def _dense(self) -> np.ndarray:
        dense = np.zeros((self.size, self.size))
        dense[self.rows, self.cols] = self.values
        return dense

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other) -> bool:
        return isinstance(other, Mass) and self._key == other._key


def as_mass(mass: Any) -> Mass | None:
    return mass if mass is None or isinstance(mass, Mass) else Mass(mass)

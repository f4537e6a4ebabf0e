"""Where the entries of a structured Jacobian lie, worked out once with NumPy.

A `Layout` says which columns are differentiated together, in which order the rows and columns stand, and from
where each entry of the block-tridiagonal matrix is gathered.
"""

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array


class Pattern:
    """Positions of the entries of a square matrix, as a value that can be compared."""

    def __init__(self, size: int, rows: np.ndarray, cols: np.ndarray):
        self.size = size
        order = np.lexsort((cols, rows))
        self.rows, self.cols = rows[order], cols[order]
        self._key = (size, self.rows.tobytes(), self.cols.tobytes())

    @staticmethod
    def of(matrix: Any) -> "Pattern":
        """From a matrix, dense or of `scipy.sparse`."""
        if isinstance(matrix, Pattern):
            return matrix
        import scipy.sparse  # JAX requires SciPy, but does not import all of it

        matrix = matrix if scipy.sparse.issparse(matrix) else np.asarray(matrix)
        matrix = scipy.sparse.coo_array(matrix, copy=True)
        matrix.sum_duplicates()
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
            raise ValueError(
                f"A sparsity pattern is a square matrix, but has shape {matrix.shape}."
            )
        used = np.asarray(matrix.data) != 0
        rows, cols = (np.asarray(x)[used].astype(np.int64) for x in matrix.coords)
        return Pattern(int(matrix.shape[0]), rows, cols)

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other) -> bool:
        return isinstance(other, Pattern) and self._key == other._key

    def __repr__(self) -> str:
        return f"Pattern({self.size}x{self.size}, {self.rows.size} entries)"


class Layout:
    """A structured matrix of n numbers, in blocks of `size`, or as a dense one where `size` is `None`.

    **Arguments:**

    - `pattern`: where its entries lie.
    - `colours`: of the columns; those of one colour share no row.
    - `order`: which row and column stands where; `None` as they are.
    - `is_diagonal`: whether only the diagonal blocks are used.
    - `user`: the position of each entry in what a user's function gives, and its size.
    """

    def __init__(self, pattern, colours, size, order=None, is_diagonal=False, user=None):
        n = pattern.size
        self.n, self.size, self.is_diagonal = n, size, is_diagonal
        self.colours, self.order = colours, order
        self.inverse = None if order is None else np.argsort(order)
        by_colour = colours[pattern.cols] * n + pattern.rows
        self.by_colour = self._index(pattern, by_colour, (1 + int(colours.max())) * n)
        self.by_user = None if user is None else self._index(pattern, *user)

    @property
    def rows(self) -> int:
        return -(-self.n // self.size)

    @property
    def _shape(self) -> tuple[int, ...]:
        b = self.size
        return (self.n, self.n) if b is None else (3, b, b, self.rows)

    def _places(self, rows, cols):
        """Flat positions of entries in the blocks; -1 where there is no room."""
        if self.size is None:
            return rows * self.n + cols
        if self.inverse is not None:
            rows, cols = self.inverse[rows], self.inverse[cols]
        b, m = self.size, self.rows
        which = cols // b - rows // b + 1
        inside = (which >= 0) & (which <= 2)
        if self.is_diagonal:
            inside = which == 1
        flat = ((which * b + rows % b) * b + cols % b) * m + rows // b
        return np.where(inside, flat, -1)

    def _index(self, pattern, sources, nothing: int):
        places = self._places(pattern.rows, pattern.cols)
        assert (places >= 0).all(), "an entry of the pattern lies outside of its blocks"
        index = np.full(self._shape, nothing, np.int32)
        index.reshape(-1)[places] = sources
        return index

    def seeds(self, dtype) -> Array:
        """The directions in which the field is differentiated, one for each colour."""
        return jnp.asarray(np.arange(self.colours.max() + 1)[:, None] == self.colours, dtype)

    def gather(self, values: Array, index: np.ndarray) -> Array:
        """The entries from where they were computed; zero where there is none."""
        flat = jnp.concatenate([values.reshape(-1), jnp.zeros_like(values, shape=(1,))])
        return flat.at[jnp.asarray(index)].get(mode="promise_in_bounds")

    def identity(self, dtype):
        each = np.arange(self.n)
        return self.place_constants(each, each, np.ones(self.n), dtype)

    def place_constants(self, rows, cols, values, dtype):
        """Constant blocks with these entries."""
        places = self._places(rows, cols)
        if (places < 0).any():
            k = int(np.argmax(places < 0))
            raise ValueError(
                f"The mass matrix has an entry in row {rows[k]}, column {cols[k]}, where the declared "
                "structure of the Jacobian has none. Declare a structure that holds both."
            )
        out = np.zeros(self._shape)
        np.add.at(out.reshape(-1), places, values)
        return jnp.asarray(out, dtype)

    def padding(self, dtype) -> Array:
        """The identity on what fills up the last block."""
        b, m = self.size, self.rows
        out = np.zeros((b, b, m))
        for i in range(self.n % b, b) if self.n % b else ():
            out[i, i, -1] = 1
        return jnp.asarray(out, dtype)

    def to_blocks(self, x: Array) -> Array:
        if self.order is not None:
            x = x[jnp.asarray(self.order)]
        x = jnp.pad(x, (0, self.rows * self.size - self.n))
        return x.reshape(self.rows, self.size).T

    def from_blocks(self, x: Array) -> Array:
        x = x.T.reshape(-1)[: self.n]
        return x if self.inverse is None else x[jnp.asarray(self.inverse)]


@functools.lru_cache(maxsize=32)
def banded(n: int, lower: int, upper: int, size: int | None = None) -> Layout:
    """Diagonals, in blocks of the bandwidth, or of another size that must hold them."""
    i = np.arange(n)
    offsets = np.arange(-lower, upper + 1)
    rows, cols = np.repeat(i, offsets.size), (i[:, None] + offsets).reshape(-1)
    inside = (cols >= 0) & (cols < n)
    if size is not None:
        inside &= np.abs(cols // size - rows // size) <= 1
    rows, cols = rows[inside], cols[inside]
    pattern = Pattern(n, rows, cols)
    user = (upper + pattern.rows - pattern.cols) * n + pattern.cols
    colours = i % (3 * size if size is not None else lower + upper + 1)
    user = (user, (lower + upper + 1) * n)
    return Layout(pattern, colours, size or max(lower, upper, 1), user=user)


@functools.lru_cache(maxsize=32)
def block_diagonal(n: int, size: int) -> Layout:
    i = np.arange(n)
    rows = np.repeat(i, size)
    cols = (i[:, None] // size * size + np.arange(size)).reshape(-1)
    return Layout(Pattern(n, rows, cols), i % size, size, is_diagonal=True)


@functools.lru_cache(maxsize=32)
def of_pattern(pattern: Pattern) -> Layout:
    """Any pattern: in an order of small bandwidth, or dense if there is none."""
    import scipy.sparse.csgraph

    n = pattern.size
    ones = np.ones(pattern.rows.size, np.int8)
    matrix = scipy.sparse.csr_array((ones, (pattern.rows, pattern.cols)), (n, n))
    colours = _colour(matrix)
    order = scipy.sparse.csgraph.reverse_cuthill_mckee(
        scipy.sparse.csr_matrix(matrix + matrix.T), symmetric_mode=True
    )
    place = np.argsort(order)
    natural = int(np.abs(pattern.rows - pattern.cols).max(initial=1))
    reordered = int(np.abs(place[pattern.rows] - place[pattern.cols]).max(initial=1))
    width = max(min(natural, reordered), 1)
    if 4 * width > n:
        return Layout(pattern, colours, None)
    return Layout(pattern, colours, width, None if natural <= reordered else order)


def _colour(matrix) -> np.ndarray:
    """Greedy colouring: columns of one colour share no row (Curtis, Powell and Reid, 1974)."""
    by_col = matrix.tocsc()
    by_row = matrix.tocsr()
    colours = np.full(matrix.shape[0], -1)
    for j in range(matrix.shape[0]):
        rows = by_col.indices[by_col.indptr[j] : by_col.indptr[j + 1]]
        near = [by_row.indices[by_row.indptr[i] : by_row.indptr[i + 1]] for i in rows]
        taken = set(colours[np.concatenate(near)].tolist()) if near else set()
        colour = 0
        while colour in taken:
            colour += 1
        colours[j] = colour
    return colours

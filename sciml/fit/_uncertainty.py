"""Covariances of estimates, and which directions the data leave open.

Everything starts from rows `A` with `A^T A` the expected (Gauss-Newton) information. Columns are
scaled to length one, so that units do not matter, and decomposed by singular values: squares
would lose half the digits just where rank is in question.
"""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Uncertainty:
    """Curvature at an optimum, in the flat parameters.

    - `covariance`: of what is determined; zero rows for parameters at a bound.
    - `null`: orthonormal columns, in scaled parameters, of undetermined directions.
    - `known`: which parameters have a standard error.
    - `groups`: indices of the parameters that each undetermined direction ties together.
    """

    covariance: np.ndarray
    null: np.ndarray
    length: np.ndarray
    known: np.ndarray
    groups: tuple[tuple[int, ...], ...]


def uncertainty(rows: np.ndarray, active: np.ndarray, variance: float) -> Uncertainty:
    """**Arguments:**

    - `rows`: of shape `(row, parameter)`.
    - `active`: non-zero for parameters at a bound; the rest is conditional on them.
    - `variance`: multiplies the covariance: s^2 if the noise level is unknown, else 1.
    """
    n = rows.shape[1]
    free = np.flatnonzero(active == 0)
    a = np.asarray(rows, np.float64)[:, free]
    length = np.linalg.norm(a, axis=0)
    length = np.where(length > 0, length, 1.0)
    eps = np.finfo(rows.dtype).eps
    # The columns come from a discretised solve: their noise is some orders above rounding.
    cutoff = max(a.shape) * eps ** (2 / 3)
    _, values, vt = np.linalg.svd(a / length, full_matrices=True)
    values = np.concatenate([values, np.zeros(len(free) - len(values))])
    top = values[0] if values.size and values[0] > 0 else 1.0
    open_ = values <= cutoff * top
    v = vt.T
    inverse = np.where(open_, 0.0, 1 / np.where(open_, 1.0, values) ** 2)
    covariance = np.zeros((n, n))
    block = variance * (v * inverse) @ v.T / np.outer(length, length)
    covariance[np.ix_(free, free)] = block
    null = np.zeros((n, int(open_.sum())))
    null[free] = v[:, open_]
    known = np.zeros(n, bool)
    known[free] = np.sum(null[free] ** 2, axis=1) < 1e-6
    full_length = np.ones(n)
    full_length[free] = length
    return Uncertainty(covariance, null, full_length, known, _groups(null))


def _groups(null: np.ndarray) -> tuple[tuple[int, ...], ...]:
    """The parameters tied by each direction, after making the directions as sparse as easy."""
    if not null.shape[1]:
        return ()
    # Row-reduce the basis: each direction then holds one pivot parameter of its own.
    basis = null.T.copy()
    used = []
    for row in range(basis.shape[0]):
        rest = np.abs(basis[row]).copy()
        rest[used] = 0
        pivot = int(np.argmax(rest))
        used.append(pivot)
        basis[row] /= basis[row, pivot]
        for other in range(basis.shape[0]):
            if other != row:
                basis[other] -= basis[other, pivot] * basis[row]
    out = []
    for row in basis:
        size = np.abs(row) / np.max(np.abs(row))
        out.append(tuple(int(i) for i in np.flatnonzero(size > 1e-3)))
    return tuple(out)


def undetermined(rows: np.ndarray, u: Uncertainty) -> np.ndarray:
    """Which linear functions `rows @ parameters` have a part that the data leave open."""
    if not u.null.shape[1]:
        return np.zeros(rows.shape[0], bool)
    scaled = rows / u.length
    size = np.linalg.norm(scaled, axis=1)
    open_part = np.linalg.norm(scaled @ u.null, axis=1)
    return open_part > 1e-4 * np.where(size > 0, size, 1.0)

"""Residuals with correlated errors, made independent.

With the covariance $C = L L^T$ of the noise and residuals $r$, the numbers $L^{-1} r$ have unit
variance and no correlation (if $C$ is right), so that $r^T C^{-1} r$ is their sum of squares and
$\\log\\det C / 2$ the sum of the logarithms of the diagonal of $L$. The errors of the values that were
seen have the marginal covariance: rows and columns of missing ones are left out.
"""

from typing import Any

import numpy as np

from ._numbers import numbers


def whitening(covariance: Any, seen: np.ndarray) -> tuple[np.ndarray, float]:
    """What makes the residuals of the values seen independent, and the weight of it.

    **Arguments:**

    - `covariance`: of shape `(observable, observable)`, `(time, observable, observable)` or
      `(time * observable, time * observable)`, the latter in C order.
    - `seen`: of shape `(time, observable)`.

    **Returns:**

    The inverses of the Cholesky factors, of shape `(block, m, m)` with zeros for missing values,
    and the sum of the logarithms of the factors' diagonals.
    """
    blocks, mask = _blocks(numbers(covariance, "covariance"), seen)
    out = np.zeros((*mask.shape, mask.shape[1]))
    log_det = 0.0
    done: dict[bytes, tuple] = {}  # of equal covariances one for each pattern of missing values
    for i, some in enumerate(mask):
        key = some.tobytes()
        if len(blocks) > 1 or key not in done:
            where = f" of row {i} (counted from 0)" if len(blocks) > 1 else ""
            block = blocks[i if len(blocks) > 1 else 0]
            done[key] = _inverse_factor(block, some, where)
        inverse, logs = done[key]
        out[i] = inverse
        log_det += logs
    return out, log_det


def _blocks(array: np.ndarray, seen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    n, m = seen.shape
    if array.shape == (m, m):
        return array[None], seen
    if array.shape == (n, m, m):
        return array, seen
    if array.shape == (n * m, n * m):
        return array[None], seen.reshape(1, n * m)
    hint = " For errors without correlation use `sigma`." if array.ndim < 2 else ""
    shapes = dict.fromkeys([(m, m), (n, m, m), (n * m, n * m)])  # without repetitions
    raise ValueError(
        f"`covariance` has shape {array.shape}, but with {n} times and {m} observables must have "
        f"one of the shapes {', '.join(map(str, shapes))}: for each time the same, for each time "
        f"another, or over all values, time by time.{hint}"
    )


def _inverse_factor(covariance: np.ndarray, seen: np.ndarray, where: str):
    rows = np.flatnonzero(seen)
    c = covariance[np.ix_(rows, rows)]
    if not np.all(np.isfinite(c)):
        i, j = rows[np.argwhere(~np.isfinite(c))[0]]
        raise ValueError(f"`covariance`{where} is {covariance[i, j]} at ({i}, {j}).")
    variances = np.diagonal(c)
    if np.any(variances <= 0):
        i = rows[np.argmin(variances)]
        raise ValueError(
            f"`covariance`{where} must be positive definite, but the variance at ({i}, {i}) is "
            f"{covariance[i, i]:g}. An exact value would have infinite weight."
        )
    # Units differ between observables: judge the correlations.
    scales = np.sqrt(variances)
    r = c / np.outer(scales, scales)
    skew = np.abs(r - r.T)
    if np.any(skew > 1e-5):  # rounding in single precision is allowed
        i, j = rows[list(np.unravel_index(np.argmax(skew), skew.shape))]
        raise ValueError(
            f"`covariance`{where} must be symmetric, but is {covariance[i, j]:g} at ({i}, {j}) and "
            f"{covariance[j, i]:g} at ({j}, {i})."
        )
    r = (r + r.T) / 2
    inverse = np.zeros_like(covariance)
    if not rows.size:
        return inverse, 0.0
    smallest = np.linalg.eigvalsh(r)[0]
    if smallest <= 10 * rows.size * np.finfo(float).eps:
        raise ValueError(
            f"`covariance`{where} must be positive definite, but the smallest eigenvalue of its "
            f"correlations is {smallest:.3g}. Leave out values that others determine, or add a "
            "variance of their own to the diagonal."
        )
    factor = np.linalg.cholesky(r)
    inverse[np.ix_(rows, rows)] = np.linalg.inv(factor) / scales
    return inverse, float(np.sum(np.log(scales * np.diagonal(factor))))

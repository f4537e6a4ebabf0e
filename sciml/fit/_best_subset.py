"""Best-subset selection: the fewest terms that explain a function to a tolerance.

All subsets of one term are tried, then all of two, and so on, as long as there are not too many; beyond that the best
subsets are extended by each term in turn. The errors of all subsets of a size are found at once, from the inner
products of the terms.

**Reference:** D. Bertsimas, A. King, R. Mazumder, *Best subset selection via a modern optimization lens*, Ann. Stat. 44
(2016), 813-852, doi 10.1214/15-AOS1388, for what it does and thresholding doesn't.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .._checks import integer_at_least
from ._library import Library
from ._sparse_law import least_squares, rms, samples, SparseLaw


_EXHAUSTIVE = 200_000  # subsets of a size that are all tried
_BEAM = 200  # subsets that are extended beyond that
_FEW = 20  # subsets whose errors are computed to all digits


def best_subset(
    library: Library,
    x: Any,
    y: Any,
    *,
    tolerance: float = 0.1,
    max_terms: int = 5,
    outputs: Sequence[str] | None = None,
) -> SparseLaw:
    """Finds the fewest terms that explain a function to a tolerance, by trying the subsets of the library.

    All of them, as long as there are at most 200,000 of a size; beyond that those that extend the 200 best ones of the
    size below.

    For the learnt part of a universal differential equation: `x` are the states along the trajectories, and `y` what
    the network makes of them, which is wrong by some percent. Where such values, on a few trajectories, leave many
    terms possible, the fewest are the best guess; fit them to the data in the network's place, and the report tells
    whether they suffice.

    **Arguments:**

    - `library`, `x`, `y`, `outputs`: as for [`stlsq`][sciml.fit.stlsq].
    - `tolerance`: the root mean square of what may be left unexplained, relative to that of the output: as much as the
        values are thought to be wrong by.
    - `max_terms`: more are not tried; the text and `error` tell what the best ones leave.

    **Returns:** a `SparseLaw`: a module, with its equations as text.

    **Raises:** `ValueError` for shapes that do not fit, values that are not finite, and fewer samples than twice
    `max_terms`.

    !!! example

        ```python
        import jax
        from sciml import fit

        x = jax.random.uniform(jax.random.key(0), (200, 2), minval=-1.0, maxval=1.0)
        y = (
            2 * x[:, 0]
            - 3 * x[:, 0] * x[:, 1]
            + 0.05 * jax.random.normal(jax.random.key(1), (200,))
        )
        law = fit.best_subset(fit.Library.polynomials(["p", "q"], 5), x, y, outputs=["growth"])
        print(law, law.error)
        ```
    """
    if not 0 < tolerance < 1:
        raise ValueError(
            f"`tolerance` is relative to the output and must lie between 0 and 1, but got {tolerance}."
        )
    given = samples(library, x, y, outputs)
    most = integer_at_least("max_terms", max_terms)
    if len(given.table) < 2 * most:
        raise ValueError(
            f"{len(given.table)} samples can't tell which of {given.table.shape[1]} terms to take, up to "
            f"{most} at once: give at least {2 * most}, or lower `max_terms`."
        )
    useful = np.flatnonzero(given.table.any(axis=0))
    table = given.table[:, useful]
    gram = table.T @ table / len(table)
    supports = []
    for value in given.values.T:
        moments, square = table.T @ value / len(value), float(np.mean(value**2))
        best = np.zeros(0, int)
        beam = best[None]
        for size in range(1, min(most, len(useful)) + 1):
            if math.sqrt(square) <= tolerance:
                break
            subsets = _subsets(len(useful), size, beam)
            errors = square - _explained(gram, moments, subsets)
            order = np.argsort(errors, kind="stable")
            beam = subsets[order[:_BEAM]]
            # Differences of inner products have lost the small errors: the first few are looked at anew.
            exact = [_error(table[:, s], value) for s in subsets[order[:_FEW]]]
            best = subsets[order[int(np.argmin(exact))]]
            if min(exact) <= tolerance:
                break
        supports.append(useful[best])
    return given.law(supports, tolerance)


def _error(table: np.ndarray, value: np.ndarray) -> float:
    return float(rms(value - table @ least_squares(table, value)))


def _subsets(number: int, size: int, beam: np.ndarray) -> np.ndarray:
    """All subsets of a size, or those that extend the best ones of the size below."""
    if math.comb(number, size) <= _EXHAUSTIVE:
        return np.array(list(itertools.combinations(range(number), size)), int)
    longer = {tuple(sorted({*subset, i})) for subset in beam.tolist() for i in range(number)}
    return np.array(sorted(subset for subset in longer if len(subset) == size), int)


def _explained(gram: np.ndarray, moments: np.ndarray, subsets: np.ndarray) -> np.ndarray:
    """The mean square that least squares with each of the subsets explains."""
    blocks = gram[subsets[:, :, None], subsets[:, None, :]]
    # Terms that depend on others explain no more than those: a hair on the diagonal keeps the blocks regular.
    blocks = blocks + 1e-12 * np.eye(subsets.shape[1])
    right = moments[subsets]
    return np.sum(right * np.linalg.solve(blocks, right[..., None])[..., 0], axis=1)

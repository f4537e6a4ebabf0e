"""Sequentially thresholded least squares.

Fit all terms, drop those that contribute little, fit the rest, until none is dropped. What is little is judged by what
a term contributes, the root mean square of coefficient times term over the samples, relative to that of the function.
So units change nothing, where a threshold for bare coefficients, as in the first paper, does.

**References:** S. L. Brunton, J. L. Proctor, J. N. Kutz, *Discovering governing equations from data by sparse
identification of nonlinear dynamical systems*, PNAS 113 (2016), 3932-3937, doi 10.1073/pnas.1517384113. L. Zhang,
H. Schaeffer, *On the convergence of the SINDy algorithm*, Multiscale Model. Simul. 17 (2019), 948-972, doi
10.1137/18M1189828.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ._library import Library
from ._sparse_law import least_squares, samples, SparseLaw


def stlsq(
    library: Library,
    x: Any,
    y: Any,
    *,
    threshold: float = 0.1,
    ridge: float = 0.0,
    outputs: Sequence[str] | None = None,
) -> SparseLaw:
    """Finds the few terms that make up a function, by sequentially thresholded least squares.

    For whole equations (SINDy) `y` are the slopes, of smoothed data. It needs samples on which the terms differ: states
    that cover the plane, of several trajectories if need be. On a single trajectory many terms are nearly dependent,
    and one false step can't be taken back: [`best_subset`][sciml.fit.best_subset] is safer there, and for values that
    are wrong by more than a percent or so.

    **Arguments:**

    - `library`: the candidate terms.
    - `x`: the inputs, shape `(sample, input)`; or a list of such arrays, one for each trajectory, of any lengths.
    - `y`: the values of the function there, `(sample, output)` or `(sample,)`, or a list likewise.
    - `threshold`: terms are dropped that contribute less than this, the root mean square over the samples relative to
        that of the output.
    - `ridge`: adds this times the squared contribution of each term to the mean square; steadies libraries whose terms
        are nearly dependent. The terms that are left at the end are fitted without it.
    - `outputs`: names for the text, `f0`, `f1`, ... if none are given.

    **Returns:** a `SparseLaw`: a module, with its equations as text.

    **Raises:** `ValueError` for shapes that do not fit, values that are not finite, and fewer samples than terms.

    !!! example

        ```python
        import jax
        import jax.numpy as jnp
        from sciml import fit

        x = jax.random.uniform(jax.random.key(0), (200, 2), minval=-1.0, maxval=1.0)
        y = 2 * x[:, 0] - 3 * x[:, 0] * x[:, 1]
        law = fit.stlsq(fit.Library.polynomials(["p", "q"], 3), x, y, outputs=["growth"])
        print(law)  # growth = 2 p - 3 p q
        print(law(jnp.array([1.0, 0.5])))
        ```
    """
    if not 0 < threshold < 1:
        raise ValueError(
            f"`threshold` is relative to the output and must lie between 0 and 1, but got {threshold}."
        )
    if not ridge >= 0:
        raise ValueError(f"`ridge` must not be negative, but got {ridge}.")
    given = samples(library, x, y, outputs)
    number, terms = given.table.shape
    if number < terms:
        raise ValueError(
            f"{number} samples can't tell {terms} terms apart: give more samples or fewer terms."
        )
    supports = []
    for value in given.values.T:
        active = np.flatnonzero(given.table.any(axis=0))
        while active.size:
            large = np.abs(_regression(given.table[:, active], value, ridge)) >= threshold
            if large.all():
                break
            active = active[large]
        supports.append(active)
    return given.law(supports)


def _regression(table: np.ndarray, value: np.ndarray, ridge: float) -> np.ndarray:
    if ridge:
        rows = np.sqrt(ridge * len(value)) * np.eye(table.shape[1])
        table, value = np.vstack([table, rows]), np.concatenate([value, np.zeros(len(rows))])
    return least_squares(table, value)

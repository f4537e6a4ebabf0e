"""Explicit Runge-Kutta methods as tables of coefficients.

A method is data: the engines (`_fixed.py` for equal steps, `_adaptive.py` for error control)
know what to do with it.
"""

from fractions import Fraction as F
from typing import ClassVar

import diffrax
import equinox as eqx
import numpy as np


def _table(rows: list[list]) -> np.ndarray:
    """A square, strictly lower triangular matrix from its rows below the diagonal."""
    n = len(rows) + 1
    a = np.zeros((n, n))
    for i, row in enumerate(rows, start=1):
        a[i, :i] = [float(x) for x in row]
    return a


class AbstractExplicitMethod(eqx.Module):
    """An explicit Runge-Kutta method.

    # notation: stages k_i = f(t + c_i h, y + h sum_j a_ij k_j), step y + h sum_i b_i k_i
    """

    a: eqx.AbstractClassVar[np.ndarray]
    b: eqx.AbstractClassVar[np.ndarray]
    order: eqx.AbstractClassVar[int]
    diffrax_solver: eqx.AbstractClassVar[type[diffrax.AbstractSolver] | None]


class RK4(AbstractExplicitMethod):
    """The classical Runge-Kutta method, on fixed steps (`steps=`).

    Order 4, 4 stages, no error estimate. Good for smooth problems whose step size you know,
    for ensembles on accelerators and for training: no decisions at run time, and the cheapest
    gradient. For a first solve of an unknown problem prefer the adaptive `Tsit5`.

    **Reference:** W. Kutta, *Beitrag zur näherungsweisen Integration totaler
    Differentialgleichungen*, Z. Math. Phys. 46 (1901), 435-453.
    """

    a: ClassVar[np.ndarray] = _table([[F(1, 2)], [0, F(1, 2)], [0, 0, 1]])
    b: ClassVar[np.ndarray] = np.array([1 / 6, 1 / 3, 1 / 3, 1 / 6])
    order: ClassVar[int] = 4
    diffrax_solver: ClassVar[None] = None


class Tsit5(AbstractExplicitMethod):
    """Tsitouras' method, the default for non-stiff problems.

    Order 5, embedded order 4, 7 stages of which one is shared with the next step (FSAL),
    dense output of order 4. With `steps=` its formula runs on fixed steps (6 stages).
    Not for stiff problems: there the step size is held down by stability.

    **Reference:** Ch. Tsitouras, *Runge-Kutta pairs of order 5(4) satisfying only the first
    column simplifying assumption*, Comput. Math. Appl. 62 (2011), 770-775,
    doi 10.1016/j.camwa.2011.06.002.
    """

    # The paper gives decimals only (table 1); rows sum to c = (0.161, 0.327, 0.9, 0.98.., 1).
    a: ClassVar[np.ndarray] = _table(
        [
            [0.161],
            [-0.008480655492356989, 0.335480655492357],
            [2.8971530571054935, -6.359448489975075, 4.3622954328695815],
            [5.325864828439257, -11.748883564062828, 7.4955393428898365, -0.09249506636175525],
            [
                5.86145544294642,
                -12.92096931784711,
                8.159367898576159,
                -0.071584973281401,
                -0.028269050394068383,
            ],
        ]
    )
    b: ClassVar[np.ndarray] = np.array(
        [
            0.09646076681806523,
            0.01,
            0.4798896504144996,
            1.379008574103742,
            -3.290069515436081,
            2.324710524099774,
        ]
    )
    order: ClassVar[int] = 5
    diffrax_solver: ClassVar[type[diffrax.AbstractSolver]] = diffrax.Tsit5

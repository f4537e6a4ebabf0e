"""The classical Runge-Kutta method."""

from fractions import Fraction as F
from typing import ClassVar

import numpy as np

from ._explicit import AbstractExplicitMethod, table


class RK4(AbstractExplicitMethod):
    """The classical Runge-Kutta method, on fixed steps (`steps=`).

    Order 4, 4 stages, no error estimate. Good for smooth problems whose step size you know,
    for ensembles on accelerators and for training: no decisions at run time, and the cheapest
    gradient. For a first solve of an unknown problem prefer the adaptive `Tsit5`.

    **Reference:** W. Kutta, *Beitrag zur näherungsweisen Integration totaler
    Differentialgleichungen*, Z. Math. Phys. 46 (1901), 435-453.
    """

    a: ClassVar[np.ndarray] = table([[F(1, 2)], [0, F(1, 2)], [0, 0, 1]])
    b: ClassVar[np.ndarray] = np.array([1 / 6, 1 / 3, 1 / 3, 1 / 6])
    error_weights: ClassVar[None] = None
    order: ClassVar[int] = 4
    error_order: ClassVar[int] = 4
    stage_count: ClassVar[int] = 4
    adaptive: ClassVar[bool] = False
    stiff: ClassVar[bool] = False
    shares_last_stage: ClassVar[bool] = False

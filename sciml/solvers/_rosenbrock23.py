"""Shampine and Reichelt's Rosenbrock method of order 2."""

import math
from typing import ClassVar

import numpy as np

from ._rosenbrock import AbstractRosenbrockMethod, nodes_of


# notation: the paper's d and e_32. Its formulas, with W = I - h d J, are those of a Rosenbrock
# method whose matrices alpha and gamma (Hairer and Wanner II, equation IV.7.4) are these.
_D = 1 / (2 + math.sqrt(2))
_E32 = 6 + math.sqrt(2)
_ALPHAS = np.array([[0, 0, 0], [1 / 2, 0, 0], [0, 1, 0]])
_GAMMAS = np.array([[_D, 0, 0], [-_D, _D, 0], [_D * (_E32 - 2), -_D * _E32, _D]])
_INVERSE = np.linalg.inv(_GAMMAS)
_A, _C = _ALPHAS @ _INVERSE, np.eye(3) / _D - _INVERSE


class Rosenbrock23(AbstractRosenbrockMethod):
    """Shampine and Reichelt's method, for stiff problems at loose tolerances (2 or 3 digits).

    Order 2, its error estimated against a formula of order 3, 3 stages, L-stable, dense output of
    order 2. Known as `ode23s`.

    **Reference:** L. F. Shampine, M. W. Reichelt, *The MATLAB ODE suite*, SIAM J. Sci. Comput. 18
    (1997), 1-22, doi 10.1137/S1064827594276424.
    """

    gamma: ClassVar[float] = _D
    a: ClassVar[np.ndarray] = _A
    c: ClassVar[np.ndarray] = _C
    b: ClassVar[np.ndarray] = np.array([0, 1, 0]) @ _INVERSE
    error_weights: ClassVar[np.ndarray] = np.array([-1, 2, -1]) / 6 @ _INVERSE
    dense: ClassVar[np.ndarray] = np.array([[1, -1, 0]]) / (1 - 2 * _D) @ _INVERSE
    nodes: ClassVar[tuple[np.ndarray, np.ndarray]] = nodes_of(_D, _A, _C)
    order: ClassVar[int] = 2
    error_order: ClassVar[int] = 3
    stage_count: ClassVar[int] = 3

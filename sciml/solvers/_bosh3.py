"""Bogacki and Shampine's method of order 3."""

from fractions import Fraction as F
from typing import ClassVar

import jax.numpy as jnp
import numpy as np

from ._explicit import AbstractExplicitMethod, table


class Bosh3(AbstractExplicitMethod):
    """Bogacki and Shampine's method, for loose tolerances (2 or 3 digits).

    Order 3, embedded order 2, 4 stages of which one is shared with the next step (FSAL), dense
    output of order 3 (the cubic Hermite polynomial).

    **Reference:** P. Bogacki, L. F. Shampine, *A 3(2) pair of Runge-Kutta formulas*, Appl. Math.
    Lett. 2 (1989), 321-325, doi 10.1016/0893-9659(89)90079-7.
    """

    a: ClassVar[np.ndarray] = table([[F(1, 2)], [0, F(3, 4)]])
    b: ClassVar[np.ndarray] = np.array([2 / 9, 1 / 3, 4 / 9])
    error_weights: ClassVar[np.ndarray] = np.array([-5 / 72, 1 / 12, 1 / 9, -1 / 8])
    order: ClassVar[int] = 3
    error_order: ClassVar[int] = 3
    stage_count: ClassVar[int] = 4
    adaptive: ClassVar[bool] = True
    stiff: ClassVar[bool] = False
    shares_last_stage: ClassVar[bool] = True

    def weights(self, theta):
        t, t2, t3 = theta, theta**2, theta**3
        rise = 3 * t2 - 2 * t3
        first, last = t - 2 * t2 + t3, t3 - t2
        b = jnp.asarray(self.b, theta.dtype)
        return jnp.stack([b[0] * rise + first, b[1] * rise, b[2] * rise, last])

"""Heun's method."""

from typing import ClassVar

import jax.numpy as jnp
import numpy as np

from ._explicit import AbstractExplicitMethod, table


class Heun(AbstractExplicitMethod):
    """Heun's method (the explicit trapezoidal rule), with Euler's as error estimate.

    Order 2, embedded order 1, 2 stages, dense output of order 2. For low accuracy and rough
    fields; smooth problems are cheaper with `Tsit5` already at 3 digits.

    **Reference:** K. Heun, *Neue Methoden zur approximativen Integration der
    Differentialgleichungen einer unabhängigen Veränderlichen*, Z. Math. Phys. 45 (1900), 23-38.
    """

    a: ClassVar[np.ndarray] = table([[1]])
    b: ClassVar[np.ndarray] = np.array([1 / 2, 1 / 2])
    error_weights: ClassVar[np.ndarray] = np.array([-1 / 2, 1 / 2])
    order: ClassVar[int] = 2
    error_order: ClassVar[int] = 2
    stage_count: ClassVar[int] = 2
    adaptive: ClassVar[bool] = True
    stiff: ClassVar[bool] = False
    shares_last_stage: ClassVar[bool] = False

    def weights(self, theta):
        return jnp.stack([theta - theta**2 / 2, theta**2 / 2])

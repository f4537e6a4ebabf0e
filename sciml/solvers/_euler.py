"""Euler's method."""

from typing import ClassVar

import numpy as np

from ._explicit import AbstractExplicitMethod, table


class Euler(AbstractExplicitMethod):
    """The explicit Euler method, on fixed steps (`steps=`).

    Order 1, 1 stage, no error estimate. For teaching, and for models that are defined as Euler
    steps (difference equations); nearly every other problem is better served by `RK4` or `Tsit5`.

    **Reference:** L. Euler, *Institutionum calculi integralis*, vol. I (1768), section 650.
    """

    a: ClassVar[np.ndarray] = table([])
    b: ClassVar[np.ndarray] = np.array([1.0])
    error_weights: ClassVar[None] = None
    order: ClassVar[int] = 1
    error_order: ClassVar[int] = 1
    stage_count: ClassVar[int] = 1
    adaptive: ClassVar[bool] = False
    stiff: ClassVar[bool] = False
    shares_last_stage: ClassVar[bool] = False

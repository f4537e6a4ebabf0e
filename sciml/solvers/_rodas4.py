"""Hairer and Wanner's Rosenbrock method of order 4."""

from typing import ClassVar

import numpy as np

from ._explicit import table
from ._rosenbrock import AbstractRosenbrockMethod, nodes_of


# As in the code RODAS, its first set.
_GAMMA = 0.25
_A5 = [1.221224509226641, 6.019134481288629, 12.53708333932087, -0.6878860361058950]
_A = table(
    [
        [1.544],
        [0.9466785280815826, 0.2557011698983284],
        [3.314825187068521, 2.896124015972201, 0.9986419139977817],
        _A5,
        [*_A5, 1.0],
    ]
)
_C = table(
    [
        [-5.6688],
        [-2.430093356833875, -0.2063599157091915],
        [-0.1073529058151375, -9.594562251023355, -20.47028614809616],
        [7.496443313967647, -10.24680431464352, -33.99990352819905, 11.70890893206160],
        [
            8.083246795921522,
            -7.981132988064893,
            -31.52159432874371,
            16.31930543123136,
            -6.058818238834054,
        ],
    ]
)
_DENSE = np.array(
    [
        [
            10.12623508344586,
            -7.487995877610167,
            -34.80091861555747,
            -7.992771707568823,
            1.025137723295662,
            0.0,
        ],
        [
            -0.6762803392801253,
            6.087714651680015,
            16.43084320892478,
            24.76722511418386,
            -6.594389125716872,
            0.0,
        ],
    ]
)


class Rodas4(AbstractRosenbrockMethod):
    """Hairer and Wanner's RODAS, for stiff problems at moderate tolerances.

    Order 4, embedded order 3, 6 stages, stiffly accurate and L-stable, dense output of order 3.
    `Rodas5P` is nearly always the better choice at tighter tolerances than 1e-3. The published
    coefficients fulfil the order conditions to 1e-9 only: not for tolerances below 1e-8.

    **Reference:** E. Hairer, G. Wanner, *Solving ordinary differential equations II* (1996),
    section VI.4, and their code RODAS.
    """

    gamma: ClassVar[float] = _GAMMA
    a: ClassVar[np.ndarray] = _A
    c: ClassVar[np.ndarray] = _C
    b: ClassVar[np.ndarray] = _A[5] + np.eye(6)[5]
    error_weights: ClassVar[np.ndarray] = np.eye(6)[5]
    dense: ClassVar[np.ndarray] = _DENSE
    nodes: ClassVar[tuple[np.ndarray, np.ndarray]] = nodes_of(_GAMMA, _A, _C)
    order: ClassVar[int] = 4
    error_order: ClassVar[int] = 4
    stage_count: ClassVar[int] = 6

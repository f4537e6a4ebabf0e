"""Tsitouras' method of order 5."""

from typing import ClassVar

import jax.numpy as jnp
import numpy as np

from ._explicit import AbstractExplicitMethod, table


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
    a: ClassVar[np.ndarray] = table(
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
    error_weights: ClassVar[np.ndarray] = np.array(
        [
            0.00178001105222577714,
            0.0008164344596567469,
            -0.007880878010261995,
            0.1447110071732629,
            -0.5823571654525552,
            0.45808210592918697,
            -1 / 66,
        ]
    )
    order: ClassVar[int] = 5
    error_order: ClassVar[int] = 5
    stage_count: ClassVar[int] = 7
    adaptive: ClassVar[bool] = True
    stiff: ClassVar[bool] = False
    shares_last_stage: ClassVar[bool] = True

    def weights(self, theta):
        # The paper's interpolant (section 4), with a common factor for each stage.
        t, t2 = theta, theta**2
        return jnp.stack(
            [
                -1.0530884977290216
                * t
                * (t - 1.3299890189751412)
                * (t2 - 1.4364028541716351 * t + 0.7139816917074209),
                0.1017 * t2 * (t2 - 2.1966568338249754 * t + 1.2949852507374631),
                2.490627285651252793 * t2 * (t2 - 2.38535645472061657 * t + 1.57803468208092486),
                -16.54810288924490272 * (t - 1.21712927295533244) * (t - 0.61620406037800089) * t2,
                47.37952196281928122 * (t - 1.203071208372362603) * (t - 0.658047292653547382) * t2,
                -34.87065786149660974 * (t - 1.2) * (t - 0.666666666666666667) * t2,
                2.5 * (t - 1) * (t - 0.6) * t2,
            ]
        )

"""Steinebach's Rosenbrock method of order 5."""

from typing import ClassVar

import numpy as np

from ._explicit import table
from ._rosenbrock import AbstractRosenbrockMethod, nodes_of


# The paper's table 5.
_GAMMA = 0.21193756319429014
_A5 = [
    -7.502846399306121,
    2.561846144803919,
    -11.627539656261098,
    -0.18268767659942256,
    0.030198172008377946,
]
_A = table(
    [
        [3.0],
        [2.849394379747939, 0.45842242204463923],
        [-6.954028509809101, 2.489845061869568, -10.358996098473584],
        [2.8029986275628964, 0.5072464736228206, -0.3988312541770524, -0.04721187230404641],
        _A5,
        [*_A5, 1.0],
        [*_A5, 1.0, 1.0],
    ]
)
_C = table(
    [
        [-14.155112264123755],
        [-17.97296035885952, -2.859693295451294],
        [147.12150275711716, -1.41221402718213, 71.68940251302358],
        [165.43517024871676, -0.4592823456491126, 42.90938336958603, -5.961986721573306],
        [
            24.854864614690072,
            -3.0009227002832186,
            47.4931110020768,
            5.5814197821558125,
            -0.6610691825249471,
        ],
        [
            30.91273214028599,
            -3.1208243349937974,
            77.79954646070892,
            34.28646028294783,
            -19.097331116725623,
            -28.087943162872662,
        ],
        [
            37.80277123390563,
            -3.2571969029072276,
            112.26918849496327,
            66.9347231244047,
            -40.06618937091002,
            -54.66780262877968,
            -9.48861652309627,
        ],
    ]
)
_DENSE = np.array(
    [
        [
            25.948786856663858,
            -2.5579724845846235,
            10.433815404888879,
            -2.3679251022685204,
            0.524948541321073,
            1.1241088310450404,
            0.4272876194431874,
            -0.17202221070155493,
        ],
        [
            -9.91568850695171,
            -0.9689944594115154,
            3.0438037242978453,
            -24.495224566215796,
            20.176138334709044,
            15.98066361424651,
            -6.789040303419874,
            -6.710236069923372,
        ],
        [
            11.419903575922262,
            2.8879645146136994,
            72.92137995996029,
            80.12511834622643,
            -52.072871366152654,
            -59.78993625266729,
            -0.15582684282751913,
            4.883087185713722,
        ],
    ]
)


class Rodas5P(AbstractRosenbrockMethod):
    """Steinebach's Rosenbrock method, for stiff problems.

    Order 5, embedded order 4, 8 stages, stiffly accurate and L-stable, dense output of order 4.
    One Jacobian and one factorisation a step, no Newton iteration that could fail. Made to keep
    its order on problems of Prothero-Robinson type. For up to some hundred unknowns; the
    Jacobian is dense.

    **Reference:** G. Steinebach, *Construction of Rosenbrock-Wanner method Rodas5P and numerical
    benchmarks within the Julia Differential Equations package*, BIT Numer. Math. 63 (2023), 27,
    doi 10.1007/s10543-023-00967-x.
    """

    gamma: ClassVar[float] = _GAMMA
    a: ClassVar[np.ndarray] = _A
    c: ClassVar[np.ndarray] = _C
    b: ClassVar[np.ndarray] = _A[7] + np.eye(8)[7]
    error_weights: ClassVar[np.ndarray] = np.eye(8)[7]
    dense: ClassVar[np.ndarray] = _DENSE
    nodes: ClassVar[tuple[np.ndarray, np.ndarray]] = nodes_of(_GAMMA, _A, _C)
    order: ClassVar[int] = 5
    error_order: ClassVar[int] = 5
    stage_count: ClassVar[int] = 8

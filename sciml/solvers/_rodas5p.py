"""Steinebach's Rosenbrock method of order 5."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from .._compat import varying_like
from ._explicit import table
from ._linear import factorise
from ._method import AbstractMethod


# Coefficients in the form that needs no products with the Jacobian (Hairer and Wanner, Solving
# ordinary differential equations II, section IV.7, equation 7.25'), from the paper's table 5:
#   (I/(h gamma) - J) K_i = F(s + alpha_i h, y + sum a_ij K_j) + sum (c_ij/h) K_j + gamma_i h dF/ds
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
_H = np.array(  # the dense output of order 4
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
# The matrix of the gammas is what `_C` was made of; the nodes follow from it.
_GAMMAS = np.linalg.inv(np.eye(8) / _GAMMA - _C)
_ALPHA, _GAMMA_SUM = (_A @ _GAMMAS).sum(1), _GAMMAS.sum(1)
_B = _A[7] + np.eye(8)[7]


class Rodas5P(AbstractMethod):
    """Steinebach's Rosenbrock method, for stiff problems.

    Order 5, embedded order 4, 8 stages, stiffly accurate and L-stable, dense output of order 4.
    One Jacobian and one factorisation a step, no Newton iteration that could fail. Made to keep
    its order on problems of Prothero-Robinson type. For up to some hundred unknowns; the
    Jacobian is dense.

    **Reference:** G. Steinebach, *Construction of Rosenbrock-Wanner method Rodas5P and numerical
    benchmarks within the Julia Differential Equations package*, BIT Numer. Math. 63 (2023), 27,
    doi 10.1007/s10543-023-00967-x.
    """

    order: ClassVar[int] = 5
    stage_count: ClassVar[int] = 8
    adaptive: ClassVar[bool] = True
    stiff: ClassVar[bool] = True
    shares_last_stage: ClassVar[bool] = False

    def step(self, field, s, y, h, f):
        y1, stages = self.replay(field, s, y, h)
        return y1, stages, None

    def replay(self, field, s, y, h):
        dtype, n = y.dtype, y.shape[0]
        f, slope = jax.linearize(field, s, y)
        # Constants must vary like the data inside `shard_map`.
        like = lambda x: varying_like(x, y, s, h)
        along = lambda e: slope(like(jnp.zeros_like(s)), e)
        jacobian = jax.vmap(along, out_axes=1)(like(jnp.eye(n, dtype=dtype)))
        by_time = slope(like(jnp.ones_like(s)), like(jnp.zeros_like(y)))
        # An unused row of a record has h = 0: it must do nothing, with finite numbers.
        used = h > 0
        h_y = jnp.where(used, h, jnp.ones_like(h)).astype(dtype)
        solve = factorise(jnp.eye(n, dtype=dtype) / (h_y * _GAMMA) - jacobian)
        a, c, gamma = (jnp.asarray(x, dtype) for x in (_A, _C, _GAMMA_SUM))
        alpha = jnp.asarray(_ALPHA, s.dtype)

        def stage(i, stages):
            rhs = field(s + alpha[i] * h, y + a[i] @ stages)
            rhs = rhs + (c[i] @ stages) / h_y + gamma[i] * h_y * by_time
            return jax.lax.dynamic_update_index_in_dim(stages, solve(rhs), i, 0)

        # The first stage's field is known from the linearisation.
        first = solve(f + _GAMMA * h_y * by_time)
        stages = like(jnp.concatenate([first[None], jnp.zeros((7, n), dtype)]))
        stages = jax.lax.fori_loop(1, 8, stage, stages)
        stages = jnp.where(used, stages, jnp.zeros_like(stages))
        return y + jnp.asarray(_B, dtype) @ stages, stages

    def advance(self, field, s, y, h):
        return self.replay(field, s, y, h)[0]

    def error(self, stages):
        return stages[7]

    def weights(self, theta):
        b, d = jnp.asarray(_B, theta.dtype), jnp.asarray(_H, theta.dtype)
        return theta * b + theta * (1 - theta) * (d[0] + theta * (d[1] + theta * d[2]))

    def evaluations(self, steps):
        return 8 * steps

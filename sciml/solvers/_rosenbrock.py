"""Rosenbrock methods, from their tables.

One Jacobian and one factorisation a step, no Newton iteration that could fail. In the form that
needs no products with the Jacobian (Hairer and Wanner, *Solving ordinary differential equations
II*, section IV.7, equation 7.25'), for `dy/ds = F(s, y)` and J its Jacobian:

    (M/(h gamma) - J) K_i = F(s + alpha_i h, y + sum a_ij K_j) + M sum (c_ij/h) K_j + gamma_i h dF/ds

M is the mass matrix of M dy/ds = F, else the identity; it may be singular.
"""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._compat import varying_like
from ._indexing import put
from ._jacobian import AbstractJacobian, as_jacobian, Dense
from ._mass import as_mass, Mass
from ._method import AbstractOneStepMethod, Step


class AbstractRosenbrockMethod(AbstractOneStepMethod):
    """A Rosenbrock method.

    - `gamma`, `a`, `c`: as above; `b`: weights of the stages in the solution.
    - `error_weights`: of all stages, in the error estimate.
    - `dense`: rows D_0, D_1, … of the dense output theta b + theta (1 - theta) sum theta^j D_j.
    - `nodes`: alpha_i and gamma_i, by `nodes_of`.

    **Arguments:** (or those of `solve`)

    - `jac`: what is known of the Jacobian.
    - `mass`: the mass matrix.
    """

    gamma: eqx.AbstractClassVar[float]
    a: eqx.AbstractClassVar[np.ndarray]
    c: eqx.AbstractClassVar[np.ndarray]
    b: eqx.AbstractClassVar[np.ndarray]
    error_weights: eqx.AbstractClassVar[np.ndarray]
    dense: eqx.AbstractClassVar[np.ndarray]
    nodes: eqx.AbstractClassVar[tuple[np.ndarray, np.ndarray]]
    adaptive: ClassVar[bool] = True
    stiff: ClassVar[bool] = True
    shares_last_stage: ClassVar[bool] = False

    jac: AbstractJacobian = eqx.field(default=Dense(), converter=as_jacobian)
    mass: Mass | None = eqx.field(static=True, default=None, converter=as_mass)

    def replay(self, field, s, y, h):
        return self.step(field, s, y, h, None)[:2]

    def step(self, field, s, y, h, f):
        dtype, n = y.dtype, y.shape[0]
        f_y, slope = jax.linearize(field, s, y)
        # Constants must vary like the data inside `shard_map`.
        like = lambda x: varying_like(x, y, s, h)
        along = lambda e: slope(like(jnp.zeros_like(s)), e)
        by_time = slope(like(jnp.ones_like(s)), like(jnp.zeros_like(y)))
        user = getattr(field, "jacobian", None)
        linear = self.jac.at(along, None if user is None else user(s, y), y, self.mass)
        # An unused row of a record has h = 0: it must do nothing, with finite numbers, also where its
        # stages would lead far away if they were taken.
        used = h > 0
        h_y = jnp.where(used, h, jnp.finfo(h.dtype).eps).astype(dtype)
        solve = linear.solver(1 / (h_y * self.gamma))
        a, c, gamma = (jnp.asarray(x, dtype) for x in (self.a, self.c, self.nodes[1]))
        alpha = jnp.asarray(self.nodes[0], s.dtype)

        def stage(i, stages):
            rhs = field(s + alpha[i] * h, y + a[i] @ stages)
            rhs = rhs + linear.times_mass(c[i] @ stages) / h_y + gamma[i] * h_y * by_time
            return put(stages, i, solve(rhs))

        # The first stage's field is known from the linearisation.
        count = self.stage_count
        first = solve(f_y + self.gamma * h_y * by_time)
        stages = like(jnp.concatenate([first[None], jnp.zeros((count - 1, n), dtype)]))
        stages = jax.lax.fori_loop(1, count, stage, stages)
        stages = jnp.where(used, stages, jnp.zeros_like(stages))
        y1 = y + jnp.asarray(self.b, dtype) @ stages
        return Step(y1, stages, bound=linear.bound)

    def advance(self, field, s, y, h):
        return self.replay(field, s, y, h)[0]

    def error(self, stages: Array) -> Array:
        return jnp.asarray(self.error_weights, stages.dtype) @ stages

    def weights(self, theta):
        inner = jnp.zeros_like(theta)
        for row in self.dense[::-1]:
            inner = jnp.asarray(row, theta.dtype) + theta * inner
        return theta * jnp.asarray(self.b, theta.dtype) + theta * (1 - theta) * inner

    def evaluations(self, steps):
        return self.stage_count * steps


def nodes_of(gamma: float, a: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The times alpha_i and the sums gamma_i, which follow from the other coefficients."""
    gammas = np.linalg.inv(np.eye(len(a)) / gamma - c)
    return (a @ gammas).sum(1), gammas.sum(1)

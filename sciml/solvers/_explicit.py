"""Explicit Runge-Kutta methods, from their tables.

# notation: K_i = h F(s + c_i h, y + sum_j a_ij K_j), next state y + sum_i b_i K_i
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._compat import varying_like
from ._indexing import put
from ._method import AbstractOneStepMethod, Step


def table(rows: list[list]) -> np.ndarray:
    """A strictly lower triangular matrix from its rows below the diagonal."""
    n = len(rows) + 1
    a = np.zeros((n, n))
    for i, row in enumerate(rows, start=1):
        a[i, : len(row)] = [float(x) for x in row]
    return a


class AbstractExplicitMethod(AbstractOneStepMethod):
    """An explicit Runge-Kutta method.

    - `a`, `b`: its coefficients. If the last stage is shared, `b` is one more row of `a`.
    - `error_weights`: of all stages, in the error estimate.
    """

    a: eqx.AbstractClassVar[np.ndarray]
    b: eqx.AbstractClassVar[np.ndarray]
    error_weights: eqx.AbstractClassVar[np.ndarray | None]

    def weights(self, theta):
        """As in `AbstractOneStepMethod`: the dense output is what tables differ in."""
        raise NotImplementedError(f"{type(self).__name__} has no dense output.")

    def step(self, field, s, y, h, f):
        if getattr(field, "large", False):
            return self._in_a_loop(field, s, y, h, f)
        stages = self._stages(field, s, y, h, f)
        y1 = y + _combine(self.b, stages, y)
        if not self.shares_last_stage:
            return Step(y1, jnp.stack(stages))
        f1 = field(s + h, y1)
        return Step(y1, jnp.stack([*stages, h.astype(y.dtype) * f1]), f1)

    def replay(self, field, s, y, h):
        return self._in_a_loop(field, s, y, h, None)[:2]

    def _in_a_loop(self, field, s, y, h, f) -> Step:
        """One step with all stages in a loop, so that the field is compiled once."""
        h_y = h.astype(y.dtype)
        a = self.a
        if self.shares_last_stage:
            a = np.block([[a, np.zeros((len(a), 1))], [self.b, np.zeros((1, 1))]])
        rows, c = jnp.asarray(a, y.dtype), jnp.asarray(a.sum(1), h.dtype)

        def stage(i, carry):
            stages, _, _ = carry
            at = y + rows[i] @ stages
            f = field(s + c[i] * h, at)
            return put(stages, i, h_y * f), at, f

        stages = jnp.zeros((len(a), *y.shape), y.dtype)
        if f is not None:
            stages = put(stages, 0, h_y * f)
        carry = varying_like((stages, y, y), s, h)  # the last two are replaced
        stages, y1, f1 = jax.lax.fori_loop(0 if f is None else 1, len(a), stage, carry)
        if not self.shares_last_stage:
            return Step(y + jnp.asarray(self.b, y.dtype) @ stages, stages)
        return Step(y1, stages, f1)

    def advance(self, field, s, y, h):
        return y + _combine(self.b, self._stages(field, s, y, h, None), y)

    def error(self, stages):
        return jnp.asarray(self.error_weights, stages.dtype) @ stages

    def evaluations(self, steps):
        return len(self.b) * steps

    def _stages(self, field, s, y, h, f) -> list[Array]:
        """All stages, each in its own code: fast to run."""
        h_y = h.astype(y.dtype)
        stages = [h_y * (field(s, y) if f is None else f)]
        for row in self.a[1:]:
            at = y + _combine(row, stages, y)
            c = jnp.asarray(row.sum(), h.dtype)
            stages.append(h_y * field(s + c * h, at))
        return stages


def _combine(weights: np.ndarray, stages: list[Array], y: Array) -> Array:
    """The sum of weighted stages, without those of weight zero."""
    terms = [jnp.asarray(w, y.dtype) * k for w, k in zip(weights, stages, strict=False) if w != 0]
    return sum(terms[1:], terms[0]) if terms else jnp.zeros_like(y)

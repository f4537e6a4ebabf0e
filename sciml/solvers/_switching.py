"""When to change between a non-stiff and a stiff method during a solve.

A step of the explicit method tells how fast the field changes across it: its last two stages lie at
the same time, so that |F(y_1) - F(Y)| / |y_1 - Y| estimates the largest rate, for free. If steps are
at the limit of stability again and again, the problem is stiff (Shampine and Hiebert, *Detecting
stiffness with the Fehlberg (4, 5) formulas*, 1977; Hairer and Wanner, *Solving ordinary differential
equations II*, section IV.2).

The stiff method has a Jacobian J; |J| bounds all rates from above. If even that would let the
explicit method take the steps, it takes them.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from ._method import Step


NONSTIFF, STIFF = 0, 1
# notation: z = h rate. Tsit5 is stable on the negative axis to -3.5.
_AT_THE_LIMIT = 2.9
_CALM = 2.0
_VOTES_FOR_STIFF = 10
_VOTES_FOR_NONSTIFF = 4


class Switching(eqx.Module):
    """Which part takes the next step.

    - `votes`: how much lately spoke for the stiff part, which it is the turn of from
      `_VOTES_FOR_STIFF` on; how much then spoke for the other one comes on top.
    - `stiff_attempts`: how many of the tried steps were stiff ones.
    """

    votes: Int[Array, ""]
    stiff_attempts: Int[Array, ""]

    def is_turn_of(self, part: int) -> Array:
        stiff = self.votes >= _VOTES_FOR_STIFF
        return stiff if part == STIFF else ~stiff


def after_step(switching: Switching, part: int, method, step: Step, scale, h, on, ok) -> Switching:
    """Counts one step.

    **Arguments:**

    - `part`, `method`: which tried the step, of size `h`.
    - `scale`: the size of an error of the tolerances, for each number of the state.
    - `on`, `ok`: whether the step was tried, and accepted.
    """
    stages, scale, h = jax.lax.stop_gradient((step.stages, scale, h))
    votes, stiff_attempts = switching.votes, switching.stiff_attempts
    one = jnp.ones((), votes.dtype)
    if part == NONSTIFF:
        at_the_limit = _exceeds(method, stages, scale, _AT_THE_LIMIT)
        new = jnp.maximum(votes + jnp.where(at_the_limit, one, -one), 0)
    else:
        assert step.bound is not None
        calm = h * jax.lax.stop_gradient(step.bound(scale)) < _CALM
        new = jnp.where(calm, votes + one, _VOTES_FOR_STIFF)
        new = jnp.where(new < _VOTES_FOR_STIFF + _VOTES_FOR_NONSTIFF, new, 0)
        stiff_attempts = stiff_attempts + jnp.where(on, one, 0)
    return Switching(jnp.where(ok, new, votes), stiff_attempts)


def _exceeds(method, stages: Array, scale, limit: float) -> Array:
    """Whether the largest rate times the step size does, by the last two stages."""
    square = lambda x: jnp.sum((x / scale) ** 2)
    between = jnp.asarray(method.b - method.a[-1], stages.dtype) @ stages[:-1]
    return square(stages[-1] - stages[-2]) > limit**2 * square(between)

"""When to change between a non-stiff and a stiff method during a solve.

A step of the explicit method tells how fast the field changes across it: its last two stages lie at
the same time, so that |F(y_1) - F(Y)| / |y_1 - Y| estimates the largest rate, for free. If steps are
at the limit of stability again and again, the problem is stiff (Shampine and Hiebert, *Detecting
stiffness with the Fehlberg (4, 5) formulas*, 1977; Hairer and Wanner, *Solving ordinary differential
equations II*, section IV.2).

The limit depends on where the eigenvalues lie, and accuracy may hold steps there, too. So the stiff method is
on trial: if its steps have not become larger soon, the explicit one goes on, and waits twice as long before
it asks again.

The stiff method has a Jacobian J; |J| bounds all rates from above. If even that would let the
explicit method take the steps, it takes them.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ._method import Step
from ._norms import ratio
from ._rest import Look


NONSTIFF, STIFF = 0, 1
# notation: z = h rate. Tsit5 is stable to 3.5 on the negative axis, and to 1.3 beside the imaginary one.
_AT_THE_LIMIT = 1.2
_CALM = 1.0
_PATIENCE = 10  # votes for the stiff method, at first
_MOST_PATIENCE = 160
_CALM_STEPS = 4  # stiff steps in a row that the explicit method could have taken
_TRIAL = 6  # stiff steps after which they must have become larger
_GAIN = 2.0  # by this factor


class Switching(eqx.Module):
    """Which part takes the next step.

    - `votes`: how much lately spoke for the other one.
    - `patience`: how many votes the stiff one needs. It doubles after a trial that gained nothing.
    - `stint`: how many steps the stiff one has taken since it took over; -1 while it has not.
    - `h_before`: the size of the steps before it took over.
    - `stiff_attempts`: how many of the tried steps were stiff ones.
    """

    votes: Int[Array, ""]
    patience: Int[Array, ""]
    stint: Int[Array, ""]
    h_before: Float[Array, ""]
    stiff_attempts: Int[Array, ""]

    def is_turn_of(self, part: int) -> Array:
        return self.stint >= 0 if part == STIFF else self.stint < 0


def at_start(none: Int[Array, ""], h: Float[Array, ""]) -> Switching:
    return Switching(none, none + _PATIENCE, none - 1, h, none)


def after_step(
    switching: Switching, part: int, method, step: Step, scale, h, on, ok, rest: Look | None = None
) -> Switching:
    """Counts one step.

    **Arguments:**

    - `part`, `method`: which tried the step, of size `h`.
    - `scale`: the size of an error of the tolerances, for each number of the state.
    - `on`, `ok`: whether the step was tried, and accepted.
    - `rest`: of a solve that is differentiated, what is known where the state rests.
    """
    stages, scale, h = jax.lax.stop_gradient((step.stages, scale, h))
    was = switching
    one = jnp.ones((), was.votes.dtype)
    if part == NONSTIFF:
        at_the_limit = _exceeds(method, stages, scale, _AT_THE_LIMIT)
        if rest is not None:  # differences of stages are rounding errors there
            at_the_limit = jnp.where(rest.rests, rest.crawls, at_the_limit)
        votes = jnp.maximum(was.votes + jnp.where(at_the_limit, one, -one), 0)
        over = votes >= was.patience
        now = Switching(
            votes=jnp.where(over, 0, votes),
            patience=was.patience,
            stint=jnp.where(over, 0, was.stint),
            h_before=jnp.where(over, h, was.h_before),
            stiff_attempts=was.stiff_attempts,
        )
    else:
        assert step.bound is not None
        calm = h * jax.lax.stop_gradient(step.bound(scale)) < _CALM
        votes = jnp.where(calm, was.votes + one, 0)
        stint = was.stint + one
        useless = (stint == _TRIAL) & (h < _GAIN * was.h_before)
        over = useless | (votes >= _CALM_STEPS)
        now = Switching(
            votes=jnp.where(over, 0, votes),
            patience=jnp.where(
                useless, jnp.minimum(2 * was.patience, _MOST_PATIENCE), was.patience
            ),
            stint=jnp.where(over, -one, stint),
            h_before=was.h_before,
            stiff_attempts=was.stiff_attempts,
        )
    now = jax.tree.map(lambda new, old: jnp.where(ok, new, old), now, was)
    if part == STIFF:
        tried = was.stiff_attempts + jnp.where(on, one, 0)
        now = eqx.tree_at(lambda x: x.stiff_attempts, now, tried)
    return now


def _exceeds(method, stages: Array, scale, limit: float) -> Array:
    """Whether the largest rate times the step size does, by the last two stages."""
    square = lambda x: jnp.sum(ratio(x, scale) ** 2)
    between = jnp.asarray(method.b - method.a[-1], stages.dtype) @ stages[:-1]
    return square(stages[-1] - stages[-2]) > limit**2 * square(between)

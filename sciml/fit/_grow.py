"""The horizon of training."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array


class Grow(eqx.Module):
    """A horizon that grows: the share of the time span that is fitted, from `start` to `stop`.

    Long horizons from random weights tend to end in a flat line, since early errors swamp the
    late ones' gradient. The horizon grows linearly and has reached `stop` by half of the steps.

    **Arguments:**

    - `start`, `stop`: shares of the span between `t0` and the last time, in (0, 1].
    """

    start: float = 0.2
    stop: float = 1.0

    def __check_init__(self):
        if not 0 < self.start <= self.stop <= 1:
            raise ValueError(
                f"`Grow` needs 0 < start <= stop <= 1, but got {self.start} and {self.stop}."
            )

    def share(self, progress: Array) -> Array:
        """The share at `progress` between 0 and 1 of the training."""
        return self.start + (self.stop - self.start) * jnp.minimum(2 * progress, 1.0)

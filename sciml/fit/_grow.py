"""The horizon of training."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


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
        part = self.start + (self.stop - self.start) * 2 * progress
        return jnp.where(progress >= 0.5, self.stop, part)

    @property
    def grows(self) -> bool:
        return bool(self.start < self.stop)


def in_sight(
    ts: Float[Array, " time"], t0: Array, share: Array
) -> tuple[Float[Array, " time"], Bool[Array, " time"]]:
    """The times up to a share of the span, and which rows are within; at least two, or there is nothing to learn from.

    Rows behind are solved at the end of it, which costs nothing.
    """
    end = jnp.maximum(t0 + share.astype(ts.dtype) * (ts[-1] - t0), ts[min(1, ts.shape[0] - 1)])
    end = jnp.where(share >= 1, ts[-1], end)
    return jnp.minimum(ts, end), ts <= end

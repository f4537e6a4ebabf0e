"""The derivative of an event's time and state.

The loop finds the end of a step near the event, without derivatives. From there one more step, of a size that is
nearly zero, leads to the event exactly; its size solves G(delta) = g(t + delta, Phi_delta(y)) = 0 by two steps of
Newton's method. The first gives the first derivative, the second all up to the third, as exact as the
one-step method Phi: what cancels of the event time's motion (the "saltation" terms) does so by itself.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array


def _step(slope: Callable[[Array, Array], Array], t: Array, y: Array, h: Array) -> Array:
    """The classical Runge-Kutta step: right to the fourth derivative by `h`."""
    k1 = slope(t, y)
    k2 = slope(t + h / 2, y + h / 2 * k1)
    k3 = slope(t + h / 2, y + h / 2 * k2)
    k4 = slope(t + h, y + h * k3)
    return y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


def refined(slope: Callable, value: Callable, y: Array, zero: Array) -> tuple[Array, Array]:
    """Where `value(t, y)` is zero, from `y` at time 0 nearly there, with derivatives.

    **Arguments:**

    - `slope(t, y)`: dy/dt; `value(t, y)`: the event's function.
    - `zero`: the time, a zero.

    **Returns:**

    Time and state.
    """

    def newton(t, _):
        along = lambda t: value(t, _step(slope, zero, y, t.astype(y.dtype)))
        g, rate = jax.jvp(along, (t,), (jnp.ones_like(t),))
        usable = (rate != 0) & jnp.isfinite(rate)
        return t - jnp.where(usable, g, 0) / jnp.where(usable, rate, 1), None

    t, _ = jax.lax.scan(newton, zero, None, length=2)
    return t, _step(slope, zero, y, t.astype(y.dtype))


@jax.custom_jvp
def without_derivative(x):
    """Time and state of an event whose function is a truth value."""
    return x


@without_derivative.defjvp
def _(_primals, _tangents):
    raise TypeError(
        "An event whose function is a truth value has no derivative: its time can't be told to move. Return the "
        "number that crosses zero instead, such as `y[0] - 1.0` for `y[0] > 1.0`."
    )

"""What an event does, and the derivatives of its time and state.

The loop finds the end of a step near the event, without derivatives. From there one more step, of a size that is
nearly zero, leads to the event exactly; its size solves G(delta) = g(t + delta, Phi_delta(y)) = 0 by two steps of
Newton's method. The first gives the first derivative, the second all up to the third, as exact as the
one-step method Phi: what cancels of the event time's motion (the "saltation" terms) does so by itself.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from . import _dae
from ._event import is_boolean
from ._field import ravel
from ._indexing import take
from ._input import in_a_field
from ._watch import ARRIVED


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


def happen(field, t0, args, events, mass, unravel, at_event, which, e, end, otherwise, coarse):
    """What an event does.

    **Arguments:**

    - `coarse`: the size of the step in which it was seen first. One that lies farther from where the solve stopped
      than steps are divided to is none of the flow: a jump has led across zero, and it happens there.

    **Returns:**

    The time elapsed and the state at the event, the state with which the solve goes on, and whether it ends.
    Without an event: `(e, end, otherwise, False)`.
    """
    plain = eqx.tree_at(lambda f: (f.t0, f.span), field, (t0 + e, jnp.ones_like(field.span)))
    slope = plain if mass is None else lambda t, y: _dae.slope(mass, plain, t, y)
    value = lambda t, y: take(plain.watch(t, y), jnp.maximum(which, 0))
    with in_a_field():
        shift, at = refined(slope, value, end, jnp.zeros_like(e))
        if any(is_boolean(event.fn(t0 + e, unravel(end), args)) for event in events):
            shift, at = without_derivative((shift, at))
        near = at_event & (jnp.abs(shift) <= 4 * ARRIVED * coarse)
        shift, at = jnp.where(near, shift, 0), jnp.where(near, at, end)
        e = e + shift
        dtype = end.dtype

        def applied(event, y):
            if event.apply is None:
                return y
            tree = unravel(y)
            return ravel(event.apply(t0 + e, tree, args), dtype, like=tree)[0]

        branches = [lambda y, event=event: applied(event, y) for event in events]
        y = branches[0](at) if len(events) == 1 else jax.lax.switch(which, branches, at)
    ends = at_event & take(jnp.asarray([event.ends for event in events]), jnp.maximum(which, 0))
    return e, at, jnp.where(at_event, y, otherwise), ends


@jax.custom_jvp
def poisoned(x: Array, ok: Array) -> Array:
    """`x`, whose derivatives are nan unless `ok`: half a solution has none."""
    return x


@poisoned.defjvp
def _(primals, tangents):
    (x, ok), (dx, _) = primals, tangents
    return x, dx * jnp.where(ok, 1.0, jnp.nan).astype(dx.dtype)

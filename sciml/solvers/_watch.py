"""Where event functions change sign within a step.

They are evaluated at `CHECKS` points of each step, on its dense output, so that several crossings in one step
are told apart; two that lie closer than that are missed. The first crossing is located by bisection. The
step is then taken again, up to there, so that the event lies at the end of a step under error control.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._compat import unvmap_any
from ._field import FlatField


CHECKS = 8
_BISECTIONS = 50
# Of a step: an event so close to its end is there; what is left is mended by `_refine.py`.
_ARRIVED = 2e-6


def signs_at_start(
    field: FlatField, s: Array, y: Array, slope: Array, before: Array, fired: Int[Array, ""]
) -> Float[Array, " event"]:
    """The signs from which crossings are counted.

    **Arguments:**

    - `slope`: dy/ds there.
    - `before`: the signs at the end of the piece before, so that a jump across zero is seen; 0 if not known.
    - `fired`: the event that has brought the solve here, or -1. If its function is still zero, up to
      rounding, its sign is that of the side to which it moves.
    """
    watch = field.watch
    assert watch is not None
    values, slopes = jax.jvp(watch, (s, y), (jnp.ones_like(s), slope))
    mine = jnp.arange(values.shape[0]) == fired
    nearly = jnp.abs(values) <= jnp.finfo(values.dtype).eps ** 0.6 * jnp.abs(slopes)
    signs = jnp.where((values == 0) | (mine & nearly), jnp.sign(slopes), jnp.sign(values))
    return jax.lax.stop_gradient(jnp.where(mine | (before == 0), signs, before))


def crossing(
    method, field: FlatField, s, y, h, stages, signs, on
) -> tuple[Bool[Array, ""], Float[Array, ""], Int[Array, ""], Array]:
    """The first crossing within a step from `s` of size `h`, if the step is `on`.

    **Returns:**

    Whether there is one, at which fraction of the step, of which event, and the signs at its end.
    """
    watch = field.watch
    assert watch is not None
    s, y, h, stages = jax.lax.stop_gradient((s, y, h, stages))
    inside = lambda theta: watch(s + theta * h, y + method.weights(theta) @ stages)
    points = jnp.arange(1, CHECKS + 1).astype(h.dtype) / CHECKS
    path = jnp.concatenate([signs[None], jnp.sign(jax.vmap(inside)(points))])
    # A sign that is not known, or not a number, takes the next one.
    known = lambda old, new: jnp.where((new == 0) | jnp.isnan(new), old, new)
    before, after = path[:-1], path[1:]
    directions = jnp.asarray(field.traced.directions, h.dtype)
    crosses = (before * after < 0) | ((after == 0) & (before != 0))
    crosses = crosses & (directions * before <= 0)
    each = on & jnp.any(crosses, axis=0)
    first = jnp.argmax(crosses, axis=0)
    side = jnp.take_along_axis(before, first[None], axis=0)[0]
    low, high = first.astype(h.dtype) / CHECKS, (first + 1).astype(h.dtype) / CHECKS

    def halve(carry):
        k, low, high = carry
        middle = (low + high) / 2
        values = jnp.diagonal(jax.vmap(inside)(middle))
        still = jnp.sign(values) == side
        return k + 1, jnp.where(still, middle, low), jnp.where(still, high, middle)

    going = lambda carry: unvmap_any(jnp.any(each)) & (carry[0] < _BISECTIONS)
    zero = jnp.zeros_like(first[0])
    _, _, high = jax.lax.while_loop(going, halve, (zero, low, high))
    at = jnp.where(each, high, 2.0)
    which = jnp.argmin(at)
    end = path[0]
    for row in path[1:]:
        end = known(end, row)
    return jnp.any(each), at[which], which, end


def has_arrived(theta, h, s) -> Bool[Array, ""]:
    """Whether an event at the fraction `theta` of a step lies at its end, up to rounding."""
    eps = jnp.finfo(h.dtype).eps
    return ((1 - theta) <= _ARRIVED) | ((1 - theta) * h <= 32 * eps * s)


def size_up_to(theta, h, s) -> Float[Array, ""]:
    """The size of a step up to there, which must not vanish in rounding."""
    return jnp.maximum(theta * h, 16 * jnp.finfo(h.dtype).eps * s)

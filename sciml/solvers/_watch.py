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
# Of the step in which a crossing was seen first: an event so close to the end of a step is there; what is left
# is mended by `_happen.py`.
ARRIVED = 2e-6


def signs_at_start(
    field: FlatField,
    s: Array,
    y: Array,
    slope: Array,
    before: Array,
    fired: Int[Array, ""],
    coarse: Array,
) -> tuple[Float[Array, " event"], Bool[Array, " event"]]:
    """The signs from which crossings are counted, at the start of a piece.

    **Arguments:**

    - `slope`: dy/ds there.
    - `before`: the signs at the end of the piece before; 0 if not known.
    - `fired`: the event that has brought the solve here, or -1.
    - `coarse`: the size of the step in which that was seen first, on the time of this piece.

    **Returns:**

    The signs, and which functions have crossed zero between the two pieces: in a jump, or because they were due
    together with the event that ended the piece before.
    """
    watch = field.watch
    assert watch is not None
    eps = jnp.finfo(y.dtype).eps
    values, slopes = jax.jvp(watch, (s, y), (jnp.ones_like(s), slope))
    by_s, by_y = jax.jacfwd(watch, (0, 1))(s, y)
    t = field.t0 + s * field.span
    by_t = by_s / jnp.where(field.span == 0, 1, field.span)
    terms = jnp.abs(by_y) @ jnp.abs(y) + jnp.abs(by_t * t)
    rounding = 64 * eps * (terms + jnp.abs(slopes) * coarse)
    mine = jnp.arange(values.shape[0]) == fired
    # The state is exact for the event that has happened; others may be as late as the event is early.
    slack = jnp.where(mine, 0, 4 * ARRIVED * coarse * jnp.abs(slopes))
    zero = jnp.abs(values) <= jnp.maximum(rounding, slack)
    # A function that is zero goes to the side to which it moves.
    signs = jnp.where(zero, jnp.sign(slopes), jnp.sign(values))
    directions = jnp.asarray(field.traced.directions, y.dtype)
    crossed = ~mine & (before * signs < 0) & (directions * before <= 0)
    return jax.lax.stop_gradient(signs), crossed


def crossing(
    method, field: FlatField, s, y, h, stages, signs, on
) -> tuple[Bool[Array, ""], Float[Array, ""], Int[Array, ""], Array]:
    """The first crossing within a step from `s` of size `h`, if the step is `on`.

    **Returns:**

    Whether there is one, at which fraction of the step, of which event, and the signs at its end; those of others
    that cross zero in this step, too, as they were before it.
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
    crosses = crosses & (directions[None] * before <= 0)
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
    pending = each & (jnp.arange(at.shape[0]) != which)
    return jnp.any(each), at[which], which, jnp.where(pending, path[0], end)


def has_arrived(theta, h, coarse, s) -> Bool[Array, ""]:
    """Whether an event at the fraction `theta` of a step lies at its end, up to rounding.

    `coarse` is the size of the step in which it was seen first.
    """
    left = (1 - theta) * h
    return (left <= ARRIVED * coarse) | (left <= 32 * jnp.finfo(h.dtype).eps * s)


def size_up_to(theta, h, coarse, s) -> Float[Array, ""]:
    """The size of a step up to there, which must not vanish in rounding."""
    least = jnp.maximum(ARRIVED / 2 * coarse, 16 * jnp.finfo(h.dtype).eps * s)
    return jnp.maximum(theta * h, least)

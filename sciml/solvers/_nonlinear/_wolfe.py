"""A line search for the strong Wolfe conditions, one evaluation at a time.

Along the direction the function must fall by a part of what its slope promises, and the slope must become a part of
what it was. The search keeps the best point found (`low`) and, once a minimum is enclosed, its other side (`high`);
in between it goes to the minimum of a cubic through both.

**References:** J. Nocedal, S. J. Wright, *Numerical optimization*, 2nd ed., Springer (2006), algorithms 3.5 and 3.6.
J. J. Moré, D. J. Thuente, *Line search algorithms with guaranteed sufficient decrease*, ACM TOMS 20 (1994), 286-307,
doi 10.1145/192115.192132.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array


FALL = 1e-4
CURVE = 0.9


class Search(eqx.Module):
    """- `t`: the length being tried, up to `longest`. `slope`: of the function at 0.
    - `low`, `high`: (length, value, slope) of both sides. `closed`: whether a minimum is enclosed.
    """

    t: Array
    longest: Array
    slope: Array
    low: Array
    high: Array
    closed: Array
    count: Array


def begin(t, longest, loss, slope) -> Search:
    low = jnp.stack([jnp.zeros_like(loss), loss, slope])
    none = jnp.zeros_like(t)
    return Search(jnp.minimum(t, longest), longest, slope, low, low, none > 0, none)


def advance(s: Search, start, value, slope, fine) -> tuple[Array, Array, Search]:
    """What to make of value and slope at the length `s.t`.

    **Returns:**

    Whether it fulfils the conditions, whether the search is at its end without that, and the next search.
    """
    eps = jnp.finfo(s.t.dtype).eps
    value = jnp.where(fine, value, jnp.inf)
    slope = jnp.where(fine, slope, 0)
    # As much as rounding may hide.
    slack = 2 * eps * jnp.abs(start)
    falls = value <= start + FALL * s.t * s.slope + slack
    flat = jnp.abs(slope) <= -CURVE * s.slope
    end = (s.t >= s.longest) & (slope <= 0)
    good = fine & falls & (flat | end)

    here = jnp.stack([s.t, value, slope])
    worse = ~falls | ((value >= s.low[1]) & (s.low[0] > 0))
    # The minimum lies between `low` and here, or, with a slope upwards, on the other side of here.
    turned = ~worse & (slope * jnp.where(s.closed, s.high[0] - s.low[0], 1) >= 0)
    high = jnp.where(worse, here, jnp.where(turned, s.low, s.high))
    low = jnp.where(worse, s.low, here)
    closed = s.closed | worse | turned

    inner = _cubic(low, high)
    width = high[0] - low[0]
    # Not too near to either side.
    fraction = jnp.clip((inner - low[0]) / jnp.where(width == 0, 1, width), 0.1, 0.9)
    fraction = jnp.where(jnp.isfinite(high[1]) & jnp.isfinite(fraction), fraction, 0.1)
    outer = _cubic(s.low, here)
    outer = jnp.clip(jnp.where(jnp.isfinite(outer), outer, 0), 2 * s.t, 10 * s.t)
    t = jnp.where(closed, low[0] + fraction * width, jnp.minimum(outer, s.longest))
    count = s.count + 1
    over = (count >= 40) | (closed & (jnp.abs(width) <= 4 * eps * jnp.maximum(low[0], high[0])))
    return good, ~good & over, Search(t, s.longest, s.slope, low, high, closed, count)


def _cubic(a, b):
    """Where the cubic with the values and slopes at `a` and `b` has its minimum."""
    h = b[0] - a[0]
    h = jnp.where(h == 0, 1, h)
    d = a[2] + b[2] - 3 * (b[1] - a[1]) / h
    root = jnp.sign(h) * jnp.sqrt(jnp.maximum(d**2 - a[2] * b[2], 0))
    denominator = b[2] - a[2] + 2 * root
    return b[0] - h * (b[2] + root - d) / jnp.where(denominator == 0, 1, denominator)

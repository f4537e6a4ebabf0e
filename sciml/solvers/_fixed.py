"""Fixed steps by `lax.scan`: the same number of equal steps between neighbouring save times.

There is no decision at run time, hence no host synchronisation and no collective: this is the
path for accelerators, for shards and for training. In reverse mode the segment between two
saves is taken again, and each step of it, so memory is that of the saves plus the states of one
segment.
"""

import functools

import jax
import jax.numpy as jnp

from .._compat import varying_like
from ._method import AbstractOneStepMethod
from ._state import NONFINITE_FIELD, NONFINITE_START, RUNNING


def solve_fixed(method: AbstractOneStepMethod, field, y0, saves, steps: int):
    """Integrates `field(s, y)` over the increasing fractions `saves`, of which the first is 0.

    **Returns:**

    `(ys, valid, counts)`; `ys` after the first non-finite step is nan.
    """
    y0 = varying_like(y0, saves, jax.eval_shape(field, saves[0], y0))
    fine = jnp.all(jnp.isfinite(y0))
    # Zeros that vary like the data under `shard_map`, as the loop's carry must.
    zero = jnp.where(fine, 0, 0).astype(saves.dtype)
    none = jnp.where(fine, 0, 0).astype(jnp.result_type(int))

    # Taken again in reverse mode: less memory, and faster than to read all stages back.
    @functools.partial(jax.checkpoint, prevent_cse=False)
    def advance(s, y, h):
        return method.advance(field, s, y, h)

    def segment(carry, span):
        start, stop = span
        h = (stop - start) / steps

        def one(carry, i):
            y, good, reached, taken = carry
            y = advance(start + i.astype(h.dtype) * h, y, h)
            good = good & jnp.all(jnp.isfinite(y))
            reached = jnp.where(good, start + (i + 1).astype(h.dtype) * h, reached)
            return (
                y,
                good,
                reached,
                taken + jnp.where(good, 1, 0).astype(jnp.result_type(int)),
            ), None

        carry, _ = jax.lax.scan(one, carry, jnp.arange(steps))
        return carry, (carry[0], carry[1])

    (_, good, reached, taken), (ys, valid) = jax.lax.scan(
        jax.checkpoint(segment, prevent_cse=False),
        (y0, fine, zero, none),
        (saves[:-1], saves[1:]),
    )
    valid = jnp.concatenate([fine[None], valid])
    # Times 1 or nan, so that half a solution has no plausible gradient either.
    good_rows = jnp.where(valid, 1.0, jnp.nan).astype(y0.dtype)
    ys = jnp.concatenate([y0[None], ys]) * good_rows[:, None]
    status = jnp.where(fine, jnp.where(good, RUNNING, NONFINITE_FIELD), NONFINITE_START)
    counts = {
        "accepted": taken,
        "attempted": taken,
        "evaluations": jnp.asarray(method.evaluations(steps * (saves.shape[0] - 1))),
        "status": status,
        "s": jax.lax.stop_gradient(reached),
        "last_step": (saves[-1] - saves[-2]) / steps,
    }
    return ys, valid, counts

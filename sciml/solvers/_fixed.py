"""Fixed steps by `lax.scan`: the same number of equal steps between neighbouring save times.

There is no decision at run time, hence no host synchronisation and no collective: this is the
path for accelerators, for shards and for training. The segment between two saves is
rematerialised in reverse mode, so memory is that of the saves plus one segment.
"""

import jax
import jax.numpy as jnp

from .._compat import varying_like
from .._results import RESULTS
from ._methods import AbstractExplicitMethod


def _combine(y, weights, ks, h):
    """y + h * sum_i weights_i k_i, leaving out zero weights."""
    terms = [(w, k) for w, k in zip(weights, ks, strict=True) if w != 0]

    def leaf(x, *leaves):
        total = sum(jnp.asarray(w, x.dtype) * k for (w, _), k in zip(terms, leaves, strict=True))
        return x + h.astype(x.dtype) * total

    return jax.tree.map(leaf, y, *[k for _, k in terms])


def all_finite(tree):
    return jnp.stack([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(tree)]).all()


def step(method: AbstractExplicitMethod, field, t, y, h):
    """One explicit Runge-Kutta step of size `h`."""
    ks = [field(t, y)]
    for row in method.a[1:]:
        i = len(ks)
        c = jnp.asarray(row.sum(), h.dtype)
        ks.append(field(t + c * h, _combine(y, row[:i], ks, h)))
    return _combine(y, method.b, ks, h)


def solve_fixed(method: AbstractExplicitMethod, field, y0, elapsed, steps: int):
    """Integrates `field(s, y)` over `elapsed` times `s` (the first is 0).

    **Returns:**

    `(ys, valid, result, stats)`; `ys` after the first non-finite step is nan.
    """
    y0 = varying_like(y0, elapsed, jax.eval_shape(field, elapsed[0], y0))
    # A zero that varies like the data under `shard_map`, as the loop's carry must.
    zero = jnp.where(all_finite(y0), 0.0, 1.0).astype(elapsed.dtype) * 0
    fine = all_finite(y0)

    def segment(carry, span):
        start, stop = span
        h = (stop - start) / steps

        def one(carry, i):
            y, good, reached, taken = carry
            y = step(method, field, start + i.astype(h.dtype) * h, y, h)
            good = good & all_finite(y)
            reached = jnp.where(good, start + (i + 1).astype(h.dtype) * h, reached)
            return (y, good, reached, taken + good.astype(taken.dtype)), None

        carry, _ = jax.lax.scan(one, carry, jnp.arange(steps))
        return carry, (carry[0], carry[1])

    spans = (elapsed[:-1], elapsed[1:])
    taken = (zero * 0).astype(jnp.result_type(int))
    carry = (y0, fine, jax.lax.stop_gradient(zero), taken)
    (_, good, reached, taken), (ys, valid) = jax.lax.scan(
        jax.checkpoint(segment, prevent_cse=False), carry, spans
    )
    valid = jnp.concatenate([fine[None], valid])
    # Multiplied, not selected: the gradient of half a solution must be nan as well. Nor inf.
    factor = jnp.where(valid, 1.0, jnp.nan)

    def collect(x, xs):
        xs = jnp.concatenate([x[None], xs])
        return xs * factor.reshape(-1, *(1,) * x.ndim).astype(xs.dtype)

    ys = jax.tree.map(collect, y0, ys)
    result = RESULTS.where(good, RESULTS.successful, RESULTS.nonfinite_field)
    n = steps * (elapsed.shape[0] - 1)
    stats = {
        "accepted": taken,
        "rejected": jnp.asarray(0),
        "evaluations": jnp.asarray(n * len(method.b)),
        "reached": reached,
        "last_step": (elapsed[-1] - elapsed[-2]) / steps,
    }
    return ys, valid, result, stats

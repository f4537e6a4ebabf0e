"""A second attempt at a sum of squares, where the first ended in a place that looks like none.

Scaled steps don't depend on units, but can run along unknowns that hardly matter, to where the residuals no longer
depend on them. From there nothing leads back. Steps with one and the same unit for all unknowns go another way.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..._compat import varying_like
from ._levenberg_marquardt import LevenbergMarquardt
from ._loop import begin, Box, CONVERGED, Finish, Looking, run, STALLED, State


def attempts(
    method: LevenbergMarquardt,
    look: Looking,
    start: Float[Array, " n"],
    box: Box,
    max_steps: int,
    history: bool,
    value: jax.ShapeDtypeStruct,
) -> tuple[State, Finish]:
    """The better one of one or two searches, which share `max_steps` and stand in the compiled program once.

    **Arguments:**

    - `value`: shape of what `look` sees.
    """

    def search(k, used):
        current = dataclasses.replace(method, uniform=k > 0)
        end = run(current, look, start, box, max_steps, history, value, used=used)
        return end, current.finish(end, box)

    def body(carry):
        k, used, _, old = carry
        end, finish = search(k, used)
        used = end.evaluations
        # What rounding makes of the same minimum is not better.
        lower = end.here.loss < old[0].here.loss * (1 - 1e-6)
        better = (k == 0) | ((finish.code == CONVERGED) & lower)
        new = jax.tree.map(lambda a, b: jnp.where(better, a, b), (end, finish), old)
        new = eqx.tree_at(lambda s: s[0].evaluations, new, used)
        before, now = old[0].history, end.history
        if before is not None and now is not None:
            seen = jnp.where((k > 0) & jnp.isnan(now), before, now)
            new = eqx.tree_at(lambda s: s[0].history, new, seen)
        odd = (finish.code == STALLED) | jnp.any(finish.null != 0)
        poor = end.here.loss > jnp.sqrt(jnp.finfo(start.dtype).eps) * end.memory.first_misfit
        return k + 1, used, (k == 0) & odd & poor, new

    count = jnp.zeros((), jnp.result_type(int))
    zero = jnp.zeros((), start.dtype)
    blank = begin(method, look, start, max_steps, history, value), Finish(count, zero, 0 * start)
    carry = varying_like((count, count, count == 0, blank), start)
    return jax.lax.while_loop(lambda c: c[2], body, carry)[3]

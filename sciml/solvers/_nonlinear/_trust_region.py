"""What trust-region methods for functions have in common: whether a step was good, and the radius after it."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from ._loop import Look


class Verdict(eqx.Module):
    """What is common to trust-region methods for functions.

    - `noise`: what rounding does to the function's value. `blind`: a step whose effect can't be seen.
    """

    accept: Array
    gain: Array
    noise: Array
    blind: Array


def judge(state, there: Look, predicted) -> Verdict:
    here, first = state.here, state.first
    eps = jnp.finfo(there.x.dtype).eps
    actual = here.loss - there.loss
    gain = actual / jnp.where(predicted > 0, predicted, 1)
    noise = 4 * eps * (jnp.abs(here.loss) + jnp.sum(jnp.abs(here.value * here.x)))
    blind = ~first & (predicted <= noise) & (actual >= -noise)
    better = (actual > 0) & (gain > 1e-4) & (predicted > 0)
    return Verdict(there.fine & (first | better | blind), gain, noise, blind)


def new_radius(radius, length, verdict: Verdict, fine):
    bad = ~fine | ((verdict.gain <= 0.25) & ~verdict.blind)
    shorter = jnp.where(fine, 0.25, 0.1) * jnp.minimum(radius, length)
    good = ((verdict.gain >= 0.75) | verdict.blind) & (length >= 0.8 * radius)
    return jnp.where(bad, shorter, jnp.where(good, 2 * radius, radius))

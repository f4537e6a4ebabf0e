"""Steps that derivatives can take, where the state rests.

The error of a step is that of the state. A state at rest has none, so that steps grow until nothing is left of
the time, far beyond the stability of an explicit method; the tangents, which don't rest, take the same steps and
are magnified by each. So solves that are differentiated look at the rates as well where the state rests: |h| times the
spectral radius of the Jacobian stays below a bound at which tangents are stable and accurate. Solves that nobody
differentiates don't.

The radius comes from power iteration by differences of the field, one product a step, with a direction that is
carried from step to step. Products of two steps count, since single ones alternate for an oscillator in units that
don't fit it; its square is a multiple of -1.

Steps of a stiff method are not limited by rates, but grow slowly at rest, so that they resolve each mode before
they outgrow it.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._compat import unvmap_any
from ._norms import ratio, rms


_FAR_BELOW = 1e-3  # errors, in tolerances, that don't limit steps
# A solve that moved by less, relative to the state, says nothing of the errors of its tangents.
_STILL = 1e-2
# notation: z = h rate. At 0.5 the tangent of y' = c - y by Tsit5 is right to 2e-7.
_LARGEST = 0.5
_TOO_LONG = 2.0  # by this factor: then the step is taken again
_LOOKS = 6  # products at the first look
_GROWTH = 1.5  # of stiff steps at rest; by more, tangents of slow modes were wrong by 2e-4
_MANY = 1000  # explicit steps to come that speak for a stiff method


class Probe(eqx.Module):
    """What is known of the rates.

    - `direction`: towards the eigenvector of the largest rate, in units of the tolerances.
    - `gain`: the size of the Jacobian's last product with it; -1 before the first.
    - `path`: how far the state has moved, relative to its size.
    """

    direction: Float[Array, " n"]
    gain: Float[Array, ""]
    path: Float[Array, ""]


class Look(eqx.Module):
    """What a look at the rates says of a step.

    - `too_long`: whether it must be taken again; `longest`: the next one.
    - `rests`: whether the state does; `crawls`: whether many small steps are to come that a stiff method needn't
      take.
    """

    too_long: Bool[Array, ""]
    longest: Float[Array, ""]
    rests: Bool[Array, ""]
    crawls: Bool[Array, ""]


def at_start(y: Array, zero: Array) -> Probe:
    # Uneven, for a vector of ones may be what the Jacobian takes to nothing.
    direction = jnp.sin(1 + jnp.arange(y.shape[0], dtype=y.dtype) ** 2)
    return Probe(direction / rms(direction) + 0 * zero, zero - 1, zero)


def look(probe: Probe, field, s, y, step, h, error, scale, tol, on) -> tuple[Probe, Look]:
    """Looks at the rates where a step of an explicit method began, if the state rests.

    **Arguments:**

    - `error`: of the step, in tolerances; `scale`: the size of one, for each number of the state.
    - `on`: whether the step was tried.
    """
    operands = (field, s, y, step.y, step.stages[0], h, error, scale, tol.rtol)
    field, s, y, y1, first, h, error, scale, rtol = jax.lax.stop_gradient(operands)
    fine = on & (error <= 1)
    path = probe.path + rms(ratio(y1 - y, scale)) * jnp.max(rtol).astype(y.dtype)
    rests = fine & ((error < _FAR_BELOW) | (path < _STILL))
    eps = float(jnp.finfo(y.dtype).eps)
    # Differences of less than this are rounding errors.
    unit = jnp.maximum(scale, eps**0.5 * jnp.abs(y))

    def product(i, carry):
        u, gain, _, _ = carry
        v = field(s, y + unit * u) - first / h.astype(y.dtype)
        v = jnp.where(unit > 0, v, 0) / jnp.where(unit > 0, unit, 1)
        size = rms(v)
        # The first look is of this member's alone, whatever others of its batch do.
        known = jnp.isfinite(size) & (size > 0) & rests & ((i == 0) | (probe.gain < 0))
        v = v / jnp.where(known, size, 1)
        keep = lambda new, old: jnp.where(known, new, old)
        radius = jnp.sqrt(size) * jnp.sqrt(jnp.where(gain > 0, gain, size))
        return keep(v, u), keep(size, gain), keep(radius, carry[2]), keep(jnp.mean(u * v), carry[3])

    # No turn of a loop is cheaper than a branch that isn't taken.
    first_look = unvmap_any(rests & (probe.gain < 0))
    count = jnp.where(unvmap_any(rests), jnp.where(first_look, _LOOKS, 1), 0)
    carry = (probe.direction, probe.gain, 0 * probe.path, 0 * probe.path)
    direction, gain, radius, cosine = jax.lax.fori_loop(0, count, product, carry)
    limited = rests & (radius > 0)
    longest = jnp.where(limited, _LARGEST / jnp.where(limited, radius, 1), jnp.inf)
    # What oscillates or grows needs its steps.
    crawls = limited & (cosine < -0.5) & ((1 - s) > _MANY * longest)
    too_long = h > _TOO_LONG * longest
    path = jnp.where(fine & ~too_long, path, probe.path)
    return Probe(direction, gain, path), Look(too_long, longest, rests, crawls)


def growth(error: Array) -> Array:
    """By how much a step of a stiff method may grow."""
    return jnp.where(error < _FAR_BELOW, _GROWTH, jnp.inf)

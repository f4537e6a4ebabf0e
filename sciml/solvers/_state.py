"""What the adaptive loop carries from step to step, and what ends it."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._compat import varying_like
from . import _rest
from ._switching import at_start, Switching


# What ended a solve; `_results.py` has the words. Plain integers, since they live in loops.
RUNNING, OUT_OF_STEPS, COLLAPSED, NONFINITE_FIELD, NONFINITE_START = range(5)
RECORD_FULL, UNORDERED_TIMES, INCONSISTENT_START, AT_EVENT, TOO_MANY_EVENTS, UNSOUND = range(5, 11)


class Begin(eqx.Module):
    """Where a piece of a longer solve begins.

    - `h`: the first step is at least so large.
    - `coarse`: of the event that ended the piece before, on the time of this one.
    - `switching`, `signs`: as the piece before left them; `fired`: the event that ended it, or -1.
    """

    h: Float[Array, ""]
    coarse: Float[Array, ""]
    switching: Switching | None
    signs: Float[Array, " event"] | None
    fired: Int[Array, ""] | None


class Tolerances(eqx.Module):
    """Of the error of a step, and how many steps may be tried; and how a piece begins."""

    rtol: Array
    atol: Array
    max_steps: Array
    begin: Begin | None = None


class State(eqx.Module):
    """The solve between two steps.

    - `h`, `h_tried`: the sizes of the next step to try and of the last one tried.
    - `signs`: of the event functions, as last seen; `fired`: the event at which the solve stopped; `coarse`: the
      size of the step in which it was seen first.
    """

    s: Float[Array, ""]
    y: Float[Array, " n"]
    f: Float[Array, " n"] | None  # the field here, for methods that share it between steps
    h: Float[Array, ""]
    h_tried: Float[Array, ""]
    attempted: Int[Array, ""]
    accepted: Int[Array, ""]
    status: Int[Array, ""]
    switching: Switching | None = None  # for a method that is made of two
    signs: Float[Array, " event"] | None = None
    fired: Int[Array, ""] | None = None
    coarse: Float[Array, ""] | None = None
    probe: _rest.Probe | None = None  # for a solve that is differentiated


def blank(method, field, y0: Array, tol: Tolerances, differentiated: bool = False) -> State:
    """A state that stands for the one before the first step, until the solve has begun."""
    events = jnp.zeros(len(field.traced.directions), y0.dtype)
    zero, count, events = varying_like(
        (jnp.zeros((), y0.dtype), jnp.zeros((), jnp.result_type(int)), events), y0, tol
    )
    return State(
        s=zero,
        y=y0,
        f=y0 if method.shares_last_stage else None,
        h=zero,
        h_tried=zero,
        attempted=count,
        accepted=count,
        status=count,
        switching=at_start(count, zero) if len(method.parts) > 1 else None,
        signs=events if events.size else None,
        fired=count if events.size else None,
        coarse=zero if events.size else None,
        probe=_rest.at_start(y0, zero) if differentiated else None,
    )

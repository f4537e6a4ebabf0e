"""The adaptive loop: steps under error control, on normalised time `s` in [0, 1].

A method that is made of two takes its steps in two loops that alternate, one for each: a choice in
every step would be made by computing both, under `jax.vmap`.

`integrate` keeps nothing but the last step, and reads saved rows off its dense output. What derivatives
need is kept in `_record.py`.

Under `jax.vmap` the members march in lockstep: the loops go on while *any* member does, a
condition that is not batched, so that JAX doesn't copy every carried buffer at every turn to keep
those of the finished members. What has come to its end stays as it is by `where` on single
states, and writes what nobody wants into a spare row.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._compat import unvmap_any, varying_like
from . import _rest
from ._norms import ratio, rms
from ._rows import finish, first_rows, save, save_end
from ._state import (
    AT_EVENT,
    blank,
    COLLAPSED,
    NONFINITE_FIELD,
    NONFINITE_START,
    OUT_OF_STEPS,
    RUNNING,
    State,
    Tolerances,
)
from ._switching import after_step, at_start
from ._watch import crossing, has_arrived, signs_at_start, size_up_to


def at_once(whole, carry):
    """`whole(carry)`, in a loop of one turn.

    XLA compiles a loop over small arrays into one function; what is outside of loops it runs operation
    by operation, on several threads, which for ten to a hundred equations took longer than the steps.
    """
    todo = jax.lax.optimization_barrier(jnp.ones((), bool))  # what the compiler must not know
    done = lambda carry: (jnp.zeros_like(carry[0]), whole(carry[1]))
    return jax.lax.while_loop(lambda carry: carry[0], done, (todo, carry))[1]


def start(method, field, y0: Array, tol: Tolerances, differentiated: bool = False) -> State:
    """The state before the first step, whose size is estimated as by Hairer, Nørsett and
    Wanner, *Solving ordinary differential equations I* (1993), section II.4."""
    dtype = y0.dtype
    zero = varying_like(jnp.zeros((), dtype), y0)
    mass = method.mass
    slope = lambda f: jax.lax.stop_gradient(f if mass is None else mass.derivative(f))
    frozen_y = jax.lax.stop_gradient(y0)
    scale = tol.atol + tol.rtol * jnp.abs(frozen_y)
    largest = lambda x: jnp.maximum(jnp.max(jnp.abs(x)), jnp.finfo(dtype).tiny)
    # Divided by the largest first: squares of errors in units of a tiny `atol` overflow.
    size = lambda x: largest(ratio(x, scale)) * rms(ratio(x, scale) / largest(ratio(x, scale)))
    d0 = size(frozen_y)

    def evaluate(i, carry):
        # At the start, then a small step away; in a loop, so that the field is compiled once.
        h0, _, f0, _ = carry
        f = field(h0, jnp.where(i == 0, y0, frozen_y + h0 * slope(f0)))
        f0 = jnp.where(i == 0, f, f0)
        d1 = size(slope(f0))
        h0 = jnp.where((d0 < 1e-5) | (d1 < 1e-5), 1e-6, 0.01 * d0 / jnp.where(d1 > 0, d1, 1))
        h0 = jnp.where(jnp.isfinite(h0) & (h0 > 0), jnp.minimum(h0, 1.0), 1e-6)
        return h0, d1, f0, f

    carry = varying_like((zero, zero, jnp.zeros_like(y0), jnp.zeros_like(y0)), tol)
    h0, d1, f0, f1 = jax.lax.fori_loop(0, 2, evaluate, carry)
    d2 = size(slope(f1) - slope(f0)) / h0
    h1 = (0.01 / jnp.maximum(jnp.maximum(d1, d2), 1e-15)) ** (1 / method.error_order)
    h = jnp.minimum(jnp.minimum(100 * h0, h1), 1.0)
    h = jnp.where(jnp.isfinite(h) & (h > 0), h, h0)
    h = jax.lax.stop_gradient(h)
    fine = jnp.all(jnp.isfinite(y0)) & jnp.all(jnp.isfinite(f0))
    count = varying_like(jnp.zeros((), jnp.result_type(int)), y0)
    switching = at_start(count, h) if len(method.parts) > 1 else None
    signs = fired = None
    if tol.begin is not None:
        h = jnp.minimum(jnp.maximum(h, tol.begin.h), 1.0)
        switching, signs, fired = tol.begin.switching, tol.begin.signs, tol.begin.fired
    status = jnp.where(fine, RUNNING, NONFINITE_START).astype(jnp.result_type(int))
    if signs is not None:
        assert tol.begin is not None
        assert fired is not None
        operands = (slope(f0), signs, fired, tol.begin.coarse)
        now, crossed = signs_at_start(field, zero, y0, *operands)
        # What is due at once: the first of them, and the others after it.
        due = fine & jnp.any(crossed)
        fired = jnp.where(due, jnp.argmax(crossed), -1).astype(count.dtype)
        waiting = crossed & (jnp.arange(now.shape[0]) != fired)
        signs = jnp.where(waiting, signs, now)
        status = jnp.where(due, AT_EVENT, status)
    return State(
        s=zero,
        y=y0,
        f=f0 if method.shares_last_stage else None,
        h=h,
        h_tried=zero,
        attempted=count,
        accepted=count,
        status=status,
        switching=switching,
        signs=signs,
        fired=fired,
        coarse=None if signs is None else zero,
        probe=_rest.at_start(frozen_y, jax.lax.stop_gradient(zero)) if differentiated else None,
    )


def attempt(method, part: int, field, tol: Tolerances, c: State, on: Array) -> tuple[State, Array]:
    """Tries one step, if it is `on`; keeps it if its error is within the tolerances.

    **Arguments:**

    - `method`: the one-step method, `part`: which of the parts it is.

    **Returns:**

    The state after it, and the stages of the step.
    """
    eps = float(jnp.finfo(c.s.dtype).eps)
    final = c.s + c.h * (1 + 1e-6) >= 1  # no sliver of a step is left for the end
    h = jnp.where(final, 1 - c.s, c.h)
    step = method.step(field, c.s, c.y, h, c.f)
    y, stages = step.y, step.stages
    scale = tol.atol + tol.rtol * jnp.maximum(jnp.abs(c.y), jnp.abs(y))
    error = rms(ratio(method.error(stages), scale))
    error = jax.lax.stop_gradient(error)
    finite = jnp.isfinite(error)
    error = jnp.where(finite, error, 1e10)
    ok = error <= 1
    # notation: safety 0.9; a step changes by at most a factor of 5 (Hairer et al., II.4)
    factor = jnp.clip(0.9 * jnp.maximum(error, 1e-10) ** (-1 / method.error_order), 0.2, 5.0)
    h_next = h * factor
    probe, rest = c.probe, None
    if probe is not None and method.stiff:
        h_next = jnp.minimum(h_next, h * _rest.growth(error))
    elif probe is not None:
        probe, rest = _rest.look(probe, field, c.s, c.y, step, h, error, scale, tol, on)
        ok = ok & ~rest.too_long
        h_next = jnp.minimum(h_next, rest.longest)
    # `~(a > b)`, since a step size of nan is a collapse, too.
    collapsed = ~ok & ~(h_next > jnp.maximum(4 * eps * c.s, eps**2))
    collapsed = collapsed | (ok & ~final & (c.s + h == c.s))
    one = lambda flag: jnp.where(flag, 1, 0).astype(jnp.result_type(int))
    attempted = c.attempted + one(on)
    status = jnp.where(
        collapsed,
        jnp.where(finite, COLLAPSED, NONFINITE_FIELD),
        jnp.where((attempted >= tol.max_steps) & ~(ok & final), OUT_OF_STEPS, c.status),
    ).astype(jnp.result_type(int))
    ok = ok & on
    keep = lambda new, old: jnp.where(ok, new, old)
    switching = c.switching
    if switching is not None:
        switching = after_step(switching, part, method, step, scale, h, on, ok, rest)
    following = State(
        s=keep(jnp.where(final, jnp.ones_like(c.s), c.s + h), c.s),
        y=keep(y, c.y),
        f=keep(step.f, c.f) if method.shares_last_stage else c.f,
        h=jnp.where(on, h_next, c.h),
        h_tried=jnp.where(on, h, c.h_tried),
        attempted=attempted,
        accepted=c.accepted + one(ok),
        status=jnp.where(on, status, c.status),
        switching=switching,
        signs=c.signs,
        fired=c.fired,
        coarse=c.coarse,
        probe=probe,
    )
    if c.signs is not None:
        following = stopped_at_event(method, field, c, following, stages, h)
    return following, stages


def stopped_at_event(method, field, before: State, after: State, stages, h) -> State:
    """The state after a step in which an event may lie: then the step was too large, or the solve ends."""
    stepped = after.accepted > before.accepted
    operands = (before.s, before.y, h, stages, before.signs, stepped)
    assert before.signs is not None
    assert before.fired is not None
    assert before.coarse is not None
    coarse = jnp.maximum(h, before.coarse)
    hit, theta, which, signs = crossing(method, field, *operands)
    there = hit & has_arrived(theta, h, coarse, after.s)
    again = hit & ~there
    back = lambda old, new: jax.tree.map(lambda a, b: jnp.where(again, a, b), old, new)
    after = eqx.tree_at(
        lambda c: (c.s, c.y, c.accepted, c.h, c.status, c.signs, c.fired, c.coarse),
        after,
        (
            *back((before.s, before.y, before.accepted), (after.s, after.y, after.accepted)),
            jnp.where(again, size_up_to(theta, h, coarse, before.s), after.h),
            jnp.where(there, AT_EVENT, back(before.status, after.status)).astype(
                after.status.dtype
            ),
            jnp.where(stepped & ~again, signs, before.signs),
            jnp.where(there, which, before.fired).astype(after.status.dtype),
            jnp.where(hit, coarse, jnp.where(stepped, 0, before.coarse)),
        ),
    )
    if after.f is not None:
        after = eqx.tree_at(lambda c: c.f, after, back(before.f, after.f))
    return after


def goes_on(c: State, rows, part: int | None = None) -> Array:
    """Whether a member has not come to its end yet, and takes its next step by this part."""
    # `s < 1` as well: a row that can't come, for times out of order, must not be waited for.
    on = (c.status == RUNNING) & (c.s < 1) & (rows.next < rows.ys.shape[0] - 1)
    return on if part is None or c.switching is None else on & (c.switching.is_turn_of(part))


def alternate(method, going, march, carry) -> Any:
    """Lets the parts of a method take turns.

    **Arguments:**

    - `going(carry)`: whether the solve goes on.
    - `march(part, carry)`: all steps of this part until it is the turn of another.
    """

    def turn(carry):
        for part in range(len(method.parts)):
            carry = march(part, carry)
        return carry

    # A single part marches to the end.
    return turn(carry) if len(method.parts) == 1 else jax.lax.while_loop(going, turn, carry)


def taking_over(method, field, c: State) -> State:
    """The state where a part begins, which knows nothing of the last stage of another one."""
    if c.switching is None or not method.shares_last_stage:
        return c
    return eqx.tree_at(lambda c: c.f, c, field(c.s, c.y))


def integrate(method, field, y0, saves, tol: Tolerances, differentiated: bool = False):
    """Solves and saves at the increasing fractions `saves`, of which the first is 0.

    **Returns:**

    `(ys, valid, State)`; rows that were not reached are the last state times nan.
    """

    def going(carry, part=None):
        c, rows = carry
        return unvmap_any(goes_on(c, rows, part))

    def march(part, carry):
        method_of_part = method.parts[part]

        def one(carry):
            before, rows = carry
            on = goes_on(before, rows, part)
            c, stages = attempt(method_of_part, part, field, tol, before, on)
            rows = save(method_of_part, saves, before, c, stages, rows)
            return c, save_end(field, before, c, rows)

        c, rows = carry
        carry = (taking_over(method_of_part, field, c), rows)
        return jax.lax.while_loop(lambda carry: going(carry, part), one, carry)

    def whole(_):
        c = start(method, field, y0, tol, differentiated)
        return alternate(method, going, march, (c, first_rows(c, saves)))

    c = blank(method, field, y0, tol, differentiated)
    c, rows = at_once(whole, (c, first_rows(c, saves)))
    return *finish(c, rows), c

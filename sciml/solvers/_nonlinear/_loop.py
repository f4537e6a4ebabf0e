"""One loop for all iterative methods: one evaluation an iteration.

A method never calls the function. It says at which point to look next, is shown what is there, and answers whether
it goes there and where to look then. The start is the first such point. So the function stands in the compiled
program once, line searches and rejected steps cost an evaluation each and nothing else, and in a batch each member
is at a stage of its own.
"""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ..._compat import varying_like
from ..._results import RESULTS


GOING, CONVERGED, STALLED, BAD_START, SINGULAR, SADDLE, UNBOUNDED = range(7)
NO_SIGN_CHANGE, NOT_LINEAR = 7, 8

_RESULTS = {
    CONVERGED: RESULTS.successful,
    GOING: RESULTS.max_iterations_reached,
    STALLED: RESULTS.stalled,
    BAD_START: RESULTS.nonfinite_residual,
    SINGULAR: RESULTS.singular_system,
    SADDLE: RESULTS.saddle_point,
    UNBOUNDED: RESULTS.unbounded,
    NO_SIGN_CHANGE: RESULTS.no_sign_change,
    NOT_LINEAR: RESULTS.not_linear,
}


def as_result(code: Int[Array, ""]) -> RESULTS:
    result = RESULTS.successful
    for number, item in _RESULTS.items():
        result = RESULTS.where(code == number, item, result)
    return result


class Box(eqx.Module):
    """The bounds of the unknowns.

    - `real`: whether there are any; if not, methods leave out what deals with them.
    """

    lower: Float[Array, " n"]
    upper: Float[Array, " n"]
    real: bool = eqx.field(static=True)

    def land(self, x, step):
        """The point at the end of `step`, exactly on a bound if it ends there."""
        if not self.real:
            return x + step
        near = 1 - 8 * jnp.finfo(x.dtype).eps
        low, high = step <= near * (self.lower - x), step >= near * (self.upper - x)
        return jnp.where(low, self.lower, jnp.where(high, self.upper, x + step))

    def blocked(self, x, gradient):
        """Which unknowns the gradient holds at a bound."""
        low, high = (x <= self.lower) & (gradient > 0), (x >= self.upper) & (gradient < 0)
        return (low | high | (self.lower >= self.upper)) & self.real

    def active(self, x):
        """-1 at the lower bound, 1 at the upper, 0 free."""
        kind = jnp.result_type(int)
        low, high = (x <= self.lower) & self.real, (x >= self.upper) & self.real
        return jnp.where(low, -1, jnp.where(high, 1, 0)).astype(kind)


class Look(eqx.Module):
    """What is to be seen at a point.

    - `loss`: half the sum of squared residuals, or the function that is minimised.
    - `value`: the residuals, or the gradient.
    - `misfit`: the part of the loss that vanishes for a perfect fit. Reductions are judged relative to it, since a
      loss with logarithms in it has an arbitrary zero.
    - `fine`: whether everything that was computed here is finite.
    """

    x: Float[Array, " n"]
    loss: Float[Array, ""]
    value: Float[Array, " m"]
    misfit: Float[Array, ""]
    fine: Bool[Array, ""]


def all_finite(tree) -> Bool[Array, ""]:
    parts = [jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(tree)]
    return jnp.stack(parts).all()


def finite_or_zero(step: Float[Array, " n"]) -> Float[Array, " n"]:
    """A step, or none if it could not be computed."""
    return jnp.where(jnp.all(jnp.isfinite(step)), step, jnp.zeros_like(step))


class State(eqx.Module):
    """Where the iteration is.

    - `here`: the best, or last accepted, point. `trial`: where to look next. `memory`: the method's own.
    - `code`: one of the numbers above. `failures`: points at which something was not finite.
    - `evaluations`: so far, with those of earlier searches. `looks`: of this one.
    - `history`: the loss after each evaluation; `None` if not wanted.
    """

    here: Look
    trial: Float[Array, " n"]
    memory: Any
    code: Int[Array, ""]
    evaluations: Int[Array, ""]
    looks: Int[Array, ""]
    steps: Int[Array, ""]
    failures: Int[Array, ""]
    history: Float[Array, " iteration"] | None

    @property
    def first(self):
        """Whether the start itself is what is being looked at."""
        return self.looks == 0


class Answer(eqx.Module):
    """What a method makes of a point: does it go there, where to look next, and is this the end."""

    accept: Bool[Array, ""]
    trial: Float[Array, " n"]
    memory: Any
    code: Int[Array, ""]


class Finish(eqx.Module):
    """How the end of an iteration is to be judged.

    - `code`: as in the loop. `optimality`: how far from the solution it is, as the method measures it.
    - `null`: the direction in which nothing changes; zero if there is none.
    """

    code: Any
    optimality: Float[Array, ""]
    null: Float[Array, " n"]


class AbstractIteration(eqx.Module):
    """An iterative method: a pure function from what it knows to where it looks next."""

    @abc.abstractmethod
    def begin(self, x0: Float[Array, " n"], m: int) -> Any:
        """The memory before anything was seen: arrays of the right shapes.

        **Arguments:**

        - `x0`: the start. `m`: how many residuals there are.
        """

    @abc.abstractmethod
    def respond(self, state: State, there: Look, linear: Any, box: Box) -> Answer:
        """What to make of the point `there`.

        **Arguments:**

        - `state`: with `state.first` the start is looked at, and `state.here` is empty.
        - `there`: what is to be seen at `state.trial`.
        - `linear`: the linear part at that point, as the problem gives it.
        """


# A problem as the loop sees it: what is at a point, and the linear part there.
Looking = Callable[[Array], tuple[Look, Any]]


def begin(method, look: Looking, x0, max_steps: int, history: bool, value=None) -> State:
    """The state before the start was looked at.

    - `value`: shape and dtype of the residuals or the gradient, if known: then nothing need be traced for it.
    """
    if value is None:
        value = jax.eval_shape(lambda x: look(x)[0].value, x0)
    nan, no = jnp.full((), jnp.nan, x0.dtype), jnp.asarray(False)
    blank = Look(jnp.full_like(x0, jnp.nan), nan, jnp.full(value.shape, jnp.nan, x0.dtype), nan, no)
    zero = jnp.zeros((), jnp.result_type(int))
    length = max_steps + 1 if history else 0
    state = State(
        here=blank,
        trial=x0,
        memory=method.begin(x0, value.shape[0]),
        code=zero,
        evaluations=zero,
        looks=zero,
        steps=zero,
        failures=zero,
        history=jnp.full((length,), jnp.nan, x0.dtype) if history else None,
    )
    # In a `shard_map`, what differs between devices must be marked so from the start.
    return varying_like(state, x0, value)


def advance(method: AbstractIteration, look: Looking, s: State, box: Box) -> State:
    """One evaluation, and what the method makes of it."""
    there, linear = look(s.trial)
    answer = method.respond(s, there, linear, box)
    here = jax.tree.map(lambda a, b: jnp.where(answer.accept, a, b), there, s.here)
    history = s.history
    if history is not None:
        history = history.at[s.evaluations].set(here.loss, mode="drop")
    bad = s.first & ~there.fine
    return State(
        here=here,
        trial=answer.trial,
        memory=answer.memory,
        code=jnp.where(bad, BAD_START, answer.code).astype(s.code.dtype),
        evaluations=s.evaluations + 1,
        looks=s.looks + 1,
        steps=s.steps + jnp.where(answer.accept & ~s.first, 1, 0),
        failures=s.failures + jnp.where(there.fine, 0, 1),
        history=history,
    )


def run(
    method: AbstractIteration,
    look: Looking,
    x0: Float[Array, " n"],
    box: Box,
    max_steps: int,
    history: bool = False,
    value: jax.ShapeDtypeStruct | None = None,
    lost: Callable[[Look], Array] | None = None,
    used: Int[Array, ""] | None = None,
) -> State:
    """Iterates until the method has converged or given up, or for `max_steps` evaluations after the first.

    **Arguments:**

    - `lost`: whether there is no use in going on from a point.
    - `used`: evaluations that were made before.
    """
    state = begin(method, look, x0, max_steps, history, value)
    if used is not None:
        state = eqx.tree_at(lambda s: s.evaluations, state, varying_like(used, state))
    going = lambda s: (s.code == GOING) & (s.evaluations <= max_steps)
    if lost is not None:
        going = lambda s: (s.code == GOING) & (s.evaluations <= max_steps) & ~lost(s.here)
    return jax.lax.while_loop(going, lambda s: advance(method, look, s, box), state)

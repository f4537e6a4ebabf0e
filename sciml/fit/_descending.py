"""The compiled loop of training: one update after the other, and back where the loss is not finite.

A point where the loss or its gradient is not finite is left again: half of the update that led there is tried from
the last good point, then a quarter, and so on; the factor grows back once things go well.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from ._batches import Deck, Stacked
from ._goal import AbstractGoal
from ._layout import Layout, value, value_and_grad


GIVE_UP = 30  # rejected steps in a row; by then the update is a billionth of what it was
_SHRINK, _GROW = 0.5, 1.2


class State(eqx.Module):
    """All that training carries from one step to the next.

    The next loss is taken at `good + cut * update`.

    - `good`: the last parameters whose loss was finite. `update`, `cut`: what the optimiser asked for there, and how
      much of it is tried.
    - `opt`: the state of the optimiser. `average`: of the parameters, if one is kept.
    - `best_loss`, `best`: the lowest loss that may be compared, and where.
    - `deck`: the items of the data in the order in which they come.
    - `step`: how many are done. `row`, `rejected`: how many were rejected of late, and in all.
    """

    good: Any
    update: Any
    cut: Array
    opt: Any
    average: Any
    best_loss: Array
    best: Any
    deck: Deck | None
    step: Array
    row: Array
    rejected: Array


class Options(eqx.Module):
    """How a step is made.

    - `decay`: of the average. `items`, `batch`: how many items the data have, and how many of them a step takes.
    - `layout`: over which devices.
    """

    decay: float | None = eqx.field(static=True)
    items: int | None = eqx.field(static=True)
    batch: int | None = eqx.field(static=True)
    layout: Layout | None = eqx.field(static=True)


def begin(optimiser: Any, params: Any, options: Options, key: Any) -> State:
    """The state before the first step. Nothing of it is shared with `params`, since it will be donated."""
    fresh = lambda: jax.tree.map(jnp.array, params)
    none = jnp.zeros((), int)
    dtype = jnp.result_type(*jax.tree.leaves(params))
    real = jnp.finfo(dtype).dtype
    return State(
        good=fresh(),
        update=jax.tree.map(jnp.zeros_like, params),
        cut=jnp.ones((), real),
        opt=jax.tree.map(lambda x: jnp.array(x) if eqx.is_array(x) else x, optimiser.init(params)),
        average=None if options.decay is None else fresh(),
        best_loss=jnp.asarray(jnp.inf, real),
        best=fresh(),
        deck=None if options.items is None else Deck.fresh(key, options.items),
        step=none,
        row=none.copy(),
        rejected=none.copy(),
    )


def here(goal: AbstractGoal, state: State) -> Any:
    """The parameters where the next loss is taken."""
    moved = lambda p, u: p + state.cut.astype(jnp.finfo(p.dtype).dtype) * u
    return goal.project(jax.tree.map(moved, state.good, state.update))


@eqx.filter_jit(donate="all-except-first")
def advance(fixed: tuple, state: State) -> tuple[State, tuple[Array, dict[str, Array], Array]]:
    """Some steps, compiled once for all.

    **Arguments:**

    - `fixed`: the goal, the optimiser, options, data (a pytree with a leading axis of items, or `Stacked`), the key,
      how many steps the phases before had, the step before which to stop, how many the first phase has, and the length
      of the history.

    **Returns:**

    The state, and for each step the loss, its terms and whether it was accepted.
    """
    goal, optimiser, options, data, key, before, until, steps, size = fixed
    optimiser = optax.with_extra_args_support(optimiser)
    first, layout = state.step, options.layout

    def one(state: State):
        i, deck = state.step, state.deck
        if deck is not None:
            at, deck = deck.draw(key, options.batch)
            batch = jax.tree.map(lambda x: x[at], data)
        elif isinstance(data, Stacked):
            batch = jax.tree.map(lambda x: x[i - first], data.batches)
        else:
            batch = data
        point = here(goal, state)
        now = (batch, key, before + i, steps)
        (loss, seen), grads = value_and_grad(goal, layout, point, *now)
        value_fn = lambda p: value(goal, layout, p, *now)[0]
        with jax.numpy_dtype_promotion("standard"):  # Optax mixes counts and floats
            updates, opt = optimiser.update(
                grads, state.opt, point, value=loss, grad=grads, value_fn=value_fn
            )
        updates = jax.tree.map(lambda u, p: u.astype(p.dtype), updates, point)
        finite = [jnp.all(jnp.isfinite(g)) for g in jax.tree.leaves((loss, grads, updates))]
        ok = seen.ok & jnp.stack(finite).all()
        pick = lambda a, b: jax.tree.map(
            lambda u, v: jnp.where(ok, u, v) if eqx.is_array(u) else v, a, b
        )
        better = ok & seen.comparable & (loss < state.best_loss)
        better &= options.decay is None  # else the average is what counts
        best = jax.tree.map(lambda u, v: jnp.where(better, u, v), point, state.best)
        average = state.average
        if options.decay is not None:
            # Young averages forget their start sooner.
            n = i.astype(state.cut.dtype)
            decay = jnp.minimum(options.decay, (1 + n) / (10 + n))
            mean = lambda a, p: a + (1 - decay).astype(a.dtype) * (p - a)
            average = pick(jax.tree.map(mean, average, point), average)
        after = State(
            good=pick(point, state.good),
            update=pick(updates, state.update),
            cut=jnp.where(ok, jnp.minimum(1, _GROW * state.cut), _SHRINK * state.cut),
            opt=pick(opt, state.opt),
            average=average,
            best_loss=jnp.where(better, loss.astype(state.best_loss.dtype), state.best_loss),
            best=best,
            deck=deck,
            step=i + 1,
            row=jnp.where(ok, 0, state.row + 1),
            rejected=state.rejected + jnp.where(ok, 0, 1),
        )
        if layout is not None:
            after = layout.hold(after)
        return after, (loss, seen.terms, ok)

    shapes = jax.eval_shape(one, state)[1]
    blank = jax.tree.map(lambda v: jnp.zeros((size, *v.shape), v.dtype), shapes)

    def body(carry):
        state, history = carry
        k = state.step - first
        state, now = one(state)
        return state, jax.tree.map(lambda h, v: h.at[k].set(v), history, now)

    going = lambda c: (c[0].step < until) & (c[0].row < GIVE_UP)
    return jax.lax.while_loop(going, body, (state, blank))

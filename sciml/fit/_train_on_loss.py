"""Training of any model on a loss of one's own."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ._descending import Options
from ._layout import Layout
from ._loss_goal import as_items, LossGoal, positional, trainable_filter
from ._phases import Phase
from ._stores import as_store
from ._trained import Trained
from ._training import Rules, Training


def train_on_loss(
    loss: Callable,
    phases: list[Phase],
    rules: Rules,
    key: Any,
    batch: int | None,
    checkpoint: Any,
    validation: Any,
    *,
    model: Any,
    data: Any,
    weights: dict[str, Any] | None,
    trainable: Any,
    compute: Any,
    layout: Layout | None,
) -> Trained:
    """See `train`."""
    if model is None:
        raise ValueError("Which model is trained? Pass `model=`.")
    takes = positional(loss, key is not None)
    if takes == 3 and key is None:
        raise ValueError("The loss takes a key: pass `key=jax.random.key(0)`.")
    if takes < 2 and data is not None:
        raise ValueError(
            "There are `data`, but the loss takes the model alone: `loss(model, batch)`."
        )
    if takes == 2 and data is None:
        raise ValueError("The loss takes a batch: pass `data=`, or write it as `loss(model)`.")
    params, rest = eqx.partition(model, trainable_filter(model, trainable))
    if not jax.tree.leaves(params):
        raise ValueError(
            "Nothing of the model is trained: it has no floating-point arrays that are `trainable`."
        )
    streamed = isinstance(data, Iterator)
    data, items = _checked(data, batch, phases)
    if layout is not None:
        data = _spread(layout, data, batch, streamed)
    if validation is not None and not callable(validation):
        validation = jax.tree.map(jnp.asarray, validation)
    dtype = None if compute is None else jnp.dtype(compute)
    final = jnp.asarray(sum(p.steps for p in phases) - 1)
    on_all = batch is None and not streamed
    goal = LossGoal(loss, rest, weights or {}, dtype, takes, on_all, validation, final)
    parts = {
        "loss": loss,
        "model": params,
        "data": None if streamed else data,
        "weights": weights,
        "compute": compute,
        "validation": validation,
        "key": key,
        "batch": batch,
        "ema": rules.ema,
    }
    training = Training(
        goal,
        phases,
        rules,
        data=data,
        options=Options(rules.ema, items, batch if items else None, layout),
        key=key,
        store=as_store(checkpoint, parts, phases, goal.changes),
        validated=validation is not None,
        model_of=goal.model,
    )
    course = training.run(params)
    log = course.log
    done = log.loss.shape[0]
    if log.accepted.size and not log.accepted.any():
        raise RuntimeError(
            f"Training failed: in none of {done} steps were the loss and its gradient finite. Look at the loss at the "
            "start."
        )
    return Trained(
        model=goal.model(course.best),
        last=goal.model(course.last),
        loss=course.loss if math.isfinite(course.loss) else math.nan,
        history={"loss": log.loss} | log.terms,
        validation=log.looks,
        steps=done,
        rejected=int(np.sum(~log.accepted)),
        message=course.ended or f"{done} steps",
    )


def _checked(data: Any, batch: int | None, phases: list[Phase]) -> tuple[Any, int | None]:
    """Arrays or an iterator, and how many items there are if batches are drawn of them."""
    if isinstance(data, Iterator):
        if batch is not None:
            raise ValueError("An iterator gives batches of its own: leave out `batch`.")
        if any(p.second_order for p in phases):
            raise ValueError("A method of `minimise` needs all data at once, not an iterator.")
        return data, None
    if batch is None:
        return jax.tree.map(_as_array, data), None
    if data is None:
        raise ValueError("There are no `data` of which a `batch` could be drawn.")
    data, items = as_items(jax.tree.map(_as_array, data))
    if batch > items:
        raise ValueError(f"`batch={batch}` is more than the {items} items of `data`.")
    return data, items


def _spread(layout: Layout, data: Any, batch: int | None, streamed: bool) -> Any:
    """The data where the devices need them."""
    if data is None:
        raise ValueError("`mesh` shares the items of `data` out among devices, but there are none.")
    if batch is not None:
        layout.divides(batch)
        return layout.gather(data)
    return data if streamed else layout.items(data)


def _as_array(x: Any) -> Any:
    try:
        return jnp.asarray(x)
    except TypeError:
        raise TypeError(
            "`data` must be a pytree of arrays, or an iterator of batches (`iter(loader)` of what can be iterated), "
            f"but holds a {type(x).__name__}."
        ) from None

"""Training of any model on a loss of one's own."""

import inspect
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._constant import is_parameter
from ._goal import AbstractGoal, Part, Seen


class LossGoal(AbstractGoal):
    """A user's `loss(model, batch, key)`, over the arrays of the model that are trained.

    - `rest`: the model without them.
    - `weights`: numbers or functions of the step, by the names of terms.
    - `compute`: dtype in which model and batch enter the loss.
    - `takes`: how many of model, batch and key the loss takes. `on_all`: whether each step sees all data.
    - `validation`: what decides, weighed as in the step `final`.
    """

    fn: Callable
    rest: Any
    weights: dict[str, Any]
    compute: Any = eqx.field(static=True)
    takes: int = eqx.field(static=True)
    on_all: bool = eqx.field(static=True)
    validation: Any
    final: Array

    @property
    def comparable(self) -> bool:
        """Whether the loss means the same in every step."""
        return self.on_all and self.takes < 3 and not self.changes

    @property
    def changes(self) -> bool:
        """Whether weights depend on the step."""
        return any(callable(w) for w in self.weights.values())

    @property
    def judges(self) -> bool:
        return self.comparable or self.validation is not None

    def loss(self, params, batch, key, step, steps, part: Part | None = None):
        del steps
        key = jax.random.fold_in(jax.random.fold_in(key, 0), step)
        if part is not None:
            key = jax.random.fold_in(key, part.index)
        total, terms = self._terms(params, batch, key, step)
        if part is not None:  # a mean over all items is the mean of those of equal parts
            total, terms = jax.tree.map(lambda x: x / part.count, (total, terms))
        counts = jnp.asarray(self.comparable and self.validation is None)
        return total, Seen(terms, jnp.asarray(True), counts)

    def whole(self, params, key):
        if self.validation is None:
            return None
        if callable(self.validation):
            loss = jnp.asarray(self.validation(self.model(params)))
            return loss, jnp.isfinite(loss)
        return _validate(self, params, key)

    def model(self, params) -> Any:
        return eqx.combine(params, self.rest)

    def project(self, params):
        return params

    def settled(self, step, steps):
        return True

    def _terms(self, params, batch, key, step) -> tuple[Array, dict[str, Array]]:
        model, dtype = self.model(params), None
        if self.compute is not None:
            dtype = jnp.result_type(*jax.tree.leaves(params))
            model, batch = lowered((model, batch), self.compute)
        out = self.fn(*(model, batch, key)[: self.takes])
        if isinstance(out, tuple | list):
            raise ValueError(
                f"The loss must be a real number or a dict of them, but got a {type(out).__name__} of {len(out)}. "
                "What else it tells can be a term with weight 0."
            )
        terms = out if isinstance(out, dict) else {"loss": out}
        for name, value in terms.items():
            if jnp.shape(value) != () or not jnp.issubdtype(jnp.result_type(value), jnp.floating):
                raise ValueError(
                    f"The loss must be a real number or a dict of them, but {name!r} has shape {jnp.shape(value)} "
                    f"and dtype {jnp.result_type(value)}. Take a mean over the batch."
                )
        unknown = [name for name in self.weights if name not in terms]
        if unknown:
            raise ValueError(
                f"`weights` names {unknown[0]!r}, but the loss has the terms {', '.join(map(repr, terms))}."
            )
        terms = {k: jnp.asarray(v, dtype or jnp.result_type(v)) for k, v in terms.items()}
        total: Any = 0.0
        for name, value in terms.items():
            weight = self.weights.get(name, 1.0)
            weight = weight(step) if callable(weight) else weight
            total = total + jnp.asarray(weight, value.dtype) * value
        return total, terms if isinstance(out, dict) else {}


@eqx.filter_jit
def _validate(goal: LossGoal, params, key) -> tuple[Array, Array]:
    quiet = eqx.tree_at(lambda g: g.rest, goal, eqx.nn.inference_mode(goal.rest))
    loss, _ = quiet._terms(params, goal.validation, key, goal.final)
    return loss, jnp.isfinite(loss)


def lowered(tree: Any, dtype: Any) -> Any:
    """With its floating arrays in another precision."""
    cast = lambda x: x.astype(dtype) if eqx.is_inexact_array(x) else x
    return jax.tree.map(cast, tree)


def positional(fn: Callable, keyed: bool) -> int:
    """How many of `(model, batch, key)` a loss takes: those without a default, and a `key` if there is one."""
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        return 3
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return 3
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = [p for p in parameters if p.kind in kinds]
    needed = [p for p in parameters if p.default is p.empty]
    if len(needed) == 2 and needed[1].name == "key":
        raise ValueError(
            "The second argument of a loss is the batch: write it as `loss(model, batch, key)`, also where there is no "
            "`data`, and leave the batch alone."
        )
    if not 1 <= len(needed) <= 3:
        raise ValueError(
            "A loss takes `(model)`, `(model, batch)` or `(model, batch, key)`, but this one needs "
            f"{len(needed)} arguments."
        )
    if keyed and len(parameters) >= 3 and parameters[2].name == "key":
        return 3
    return len(needed)


def trainable_filter(model: Any, trainable: Any) -> Any:
    """A pytree of bools, or a filter of leaves."""
    if trainable is None:
        return is_parameter(model)
    # A module of bools may be callable.
    if all(isinstance(x, bool) for x in jax.tree.leaves(trainable)):
        return jax.tree.map(
            lambda on, sub: jax.tree.map(lambda x: on and eqx.is_inexact_array(x), sub),
            trainable, model, is_leaf=lambda x: isinstance(x, bool),
        )  # fmt: skip
    if not callable(trainable):
        raise TypeError(
            "`trainable` must be a filter such as `eqx.is_inexact_array`, a pytree of bools, or `lambda model: "
            f"model.part`, but got {trainable!r}."
        )
    if trainable in (
        eqx.is_array,
        eqx.is_inexact_array,
        eqx.is_array_like,
        eqx.is_inexact_array_like,
    ):
        return is_parameter(model)
    try:
        chosen = trainable(model)
    except AttributeError as error:
        if not _takes_leaves(trainable, model):
            raise ValueError(f"`trainable` fails on the model: {error}.") from error
        chosen = None
    except Exception:  # a filter of leaves can't take a whole model
        chosen = None
    if chosen is None or isinstance(chosen, bool):
        return lambda x: eqx.is_inexact_array(x) and bool(trainable(x))
    none = jax.tree.map(lambda _: False, model)
    on = jax.tree.map(eqx.is_inexact_array, chosen)
    return eqx.tree_at(trainable, none, on, is_leaf=lambda x: x is None)


def _takes_leaves(fn: Callable, model: Any) -> bool:
    try:
        [fn(x) for x in jax.tree.leaves(model)]
    except Exception:
        return False
    return True


def as_items(data: Any) -> tuple[Any, int]:
    """The data, and how many items they have."""
    sizes = {jnp.shape(x)[:1] for x in jax.tree.leaves(data)}
    if len(sizes) != 1 or () in sizes:
        raise ValueError(
            "All arrays of `data` need a leading axis of the same length, the items; the shapes are "
            f"{[jnp.shape(x) for x in jax.tree.leaves(data)]}."
        )
    return data, sizes.pop()[0]

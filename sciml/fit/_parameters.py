"""From flat parameters to the parts of a problem in one of its experiments."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._compat import is_traced
from .._dtypes import default_float
from ._free import Free, Tied
from ._hints import did_you_mean
from ._names import locate, Slot
from .priors import Uniform


class Varied(eqx.Module):
    """Values of an array of the parts that differ from one group of experiments to another.

    - `slot`: which array, and the groups.
    - `value`: of shape `slot.shape`.
    """

    slot: Slot = eqx.field(static=True)
    value: Array


class Tie(eqx.Module):
    """An array of the parts that follows others."""

    slot: Slot = eqx.field(static=True)
    sources: tuple[Slot, ...] = eqx.field(static=True)
    fn: Callable | None

    def value(self, leaves: list) -> Any:
        values = [take(leaves[s.leaf], s) for s in self.sources]
        return values[0] if self.fn is None else self.fn(*values)


def take(leaf, slot: Slot):
    return leaf if slot.element is None or slot.labels else leaf[slot.element]


def put(leaf, slot: Slot, value):
    """`leaf` with the value of one group in its place."""
    if isinstance(value, np.ndarray | np.generic) and not is_traced(leaf):
        new = np.array(leaf)
        new[... if slot.element is None else slot.element] = value
        return jnp.asarray(new)
    value = jnp.asarray(value, leaf.dtype)
    if value.shape not in ((), slot.inner):
        raise ValueError(
            f"{slot.name!r} has shape {slot.inner}, but a value of {value.shape} came."
        )
    if slot.element is None:
        return jnp.broadcast_to(value, slot.inner)
    return leaf.at[slot.element].set(value)


def put_own(leaves: list, slot: Slot, value, experiment) -> None:
    """Puts the value of the group of an experiment, whose number may be traced."""
    own = value[jnp.maximum(jnp.asarray(slot.groups), 0)[experiment]]
    new = put(leaves[slot.leaf], slot, own)
    if min(slot.groups) < 0:
        new = jnp.where(jnp.asarray(slot.groups)[experiment] >= 0, new, leaves[slot.leaf])
    leaves[slot.leaf] = new


def grouped(slot: Slot, labels: list[str | None]) -> Slot:
    """The slot with a group for each label, in the order in which they come; `None` is in no group."""
    order = list(dict.fromkeys(label for label in labels if label is not None))
    groups = tuple(-1 if label is None else order.index(label) for label in labels)
    shape = (len(order), *slot.shape)
    return Slot(slot.name, slot.leaf, slot.element, shape, slot.scale, tuple(order), groups)


def labels_of(slot: Slot, spec: Free, names: list[str]) -> list[str | None] | None:
    """The label of each experiment; `None` for a parameter that they share."""
    per = spec.per
    if per is None:
        return None
    if per == "experiment":
        return list(names)
    if isinstance(per, dict):
        for name in per:
            if str(name) not in names:
                raise ValueError(
                    f"`per` of {slot.name!r} names the experiment {name!r}, which is not there."
                    f"{did_you_mean(str(name), names)} There are: {', '.join(names)}."
                )
        labels = {str(name): str(label) for name, label in per.items()}
        missing = [name for name in names if name not in labels]
        if missing:
            raise ValueError(f"`per` of {slot.name!r} has no label for {', '.join(missing)}.")
        return [labels[name] for name in names]
    return [str(per(name)) for name in names]


def known_values(
    parts: tuple, values: list[dict[str, Any]], names: list[str]
) -> tuple[Varied, ...]:
    """What `values` of the experiments say, one entry for each array."""
    entries: dict[Slot, list] = {}
    for i, own in enumerate(values):
        for key, value in own.items():
            for slot in locate(parts, key):
                entries.setdefault(slot, [None] * len(values))[i] = _number(slot, value, names[i])
    return tuple(varied(slot, column, names) for slot, column in entries.items())


def varied(slot: Slot, column: list, names: list[str]) -> Varied:
    labels = [None if v is None else name for v, name in zip(column, names, strict=True)]
    values = [np.broadcast_to(v, slot.shape) for v in column if v is not None]
    return Varied(grouped(slot, labels), jnp.asarray(np.stack(values)))


def _number(slot: Slot, value, experiment: str) -> np.ndarray:
    array = np.asarray(value)
    where = f" of experiment {experiment!r}" if experiment else ""
    if array.dtype.kind not in "fiub" or not np.all(np.isfinite(array)):
        raise ValueError(f"`values`{where} must be finite numbers, but {slot.name!r} is {value!r}.")
    if array.shape not in ((), slot.shape):
        raise ValueError(
            f"`values`{where}: {slot.name!r} has shape {slot.shape}, but got one of {array.shape}."
        )
    return array.astype(np.dtype(default_float()))


def make_ties(parts: tuple, found: list[tuple[Slot, Tied]]) -> tuple[Tie, ...]:
    """Ties in an order in which each comes after those that it follows."""
    ties = []
    for slot, spec in found:
        sources = [s for name in spec.of for s in locate(parts, name)]
        if spec.fn is None and sources[0].shape != slot.shape:
            raise ValueError(
                f"{slot.name!r} of shape {slot.shape} can't follow {spec.of[0]!r} of {sources[0].shape}."
            )
        ties.append(Tie(slot, tuple(sources), spec.fn))
    ordered: list[Tie] = []
    while ties:
        waiting = [t.slot for t in ties]
        ready = [t for t in ties if not any(_overlap(a, b) for a in waiting for b in t.sources)]
        if not ready:
            raise ValueError(
                f"Parameters are tied in a circle: {', '.join(t.slot.name for t in ties)}."
            )
        ordered += ready
        ties = [t for t in ties if t not in ready]
    return tuple(ordered)


def _overlap(a: Slot, b: Slot) -> bool:
    return a.leaf == b.leaf and (a.element is None or b.element is None or a.element == b.element)


def check_start(slot: Slot, value: np.ndarray, low: float, high: float):
    if not np.all(np.isfinite(value)):
        raise ValueError(f"The start value of {slot.name!r} is {value}, not finite.")
    if slot.scale == "log" and np.any(value <= 0):
        raise ValueError(
            f"The start value of {slot.name!r} is {np.min(value):g}, but `scale='log'` needs "
            "positive values."
        )
    # An estimate at its bound may lie beyond it by the rounding of exp(log(v)).
    size, info = np.abs(value), np.finfo(value.dtype)
    slack = 4 * info.eps * size * (1 + np.abs(np.log(np.maximum(size, info.tiny))))
    outside = (value < low - slack) | (value > high + slack)
    if np.any(outside):
        bad = value[outside].ravel()[0]
        raise ValueError(
            f"The start value of {slot.name!r} is {bad:g}, outside its bounds {low:g} .. {high:g}. "
            "Widen them or pass `Free(…, init=…)`."
        )


def informative(prior) -> bool:
    return prior is not None and not isinstance(getattr(prior, "prior", prior), Uniform)


def limits(found: list[tuple[Slot, Free]], values: list[Array]) -> dict[str, Any]:
    """Bounds on the scales of the flat parameters, and those that were given; `values` are the start."""
    lower, upper, given = [], [], []
    for (slot, spec), value in zip(found, values, strict=True):
        low, high = spec.lower, spec.upper
        given.append((low, high))
        if hasattr(spec.prior, "penalty"):
            below, above = (float(b) for b in spec.prior.support())
            low, high = max(low, below), min(high, above)
        check_start(slot, np.asarray(value), low, high)
        if slot.scale == "log":
            low, high = (float(np.log(b)) if b > 0 else -np.inf for b in (low, high))
        lower += [low] * slot.size
        upper += [high] * slot.size
    as_column = lambda x: jnp.asarray(x, default_float())
    return {
        "lower": as_column(lower),
        "upper": as_column(upper),
        "bounds": as_column(given).reshape(-1, 2),
    }


def state_of(parts: tuple, args: Any) -> Any:
    """The initial state, which may be a function of the model and `args`."""
    model, y0 = parts[:2]
    return y0(model, args) if callable(y0) else y0

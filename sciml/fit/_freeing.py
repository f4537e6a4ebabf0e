"""What is free in a problem, from what was asked for."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ._experiment import as_arrays
from ._free import Free, Tied
from ._levels import levelled
from ._names import Slot
from ._parameters import grouped, informative, labels_of, limits, make_ties, put, take, Tie, Varied


def freed(problem: Any) -> list[tuple[Slot, Any]]:
    rows = zip(problem.slots, problem.bounds, problem.priors, strict=True)
    free = [(s, Free(*pair, scale=s.scale, prior=prior)) for s, pair, prior in rows]
    return free + [(tie.slot, tie) for tie in problem.ties]


def free_fields(problem: Any, found: list[tuple[Slot, Any]]) -> dict[str, Any]:
    """The fields of a problem that follow from what is free."""
    parts = problem.parts()
    leaves, treedef = jax.tree.flatten(parts)
    own = {(v.slot.leaf, v.slot.element): v for v in problem.own}
    known = {(v.slot.leaf, v.slot.element): v.slot.groups for v in problem.known}
    free, values = [], []
    for slot, spec in ((s, f) for s, f in found if isinstance(f, Free)):
        place = (slot.leaf, slot.element)
        taken = known.get(place, (-1,) * len(problem.experiments))
        labels = None if slot.labels else labels_of(slot, spec, list(problem.experiments))
        if min(taken) >= 0:
            raise ValueError(
                f"{slot.name!r} is free, but `values` of the experiments give it in each of them."
            )
        if labels is not None:
            slot = grouped(
                slot, [None if k >= 0 else v for k, v in zip(taken, labels, strict=True)]
            )
            value = _first_values(problem, slot)
        elif slot.labels:
            value = own[place].value
        else:
            value = take(leaves[slot.leaf], slot)
        if spec.init is not None:
            value = _broadcast_init(slot, spec.init, value)
        if slot.labels:
            own[place] = Varied(slot, value)
        else:
            leaves[slot.leaf] = put(leaves[slot.leaf], slot, value)
            if slot.element is not None or place not in own or own[place].slot.root != "y0":
                own.pop(place, None)
        free.append((slot, spec))
        values.append(value)
    model, y0, noise, observe = jax.tree.unflatten(treedef, leaves)
    tied = [(s, t) for s, t in found if isinstance(t, Tied)]
    ties = (*(t for _, t in found if isinstance(t, Tie)), *make_ties(parts, tied))
    priors = tuple(as_arrays(spec.prior) for _, spec in free)
    if not levelled(problem) and any(informative(p) for p in priors):
        raise ValueError(
            "A prior needs to know how noisy the data are, to be weighed against them: give "
            "`sigma` in the data, or `noise=fit.noise.Normal(sigma=…)`, whose sigma can be freed "
            "as 'noise.sigma'."
        )
    return {
        "model": model,
        "y0": y0,
        "noise": noise,
        "observe": observe,
        "own": tuple(own.values()),
        "ties": ties,
        "priors": priors,
        "slots": tuple(slot for slot, _ in free),
        **limits(free, values),
    }


def _first_values(problem: Any, slot: Slot) -> Array:
    """What each group of experiments has now: the value in its first one."""
    firsts = [slot.groups.index(g) for g in range(len(slot.labels))]
    inner = Slot(slot.name, slot.leaf, slot.element, slot.inner, slot.scale)
    x = problem.initial() if problem.slots else jnp.zeros(0)
    values = []
    for i in firsts:
        leaves = jax.tree.leaves(problem.parts_in(i, problem.local(x, i)))
        values.append(take(leaves[slot.leaf], inner))
    return jnp.stack(values)


def _broadcast_init(slot: Slot, init: Any, like: Array) -> Array:
    if isinstance(init, dict) and slot.labels:
        init = np.stack([np.broadcast_to(init[label], slot.inner) for label in slot.labels])
    value = jnp.asarray(init, like.dtype)
    if value.shape not in ((), slot.inner, slot.shape):
        raise ValueError(
            f"{slot.name!r} has shape {slot.shape}, but a value of {value.shape} came."
        )
    return jnp.broadcast_to(value, slot.shape)

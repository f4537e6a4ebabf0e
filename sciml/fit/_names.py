"""Names of parameters: where the array lives.

`"rates.k1"` is a field of a field of the model, `"net.layers[0].weight"` an array of a net,
`"y0[1]"` an element of the initial state, `"noise.sigma"` the noise level. A name in front of
several arrays stands for all of them. Names are resolved once, when a problem is built, to
`Slot`s: positions among the leaves of the tuple `(model, y0, noise, observe)`.
"""

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .._constant import is_parameter
from ._free import Free, Tied
from ._hints import did_you_mean


ROOTS = ("model", "y0", "noise", "observe")


@dataclasses.dataclass(frozen=True)
class Slot:
    """One entry of `free`: a leaf, or an element of one.

    - `leaf`: position among the leaves of the parts.
    - `element`: index into the leaf, or `None` for all of it.
    - `shape`: of the value; `()` for an element. With a leading axis of groups, if there are `labels`.
    - `labels`: of the groups of experiments that have a value of their own; empty for a common value.
    - `groups`: to which of them each experiment belongs; -1 where the value is not used.
    """

    name: str
    leaf: int
    element: tuple[int, ...] | None
    shape: tuple[int, ...]
    scale: str
    labels: tuple[str, ...] = ()
    groups: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=int))

    def flat_names(self) -> list[str]:
        """One name for each number."""
        names = [f"{self.name}@{label}" for label in self.labels] or [self.name]
        inner = self.inner
        if inner == ():
            return names
        index = [f"[{', '.join(map(str, i))}]" for i in np.ndindex(*inner)]
        return [name + i for name in names for i in index]

    @property
    def inner(self) -> tuple[int, ...]:
        """The shape of one group's value."""
        return self.shape[1:] if self.labels else self.shape

    @property
    def root(self) -> str:
        """The part of the problem in which it lies; a field of the model may be called `y0_scale`."""
        first = re.split(r"[.\[]", self.name)[0]
        return first if first in ROOTS[1:] else "model"

    def offsets(self, count: int) -> np.ndarray:
        """Where the numbers of an experiment's value lie among those of the slot: a table, one row each."""
        size = int(np.prod(self.inner, dtype=int))
        groups = np.maximum(self.groups, 0) if self.labels else np.zeros(count, int)
        return groups[:, None] * size + np.arange(size)


def leaf_names(parts: tuple) -> list[str | None]:
    """The name of each leaf of the parts; `None` for what can't be freed."""
    names = []
    free = jax.tree.leaves(is_parameter(parts))
    for (path, _), may in zip(jax.tree_util.tree_leaves_with_path(parts), free, strict=True):
        root = ROOTS[path[0].idx]
        rest = jax.tree_util.keystr(path[1:])
        if not may:
            names.append(None)
        elif root == "model":
            names.append(rest.removeprefix("."))
        else:
            names.append(root + rest)
    return names


def resolve(parts: tuple, free: Any) -> list[tuple[Slot, Any]]:
    """Finds the slots that `free` names, each with its `Free` or `Tied`."""
    names = leaf_names(parts)
    leaves = jax.tree.leaves(parts)
    shapes = {i: jnp.shape(leaves[i]) for i, name in enumerate(names) if name is not None}
    out: list[tuple[Slot, Any]] = []
    for key, spec in _pairs(free):
        if not isinstance(spec, Free | Tied):
            raise TypeError(f"`free` must map names to `fit.Free(…)`, but {key!r} is {spec!r}.")
        found = (
            _by_name(key, names, shapes, parts) if isinstance(key, str)
            else _by_where(key, parts, names)
        )  # fmt: skip
        for leaf, element, name in found:
            shape = () if element is not None else shapes[leaf]
            scale = spec.scale if isinstance(spec, Free) else "linear"
            out.append((Slot(name, leaf, element, shape, scale), spec))
    refuse_overlaps([slot for slot, _ in out])
    return out


def locate(parts: tuple, key: str) -> list[Slot]:
    """The slots that a name stands for, whether free or not."""
    return [slot for slot, _ in resolve(parts, {key: Free()})]


def _pairs(free):
    if isinstance(free, dict):
        return list(free.items())
    if isinstance(free, list | tuple) and all(isinstance(p, tuple) and len(p) == 2 for p in free):
        return list(free)
    raise TypeError(
        "`free` must be a dict of names to `fit.Free(…)`, or a list of pairs `(where, Free)` with "
        f"`where` as in `equinox.tree_at`, but got {free!r}."
    )


def _by_name(key: str, names, shapes, parts):
    if key in names:
        if names.count(key) > 1:
            raise ValueError(
                f"{key!r} names two arrays: one of the model and one of the problem. Free the "
                "model's own by a pair `(lambda model: …, fit.Free(…))`."
            )
        leaf = names.index(key)
        return [(leaf, None, key)]
    element = re.fullmatch(r"(.+)\[\s*(-?\d+(?:\s*,\s*-?\d+)*)\s*\]", key)
    if element and element[1] in names:
        leaf = names.index(element[1])
        index = tuple(int(i) for i in element[2].split(","))
        shape = shapes[leaf]
        if len(index) != len(shape) or any(
            not -n <= i < n for i, n in zip(index, shape, strict=False)
        ):
            raise ValueError(f"`free` names {key!r}, but {element[1]!r} has shape {shape}.")
        index = tuple(i % n for i, n in zip(index, shape, strict=True))
        return [(leaf, index, f"{element[1]}[{', '.join(map(str, index))}]")]
    below = [i for i, n in enumerate(names) if n and n.startswith((key + ".", key + "["))]
    if below:
        return [(i, None, str(names[i])) for i in below]
    valid = [n for n in names if n]
    if key == "noise.sigma":
        raise ValueError(
            "`free` names 'noise.sigma', but the problem's noise has no sigma to start from. Pass "
            "`noise=fit.noise.Normal(sigma=…)` with a first guess."
        )
    note = _note_on_static(key, parts)
    shown = ", ".join(valid[:20]) + (", …" if len(valid) > 20 else "")
    raise ValueError(
        f"`free` names {key!r}, but the problem has no such array.{did_you_mean(key, valid)} "
        f"It has: {shown or 'none at all'}.{note}"
    )


def _note_on_static(key, parts) -> str:
    value = getattr(parts[0], key, None) if key.isidentifier() else None
    if isinstance(value, bool | int):
        return f" ({key!r} is the integer {value}: write it as a float to fit it.)"
    return ""


def _by_where(where: Callable, parts, names):
    if not callable(where):
        raise TypeError(f"`free` has the key {where!r}: use a name or a function of the model.")
    leaves, treedef = jax.tree.flatten(parts)
    model = jax.tree.unflatten(treedef, list(range(len(leaves))))[0]
    try:
        picked = jax.tree.leaves(where(model))
    except Exception as e:
        raise ValueError(f"`where` failed on the model of this problem: {e}") from e
    picked = [i for i in picked if isinstance(i, int) and names[i] is not None]
    if not picked:
        raise ValueError("`where` picks no floating-point array of the model.")
    clash = {i for i in picked if names.count(names[i]) > 1 or _shadows(names[i])}
    return [(i, None, f"model.{names[i]}" if i in clash else str(names[i])) for i in picked]


def _shadows(name: str) -> bool:
    return re.split(r"[.\[]", name)[0] in ROOTS[1:]


def refuse_shadowing(model) -> None:
    """A field of the model must not look like a part of the problem, if named by string."""
    for field in ROOTS[1:]:
        if any(map(eqx.is_inexact_array, jax.tree.leaves(getattr(model, field, None)))):
            raise ValueError(
                f"The model has a field {field!r}, which is also the name of a part of the problem. "
                f"Free it by a pair: `free=[(lambda model: model.{field}, fit.Free(…)), …]`."
            )


def refuse_overlaps(slots: list[Slot]) -> None:
    for i, a in enumerate(slots):
        for b in slots[:i]:
            if a.leaf == b.leaf and (
                a.element is None or b.element is None or a.element == b.element
            ):
                raise ValueError(
                    f"`free` names {b.name!r} and {a.name!r}, which overlap. Free an array whole "
                    "or element by element, not both."
                )


def find(slots: tuple[Slot, ...], key: str) -> list[Slot]:
    """The slots that a name stands for, for `Problem.fix`."""
    hits = [s for s in slots if s.name == key or s.name.startswith((key + ".", key + "["))]
    if not hits:
        names = [s.name for s in slots]
        raise ValueError(
            f"{key!r} is not free in this problem.{did_you_mean(key, names)} "
            f"Free are: {', '.join(names) or 'none'}."
        )
    return hits

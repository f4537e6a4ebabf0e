"""What training has reached, in a file from which it goes on."""

import abc
import json
import pathlib
from os import PathLike
from typing import Any

import equinox as eqx

from ._fingerprint import fingerprint
from ._phases import Phase


_FORMAT = 2


class AbstractStore(abc.ABC):
    """Keeps a pytree of arrays and some notes.

    **Arguments:**

    - `parts`: what two trainings must share for one to go on where the other stopped, by the names of arguments.
    - `phases`: of this training.
    - `settled_steps`: whether the number of steps of the first phase changes what its steps do.
    """

    def __init__(self, parts: dict[str, Any], phases: list[Phase], settled_steps: bool):
        self.marks = {name: fingerprint(part) for name, part in parts.items()}
        self.phases = [[fingerprint(p.optimiser), p.steps] for p in phases]
        if settled_steps:
            self.marks["steps"] = str(phases[0].steps)

    @abc.abstractmethod
    def notes(self) -> dict | None:
        """The notes of what is kept, if there is anything."""

    @abc.abstractmethod
    def load(self, like: Any) -> Any:
        """The arrays."""

    @abc.abstractmethod
    def save(self, tree: Any, notes: dict) -> None:
        """Keeps arrays, and notes of the `phase` and `step` they are from."""

    @abc.abstractmethod
    def finish(self) -> None:
        """Waits until all is written."""

    def signed(self, notes: dict) -> dict:
        """Notes with the marks of this training."""
        phases = self.phases[: notes["phase"] + 1]
        return notes | {"format": _FORMAT, "marks": self.marks, "phases": phases}

    def check(self, notes: dict, place: Any) -> dict:
        """Refuses notes of another training."""
        if not isinstance(notes, dict) or notes.get("format") != _FORMAT:
            raise ValueError(
                f"{place} is no checkpoint of this version of `fit.train`. Delete it, or name another file."
            )
        marks = notes["marks"]
        names = dict.fromkeys((*self.marks, *marks))
        other = [name for name in names if marks.get(name) != self.marks.get(name)]
        then, now = notes["phases"], self.phases
        if any(a[0] != b[0] for a, b in zip(then, now, strict=False)):
            other.append("optimiser")
        if any(a[1] != b[1] for a, b in zip(then[:-1], now, strict=False)) and "steps" not in other:
            other.append("steps")
        if other == ["steps"] and "steps" in self.marks:
            raise ValueError(
                f"{place} holds a training of {marks.get('steps')} steps, not of {self.marks['steps']}: its horizon or "
                "weights depend on how many there are. Delete it, name another, or take `horizon=None` from the start."
            )
        if other:
            listed = ", ".join(f"`{name}`" for name in other)
            raise ValueError(
                f"{place} holds another training: it differs in {listed}. Delete it, or name another."
            )
        done, k = notes["step"], notes["phase"]
        if len(now) <= k or now[k][1] < done:
            raise ValueError(
                f"{place} has done {done} steps of phase {k + 1} already, more than are asked for. Ask for at least "
                "as many, or delete it."
            )
        return notes


class FileStore(AbstractStore):
    """A line of JSON, then the arrays by Equinox."""

    def __init__(self, path: Any, *args):
        super().__init__(*args)
        if not isinstance(path, str | PathLike):
            raise TypeError(
                f"`checkpoint` must be the name of a file or a `fit.Orbax(folder)`, but got {path!r}."
            )
        self.path = pathlib.Path(path)
        if self.path.is_dir() or not self.path.absolute().parent.is_dir():
            raise ValueError(
                f"`checkpoint` must name a file in a folder that exists, but got {path}."
            )

    def notes(self) -> dict | None:
        if not self.path.exists():
            return None
        with self.path.open("rb") as file:
            try:
                notes = json.loads(file.readline())
            except ValueError:
                notes = {}
        return self.check(notes, self.path)

    def load(self, like: Any) -> Any:
        with self.path.open("rb") as file:
            file.readline()
            return eqx.tree_deserialise_leaves(file, like)

    def save(self, tree: Any, notes: dict) -> None:
        # Written aside and moved, so that an interruption leaves the old file.
        aside = self.path.with_name(self.path.name + ".part")
        with aside.open("wb") as file:
            file.write(json.dumps(self.signed(notes)).encode() + b"\n")
            eqx.tree_serialise_leaves(file, tree)
        aside.replace(self.path)

    def finish(self) -> None:
        pass

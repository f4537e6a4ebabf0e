"""What training has reached, in a file from which it goes on."""

import hashlib
import json
import pathlib
from os import PathLike
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np


_FORMAT = 1


def mark_of(*trees: Any) -> str:
    """What two trainings must share for one to go on where the other stopped: structure, shapes and data."""
    digest = hashlib.sha256()
    for tree in trees:
        arrays = eqx.filter(tree, eqx.is_array)
        digest.update(str(jax.tree.structure(arrays)).encode())
        for leaf in jax.tree.leaves(arrays):
            digest.update(str((leaf.shape, leaf.dtype)).encode())
            if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
                digest.update(np.asarray(leaf).tobytes())
    return digest.hexdigest()


class Store:
    """A line of JSON, then the arrays by Equinox."""

    def __init__(self, path: str | PathLike, mark: str):
        if not isinstance(path, str | PathLike):
            raise TypeError(f"`checkpoint` must be the name of a file, but got {path!r}.")
        self.path, self.mark = pathlib.Path(path), mark

    def notes(self) -> dict | None:
        """What stands in the line, if there is a file."""
        if not self.path.exists():
            return None
        with self.path.open("rb") as file:
            try:
                notes = json.loads(file.readline())
                assert notes["format"] == _FORMAT
            except (ValueError, KeyError, TypeError, AssertionError):
                raise ValueError(
                    f"{self.path} is no checkpoint of `fit.train`. Delete it, or name another file."
                ) from None
        if notes["mark"] != self.mark:
            raise ValueError(
                f"{self.path} holds the training of something else (another model, start, optimiser, batch size "
                "or other data). Delete it, or name another."
            )
        return notes

    def load(self, like: Any) -> Any:
        with self.path.open("rb") as file:
            file.readline()
            return eqx.tree_deserialise_leaves(file, like)

    def save(self, tree: Any, notes: dict) -> None:
        # Written aside and moved, so that an interruption leaves the old file.
        aside = self.path.with_name(self.path.name + ".part")
        with aside.open("wb") as file:
            notes = {"format": _FORMAT, "mark": self.mark} | notes
            file.write(json.dumps(notes).encode() + b"\n")
            eqx.tree_serialise_leaves(file, tree)
        aside.replace(self.path)

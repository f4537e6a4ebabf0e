"""Checkpoints by Orbax."""

import pathlib
from os import PathLike
from typing import Any

import equinox as eqx
import jax
import numpy as np

from .._checks import integer_at_least
from ._checkpoints import AbstractStore


class Orbax(eqx.Module):
    """A folder of checkpoints that [Orbax](https://orbax.readthedocs.io) writes, for `fit.train(checkpoint=…)`.

    Training goes on while they are written. Arrays that are spread over devices are written and read as such, by
    all processes together, and can be read on other devices than they were written from. Each checkpoint is named
    by how many steps were done. Needs the extra `orbax`.

    **Arguments:**

    - `folder`: where they are; made if it isn't there.
    - `keep`: how many of the latest are kept.
    """

    folder: str | PathLike = eqx.field(static=True)
    keep: int = eqx.field(static=True)

    def __init__(self, folder: str | PathLike, *, keep: int = 1):
        if not isinstance(folder, str | PathLike):
            raise TypeError(f"`folder` must be the name of a folder, but got {folder!r}.")
        self.folder = folder
        self.keep = integer_at_least("keep", keep)


class OrbaxStore(AbstractStore):
    """Each array by its place in the tree; the notes as metadata."""

    def __init__(self, orbax: Orbax, *args):
        super().__init__(*args)
        try:
            from orbax.checkpoint import v1 as ocp
        except ImportError as error:
            raise ImportError(
                "`fit.Orbax` needs the extra `orbax`: pip install 'sciml-jax[orbax]'."
            ) from error
        self.path = pathlib.Path(orbax.folder).absolute()
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"`fit.Orbax` writes into a folder, but {self.path} is a file.")
        # Its own annotations disagree with each other.
        latest: Any = ocp.training.preservation_policies.LatestN(orbax.keep)
        self.checkpointer = ocp.training.Checkpointer(
            str(self.path), preservation_policy=latest, cleanup_tmp_directories=True
        )

    def notes(self) -> dict | None:
        if self.checkpointer.latest is None:
            return None
        notes = self.checkpointer.metadata().custom_metadata
        return self.check(notes if isinstance(notes, dict) else {}, self.path)

    def load(self, like: Any) -> Any:
        leaves, structure = _by_path(like)
        found = self.checkpointer.load(None, jax.tree.map(_abstract, _kept(leaves)))
        return jax.tree.unflatten(structure, (leaves | found).values())

    def save(self, tree: Any, notes: dict) -> None:
        leaves, _ = _by_path(tree)
        done = sum(steps for _, steps in self.phases[: notes["phase"]]) + notes["step"]
        self.checkpointer.save_async(
            done, _kept(leaves), force=True, overwrite=True, custom_metadata=self.signed(notes)
        )

    def finish(self) -> None:
        self.checkpointer.close()


def _by_path(tree: Any) -> tuple[dict[str, Any], Any]:
    """The leaves of a tree by their paths, and its structure."""
    leaves, structure = jax.tree.flatten_with_path(tree)
    name = lambda path: jax.tree_util.keystr(path, simple=True, separator=".")
    return {name(path): x for path, x in leaves}, structure


def _kept(leaves: dict[str, Any]) -> dict[str, Any]:
    """The arrays, but for those without elements, which Orbax refuses."""
    return {k: x for k, x in leaves.items() if isinstance(x, jax.Array | np.ndarray) and x.size}


def _abstract(x: Any) -> Any:
    return (
        x
        if isinstance(x, np.ndarray)
        else jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)
    )

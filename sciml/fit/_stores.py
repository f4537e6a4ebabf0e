"""Which kind of checkpoint was asked for."""

from typing import Any

from ._checkpoints import AbstractStore, FileStore
from ._orbax import Orbax, OrbaxStore
from ._phases import Phase


def as_store(
    checkpoint: Any, parts: dict[str, Any], phases: list[Phase], settled_steps: bool
) -> AbstractStore | None:
    if checkpoint is None:
        return None
    kind = OrbaxStore if isinstance(checkpoint, Orbax) else FileStore
    return kind(checkpoint, parts, phases, settled_steps)

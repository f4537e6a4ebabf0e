"""What training tells: on the way, and at the end."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Progress:
    """What a callback of [`train`][sciml.fit.train] is told.

    **Attributes:**

    - `step`: how many steps are done in this phase; `phase`: its number, from 0.
    - `loss`, `terms`: at the last step; terms by name before they are weighed.
    - `validation`: the loss of the validation, if there is one. `overall`: of a problem without, the loss on all data
      over the whole span. Else `None`.
    - `rejected`: how many steps were. `seconds`: since training began.
    - `model`: the model as it is now.
    """

    step: int
    phase: int
    loss: float
    terms: dict[str, float]
    validation: float | None
    overall: float | None
    rejected: int
    seconds: float
    _model: Callable[[], Any] = dataclasses.field(repr=False)

    @property
    def model(self) -> Any:
        return self._model()


@dataclasses.dataclass
class Log:
    """What happened, by step and by look."""

    loss: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0))
    accepted: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, bool))
    looks: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros((0, 2)))
    terms: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)

    def more(self, loss, accepted, terms: dict[str, Any]) -> None:
        # Phases differ in the terms that they show: what is missing is nan.
        before = np.full(self.loss.shape, np.nan)
        names = [*self.terms, *(n for n in terms if n not in self.terms)]
        blank = np.full(np.shape(loss), np.nan)
        self.terms = {
            n: np.append(self.terms.get(n, before), np.asarray(terms.get(n, blank))) for n in names
        }
        self.loss = np.append(self.loss, np.asarray(loss))
        self.accepted = np.append(self.accepted, np.asarray(accepted))

    def look(self, loss: float) -> None:
        self.looks = np.append(self.looks, [[self.loss.shape[0], loss]], axis=0)


@dataclasses.dataclass(frozen=True)
class Trained:
    """A model that was trained on a loss of one's own. Print it for a summary.

    **Attributes:**

    - `model`: the best that was seen: by the validation if there is one, else by the loss if that is on all data in
      every step, else the last.
    - `last`: the model after the last step.
    - `loss`: of `model`, in the measure by which it is the best; nan if there is none.
    - `history`: the loss by step, and its terms by name.
    - `validation`: steps and losses of the looks in between, shape `(look, 2)`.
    - `steps`, `rejected`: how many steps were done, and how many of them rejected.
    - `message`: how it ended.
    """

    model: Any
    last: Any
    loss: float
    history: dict[str, np.ndarray]
    validation: np.ndarray
    steps: int
    rejected: int
    message: str

    def __repr__(self) -> str:
        losses = self.history["loss"]
        lines = [f"Training of {type(self.model).__name__}   {self.message}"]
        if losses.size:
            lines.append(f"loss         first {losses[0]:.6g}, last {losses[-1]:.6g}")
        if self.validation.shape[0]:
            lines.append(f"validation   {self.validation[-1, 1]:.6g}, best {self.loss:.6g}")
        if self.rejected:
            lines.append(
                f"{self.rejected} of {self.steps} steps were rejected: loss or gradient not finite"
            )
        return "\n".join(lines)


@dataclasses.dataclass
class Course:
    """How far training has come: the best parameters and their loss, the last ones, the log, how it ended, and whether
    that was a failure.
    """

    best: Any
    loss: float
    last: Any
    log: Log
    ended: str = ""
    failed: bool = False

"""How training is run: chunks of compiled steps, and between them a look at the validation and a checkpoint."""

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ._checkpoints import Store
from ._descending import advance, begin, GIVE_UP, here, Options, Stacked, State
from ._experiment import with_fields
from ._goal import AbstractGoal
from ._phases import by_second_order, Phase
from ._progress import progress


@dataclasses.dataclass(frozen=True)
class Progress:
    """What a callback of [`train`][sciml.fit.train] is told.

    **Attributes:**

    - `step`: how many steps are done in this phase; `phase`: its number, from 0.
    - `loss`, `terms`: at the last step; terms by name before they are weighed.
    - `validation`: the loss of the validation data, or on all data; `None` if there is none.
    - `rejected`: how many steps were. `seconds`: since training began.
    - `model`: the model as it is now.
    """

    step: int
    phase: int
    loss: float
    terms: dict[str, float]
    validation: float | None
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


@dataclasses.dataclass(frozen=True)
class Rules:
    """How training is watched; see `train`."""

    every: int
    patience: int | None
    min_delta: float
    options: Options
    callbacks: tuple[Callable, ...]


@dataclasses.dataclass
class Course:
    """How far training has come: the best parameters and their loss, the last ones, the log, and how it ended."""

    best: Any
    loss: float
    last: Any
    log: Log
    ended: str = ""


def run(
    goal: AbstractGoal,
    phases: list[Phase],
    params: Any,
    data: Any,
    key: Any,
    rules: Rules,
    store: Store | None,
    model_of: Callable[[Any], Any],
) -> Course:
    """All phases, one after the other, each from the best of the one before."""
    begun = time.monotonic()
    course = Course(params, np.inf, params, Log())
    notes = None if store is None else store.notes()
    if notes is not None:
        key = jax.random.wrap_key_data(jnp.asarray(notes["key"], jnp.uint32))
    for number, phase in enumerate(phases):
        if notes is not None and notes["phase"] > number:
            continue
        if phase.second_order:
            _at_once(goal, phase, course, data, key)
        else:
            _phase(goal, phase, number, course, data, key, rules, store, notes, begun, model_of)
        notes = None
        if course.ended:
            break
    return course


def _at_once(goal: AbstractGoal, phase: Phase, course: Course, data: Any, key: Any) -> None:
    params, losses = by_second_order(goal, phase.optimiser, course.best, data, key, phase.steps)
    course.log.more(losses, np.ones(len(losses), bool), {})
    course.last = params
    seen = goal.whole(params, key)
    loss = float(losses[-1]) if seen is None else float(seen[0])
    if loss < course.loss:
        course.best, course.loss = params, loss


def _phase(goal, phase, number, course, data, key, rules, store, notes, begun, model_of) -> None:
    options, log = rules.options, course.log
    state = begin(goal, phase.optimiser, course.best, options)
    state = _with_best(state, course.best, course.loss)
    if notes is not None:
        state, log = _restored(store, notes, state)
        course.log = log
    stream = _Stream(data, int(state.step)) if isinstance(data, Iterator) else None
    reference = notes["reference"] if notes is not None else course.loss
    idle = notes["idle"] if notes is not None else 0
    with progress(phase.steps, "steps") as tick:
        tick(int(state.step))
        while (i := int(state.step)) < phase.steps:
            until = min((i // rules.every + 1) * rules.every, phase.steps)
            batches = data
            if stream is not None:
                batches, count = stream.take(until - i, rules.every)
                until = i + count
                if not count:
                    course.ended = f"the data ended after {i} steps"
                    break
            numbers = (jnp.asarray(until), jnp.asarray(phase.steps), rules.every)
            fixed = (goal, phase.optimiser, options, batches, key, *numbers)
            state, (losses, terms, ok) = advance(fixed, state)
            n = int(state.step) - i
            log.more(losses[:n], ok[:n], {k: v[:n] for k, v in terms.items()})
            now = here(goal, state) if state.average is None else _copy(state.average)
            seen = goal.whole(now, key)
            if seen is not None:
                loss = float(seen[0]) if bool(seen[1]) else np.inf
                log.look(loss)
                if loss < float(state.best_loss):
                    state = _with_best(state, now, loss)
            best = float(state.best_loss)
            # What can't be compared yet is no reason to stop.
            waiting = goal.settled(int(state.step), phase.steps) and np.isfinite(best)
            idle = 0 if best < reference - rules.min_delta or not waiting else idle + 1
            reference = min(reference, best) if idle == 0 else reference
            if int(state.row) >= GIVE_UP:
                course.ended = (
                    f"stopped at step {int(state.step)}: {GIVE_UP} steps in a row were rejected"
                )
            elif rules.patience is not None and idle >= rules.patience:
                course.ended = f"stopped early at step {int(state.step)}, best loss {best:.6g}"
            if store is not None:
                lists = {"idle": idle, "reference": reference, "phase": number}
                _save(store, state, log, key, lists)
            tick(n, f"loss {float(losses[n - 1]):.3g}")
            told = Progress(
                step=int(state.step),
                phase=number,
                loss=float(losses[n - 1]),
                terms={k: float(v[n - 1]) for k, v in terms.items()},
                validation=None if seen is None else float(seen[0]),
                rejected=int(state.rejected),
                seconds=time.monotonic() - begun,
                _model=lambda now=now: model_of(now),
            )
            if any([callback(told) is True for callback in rules.callbacks]):
                course.ended = course.ended or f"stopped by a callback at step {int(state.step)}"
            if course.ended:
                break
    last = here(goal, state) if state.average is None else state.average
    known = np.isfinite(float(state.best_loss))
    course.best = state.best if known else last
    course.loss, course.last = float(state.best_loss), last


def _with_best(state: State, params: Any, loss: Any) -> State:
    loss = jnp.asarray(loss, state.best_loss.dtype)
    return with_fields(state, best=_copy(params), best_loss=loss)


def _copy(tree: Any) -> Any:
    """What is given away must not be donated later."""
    return jax.tree.map(jnp.array, tree)


def _save(store: Store, state: State, log: Log, key: Any, notes: dict) -> None:
    shapes = {"loss": log.loss.shape[0], "looks": log.looks.shape[0], "terms": list(log.terms)}
    notes |= {"key": np.asarray(jax.random.key_data(key)).tolist(), "step": int(state.step)}
    store.save((state, dataclasses.asdict(log)), notes | {"log": shapes})


def _restored(store: Store, notes: dict, like: State) -> tuple[State, Log]:
    shapes = notes["log"]
    n = shapes["loss"]
    empty = Log(
        np.zeros(n), np.zeros(n, bool), np.zeros((shapes["looks"], 2)),
        {name: np.zeros(n) for name in shapes["terms"]},
    )  # fmt: skip
    state, log = store.load((like, dataclasses.asdict(empty)))
    return state, Log(**log)


class _Stream:
    """Batches of an iterator, several at a time; those of the steps that are done are skipped."""

    def __init__(self, data: Iterator, done: int):
        self.data = data
        for _ in itertools.islice(data, done):
            pass

    def take(self, count: int, room: int) -> tuple[Stacked | None, int]:
        """Up to `count` batches, stacked and filled up to `room` so that nothing is compiled anew."""
        batches = list(itertools.islice(self.data, count))
        if not batches:
            return None, 0
        full = batches + [batches[-1]] * (room - len(batches))
        try:
            return Stacked(jax.tree.map(lambda *xs: np.stack(xs), *full)), len(batches)
        except ValueError as error:
            raise ValueError(
                f"The batches of `data` differ in structure or shape: {error}"
            ) from None

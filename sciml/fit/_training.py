"""How training is run: chunks of compiled steps, and between them a look at the validation and a checkpoint."""

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ._batches import Stream
from ._checkpoints import AbstractStore
from ._descending import advance, begin, GIVE_UP, here, Options, State
from ._experiment import with_fields
from ._goal import AbstractGoal
from ._phases import by_second_order, Phase
from ._progress import progress
from ._trained import Course, Log, Progress


@dataclasses.dataclass(frozen=True)
class Rules:
    """How training is watched; see `train`."""

    every: int
    patience: int | None
    min_delta: float
    ema: float | None
    callbacks: tuple[Callable, ...]


class Training:
    """All phases, one after the other, each from the best of the one before.

    **Arguments:**

    - `data`, `options`: what a step takes.
    - `validated`: whether the goal is judged on data held out.
    - `model_of`: the model with some parameters.
    """

    def __init__(
        self,
        goal: AbstractGoal,
        phases: list[Phase],
        rules: Rules,
        *,
        data: Any = None,
        options: Options,
        key: Any,
        store: AbstractStore | None,
        validated: bool,
        model_of: Callable[[Any], Any],
    ):
        if rules.patience is not None and not goal.judges:
            raise ValueError(
                "`patience` compares losses, but those of batches, random losses and changing weights can't be "
                "compared: pass `validation=`."
            )
        self.goal, self.phases, self.rules, self.data = goal, phases, rules, data
        self.options, self.store = options, store
        self.key = jax.random.key(0) if key is None else key
        self.validated, self.model_of = validated, model_of
        self.begun = time.monotonic()
        self.reference, self.idle = np.inf, 0
        self.stream: Stream | None = None

    def run(self, params: Any) -> Course:
        layout = self.options.layout
        with contextlib.ExitStack() as stack:
            if self.store is not None:
                stack.callback(self.store.finish)
            if layout is not None:
                stack.enter_context(jax.set_mesh(layout.mesh))
                self.goal, self.key = layout.gather((self.goal, self.key))
            return self._run(self._placed(params))

    def _run(self, params: Any) -> Course:
        course = Course(params, np.inf, params, Log())
        notes = None if self.store is None else self.store.notes()
        if isinstance(self.data, Iterator):
            done = 0 if notes is None else self._before(notes["phase"]) + notes["step"]
            self.stream = Stream(self.data, done)
        for number in range(0 if notes is None else notes["phase"], len(self.phases)):
            self._phase(number, course, notes)
            notes = None
            if course.ended:
                break
        return course

    def _placed(self, tree: Any) -> Any:
        layout = self.options.layout
        return tree if layout is None else layout.place(tree)

    def _whole(self, params: Any) -> Any:
        """The loss that is compared. All devices do the same, so that loops need not wait for each other."""
        layout = self.options.layout
        return self.goal.whole(params if layout is None else layout.gather(params), self.key)

    def _before(self, number: int) -> int:
        return sum(p.steps for p in self.phases[:number])

    def _phase(self, number: int, course: Course, notes: dict | None) -> None:
        phase = self.phases[number]
        optimiser = optax.identity() if phase.second_order else phase.optimiser
        state = begin(optimiser, course.best, self.options, self.key)
        state = _with_best(state, course.best, course.loss)
        if notes is not None:
            assert self.store is not None
            state, course.log = _restored(self.store, notes, self._placed(state))
            self.reference, self.idle = notes["reference"], notes["idle"]
        if phase.second_order:
            if int(state.step) < phase.steps:
                state = self._at_once(number, state, course)
        else:
            state = self._descend(number, state, course)
        last = here(self.goal, state) if state.average is None else state.average
        known = np.isfinite(float(state.best_loss))
        course.best = state.best if known else last
        course.loss, course.last = float(state.best_loss), last

    def _descend(self, number: int, state: State, course: Course) -> State:
        """Steps of an optimiser of Optax."""
        phase, rules, log = self.phases[number], self.rules, course.log
        with progress(phase.steps, "steps") as tick:
            tick(int(state.step))
            self._stop_if_due(state, course)
            while (i := int(state.step)) < phase.steps and not course.ended:
                until = min((i // rules.every + 1) * rules.every, phase.steps)
                batches = self.data
                if self.stream is not None:
                    batches, count = self.stream.take(until - i, rules.every)
                    until = i + count
                    if not count:
                        course.ended = f"the data ended after {i} steps"
                        break
                    if self.options.layout is not None:
                        batches = self.options.layout.items(batches, axis=1)
                counts = (self._before(number), until, self.phases[0].steps)
                numbers = (*map(jnp.asarray, counts), rules.every)
                fixed = (self.goal, phase.optimiser, self.options, batches, self.key, *numbers)
                state, (losses, terms, ok) = advance(fixed, self._placed(state))
                n = int(state.step) - i
                log.more(losses[:n], ok[:n], {k: v[:n] for k, v in terms.items()})
                state = self._look(number, state, course)
                tick(n, f"loss {log.loss[-1]:.3g}")
        return state

    def _at_once(self, number: int, state: State, course: Course) -> State:
        """A method of second order."""
        phase, before = self.phases[number], self._before(number)
        start = state.best if np.isfinite(float(state.best_loss)) else here(self.goal, state)
        params, losses = by_second_order(
            self.goal, phase.optimiser, start, self.data, self.key, phase.steps, before
        )
        course.log.more(losses, np.ones(len(losses), bool), {})
        seen = self._whole(params)
        loss = float(losses[-1]) if seen is None and self.goal.judges else np.inf
        if loss < course.loss:
            state = _with_best(state, params, loss)
        state = with_fields(state, good=_copy(params), step=jnp.asarray(phase.steps))
        if state.average is not None:
            state = with_fields(state, average=_copy(params))
        return self._look(number, state, course)

    def _look(self, number: int, state: State, course: Course) -> State:
        """What is done every so many steps."""
        rules, log = self.rules, course.log
        now = here(self.goal, state) if state.average is None else _copy(state.average)
        seen = self._whole(now)
        if seen is not None:
            loss = float(seen[0]) if bool(seen[1]) else np.inf
            log.look(loss)
            if loss < float(state.best_loss):
                state = _with_best(state, now, loss)
        best = float(state.best_loss)
        # What can't be compared yet is no reason to stop.
        step = self._before(number) + int(state.step)
        waiting = self.goal.settled(step, self.phases[0].steps) and np.isfinite(best)
        self.idle = 0 if best < self.reference - rules.min_delta or not waiting else self.idle + 1
        self.reference = min(self.reference, best) if self.idle == 0 else self.reference
        if self.store is not None:
            notes = {"idle": self.idle, "reference": self.reference, "phase": number}
            _save(self.store, state, log, notes)
        self._stop_if_due(state, course)
        told = Progress(
            step=int(state.step),
            phase=number,
            loss=float(log.loss[-1]) if log.loss.size else math.nan,
            terms={k: float(v[-1]) for k, v in log.terms.items()},
            validation=None if seen is None or not self.validated else float(seen[0]),
            overall=None if seen is None or self.validated else float(seen[0]),
            rejected=int(state.rejected),
            seconds=time.monotonic() - self.begun,
            _model=lambda now=now: self.model_of(now),
        )
        if any([_says_stop(callback(told)) for callback in rules.callbacks]):
            course.ended = course.ended or f"stopped by a callback at step {int(state.step)}"
        return state

    def _stop_if_due(self, state: State, course: Course) -> None:
        step, patience = int(state.step), self.rules.patience
        if int(state.row) >= GIVE_UP:
            course.ended = f"stopped at step {step}: {GIVE_UP} steps in a row were rejected"
            course.failed = True
        elif patience is not None and self.idle >= patience:
            best = float(state.best_loss)
            course.ended = f"stopped early at step {step}, best loss {best:.6g}"


def _says_stop(answer: Any) -> bool:
    if answer is None or isinstance(answer, bool | np.bool_):
        return bool(answer)
    if isinstance(answer, jax.Array | np.ndarray) and answer.dtype == bool and answer.shape == ():
        return bool(answer)
    raise TypeError(
        f"A callback must return `True` to stop, or `False` or nothing, but one returned {answer!r}."
    )


def _with_best(state: State, params: Any, loss: Any) -> State:
    loss = jnp.asarray(loss, state.best_loss.dtype)
    return with_fields(state, best=_copy(params), best_loss=loss)


def _copy(tree: Any) -> Any:
    """What is given away must not be donated later."""
    return jax.tree.map(jnp.array, tree)


def _save(store: AbstractStore, state: State, log: Log, notes: dict) -> None:
    shapes = {"loss": log.loss.shape[0], "looks": log.looks.shape[0], "terms": list(log.terms)}
    notes |= {"step": int(state.step), "log": shapes}
    store.save((state, dataclasses.asdict(log)), notes)


def _restored(store: AbstractStore, notes: dict, like: State) -> tuple[State, Log]:
    shapes = notes["log"]
    n = shapes["loss"]
    empty = Log(
        np.zeros(n), np.zeros(n, bool), np.zeros((shapes["looks"], 2)),
        {name: np.zeros(n) for name in shapes["terms"]},
    )  # fmt: skip
    state, log = store.load((like, dataclasses.asdict(empty)))
    return state, Log(**log)

"""Timing on a noisy machine: rivals take turns, and medians are compared."""

import time
from collections.abc import Callable

import numpy as np


def interleaved(todo: dict[str, Callable], rounds: int, budget: float = 20.0) -> dict[str, float]:
    """Median wall time of each function in seconds; each has been called before.

    At its turn a function runs a few times, and the first time doesn't count: after a rival that
    took milliseconds, the caches and the clock of the processor are not what they are in a loop,
    which costs a program of 0.1 ms up to 0.3. What is slow is called less often: nobody gets more
    than `budget` seconds altogether, but three turns.
    """
    seconds = {name: [] for name in todo}
    for k in range(rounds):
        for name, run in todo.items():
            if k >= 3 and sum(seconds[name]) > budget / len(todo):
                continue
            took, turns = _time(run), 1
            if took < 0.02:
                turns = 5
                took = float(np.median([_time(run) for _ in range(turns)]))
            seconds[name] += [took] * turns
    return {name: float(np.median(x)) for name, x in seconds.items()}


def _time(run: Callable) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def at_error(points: list[tuple[float, float]], target: float) -> float | None:
    """The time that an error of `target` costs, from `(error, time)` by log-log interpolation."""
    points = sorted((e, t) for e, t in points if np.isfinite(e) and e > 0)
    if not points or not points[0][0] <= target:
        return None
    errors, times = (np.log([p[i] for p in points]) for i in (0, 1))
    # The cheapest way to be at least as good: the lower envelope.
    times = np.minimum.accumulate(times)
    return float(np.exp(np.interp(np.log(target), errors, times)))

"""Timing on a noisy machine: rivals take turns, and medians are compared."""

import time
from collections.abc import Callable

import numpy as np


def interleaved(todo: dict[str, Callable], rounds: int, budget: float = 20.0) -> dict[str, float]:
    """Median wall time of each function in seconds; each has been called before.

    A function of less than 20 ms runs once to warm up and then five times, of which the median
    counts: after a rival that took milliseconds, the caches and the clock of the processor are not
    what they are in a loop, which costs a program of 0.1 ms up to 0.3. A slower one runs once a turn.

    **Arguments:**

    - `budget`: seconds for all together, in equal shares; everyone gets three turns at least.
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
    """The time that an error of `target` costs, from `(error, time)` by log-log interpolation.

    `None` if no point is as accurate.
    """
    points = sorted((e, t) for e, t in points if np.isfinite(e) and e > 0)
    if not points or not points[0][0] <= target:
        return None
    errors, times = (np.log([p[i] for p in points]) for i in (0, 1))
    # The cheapest way to be at least as good: the lower envelope.
    times = np.minimum.accumulate(times)
    return float(np.exp(np.interp(np.log(target), errors, times)))

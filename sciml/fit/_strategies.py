"""What brings starts nearer before they are optimised, and what becomes of it afterwards."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ._levels import level_is_free
from ._likelihood import prior_terms
from ._problem import Problem
from ._search import End
from ._shooting import MultipleShooting, Shot


def as_strategies(strategy: Any) -> tuple:
    strategies = () if strategy is None else strategy
    strategies = tuple(strategies) if isinstance(strategies, tuple | list) else (strategies,)
    for s in strategies:
        if not callable(getattr(s, "start", None)):
            raise TypeError(
                "`strategy` must be a `fit.MultipleShooting(…)`, `fit.Matching(…)`, "
                f"`fit.GrowingHorizon(…)` or a tuple of them, but got {s!r}."
            )
    return strategies


def approach(
    problem: Problem, xs: Array, strategies: tuple
) -> tuple[Array, list[Shot | None], list[str]]:
    """**Returns:**

    The starts where the strategies left them, the last shot of each, if it was one of multiple shooting, and why a
    strategy could not begin.
    """
    shots: list[Shot | None] = [None] * xs.shape[0]
    troubles = [""] * xs.shape[0]
    ends = []
    for i, x in enumerate(xs):
        try:
            for s in strategies:
                shots[i] = s.shoot(problem.at(x)) if isinstance(s, MultipleShooting) else None
                shot = shots[i]
                x = s.start(problem.at(x)) if shot is None else shot.x
        except RuntimeError as error:
            troubles[i] = str(error)
        ends.append(x)
    return jnp.stack(ends), shots, troubles


def prefer_shots(problem: Problem, ends: End, shots: list[Shot | None]) -> tuple[End, list[int]]:
    """The ends, with those of multiple shooting where optimising the whole trajectory led elsewhere.

    For a chaotic system it can't but do so: the loss of the whole is a desert of minima, and the trajectory whose
    windows meet is the answer.
    """
    if level_is_free(problem) or all(shot is None for shot in shots):
        return ends, []
    ends = jax.tree.map(np.array, ends)
    preferred = []
    for i, shot in enumerate(shots[: ends.loss.shape[0]]):
        if shot is None or not shot.ok or ends.rows is None or ends.misfit is None:
            continue
        prior = float(prior_terms(problem, shot.x)[0])
        loss = shot.loss + prior
        # Without noise both are rounding.
        if np.isfinite(ends.loss[i]) and ends.loss[i] <= 1.001 * loss + 1e-10 * _size(problem):
            continue
        preferred.append(i)
        ends.x[i], ends.loss[i], ends.ok[i] = np.asarray(shot.x), loss, True
        ends.misfit[i], ends.prior[i] = shot.loss + abs(prior), prior
        ends.rows[i] = _triangle(shot.rows, ends.rows.shape[-1])
        ends.active[i] = (shot.x >= problem.upper).astype(int) - (shot.x <= problem.lower).astype(
            int
        )
        ends.steps[i], ends.failures[i] = shot.steps, shot.failures
        ends.history[i] = np.nan
    return ends, preferred


def _triangle(rows: np.ndarray, n: int) -> np.ndarray:
    r = np.linalg.qr(np.concatenate([rows, np.zeros((n, n))]))[1]
    return r[:n]


def _size(problem: Problem) -> float:
    """Half the sum of squares of the data in units of their noise."""
    total = 0.0
    for block in problem.blocks:
        ys = np.where(np.asarray(block.data.seen), np.asarray(block.data.ys), 0.0)
        sigma = 1.0 if block.data.sigma is None else np.asarray(block.data.sigma)
        total += float(np.sum((ys / sigma) ** 2)) / 2
    return total

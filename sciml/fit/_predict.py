"""Curves with bands."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike

from .._results import RESULTS
from ._blocks import Member
from ._data import Data
from ._intervals import check_level, quantile
from ._levels import laws_of, levelled, levels_at
from ._problem import Problem
from ._result import Result
from ._simulate import predict_at
from ._uncertainty import undetermined


@dataclasses.dataclass(frozen=True)
class Prediction:
    """Observables over time, shape `(time, observable)`.

    - `mean`: the fitted curve (for log-normal noise, the median).
    - `low`, `high`: the band; nan where the data do not determine it.
    - `level`: its coverage; `observations`: whether it is for new measurements.
    - `experiment`: of which; an empty text if there is only one without a name.
    """

    ts: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    names: tuple[str, ...]
    level: float
    observations: bool
    experiment: str = ""


def predict(
    result: Result,
    ts: ArrayLike | Sequence[float],
    level: float = 0.95,
    *,
    observations: bool = False,
    experiment: str | None = None,
) -> Prediction:
    """Predicts the observables, with pointwise bands by the delta method.

    **Arguments:**

    - `result`: of `fit.estimate` or `fit.train` (the latter has no bands).
    - `ts`: times of shape `(time,)`, in any order, none before the start of the experiment.
    - `level`: coverage of the band.
    - `observations`: `False` gives the band of the curve, from the uncertainty of the parameters;
      `True` that of a new measurement, which adds the noise.
    - `experiment`: its name, if there are several.

    **Returns:**

    A [`Prediction`][sciml.fit.Prediction] with `.mean`, `.low` and `.high`.
    """
    if not isinstance(result, Result):
        raise TypeError(
            f"`predict` takes a `Result` of `fit.estimate` or `fit.train`, but got a {type(result).__name__}. A model "
            "that was trained on a loss is called itself."
        )
    level = check_level(level)
    problem = result.problem
    member = problem.member(experiment)
    name = problem.experiments[problem.number(experiment)]
    times = np.atleast_1d(np.asarray(ts, np.float64))
    if times.ndim != 1 or not np.all(np.isfinite(times)):
        raise ValueError("`ts` must be finite times in one dimension.")
    t0 = float(member.t0)
    if np.any(times < t0):
        raise ValueError(f"`ts` starts at {times.min():g}, before the problem's t0 = {t0:g}.")
    order = np.argsort(times, kind="stable")
    back = np.argsort(order, kind="stable")
    grid = jnp.asarray(times[order], member.data.ts.dtype)
    x = problem.initial()

    banded = result.uncertainty is not None
    pred, location, jacobian, status = _curves(problem, member, x, grid, banded)
    if bool(status != RESULTS.successful):
        raise RuntimeError(f"The solve of the fitted model failed: {RESULTS[status]}")
    parts = problem.parts_in(member.index, problem.local(x, member.index))
    location = np.asarray(location, np.float64)
    if banded:
        rows = _all_columns(problem, member, np.asarray(jacobian, np.float64))
        u = result.uncertainty
        assert u is not None
        variance = np.einsum("ip,pq,iq->i", rows, u.covariance, rows)
        variance[undetermined(rows, u)] = np.nan
        variance = variance.reshape(location.shape)
        if observations:
            variance = variance + _noise_variance(result, parts[2], member, pred, location)
        half = quantile(result, level) * np.sqrt(variance)
    else:
        half = np.full_like(location, np.nan)
    laws = laws_of(parts[2], problem.observables)

    def natural(v):
        columns = [np.asarray(law.natural(jnp.asarray(v[:, place]))) for law, place in laws]
        return np.concatenate(columns, axis=1)[back]

    return Prediction(
        times, natural(location), natural(location - half), natural(location + half),
        problem.observables, level, observations, name,
    )  # fmt: skip


@eqx.filter_jit
def _curves(problem: Problem, member: Member, x: Array, ts: Array, banded: bool):
    def located(local):
        pred, status, parts = predict_at(problem, local, member, ts, "forward")
        # Log-normal noise: bands are made on the logarithm, so that they stay positive.
        laws = laws_of(parts[2], problem.observables)
        location = jnp.concatenate([law.location(pred[:, place]) for law, place in laws], axis=1)
        return location, (pred, location, status)

    local = problem.local(x, member.index)
    if not banded:
        _, (pred, location, status) = located(local)
        return pred, location, None, status
    jacobian, (pred, location, status) = jax.jacfwd(located, has_aux=True)(local)
    return pred, location, jacobian, status


def _all_columns(problem: Problem, member: Member, jacobian: np.ndarray) -> np.ndarray:
    """The derivatives by all parameters, from those by the ones that the experiment uses."""
    rows = jacobian.reshape(-1, jacobian.shape[-1])
    table = problem.table()
    if table is None:
        return rows
    out = np.zeros((rows.shape[0], problem.lower.shape[0]))
    out[:, table[int(member.index)]] = rows  # each parameter once
    return out


def _noise_variance(result: Result, noise, member: Member, pred, location) -> np.ndarray:
    problem = result.problem
    residual = result.statistics.get("residual sigma")
    if not levelled(problem):
        return np.asarray((np.nan if residual is None else residual) ** 2)
    if member.data.whitener is not None:
        raise ValueError(
            "`observations=True` needs the noise of a new measurement, which a `covariance` does not tell."
        )
    columns = []
    for law, place in laws_of(noise, problem.observables):
        sigma: Any = law.level
        if callable(sigma):
            sigma = levels_at(sigma, pred)[:, place]
        elif sigma is None:
            sigma = 1.0 if member.data.sigma is None else _common_sigma(member.data, place)
        m = jnp.asarray(location[:, place])
        s = jnp.broadcast_to(jnp.log(jnp.asarray(sigma, m.dtype)), m.shape)
        columns.append(np.asarray(law.variance(m, s), np.float64))
    return np.concatenate(columns, axis=1)


def _common_sigma(data: Data, place: np.ndarray) -> np.ndarray:
    sigma, seen = np.asarray(data.sigma, np.float64)[:, place], np.asarray(data.seen)[:, place]
    levels = [np.unique(column[ok]) for column, ok in zip(sigma.T, seen.T, strict=True)]
    if any(len(v) > 1 for v in levels):
        raise ValueError(
            "`observations=True` needs the noise of a new measurement, but sigma differs from "
            "point to point in the data."
        )
    return np.array([v[0] if len(v) else np.nan for v in levels])

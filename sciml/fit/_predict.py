"""Curves with bands."""

import dataclasses
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike

from .._results import RESULTS
from ._intervals import check_level, quantile
from ._likelihood import predict_at, sigma_of
from ._problem import Problem
from ._result import Result
from ._uncertainty import undetermined


@dataclasses.dataclass(frozen=True)
class Prediction:
    """Observables over time, shape `(time, observable)`.

    - `mean`: the fitted curve (for log-normal noise, the median).
    - `low`, `high`: the band; nan where the data do not determine it.
    - `level`: its coverage; `observations`: whether it is for new measurements.
    """

    ts: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    names: tuple[str, ...]
    level: float
    observations: bool


def predict(
    result: Result,
    ts: ArrayLike | Sequence[float],
    level: float = 0.95,
    *,
    observations: bool = False,
) -> Prediction:
    """Predicts the observables, with pointwise bands by the delta method.

    **Arguments:**

    - `result`: of `fit.estimate` or `fit.train` (the latter has no bands).
    - `ts`: times of shape `(time,)`, in any order, none before the problem's `t0`.
    - `level`: coverage of the band.
    - `observations`: `False` gives the band of the curve, from the uncertainty of the parameters;
      `True` that of a new measurement, which adds the noise.

    **Returns:**

    A [`Prediction`][sciml.fit.Prediction] with `.mean`, `.low` and `.high`.
    """
    level = check_level(level)
    problem = result.problem
    times = np.atleast_1d(np.asarray(ts, np.float64))
    if times.ndim != 1 or not np.all(np.isfinite(times)):
        raise ValueError("`ts` must be finite times in one dimension.")
    t0 = float(problem.t0)
    if np.any(times < t0):
        raise ValueError(f"`ts` starts at {times.min():g}, before the problem's t0 = {t0:g}.")
    order = np.argsort(times, kind="stable")
    back = np.argsort(order, kind="stable")
    grid = jnp.asarray(times[order], problem.data.ts.dtype)
    x = problem.initial()

    banded = result.uncertainty is not None
    location, jacobian, status = _curves(problem, x, grid, banded)
    if bool(status != RESULTS.successful):
        raise RuntimeError(f"The solve of the fitted model failed: {RESULTS[status]}")
    location = np.asarray(location, np.float64)
    if banded:
        rows = np.asarray(jacobian, np.float64).reshape(-1, x.shape[0])
        u = result.uncertainty
        assert u is not None
        variance = np.einsum("ip,pq,iq->i", rows, u.covariance, rows)
        variance[undetermined(rows, u)] = np.nan
        variance = variance.reshape(location.shape)
        if observations:
            variance = variance + _noise_variance(result)
        half = quantile(result, level) * np.sqrt(variance)
    else:
        half = np.full_like(location, np.nan)
    natural = lambda v: np.asarray(problem.noise.natural(jnp.asarray(v)))[back]
    return Prediction(
        times, natural(location), natural(location - half), natural(location + half),
        problem.data.names, level, observations,
    )  # fmt: skip


@eqx.filter_jit
def _curves(problem: Problem, x: Array, ts: Array, banded: bool):
    def located(x):
        parts = problem.unflatten(x)
        pred, status = predict_at(problem, parts, ts, "forward")
        # Log-normal noise: bands are made on the logarithm, so that they stay positive.
        location = parts[2].location(pred)
        return location, (location, status)

    if not banded:
        location, (_, status) = located(x)
        return location, None, status
    jacobian, (location, status) = jax.jacfwd(located, has_aux=True)(x)
    return location, jacobian, status


def _noise_variance(result: Result) -> np.ndarray:
    problem = result.problem
    residual = result.statistics.get("residual sigma")
    if result.statistics["sigma"] == "from residuals":
        return np.asarray((np.nan if residual is None else residual) ** 2)
    sigma = np.asarray(sigma_of(problem, problem.noise), np.float64)
    if sigma.ndim == 2:
        seen = np.asarray(problem.data.seen)
        levels = [np.unique(column[ok]) for column, ok in zip(sigma.T, seen.T, strict=True)]
        if any(len(v) > 1 for v in levels):
            raise ValueError(
                "`observations=True` needs the noise of a new measurement, but sigma differs from "
                "point to point in the data."
            )
        sigma = np.array([v[0] if len(v) else np.nan for v in levels])
    return np.asarray(sigma**2)

"""Confidence intervals of parameters."""

from typing import Any

import jax.numpy as jnp
import jax.scipy.stats as jss
import numpy as np

from ._result import Result


def quantile(result: Result, level: float) -> float:
    """The two-sided quantile: normal if sigma is known or estimated with the parameters, else t."""
    p = (1 + level) / 2
    dof = result.statistics["dof"]
    if result.statistics["sigma"] == "from residuals":
        return _t_quantile(p, dof) if dof > 0 else float("nan")
    return float(jss.norm.ppf(jnp.asarray(p)))


def _t_quantile(p: float, dof: float) -> float:
    """Quantile of Student's t, by bisection on its distribution function (p > 1/2)."""
    from jax.scipy.special import betainc

    def upper(q):  # P(T > q)
        z = jnp.asarray(dof / (dof + q * q))
        return 0.5 * float(betainc(jnp.asarray(dof / 2.0), jnp.asarray(0.5), z))

    low, high = 0.0, 2.0
    while upper(high) > 1 - p:
        high *= 2
    for _ in range(60):
        mid = (low + high) / 2
        low, high = (mid, high) if upper(mid) > 1 - p else (low, mid)
    return (low + high) / 2


def check_level(level: float) -> float:
    if not 0 < level < 1:
        raise ValueError(f"`level` must lie between 0 and 1, as 0.95 does, but got {level}.")
    return float(level)


def flat_intervals(result: Result, level: float) -> tuple[np.ndarray, np.ndarray]:
    """Wald limits of the flat parameters, in natural units."""
    x = np.asarray(result.problem.initial(), np.float64)
    n = x.shape[0]
    if result.uncertainty is None:
        return np.full(n, np.nan), np.full(n, np.nan)
    known = result.uncertainty.known
    half = quantile(result, level) * np.sqrt(np.diag(result.uncertainty.covariance))
    half = np.where(known, half, np.nan)
    logs = result.problem.log_scaled()
    natural = lambda v: np.where(logs, np.exp(np.where(logs, v, 0.0)), v)
    with np.errstate(over="ignore"):  # of a parameter that is hardly determined
        return natural(x - half), natural(x + half)


def intervals(
    result: Result, level: float = 0.95, method: str = "wald"
) -> dict[str, tuple[Any, Any]]:
    """Confidence intervals, by name.

    **Arguments:**

    - `result`: of `fit.estimate`.
    - `level`: the coverage.
    - `method`: `"wald"`, estimate plus and minus a quantile times the standard error, for
      log-scaled parameters on the logarithm (so that limits stay positive). The quantile is normal
      if sigma is known or estimated by name, and Student's t with the residual degrees of freedom
      if it comes from the residuals. Wald intervals are symmetric on their scale by construction;
      where the model is strongly nonlinear they are too narrow on one side.

    **Returns:**

    A dict of name to `(low, high)`; nan for parameters without an error bar.
    """
    level = check_level(level)
    if method != "wald":
        later = ("profile", "bootstrap", "sample")
        what = "is not available yet" if method in later else "is unknown"
        raise ValueError(f"The interval method {method!r} {what}: use 'wald'.")
    low, high = flat_intervals(result, level)
    out, start = {}, 0
    for slot in result.problem.slots:
        part = slice(start, start + slot.size)
        start += slot.size
        pair = low[part].reshape(slot.shape), high[part].reshape(slot.shape)
        out[slot.name] = tuple(float(v) for v in pair) if slot.shape == () else pair
    return out

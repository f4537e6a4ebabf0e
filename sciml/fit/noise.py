"""Laws of the measurement noise.

A law says on which scale residuals are normal (`location`) and how wide they are (`sigma`). It
is an Equinox module like any other, so its sigma can be freed by name: `"noise.sigma"`.
"""

import abc
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._compat import is_traced
from .._dtypes import default_float


def _as_sigma(sigma):
    """`None`, or an array: a list would be several parameters, an integer none."""
    if sigma is None or eqx.is_inexact_array(sigma):
        return sigma
    return jnp.asarray(np.asarray(sigma, float), default_float())


def _check_sigma(sigma):
    if sigma is not None and not is_traced(sigma):
        values = np.asarray(sigma)
        if not np.all((values > 0) & np.isfinite(values)):
            raise ValueError(f"`sigma` must be positive and finite, but got {values}.")


class AbstractNoise(eqx.Module):
    """Noise that is normal on some scale."""

    sigma: eqx.AbstractVar[Any]

    @abc.abstractmethod
    def location(self, value: Float[Array, "..."]) -> Float[Array, "..."]:
        """The scale on which residuals are normal."""

    @abc.abstractmethod
    def natural(self, location: Float[Array, "..."]) -> Float[Array, "..."]:
        """The inverse of `location`."""

    @abc.abstractmethod
    def log_slope(self, value: Float[Array, "..."]) -> Float[Array, "..."]:
        """The logarithm of the derivative of `location`: what a density gains by the change."""

    @abc.abstractmethod
    def check(self, values: np.ndarray, seen: np.ndarray) -> None:
        """Refuses data that the law can't produce, naming the rows."""


class Normal(AbstractNoise):
    """Additive noise: measured = predicted + sigma * normal.

    **Arguments:**

    - `sigma`: a number, or one for each observable, in the unit of the data; `None` estimates
      one common level from the residuals.
    """

    sigma: Any = eqx.field(default=None, converter=_as_sigma)

    def __check_init__(self):
        _check_sigma(self.sigma)

    def location(self, value):
        return value

    def natural(self, location):
        return location

    def log_slope(self, value):
        return jnp.zeros_like(value)

    def check(self, values, seen):
        pass


class LogNormal(AbstractNoise):
    """Multiplicative noise: log(measured) = log(predicted) + sigma * normal.

    For positive quantities with a constant relative error; the model's curve is the median.

    **Arguments:**

    - `sigma`: as in `Normal`, but of the logarithm: 0.25 is about 25 percent. So is a sigma given
      with the data.
    """

    sigma: Any = eqx.field(default=None, converter=_as_sigma)

    def __check_init__(self):
        _check_sigma(self.sigma)

    def location(self, value):
        # A prediction that is not positive has no logarithm: nan, so that the point is rejected.
        positive = value > 0
        return jnp.where(positive, jnp.log(jnp.where(positive, value, 1)), jnp.nan)

    def natural(self, location):
        return jnp.exp(location)

    def log_slope(self, value):
        return -jnp.log(value)

    def check(self, values, seen):
        bad = np.argwhere(seen & ~(values > 0))
        if bad.size:
            rows = ", ".join(str(r) for r in sorted({int(r) for r, _ in bad})[:8])
            raise ValueError(
                "Log-normal noise needs positive data, but there are values that are zero or "
                f"negative in rows {rows} (counted from 0). Mark them as missing (nan) or use "
                "`fit.noise.Normal`."
            )

"""Laws of counts: the prediction is their mean."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln

from ._laws import AbstractNoise, as_level, check_positive, observed, refuse


def _refuse_others_than_counts(law: str, values: np.ndarray, seen: np.ndarray) -> None:
    bad = seen & ~((values >= 0) & (values == np.round(values)))
    refuse(
        bad, law + " noise needs counts, but there are negative or broken numbers in rows {rows} "
        "(counted from 0). Mark them as missing (nan) or use `fit.noise.Normal`.",
    )  # fmt: skip


def _times_log(x, y):
    """x log y, which is zero for x = 0 whatever y is."""
    some = x > 0
    return jnp.where(some, x * jnp.log(jnp.where(some, y, 1)), 0)


def _mean(value):
    # A negative mean is none: nan, so that the point is rejected.
    return jnp.where(value >= 0, value, jnp.nan)


class Poisson(AbstractNoise):
    """Counts of independent events with the prediction as their mean, which is their variance too."""

    @property
    def level(self):
        return None

    def location(self, value):
        return _mean(value)

    def natural(self, location):
        return jnp.maximum(location, 0)

    def misfit(self, m, s, z):
        return m - z - _times_log(z, m) + _times_log(z, z)

    def baseline(self, s, z):
        return z - _times_log(z, z)

    def information(self, m, s, z):
        some = m > 0
        return jnp.where(some, 1 / jnp.where(some, m, 1), 0), jnp.zeros_like(m), jnp.zeros_like(m)

    def constant(self, z):
        return gammaln(z + 1)

    def variance(self, m, s):
        return m

    def check(self, values, seen):
        _refuse_others_than_counts("Poisson", values, seen)


class NegativeBinomial(AbstractNoise):
    """Counts that scatter more than Poisson's: variance = mean + mean^2 / size.

    **Arguments:**

    - `size`: a number, or one for each observable; large for Poisson's law. Free it as `"noise.size"`.
    """

    size: Any = eqx.field(default=None, converter=as_level)

    def __check_init__(self):
        if self.size is None:
            raise ValueError("`NegativeBinomial` needs a `size`; free 'noise.size' to estimate it.")
        check_positive("size", self.size)

    @property
    def level(self):
        return self.size

    def location(self, value):
        return _mean(value)

    def natural(self, location):
        return jnp.maximum(location, 0)

    def misfit(self, m, s, z):
        return self._mean_part(m, s, z) - self._mean_part(z, s, z)

    def baseline(self, s, z):
        size = jnp.exp(s)
        return gammaln(size) - gammaln(z + size) - size * s + self._mean_part(z, s, z)

    @staticmethod
    def _mean_part(m, s, z):
        size = jnp.exp(s)
        return (z + size) * jnp.log(m + size) - _times_log(z, m)

    def information(self, m, s, z):
        size, some = jnp.exp(s), m > 0
        mean = jnp.where(some, m, 1)
        by_mean = jnp.where(some, 1 / (mean + mean**2 / size), 0)
        # The expectation for the size has no closed form; that by the mean and the size is zero.
        return by_mean, jnp.zeros_like(m), observed(self.nll, mean, s, z)[2]

    def constant(self, z):
        return gammaln(z + 1)

    def variance(self, m, s):
        return m + m**2 * jnp.exp(-s)

    def check(self, values, seen):
        _refuse_others_than_counts("Negative binomial", values, seen)


class Binomial(AbstractNoise):
    """How many of a number of trials succeeded, with the prediction as the mean: trials * probability.

    **Arguments:**

    - `trials`: a number, or one for each observable.
    """

    trials: Any = eqx.field(converter=as_level)

    def __check_init__(self):
        check_positive("trials", self.trials)

    @property
    def level(self):
        return None

    def location(self, value):
        return jnp.where((value >= 0) & (value <= self.trials), value, jnp.nan)

    def natural(self, location):
        return jnp.clip(location, 0, self.trials)

    def misfit(self, m, s, z):
        return self._mean_part(m, z) - self._mean_part(z, z)

    def baseline(self, s, z):
        return self._mean_part(z, z)

    def _mean_part(self, m, z):
        return -_times_log(z, m) - _times_log(self.trials - z, self.trials - m)

    def information(self, m, s, z):
        inside = (m > 0) & (m < self.trials)
        mean = jnp.where(inside, m, self.trials / 2)
        by_mean = self.trials / (mean * (self.trials - mean))
        return jnp.where(inside, by_mean, 0), jnp.zeros_like(m), jnp.zeros_like(m)

    def constant(self, z):
        n = self.trials
        ways = gammaln(z + 1) + gammaln(n - z + 1) - gammaln(jnp.broadcast_to(n, z.shape) + 1)
        return ways + n * jnp.log(n)

    def variance(self, m, s):
        return m * (1 - m / self.trials)

    def check(self, values, seen):
        _refuse_others_than_counts("Binomial", values, seen)
        refuse(
            seen & (values > np.asarray(self.trials)),
            "Binomial noise: there are more successes than `trials` in rows {rows} (counted from 0).",
        )

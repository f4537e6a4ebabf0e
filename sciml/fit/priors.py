"""Prior densities of natural values. Anything else with `log_prob` works as well.

A density is one of a number, and which number matters: a prior of `k` and the same knowledge as a
prior of `log k` differ by the factor `dk / dlog k`, and so do the most probable values. All priors
here are densities of the value itself, whatever the scale on which it is searched; `OnLog` makes
one a density of the logarithm.
"""

import abc
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jaxtyping import Array

from .. import _compat


class AbstractPrior(eqx.Module):
    """A density of independent numbers."""

    @abc.abstractmethod
    def penalty(self, value: Any) -> Array:
        """Minus the log density without its constant: what joins the loss."""

    @abc.abstractmethod
    def log_prob(self, value: Any) -> Array:
        """The normalised log density, minus infinity outside the support."""

    @abc.abstractmethod
    def support(self) -> tuple:
        """The interval on which the density is positive."""

    @abc.abstractmethod
    def sample(self, key: Any, shape: tuple[int, ...] = ()) -> Array:
        """Draws of the distribution, by a JAX random key."""


def _numbers(**values):
    for name, value in values.items():
        if _compat.is_traced(value):
            continue
        if np.asarray(value).dtype.kind not in "fiu":
            raise TypeError(f"`{name}` must be a number, but got {value!r}.")
        if not np.all(np.isfinite(value)):
            raise ValueError(f"`{name}` must be finite, but got {value}.")


def _positive(**values):
    _numbers(**values)
    for name, value in values.items():
        if not _compat.is_traced(value) and not np.all(np.asarray(value) > 0):
            raise ValueError(f"`{name}` must be positive, but got {value}.")


def _where(inside, prior: AbstractPrior, value, constant):
    """The log density from the penalty, minus infinity outside of the support."""
    safe = jnp.where(inside, value, jnp.ones_like(value))  # no nan reaches a derivative
    return jnp.where(inside, -prior.penalty(safe) - constant, -jnp.inf)


class Normal(AbstractPrior):
    """The normal distribution with `mean` and standard deviation `sd`."""

    mean: Any
    sd: Any

    def __check_init__(self):
        _numbers(mean=self.mean)
        _positive(sd=self.sd)

    def penalty(self, value):
        return ((value - self.mean) / self.sd) ** 2 / 2

    def log_prob(self, value):
        return -self.penalty(value) - jnp.log(self.sd * math.sqrt(2 * math.pi))

    def support(self):
        return -math.inf, math.inf

    def sample(self, key, shape=()):
        return self.mean + self.sd * jax.random.normal(key, shape, float)


class Laplace(AbstractPrior):
    """The two-sided exponential distribution: a mean absolute deviation of `scale` from `mean`.

    Its tails are heavier than those of `Normal`, and at `mean` is a kink, which draws a number about
    which the data say little to exactly this value (an L1 penalty). There, a method that
    converges by derivatives may take long.
    """

    mean: Any
    scale: Any

    def __check_init__(self):
        _numbers(mean=self.mean)
        _positive(scale=self.scale)

    def penalty(self, value):
        apart = value - self.mean
        return apart * jnp.sign(apart) / self.scale  # `abs` has slope one at the kink

    def log_prob(self, value):
        return -self.penalty(value) - jnp.log(2 * self.scale)

    def support(self):
        return -math.inf, math.inf

    def sample(self, key, shape=()):
        return self.mean + self.scale * jax.random.laplace(key, shape, float)


class LogNormal(AbstractPrior):
    """The distribution of a number whose logarithm is normal with `mean` and `sd`.

    Its most probable value is `exp(mean - sd**2)`, for it is a density of the number; the one of
    `OnLog(Normal(mean, sd))`, a density of the logarithm, is `exp(mean)`.
    """

    mean: Any
    sd: Any

    def __check_init__(self):
        _numbers(mean=self.mean)
        _positive(sd=self.sd)

    def penalty(self, value):
        # The density is one of the natural value, hence the logarithm (1/value in the density).
        return ((jnp.log(value) - self.mean) / self.sd) ** 2 / 2 + jnp.log(value)

    def log_prob(self, value):
        return _where(value > 0, self, value, jnp.log(self.sd * math.sqrt(2 * math.pi)))

    def support(self):
        return 0.0, math.inf

    def sample(self, key, shape=()):
        return jnp.exp(self.mean + self.sd * jax.random.normal(key, shape, float))


class HalfNormal(AbstractPrior):
    """The positive half of a normal distribution around zero."""

    sd: Any

    def __check_init__(self):
        _positive(sd=self.sd)

    def penalty(self, value):
        return (value / self.sd) ** 2 / 2

    def log_prob(self, value):
        return _where(value >= 0, self, value, jnp.log(self.sd * math.sqrt(math.pi / 2)))

    def support(self):
        return 0.0, math.inf

    def sample(self, key, shape=()):
        return self.sd * jnp.abs(jax.random.normal(key, shape, float))


class Gamma(AbstractPrior):
    """The gamma distribution, of mean `shape / rate` and standard deviation `sqrt(shape) / rate`.

    For numbers that are positive; with `shape=1` it is the exponential distribution. With `shape`
    above one it keeps the number away from zero, below one the density at zero is infinite, and
    there is no most probable value.
    """

    shape: Any
    rate: Any

    def __check_init__(self):
        _positive(shape=self.shape, rate=self.rate)

    def penalty(self, value):
        power = self.shape - 1
        # An exponential distribution reaches zero, where the logarithm has no value.
        log = jnp.log(jnp.where(power == 0, jnp.ones_like(value), value))
        return self.rate * value - power * log

    def log_prob(self, value):
        shape = jnp.asarray(self.shape, jnp.result_type(float))
        constant = gammaln(shape) - shape * jnp.log(self.rate)
        return _where(value >= 0, self, value, constant.astype(jnp.result_type(value)))

    def support(self):
        return 0.0, math.inf

    def sample(self, key, shape=()):
        return jax.random.gamma(key, self.shape, shape, float) / self.rate


class Uniform(AbstractPrior):
    """Constant between `low` and `high`, which become bounds of the parameter."""

    low: Any
    high: Any

    def __check_init__(self):
        _numbers(low=self.low, high=self.high)
        traced = _compat.is_traced(self.low) or _compat.is_traced(self.high)
        if not traced and not np.all(np.asarray(self.low) < np.asarray(self.high)):
            raise ValueError(f"`low` must lie below `high`, but got {self.low} and {self.high}.")

    def penalty(self, value):
        return jnp.zeros_like(value)

    def log_prob(self, value):
        inside = (value >= self.low) & (value <= self.high)
        return _where(inside, self, value, jnp.log(self.high - self.low))

    def support(self):
        return self.low, self.high

    def sample(self, key, shape=()):
        return self.low + (self.high - self.low) * jax.random.uniform(key, shape, float)


class OnLog(AbstractPrior):
    """A density of the logarithm of the number instead of the number.

    There is no term for the change of variables: the most probable value is the one whose logarithm
    is most probable. PEtab calls this a prior on the parameter scale, `parameterScaleNormal` for
    instance (with `base=10` if the scale is log10).

    ```python
    import jax.numpy as jnp
    from sciml import fit

    within_a_decade = fit.priors.OnLog(fit.priors.Normal(-2.0, 0.5), base=10)
    assert jnp.isclose(within_a_decade.penalty(jnp.asarray(0.1)), 2.0)
    ```

    **Arguments:**

    - `prior`: the density of the logarithm, from this module or anything with `log_prob`.
    - `base`: of the logarithm, larger than one.

    Reference: Schmiester et al., PEtab, interoperable specification of parameter estimation problems
    in systems biology, PLOS Comput. Biol. 17 (2021), doi:10.1371/journal.pcbi.1008646.
    """

    prior: Any
    base: Any = math.e

    def __check_init__(self):
        if not hasattr(self.prior, "log_prob"):
            raise TypeError(
                f"`prior` must have a method `log_prob(value)`, as `fit.priors.Normal(mean, sd)` "
                f"has, but got {self.prior!r}."
            )
        _numbers(base=self.base)
        if not _compat.is_traced(self.base) and not np.all(np.asarray(self.base) > 1):
            raise ValueError(f"`base` must be larger than 1, as 10 or e, but got {self.base}.")

    def penalty(self, value):
        own = getattr(self.prior, "penalty", None)
        log = self._log(value)
        return -self.prior.log_prob(log) if own is None else own(log)

    def log_prob(self, value):
        positive = value > 0
        log = self._log(jnp.where(positive, value, jnp.ones_like(value)))
        return jnp.where(positive, self.prior.log_prob(log), -jnp.inf)

    def support(self):
        own = getattr(self.prior, "support", None)
        low, high = (-math.inf, math.inf) if own is None else own()
        base = jnp.asarray(self.base, jnp.result_type(float))
        return jnp.power(base, low), jnp.power(base, high)

    def _log(self, value):
        return jnp.log(value) / jnp.log(self.base)

    def sample(self, key, shape=()):
        return self.base ** self.prior.sample(key, shape)

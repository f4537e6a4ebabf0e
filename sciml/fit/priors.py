"""Prior densities of natural values. Anything else with `log_prob` works as well."""

import abc
import math
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array


class AbstractPrior(eqx.Module):
    """A density of independent numbers."""

    @abc.abstractmethod
    def penalty(self, value: Any) -> Array:
        """Minus the log density without its constant: what joins the loss."""

    @abc.abstractmethod
    def log_prob(self, value: Any) -> Array:
        """The normalised log density."""

    @abc.abstractmethod
    def support(self) -> tuple:
        """The interval on which the density is positive."""


def _positive(name: str, value):
    if not value > 0:
        raise ValueError(f"`{name}` must be positive, but got {value}.")


class Normal(AbstractPrior):
    """The normal distribution with `mean` and standard deviation `sd`."""

    mean: Any
    sd: Any

    def __check_init__(self):
        _positive("sd", self.sd)

    def penalty(self, value):
        return ((value - self.mean) / self.sd) ** 2 / 2

    def log_prob(self, value):
        return -self.penalty(value) - jnp.log(self.sd * math.sqrt(2 * math.pi))

    def support(self):
        return -math.inf, math.inf


class LogNormal(AbstractPrior):
    """The distribution of a number whose logarithm is normal with `mean` and `sd`."""

    mean: Any
    sd: Any

    def __check_init__(self):
        _positive("sd", self.sd)

    def penalty(self, value):
        # The density is one of the natural value, hence the logarithm (1/value in the density).
        return ((jnp.log(value) - self.mean) / self.sd) ** 2 / 2 + jnp.log(value)

    def log_prob(self, value):
        return -self.penalty(value) - jnp.log(self.sd * math.sqrt(2 * math.pi))

    def support(self):
        return 0.0, math.inf


class HalfNormal(AbstractPrior):
    """The positive half of a normal distribution around zero."""

    sd: Any

    def __check_init__(self):
        _positive("sd", self.sd)

    def penalty(self, value):
        return (value / self.sd) ** 2 / 2

    def log_prob(self, value):
        return -self.penalty(value) + jnp.log(math.sqrt(2 / math.pi) / self.sd)

    def support(self):
        return 0.0, math.inf


class Uniform(AbstractPrior):
    """Constant between `low` and `high`, which become bounds of the parameter."""

    low: Any
    high: Any

    def __check_init__(self):
        if not self.low < self.high:
            raise ValueError(f"`low` must lie below `high`, but got {self.low} and {self.high}.")

    def penalty(self, value):
        return jnp.zeros_like(value)

    def log_prob(self, value):
        return jnp.full_like(value, 0) - jnp.log(self.high - self.low)

    def support(self):
        return self.low, self.high

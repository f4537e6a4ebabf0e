"""Laws with heavier tails than the normal one: outliers pull less."""

import math
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax.scipy.special import betainc, gammaln

from ._laws import AbstractNoise, as_level, check_positive


class Laplace(AbstractNoise):
    """Additive noise with a density that falls exponentially: the sum of absolute residuals.

    **Arguments:**

    - `sigma`: the mean absolute deviation (the standard deviation is sqrt(2) times as large), a number, one
      for each observable, or a function as in `Normal`.
    """

    sigma: Any = eqx.field(default=None, converter=as_level)

    def __check_init__(self):
        check_positive("sigma", self.sigma)

    @property
    def level(self):
        return self.sigma

    def misfit(self, m, s, z):
        return jnp.abs(z - m) * jnp.exp(-s)

    def baseline(self, s, z):
        return s

    def information(self, m, s, z):
        return jnp.exp(-2 * s), jnp.zeros_like(s), jnp.ones_like(s)

    def curvature(self, m, s, z):
        # The parabola that touches the absolute value at the residual and lies above it.
        size = jnp.maximum(jnp.abs(z - m) * jnp.exp(-s), 1e-3)
        return jnp.exp(-2 * s) / size, jnp.zeros_like(s), jnp.ones_like(s)

    def constant(self, z):
        return jnp.full_like(z, math.log(2))

    def tail(self, m, s, z, side):
        u = side * (z - m) * jnp.exp(-s)
        # Below one half the logarithm of exp(-u) / 2, above it that of 1 - exp(u) / 2.
        low, high = jnp.maximum(u, 0), jnp.minimum(u, 0)
        return jnp.where(u > 0, low + math.log(2), -jnp.log1p(-jnp.exp(high) / 2))

    def variance(self, m, s):
        return 2 * jnp.exp(2 * s)


class StudentT(AbstractNoise):
    """Additive noise with tails of a power: measured = predicted + sigma * t.

    **Arguments:**

    - `sigma`: the scale, a number, one for each observable, or a function as in `Normal`.
    - `df`: degrees of freedom; 4 or 5 stand for a few outliers, infinity for the normal law.

    **Reference:** K. L. Lange, R. J. A. Little, J. M. G. Taylor, *Robust statistical modeling using the t
    distribution*, JASA 84 (1989), 881-896, doi 10.1080/01621459.1989.10478852.
    """

    sigma: Any = eqx.field(default=None, converter=as_level)
    df: Any = eqx.field(default=4.0, converter=as_level)

    def __check_init__(self):
        check_positive("sigma", self.sigma)
        check_positive("df", self.df)

    @property
    def level(self):
        return self.sigma

    def misfit(self, m, s, z):
        r = (z - m) * jnp.exp(-s)
        return (self.df + 1) / 2 * jnp.log1p(r**2 / self.df)

    def baseline(self, s, z):
        return s

    def information(self, m, s, z):
        df = self.df
        return (
            (df + 1) / (df + 3) * jnp.exp(-2 * s),
            jnp.zeros_like(s),
            jnp.broadcast_to(2 * df / (df + 3), s.shape),
        )

    def constant(self, z):
        df = self.df
        scale = gammaln(df / 2) - gammaln((df + 1) / 2) + jnp.log(df * math.pi) / 2
        return jnp.broadcast_to(scale, z.shape)

    def tail(self, m, s, z, side):
        u = -side * (z - m) * jnp.exp(-s)
        half = betainc(self.df / 2, jnp.asarray(0.5, u.dtype), self.df / (self.df + u**2)) / 2
        return -jnp.log(jnp.where(u > 0, 1 - half, half))

    def variance(self, m, s):
        heavy = self.df > 2
        factor = jnp.where(heavy, self.df / jnp.where(heavy, self.df - 2, 1), jnp.nan)
        return factor * jnp.exp(2 * s)

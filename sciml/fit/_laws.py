"""Laws of the measurement noise: what they have in common, and the normal ones."""

import abc
import math
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._compat import is_traced
from .._dtypes import default_float


def as_level(sigma):
    """`None`, a function, or an array: a list would be several parameters, an integer none."""
    if sigma is None or callable(sigma) or eqx.is_inexact_array(sigma):
        return sigma
    return jnp.asarray(np.asarray(sigma, float), default_float())


def check_positive(name: str, value):
    if value is not None and not callable(value) and not is_traced(value):
        numbers = np.asarray(value)
        if not np.all((numbers > 0) & np.isfinite(numbers)):
            raise ValueError(f"`{name}` must be positive and finite, but got {numbers}.")


class AbstractNoise(eqx.Module):
    """The density of a measured value z around a prediction, with a level s (the logarithm of sigma).

    A law of your own defines `level` and `misfit`, and whatever else is not as in a normal law. All methods work
    number by number.
    """

    residual_level: ClassVar[bool] = False  # may the level be left out and come from the residuals?

    @property
    @abc.abstractmethod
    def level(self) -> Any:
        """The width: a number, one for each observable, a function of the prediction, or `None`."""

    @abc.abstractmethod
    def misfit(
        self, m: Float[Array, "..."], s: Float[Array, "..."], z: Float[Array, "..."]
    ) -> Array:
        """Minus the log density of z at the location m, but for `baseline` and `constant`."""

    def baseline(self, s: Float[Array, "..."], z: Float[Array, "..."]) -> Array:
        """What the level adds, wherever the prediction is. Left out of the loss while the level is known."""
        return jnp.zeros_like(z)

    def nll(self, m, s, z) -> Array:
        """Minus the log density, but for `constant`."""
        return self.misfit(m, s, z) + self.baseline(s, z)

    def information(self, m, s, z) -> tuple[Array, Array, Array]:
        """The expected second derivatives of `nll` by m and m, m and s, s and s.

        By default those at the measured value, made positive.
        """
        return observed(self.nll, m, s, z)

    def curvature(self, m, s, z) -> tuple[Array, Array, Array]:
        """What steps of the optimiser are made of; by default the information."""
        return self.information(m, s, z)

    def constant(self, z: Float[Array, "..."]) -> Array:
        """What `nll` leaves out: what depends on z alone."""
        return jnp.zeros_like(z)

    def tail(self, m, s, z, side) -> Array:
        """Minus the logarithm of the probability to lie below z (`side` -1) or above it (1)."""
        raise ValueError(f"`{type(self).__name__}` noise can't have censored values.")

    def location(self, value: Float[Array, "..."]) -> Float[Array, "..."]:
        """The scale on which residuals are symmetric."""
        return value

    def natural(self, location: Float[Array, "..."]) -> Float[Array, "..."]:
        """The inverse of `location`."""
        return location

    def variance(self, m, s) -> Array:
        """Of a new measurement, on the scale of `location`."""
        return jnp.exp(2 * s)

    def check(self, values: np.ndarray, seen: np.ndarray) -> None:
        """Refuses data that the law can't produce, naming the rows."""


def observed(nll, m, s, z) -> tuple[Array, Array, Array]:
    """Second derivatives number by number, with the negative part cut off."""
    by_m = lambda m, s: jax.grad(lambda m: jnp.sum(nll(m, s, z)))(m)
    by_s = lambda m, s: jax.grad(lambda s: jnp.sum(nll(m, s, z)))(s)
    one, none = jnp.ones_like(m), jnp.zeros_like(m)
    mm, ms = (jax.jvp(by_m, (m, s), d)[1] for d in ((one, none), (none, one)))
    ss = jax.jvp(by_s, (m, s), (none, one))[1]
    mm, ss = jnp.maximum(mm, 0), jnp.maximum(ss, 0)
    limit = jnp.sqrt(mm * ss)
    return mm, jnp.clip(ms, -limit, limit), ss


class _AbstractNormal(AbstractNoise):
    residual_level: ClassVar[bool] = True

    def misfit(self, m, s, z):
        return ((z - m) * jnp.exp(-s)) ** 2 / 2

    def baseline(self, s, z):
        return s

    def information(self, m, s, z):
        return jnp.exp(-2 * s), jnp.zeros_like(s), jnp.full_like(s, 2)

    def constant(self, z):
        return jnp.full_like(z, math.log(2 * math.pi) / 2)

    def tail(self, m, s, z, side):
        return -jax.scipy.stats.norm.logcdf(-side * (z - m) * jnp.exp(-s))


class Normal(_AbstractNormal):
    """Additive noise: measured = predicted + sigma * normal.

    **Arguments:**

    - `sigma`: in the unit of the data: a number, or one for each observable; `None` estimates one common
      level from the residuals. Or a function of the predictions of all observables that returns the sigma of
      each, such as [`Combined`][sciml.fit.noise.Combined].
    """

    sigma: Any = eqx.field(default=None, converter=as_level)

    def __check_init__(self):
        check_positive("sigma", self.sigma)

    @property
    def level(self):
        return self.sigma


class LogNormal(_AbstractNormal):
    """Multiplicative noise: log(measured) = log(predicted) + sigma * normal.

    For positive quantities with a constant relative error; the model's curve is the median.

    **Arguments:**

    - `sigma`: as in `Normal`, but of the logarithm: 0.25 is about 25 percent. So is a sigma given
      with the data.
    - `base`: of the logarithm; with 10, sigma counts decades.
    """

    sigma: Any = eqx.field(default=None, converter=as_level)
    base: float = eqx.field(static=True, default=math.e)

    def __check_init__(self):
        check_positive("sigma", self.sigma)
        if not self.base > 1:
            raise ValueError(f"`base` must be larger than 1, but got {self.base}.")

    @property
    def level(self):
        return self.sigma

    def location(self, value):
        # A prediction that is not positive has no logarithm: nan, so that the point is rejected.
        positive = value > 0
        return jnp.where(positive, jnp.log(jnp.where(positive, value, 1)), jnp.nan) / math.log(
            self.base
        )

    def natural(self, location):
        return jnp.exp(location * math.log(self.base))

    def constant(self, z):
        # The density is one of the measured value, not of its logarithm.
        log_base = math.log(self.base)
        return super().constant(z) + z * log_base + math.log(log_base)

    def check(self, values, seen):
        refuse(
            seen & ~(values > 0),
            "Log-normal noise needs positive data, but there are values that are zero or negative in rows "
            "{rows} (counted from 0). Mark them as missing (nan) or use `fit.noise.Normal`.",
        )


class Combined(eqx.Module):
    """A sigma with a constant and a proportional part: sqrt(additive^2 + (relative * prediction)^2).

    ```python
    from sciml import fit

    noise = fit.noise.Normal(sigma=fit.noise.Combined(0.1, 0.05))
    free = {"noise.sigma.additive": fit.Free(1e-3, 1), "noise.sigma.relative": fit.Free(1e-3, 1)}
    ```

    **Arguments:**

    - `additive`, `relative`: numbers, or one for each observable.
    """

    additive: Any = eqx.field(converter=as_level)
    relative: Any = eqx.field(converter=as_level)

    def __call__(self, prediction: Float[Array, " observable"]) -> Float[Array, " observable"]:
        return jnp.sqrt(self.additive**2 + (self.relative * prediction) ** 2)


def refuse(bad: np.ndarray, message: str) -> None:
    rows = sorted({int(r) for r, _ in np.argwhere(bad)})
    if rows:
        raise ValueError(message.format(rows=", ".join(map(str, rows[:8]))))

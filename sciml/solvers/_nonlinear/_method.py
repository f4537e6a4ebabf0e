"""What the front functions need of a method, and what makes the same method one of Optimistix'."""

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import optimistix as optx

from ..._compat import is_traced
from . import _looking
from ._loop import Finish
from ._optimistix import ForOptimistix


class AbstractNonlinearMethod(ForOptimistix):
    """A method of [`root`][sciml.solvers.root], [`least_squares`][sciml.solvers.least_squares] or
    [`minimise`][sciml.solvers.minimise]."""

    ftol: eqx.AbstractVar[Any]
    xtol: eqx.AbstractVar[Any]

    def tolerances(self, dtype) -> tuple[Any, Any]:
        """`ftol` and `xtol`, by default what the precision allows."""
        eps = float(jnp.finfo(dtype).eps)
        ftol, xtol = self.default_tolerances(eps)
        ftol = ftol if self.ftol is None else self.ftol
        xtol = xtol if self.xtol is None else self.xtol
        return jnp.asarray(ftol, dtype), jnp.asarray(xtol, dtype)

    def default_tolerances(self, eps: float) -> tuple[float, float]:
        return eps**1.125, eps**0.75


class AbstractLeastSquaresMethod(AbstractNonlinearMethod, optx.AbstractLeastSquaresSolver):
    """A method for sums of squares."""

    def looking(self, fn):
        return _looking.at_residuals(fn, getattr(self, "geodesic", False))


class AbstractRootMethod(AbstractNonlinearMethod, optx.AbstractRootFinder):
    """A method for equations.

    - `derivatives`: whether it needs them.
    """

    derivatives: ClassVar[bool] = True

    def looking(self, fn):
        return _looking.at_equations(fn, self.derivatives)

    def default_tolerances(self, eps):
        return 0.0, eps**0.5

    def finish(self, state, box):
        here = state.here
        return Finish(state.code, jnp.max(jnp.abs(here.value)), jnp.zeros_like(here.x))


class AbstractMinimiser(AbstractNonlinearMethod, optx.AbstractMinimiser):
    """A method for functions.

    - `order`: of the derivatives it needs: 1 or 2.
    """

    order: eqx.AbstractClassVar[int]

    def looking(self, fn):
        return _looking.at_function(lambda x: fn(x)[0], self.order)


def check_tolerance(name: str, value):
    if value is None or is_traced(value):
        return
    if isinstance(value, str) or np.ndim(value) != 0:
        raise TypeError(f"`{name}` must be a number, but got {value!r}.")
    if not 0 <= value < 1:
        raise ValueError(f"`{name}` must lie in [0, 1), but got {value}.")

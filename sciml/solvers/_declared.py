"""What a user declares of the equations, the Jacobian and the mass matrix, brought into a method."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ._auto_switch import AutoSwitch
from ._jacobian import AbstractPattern, Banded, Dense
from ._method import AbstractMethod
from ._rosenbrock import AbstractRosenbrockMethod


def declared(method: Any, jac: Any, mass: Any) -> Any:
    """The method that uses `jac` and `mass`.

    **Raises:**

    `ValueError` if it has no use for them, `TypeError` for what can't be meant.
    """
    if jac is None and mass is None:
        return method
    stiff = method.stiff_method if isinstance(method, AutoSwitch) else method
    if not isinstance(stiff, AbstractRosenbrockMethod):
        raise ValueError(
            "`jac=` and `mass=` are for our stiff methods, such as `solvers.Rodas5P()`, and the default, but "
            f"`method` is {type(method).__name__}."
        )
    changes = {"jac": jac, "mass": mass}
    stiff = dataclasses.replace(stiff, **{k: v for k, v in changes.items() if v is not None})
    # An explicit method can't take steps of M y' = f.
    return AutoSwitch(stiff) if isinstance(method, AutoSwitch) and mass is None else stiff


def without_function(method: AbstractMethod) -> tuple[AbstractMethod, Callable | None]:
    """The method without the user's function for the Jacobian, and that function."""
    if isinstance(method, AutoSwitch):
        stiff, fn = without_function(method.stiff_method)
        return (method, None) if fn is None else (AutoSwitch(stiff), fn)
    jac = getattr(method, "jac", None)
    if not isinstance(jac, Dense | Banded) or jac.jac is None:
        return method, None
    return dataclasses.replace(method, jac=dataclasses.replace(jac, jac=None)), jac.jac


def check_declared(method: AbstractMethod, field, y0: jax.Array):
    """Shapes of a structure, a mass matrix and the user's function against the flat state."""
    part, n = method.parts[-1], y0.shape[0]
    mass, jac = part.mass, getattr(part, "jac", None)
    if mass is not None and mass.size != n:
        raise ValueError(
            f"`mass` is a matrix of {mass.size} rows, but the state has {n} real numbers: one row for each."
        )
    if isinstance(jac, AbstractPattern):
        jac.layout(n)
    if field.jacobian is not None:
        want = (jac.lower + jac.upper + 1, n) if isinstance(jac, Banded) else (n, n)
        got = jax.eval_shape(field.jacobian, jnp.zeros((), y0.dtype), y0).shape
        if got != want:
            raise ValueError(
                f"The function for the Jacobian must return shape {want}, but gave {got}."
            )

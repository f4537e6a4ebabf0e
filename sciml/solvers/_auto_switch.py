"""The default method: explicit or stiff, as the problem asks for."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from ._jacobian import Dense
from ._method import AbstractMethod
from ._rodas5p import Rodas5P
from ._rosenbrock import AbstractRosenbrockMethod
from ._tsit5 import Tsit5


_LARGEST = 512  # numbers in a state, up to which the default keeps a dense Jacobian at hand


class AutoSwitch(AbstractMethod):
    """`Tsit5`, and a stiff method as long as the problem is stiff: the default.

    It begins with `Tsit5` and goes over to the stiff method after ten steps that may have been held down by
    stability; back if steps have not become larger soon, or after four in a row where a bound of the Jacobian
    says that stability wouldn't hold them down (not with `Krylov`, which has no bound). It works inside every
    transformation, and derivatives take the same steps, smaller ones only where the state rests. Each change costs
    a few steps, and a first compilation is of both methods: where you know the problem, name one. States of more than
    512 numbers are left to `Tsit5`, unless there is a `jac`.

    **Arguments:**

    - `stiff_method`: a Rosenbrock method, such as `Rodas5P()` or `Rosenbrock23()`.
    """

    nonstiff_method: Tsit5
    stiff_method: AbstractRosenbrockMethod
    order: ClassVar[int] = 5
    error_order: ClassVar[int] = 5
    adaptive: ClassVar[bool] = True
    stiff: ClassVar[bool] = True
    shares_last_stage: ClassVar[bool] = True

    def __init__(self, stiff_method: Any = None):
        stiff_method = Rodas5P() if stiff_method is None else stiff_method
        if not isinstance(stiff_method, AbstractRosenbrockMethod):
            raise TypeError(
                "`AutoSwitch` goes over to a Rosenbrock method, such as `solvers.Rodas5P()`, but got "
                f"{stiff_method!r}."
            )
        if stiff_method.mass is not None:
            raise ValueError(
                "`AutoSwitch` can't take explicit steps of M y' = f, but its stiff method has a `mass`: pass "
                "that method itself, or `solve(mass=…)`."
            )
        self.nonstiff_method = Tsit5()
        self.stiff_method = stiff_method

    def for_state(self, y: PyTree) -> AbstractMethod:
        """Itself, or `Tsit5` for states that are too large for a dense Jacobian."""
        size = sum(x.size * (2 if jnp.iscomplexobj(x) else 1) for x in jax.tree.leaves(y))
        jac = self.stiff_method.jac
        dense = isinstance(jac, Dense) and jac.jac is None
        return self.nonstiff_method if dense and size > _LARGEST else self

    @property
    def stage_count(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        return max(part.stage_count for part in self.parts)

    @property
    def parts(self):
        return (self.nonstiff_method, self.stiff_method)

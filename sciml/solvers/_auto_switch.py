"""The default method: explicit or stiff, as the problem asks for."""

from typing import Any, ClassVar

from ._jacobian import Dense
from ._method import AbstractMethod
from ._rodas5p import Rodas5P
from ._rosenbrock import AbstractRosenbrockMethod
from ._tsit5 import Tsit5


_LARGEST = 512  # numbers in a state, up to which the default keeps a dense Jacobian at hand


class AutoSwitch(AbstractMethod):
    """`Tsit5`, and a stiff method as long as the problem is stiff: the default.

    It begins with `Tsit5`, goes over to the stiff method after ten steps that were held down by
    stability, and back as soon as a bound of the Jacobian says that stability wouldn't hold them
    down. It works inside every transformation, and derivatives take the same steps. Each change costs
    a few steps, and a first compilation is of both methods: where you know the problem, name one.

    States of more than 512 numbers are left to `Tsit5`, unless `jac` declares a structure.

    **Arguments:**

    - `stiff`: the stiff method, such as `Rodas5P()` or `Rosenbrock23()`.
    """

    nonstiff: Tsit5
    stiff_method: AbstractRosenbrockMethod
    order: ClassVar[int] = 5
    error_order: ClassVar[int] = 5
    stage_count: ClassVar[int] = 8
    adaptive: ClassVar[bool] = True
    stiff: ClassVar[bool] = True
    shares_last_stage: ClassVar[bool] = True

    def __init__(self, stiff: Any = None):
        stiff = Rodas5P() if stiff is None else stiff
        if not isinstance(stiff, AbstractRosenbrockMethod):
            raise TypeError(
                "`AutoSwitch` goes over to a Rosenbrock method, such as `solvers.Rodas5P()`, but got "
                f"{stiff!r}."
            )
        self.nonstiff = Tsit5()
        self.stiff_method = stiff

    def for_size(self, size: int) -> AbstractMethod:
        """Itself, or `Tsit5` for states that are too large for a dense Jacobian."""
        dense = isinstance(self.stiff_method.jac, Dense)
        return self.nonstiff if dense and size > _LARGEST else self

    @property
    def parts(self):
        return (self.nonstiff, self.stiff_method)

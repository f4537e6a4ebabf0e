"""What the engines need to know of a method.

A one-step method advances `dy/ds = F(s, y)` by one step and describes the step by *stages* `K`, an
array of shape `(stage, n)`, so that everything else is linear in them: the error estimate is
`error(K)`, and the solution inside the step is `y + weights(theta) @ K` for theta in [0, 1].
A new method is one short file that fills this in.
"""

import abc
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
from jaxtyping import Array


class Step(NamedTuple):
    """One step.

    - `y`: the state at its end; `stages`: as above.
    - `f`: the field at its end, if the method shares its last stage.
    - `bound`: of a method that uses the Jacobian: the function that bounds its spectral radius, for
      states of about the size it is given.
    """

    y: Array
    stages: Array
    f: Array | None = None
    bound: Callable[[Array], Array] | None = None


class AbstractMethod(eqx.Module):
    """A method of the engine: a one-step method, or several that take turns.

    - `order`: of the solution; `stage_count`: rows of `K`, at most.
    - `error_order`: the power of the step size with which the error estimate goes.
    - `adaptive`: whether there is an error estimate and a dense output.
    - `stiff`: whether large steps are stable for stiff problems.
    - `shares_last_stage`: whether the field at the end of a step is the first stage of the next.
    - `mass`: the mass matrix, of methods that take one.
    """

    order: eqx.AbstractClassVar[int]
    error_order: eqx.AbstractClassVar[int]
    stage_count: eqx.AbstractClassVar[int]
    adaptive: eqx.AbstractClassVar[bool]
    stiff: eqx.AbstractClassVar[bool]
    shares_last_stage: eqx.AbstractClassVar[bool]
    mass: ClassVar[Any] = None

    @property
    @abc.abstractmethod
    def parts(self) -> "tuple[AbstractOneStepMethod, ...]":
        """The one-step methods that take the steps."""


class AbstractOneStepMethod(AbstractMethod):
    """A one-step method."""

    @property
    def parts(self):
        return (self,)

    @abc.abstractmethod
    def step(self, field: Callable, s: Array, y: Array, h: Array, f: Array | None) -> Step:
        """One step as the adaptive loop takes it, fast to run.

        `f` is the field at its beginning if the method shares its last stage, else `None`.
        """

    @abc.abstractmethod
    def replay(self, field: Callable, s: Array, y: Array, h: Array) -> tuple[Array, Array]:
        """The same step as derivatives take it, quick to compile: `(y1, K)`.

        With `h = 0` it must give `y` and finite stages.
        """

    @abc.abstractmethod
    def advance(self, field: Callable, s: Array, y: Array, h: Array) -> Array:
        """The same step as loops with fixed steps take it: `y1` only."""

    @abc.abstractmethod
    def error(self, stages: Array) -> Array:
        """The estimated error of a step."""

    @abc.abstractmethod
    def weights(self, theta: Array) -> Array:
        """Weights of the stages at the fraction `theta` of a step, shape `(stage,)`."""

    @abc.abstractmethod
    def evaluations(self, steps: Array) -> Array:
        """How often so many steps evaluate the field, Jacobians not counted."""

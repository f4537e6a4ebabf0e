"""Our stiff methods as solvers of Diffrax."""

import functools
from collections.abc import Callable
from typing import Any, ClassVar

import diffrax
import jax
import jax.numpy as jnp

from ._field import ravel
from ._rosenbrock import AbstractRosenbrockMethod


class _Interpolation(diffrax.AbstractLocalInterpolation):
    method: AbstractRosenbrockMethod
    t0: Any
    t1: Any
    y0: Any
    stages: Any

    def evaluate(self, t0, t1=None, left=True):
        if t1 is not None:
            later, first = self.evaluate(t1), self.evaluate(t0)
            return jax.tree.map(lambda a, b: a - b, later, first)
        flat, unravel = ravel(self.y0, self.stages.dtype)
        size = self.t1 - self.t0
        # An unused row of a record of steps has no size.
        theta = (t0 - self.t0) / jnp.where(size == 0, jnp.ones_like(size), size)
        return unravel(flat + self.method.weights(theta) @ self.stages)


class RosenbrockSolver(diffrax.AbstractAdaptiveSolver):
    """One of our Rosenbrock methods for `diffrax.diffeqsolve`, where Diffrax does what `solve` doesn't: its events,
    adjoints, step size controllers and save options.

    Slower than `solve`: Diffrax's loop takes more time than a small step does.

    ```python
    import diffrax
    import jax.numpy as jnp
    from sciml import solvers

    term = diffrax.ODETerm(lambda t, y, k: -k * (y - jnp.cos(t)))
    sol = diffrax.diffeqsolve(
        term,
        solvers.RosenbrockSolver(solvers.Rodas5P()),
        0.0,
        2.0,
        None,
        jnp.array([1.0]),
        1e4,
        stepsize_controller=diffrax.PIDController(rtol=1e-4, atol=1e-6),
    )
    assert sol.stats["num_steps"] < 50
    ```

    **Arguments:**

    - `method`: such as `Rodas5P()`, with `jac` and `mass` if you like. A singular mass matrix needs a `y0` that
      fulfils the algebraic equations.
    """

    method: AbstractRosenbrockMethod
    term_structure: ClassVar = diffrax.AbstractTerm

    def __check_init__(self):
        if getattr(self.method.jac, "jac", None) is not None:
            raise ValueError(
                "`RosenbrockSolver` differentiates the field itself: leave the function for the Jacobian out of "
                "`jac`, or use `solvers.solve`."
            )

    @property
    def interpolation_cls(self) -> Callable[..., _Interpolation]:
        return functools.partial(_Interpolation, self.method)

    def order(self, terms):
        return self.method.order

    def error_order(self, terms):
        return self.method.error_order

    def init(self, terms, t0, t1, y0, args):
        return None

    def step(self, terms, t0, t1, y0, args, solver_state, made_jump):
        del solver_state, made_jump
        dtype = jax.tree.leaves(y0)[0].real.dtype
        flat, unravel = ravel(y0, dtype)
        size = jnp.asarray(t1 - t0)
        control = terms.contr(t0, t1)

        def field(s, y):
            # on Diffrax's own time, which always runs forwards
            moved = terms.vf_prod(s, unravel(y), args, control)
            return ravel(moved, dtype, like=y0)[0] / size.astype(dtype)

        step = self.method.step(field, jnp.asarray(t0), flat, size, None)
        error = unravel(self.method.error(step.stages))
        dense = {"y0": y0, "stages": step.stages}
        return unravel(step.y), error, dense, None, diffrax.RESULTS.successful

    def func(self, terms, t0, y0, args):
        return terms.vf(t0, y0, args)

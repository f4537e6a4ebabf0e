"""Our methods as solvers of Optimistix.

Each method is one: `optx.root_find(fn, solvers.Newton(), y0)`, `optx.least_squares(fn, solvers.LevenbergMarquardt(),
y0)`, `optx.minimise(fn, solvers.TrustRegionNewton(), y0)` and what Optimistix makes of these. A step of Optimistix is
one evaluation of ours. Bounds are given as `options={"lower": ..., "upper": ...}`; the derivatives of a
solution that Optimistix takes know nothing of them.
"""

import abc
from collections.abc import Callable
from typing import Any, TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import optimistix as optx
from jax.flatten_util import ravel_pytree

from ._bounds import one_side
from ._loop import AbstractIteration, advance, begin, Box, CONVERGED, Finish, GOING, Looking, State


class ForOptimistix(AbstractIteration, optx.AbstractIterativeSolver):
    """What Optimistix asks of a solver, in terms of a method's own functions."""

    if TYPE_CHECKING:
        # Not arguments, though Optimistix declares them as fields.
        rtol: Any = eqx.field(init=False)
        atol: Any = eqx.field(init=False)
        norm: Any = eqx.field(init=False)
        xtol: Any = eqx.field(init=False)
    else:

        @property
        def rtol(self):
            return 1e-8 if self.xtol is None else self.xtol

        @property
        def atol(self):
            # The `norm` that Optimistix takes for zero where the method looks for a root by way of a minimum.
            return 1e-12

        @property
        def norm(self):
            return _sum_of_squares  # smooth, as what is minimised to find a root must be

    @abc.abstractmethod
    def finish(self, state: State, box: Box) -> Finish:
        """Looks at the end of the iteration."""

    @abc.abstractmethod
    def looking(self, fn: Callable) -> Looking:
        """The function of flat vectors as the loop sees it."""

    def _problem(self, fn, y, args, options):
        x, unravel = ravel_pytree(y)
        flat = lambda x: ravel_pytree(fn(unravel(x), args)[0])[0].astype(x.dtype)
        options = options or {}
        if not {"lower", "upper"} & options.keys():
            inf = jnp.full_like(x, jnp.inf)
            return x, unravel, self.looking(flat), Box(-inf, inf, False)
        side = lambda name, default: ravel_pytree(one_side(name, options.get(name), y, default))[0]
        box = Box(side("lower", -jnp.inf), side("upper", jnp.inf), True)
        return x, unravel, self.looking(flat), box

    def init(self, fn, y, args, options, f_struct, aux_struct, tags):
        x, _, look, _ = self._problem(fn, y, args, options)
        return begin(self, look, x, 0, False)

    def step(self, fn, y, args, options, state, tags):
        _, unravel, look, box = self._problem(fn, y, args, options)
        state = advance(self, look, state, box)
        y = unravel(state.here.x)
        return y, state, fn(y, args)[1]

    def terminate(self, fn, y, args, options, state, tags):
        _, _, _, box = self._problem(fn, y, args, options)
        done = state.code != GOING
        code = jax.lax.cond(
            done, lambda: self.finish(state, box).code, lambda: jnp.full_like(state.code, CONVERGED)
        )
        ok = code == CONVERGED
        bad = optx.RESULTS.nonlinear_divergence
        return done, optx.RESULTS.where(ok, optx.RESULTS.successful, bad)

    def postprocess(self, fn, y, aux, args, options, state, tags, result):
        return y, aux, {"evaluations": state.evaluations}


def _sum_of_squares(tree):
    return sum(jnp.sum(x**2) for x in jax.tree.leaves(tree))

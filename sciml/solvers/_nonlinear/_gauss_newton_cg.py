"""Least squares with many unknowns: Gauss-Newton steps by products with the Jacobian."""

from typing import Any

import equinox as eqx

from . import _looking
from ._method import AbstractLeastSquaresMethod
from ._newton_cg import NewtonCG


class GaussNewtonCG(AbstractLeastSquaresMethod):
    """Gauss-Newton steps in a trust region, by conjugate gradients on products with `J` and its transpose.

    For many unknowns: the Jacobian is never formed, memory is some vectors. A product costs about three evaluations.
    The condition number of the problem counts squared, and unknowns are not scaled: bring those of very different sizes
    to a common one, and prefer [`LevenbergMarquardt`][sciml.solvers.LevenbergMarquardt] for up to some hundred.
    `fn` must be differentiable in reverse.

    ```python
    import jax.numpy as jnp
    from sciml import solvers

    fn = lambda y, data: jnp.concatenate([y + 0.1 * y**3 - data, jnp.diff(y)])
    sol = solvers.least_squares(fn, jnp.zeros(10_000), 1.1, method=solvers.GaussNewtonCG())
    assert jnp.allclose(sol.value, 1.0, atol=1e-3)
    ```

    **Arguments:**

    - `ftol`, `xtol`: as for [`LevenbergMarquardt`][sciml.solvers.LevenbergMarquardt].
    - `max_products`: in a step at most.

    **Reference:** T. Steihaug, *The conjugate gradient method and trust regions in large scale optimization*, SIAM J.
    Numer. Anal. 20 (1983), 626-637, doi 10.1137/0720042.
    """

    ftol: Any = None
    xtol: Any = None
    max_products: int = eqx.field(static=True, default=200)

    @property
    def _inner(self) -> NewtonCG:
        return NewtonCG(self.ftol, self.xtol, self.max_products)

    def begin(self, x0, m):
        return self._inner.begin(x0, m)

    def respond(self, state, there, linear, box):
        return self._inner.respond(state, there, linear, box)

    def finish(self, state, box):
        return self._inner.finish(state, box)

    def looking(self, fn):
        return _looking.at_products(fn)

"""Anderson acceleration of fixed-point iterations."""

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._indexing import put
from ._loop import Answer, CONVERGED, GOING, STALLED
from ._method import AbstractRootMethod
from ._triangle import back, triangle


class _Memory(eqx.Module):
    """Differences of the residuals and of the images between iterates, newest in place `count % depth`."""

    residuals: Float[Array, "depth n"]
    images: Float[Array, "depth n"]
    count: Array
    size: Array


class Anderson(AbstractRootMethod):
    """Anderson acceleration: the iteration `y <- y + fn(y)`, extrapolated by the last few of its steps.

    Without derivatives, with one evaluation a step: for many unknowns and a map that contracts, or nearly does.
    Used by [`fixed_point`][sciml.solvers.fixed_point] for more than 64 unknowns. Where
    the map is not a contraction it may not converge: use [`Newton`][sciml.solvers.Newton] then.

    ```python
    import jax.numpy as jnp
    from sciml import solvers

    sol = solvers.fixed_point(
        lambda y, _: jnp.cos(y), jnp.linspace(0.0, 1.0, 5), method=solvers.Anderson()
    )
    assert jnp.allclose(sol.value, 0.7390851332151607)
    ```

    **Arguments:**

    - `depth`: how many steps are remembered.
    - `xtol`: the residual, relative to each unknown, at which the iteration ends; by default eps^(3/4).

    **Reference:** H. F. Walker, P. Ni, *Anderson acceleration for fixed-point iterations*, SIAM J. Numer. Anal. 49
    (2011), 1715-1735, doi 10.1137/10078356X.
    """

    depth: int = eqx.field(static=True, default=5)
    derivatives: ClassVar[bool] = False
    ftol: Any = None
    xtol: Any = None

    def __check_init__(self):
        if self.depth < 1:
            raise ValueError(f"`depth` must be at least 1, but got {self.depth}.")

    def begin(self, x0, m):
        none = jnp.zeros((self.depth, x0.shape[0]), x0.dtype)
        return _Memory(none, none, jnp.zeros((), jnp.result_type(int)), jnp.abs(x0))

    def respond(self, state, there, linear, box):
        s, here = state.memory, state.here
        ftol, xtol = self.tolerances(there.x.dtype)
        eps = jnp.finfo(there.x.dtype).eps
        # Far worse than before is lost: start afresh from the best point, without memory.
        wild = ~there.fine | (~state.first & (there.loss > 1e4 * here.loss))
        accept = there.fine & ~wild
        x, f = jnp.where(accept, there.x, here.x), jnp.where(accept, there.value, here.value)

        k = s.count % self.depth
        turn, image = there.value - here.value, there.value + there.x - here.value - here.x
        learn = accept & ~state.first
        residuals = jnp.where(learn, put(s.residuals, k, turn), s.residuals)
        images = jnp.where(learn, put(s.images, k, image), s.images)
        residuals, images = (jnp.where(wild | state.first, 0, v) for v in (residuals, images))
        count = jnp.where(wild | state.first, 0, s.count + 1)

        # min |f - dF^T gamma|, with so much damping as rounding needs.
        lengths = jnp.sqrt(jnp.sum(residuals**2, axis=1))
        unit = jnp.where(lengths > 0, lengths, 1)
        rows = (residuals / unit[:, None]).T
        damping = jnp.sqrt(eps) * jnp.diag(jnp.ones_like(unit))
        left = jnp.concatenate([rows, damping])
        right = jnp.concatenate([f, jnp.zeros_like(unit)])
        t = triangle(jnp.concatenate([left, right[:, None]], axis=1))
        gamma = back(t[: self.depth, : self.depth], t[: self.depth, self.depth]) / unit
        step = f - jnp.sum(images * gamma[:, None], axis=0)
        step = jnp.where(wild, f / 2 ** (1 + state.failures.astype(f.dtype)), step)
        step = jnp.where(jnp.all(jnp.isfinite(step)), step, f)

        size = jnp.maximum(s.size, jnp.where(accept, jnp.abs(x), 0))
        near = jnp.all(jnp.abs(f) <= xtol * jnp.abs(x) + eps**0.875 * size)
        converged = accept & (near | (jnp.max(jnp.abs(f)) <= ftol))
        code = jnp.where(converged, CONVERGED, jnp.where(state.failures > 30, STALLED, GOING))
        return Answer(accept, box.land(x, step), _Memory(residuals, images, count, size), code)

    def default_tolerances(self, eps):
        return 0.0, eps**0.75

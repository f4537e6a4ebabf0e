"""Broyden's method: a Jacobian that is learnt on the way."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..._compat import varying_like
from ._loop import Answer, CONVERGED, GOING, STALLED
from ._method import AbstractRootMethod


class _Memory(eqx.Module):
    """- `inverse`: of the Jacobian, exact if `exact`. `t`: the length of the step. `refresh`: whether the trial is
    the point reached, looked at again for its Jacobian. `last`: whether the trial is the end of the last step.
    """

    inverse: Float[Array, "n n"]
    step: Array
    t: Array
    size: Array
    exact: Array
    refresh: Array
    last: Array


class Broyden(AbstractRootMethod):
    """Broyden's method: one exact Jacobian, kept up to date by rank-one corrections.

    For functions whose Jacobian is dear: it is computed at the start, and again only where steps fail. Takes more
    steps than [`Newton`][sciml.solvers.Newton], each of them cheap.

    ```python
    import jax.numpy as jnp
    from sciml import solvers

    fn = lambda y, _: y**3 + jnp.roll(y, 1) - 2.0
    sol = solvers.root(fn, jnp.full(4, 2.0), method=solvers.Broyden())
    assert jnp.allclose(sol.value, 1.0)
    ```

    **Arguments:** `ftol`, `xtol` as for [`Newton`][sciml.solvers.Newton].

    **Reference:** C. G. Broyden, *A class of methods for solving nonlinear simultaneous equations*, Math. Comp. 19
    (1965), 577-593, doi 10.1090/S0025-5718-1965-0198670-6.
    """

    ftol: Any = None
    xtol: Any = None

    def begin(self, x0, m):
        n, no = x0.shape[0], jnp.asarray(False)
        one = jnp.ones((), x0.dtype)
        square = jnp.zeros((n, n), x0.dtype)
        return _Memory(square, jnp.zeros_like(x0), one, jnp.abs(x0), no, jnp.asarray(True), no)

    def respond(self, state, there, linear, box):
        s, here = state.memory, state.here
        dtype = there.x.dtype
        eps = jnp.finfo(dtype).eps
        ftol, xtol = self.tolerances(dtype)
        falls = there.loss <= jnp.where(s.last, 1, 1 - 2e-4 * s.t) * here.loss
        accept = there.fine & (s.refresh | falls)
        x, value = jnp.where(accept, there.x, here.x), jnp.where(accept, there.value, here.value)

        def exact():
            identity = varying_like(jnp.eye(there.x.shape[0], dtype=dtype), there.x)
            return jnp.linalg.inv(jax.vmap(linear, out_axes=1)(identity))

        def learnt():
            moved, turn = there.x - here.x, there.value - here.value
            image = s.inverse @ turn
            product = jnp.sum(moved * image)
            usable = accept & (jnp.abs(product) > eps * jnp.sum(moved**2))
            row = moved @ s.inverse / jnp.where(usable, product, 1)
            return s.inverse + jnp.where(usable, (moved - image)[:, None] * row[None], 0)

        inverse = jax.lax.cond(s.refresh, exact, learnt)
        newton = -(inverse @ value)
        sound = jnp.all(jnp.isfinite(newton))
        t = jnp.where(accept, 1, s.t / 2)
        # Two failures in a row: look at the Jacobian again, unless that is what led here.
        refresh = ~s.exact & ~s.refresh & ~accept & (t < 0.3)
        t = jnp.where(refresh, 1, t).astype(dtype)
        size = jnp.maximum(s.size, jnp.where(accept, jnp.abs(x), 0))
        near = accept & sound & jnp.all(jnp.abs(newton) <= xtol * jnp.abs(x) + eps * size)
        solved = accept & (jnp.max(jnp.abs(value)) <= ftol)
        lost = ~sound | (~accept & (t < 1e-8))
        code = jnp.where(solved | s.last, CONVERGED, jnp.where(lost, STALLED, GOING))
        trial = jnp.where(refresh, x, box.land(x, t * jnp.where(sound, newton, 0)))
        is_exact = s.refresh | (s.exact & ~accept)
        memory = _Memory(inverse, newton, t, size, is_exact, refresh, near)
        return Answer(accept, trial, memory, code)

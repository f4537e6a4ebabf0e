"""Variable projection: unknowns in which the residuals are linear are eliminated.

With residuals `r(a, c) = r(a, 0) + B(a) c` the best `c` for each `a` is the solution of a linear problem, and what is
left to be minimised depends on `a` alone: fewer unknowns, no start for `c`, fewer steps, and often fewer wrong minima.
Its Jacobian is that of `r` by `a`, less what `B` can make up for (Kaufman's approximation, whose gradient is exact).

**References:** G. H. Golub, V. Pereyra, *The differentiation of pseudo-inverses and nonlinear least squares problems
whose variables separate*, SIAM J. Numer. Anal. 10 (1973), 413-432, doi 10.1137/0710036. L. Kaufman, *A variable
projection method for solving separable nonlinear least squares problems*, BIT 15 (1975), 49-57,
doi 10.1007/BF01932995.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ..._compat import is_traced, varying_like
from .._norms import norm
from ._bounds import two_sides
from ._loop import all_finite, Box, Look
from ._quadratic import Rows


def linear_places(linear, y0, bounds) -> Bool[np.ndarray, " n"]:
    """Which of the flat unknowns are linear.

    **Arguments:**

    - `linear`: a function that picks leaves of `y0`, as for `eqx.tree_at`, or booleans structured as `y0`.
    - `bounds`: as the user gave them.

    **Raises:**

    `TypeError` and `ValueError` for a choice that can't be meant, or bounds on what is linear.
    """
    mask = linear
    if callable(linear):
        nothing = jax.tree.map(lambda _: False, y0)
        try:
            mask = eqx.tree_at(linear, nothing, replace_fn=lambda _: True)
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise ValueError(
                "`linear` must pick leaves of `y0`, such as `lambda y: y['height']`, or be booleans structured as "
                f"`y0`: {error}"
            ) from error
    if isinstance(mask, list) and jax.tree_util.all_leaves([y0]):
        mask = np.asarray(mask)
    spread = lambda m, part: jax.tree.map(lambda y: _boolean(m, y), part)
    try:
        mask = jax.tree.map(spread, mask, y0)
    except ValueError as error:
        raise ValueError(
            f"`linear` must be booleans structured as `y0`, {jax.tree.structure(y0)}: {error}"
        ) from error
    places = np.concatenate([m.ravel() for m in jax.tree.leaves(mask)])
    if places.all() or not places.any():
        which = "all" if places.all() else "none"
        raise ValueError(
            f"`linear` picks {which} of the unknowns: leave it out, or leave some to be nonlinear."
        )
    # Not as traced constants, which hide their values.
    with jax.ensure_compile_time_eval():
        for side in two_sides(bounds, y0) if bounds is not None else ():
            for bound, chosen in zip(jax.tree.leaves(side), jax.tree.leaves(mask), strict=True):
                if chosen.any() and (is_traced(bound) or np.isfinite(bound[chosen]).any()):
                    raise ValueError(
                        "Unknowns picked by `linear` can't have bounds: make theirs infinite, as constants under "
                        "`jax.jit`, or take them out of `linear`."
                    )
    return places


def _boolean(mask, y) -> np.ndarray:
    mask = np.asarray(mask)
    if mask.dtype != bool or mask.shape not in ((), np.shape(y)):
        raise ValueError(
            f"expected a boolean, or an array of them of shape {np.shape(y)}, but got {mask!r}."
        )
    return np.broadcast_to(mask, np.shape(y))


class Separation(eqx.Module):
    """Residuals of flat unknowns, some of which they are linear in.

    A look at the others has the best values of the linear ones as its `value`, and behind them how far the residuals
    are from being linear.
    """

    residuals: Callable[[Array], Array]
    places: bytes = eqx.field(static=True)

    def _places(self):
        linear = np.frombuffer(self.places, bool)
        return np.flatnonzero(~linear), np.flatnonzero(linear)

    def join(self, a: Float[Array, " k"], c: Float[Array, " p"]) -> Float[Array, " n"]:
        others, linear = self._places()
        order = np.argsort(np.concatenate([others, linear]))
        return jnp.concatenate([a, c])[order]

    def nonlinear(self, x: Float[Array, " n"]) -> Float[Array, " k"]:
        return x[self._places()[0]]

    def box(self, box: Box) -> Box:
        return Box(self.nonlinear(box.lower), self.nonlinear(box.upper), box.real)

    def shape(self, x0) -> jax.ShapeDtypeStruct:
        """Of what `look` sees."""
        return jax.ShapeDtypeStruct((len(self._places()[1]) + 1,), x0.dtype)

    def look(self, a: Float[Array, " k"]) -> tuple[Look, Rows]:
        p, eps = len(self._places()[1]), jnp.finfo(a.dtype).eps
        none = varying_like(jnp.zeros((p,), a.dtype), a)
        at = lambda c: (r := self.residuals(self.join(a, c)), r)
        b, start = jax.jacfwd(at, has_aux=True)(none)
        lengths = jnp.max(jnp.abs(b), axis=0)
        lengths = jnp.where(lengths > 0, lengths, 1)
        # Damped by rounding, so that columns that coincide don't matter.
        damping = eps * jnp.diag(none + 1)
        q, t = jnp.linalg.qr(jnp.concatenate([b / lengths[None], damping]))
        q = q[: b.shape[0]]
        c = -jax.scipy.linalg.solve_triangular(t, start @ q) / lengths

        at = lambda a: (r := self.residuals(self.join(a, c)), r)
        rows, r = jax.jacfwd(at, has_aux=True)(a)
        rows = rows - q @ (q.T @ rows)
        size = norm(start) + norm(jnp.abs(b) @ jnp.abs(c))
        bent = norm(r - start - b @ c) / jnp.where(size > 0, size, 1)
        total = jnp.sum(r**2) / 2
        value = jnp.concatenate([c, bent[None]])
        return Look(a, total, value, total, all_finite((c, r, rows, total))), Rows(
            rows, r, size=size
        )

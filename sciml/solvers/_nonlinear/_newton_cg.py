"""Newton's method for many unknowns: conjugate gradients on Hessian-vector products in a trust region."""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._jacobian import AbstractJacobian
from .._norms import norm
from ._conjugate_gradients import lowest_curvature
from ._loop import Answer, CONVERGED, Finish, GOING, STALLED, UNBOUNDED
from ._method import AbstractMinimiser
from ._trust_region import judge, new_radius


class _Memory(eqx.Module):
    step: Array
    bent: Array
    gradient: Array
    radius: Array
    predicted: Array
    inside: Array
    steepness: Array


class NewtonCG(AbstractMinimiser):
    """Newton's method in a trust region by conjugate gradients on Hessian-vector products (Steihaug, Toint).

    For many unknowns: the Hessian is never formed. Where the gradient vanishes, some more products look for negative
    curvature, so that saddle points are left. The linear system is solved the more accurately the smaller the
    gradient is, and up to the radius or a direction of negative curvature. Unknowns are not scaled: bring those
    of very different sizes to a common one. Bounds are kept by projection: prefer
    [`LBFGS`][sciml.solvers.LBFGS] if many are active.

    ```python
    import jax.numpy as jnp
    from sciml import solvers

    chain = lambda y, _: jnp.sum((y[1:] - y[:-1]) ** 2) + jnp.sum((y - 1.0) ** 4)
    sol = solvers.minimise(chain, jnp.zeros(500).at[0].set(1.0), method=solvers.NewtonCG())
    assert jnp.allclose(sol.value, 1.0, atol=0.05)
    ```

    **Arguments:**

    - `ftol`, `xtol`: as for [`TrustRegionNewton`][sciml.solvers.TrustRegionNewton].
    - `max_products`: Hessian-vector products in a step at most.
    - `hess`: the structure of the Hessian, if it has one, such as [`Banded`][sciml.solvers.Banded] or
      [`Sparse`][sciml.solvers.Sparse]: then a few derivatives give all of it, which pays where derivatives are dear.

    **Reference:** T. Steihaug, *The conjugate gradient method and trust regions in large scale optimization*, SIAM J.
    Numer. Anal. 20 (1983), 626-637, doi 10.1137/0720042.
    """

    ftol: Any = None
    xtol: Any = None
    max_products: int = eqx.field(static=True, default=200)
    hess: Any = None
    order: ClassVar[int] = 2

    def __check_init__(self):
        if not isinstance(self.hess, AbstractJacobian | None):
            raise TypeError(
                f"`hess` must be a structure such as `solvers.Banded(1, 1)`, but got {self.hess!r}."
            )

    def begin(self, x0, m):
        none, zero = jnp.zeros_like(x0), jnp.zeros((), x0.dtype)
        return _Memory(none, none, none, zero, zero, jnp.asarray(False), zero)

    def respond(self, state, there, linear, box):
        s = state.memory
        if self.hess is not None:
            linear = self.hess.at(linear, None, there.x, None).times
        dtype = there.x.dtype
        eps = jnp.finfo(dtype).eps
        ftol, xtol = self.tolerances(dtype)
        verdict = judge(state, there, s.predicted)
        accept = verdict.accept
        x = jnp.where(accept, there.x, state.here.x)
        length = norm(s.step)
        radius = new_radius(s.radius, length, verdict, there.fine)
        g = there.value

        def first_radius():
            # As far as steepest descent leads, or as the start is from zero.
            bend = jnp.sum(g * linear(g))
            descent = norm(g) ** 3 / jnp.where(bend > 0, bend, 1)
            size = jnp.maximum(norm(x), jnp.where(bend > 0, descent, 0))
            return jnp.where(size > 0, size, 1)

        radius = jax.lax.cond(state.first, first_radius, lambda: radius)
        steepness = jnp.where(state.first, norm(g), s.steepness)

        def path():
            p, inside = self._path(linear, x, g, radius, steepness, box)
            return p, linear(p), there.value, inside

        def shorter():
            # Along the step that failed: its end is known to be too far.
            t = jnp.minimum(radius / jnp.where(length > 0, length, 1), 1)
            return t * s.step, t * s.bent, s.gradient, jnp.zeros_like(s.inside)

        p, bent, gradient, inside = jax.lax.cond(accept, path, shorter)
        predicted = -jnp.sum(p * gradient) - jnp.sum(p * bent) / 2
        level = verdict.blind & s.inside & inside & (predicted > s.predicted / 4)
        small = (
            ~state.first & s.inside & (s.predicted <= ftol * verdict.noise / (4 * eps)) & there.fine
        )
        short = accept & inside & (norm(p) <= xtol * norm(x))
        still = accept & (norm(p) <= 0)
        stuck = ~accept & (radius <= eps * norm(x))
        code = jnp.where(stuck, STALLED, GOING)
        ended = level | small | short | still

        def look_around():
            other = self._way_down(linear, x, gradient, radius, box)
            bent = linear(other)
            return other, bent, -jnp.sum(other * gradient) - jnp.sum(other * bent) / 2

        # A saddle point looks like a minimum but for directions that the gradient doesn't show.
        other = jax.lax.cond(ended & there.fine, look_around, lambda: (0 * p, bent, 0 * predicted))
        leaves = ended & (other[2] > 0)
        p, bent, predicted = jax.tree.map(
            lambda a, b: jnp.where(leaves, a, b), other, (p, bent, predicted)
        )
        inside = inside & ~leaves
        code = jnp.where(ended & ~leaves, CONVERGED, jnp.where(leaves, GOING, code))
        code = jnp.where(there.loss == -jnp.inf, UNBOUNDED, code)
        memory = _Memory(p, bent, gradient, radius, predicted, inside, steepness)
        return Answer(accept, box.land(x, p), memory, code)

    def _way_down(self, linear, x, g, radius, box):
        """A step along negative curvature, or none."""
        free = ~box.blocked(x, g)
        v, low, top = lowest_curvature(
            lambda v: jnp.where(free, linear(v), 0), free.astype(x.dtype)
        )
        found = (low < -jnp.sqrt(jnp.finfo(x.dtype).eps) * top) & jnp.isfinite(low)
        p = jnp.where(found, radius, 0) * jnp.where(jnp.sum(v * g) > 0, -v, v)
        if not box.real:
            return p
        # Whichever side has room.
        sides = [jnp.clip(side, box.lower - x, box.upper - x) for side in (p, -p)]
        return jnp.where(norm(sides[0]) >= norm(sides[1]) / 2, *sides)

    def _path(self, linear, x, g, radius, steepness, box):
        """The step, and whether it ended inside the radius. What would leave the box goes to its bound, and the rest
        is computed anew."""
        fixed = box.blocked(x, g)
        if not box.real:
            return _steihaug(linear, g, fixed, radius, steepness, self.max_products)
        low, high = box.lower - x, box.upper - x

        def body(carry):
            held, fixed, _, _, _, k = carry
            slope = jnp.where(fixed, 0, g + linear(held))
            p, inside = _steihaug(linear, slope, fixed, radius, steepness, self.max_products)
            p = jnp.where(fixed, held, p)
            out = ~fixed & ((p < low) | (p > high))
            held = jnp.where(out, jnp.clip(p, low, high), held)
            return held, fixed | out, p, inside, jnp.any(out), k + 1

        none, count = 0 * g, (0 * jnp.sum(g)).astype(jnp.result_type(int))
        start = (none, fixed, none, count > 0, count == 0, count)
        end = jax.lax.while_loop(lambda c: c[4] & (c[5] < 20), body, start)
        p = jnp.clip(end[2], low, high)
        # Unless steepest descent, as far as the box lets it, promises more.
        bend = jnp.sum(g * linear(g))
        size = jnp.sum(g**2)
        t = jnp.where(bend > 0, size / jnp.where(bend > 0, bend, 1), jnp.inf)
        t = jnp.minimum(t, radius / jnp.sqrt(jnp.where(size > 0, size, 1)))
        plain = jnp.clip(-t * g, low, high)
        promise = lambda p: -jnp.sum(p * g) - jnp.sum(p * linear(p)) / 2
        return jnp.where(promise(p) >= promise(plain), p, plain), end[3]

    def finish(self, state, box):
        scale = jnp.abs(state.here.loss) + jnp.finfo(state.here.x.dtype).tiny
        return Finish(state.code, state.memory.predicted / scale, jnp.zeros_like(state.here.x))


def _steihaug(product, gradient, fixed, radius, steepness, max_products):
    """The step, and whether the system was solved inside the radius."""
    size = norm(gradient)
    tolerance = jnp.minimum(0.1, jnp.sqrt(size / jnp.where(steepness > 0, steepness, 1))) * size

    def boundary(p, d):
        a, b, c = jnp.sum(d**2), jnp.sum(p * d), jnp.sum(p**2) - radius**2
        root = jnp.sqrt(jnp.maximum(b**2 - a * c, 0))
        return (root - b) / jnp.where(a > 0, a, 1)

    def cond(carry):
        _, r, _, done, _, k = carry
        return ~done & (norm(r) > tolerance) & (k < max_products)

    def body(carry):
        p, r, d, _, _, k = carry
        hd = jnp.where(fixed, 0, product(d))
        bend, rr = jnp.sum(d * hd), jnp.sum(r**2)
        alpha = rr / jnp.where(bend > 0, bend, 1)
        leaves = (bend <= 0) | (norm(p + alpha * d) >= radius)
        alpha = jnp.where(leaves, boundary(p, d), alpha)
        new = r + alpha * hd
        d_new = -new + jnp.sum(new**2) / jnp.where(rr > 0, rr, 1) * d
        return p + alpha * d, new, d_new, leaves, leaves, k + 1

    zero = 0 * jnp.sum(gradient)
    no = zero > 0
    start = (0 * gradient, gradient, -gradient, no, no, zero.astype(jnp.result_type(int)))
    p, _, _, _, left, _ = jax.lax.while_loop(cond, body, start)
    return jnp.where(
        jnp.all(jnp.isfinite(p)), p, -gradient * radius / jnp.where(size > 0, size, 1)
    ), ~left

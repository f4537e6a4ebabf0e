"""Newton's method in a trust region, by the eigenvalues of the exact Hessian."""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from ..._compat import varying_like
from .._norms import norm
from ._loop import Answer, CONVERGED, Finish, GOING, SADDLE, STALLED, UNBOUNDED
from ._method import AbstractMinimiser
from ._quadratic import Quadratic
from ._trust_region import judge, new_radius


class _Memory(eqx.Module):
    """- `matrix`, `gradient`: at the point reached. `values`, `vectors`: the eigenvalues of the Hessian of the free
    unknowns in units of `unit`, and eigenvectors. `pull`: the gradient in their coordinates. `height`: the loss
    at the start.
    """

    matrix: Array
    gradient: Array
    values: Array
    vectors: Array
    pull: Array
    unit: Array
    radius: Array
    step: Array
    predicted: Array
    height: Array
    inside: Array


class TrustRegionNewton(AbstractMinimiser):
    """Newton's method with the exact Hessian in a trust region: the default of [`minimise`][sciml.solvers.minimise].

    Each step minimises the quadratic model within a radius, exactly, by the eigenvalues of the Hessian (Moré,
    Sorensen 1983): negative curvature is used, and a saddle point is left even if the gradient vanishes there. Where
    the step crosses a bound, the model with the same multiplier is minimised in the box, so that it ends on bounds
    exactly. Unknowns are scaled by the diagonal of the Hessian: their units don't matter.

    For up to a few hundred unknowns: a step costs the Hessian and its eigenvalues. Above, use
    [`NewtonCG`][sciml.solvers.NewtonCG] or [`LBFGS`][sciml.solvers.LBFGS].

    ```python
    import jax.numpy as jnp
    from sciml import solvers

    rosenbrock = lambda y, _: jnp.sum(100 * (y[1:] - y[:-1] ** 2) ** 2 + (1 - y[:-1]) ** 2)
    sol = solvers.minimise(rosenbrock, jnp.full(10, -1.0), method=solvers.TrustRegionNewton())
    assert jnp.allclose(sol.value, 1.0, atol=1e-3)
    assert sol.curvature > 0
    ```

    **Arguments:**

    - `ftol`: promised reduction, relative to the function's value, that ends the iteration; by default eps^(9/8).
    - `xtol`: length of a step relative to that of the point, both scaled; by default eps^(3/4).
    - `factor`: the first radius, in units of the scaled length of the start.

    **Reference:** J. J. Moré, D. C. Sorensen, *Computing a trust region step*, SIAM J. Sci. Stat. Comput. 4 (1983),
    553-572, doi 10.1137/0904038.
    """

    ftol: Any = None
    xtol: Any = None
    factor: float = eqx.field(static=True, default=1.0)
    order: ClassVar[int] = 2

    def begin(self, x0, m):
        n, dtype = x0.shape[0], x0.dtype
        none, zero, square = jnp.zeros_like(x0), jnp.zeros((), dtype), jnp.zeros((n, n), dtype)
        return _Memory(square, none, none, square, none, none, zero, none, zero, zero, zero > 0)

    def respond(self, state, there, linear, box):
        s = state.memory
        dtype = there.x.dtype
        eps = jnp.finfo(dtype).eps
        ftol, xtol = self.tolerances(dtype)
        verdict = judge(state, there, s.predicted)
        matrix = lambda: jax.vmap(linear, out_axes=1)(
            varying_like(jnp.eye(len(there.x), dtype=dtype), there.x)
        )
        h = jax.lax.cond(verdict.accept, matrix, lambda: s.matrix)
        accept = verdict.accept & jnp.all(jnp.isfinite(h))
        spectrum = lambda: self._spectrum(h, there, s.unit, box)
        same = lambda: (s.gradient, s.values, s.vectors, s.pull, s.unit)
        gradient, values, vectors, pull, unit = jax.lax.cond(accept, spectrum, same)
        h = jnp.where(accept, h, s.matrix)

        x = jnp.where(accept, there.x, state.here.x)
        length, size = norm(unit * s.step), norm(unit * x)
        radius = new_radius(s.radius, length, verdict, there.fine)
        first = self.factor * jnp.maximum(size, norm(pull))
        radius = jnp.where(state.first, jnp.where(first > 0, first, 1), radius)

        p, lam = _within(values, pull, radius)
        p = vectors @ p / unit
        p, lam = jnp.where(jnp.all(jnp.isfinite(p)), p, 0), jnp.maximum(lam, 0)
        if box.real:
            p = self._in_box(h, gradient, values, vectors, pull, unit, lam, p, x, box)
            # Eigenvectors of free and held unknowns mix by rounding.
            p = jnp.where(box.blocked(x, gradient), 0, p)
        predicted = _reduction(h, gradient, p)

        free = lam <= 0
        level = verdict.blind & s.inside & free & (predicted > s.predicted / 4)
        height = jnp.where(state.first, there.loss, s.height)
        # Towards a minimum of zero the value itself is no measure.
        depth = eps**1.5 * jnp.abs(height - state.here.loss)
        target = jnp.maximum(ftol * verdict.noise / (4 * eps), depth)
        # A step that the radius cuts short promises little and proves nothing.
        small = ~state.first & s.inside & (s.predicted <= target) & there.fine
        short = free & (norm(unit * p) <= xtol * norm(unit * x))
        still = predicted <= 0
        stuck = ~accept & (radius <= eps * size)
        # As low as the function can be told apart: what the whole of Newton's step promises is rounding.
        whole = jnp.sum(pull**2 / jnp.where(values > 0, values, 1)) / 2
        lowest = (values[0] > 0) & (whole <= eps**0.75 * verdict.noise / (4 * eps))
        code = jnp.where(stuck, jnp.where(lowest, CONVERGED, STALLED), GOING)
        converged = level | small | (accept & (short | still)) | (~state.first & still)
        code = jnp.where(converged, CONVERGED, code)
        code = jnp.where(there.loss == -jnp.inf, UNBOUNDED, code)
        memory = _Memory(
            h, gradient, values, vectors, pull, unit, radius, p, predicted, height, free
        )
        return Answer(accept, box.land(x, p), memory, code)

    def _spectrum(self, h, there, unit, box):
        diagonal = jnp.sqrt(jnp.abs(jnp.diag(h)))
        # Where the Hessian is indefinite, what is off the diagonal can be more than the diagonal shows.
        cross = jnp.abs(h)
        beside = jnp.minimum(jnp.sqrt(cross), cross / jnp.where(diagonal > 0, diagonal, 1)[None])
        beside = jnp.max(jnp.where(diagonal[None] > 0, beside, jnp.sqrt(cross)), axis=1)
        unit = jnp.maximum(jnp.where(unit > 0, unit, 0), jnp.maximum(diagonal, beside))
        # Of no use as a unit is what is zero but for rounding.
        least = jnp.finfo(unit.dtype).eps ** 2 * jnp.max(unit)
        unit = jnp.where(unit > least, unit, jnp.where(least > 0, jnp.maximum(unit, least), 1))
        fixed = box.blocked(there.x, there.value)
        keep = ~fixed[:, None] & ~fixed[None]
        scaled = h / (unit[:, None] * unit[None])
        scaled = jnp.where(keep, scaled, jnp.diag(jnp.ones_like(unit)))
        values, vectors = jnp.linalg.eigh(scaled)
        pull = vectors.T @ jnp.where(fixed, 0, there.value / unit)
        return there.value, values, vectors, pull, unit

    def _in_box(self, h, gradient, values, vectors, pull, unit, lam, p, x, box):
        low, high = box.lower - x, box.upper - x

        def inside():
            # A square root of the shifted Hessian turns it into a sum of squares.
            eps = jnp.finfo(x.dtype).eps
            root = jnp.sqrt(jnp.maximum(values + lam, eps * jnp.max(jnp.abs(values))))
            r = root[:, None] * vectors.T * unit[None]
            model = Quadratic(r, pull / root, None)
            q = jnp.clip(model.damped(eps * unit, x, box), low, high)
            return jnp.where(jnp.all(jnp.isfinite(q)), q, 0)

        crosses = jnp.any((p < low) | (p > high))
        q = jax.lax.cond(crosses, inside, lambda: p)
        # Down a ridge it goes either way.
        for other in (jnp.clip(p, low, high), jnp.clip(-p, low, high)):
            better = _reduction(h, gradient, other) > _reduction(h, gradient, q)
            q = jnp.where(better, other, q)
        return q

    def curvature(self, state, box):
        """The smallest eigenvalue of the Hessian in the free unknowns."""
        s = state.memory
        fixed = box.active(state.here.x) != 0
        keep = ~fixed[:, None] & ~fixed[None]
        top = jnp.max(jnp.abs(s.matrix)) + 1
        h = jnp.where(keep, s.matrix, jnp.diag(jnp.full_like(s.unit, top)))
        h = jnp.where(jnp.all(jnp.isfinite(h)), h, 0)
        return jnp.where(jnp.all(fixed), jnp.nan, jnp.linalg.eigvalsh(h)[0])

    def finish(self, state, box):
        s = state.memory
        eps = jnp.finfo(s.unit.dtype).eps
        top = jnp.max(jnp.abs(s.values))
        saddle = (state.code == CONVERGED) & (s.values[0] < -jnp.sqrt(eps) * top)
        flat = jnp.abs(s.values[0]) <= 10 * s.values.shape[0] * eps * top
        null = s.vectors[:, 0] / jnp.where(s.unit > 0, s.unit, 1)
        null = null / jnp.where(norm(null) > 0, norm(null), 1)
        scale = jnp.abs(state.here.loss) + jnp.finfo(s.unit.dtype).tiny
        code = jnp.where(saddle, SADDLE, state.code)
        return Finish(code, s.predicted / scale, jnp.where(flat, null, 0))


def _reduction(h, gradient, p):
    return -jnp.sum(p * gradient) - jnp.sum(p * (h @ p)) / 2


def _within(values, pull, radius):
    """The minimiser of the model within a radius, in the coordinates of the eigenvectors, and the multiplier.

    In the hard case, where the gradient has no part along the lowest eigenvector, the step goes along it.
    """
    eps = jnp.finfo(values.dtype).eps
    lowest = values[0]
    floor = jnp.maximum(0, -lowest)
    top = jnp.maximum(jnp.max(jnp.abs(values)), jnp.finfo(values.dtype).tiny)

    def step(lam, least=4 * eps * top):
        shifted = values + lam
        tiny = shifted <= least
        return jnp.where(tiny, 0, -pull / jnp.where(tiny, 1, shifted)), tiny

    newton, flat = step(jnp.zeros_like(radius))
    inside = (lowest > 4 * eps * top) & (norm(newton) <= radius)
    # Flat directions without a slope are not worth a step.
    slope = jnp.where(flat, jnp.abs(pull), 0)
    idle = jnp.max(slope) <= 4 * eps * norm(pull)
    inside = inside | ((lowest >= -4 * eps * top) & idle & (norm(newton) <= radius))

    edge, alone = step(floor)
    sloped = jnp.any(alone & (jnp.abs(pull) > 4 * eps * norm(pull)))
    hard = ~inside & ~sloped & (norm(edge) < radius)

    def cond(carry):
        lam, low, high, k = carry
        length = norm(step(lam, 0)[0])
        return (jnp.abs(length - radius) > 1e-3 * radius) & (k < 60) & (high > low * (1 + 4 * eps))

    def body(carry):
        lam, low, high, k = carry
        p, _ = step(lam, 0)
        length = norm(p)
        shifted = values + lam
        rate = jnp.sum(jnp.where(shifted > 0, p**2 / jnp.where(shifted > 0, shifted, 1), 0))
        low, high = jnp.where(length > radius, lam, low), jnp.where(length > radius, high, lam)
        # Newton's method for 1/|p| - 1/radius, which is nearly linear.
        new = lam + length**2 / jnp.where(rate > 0, rate, 1) * (length - radius) / radius
        fine = (new > low) & (new < high) & (rate > 0)
        return jnp.where(fine, new, (low + high) / 2), low, high, k + 1

    high = floor + norm(pull) / radius
    zero = jnp.sum(0 * pull)
    guess = jnp.where(lowest > 0, zero, jnp.minimum(floor + 1e-3 * (high - floor), high))
    start = (
        jnp.where(inside | hard, high, guess),
        floor + zero,
        high,
        zero.astype(jnp.result_type(int)),
    )
    start = jax.tree.map(lambda a: jnp.where(inside | hard, jnp.zeros_like(a), a), start)
    lam, _, _, _ = jax.lax.while_loop(cond, body, start)
    p, _ = step(lam, 0)

    missing = jnp.sqrt(jnp.maximum(radius**2 - jnp.sum(edge**2), 0))
    sign = jnp.where(pull[0] > 0, -1.0, 1.0).astype(values.dtype)
    along = edge + jnp.where(jnp.arange(values.shape[0]) == 0, sign * missing, 0)
    p = jnp.where(inside, newton, jnp.where(hard, along, p))
    return p, jnp.where(inside, 0, jnp.where(hard, floor, lam))

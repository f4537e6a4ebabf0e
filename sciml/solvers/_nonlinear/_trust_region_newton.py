"""Trust regions on the exact Hessian: by its eigenvalues, or by conjugate gradients where it is too large."""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from ..._compat import varying_like
from .._norms import norm
from ._loop import Answer, CONVERGED, Finish, GOING, Look, SADDLE, STALLED, UNBOUNDED
from ._method import AbstractMinimiser
from ._quadratic import Quadratic


class Verdict(eqx.Module):
    """What is common to trust-region methods for functions.

    - `noise`: what rounding does to the function's value. `blind`: a step whose effect can't be seen.
    """

    accept: Array
    gain: Array
    noise: Array
    blind: Array


def judge(state, there: Look, predicted) -> Verdict:
    here, first = state.here, state.first
    eps = jnp.finfo(there.x.dtype).eps
    actual = here.loss - there.loss
    gain = actual / jnp.where(predicted > 0, predicted, 1)
    noise = 4 * eps * (jnp.abs(here.loss) + jnp.sum(jnp.abs(here.value * here.x)))
    blind = ~first & (predicted <= noise) & (actual >= -noise)
    better = (actual > 0) & (gain > 1e-4) & (predicted > 0)
    return Verdict(there.fine & (first | better | blind), gain, noise, blind)


def new_radius(radius, length, verdict: Verdict, fine):
    bad = ~fine | ((verdict.gain <= 0.25) & ~verdict.blind)
    shorter = jnp.where(fine, 0.25, 0.1) * jnp.minimum(radius, length)
    good = ((verdict.gain >= 0.75) | verdict.blind) & (length >= 0.8 * radius)
    return jnp.where(bad, shorter, jnp.where(good, 2 * radius, radius))


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

    def step(lam):
        shifted = values + lam
        tiny = shifted <= 4 * eps * top
        return jnp.where(tiny, 0, -pull / jnp.where(tiny, 1, shifted)), tiny

    newton, flat = step(jnp.zeros_like(radius))
    inside = (lowest > 4 * eps * top) & (norm(newton) <= radius)
    # Flat directions without a slope are not worth a step.
    slope = jnp.where(flat, jnp.abs(pull), 0)
    idle = jnp.max(slope) <= 4 * eps * norm(pull)
    inside = inside | ((lowest >= -4 * eps * top) & idle & (norm(newton) <= radius))

    edge, _ = step(floor)
    _, alone = step(floor)
    sloped = jnp.any(alone & (jnp.abs(pull) > 4 * eps * norm(pull)))
    hard = ~inside & ~sloped & (norm(edge) < radius)

    def cond(carry):
        lam, low, high, k = carry
        length = norm(step(lam)[0])
        return (jnp.abs(length - radius) > 1e-3 * radius) & (k < 60) & (high > low * (1 + 4 * eps))

    def body(carry):
        lam, low, high, k = carry
        p, _ = step(lam)
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
    p, _ = step(lam)

    missing = jnp.sqrt(jnp.maximum(radius**2 - jnp.sum(edge**2), 0))
    sign = jnp.where(pull[0] > 0, -1.0, 1.0).astype(values.dtype)
    along = edge + jnp.where(jnp.arange(values.shape[0]) == 0, sign * missing, 0)
    p = jnp.where(inside, newton, jnp.where(hard, along, p))
    return p, jnp.where(inside, 0, jnp.where(hard, floor, lam))


class _PathMemory(eqx.Module):
    step: Array
    bent: Array
    gradient: Array
    radius: Array
    predicted: Array
    inside: Array
    steepness: Array


class NewtonCG(AbstractMinimiser):
    """Newton's method in a trust region by conjugate gradients on Hessian-vector products (Steihaug, Toint).

    For many unknowns: the Hessian is never formed. The linear system is solved the more accurately the smaller the
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

    **Reference:** T. Steihaug, *The conjugate gradient method and trust regions in large scale optimization*, SIAM J.
    Numer. Anal. 20 (1983), 626-637, doi 10.1137/0720042.
    """

    ftol: Any = None
    xtol: Any = None
    max_products: int = eqx.field(static=True, default=200)
    order: ClassVar[int] = 2

    def begin(self, x0, m):
        none, zero = jnp.zeros_like(x0), jnp.zeros((), x0.dtype)
        return _PathMemory(none, none, none, zero, zero, jnp.asarray(False), zero)

    def respond(self, state, there, linear, box):
        s = state.memory
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
        code = jnp.where(level | small | short | still, CONVERGED, code)
        code = jnp.where(there.loss == -jnp.inf, UNBOUNDED, code)
        memory = _PathMemory(p, bent, gradient, radius, predicted, inside, steepness)
        return Answer(accept, box.land(x, p), memory, code)

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

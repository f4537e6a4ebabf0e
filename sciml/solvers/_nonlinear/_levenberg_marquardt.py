"""Levenberg-Marquardt in a box."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._norms import norm
from ._loop import Answer, Box, CONVERGED, Finish, finite_or_zero, GOING, STALLED, State
from ._method import AbstractLeastSquaresMethod
from ._quadratic import Quadratic, Rows
from ._triangle import back, back_transposed, null_direction


class _Memory(eqx.Module):
    """- `model`: the sum of squares near the point reached. `step`, `predicted`: of the trial.
    - `scale`: the longest that each column was so far. `radius`: of the trust region; `lam`: its multiplier.
    """

    model: Quadratic
    step: Array
    predicted: Array
    first_misfit: Array
    scale: Array
    lam: Array
    radius: Array


class LevenbergMarquardt(AbstractLeastSquaresMethod):
    """Levenberg-Marquardt in a box: Gauss-Newton steps that damping keeps where the linear model holds.

    The default of [`least_squares`][sciml.solvers.least_squares], for up to a few hundred unknowns. A step solves

        min over p in the box:  |J p + r|^2  with  |D p| <= radius

    by orthogonal triangularisation, so that only the condition number of J counts, not its square. `D`, the largest
    lengths of the columns of J so far (Moré 1978), makes it independent of the units of the unknowns. Steps follow
    the curvature of the model to second order (geodesic acceleration, Transtrum and Sethna 2012), which pays in
    long narrow valleys. A trial point at which anything is not finite is a bad one: it costs one evaluation. Where a
    further reduction would be lost in the rounding errors of the loss, steps are taken as long as their promise
    falls: the solution has more digits than the loss shows.

    ```python
    import jax.numpy as jnp
    from sciml import solvers

    valley = lambda y, _: jnp.stack([10 * (y[1] - y[0] ** 2), 1 - y[0]])
    method = solvers.LevenbergMarquardt(geodesic=False)
    sol = solvers.least_squares(valley, jnp.array([-1.2, 1.0]), method=method)
    assert jnp.allclose(sol.value, 1.0)
    ```

    **Arguments:**

    - `ftol`: relative reduction of the loss, promised and actual, that ends the iteration; by default eps^(9/8).
    - `xtol`: length of a step, relative to that of the point, both scaled by `D`; by default eps^(3/4).
    - `factor`: the first radius, in units of `|D x|`.
    - `geodesic`: whether steps follow the curvature, at the price of a second directional derivative an iteration.
    - `uniform`: whether all unknowns have the same unit, the smallest, instead of those of `D`.
    - `extra`: whether the gradient has a part that is not `J^T r`; used by [`estimate`][sciml.fit.estimate].

    **References:** J. Moré, *The Levenberg-Marquardt algorithm: implementation and theory*, Lect. Notes Math. 630
    (1978), doi 10.1007/BFb0067700. M. K. Transtrum, J. P. Sethna, *Improvements to the Levenberg-Marquardt algorithm
    for nonlinear least-squares minimization*, arXiv:1201.5885 (2012).
    """

    ftol: Any = None
    xtol: Any = None
    factor: float = eqx.field(static=True, default=10.0)
    geodesic: bool = eqx.field(static=True, default=True)
    extra: bool = eqx.field(static=True, default=False)
    uniform: Any = False

    def begin(self, x0, m):
        n, dtype = x0.shape[0], x0.dtype
        zero = jnp.zeros((), dtype)
        e = jnp.zeros((n,), dtype) if self.extra else None
        model = Quadratic(jnp.zeros((n, n), dtype), jnp.zeros((n,), dtype), e, zero)
        none = jnp.zeros_like(x0)
        return _Memory(model, none, zero, zero, none, zero, zero)

    def respond(self, state, there, linear: Rows, box):
        s, first = state.memory, state.first
        dtype = there.x.dtype
        eps = jnp.finfo(dtype).eps
        ftol, xtol = self.tolerances(dtype)
        actual = state.here.loss - there.loss
        gain = actual / jnp.where(s.predicted > 0, s.predicted, 1)
        better = (actual > 0) & (gain > 1e-4) & (s.predicted > 0)
        # Below the rounding errors of the loss the gradient is still known: go on by what is promised.
        root = jnp.sqrt(2 * jnp.maximum(state.here.misfit, 0))
        noise = 4 * eps * root * (root + s.model.magnitude(state.here.x))
        blind = ~first & (s.predicted <= noise) & (actual >= -noise)
        accept = there.fine & (first | better | blind)

        model = jax.lax.cond(accept, lambda: Quadratic.of(linear), lambda: s.model)
        x = jnp.where(accept, there.x, state.here.x)
        misfit = jnp.where(accept, there.misfit, state.here.misfit)
        first_misfit = jnp.where(first, there.misfit, s.first_misfit)
        scale = jnp.where(accept, jnp.maximum(s.scale, model.lengths()), s.scale)

        unit = self._unit(scale)
        size, length = norm(unit * x), norm(unit * s.step)
        radius = _radius(s.radius, length, gain, there.fine, blind | (s.lam == 0))
        first_radius = self.factor * jnp.where(size > 0, size, 1)
        radius = jnp.where(first, first_radius, radius)

        # A misfit of this size is rounding, whatever the data.
        target = ftol * (state.here.misfit + eps**2 * first_misfit)
        small = (s.predicted <= target) & jnp.where(accept, actual <= target, there.fine)
        stuck = ~accept & (radius <= eps * size)
        # `unit * x` and the residuals have the same units.
        first_size = jnp.sqrt(2 * jnp.maximum(first_misfit, 0))
        short = (length <= xtol * (size + xtol * first_size)) & (there.fine | stuck)

        # Residuals that are all rounding errors: a perfect fit.
        exact = jnp.sqrt(2 * jnp.maximum(misfit, 0)) <= eps * model.magnitude(x)

        p, lam, t = model.within(radius, unit, s.lam, x, box)
        p = finite_or_zero(p)
        predicted = model.reduction(p)
        level = blind & (predicted > 0.8 * s.predicted)
        converged = (~first & (small | short | level)) | (accept & exact)
        if self.geodesic:
            p = p + self._bend(linear, t, unit, accept, p, x, box)
        code = jnp.where(converged, CONVERGED, jnp.where(stuck, STALLED, GOING))
        memory = _Memory(model, p, predicted, first_misfit, scale, lam, radius)
        return Answer(accept, box.land(x, p), memory, code)

    def _unit(self, scale):
        return jnp.where(self.uniform, jnp.max(_positive(scale)), _positive(scale))

    def _bend(self, linear, t, unit, accept, p, x, box):
        """The second-order part of the step, if it is small and lies inside."""

        def bent():
            assert linear.bend is not None
            second = linear.rows.T @ linear.bend(p)
            a = -back(t, back_transposed(t, second)) / 2
            if box.real:
                low, high = box.lower - x, box.upper - x
                a = jnp.where((p > low) & (p < high), a, 0)
                a = jnp.where(jnp.all((p + a >= low) & (p + a <= high)), a, 0)
            small = 2 * norm(unit * a) <= 0.75 * norm(unit * p)
            return jnp.where(jnp.all(jnp.isfinite(a)) & small, a, jnp.zeros_like(a))

        # Only where the derivatives at hand belong to the point from which the step goes.
        return jax.lax.cond(accept, bent, lambda: jnp.zeros_like(p))

    def finish(self, state: State, box: Box) -> Finish:
        s, here, x = state.memory, state.here, state.here.x
        ftol, xtol = self.tolerances(x.dtype)
        eps = jnp.finfo(x.dtype).eps
        done = state.code != GOING
        # Steps can become short because damping made them so: look at what an undamped one promises before calling
        # it a success.
        unit = self._unit(s.scale)
        step = finite_or_zero(s.model.damped(max(float(eps), 1e-14) ** 0.5 * unit, x, box))
        promised = s.model.reduction(step)
        floor = eps * s.first_misfit + jnp.finfo(x.dtype).tiny
        optimality = promised / (here.misfit + floor)
        stationary = optimality <= jnp.maximum(jnp.sqrt(ftol), eps**0.375)
        # Nor has it failed if that step stays where it is: a perfect fit leaves rounding to fit.
        first_size = jnp.sqrt(2 * jnp.maximum(s.first_misfit, 0))
        size = norm(unit * x) + xtol * first_size
        stationary = stationary | (norm(unit * step) <= xtol * size)
        # And where the curvature is singular although the residuals are not zero, the promise is empty: then no
        # parameter alone must promise anything, which is MINPACK's test by angles.
        gradient = s.model.gradient()
        slope = jnp.where(box.blocked(x, gradient), 0, gradient)
        lengths = _positive(s.model.lengths())
        alone = jnp.max((slope / lengths) ** 2) / 2
        stationary = stationary | (done & (alone <= jnp.maximum(ftol, eps**0.875) * here.misfit))
        # Residuals so small that the computer takes their squares for zero tell nothing.
        hidden = (s.first_misfit < jnp.finfo(x.dtype).tiny / eps) & jnp.any(here.value != 0)
        code = jnp.where(stationary & ~hidden, CONVERGED, jnp.where(done, STALLED, GOING))
        code = jnp.where(jnp.isfinite(here.loss), code, state.code)
        free = box.active(x) == 0
        r = jnp.where(free[None], s.model.r / lengths[None], jnp.diag(jnp.ones_like(x)))
        null, least = null_direction(r)
        null = jnp.where(free, null / lengths, 0)
        null = null / _positive(norm(null))
        rounding = 10 * x.shape[0] * eps
        null = jnp.where(least <= rounding, null, jnp.zeros_like(null))
        return Finish(code, optimality, null)


def _radius(radius, length, gain, fine, full):
    """The new trust region, from the length of the step that was tried and what came of it."""
    # A parabola through what was promised and what came gives the reduction of a bad one.
    factor = jnp.where(gain < 0, jnp.clip(0.5 / jnp.where(gain < 1, 1 - gain, 1), 0.1, 0.5), 0.5)
    factor = jnp.where(fine & jnp.isfinite(gain), factor, 0.1)
    shorter = factor * jnp.minimum(radius, 10 * length)
    longer = jnp.where((gain >= 0.75) | full, 2 * length, radius)
    return jnp.where(~fine | (gain <= 0.25), shorter, longer)


def _positive(d):
    return jnp.where(d > 0, d, jnp.ones_like(d))

"""A sum of squares near one point, and the damped step that lowers it within bounds.

The model is `|R p + c|^2 / 2 + e.p`: `R` triangular, so that its condition number is that of the Jacobian and not its
square, which the normal equations would have. Bounds are dealt with by a primal-dual active set: guess which hold,
solve for the rest, let go of bounds whose multiplier has the wrong sign and take up those that the solution
crosses, until nothing changes. It ends after a few solves when the damping is strong.

**Reference:** M. Hintermüller, K. Ito, K. Kunisch, *The primal-dual active set strategy as a semismooth Newton
method*, SIAM J. Optim. 13 (2002), 865-888, doi 10.1137/S1052623401383558.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._norms import norm
from ._loop import Box
from ._triangle import back, back_transposed, triangle


class Rows(eqx.Module):
    """The linear part of a sum of squares: its gradient is `rows^T target + extra`.

    - `rows`: whose squares are the curvature. `target`: the residuals, for a plain sum of squares.
    - `extra`: what else the gradient has; `None` for nothing.
    - `bend`: the second derivative of the residuals along a direction, to be called where the rows were made.
    - `size`: of the numbers whose differences the residuals are, as far as the rows don't show it.
    """

    rows: Float[Array, "row n"]
    target: Float[Array, " row"]
    extra: Float[Array, " n"] | None = None
    bend: Callable | None = None
    size: Float[Array, ""] | None = None


class Quadratic(eqx.Module):
    """`|R p + c|^2 / 2 + e.p`. `size` as for `Rows`."""

    r: Float[Array, "n n"]
    c: Float[Array, " n"]
    e: Float[Array, " n"] | None
    size: Float[Array, ""] | float = 0.0

    @staticmethod
    def of(linear: Rows) -> "Quadratic":
        n = linear.rows.shape[1]
        both = triangle(jnp.concatenate([linear.rows, linear.target[:, None]], axis=1))
        size = jnp.zeros_like(linear.rows, shape=()) if linear.size is None else linear.size
        return Quadratic(both[:n, :n], both[:n, n], linear.extra, size)

    def magnitude(self, x) -> Float[Array, ""]:
        """Of the numbers whose differences the residuals at `x` are: what their rounding errors are relative to."""
        return norm(self.lengths() * x) + self.size

    def gradient(self):
        g = jnp.sum(self.r * self.c[:, None], axis=0)
        return g if self.e is None else g + self.e

    def lengths(self) -> Float[Array, " n"]:
        """Of the columns: what changing each unknown by one does to the residuals."""
        # The largest first, lest squares overflow.
        size = jnp.max(jnp.abs(self.r), axis=0)
        size = jnp.where(size > 0, size, jnp.ones_like(size))
        return size * jnp.sqrt(jnp.sum((self.r / size[None]) ** 2, axis=0))

    def reduction(self, p):
        """By how much the model promises to fall."""
        change = self.r @ p
        fall = -jnp.sum(change * (self.c + change / 2))
        return fall if self.e is None else fall - jnp.sum(self.e * p)

    def within(self, radius, unit, lam, x, box: Box) -> tuple[Array, Array, Array]:
        """The step that minimises the model within the bounds, as long as `|unit p| <= radius` allows.

        The multiplier of the radius is found by Newton's method on the secular equation (Moré 1978), to within a
        tenth of the radius. Bounds that hold at `x` are kept; if the step crosses others, it is computed again
        with the same multiplier as damping.

        **Arguments:**

        - `lam`: a guess of the multiplier: the last one.

        **Returns:**

        The step, the multiplier, and the triangle of the damped problem.
        """
        gradient = self.gradient()
        fixed = box.blocked(x, gradient)
        none = jnp.zeros_like(unit)
        tiny = jnp.finfo(unit.dtype).eps

        def stride(lam):
            """The step, its length and how fast it becomes longer with less damping."""
            p, t = self._solve(jnp.sqrt(lam) * unit, fixed, none)
            length = norm(unit * p)
            return p, t, length, slope_of(p, t, length)

        def slope_of(p, t, length):
            w = back_transposed(t, unit**2 * p / jnp.where(length > 0, length, 1))
            return jnp.sum(w**2)

        if box.real or self.e is not None:
            p, t, length, slope = stride(tiny**2 * jnp.ones_like(radius))
        else:
            # The triangle is at hand. Of a singular one the step is not finite, and damped below.
            p, t = back(self.r, -self.c), self.r
            length = norm(unit * p)
            length = jnp.where(jnp.isfinite(length), length, jnp.inf)
            slope = slope_of(p, t, length)
        inside = length <= 1.1 * radius
        high = norm(jnp.where(fixed, 0, gradient / unit)) / radius
        low = (length - radius) / (radius * slope)
        low = jnp.where(jnp.isfinite(low) & (low > 0) & (low < high), low, 0)

        def cond(carry):
            _, _, _, _, _, done, k = carry
            return ~done & (k < 10)

        def body(carry):
            lam, low, high, _, _, _, k = carry
            lam = jnp.clip(lam, low, high)
            lam = jnp.where(lam > 0, lam, jnp.maximum(1e-3 * high, low))
            p, t, length, slope = stride(lam)
            over = length - radius
            done = (jnp.abs(over) <= 0.1 * radius) | ((low == 0) & (lam <= 1e-20 * high))
            low, high = jnp.where(over > 0, lam, low), jnp.where(over < 0, lam, high)
            new = lam + length / radius * over / (radius * slope)
            new = jnp.maximum(jnp.where(jnp.isfinite(new), new, jnp.sqrt(low * high)), low)
            return jnp.where(done, lam, new), low, high, p, t, done, k + 1

        zero = 0 * radius
        start = (lam, low, high, p, t, inside, zero.astype(jnp.result_type(int)))
        new, _, _, p, t, _, _ = jax.lax.while_loop(cond, body, start)
        new = jnp.where(inside, zero, new)
        if not box.real:
            return p, new, t
        crosses = jnp.any((x + p < box.lower) | (x + p > box.upper))
        least = jnp.sqrt(jnp.maximum(new, tiny**2)) * unit
        p = jax.lax.cond(crosses, lambda: self.damped(least, x, box), lambda: p)
        return p, new, t

    def damped(self, d: Float[Array, " n"], x, box: Box) -> Float[Array, " n"]:
        """The step that minimises the model plus `|d p|^2 / 2` within the bounds."""
        if not box.real:
            return self._solve(d, jnp.zeros(d.shape, bool), jnp.zeros_like(d))[0]
        low, high = box.lower - x, box.upper - x
        gradient = self.gradient()

        def cond(carry):
            _, _, _, changed, k = carry
            return changed & (k < 3 * d.shape[0] + 10)

        def body(carry):
            at_low, at_high, _, _, k = carry
            p, _ = self._solve(d, at_low | at_high, jnp.where(at_low, low, high))
            # On the bounds exactly, which the solution misses by rounding.
            p = jnp.where(at_low, low, jnp.where(at_high, high, p))
            multiplier = gradient + self.r.T @ (self.r @ p) + d**2 * p
            new_low = jnp.where(at_low, multiplier > 0, p < low)
            new_high = jnp.where(at_high, multiplier < 0, p > high)
            changed = jnp.any((new_low != at_low) | (new_high != at_high))
            return new_low, new_high, p, changed, k + 1

        # Start from the bounds that are touched already and that the gradient presses against.
        start = (
            (low >= 0) & (gradient > 0),
            (high <= 0) & (gradient < 0),
            0 * gradient,
            jnp.all(gradient == gradient) | True,
            0 * jnp.sum(gradient * 0).astype(jnp.result_type(int)),
        )
        p = jax.lax.while_loop(cond, body, start)[2]
        return jnp.clip(p, low, high)

    def _solve(self, d, fixed, value):
        n = d.shape[0]
        value = jnp.where(fixed, value, 0)
        # A fixed unknown keeps one equation, `p = value`, in the row of its damping.
        above = jnp.where(fixed[None], 0, self.r)
        below = jnp.diag(jnp.where(fixed, 1, d))
        right = jnp.concatenate([-(self.c + self.r @ value), value])
        both = jnp.concatenate([jnp.concatenate([above, below]), right[:, None]], axis=1)
        t = triangle(both)
        t, q = t[:n, :n], t[:n, n]
        if self.e is not None:
            q = q - back_transposed(t, jnp.where(fixed, 0, self.e))
        return back(t, q), t

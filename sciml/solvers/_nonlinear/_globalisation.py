"""How far to follow a Newton direction: full steps, line searches, trust regions, pseudo-time.

A globalisation sees the `Newton` model of a point and the control it keeps itself (a step length, a radius, a
time), proposes a step, and judges what came of it. It never evaluates anything.
"""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._norms import norm
from ._loop import Box, finite_or_zero, Look
from ._quadratic import Quadratic
from ._triangle import triangle


class Linear(eqx.Module):
    """The equations `F + J p = 0` near a point.

    - `newton`: the solution p; not finite if J is singular. `value`: F. `gradient`: J^T F.
    - `unit`: the longest that each column of J was so far.
    - `slope`: J times the steepest descent `gradient / unit^2`.
    - `matrix`: J itself, if it is dense.
    """

    newton: Float[Array, " n"]
    value: Float[Array, " n"]
    gradient: Float[Array, " n"]
    unit: Float[Array, " n"]
    slope: Float[Array, " n"]
    matrix: Float[Array, "n n"] | None

    def usable(self) -> Bool[Array, ""]:
        return jnp.all(jnp.isfinite(self.newton))


class Control(eqx.Module):
    """What a globalisation remembers.

    - `size`: the length of the step in units of Newton's, the radius, or the pseudo-time step.
    - `step`, `predicted`: what was proposed last, and the reduction of the loss that it promises.
    - `lam`: a multiplier or something else.
    """

    size: Float[Array, ""]
    step: Float[Array, " n"]
    predicted: Float[Array, ""]
    lam: Float[Array, ""]


class AbstractGlobalisation(eqx.Module):
    """How far to follow a direction."""

    @abc.abstractmethod
    def first(self, model: Linear, x: Float[Array, " n"], control: Control) -> Control:
        """The control at the start."""

    @abc.abstractmethod
    def judge(self, control: Control, here: Look, there: Look) -> tuple[Bool[Array, ""], Control]:
        """Whether the point is accepted, and the control after that."""

    @abc.abstractmethod
    def propose(self, model: Linear, x: Float[Array, " n"], control: Control, box: Box) -> Control:
        """The next step."""

    def proposal(self, model, x, control, fresh, box) -> tuple[Control, Bool[Array, ""]]:
        """The next step, after what is first at the start, and whether it can't get on."""
        begun = self.first(model, x, control)
        control = jax.tree.map(lambda a, b: jnp.where(fresh, a, b), begun, control)
        control = self.propose(model, x, control, box)
        return control, self.lost(control, x, model)

    @abc.abstractmethod
    def lost(self, control: Control, x: Float[Array, " n"], model: Linear) -> Bool[Array, ""]:
        """Whether it can't get on."""


def _gain(control, here, there):
    actual = here.loss - there.loss
    return jnp.where(
        control.predicted > 0, actual / jnp.where(control.predicted > 0, control.predicted, 1), -1.0
    )


class FullStep(AbstractGlobalisation):
    """Newton's step as it is. Fast near a root; may run away from anywhere else."""

    def first(self, model, x, control):
        return eqx.tree_at(lambda c: c.size, control, jnp.ones_like(control.size))

    def judge(self, control, here, there):
        size = jnp.where(there.fine, 1, control.size / 2)
        return there.fine, eqx.tree_at(lambda c: c.size, control, size)

    def propose(self, model, x, control, box):
        step = control.size * finite_or_zero(model.newton)
        return Control(control.size, step, jnp.sum(model.value**2) / 2, control.lam)

    def lost(self, control, x, model):
        return ~model.usable() | (control.size < 1e-10)


class Backtracking(AbstractGlobalisation):
    """Newton's step, shortened until the residuals fall (Armijo's condition, by quadratic interpolation).

    Cheap and good away from points at which the Jacobian is singular.

    **Reference:** J. E. Dennis, R. B. Schnabel, *Numerical methods for unconstrained optimization and nonlinear
    equations*, SIAM (1996), section 6.3, doi 10.1137/1.9781611971200.
    """

    def first(self, model, x, control):
        return eqx.tree_at(lambda c: c.size, control, jnp.ones_like(control.size))

    def judge(self, control, here, there):
        # Along the step the loss starts at -2 * loss: promised is a 2 t-th of it.
        t = control.size
        accept = there.fine & (there.loss <= (1 - 2e-4 * t) * here.loss)
        rise = there.loss / jnp.where(here.loss > 0, here.loss, 1) - 1 + 2 * t
        shorter = jnp.clip(t / jnp.where(rise > 0, rise, 1), 0.1, 0.5)
        shorter = jnp.where(there.fine, shorter, 0.2)
        size = jnp.where(accept, 1, t * shorter).astype(t.dtype)
        return accept, eqx.tree_at(lambda c: c.size, control, size)

    def propose(self, model, x, control, box):
        step = control.size * finite_or_zero(model.newton)
        return Control(control.size, step, control.size * jnp.sum(model.value**2) / 2, control.lam)

    def lost(self, control, x, model):
        return ~model.usable() | (control.size < 1e-4)


class Dogleg(AbstractGlobalisation):
    """A trust region: the step goes along the steepest descent and then towards Newton's point, as far as a radius.

    **Reference:** M. J. D. Powell, *A hybrid method for nonlinear equations*, in: Numerical methods for nonlinear
    algebraic equations, Gordon and Breach (1970), 87-114.

    **Arguments:**

    - `factor`: the first radius, in units of `|D x|`, D being the lengths of the Jacobian's columns.
    """

    factor: float = eqx.field(static=True, default=1.0)

    def first(self, model, x, control):
        size = norm(model.unit * x)
        radius = self.factor * jnp.where(size > 0, size, 1)
        return eqx.tree_at(lambda c: c.size, control, radius)

    def judge(self, control, here, there):
        gain = _gain(control, here, there)
        accept = there.fine & (gain > 1e-4)
        length = control.lam
        shorter = jnp.where(there.fine, 0.5, 0.2) * jnp.minimum(control.size, length)
        longer = jnp.where(gain >= 0.75, jnp.maximum(control.size, 2 * length), control.size)
        size = jnp.where(there.fine & (gain > 0.25), longer, shorter)
        return accept, eqx.tree_at(lambda c: c.size, control, size)

    def propose(self, model, x, control, box):
        radius, unit = control.size, model.unit
        newton = finite_or_zero(model.newton)
        down = -model.gradient / unit**2
        steep, bend = jnp.sum((model.gradient / unit) ** 2), jnp.sum(model.slope**2)
        # The lowest point along the steepest descent.
        cauchy = jnp.where(bend > 0, steep / jnp.where(bend > 0, bend, 1), 0)
        short = radius / jnp.where(steep > 0, jnp.sqrt(steep), 1)
        alpha = jnp.minimum(cauchy, short)
        from_, to = alpha * unit * down, unit * newton
        # Where the second leg leaves the ball.
        leg = to - from_
        a, b, c = jnp.sum(leg**2), jnp.sum(leg * from_), jnp.sum(from_**2) - radius**2
        root = jnp.sqrt(jnp.maximum(b**2 - a * c, 0))
        denominator = jnp.where(b > 0, b + root, jnp.where(a > 0, a, 1))
        tau = jnp.where(b > 0, -c, root - b) / jnp.where(denominator > 0, denominator, 1)
        tau = jnp.where((cauchy < short) & model.usable(), jnp.clip(tau, 0, 1), 0)
        inside = model.usable() & (norm(to) <= radius)
        tau, alpha = jnp.where(inside, 1, tau), jnp.where(inside, 0, alpha)
        step = jnp.where(inside, newton, (1 - tau) * alpha * down + tau * newton)
        # J step + F, without J.
        left = (1 - tau) * (model.value - alpha * model.slope)
        left = jnp.where(inside, 0, left)
        predicted = (jnp.sum(model.value**2) - jnp.sum(left**2)) / 2
        return Control(radius, step, predicted, norm(unit * step))

    def lost(self, control, x, model):
        tiny = jnp.sqrt(jnp.finfo(x.dtype).eps) ** 1.5
        small = control.size <= tiny * norm(model.unit * x) + jnp.finfo(x.dtype).tiny
        return small | (control.predicted <= 0)


class Damping(AbstractGlobalisation):
    """A trust region by Levenberg-Marquardt steps: minimises `|F + J p|` within a radius and within the bounds.

    Copes with a singular Jacobian and with bounds. Needs a dense Jacobian, and an orthogonal factorisation or two
    for each step.
    """

    factor: float = eqx.field(static=True, default=1.0)

    def first(self, model, x, control):
        start = Dogleg(self.factor).first(model, x, control)
        return eqx.tree_at(lambda c: c.predicted, start, jnp.zeros_like(start.predicted))

    def judge(self, control, here, there):
        gain = _gain(control, here, there)
        accept = there.fine & (gain > 1e-4)
        size = jnp.where(gain >= 0.75, 2 * control.size, control.size)
        shorter = jnp.where(there.fine, 0.5, 0.2) * control.size
        size = jnp.where(there.fine & (gain > 0.25), size, shorter)
        return accept, eqx.tree_at(lambda c: c.size, control, size)

    def propose(self, model, x, control, box):
        assert model.matrix is not None, "Damping needs a dense Jacobian"
        n = x.shape[0]
        both = triangle(jnp.concatenate([model.matrix, model.value[:, None]], axis=1))
        quadratic = Quadratic(both[:n, :n], both[:n, n], None)
        step, lam, _ = quadratic.within(control.size, model.unit, control.lam, x, box)
        step = finite_or_zero(step)
        # A radius beyond the step would take long to become one that matters.
        size = jnp.where(
            lam > 0, control.size, jnp.minimum(control.size, 4 * norm(model.unit * step))
        )
        size = jnp.where(size > 0, size, control.size)
        return Control(size, step, quadratic.reduction(step), lam)

    def lost(self, control, x, model):
        eps = jnp.finfo(x.dtype).eps
        small = control.size <= eps * norm(model.unit * x) + jnp.finfo(x.dtype).tiny
        return small | (control.predicted <= 0)


class PseudoTransient(AbstractGlobalisation):
    """Implicit Euler steps of `dy/dt = fn(y)` that become longer as the residuals fall, and Newton's in the end.

    For the rest states of evolution equations: it follows the transient where Newton's method would be lost, and the
    residuals may grow on the way.

    **Reference:** C. T. Kelley, D. E. Keyes, *Convergence analysis of pseudo-transient continuation*, SIAM J. Numer.
    Anal. 35 (1998), 508-523, doi 10.1137/S0036142996304796.

    **Arguments:**

    - `first_step`: the first pseudo-time step.
    """

    first_step: float = eqx.field(static=True, default=0.1)

    def shift(self, control: Control) -> Float[Array, ""]:
        """The inverse of the pseudo-time step."""
        return 1 / jnp.where(control.size > 0, control.size, self.first_step)

    def first(self, model, x, control):
        size = jnp.full_like(control.size, self.first_step)
        return Control(size, control.step, control.predicted, jnp.ones_like(control.lam))

    def judge(self, control, here, there):
        # "Switched evolution relaxation": the residuals fall by as much as the step grows.
        fall = jnp.sqrt(here.loss / jnp.where(there.loss > 0, there.loss, 1))
        size = control.size * jnp.where(there.fine, jnp.clip(fall, 0.2, 10), 0.2)
        lam = jnp.where(there.fine, 1, control.lam * 0.2)
        return there.fine, Control(size, control.step, control.predicted, lam)

    def propose(self, model, x, control, box):
        # After a failure in the direction of the old step: the system is not solved anew.
        step = control.lam * finite_or_zero(model.newton)
        return Control(control.size, step, control.predicted, control.lam)

    def lost(self, control, x, model):
        return ~model.usable() | (control.size < 1e-12)

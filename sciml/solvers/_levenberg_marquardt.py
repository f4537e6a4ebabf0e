"""Levenberg-Marquardt in a box, on gradients and curvatures.

The core knows neither residuals nor models. A problem hands it a function from a point to a
`Local` view: the loss, its gradient, and a positive semi-definite matrix that stands for the
Hessian: `J^T J` for least squares, the Fisher information for a likelihood whose noise level
is estimated too. The step solves

    min over p in the box:  g.p + p.(H + lam D).p / 2

where `D`, the largest diagonal of `H` so far (Moré 1978), makes it independent of the units of
the parameters, and `lam` is the trust region's other face: it shrinks by the gain ratio after
a good step and grows ever faster after bad ones (Nielsen 1999). A trial point at which
anything is non-finite is a bad one, so a solver that blows up out there costs one evaluation,
and bounds are never left, not even by trial points.

**References:** J. Moré, *The Levenberg-Marquardt algorithm: implementation and theory*, Lect.
Notes Math. 630 (1978), doi 10.1007/BFb0067700. H. B. Nielsen, *Damping parameter in
Marquardt's method*, IMM-REP-1999-05, DTU (1999).
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._results import RESULTS
from ._box_qp import box_qp


class Local(eqx.Module):
    """A loss near one point.

    - `misfit`: the part of the loss that vanishes for a perfect fit. Reductions are judged
      relative to it, since the loss itself has an arbitrary zero when it contains logarithms.
    - `rows`: what the curvature was made of, `rows^T rows`, if the caller wants it back.
    """

    loss: Float[Array, ""]
    gradient: Float[Array, " n"]
    curvature: Float[Array, "n n"]
    misfit: Float[Array, ""]
    rows: Float[Array, "row n"] | None = None

    def finite(self) -> Bool[Array, ""]:
        parts = jax.tree.leaves(self)
        return jnp.stack([jnp.all(jnp.isfinite(x)) for x in parts]).all()


class Options(eqx.Module):
    """Termination of the iteration.

    - `ftol`: predicted and actual reduction of the loss, relative to the misfit.
    - `xtol`: length of the step, relative to that of the point, both scaled by `D`.
    """

    ftol: Float[Array, ""]
    xtol: Float[Array, ""]
    max_steps: int = eqx.field(static=True)


def default_options(dtype, ftol=None, xtol=None, max_steps: int = 200) -> Options:
    for name, value in (("ftol", ftol), ("xtol", xtol)):
        if value is not None and not 0 <= value < 1:
            raise ValueError(f"`{name}` must lie in [0, 1), but got {value}.")
    eps = float(jnp.finfo(dtype).eps)
    ftol = eps**0.875 if ftol is None else ftol
    xtol = eps**0.625 if xtol is None else xtol
    return Options(jnp.asarray(ftol, dtype), jnp.asarray(xtol, dtype), max_steps)


class Optimum(eqx.Module):
    """Where the iteration ended.

    - `active`: -1 at the lower bound, 1 at the upper, 0 free.
    - `optimality`: the reduction that an undamped step promises, relative to the misfit.
    - `history`: the loss after each iteration, nan behind the last one.
    """

    x: Float[Array, " n"]
    local: Local
    result: RESULTS
    active: Int[Array, " n"]
    optimality: Float[Array, ""]
    steps: Int[Array, ""]
    failures: Int[Array, ""]
    history: Float[Array, " iteration"]


class _State(eqx.Module):
    x: Array
    local: Local
    trial: Array
    step: Array
    predicted: Array
    first_misfit: Array
    scale: Array
    lam: Array
    growth: Array
    evaluations: Array
    failures: Array
    done: Array
    converged: Array
    history: Array


def minimise_in_box(
    evaluate: Callable[[Array], Local],
    x0: Float[Array, " n"],
    lower: Float[Array, " n"],
    upper: Float[Array, " n"],
    options: Options,
) -> Optimum:
    """Minimises the loss that `evaluate` describes, from `x0`, within the bounds."""
    dtype = x0.dtype
    eps = jnp.finfo(dtype).eps
    one, zero = jnp.ones((), dtype), jnp.zeros((), dtype)

    def direction(local, damping, x):
        matrix = local.curvature + jnp.diag(damping)
        p = box_qp(matrix, local.gradient, lower - x, upper - x)
        p = jnp.where(jnp.all(jnp.isfinite(p)), p, jnp.zeros_like(p))
        reduction = -(local.gradient @ p + p @ local.curvature @ p / 2)
        return p, reduction

    def body(s: _State) -> _State:
        # `evaluate` stands in the loop only, the start being the first trial point: it is most
        # of the program, and compiling it twice is what a user would wait for.
        new = evaluate(s.trial)
        first = s.evaluations == 0
        finite = new.finite()
        actual = s.local.loss - new.loss
        gain = actual / jnp.where(s.predicted > 0, s.predicted, one)
        better = (actual > 0) & (gain > 1e-4) & (s.predicted > 0)
        accept = finite & (first | better)
        keep = lambda a, b: jax.tree.map(lambda u, v: jnp.where(accept, u, v), a, b)
        local, x = keep(new, s.local), jnp.where(accept, s.trial, s.x)
        first_misfit = jnp.where(first, new.misfit, s.first_misfit)
        diagonal = jnp.diag(local.curvature)
        scale = jnp.maximum(s.scale, diagonal)

        shrink = jnp.clip(1 - (2 * gain - 1) ** 3, 0.1, 1.0)
        lam = jnp.where(accept, s.lam * shrink, s.lam * s.growth)
        lam = jnp.where(first, s.lam, jnp.clip(lam, eps, 1 / eps))
        growth = jnp.where(accept, 2 * one, jnp.minimum(s.growth * 2, 64.0))

        # A misfit of this size is rounding, whatever the data.
        target = options.ftol * (s.local.misfit + eps**2 * first_misfit)
        small = (s.predicted <= target) & jnp.where(accept, actual <= target, finite)
        root = jnp.sqrt(_positive(scale))
        length, size = jnp.linalg.norm(root * s.step), jnp.linalg.norm(root * s.x)
        stuck = ~accept & (lam >= 1 / eps)
        short = (length <= options.xtol * (size + options.xtol)) & (finite | stuck)
        converged = (~first & (small | short)) | (accept & (local.misfit <= 0))

        step, predicted = direction(local, lam * _positive(scale), x)
        return _State(
            x=x,
            local=local,
            trial=_land(x + step, step, x, lower, upper),
            step=step,
            predicted=predicted,
            first_misfit=first_misfit,
            scale=scale,
            lam=lam,
            growth=growth,
            evaluations=s.evaluations + 1,
            failures=s.failures + jnp.where(finite, 0, 1),
            done=converged | stuck | (first & ~finite),
            converged=converged,
            history=s.history.at[s.evaluations].set(local.loss),
        )

    nothing = jax.tree.map(
        lambda v: jnp.full(v.shape, jnp.nan, v.dtype), jax.eval_shape(evaluate, x0)
    )
    state = _State(
        x=x0,
        local=nothing,
        trial=x0,
        step=jnp.zeros_like(x0),
        predicted=zero,
        first_misfit=zero,
        scale=jnp.zeros_like(x0),
        lam=1e-3 * one,
        growth=2 * one,
        evaluations=jnp.asarray(0),
        failures=jnp.asarray(0),
        done=jnp.asarray(False),
        converged=jnp.asarray(False),
        history=jnp.full((options.max_steps + 1,), jnp.nan, dtype),
    )
    end = jax.lax.while_loop(lambda s: ~s.done & (s.evaluations <= options.max_steps), body, state)

    # Steps can become short because damping made them so: look at what an undamped one
    # promises before calling it a success.
    started = end.local.finite()
    tiny = max(float(eps), 1e-14) * _positive(end.scale)
    step, promised = direction(end.local, tiny, end.x)
    floor = eps * end.first_misfit + jnp.finfo(dtype).tiny
    optimality = promised / (end.local.misfit + floor)
    stationary = optimality <= jnp.maximum(jnp.sqrt(options.ftol), eps**0.375)
    # Nor has it failed if that step stays where it is: a perfect fit leaves rounding to fit.
    root = jnp.sqrt(_positive(end.scale))
    length, size = jnp.linalg.norm(root * step), jnp.linalg.norm(root * end.x)
    stationary = stationary | (length <= options.xtol * (size + options.xtol))
    # And where the curvature is singular although the residuals are not zero, the promise is
    # empty: then no parameter alone must promise anything, which is MINPACK's test by angles.
    blocked = ((end.x <= lower) & (end.local.gradient > 0)) | (
        (end.x >= upper) & (end.local.gradient < 0)
    )
    slope = jnp.where(blocked, zero, end.local.gradient)
    alone = jnp.max(slope**2 / _positive(jnp.diag(end.local.curvature))) / 2
    stationary = stationary | (end.done & (alone <= options.ftol * end.local.misfit))
    result = RESULTS.where(stationary, RESULTS.successful, RESULTS.stalled)
    exhausted = ~end.done & ~stationary
    result = RESULTS.where(exhausted, RESULTS.max_iterations_reached, result)
    result = RESULTS.where(started, result, RESULTS.nonfinite_residual)
    active = jnp.where(end.x <= lower, -1, jnp.where(end.x >= upper, 1, 0))
    return Optimum(
        x=end.x,
        local=end.local,
        result=result,
        active=active,
        optimality=optimality,
        steps=end.evaluations - 1,
        failures=end.failures,
        history=end.history,
    )


def _positive(d):
    return jnp.where(d > 0, d, jnp.ones_like(d))


def _land(trial, p, x, lower, upper):
    """The trial point, exactly on a bound where the step ends on it."""
    trial = jnp.where(p <= lower - x, lower, jnp.where(p >= upper - x, upper, trial))
    return jnp.clip(trial, lower, upper)

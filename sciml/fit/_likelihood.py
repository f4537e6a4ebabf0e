"""From flat parameters to predictions, residuals and likelihoods.

The pure functions under the verbs. `residuals`, `loss` and `log_density` give them to users who
bring their own optimiser or sampler.
"""

import warnings
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .._dtypes import tolerances
from .._results import RESULTS
from ..solvers._checks import check_method
from ..solvers._core import solve_core
from ..solvers._nonlinear._loop import all_finite, Look
from ..solvers._nonlinear._quadratic import Rows
from ._problem import informative, Problem


def predict_at(
    problem: Problem, parts: tuple, ts: Float[Array, " time"], derivatives
) -> tuple[Float[Array, "time observable"], RESULTS]:
    """The observables at times that don't decrease and don't lie before `t0`."""
    model, y0, _, _ = parts
    options = problem.solve
    method, steps, max_steps = check_method(options.method, options.steps, options.max_steps)
    rtol, atol = solve_tolerances(problem)
    times = jnp.concatenate([problem.t0[None].astype(ts.dtype), ts])
    tols = (rtol, atol, steps, max_steps)
    options = {"derivatives": derivatives, "stops": problem.stops}
    sol = solve_core(model, y0, times, problem.args, method, *tols, **options)
    ys = jax.tree.map(lambda x: x[1:], sol.ys)
    pred = jax.vmap(lambda t, y: problem.observed(parts, t, y))(ts, ys)
    return pred.astype(problem.data.ys.dtype), sol.result


def solve_tolerances(problem: Problem) -> tuple:
    dtype = jax.tree.leaves(problem.y0)[0].real.dtype
    options = problem.solve
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # said once, when the problem was built
        return tolerances(options.rtol, options.atol, dtype, default=(1e-8, 1e-10))


def sigma_of(problem: Problem, noise) -> Array | None:
    """The standard deviations, broadcastable to the data; `None` if not known."""
    return problem.data.sigma if noise.sigma is None else noise.sigma


def noise_is_free(problem: Problem) -> bool:
    return any(slot.name.startswith("noise.") for slot in problem.slots)


def _located(problem: Problem, x, derivatives):
    """Predictions and log sigma on the scale of the noise, and the result of the solve."""
    parts = problem.unflatten(x)
    pred, result = predict_at(problem, parts, problem.data.ts, derivatives)
    noise = parts[2]
    location = noise.location(pred)
    sigma = sigma_of(problem, noise)
    sigma = jnp.ones((), location.dtype) if sigma is None else sigma
    log_sigma = jnp.broadcast_to(jnp.log(sigma).astype(location.dtype), location.shape)
    return (location, log_sigma), result


def _target(problem: Problem):
    """The data on the scale of the noise, with harmless numbers where there are none."""
    seen = problem.data.seen
    values = jnp.where(seen, problem.data.ys, jnp.ones((), problem.data.ys.dtype))
    return problem.noise.location(values), seen


def look(problem: Problem, x: Float[Array, " parameter"]) -> tuple[Look, Rows]:
    """Loss, gradient and Fisher information at `x`, by forward sensitivities.

    With location m and logarithmic noise level s the loss of a value z is
    r^2/2 + s, r = (z - m) exp(-s). Its gradient is (-r exp(-s), 1 - r^2), and the *expected*
    curvature is diag(exp(-2s), 2), which is what standard errors are made of as well.
    """

    def located(x):
        out, _ = _located(problem, x, "forward")
        return out, out

    (j_loc, j_log), (loc, log_sigma) = jax.jacfwd(located, has_aux=True)(x)
    z, seen = _target(problem)
    weight = jnp.exp(-log_sigma)
    flat = lambda j: jnp.where(seen[..., None], j, 0).reshape(-1, x.size)
    r = jnp.where(seen, (z - loc) * weight, 0)
    rows, target = flat(j_loc * weight[..., None]), -r.reshape(-1)
    misfit = loss = jnp.sum(r**2) / 2
    extra = jnp.zeros_like(x)
    if noise_is_free(problem):
        root = jnp.sqrt(jnp.asarray(2, x.dtype))
        loss = loss + jnp.sum(jnp.where(seen, log_sigma, 0))
        rows = jnp.concatenate([rows, root * flat(j_log)])
        target = jnp.concatenate([target, jnp.where(seen, 1 - r**2, 0).reshape(-1) / root])
    if any(informative(p) for p in problem.priors):
        value, extra, bend = prior_terms(problem, x)
        loss, misfit = loss + value, misfit + jnp.abs(value)
        rows = jnp.concatenate([rows, jnp.diag(jnp.sqrt(bend))])
        target = jnp.concatenate([target, jnp.zeros_like(x)])
    fine = all_finite((loss, rows, target, extra))
    return Look(x, loss, target, misfit, fine), Rows(rows, target, extra)


def prior_terms(problem: Problem, x):
    """Minus the log prior up to a constant, its gradient and a curvature, in the flat parameters."""
    values, slopes, bends = [jnp.zeros((), x.dtype)], [], []
    for slot, prior, theta in zip(problem.slots, problem.priors, problem.naturals(x), strict=True):
        if prior is None:
            slopes.append(jnp.zeros((slot.size,), x.dtype))
            bends.append(jnp.zeros((slot.size,), x.dtype))
            continue
        penalty = lambda v, prior=prior: _penalty(prior, v).astype(x.dtype)
        slope_of = jax.grad(penalty)
        slope, bend = jax.jvp(slope_of, (theta,), (jnp.ones_like(theta),))
        stretch = theta if slot.scale == "log" else jnp.ones_like(theta)
        values.append(penalty(theta))
        slopes.append(jnp.ravel(slope * stretch))
        # The curvature stands for a Hessian and must not be negative; the term with the second
        # derivative of the scale is left out, as Gauss and Newton do for residuals.
        bends.append(jnp.ravel(jnp.maximum(bend, 0) * stretch**2))
    none = [jnp.zeros((0,), x.dtype)]
    return sum(values), jnp.concatenate(none + slopes), jnp.concatenate(none + bends)


def _penalty(prior, value):
    own = getattr(prior, "penalty", None)
    return jnp.sum(own(value) if own is not None else -prior.log_prob(value))


def loss_at(problem: Problem, x, derivatives, mask: Bool[Array, " time"] | None = None):
    """The loss at `x` in two parts, that of the data (of the rows in `mask`) and that of the
    priors, and whether the solve went well."""
    (loc, log_sigma), result = _located(problem, x, derivatives)
    z, seen = _target(problem)
    seen = seen if mask is None else seen & mask[:, None]
    r = jnp.where(seen, (z - loc) * jnp.exp(-log_sigma), 0)
    total = jnp.sum(r**2) / 2
    if noise_is_free(problem):
        total = total + jnp.sum(jnp.where(seen, log_sigma, 0))
    return total, prior_terms(problem, x)[0], result == RESULTS.successful


def log_constant(problem: Problem, x) -> Float[Array, ""]:
    """What the loss leaves out of minus the log likelihood, for a known noise level."""
    data = problem.data
    noise = problem.unflatten(x)[2]
    sigma = sigma_of(problem, noise)
    per_value = np.log(2 * np.pi) / 2 - noise.log_slope(jnp.where(data.seen, data.ys, 1))
    if sigma is not None and not noise_is_free(problem):
        per_value = per_value + jnp.broadcast_to(jnp.log(sigma), data.ys.shape)
    return jnp.sum(jnp.where(data.seen, per_value, 0))


def residuals(problem: Problem) -> Callable[[Array], Array]:
    """The weighted residuals as a function of the flat parameters.

    **Returns:**

    A pure function from `x` (as `problem.initial()`) to an array of shape
    `(time, observable)`: (predicted - measured) / sigma on the scale of the noise, zero where
    there is no value. Without a known sigma they are not weighted.
    """

    def fn(x):
        (loc, log_sigma), _ = _located(problem, x, "any")
        z, seen = _target(problem)
        return jnp.where(seen, (loc - z) * jnp.exp(-log_sigma), 0)

    return fn


def loss(problem: Problem) -> Callable[[Array], Array]:
    """The negative log posterior without constants, as a function of the flat parameters.

    Half the sum of squared residuals, plus the logarithms of sigma if it is free, plus priors.
    Infinite, with a gradient of nan, where the solve fails.
    """

    def fn(x):
        value, prior, ok = loss_at(problem, x, "any")
        value = value + prior
        return jnp.where(ok & jnp.isfinite(value), value, jnp.inf)

    return fn


def log_density(problem: Problem) -> Callable[[Array], Array]:
    """The log posterior with its constants, as a function of the flat parameters.

    It is a density of the *natural* values; a sampler that moves in the flat ones has to add the
    logarithm of the scale for log-scaled parameters. Minus infinity outside of the bounds and
    where the solve fails. Needs a known or free sigma.
    """
    if problem.data.sigma is None and problem.noise.sigma is None:
        raise ValueError(
            "A density needs a noise level: give `sigma` in the data, or "
            "`noise=fit.noise.Normal(sigma=…)` and free 'noise.sigma'."
        )

    def fn(x):
        value, _, ok = loss_at(problem, x, "any")
        value = value + log_constant(problem, x)
        for prior, theta in zip(problem.priors, problem.naturals(x), strict=True):
            if prior is not None:
                value = value - jnp.sum(prior.log_prob(theta))
        inside = jnp.all((x >= problem.lower) & (x <= problem.upper))
        return jnp.where(ok & inside & jnp.isfinite(value), -value, -jnp.inf)

    return fn

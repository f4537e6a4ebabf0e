"""The pure functions under the verbs, for users who bring their own optimiser or sampler."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ._blocks import Member, over
from ._levels import laws_of, level_is_free, levelled, spread
from ._likelihood import loss_at
from ._problem import Problem
from ._simulate import predict_at


def log_constant(problem: Problem, x) -> Float[Array, ""]:
    """What the loss leaves out of minus the log likelihood, for a known noise level."""
    free = level_is_free(problem)

    def one(member: Member):
        parts = problem.parts_in(member.index, problem.local(x, member.index))
        data = member.data
        harmless = jnp.where(data.seen, data.ys, 1)
        s = spread(parts[2], problem.observables, data, harmless)[1]
        columns = []
        for law, place in laws_of(parts[2], problem.observables):
            ss, zz = s[:, place], law.location(harmless[:, place])
            c = law.constant(zz) + (0 if free else law.baseline(ss, zz))
            columns.append(jnp.broadcast_to(c, zz.shape))
        every = jnp.concatenate(columns, axis=1)
        counted = data.seen if data.censored is None else data.seen & (data.censored == 0)
        total = jnp.sum(jnp.where(counted, every, 0))
        return total if data.log_det is None else total + data.log_det

    return jnp.sum(jnp.concatenate([over(block, one) for block in problem.blocks]))


def residuals(problem: Problem) -> Callable[[Array], Array]:
    """The weighted residuals as a function of the flat parameters.

    **Returns:**

    A pure function from `x` (as `problem.initial()`) to an array of shape
    `(time, observable)`: (predicted - measured) / sigma on the scale of the noise, zero where
    there is no value. Without a known sigma they are not weighted. For several experiments those of all in one
    vector.
    """

    def fn(x):
        def one(member: Member):
            local = problem.local(x, member.index)
            pred, _, parts = predict_at(problem, local, member, member.data.ts, "any")
            m, s, z = spread(parts[2], problem.observables, member.data, pred)
            return jnp.where(member.data.seen, (m - z) * jnp.exp(-s), 0)

        out = [over(block, one) for block in problem.blocks]
        return (
            out[0][0]
            if len(problem.experiments) == 1
            else jnp.concatenate([r.ravel() for r in out])
        )

    return fn


def loss(problem: Problem) -> Callable[[Array], Array]:
    """The negative log posterior without constants, as a function of the flat parameters.

    For normal noise half the sum of squared residuals, plus the logarithms of sigma if it is free, plus priors.
    Infinite, with a gradient of nan, where the solve fails.
    """

    def fn(x):
        value, prior, ok, _ = loss_at(problem, x, "any")
        value = value + prior
        return jnp.where(ok & jnp.isfinite(value), value, jnp.inf)

    return fn


def gradient_and_hessian(problem: Problem) -> Callable[[Array], tuple[Array, Array]]:
    """The exact gradient and Hessian of `loss`, as a function of the flat parameters.

    **Returns:**

    A pure function from `x` to arrays of shapes `(parameter,)` and `(parameter, parameter)`.
    """
    fn = loss(problem)

    def both(x):
        gradient = jax.grad(fn)
        return gradient(x), jax.jacfwd(gradient)(x)

    return both


def log_density(problem: Problem) -> Callable[[Array], Array]:
    """The log posterior with its constants, as a function of the flat parameters.

    It is a density of the *natural* values; a sampler that moves in the flat ones has to add the
    logarithm of the scale for log-scaled parameters. Minus infinity outside of the bounds and
    where the solve fails. Needs a known or free sigma.
    """
    if not levelled(problem):
        raise ValueError(
            "A density needs a noise level: give `sigma` in the data, or "
            "`noise=fit.noise.Normal(sigma=…)` and free 'noise.sigma'."
        )

    def fn(x):
        value, _, ok, _ = loss_at(problem, x, "any")
        value = value + log_constant(problem, x)
        for prior, theta in zip(problem.priors, problem.naturals(x), strict=True):
            if prior is not None:
                value = value - jnp.sum(prior.log_prob(theta))
        inside = jnp.all((x >= problem.lower) & (x <= problem.upper))
        return jnp.where(ok & inside & jnp.isfinite(value), -value, -jnp.inf)

    return fn

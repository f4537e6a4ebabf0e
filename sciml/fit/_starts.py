"""Where the optimiser begins."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ._likelihood import loss_at
from ._problem import Problem


SAMPLERS = ("hypercube", "sobol", "prior")


def draw(problem: Problem, starts: int, key: Any, sampler: str) -> Float[Array, "start parameter"]:
    """Flat starts; the first is the problem's own."""
    own = problem.initial()[None]
    if starts == 1:
        return own
    if key is None:
        raise ValueError(
            "`starts` > 1 draws at random: pass `key=jax.random.key(0)` or another seed."
        )
    rows, n = starts - 1, own.shape[1]
    place, spread, prior = jax.random.split(key, 3)
    points = _sobol(place, rows, n) if sampler == "sobol" else _hypercube(place, rows, n)
    unit = points.astype(own.dtype)
    low, high = problem.lower[None], problem.upper[None]
    boxed = jnp.isfinite(low) & jnp.isfinite(high)
    inside = jnp.where(boxed, low, 0) + unit * jnp.where(boxed, high - low, 0)
    # Around the initial value: a factor of e on a log scale, its own size on a linear one.
    logs = jnp.asarray(problem.log_scaled())[None]
    size = jnp.where(logs, 1.0, jnp.maximum(jnp.abs(own), 1e-3)).astype(own.dtype)
    around = own + size * jax.random.normal(spread, (rows, n), own.dtype)
    around = jnp.where(around < low, 2 * low - around, around)  # mirrored at a single bound
    around = jnp.where(around > high, 2 * high - around, around)
    drawn = jnp.where(boxed, inside, around)
    if sampler == "prior":
        drawn = _from_priors(problem, prior, drawn)
    return jnp.concatenate([own, jnp.clip(drawn, low, high)])


def _hypercube(key, rows: int, n: int) -> Array:
    """A Latin hypercube: each parameter's range is cut into as many cells as there are rows."""
    shuffle, place = jax.random.split(key)
    cells = jax.vmap(lambda k: jax.random.permutation(k, rows), out_axes=1)(
        jax.random.split(shuffle, n)
    )
    return (cells.astype(float) + jax.random.uniform(place, (rows, n), float)) / rows


def _sobol(key, rows: int, n: int) -> Array:
    from scipy.stats import qmc

    seed = int(jax.random.randint(key, (), 0, np.iinfo(np.int32).max))
    # Its balance holds for powers of two.
    points = qmc.Sobol(n, rng=np.random.default_rng(seed)).random_base2(
        int(np.ceil(np.log2(max(rows, 2))))
    )
    return jnp.asarray(points[:rows])


def _from_priors(problem: Problem, key, drawn: Array) -> Array:
    """Draws of the priors where parameters have one that can be drawn from."""
    if not any(hasattr(prior, "sample") for prior in problem.priors):
        raise ValueError(
            '`sampler="prior"` needs priors to draw from: give them, `fit.Free(prior=fit.priors.Normal(…))`.'
        )
    columns, start = [], 0
    for slot, prior, k in zip(
        problem.slots, problem.priors, jax.random.split(key, len(problem.slots)), strict=True
    ):
        part = drawn[:, start : start + slot.size]
        start += slot.size
        if hasattr(prior, "sample"):
            values = prior.sample(k, part.shape).astype(drawn.dtype)
            part = jnp.log(values) if slot.scale == "log" else values
        columns.append(part)
    return jnp.concatenate(columns, axis=1)


def screen(problem: Problem, xs: Array, keep: int) -> Array:
    """The first start, and the best of the others by their loss."""
    losses = _losses(problem, xs[1:])
    order = np.argsort(np.where(np.isfinite(losses), losses, np.inf), kind="stable")
    return jnp.concatenate([xs[:1], xs[1:][order[: keep - 1]]])


@eqx.filter_jit
def _losses(problem: Problem, xs: Array) -> Array:
    def one(x):
        value, prior, fine, _ = loss_at(problem, x, "forward")
        return jnp.where(fine, value + prior, jnp.inf)

    return jax.lax.map(one, xs)

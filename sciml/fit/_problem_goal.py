"""Training of a problem: its mean loss, up to a horizon, on all of it or some."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from ._batches import drawn
from ._blocks import Member
from ._experiment import with_fields
from ._goal import AbstractGoal, Part, Seen
from ._laws import Normal
from ._levels import laws_of, levelled
from ._likelihood import loss_at
from ._problem import Problem
from ._solving import Solve


class ProblemGoal(AbstractGoal):
    """The mean loss per measured value, over parameters by name on their scales.

    - `validation`: the same problem on other data.
    - `batch`: how many experiments enter a step, of one experiment how many rows.
    - `steer`: by which share of the gaps between them times of the data are shifted at random.
    """

    problem: Problem
    validation: Problem | None
    horizon: Any
    batch: int | None = eqx.field(static=True)
    steer: float = eqx.field(static=True)

    @property
    def judges(self) -> bool:
        return True

    def loss(self, params, batch, key, step, steps, part: Part | None = None):
        del batch
        problem, size = self.problem, self.batch
        dtype = problem.blocks[0].data.ts.dtype
        share = self.horizon.share(step / jnp.maximum(steps - 1, 1)).astype(dtype)
        chosen = None
        if size is not None and len(problem.experiments) > 1:
            problem = with_fields(problem, blocks=_some_experiments(problem, key, step, size))
        elif size is not None:
            chosen = _some_rows(problem, key, step, size)
        if self.steer:
            lots = jax.random.fold_in(jax.random.fold_in(key, step), 1)
            problem = with_fields(problem, blocks=_shifted(problem, lots, self.steer))
        if part is not None:
            problem = with_fields(problem, blocks=tuple(_share(b, part) for b in problem.blocks))
        loss, ok = _mean(problem, self.problem, params, share, chosen, part)
        all_alike = size is None and not self.steer and self.validation is None
        return loss, Seen({}, ok, jnp.asarray(all_alike) & (share >= 1))

    def whole(self, params, key):
        return mean_loss(self.problem if self.validation is None else self.validation, params)

    def settled(self, step, steps):
        return not self.horizon.grows or 2 * step >= steps - 1

    def project(self, params):
        low, high = split(self.problem, self.problem.lower), split(self.problem, self.problem.upper)
        return jax.tree.map(jnp.clip, params, low, high)


@eqx.filter_jit
def mean_loss(problem: Problem, params: dict[str, Array]) -> tuple[Array, Array]:
    """The loss per value on all data, infinite if a solve fails, and whether none does."""
    data, prior, ok, count = loss_at(problem, join(problem, params), "forward")
    total = data + prior
    ok = ok & jnp.isfinite(total)
    return jnp.where(ok, total, jnp.inf) / count.astype(total.dtype), ok


def _mean(problem: Problem, every: Problem, params, share, chosen, part: Part | None):
    """The loss per value of what is in sight of `every` experiment, or what a part adds to it."""
    data, prior, ok, count = loss_at(problem, join(problem, params), "reverse", share, chosen)
    # A prior weighs the same against each value, however many are in sight.
    size = sum((jnp.sum(block.data.seen) for block in every.blocks), jnp.zeros((), int))
    if part is not None:
        count, prior = part.total(count), prior / part.count
    return data / jnp.maximum(count, 1).astype(data.dtype) + prior / size.astype(data.dtype), ok


def split(problem: Problem, x: Array) -> dict[str, Array]:
    """The flat parameters by name, on their scales."""
    out, start = {}, 0
    for slot in problem.slots:
        out[slot.name] = x[start : start + slot.size].reshape(slot.shape)
        start += slot.size
    return out


def join(problem: Problem, params: dict[str, Array]) -> Array:
    """The inverse of `split`, by name: JAX sorts the keys of a dict."""
    return jnp.concatenate([jnp.ravel(params[slot.name]) for slot in problem.slots])


def for_training(problem: Problem, balance: bool) -> Problem:
    """The problem as training looks at it.

    Training needs no more digits than its loss has; and observables of different sizes, if nobody said how exact
    they are, count in units of how much they vary.
    """
    old = problem.solve
    rtol = 1e-6 if old.rtol is None else old.rtol
    atol = 1e-8 if old.atol is None else old.atol
    if problem.lower.dtype.itemsize < 8:
        rtol, atol = old.rtol, old.atol  # single precision has its own defaults
    solve = Solve(old.method, rtol, atol, old.steps, old.max_steps)
    problem = with_fields(problem, solve=solve)
    laws = [law for law, _ in laws_of(problem.noise, problem.observables)]
    plain = all(type(law) is Normal for law in laws) and not levelled(problem)
    if balance and plain and len(problem.observables) > 1:
        size = _spread(problem)
        return with_fields(problem, noise=Normal(jnp.asarray(size, problem.dtype)))
    return problem


def _spread(problem: Problem) -> np.ndarray:
    """The standard deviation of each observable over all experiments."""
    ys, seen = (
        np.concatenate([np.reshape(v, (-1, len(problem.observables))) for v in parts])
        for parts in (
            [np.asarray(b.data.ys) for b in problem.blocks],
            [np.asarray(b.data.seen) for b in problem.blocks],
        )
    )
    size = np.array([np.std(y[s]) if s.any() else 1.0 for y, s in zip(ys.T, seen.T, strict=True)])
    return np.where(size > 1e-6 * np.max(size, initial=0.0), size, 1.0)


def _some_experiments(problem: Problem, key, step, size: int) -> tuple[Member, ...]:
    """The experiments of one step, of each block its share of them and at least one."""
    total = len(problem.experiments)
    out = []
    for k, block in enumerate(problem.blocks):
        few = min(max(1, round(size * block.count / total)), block.count)
        out.append(_pick(block, drawn(jax.random.fold_in(key, k), step, few, block.count)))
    return tuple(out)


def _pick(block: Member, at: Int[Array, " member"]) -> Member:
    arrays, static = eqx.partition(block, eqx.is_array)
    return eqx.combine(jax.tree.map(lambda x: x[at], arrays), static)


def _share(block: Member, part: Part) -> Member:
    """The experiments for one device; of those that only fill it up nothing is seen."""
    at, real = part.share(jnp.arange(block.count))
    block = _pick(block, at)
    seen = block.data.seen & real[:, None, None]
    return with_fields(block, data=with_fields(block.data, seen=seen))


def _some_rows(problem: Problem, key: Array, step, size: int) -> list[Array]:
    """Which rows of the only experiment are in a batch, at the turn of an epoch perhaps fewer; padding is in none."""
    (block,), (rows,) = problem.blocks, problem.rows
    padded = block.data.ts.shape[1]
    at = drawn(key, step, size, rows)
    return [jnp.zeros((1, padded), bool).at[0, at].set(True)]


def _shifted(problem: Problem, key, share: float) -> tuple[Member, ...]:
    """Experiments whose times but for the first are shifted at random, by up to `share` of half the smaller gap beside.

    So none overtakes another; all rows of one time go together.
    """
    out = []
    for k, block in enumerate(problem.blocks):
        lots = jax.random.split(jax.random.fold_in(key, k), block.count)
        ts = jax.vmap(_shift, in_axes=(0, 0, None))(block.data.ts, lots, share)
        out.append(with_fields(block, data=with_fields(block.data, ts=ts)))
    return tuple(out)


def _shift(ts: Array, key: Array, share: float) -> Array:
    # Times that are tied, as padding is, are one group, counted from 0.
    group = jnp.cumsum(jnp.diff(ts, prepend=ts[:1]) > 0)
    distinct = jnp.full(ts.shape, ts[-1]).at[group].set(ts)
    before = jnp.diff(distinct, prepend=distinct[:1])
    after = jnp.diff(distinct, append=distinct[-1:])
    room = jnp.minimum(before, jnp.where(after > 0, after, before)) / 2
    lot = jax.random.uniform(key, ts.shape, ts.dtype, -1, 1)
    return ts + (share * lot * room)[group]

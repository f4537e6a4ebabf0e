"""Experiments cut into windows at the times of data, and states there to start from."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ..solvers._checks import check_method
from ..solvers._core import solve_core
from ._blocks import Member, member_of, over
from ._levels import laws_of, levels_at
from ._problem import Problem
from ._simulate import _start
from ._smooth import Curve, smooth


_GRID = 400  # pieces of a curve that a solve follows
_WINDOWS = 100  # by default, at most


class Windows(eqx.Module):
    """How the experiments of a block are cut.

    - `edges`: times between which the windows lie.
    - `rows`, `used`: which rows of the data lie in each; padded where there are fewer.
    - `z`, `weight`: the data on the scale of their law, and one over their standard deviations; 0 where there is
      none.
    """

    edges: Float[Array, "experiment edge"]
    rows: Int[Array, "experiment window row"]
    used: Bool[Array, "experiment window row"]
    z: Float[Array, "experiment time observable"]
    weight: Float[Array, "experiment time observable"]

    @property
    def count(self) -> int:
        return self.rows.shape[1]


def refuse(problem: Problem, what: str) -> None:
    """Refuses problems whose solution jumps at given times."""
    for block in problem.blocks:
        if block.stops.doses or block.stops.events:
            raise ValueError(
                f"`{what}` can't deal with doses yet. Give what comes in as a function of time instead, as an "
                "`Input` that the model reads."
            )


def cut(problem: Problem, count: int | None) -> tuple[Windows, ...]:
    """Cuts at times of the data, with about as many of them in each window.

    By default there are two values for each number of the state in a window, and at most 100 windows.
    """
    every = range(len(problem.experiments))
    times = [data_times(problem, i) for i in every]
    poorest = min(every, key=lambda i: len(times[i]))
    room = len(times[poorest]) - 1
    if count is None:
        unknown = flat_state(problem, member_of(problem.blocks[0], 0))[0]
        values = problem.size // len(problem.experiments)
        count = max(1, min(_WINDOWS, room, values // (2 * unknown)))
    if count > room:
        name = problem.experiments[poorest]
        where = f" of experiment {name!r}" if name else ""
        raise ValueError(
            f"{count} windows need {count + 1} different times, but the data{where} have {room + 1}. "
            f"Use `windows={max(room // 2, 1)}`, or leave it out."
        )
    return tuple(_cut(problem, block, times, count) for block in problem.blocks)


def _cut(problem: Problem, block: Member, all_times: list[np.ndarray], count: int) -> Windows:
    edges, places = [], []
    for e in range(block.count):
        i = int(block.index[e])
        ts = np.asarray(block.data.ts[e])[: problem.rows[i]]
        times = all_times[i]
        at = times[np.round(np.linspace(0, len(times) - 1, count + 1)).astype(int)]
        edges.append(at)
        window = np.clip(np.searchsorted(at, ts, side="right") - 1, 0, count - 1)
        places.append([np.flatnonzero(window == k) for k in range(count)])
    size = max(1, max(len(p) for rows in places for p in rows))
    shape = (block.count, count, size)
    rows, used = np.zeros(shape, int), np.zeros(shape, bool)
    for e, by_window in enumerate(places):
        for k, p in enumerate(by_window):
            rows[e, k, : len(p)], used[e, k, : len(p)] = p, True
    z, weight = over(block, lambda m: _weighed(problem, m))
    edges = jnp.asarray(np.stack(edges), block.data.ts.dtype)
    return Windows(edges, jnp.asarray(rows), jnp.asarray(used), z, weight)


def data_times(problem: Problem, experiment: int) -> np.ndarray:
    """The start of an experiment and the times of its data, each once."""
    for block in problem.blocks:
        for e in np.flatnonzero(np.asarray(block.index) == experiment):
            ts = np.asarray(block.data.ts[e])[: problem.rows[experiment]]
            return np.unique(np.append(ts, float(block.t0[e])).astype(ts.dtype))
    raise IndexError(experiment)


def _weighed(problem: Problem, member: Member) -> tuple[Array, Array]:
    """The data on the scale of their law, and one over their standard deviations at the current values."""
    data = member.data
    noise = problem.parts_in(member.index, problem.local(problem.initial(), member.index))[2]
    harmless = jnp.where(data.seen, data.ys, 1)
    z, weight = [], []
    for law, place in laws_of(noise, problem.observables):
        value, level = harmless[:, place], law.level
        if callable(level):
            # The data stand for the prediction; close to zero they would weigh too much.
            level = levels_at(level, harmless)[:, place]
            level = jnp.maximum(level, 0.1 * jnp.mean(level, axis=0))
        elif level is None:
            level = jnp.ones((), value.dtype) if data.sigma is None else data.sigma[:, place]
        z.append(law.location(value))
        weight.append(jnp.broadcast_to(1 / level, value.shape))
    z, weight = jnp.concatenate(z, axis=1), jnp.concatenate(weight, axis=1)
    if data.whitener is not None:
        # The errors given all others.
        weight = jnp.sqrt(jnp.sum(data.whitener**2, axis=1)).reshape(z.shape)
    counted = data.seen if data.censored is None else data.seen & (data.censored == 0)
    return jnp.where(counted, z, 0), jnp.where(counted, weight, 0).astype(z.dtype)


def flat_state(problem: Problem, member: Member) -> tuple[int, Callable[[Array], Any]]:
    """The size of the state, and what gives a flat one its structure."""

    def start():
        local = problem.local(problem.initial(), member.index)
        return initial_state(problem, local, member)[0]

    like = jax.eval_shape(start)
    if any(jnp.issubdtype(s.dtype, jnp.complexfloating) for s in jax.tree.leaves(like)):
        raise ValueError("Windows need a real state: give real and imaginary parts as two numbers.")
    flat, unravel = jax.flatten_util.ravel_pytree(
        jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), like)
    )
    return flat.shape[0], lambda y: unravel(y.astype(flat.dtype))


def initial_state(problem: Problem, local: Array, member: Member):
    """The initial state, and whether it came to rest, if it had to."""
    return _start(problem, local, member, problem.parts_in(member.index, local))


def flatten(y: Any) -> Float[Array, " number"]:
    return jax.flatten_util.ravel_pytree(y)[0]


def curves(problem: Problem, block: Member) -> list[Curve]:
    """A smooth curve through the data of each experiment, on their natural scale."""
    out = []
    for e in range(block.count):
        member = member_of(block, e)
        n = problem.rows[int(member.index)]
        data = member.data
        seen = np.asarray(data.seen)[:n]
        if data.censored is not None:
            seen = seen & (np.asarray(data.censored)[:n] == 0)
        weights = None if data.sigma is None else 1 / np.asarray(data.sigma)[:n]
        ys = np.where(seen, np.asarray(data.ys)[:n], 0)
        out.append(smooth(np.asarray(data.ts)[:n], ys, seen, weights)[0])
    return out


class _Pulled(eqx.Module):
    """A model that is drawn to the data, where they say something of the state."""

    model: Any
    see: Any
    unravel: Any = eqx.field(static=True)
    start: Array
    step: Array
    values: Float[Array, "time observable"]
    slopes: Float[Array, "time observable"]
    known: Float[Array, " observable"]
    gain: Array

    def data(self, t):
        """The curve through the data, by cubic pieces."""
        last = self.values.shape[0] - 2
        u = jnp.clip((t - self.start) / self.step, 0, last + 1)
        k = jnp.clip(jnp.floor(u).astype(jnp.result_type(int)), 0, last)
        r = u - k.astype(u.dtype)
        a, b = self.values[k], self.values[k + 1]
        va, vb = self.slopes[k] * self.step, self.slopes[k + 1] * self.step
        return a + r * (va + r * (3 * (b - a) - 2 * va - vb + r * (2 * (a - b) + va + vb)))

    def __call__(self, t, y, args):
        flat = flatten(y)
        see = lambda flat: self.see(t, self.unravel(flat), args)
        h = jax.jacfwd(see)(flat) * self.known[:, None]
        off = (self.data(t) - see(flat)) * self.known
        gram = h @ h.T
        size = jnp.trace(gram) + jnp.finfo(h.dtype).tiny
        eye = jnp.eye(len(gram), dtype=h.dtype)
        pull = h.T @ jnp.linalg.solve(gram + 1e-6 * size * eye, off)
        return self.unravel(flatten(self.model(t, y, args)) + self.gain * pull)


def window_states(
    problem: Problem, x: Array, cuts: tuple[Windows, ...]
) -> tuple[list[Array], Array]:
    """States at the inner edges of all windows: smoothed data, and what the model makes of those for the rest.

    **Returns:**

    For each block an array of shape `(experiment, window-1, number)`, and the size of each number of the state.
    """
    states, sizes = [], []
    for block, windows in zip(problem.blocks, cuts, strict=True):
        lines = curves(problem, block)
        known = np.asarray(jnp.any(windows.weight > 0, axis=1))
        order = numbers_seen(problem, member_of(block, 0))
        if order is not None and known.all():
            back, ends = np.argsort(order), np.asarray(windows.edges)
            tables = [c.table(t)[:, back] for c, t in zip(lines, ends, strict=True)]
            found = jnp.asarray(np.stack(tables)[:, 1:-1], x.dtype)
            spread = jnp.asarray([_spread(c)[back] for c in lines], x.dtype)
        else:
            found, spread = _pulled(problem, x, block, windows, lines, jnp.asarray(known))
        states.append(found)
        sizes.append(jnp.max(spread, axis=0))
    size = jnp.max(jnp.stack(sizes), axis=0)
    return states, jnp.where(size > 0, size, 1)


def _spread(curve: Curve) -> np.ndarray:
    breaks = np.asarray(curve.breaks)
    return np.std(curve.table(np.linspace(breaks[0], breaks[-1], 200)), axis=0)


def numbers_seen(problem: Problem, member: Member) -> np.ndarray | None:
    """Which number of the state each observable is, if they are all of the state's numbers."""
    if problem.observe is not None:
        return None
    size, unravel = flat_state(problem, member)
    parts = problem.parts()
    order = problem.observed(parts, member.t0, unravel(jnp.arange(size).astype(problem.dtype)))
    return np.asarray(order).astype(int)


@eqx.filter_jit
def _pulled(problem, x, block, windows, lines, known):
    first, last = windows.edges[:, 0], windows.edges[:, -1]
    grid = [jnp.linspace(a, b, _GRID + 1) for a, b in zip(first, last, strict=True)]
    inside = [jnp.clip(t, c.breaks[0], c.breaks[-1]) for t, c in zip(grid, lines, strict=True)]
    values = jnp.stack([jax.vmap(c)(t) for c, t in zip(lines, inside, strict=True)])
    slopes = jnp.stack([jax.vmap(c.slope)(t) for c, t in zip(lines, inside, strict=True)])

    def one(member: Member, edges, values, slopes, known):
        local = problem.local(x, member.index)
        parts = problem.parts_in(member.index, local)
        flat = flatten(initial_state(problem, local, member)[0])
        unravel = flat_state(problem, member)[1]
        span = edges[-1] - edges[0]
        see = lambda t, y, args: problem.observed(parts, t, y, args)
        step, gain = span / _GRID, _GRID / 4 / span
        known = known.astype(flat.dtype)
        model = _Pulled(parts[0], see, unravel, edges[0], step, values, slopes, known, gain)
        method, steps, max_steps = check_method(problem.solve.method, None, 4096)
        tols = (jnp.asarray(1e-4, flat.dtype), jnp.asarray(1e-6, flat.dtype))
        sol = solve_core(model, unravel(flat), edges, member.args, method, *tols, steps, max_steps)
        ys = jax.vmap(flatten)(sol.ys)
        # With wrong parameters, what is not seen may grow beyond all measure.
        limit = 1e3 * (jnp.max(jnp.abs(values)) + jnp.max(jnp.abs(flat)))
        fine = jnp.all(jnp.isfinite(ys) & (jnp.abs(ys) < limit), axis=0)
        ys = jnp.where(fine[None], ys, flat[None])
        size, largest = jnp.std(ys, axis=0), jnp.max(jnp.abs(ys), axis=0)
        size = jnp.where(size > 1e-3 * largest, size, jnp.max(largest))
        return ys[1:-1].astype(x.dtype), size.astype(x.dtype)

    return over(block, one, windows.edges, values, slopes, known)

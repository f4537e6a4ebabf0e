"""The times at which a solve must stop, known beforehand: knots of inputs, doses, discontinuities.

They divide the span into pieces, on each of which the equations are smooth.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ._doses import Doses
from ._input import Input


class Timeline(eqx.Module):
    """The pieces of a solve. Times are those elapsed since its start.

    - `edges`: their ends; piece i lies between i and i + 1.
    - `jumps`: what is added to the flat state where each piece begins (and none at the end), and `rates` to
      its slope during the piece; `None` for nothing.
    - `intervals`: for each input in which interval of its knots each piece lies.
    - `piece_of_row`: in which piece each save time lies.
    - `sound`: whether knots increase, and doses can be given: not before the start, not backwards in time, over
      a positive duration.
    """

    edges: Float[Array, " piece_and_one"]
    jumps: Float[Array, "piece_and_one n"] | None
    rates: Float[Array, "piece n"] | None
    intervals: list[Int[Array, " piece"]]
    piece_of_row: Int[Array, " time"]
    sound: Bool[Array, ""]


def timeline(
    ts: Array,
    inputs: list[Input],
    tables: tuple[Doses, ...],
    discontinuities: Array | None,
    side: str,
    columns: list[Any],
    n: int,
    dtype: Any,
) -> Timeline:
    """**Arguments:**

    - `columns`: of each table, into which number of the flat state each dose goes.
    - `side`: whether a save time at an edge lies `"before"` or `"after"` it.
    """
    elapsed = (ts - ts[0]).astype(dtype)
    sign = jnp.where(elapsed[-1] < 0, -1, 1).astype(dtype)
    end = sign * elapsed[-1]
    since = lambda t: sign * (t.astype(ts.dtype) - ts[0]).astype(dtype)
    # `where`, not `clip`: at a tie the derivative is that of the time itself.
    low = lambda u: jnp.where(u < 0, jnp.zeros_like(u), u)
    inside = lambda u: jnp.where(low(u) > end, end, low(u))

    stops, added = [], []  # times, and what each adds to the state

    def stop(u, into=None, amounts=None) -> np.ndarray:
        """Adds stops.

        **Returns:**

        Their places among all.
        """
        first = sum(x.shape[0] for x in stops)
        stops.append(inside(u))
        rows = jnp.zeros((u.shape[0], n), dtype)
        if amounts is not None:
            amounts = jnp.where((u >= 0) & (u <= end), amounts.astype(dtype), 0)
            rows = rows.at[jnp.arange(u.shape[0]), jnp.asarray(into)].set(amounts)
        added.append(rows)
        return np.arange(first, first + u.shape[0])

    sound = jnp.array(True)
    knots = []
    for u in inputs:
        sound = sound & jnp.all(jnp.diff(u.times) >= 0) & jnp.all(jnp.isfinite(u.times))
        knots.append(stop(since(u.times)))
    if discontinuities is not None:
        stop(since(discontinuities))
    infusions = []
    for table, into in zip(tables, columns, strict=True):
        begin = since(table.times)
        last = begin if table.duration is None else begin + table.duration.astype(dtype)
        sound = sound & (sign > 0) & jnp.all(last >= 0)
        if table.duration is None:
            stop(begin, into, table.amounts)
            continue
        sound = sound & jnp.all(table.duration > 0)
        rate = (table.amounts / table.duration).astype(dtype)
        each = rate[:, None] * jnp.eye(n, dtype=dtype)[into]
        infusions.append((stop(begin), stop(last), each))

    times = jnp.concatenate([elapsed[:0], *stops])
    jumps = jnp.concatenate([jnp.zeros((0, n), dtype), *added])
    order = jnp.argsort(jax.lax.stop_gradient(times), stable=True)
    times, jumps = times[order], jumps[order]
    edges = jnp.concatenate([0 * end[None], times, end[None]])
    # By rank, not by time: of stops at the same time each has its own side, so that each has its derivative.
    rank, piece = jnp.argsort(order), jnp.arange(times.shape[0] + 1)
    passed = lambda places: rank[places][None] < piece[:, None]
    rates = None
    for first, final, rate in infusions:
        more = (passed(first) & ~passed(final)).astype(dtype) @ rate
        rates = more if rates is None else rates + more
    counts = [jnp.sum(passed(places), axis=1) for places in knots]
    intervals = [
        jnp.where(sign > 0, count - 1, u.times.shape[0] - 1 - count)
        for u, count in zip(inputs, counts, strict=True)
    ]
    rows = sign * elapsed
    before = (times[None] <= rows[:, None]) if side == "after" else (times[None] < rows[:, None])
    none = jnp.zeros((1, n), dtype)
    return Timeline(
        edges=sign * edges,
        jumps=jnp.concatenate([none, jumps, none]) if tables else None,
        rates=rates,
        intervals=intervals,
        piece_of_row=jnp.sum(before, axis=1),
        sound=sound,
    )

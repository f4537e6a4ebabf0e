"""The times at which a solve must stop, known beforehand: knots of inputs, doses, discontinuities.

They divide the span into pieces, on each of which the equations are smooth.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ._doses import Doses
from ._input import Input


class Timeline(eqx.Module):
    """The pieces of a solve. Times are those elapsed since its start.

    - `edges`: their ends; piece i lies between i and i + 1.
    - `jumps`: what is added to the flat state where each piece begins (and none at the end), and `rates` to
      its slope during the piece; `None` for nothing.
    - `intervals`: for each input in which interval of its knots each piece lies.
    - `piece_of_row`: in which piece each save time lies.
    """

    edges: Float[Array, " piece_and_one"]
    jumps: Float[Array, "piece_and_one n"] | None
    rates: Float[Array, "piece n"] | None
    intervals: list[Int[Array, " piece"]]
    piece_of_row: Int[Array, " time"]


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

    def stop(u, into=None, amounts=None):
        stops.append(inside(u))
        rows = jnp.zeros((u.shape[0], n), dtype)
        if amounts is not None:
            amounts = jnp.where((u >= 0) & (u <= end), amounts.astype(dtype), 0)
            rows = rows.at[jnp.arange(u.shape[0]), jnp.asarray(into)].set(amounts)
        added.append(rows)

    for u in inputs:
        stop(since(u.times))
    if discontinuities is not None:
        stop(since(discontinuities))
    infusions = []
    for table, into in zip(tables, columns, strict=True):
        begin = since(table.times)
        if table.duration is None:
            stop(begin, into, table.amounts)
            continue
        finish = begin + table.duration.astype(dtype)
        stop(begin)
        stop(finish)
        rate = (table.amounts / table.duration).astype(dtype)
        infusions.append(
            (inside(begin), inside(finish), rate[:, None] * jnp.eye(n, dtype=dtype)[into])
        )

    times, jumps = (
        jnp.concatenate([elapsed[:0], *stops]),
        jnp.concatenate([jnp.zeros((0, n), dtype), *added]),
    )
    order = jnp.argsort(jax.lax.stop_gradient(times))
    times, jumps = times[order], jumps[order]
    edges = jnp.concatenate([0 * end[None], times, end[None]])
    begins, ends = edges[:-1], edges[1:]
    rates = None
    for first, last, rate in infusions:
        active = (first[None] <= begins[:, None]) & (last[None] >= ends[:, None])
        more = active.astype(dtype) @ rate
        rates = more if rates is None else rates + more
    middle = jax.lax.stop_gradient(begins + ends) / 2
    knots = [sign * jax.lax.stop_gradient(since(u.times)) for u in inputs]
    intervals = [jnp.searchsorted(k, sign * middle, side="right") - 1 for k in knots]
    rows = sign * elapsed
    passed = (times[None] <= rows[:, None]) if side == "after" else (times[None] < rows[:, None])
    none = jnp.zeros((1, n), dtype)
    return Timeline(
        edges=sign * edges,
        jumps=jnp.concatenate([none, jumps, none]) if tables else None,
        rates=rates,
        intervals=intervals,
        piece_of_row=jnp.sum(passed, axis=1),
    )

"""Experiments of the same form, stacked, so that a program holds the model once for all of them.

Times are padded with the last one and the values there marked as not seen: no step is taken for them, and they have
no influence. Experiments whose `args` or doses have other shapes form blocks of their own.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ..solvers._stops import Stops
from ._data import Data
from ._experiment import Equilibrium, with_fields


class Member(eqx.Module):
    """What one experiment has of its own; in a block with a leading axis.

    - `index`: its number among all experiments.
    - `rest`: where its initial state is one at rest.
    """

    index: Int[Array, "*block"]
    data: Data
    t0: Float[Array, "*block"]
    args: Any
    stops: Stops
    rest: Equilibrium | None

    @property
    def count(self) -> int:
        return self.index.shape[0]


def stack(members: list[Member]) -> tuple[Member, ...]:
    """Blocks of members of the same form, in the order of their first members."""
    blocks: list[list[Member]] = []
    for member in members:
        home = next((b for b in blocks if _alike(b[0], member)), None)
        if home is None:
            blocks.append([member])
        else:
            home.append(member)
    return tuple(_joined(block) for block in blocks)


def over(block: Member, fn: Callable[..., Any], *more: Array, together: bool = False) -> Any:
    """`fn` of each member and of its part of `more`, stacked; `together` if none has to wait for another."""
    arrays, static = eqx.partition((block, *more), eqx.is_array)
    one = lambda a: fn(*eqx.combine(a, static))
    if block.count == 1:
        out = one(jax.tree.map(lambda x: x[0], arrays))
        return jax.tree.map(lambda x: x[None], out)
    # On a CPU members in lockstep would all wait for the slowest.
    alone = jax.default_backend() == "cpu" and not together
    return jax.lax.map(one, arrays) if alone else jax.vmap(one)(arrays)


def member_of(block: Member, i: int) -> Member:
    arrays, static = eqx.partition(block, eqx.is_array)
    return eqx.combine(jax.tree.map(lambda x: x[i], arrays), static)


def find_member(blocks: tuple[Member, ...], index: int) -> Member:
    """The experiment with a number, still padded."""
    for block in blocks:
        for i in np.flatnonzero(np.asarray(block.index) == index):
            return member_of(block, int(i))
    raise IndexError(index)


def _form(member: Member):
    rest = (member.args, member.stops, member.rest, member.data.sigma is None, member.data.names)
    arrays, static = eqx.partition(rest, eqx.is_array)
    return jax.tree.map(lambda x: (x.shape, x.dtype), arrays), static


def _alike(a: Member, b: Member) -> bool:
    has = lambda d: (d.censored is None, d.whitener is None or _as_one(d))
    return has(a.data) == has(b.data) and eqx.tree_equal(_form(a), _form(b)) is True


def _as_one(data: Data) -> bool:
    """Whether a covariance is over all values at once; one of a single time is taken for one by time."""
    assert data.whitener is not None
    return data.whitener.shape[0] == 1 and data.ts.shape[0] > 1


def _joined(block: list[Member]) -> Member:
    n = max(m.data.ts.shape[0] for m in block)
    padded = [with_fields(m, data=_pad(m.data, n)) for m in block]
    arrays = [eqx.filter(m, eqx.is_array) for m in padded]
    static = eqx.filter(padded[0], eqx.is_array, inverse=True)
    return eqx.combine(jax.tree.map(lambda *x: jnp.stack(x), *arrays), static)


def _pad(data: Data, n: int) -> Data:
    more = n - data.ts.shape[0]
    if not more:
        return data
    columns = data.ys.shape[1]
    below = lambda x, value: jnp.pad(x, ((0, more), (0, 0)), constant_values=value)
    whitener = data.whitener
    if whitener is not None:
        # By time, or one for all values, which are in the order of the times.
        by_time = not _as_one(data)
        room = 0 if by_time else n * columns - whitener.shape[1]
        widths = ((0, more if by_time else 0), (0, room), (0, room))
        whitener = jnp.pad(whitener, widths)
    return with_fields(
        data,
        ts=jnp.pad(data.ts, (0, more), mode="edge"),
        ys=below(data.ys, jnp.nan),
        seen=below(data.seen, False),
        sigma=None if data.sigma is None else below(data.sigma, 1),
        censored=None if data.censored is None else below(data.censored, 0),
        whitener=whitener,
    )


def widen(data: Data, names: tuple[str, ...]) -> Data:
    """The same data with columns for all observables, in this order."""
    if data.names == names:
        return data
    if data.whitener is not None:
        raise ValueError(
            "With a `covariance`, all experiments must have the same observables in the same order."
        )
    place = [names.index(name) for name in data.names]
    rows = data.ts.shape[0]

    def spread(x, value):
        return jnp.full((rows, len(names)), value, x.dtype).at[:, np.array(place)].set(x)

    return with_fields(
        data,
        ys=spread(data.ys, jnp.nan),
        seen=spread(data.seen, False),
        sigma=None if data.sigma is None else spread(data.sigma, 1),
        censored=None if data.censored is None else spread(data.censored, 0),
        names=names,
    )

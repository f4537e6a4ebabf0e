"""What a user declares to happen during a solve."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._checks import integer_at_least
from .._compat import is_traced
from .._custom_types import Numbers
from .._dtypes import as_floating
from ._doses import as_tables, Doses
from ._event import as_events, Event


class Stops(eqx.Module):
    """Events, doses, declared discontinuities, and the side of save times that meet one."""

    events: tuple[Event, ...] = ()
    doses: tuple[Doses, ...] = ()
    discontinuities: Array | None = None
    side: str = eqx.field(static=True, default="before")
    max_events: int = eqx.field(static=True, default=1)

    @property
    def none(self) -> bool:
        return not self.events and not self.doses and self.discontinuities is None


NONE = Stops()


def as_stops(
    events: Any,
    doses: Any,
    discontinuities: Numbers | None,
    side: str,
    max_events: int,
    ts: Array | None,
) -> Stops:
    """**Raises:**

    `ValueError`, `TypeError` for what can't be meant, and for doses that would be lost.
    """
    if side not in ("before", "after"):
        raise ValueError(
            f'`side` says which state a save time at a dose shows, "before" or "after" it, but is {side!r}.'
        )
    max_events = integer_at_least("max_events", max_events)
    if (
        isinstance(events, tuple | list)
        and not events
        and doses is None
        and discontinuities is None
    ):
        return NONE if side == "before" else Stops(side=side)
    tables = as_tables(doses)
    if discontinuities is not None:
        discontinuities = jnp.atleast_1d(as_floating(discontinuities))
        if discontinuities.ndim != 1:
            raise ValueError(
                f"`discontinuities` must be a vector of times, but has shape {discontinuities.shape}."
            )
        if jnp.iscomplexobj(discontinuities):
            raise ValueError("`discontinuities` must be real times, but are complex.")
        if not is_traced(discontinuities):
            for k in np.flatnonzero(~np.isfinite(np.asarray(discontinuities))):
                raise ValueError(
                    f"`discontinuities` must be finite, but discontinuities[{k}] is {discontinuities[k]}."
                )
    if ts is not None and not is_traced(ts):
        start, end = np.asarray(ts)[[0, -1]]
        if tables and end < start:
            raise ValueError(f"Doses can't be given backwards in time, from {start:g} to {end:g}.")
        for table in tables:
            if is_traced(table.times) or (table.duration is not None and is_traced(table.duration)):
                continue
            last = np.asarray(table.times, ts.dtype) + (
                0 if table.duration is None else np.asarray(table.duration)
            )
            for k in np.flatnonzero(last < start):
                raise ValueError(
                    f"The dose at t = {table.times[k]:g} lies before the start, ts[0] = {start:g}, and would be "
                    "lost. Start there, and leave that time out of what you look at."
                )
    return Stops(as_events(events), tables, discontinuities, side, max_events)

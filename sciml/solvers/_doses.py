"""Doses: amounts that are added to the state at given times, as a table."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PyTree

from .._checks import integer_at_least
from .._compat import is_traced
from .._custom_types import Numbers
from .._dtypes import as_floating


class Doses(eqx.Module):
    """A table of doses for [`solve`][sciml.solvers.solve]: amounts added to one number of the state at once
    (a bolus), or at a constant rate over a `duration` (an infusion).

    The solve stops at each dose, exactly, and goes on with the new state. Solutions have derivatives by
    times (a lag), amounts and durations.

    ```python
    import jax.numpy as jnp
    from sciml import solvers

    doses = solvers.Doses(jnp.array([0.0, 12.0, 24.0]), 100.0)
    sol = solvers.solve(
        lambda t, a, k: -k * a, jnp.zeros(1), jnp.array([0.0, 36.0]), 0.2, doses=doses
    )
    assert jnp.allclose(sol.ys[-1], 9.969428614681, rtol=1e-5)
    ```

    **Arguments:**

    - `times`: of the doses (the begin of an infusion), shape `(dose,)`, in any order.
    - `amounts`: one for each, or one for all. What is lost on the way (bioavailability) is a factor here,
      a lag is added to `times`.
    - `into`: what takes them: the index into a state that is one vector, an index for each dose, or a
      function that picks one number out of the state, `lambda y: y["gut"]`.
    - `duration`: over which they are given, one for each or one for all; by default at once. A table holds
      either kind; pass several tables as a tuple.

    **Raises:**

    `ValueError` for shapes and durations that can't be meant.
    """

    times: Float[Array, " dose"]
    amounts: Float[Array, " dose"]
    duration: Float[Array, " dose"] | None
    into: Any = eqx.field(static=True)

    def __init__(
        self,
        times: Numbers,
        amounts: Numbers,
        into: int | Numbers | Callable[[PyTree], Any] = 0,
        duration: Numbers | None = None,
    ):
        where: Any = into
        times = jnp.atleast_1d(as_floating(times))
        if times.ndim != 1:
            raise ValueError(
                f"`times` must be a vector, one for each dose, but has shape {times.shape}."
            )
        if jnp.iscomplexobj(times):
            raise ValueError("`times` must be real numbers, but are complex.")
        self.times = times
        self.amounts = self._column("amounts", amounts)
        self.duration = None if duration is None else self._column("duration", duration)
        for name, value in (("times", times), ("amounts", self.amounts)):
            if not is_traced(value) and not np.isfinite(value).all():
                k = int(np.flatnonzero(~np.isfinite(value))[0])
                raise ValueError(f"`{name}` must be finite, but {name}[{k}] is {value[k]}.")
        if self.duration is not None and not is_traced(self.duration):
            length = np.asarray(self.duration)
            for k in np.flatnonzero(~((length > 0) & np.isfinite(length))):
                raise ValueError(
                    f"`duration` must be positive and finite, but that of dose {k} is {self.duration[k]:g}. A bolus "
                    "has none: put it into a table of its own."
                )
        if not callable(where):
            where = np.asarray(where)
            if where.dtype.kind not in "iu" or where.shape not in ((), times.shape):
                raise ValueError(
                    "`into` must be an index into the state, one for each dose, or a function that picks one "
                    f"number out of it, but is {into!r}."
                )
            where = tuple(np.broadcast_to(where, times.shape).tolist())
        self.into = where

    @classmethod
    def every(
        cls,
        interval: ArrayLike,
        count: int,
        amount: ArrayLike,
        *,
        first: ArrayLike = 0.0,
        into: int | Callable[[PyTree], Any] = 0,
        duration: Numbers | None = None,
    ) -> "Doses":
        """`count` doses of the same amount, the first at `first`, then every `interval`."""
        count = integer_at_least("count", count)
        times = jnp.asarray(first) + jnp.asarray(interval) * jnp.arange(count, dtype=float)
        return cls(times, amount, into, duration)

    def _column(self, name: str, value: Numbers) -> Array:
        value = as_floating(value)
        if jnp.iscomplexobj(value):
            raise ValueError(f"`{name}` must be real numbers, but are complex.")
        if value.shape not in ((), (1,), self.times.shape):
            raise ValueError(
                f"`{name}` needs one value for all or one for each of the {self.times.shape[0]} doses, but "
                f"has shape {value.shape}."
            )
        return jnp.broadcast_to(value, self.times.shape).astype(self.times.dtype)

    def _picked(self, numbers: PyTree) -> float:
        try:
            picked = jnp.asarray(self.into(jax.tree.map(jnp.real, numbers)))
        except Exception as e:
            raise ValueError(
                f"`into` of a table of doses could not pick a number out of the state: {e}"
            ) from e
        if picked.shape != ():
            raise ValueError(
                f"`into` must pick one number out of the state, but picked something of shape {picked.shape}."
            )
        return float(picked)

    def columns(self, y0: PyTree, unravel: Callable[[Array], PyTree], size: int) -> np.ndarray:
        """Into which real number of the flat state each dose goes."""
        if callable(self.into):
            dtype = jax.tree.leaves(y0)[0].real.dtype
            with jax.ensure_compile_time_eval():
                first = jnp.arange(1, size + 1).astype(dtype)
                # Numbers that tell their place, in two ways: what is not one of them is noticed.
                picked = [self._picked(unravel(x)) for x in (first, 3 * first + 7)]
            index = int(picked[0]) - 1
            if not 0 <= index < size or picked[0] != index + 1 or picked[1] != 3 * picked[0] + 7:
                raise ValueError(
                    "`into` must pick one number out of the state as it is, such as `lambda y: y[1]`, but made "
                    f"{picked[0]:g} of numbers from 1 to {size}."
                )
            return np.full(self.times.shape, index)
        leaves = jax.tree.leaves(y0)
        if len(leaves) != 1 or leaves[0].ndim > 1 or jnp.iscomplexobj(leaves[0]):
            raise ValueError(
                "`into` is an index, but the state is not one real vector. Pass a function that picks the number, "
                'such as `into=lambda y: y["gut"]`.'
            )
        index = np.asarray(self.into, int)
        if ((index < -size) | (index >= size)).any():
            raise ValueError(f"`into` must lie in a state of {size} numbers, but is {index.max()}.")
        return index % size


def as_tables(doses: Any) -> tuple[Doses, ...]:
    """What `solve(doses=…)` was given, as a tuple of tables."""
    if doses is None:
        return ()
    tables = tuple(doses) if isinstance(doses, tuple | list) else (doses,)
    for table in tables:
        if not isinstance(table, Doses):
            raise TypeError(
                "`doses` must be a table, `solvers.Doses(times, amounts, into=…)`, or a tuple of them, but "
                f"holds {table!r}."
            )
    return tables

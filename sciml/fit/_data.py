"""Measurements."""

from collections.abc import Sequence
from typing import Any, overload

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int8

from .._dtypes import default_float, require_dtype
from ._frames import read
from ._numbers import (
    check_order,
    check_sides,
    check_sigma,
    check_values,
    numbers,
    sides,
    spread_sigma,
    times,
)
from ._whitening import whitening


class Data(eqx.Module):
    """A table of measurements: one row a time, one column an observable.

    ```python
    import jax.numpy as jnp
    from sciml import fit

    data = fit.Data(
        jnp.array([0.0, 1.0, 2.0]), jnp.array([[3.0], [2.0], [jnp.nan]]), sigma=0.1, names=["conc"]
    )
    assert data.size == 2
    ```

    A value below the limit of quantification is neither missing nor equal to the limit: put the limit
    into `ys` and mark it. Errors that go together, such as those of a drifting baseline, have a
    covariance.

    ```python
    ts = jnp.array([0.0, 1.0, 2.0])
    data = fit.Data(ts, [3.0, 0.9, 0.5], sigma=0.1, censored=[0, 0, -1])
    drift = 0.1**2 * jnp.exp(-jnp.abs(ts[:, None] - ts))
    data = fit.Data(ts, [3.0, 2.0, 1.5], covariance=drift + 0.05**2 * jnp.eye(3))
    ```

    **Arguments:**

    - `ts`: times of shape `(time,)`, not decreasing; equal times are replicates.
    - `ys`: values of shape `(time, observable)`, or `(time,)` for one observable. nan is missing.
    - `sigma`: standard deviation of the noise, if known: a number, one for each observable, or
      one for each value. Without it the noise level is estimated from the residuals.
    - `names`: one for each observable.
    - `censored`: integers of the shape of `ys`, -1 where the true value lies below the number in
      `ys`, 1 where it lies above, 0 where it was measured.
    - `covariance`: of the noise, instead of `sigma`: of shape `(observable, observable)`, the same
      for each time; `(time, observable, observable)`; or `(time * observable, time * observable)`
      over all values, time by time (for one observable `(time, time)`). Missing values are left
      out of it exactly.
    - `dtype`: of the arrays; by default JAX's floating dtype.

    What is kept of a covariance are `whitener`, for each block of values the inverse of the lower
    Cholesky factor, with zeros for missing values, and `log_det`, the sum of the logarithms of the
    factors' diagonals. A block is a time, or holds all values.

    **Raises:**

    `ValueError`, `TypeError` naming the row of a value that can't be meant.
    """

    ts: Float[Array, " time"]
    ys: Float[Array, "time observable"]
    seen: Bool[Array, "time observable"]
    sigma: Float[Array, "time observable"] | None
    censored: Int8[Array, "time observable"] | None
    whitener: Float[Array, "block m m"] | None
    log_det: Float[Array, ""] | None
    names: tuple[str, ...] = eqx.field(static=True)

    def __init__(
        self,
        ts: ArrayLike | Sequence,
        ys: ArrayLike | Sequence,
        sigma: ArrayLike | Sequence | None = None,
        names: Sequence[str] | None = None,
        *,
        censored: Any = None,
        covariance: Any = None,
        dtype: Any = None,
    ):
        dtype = default_float() if dtype is None else require_dtype(dtype, "`Data(dtype=…)`")
        at = times(ts)
        check_order(at)
        values = numbers(ys, "ys")
        if values.ndim == 1:
            values = values[:, None]
        if values.ndim != 2 or values.shape[0] != at.shape[0]:
            raise ValueError(
                f"`ys` must have shape (time, observable) with {at.shape[0]} times as in `ts`, "
                f"but has shape {np.shape(ys)}."
            )
        check_values(values)
        seen = ~np.isnan(values)
        if not seen.any():
            raise ValueError(
                f"There is no data: `ys` of shape {values.shape} holds no number that is not nan."
            )
        if names is None:
            names = [f"obs{i}" for i in range(values.shape[1])]
        elif isinstance(names, str):
            names = [names]
        if len(names) != values.shape[1] or len(set(names)) != len(names):
            raise ValueError(
                f"`names` must be {values.shape[1]} different names, one for each column of "
                f"`ys`, but got {list(names)}."
            )
        self.ts = jnp.asarray(at, dtype)
        self.ys = jnp.asarray(values, dtype)
        self.seen = jnp.asarray(seen)
        self.names = tuple(names)
        self.sigma = self.censored = self.whitener = self.log_det = None
        if sigma is not None:
            spread = spread_sigma(sigma, seen.shape)
            check_sigma(spread, seen)
            self.sigma = jnp.asarray(np.where(seen, spread, 1.0), dtype)
        if censored is not None:
            marks = check_sides(sides(censored, seen.shape), seen)
            self.censored = jnp.asarray(marks) if marks.any() else None
        if covariance is not None:
            if sigma is not None:
                raise ValueError(
                    "Give `sigma` or `covariance`, not both: the diagonal of the covariance holds "
                    "the variances."
                )
            if self.censored is not None:
                raise ValueError(
                    "Censored values can't have a `covariance`: the probability to lie beyond a "
                    "limit would depend on all other errors. Give `sigma` instead."
                )
            whitener, log_det = whitening(covariance, seen)
            self.whitener = jnp.asarray(whitener, dtype)
            self.log_det = jnp.asarray(log_det, dtype)

    @property
    def first(self) -> Float[Array, " observable"]:
        """The first row, a natural start for an observed initial state."""
        if not bool(self.seen[0].all()):
            missing = [n for n, ok in zip(self.names, self.seen[0], strict=True) if not ok]
            raise ValueError(
                f"The first row has no value for {', '.join(missing)}. Give `y0` as numbers and "
                "free it in the problem."
            )
        return self.ys[0]

    @property
    def size(self) -> int:
        """How many values there are, missing ones not counted."""
        return int(self.seen.sum())

    @overload
    @classmethod
    def from_frame(
        cls,
        frame: Any,
        *,
        time: Any,
        values: Any,
        observable: Any = None,
        sigma: Any = None,
        censored: Any = None,
        experiment: None = None,
        names: Sequence[str] | None = None,
        dtype: Any = None,
    ) -> "Data": ...

    @overload
    @classmethod
    def from_frame(
        cls,
        frame: Any,
        *,
        time: Any,
        values: Any,
        observable: Any = None,
        sigma: Any = None,
        censored: Any = None,
        experiment: str,
        names: Sequence[str] | None = None,
        dtype: Any = None,
    ) -> "dict[Any, Data]": ...

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        *,
        time: Any,
        values: Any,
        observable: Any = None,
        sigma: Any = None,
        censored: Any = None,
        experiment: Any = None,
        names: Sequence[str] | None = None,
        dtype: Any = None,
    ) -> "Data | dict[Any, Data]":
        """Takes columns of a table, with its rows in any order.

        ```python
        from sciml import fit

        table = {
            "run": ["warm", "warm", "cold", "cold"],
            "minute": [0, 5, 0, 9],
            "conc": [3.0, 1.1, 3.1, 1.9],
        }
        runs = fit.Data.from_frame(table, time="minute", values="conc", experiment="run")
        assert list(runs) == ["warm", "cold"] and runs["cold"].size == 2
        ```

        **Arguments:**

        - `frame`: a pandas, polars or other data frame (needs the extra `frames`), or a mapping of
          names to sequences.
        - `time`: the column of times.
        - `values`: the column of values, or several.
        - `observable`: the column that says which observable a row is of, when all values stand in
          one column (a *long* table). Observables are ordered by their first appearance; further
          values of one at the same time become further rows of that time.
        - `sigma`: a number for all, numbers for each observable, or names of columns, one for each
          of `values`.
        - `censored`: names of columns, one for each of `values`, with -1, 0 and 1 as in `Data`.
        - `experiment`: the column that says which experiment a row belongs to.
        - `names`: of the observables, if not those in the table.
        - `dtype`: as in `Data`.

        **Returns:**

        A `Data`; with `experiment` a dict from what stands in that column, in the order of first
        appearance, to the `Data` of each. All of them have the same observables.
        """
        tables = read(frame, time, values, observable, sigma, censored, experiment)
        out = {}
        for key, t in tables.items():
            try:
                labels = t.names if names is None else names
                out[key] = cls(t.ts, t.ys, t.sigma, labels, censored=t.censored, dtype=dtype)
            except ValueError as e:
                if experiment is None:
                    raise
                raise ValueError(f"Experiment {key!r}: {e}") from e
        return out[None] if experiment is None else out

    def __repr__(self) -> str:
        marked = 0 if self.censored is None else int((self.censored != 0).sum())
        size = f"{self.size} values" + (f" ({marked} censored)" if marked else "")
        span = f"{float(self.ts[0]):g} .. {float(self.ts[-1]):g}"
        return f"Data({size} of {', '.join(self.names)} at {len(self.ts)} times {span})"

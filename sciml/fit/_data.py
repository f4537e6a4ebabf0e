"""Measurements."""

from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float

from .._dtypes import default_float, require_dtype
from ._hints import did_you_mean


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

    **Arguments:**

    - `ts`: times of shape `(time,)`, not decreasing; equal times are replicates.
    - `ys`: values of shape `(time, observable)`, or `(time,)` for one observable. nan is missing.
    - `sigma`: standard deviation of the noise, if known: a number, one for each observable, or
      one for each value. Without it the noise level is estimated from the residuals.
    - `names`: one for each observable.
    - `dtype`: of the arrays; by default JAX's floating dtype.

    **Raises:**

    `ValueError`, `TypeError` naming the row of a value that can't be meant.
    """

    ts: Float[Array, " time"]
    ys: Float[Array, "time observable"]
    seen: Bool[Array, "time observable"]
    sigma: Float[Array, "time observable"] | None
    names: tuple[str, ...] = eqx.field(static=True)

    def __init__(
        self,
        ts: ArrayLike | Sequence,
        ys: ArrayLike | Sequence,
        sigma: ArrayLike | Sequence | None = None,
        names: Sequence[str] | None = None,
        *,
        dtype: Any = None,
    ):
        dtype = default_float() if dtype is None else require_dtype(dtype, "`Data(dtype=…)`")
        times = _times(ts)
        values = _numbers(ys, "ys")
        if values.ndim == 1:
            values = values[:, None]
        if values.ndim != 2 or values.shape[0] != times.shape[0]:
            raise ValueError(
                f"`ys` must have shape (time, observable) with {times.shape[0]} times as in `ts`, "
                f"but has shape {np.shape(ys)}."
            )
        bad = np.argwhere(np.isinf(values))
        if bad.size:
            row, column = bad[0]
            raise ValueError(
                f"`ys` is infinite in row {row}, column {column}. Mark missing values with nan."
            )
        seen = ~np.isnan(values)
        if not seen.any():
            raise ValueError(
                f"There is no data: `ys` of shape {values.shape} holds no number that is not nan."
            )
        self.ts = jnp.asarray(times, dtype)
        self.ys = jnp.asarray(values, dtype)
        self.seen = jnp.asarray(seen)
        self.sigma = None if sigma is None else jnp.asarray(_sigma(sigma, seen), dtype)
        if names is None:
            names = [f"obs{i}" for i in range(values.shape[1])]
        elif isinstance(names, str):
            names = [names]
        if len(names) != values.shape[1] or len(set(names)) != len(names):
            raise ValueError(
                f"`names` must be {values.shape[1]} different names, one for each column of "
                f"`ys`, but got {list(names)}."
            )
        self.names = tuple(names)

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

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        *,
        time: str,
        values: str | Sequence[str],
        sigma: Any = None,
        dtype: Any = None,
    ) -> "Data":
        """Takes columns of a table.

        **Arguments:**

        - `frame`: a pandas, polars or other data frame (needs the extra `frames`), or a mapping of
          names to sequences.
        - `time`: the column of times.
        - `values`: the column of values, or several.
        - `sigma`: a number for all, numbers or names of columns, one for each of `values`.
        - `dtype`: as in `Data`.
        """
        columns = _columns(frame)
        names = [values] if isinstance(values, str) else list(values)
        if not names:
            raise ValueError("`values` names no column. Columns: " + ", ".join(columns) + ".")

        def take(name, argument):
            if name not in columns:
                hint = did_you_mean(name, list(columns))
                raise ValueError(
                    f"`{argument}={name!r}` is not a column of the data.{hint} "
                    f"Columns: {', '.join(map(str, columns))}."
                )
            return _numbers(columns[name], name)

        ts = take(time, "time")
        series = [take(name, "values") for name in names]
        for name, column in zip(names, series, strict=True):
            if column.shape != ts.shape:
                raise ValueError(
                    f"Column {name!r} has shape {column.shape}, but the times {time!r} have "
                    f"{ts.shape}. Every column needs one number for each time."
                )
        ys = np.stack(series, axis=1)
        if isinstance(sigma, str):
            sigma = [sigma]
        if isinstance(sigma, Sequence) and any(isinstance(s, str) for s in sigma):
            if len(sigma) != len(names):
                raise ValueError(
                    f"`sigma` names {len(sigma)} columns for {len(names)} columns of values."
                )
            sigma = np.stack([take(str(s), "sigma") for s in sigma], axis=1)
        return cls(ts, ys, sigma, names, dtype=dtype)

    def __repr__(self) -> str:
        span = f"{float(self.ts[0]):g} .. {float(self.ts[-1]):g}"
        return f"Data({self.size} values of {', '.join(self.names)} at {len(self.ts)} times {span})"


def _columns(frame) -> dict[str, Any]:
    if isinstance(frame, Mapping):
        return dict(frame)
    try:
        import narwhals as nw
    except ImportError as e:
        raise ImportError(
            "Reading data frames needs the extra `frames`: pip install 'sciml-jax[frames]'. "
            "A dict of arrays works without it."
        ) from e
    try:
        table = nw.from_native(frame, eager_only=True)
    except TypeError as e:
        raise TypeError(
            "`frame` must be a data frame (pandas, polars, …) or a dict of columns, but is a "
            f"{type(frame).__name__}."
        ) from e
    # Each kind of frame has its own mark of a missing value: `None` for all of them.
    return {
        name: [
            None if null else v
            for v, null in zip(column.to_list(), column.is_null().to_list(), strict=True)
        ]
        for name, column in zip(table.columns, table.iter_columns(), strict=True)
    }


def _numbers(values, name: str) -> np.ndarray:
    """An array of float64; whatever is not a number is named with its row."""
    try:
        array = np.asarray(values)
    except ValueError as e:
        raise ValueError(f"The rows of `{name}` have different lengths.") from e
    if np.iscomplexobj(array):
        raise TypeError(f"`{name}` holds complex numbers; split them into two observables.")
    if array.dtype.kind in "fiub":
        return array.astype(np.float64)
    # NumPy turns the numbers of a mixed list into texts: keep them as they came.
    array = np.asarray(values, object)
    out = np.empty(array.shape, np.float64)
    texts = []
    for index, item in np.ndenumerate(array):
        try:
            out[index] = np.nan if item is None else float(item)
        except (TypeError, ValueError):
            raise _not_a_number(name, index, item) from None
        if isinstance(item, str):
            texts.append((index, item))
    if texts:  # all of them look like numbers, yet it is not for us to read texts
        raise _not_a_number(name, *texts[0])
    return out


def _not_a_number(name: str, index: tuple, item) -> TypeError:
    item = str(item) if isinstance(item, str) else item
    return TypeError(
        f"Column `{name}` must hold numbers, but row {index[0]} (counted from 0) is {item!r}. "
        "Mark missing values with nan or leave them empty."
    )


def _times(ts) -> np.ndarray:
    times = _numbers(ts, "ts")
    if times.ndim != 1 or times.size == 0:
        raise ValueError(
            f"`ts` must hold at least one time in one dimension, but has shape {times.shape}."
        )
    bad = np.flatnonzero(~np.isfinite(times))
    if bad.size:
        raise ValueError(
            f"Times must be finite, but row {bad[0]} (counted from 0) is {times[bad[0]]}."
        )
    back = np.flatnonzero(np.diff(times) < 0)
    if back.size:
        i = int(back[0])
        raise ValueError(
            f"Times must not decrease, but row {i} is {times[i]:g} and row {i + 1} is "
            f"{times[i + 1]:g}. Sort the rows by time."
        )
    return times


def _sigma(sigma, seen) -> np.ndarray:
    array = _numbers(sigma, "sigma")
    n_times, n_obs = seen.shape
    if array.ndim == 1 and array.shape[0] == n_times and n_obs == 1:
        array = array[:, None]
    try:
        full = np.broadcast_to(array, seen.shape)
    except ValueError:
        raise ValueError(
            f"`sigma` must be one number, {n_obs} (one for each observable) or of shape "
            f"{seen.shape} as `ys`, but has shape {array.shape}."
        ) from None
    bad = np.argwhere(seen & ~((full > 0) & np.isfinite(full)))
    if bad.size:
        row, column = bad[0]
        raise ValueError(
            f"`sigma` must be positive and finite, but is {full[row, column]} in row {row}, column "
            f"{column}. An exact value would have infinite weight; leave `sigma` out to have it "
            "estimated."
        )
    return np.where(seen, full, 1.0)

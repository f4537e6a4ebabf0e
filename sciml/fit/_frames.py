"""Tables become measurements.

A *wide* table has a column for each observable. A *long* one has a row for each value, and a column
that says which observable it is of. A column may also say which experiment a row belongs to.
Whatever is wrong is named with its row in the table, hence is looked for before rows are sorted.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ._hints import did_you_mean
from ._numbers import check_sides, check_sigma, check_values, numbers, sides, spread_sigma, times


@dataclasses.dataclass(frozen=True)
class Table:
    """What rows of a table say: times of shape `(time,)`, the rest `(time, observable)`."""

    ts: np.ndarray
    ys: np.ndarray
    sigma: np.ndarray | None
    censored: np.ndarray | None
    names: list[str]

    def rows(self, index: np.ndarray) -> "Table":
        cut = lambda x: None if x is None else x[index]
        return Table(
            self.ts[index], self.ys[index], cut(self.sigma), cut(self.censored), self.names
        )


def read(frame, time, values, observable, sigma, censored, experiment) -> dict[Any, Table]:
    """The experiments in a table, each with its rows in the order of time.

    The arguments are those of `Data.from_frame`; without a column of experiments the key is `None`.
    """
    columns = _columns(frame)
    names = _listed(values)
    if not names:
        raise ValueError(f"`values` names no column. Columns: {_all(columns)}.")
    if observable is not None and len(names) > 1:
        raise ValueError(
            f"With `observable={observable!r}` all values stand in one column, but `values` names "
            f"{len(names)}: {', '.join(map(str, names))}."
        )
    ts = times(_take(columns, time, "time", frame), str(time))
    one_a_time = lambda name, argument: _column(columns, name, argument, ts.shape, time)
    ys = np.stack([one_a_time(name, "values") for name in names], axis=1)
    check_values(ys, names)
    seen = ~np.isnan(ys)
    place, kinds = np.zeros(len(ts), int), names
    if observable is not None:
        labels = [str(x) for x in _labels(columns, observable, "observable", len(ts))]
        kinds = list(dict.fromkeys(labels))
        place = np.array([kinds.index(label) for label in labels])
    if sigma is not None:
        named = _named(sigma, len(names), "sigma")
        if named is not None:
            sigma = np.stack([one_a_time(name, "sigma") for name in named], axis=1)
        elif observable is None:
            sigma = spread_sigma(sigma, ys.shape)
        else:  # numbers are one for each observable, as in the wide table that this one becomes
            sigma = spread_sigma(sigma, (1, len(kinds)))[0, place][:, None]
        check_sigma(sigma, seen, names)
    if censored is not None:
        named = _named(censored, len(names), "censored")
        if named is None:
            marks = sides(censored, ys.shape)
        else:
            take = lambda name: _take(columns, name, "censored")
            marks = [sides(take(name), (len(ts), 1), str(name)) for name in named]
            marks = np.concatenate(marks, axis=1)
        censored = check_sides(marks, seen, names)
    table = Table(ts, ys, sigma, censored, [str(name) for name in names])
    out = {}
    for key, rows in _groups(columns, experiment, len(ts)).items():
        rows = rows[np.argsort(ts[rows], kind="stable")]
        part = table.rows(rows)
        out[key] = part if observable is None else _pivot(part, place[rows], kinds)
    return out


def _pivot(table: Table, place: np.ndarray, names: list[str]) -> Table:
    """Values of one time side by side; further ones of the same observable go below."""
    rows: dict[tuple, int] = {}
    count: dict[tuple, int] = {}
    where = []
    for t, column in zip(table.ts.tolist(), place.tolist(), strict=True):
        k = count[t, column] = count.get((t, column), -1) + 1
        where.append(rows.setdefault((t, k), len(rows)))
    # Times are sorted, but the second row of a time may have come up late.
    keys = sorted(rows)
    rank = {rows[key]: i for i, key in enumerate(keys)}
    where = np.array([rank[i] for i in where])

    def wide(column: np.ndarray, empty: float) -> np.ndarray:
        out = np.full((len(keys), len(names)), empty, column.dtype)
        out[where, place] = column[:, 0]
        return out

    return Table(
        np.array([t for t, _ in keys]),
        wide(table.ys, np.nan),
        None if table.sigma is None else wide(table.sigma, 1.0),
        None if table.censored is None else wide(table.censored, 0),
        names,
    )


def _groups(columns, experiment, n: int) -> dict[Any, np.ndarray]:
    if experiment is None:
        return {None: np.arange(n)}
    groups: dict[Any, list[int]] = {}
    for i, label in enumerate(_labels(columns, experiment, "experiment", n)):
        groups.setdefault(label, []).append(i)
    return {key: np.array(rows) for key, rows in groups.items()}


def _labels(columns, name, argument: str, n: int) -> list:
    """What a column calls its rows."""
    column = _take(columns, name, argument)
    labels = column.tolist() if hasattr(column, "tolist") else list(column)
    if len(labels) != n:
        raise ValueError(f"Column {name!r} has {len(labels)} rows, but there are {n} times.")
    for i, label in enumerate(labels):
        if label is None or label != label:
            raise ValueError(
                f"Row {i} (counted from 0) has no {argument}: column {name!r} is empty there."
            )
    return labels


def _listed(names: Any) -> list:
    several = isinstance(names, Sequence) and not isinstance(names, str)
    return list(names) if several else [names]


def _named(given: Any, n: int, argument: str) -> list | None:
    """Columns that were named, or `None` for numbers."""
    if isinstance(given, str):
        given = [given]
    if not isinstance(given, Sequence) or not any(isinstance(x, str) for x in given):
        return None
    if len(given) != n:
        raise ValueError(f"`{argument}` names {len(given)} columns for {n} columns of values.")
    return list(given)


def _column(columns, name, argument: str, shape: tuple, time) -> np.ndarray:
    column = numbers(_take(columns, name, argument), str(name))
    if column.shape != shape:
        raise ValueError(
            f"Column {name!r} has shape {column.shape}, but the times {time!r} have {shape}. "
            "Every column needs one number for each time."
        )
    return column


def _take(columns: dict, name: Any, argument: str, frame: Any = None) -> Any:
    if name not in list(columns):
        hint = did_you_mean(str(name), [str(column) for column in columns])
        if getattr(getattr(frame, "index", None), "name", None) == name:
            hint = " It is the table's index: make it a column with `reset_index()`."
        raise ValueError(
            f"`{argument}={name!r}` is not a column of the data.{hint} Columns: {_all(columns)}."
        )
    return columns[name]


def _all(columns: dict) -> str:
    return ", ".join(map(str, columns))


def _columns(frame: Any) -> dict[Any, Any]:
    if isinstance(frame, Mapping):
        return dict(frame)
    # Structured arrays, as `np.genfromtxt` makes them.
    if fields := getattr(getattr(frame, "dtype", None), "names", None):
        return {name: frame[name] for name in fields}
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

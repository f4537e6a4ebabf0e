"""Numbers given by users as arrays; whatever can't be meant is named with its row."""

from collections.abc import Sequence
from typing import Any

import numpy as np


SIDES = (
    "-1: the true value lies below the number in `ys`, as with a limit of quantification; "
    "1: above it; 0: it was measured"
)


def numbers(values: Any, name: str) -> np.ndarray:
    """An array of float64, in which `None` is nan."""
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


def _not_a_number(name: str, index: tuple, item: Any) -> TypeError:
    item = str(item) if isinstance(item, str) else item
    where = f"row {index[0]} (counted from 0) is {item!r}" if index else f"it is {item!r}"
    return TypeError(
        f"Column `{name}` must hold numbers, but {where}. "
        "Mark missing values with nan or leave them empty."
    )


def times(ts: Any, name: str = "ts") -> np.ndarray:
    """Finite times, in any order."""
    array = numbers(ts, name)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(
            f"`{name}` must hold at least one time in one dimension, but has shape {array.shape}."
        )
    bad = np.flatnonzero(~np.isfinite(array))
    if bad.size:
        raise ValueError(
            f"Times must be finite, but row {bad[0]} (counted from 0) is {array[bad[0]]}."
        )
    return array


def check_order(ts: np.ndarray) -> None:
    back = np.flatnonzero(np.diff(ts) < 0)
    if back.size:
        i = int(back[0])
        raise ValueError(
            f"Times must not decrease, but row {i} is {ts[i]:g} and row {i + 1} is {ts[i + 1]:g}. "
            "Sort the rows by time."
        )


def check_values(values: np.ndarray, columns: Sequence | None = None) -> None:
    bad = np.argwhere(np.isinf(values))
    if bad.size:
        raise ValueError(
            f"`ys` is infinite in {_at(bad[0], columns)}. Mark missing values with nan."
        )


def spread_sigma(sigma: Any, shape: tuple[int, int]) -> np.ndarray:
    """Standard deviations of this shape, from one, one for each column, or one for each value."""
    array = numbers(sigma, "sigma")
    if array.ndim == 1 and shape == (array.shape[0], 1):
        array = array[:, None]
    try:
        return np.broadcast_to(array, shape)
    except ValueError:
        raise ValueError(
            f"`sigma` must be one number, {shape[1]} (one for each observable) or of shape "
            f"{shape} as `ys`, but has shape {array.shape}."
        ) from None


def check_sigma(sigma: np.ndarray, seen: np.ndarray, columns: Sequence | None = None) -> None:
    bad = np.argwhere(seen & ~((sigma > 0) & np.isfinite(sigma)))
    if bad.size:
        raise ValueError(
            f"`sigma` must be positive and finite, but is {sigma[tuple(bad[0])]} in "
            f"{_at(bad[0], columns)}. An exact value would have infinite weight; leave `sigma` out "
            "to have it estimated."
        )


def sides(censored: Any, shape: tuple[int, int], name: str = "censored") -> np.ndarray:
    """Marks of censored values as numbers of this shape; nan where none is given."""
    try:
        array = np.asarray(censored)
    except ValueError:
        array = numbers(censored, name)  # which says what is wrong
    items = array.flat if array.dtype.kind == "O" else ()
    if array.dtype.kind == "b" or any(isinstance(x, bool | np.bool_) for x in items):
        raise TypeError(f"`{name}` must hold whole numbers, not True and False ({SIDES}).")
    array = numbers(censored, name)
    if array.ndim == 1 and shape == (array.shape[0], 1):
        array = array[:, None]
    if array.shape != shape:
        raise ValueError(
            f"`{name}` must have the shape {shape} of `ys`, but has shape {array.shape}."
        )
    return array


def check_sides(marks: np.ndarray, seen: np.ndarray, columns: Sequence | None = None) -> np.ndarray:
    """The marks as -1, 0 and 1; only a missing value may lack its mark."""
    marks = np.where(np.isnan(marks) & ~seen, 0, marks)
    bad = np.argwhere(~np.isin(marks, (-1, 0, 1)))
    if bad.size:
        raise ValueError(
            f"`censored` is {marks[tuple(bad[0])]:g} in {_at(bad[0], columns)}, but must be -1, 0 "
            f"or 1 ({SIDES})."
        )
    bad = np.argwhere((marks != 0) & ~seen)
    if bad.size:
        raise ValueError(
            f"`ys` is nan in {_at(bad[0], columns)}, where `censored` is "
            f"{marks[tuple(bad[0])]:g}: put the limit of a censored value into `ys`."
        )
    return marks.astype(np.int8)


def _at(index: np.ndarray, columns: Sequence | None) -> str:
    row, column = (int(i) for i in index)
    return f"row {row}, column {column if columns is None else repr(columns[column])}"

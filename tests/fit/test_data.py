import sys

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import polars as pl
import pytest

from sciml import fit


TS = [0.0, 1.0, 2.0]
COLUMNS = {"t": TS, "a": [3.0, 2.0, 1.0], "b": [1.0, None, 4.0], "s": [0.1, 0.2, 0.3]}


def as_dict(columns):
    return columns


def as_arrays(columns):
    return {k: np.array([np.nan if x is None else x for x in v]) for k, v in columns.items()}


frames = pytest.mark.parametrize("frame", [as_dict, as_arrays, pd.DataFrame, pl.DataFrame])


def test_arrays():
    data = fit.Data(TS, [[3.0, 1.0], [2.0, np.nan], [1.0, 4.0]], names=["a", "b"])
    assert data.ys.dtype == data.ts.dtype == jnp.float64 and data.ys.shape == (3, 2)
    assert data.sigma is None and data.names == ("a", "b") and data.size == 5
    np.testing.assert_array_equal(data.seen, [[True, True], [True, False], [True, True]])
    np.testing.assert_array_equal(data.first, [3.0, 1.0])
    assert repr(data) == "Data(5 values of a, b at 3 times 0 .. 2)"


def test_one_observable_may_be_one_dimensional():
    data = fit.Data(jnp.arange(3), [3, 2, 1])
    assert data.ys.shape == (3, 1) and data.names == ("obs0",)
    assert data.ys.dtype == data.ts.dtype == jnp.float64  # integers become floats
    assert fit.Data(TS, [3, 2, 1], names="conc").names == ("conc",)


def test_equal_times_are_replicates():
    assert fit.Data([0.0, 0.0, 1.0], [1.0, 2.0, 3.0]).size == 3


@frames
def test_frames(frame):
    data = fit.Data.from_frame(frame(COLUMNS), time="t", values=["b", "a"])
    np.testing.assert_array_equal(data.ts, TS)
    np.testing.assert_array_equal(data.ys, [[1.0, 3.0], [np.nan, 2.0], [4.0, 1.0]])
    assert data.names == ("b", "a") and data.size == 5
    one = fit.Data.from_frame(frame(COLUMNS), time="t", values="a", sigma="s")
    np.testing.assert_array_equal(one.sigma, [[0.1], [0.2], [0.3]])


def test_missing_values_of_pandas_extension_types():
    frame = pd.DataFrame({"t": [0, 1], "a": pd.array([1, pd.NA], dtype="Int64")})
    data = fit.Data.from_frame(frame, time="t", values="a")
    np.testing.assert_array_equal(data.ys, [[1.0], [np.nan]])


@pytest.mark.parametrize(
    ("sigma", "want"),
    [
        (0.5, [[0.5, 0.5]] * 3),
        ([0.5, 2], [[0.5, 2.0]] * 3),
        ([[1, 2], [3, 4], [5, 6]], [[1, 2], [3, 4], [5, 6]]),
        (np.array([[1], [2], [3]]), [[1, 1], [2, 2], [3, 3]]),
    ],
)
def test_sigma_is_spread_over_the_values(sigma, want):
    data = fit.Data(TS, np.ones((3, 2)), sigma)
    np.testing.assert_array_equal(data.sigma, want)


def test_sigma_of_one_observable_may_be_one_number_a_time():
    np.testing.assert_array_equal(fit.Data(TS, [3, 2, 1], [1, 2, 3]).sigma, [[1], [2], [3]])


@frames
def test_sigma_from_a_frame(frame):
    read = lambda sigma: fit.Data.from_frame(
        frame(COLUMNS), time="t", values=["a", "b"], sigma=sigma
    )
    seen = np.array([[True, True], [True, False], [True, True]])  # b is missing in row 1
    check = lambda sigma, want: np.testing.assert_array_equal(
        read(sigma).sigma, np.where(seen, want, 1)
    )
    check(["s", "a"], [[0.1, 3], [0.2, 2], [0.3, 1]])
    check([0.1, 0.2], [0.1, 0.2])
    check(0.1, 0.1)
    with pytest.raises(ValueError, match="names 1 columns for 2 columns of values"):
        read("s")
    with pytest.raises(ValueError, match=r"`sigma='S1'` is not a column"):
        read(["s", "S1"])


def test_sigma_may_be_missing_where_the_value_is():
    data = fit.Data(TS, [1, np.nan, 3], [0.1, np.nan, 0.1])
    assert np.all(np.isfinite(data.sigma))
    fit.Data(TS, [1, np.nan, 3], [0.1, 0.0, 0.1])


def test_the_first_row_must_be_complete_to_be_a_start():
    data = fit.Data(TS, [[1.0, np.nan], [2.0, 1.0], [3.0, 1.0]], names=["a", "b"])
    with pytest.raises(ValueError, match="no value for b") as e:
        _ = data.first
    assert "`y0` as numbers" in str(e.value)


bad_arguments = [
    (([0.0, 2.0, 1.0], [1, 2, 3]), {}, "row 1 is 2 and row 2 is 1.*Sort the rows"),
    (([0.0, np.nan, 1.0], [1, 2, 3]), {}, "finite, but row 1 .* is nan"),
    (([0.0, 1.0, np.inf], [1, 2, 3]), {}, "finite, but row 2 .* is inf"),
    (([], []), {}, "at least one time"),
    (([[0.0], [1.0]], [1, 2]), {}, r"one dimension, but has shape \(2, 1\)"),
    ((TS, [1, 2]), {}, r"`ys` must have shape .* 3 times .* \(2,\)"),
    ((TS, np.ones((3, 1, 1))), {}, r"shape \(3, 1, 1\)"),
    ((TS, [[1, 2], [3], [4, 5]]), {}, "rows of `ys` have different lengths"),
    ((TS, [1, -np.inf, 3]), {}, "infinite in row 1, column 0"),
    ((TS, [np.nan] * 3), {}, "no data"),
    ((TS, np.ones((3, 0))), {}, "no data"),
    ((TS, [1, 2, 3]), {"names": ["a", "b"]}, r"1 different names.*\['a', 'b'\]"),
    ((TS, np.ones((3, 2))), {"names": ["a", "a"]}, "2 different names"),
    ((TS, [1, 2, 3], 0.0), {}, "is 0.0 in row 0, column 0"),
    ((TS, [1, 2, 3], [1, -2, 3]), {}, "positive and finite, but is -2.0 in row 1"),
    ((TS, [1, 2, 3], [1, 2, np.nan]), {}, "is nan in row 2"),
    ((TS, [1, 2, 3], np.inf), {}, "is inf in row 0"),
    ((TS, np.ones((3, 2)), [1, 2, 3]), {}, r"one number, 2 .*\(3, 2\).* but has shape \(3,\)"),
]


@pytest.mark.parametrize(("args", "kwargs", "message"), bad_arguments, ids=lambda x: str(x)[:30])
def test_bad_values(args, kwargs, message):
    with pytest.raises(ValueError, match=message):
        fit.Data(*args, **kwargs)


def test_complex_values_are_no_measurements():
    with pytest.raises(TypeError, match="complex"):
        fit.Data(TS, np.ones(3) * 1j)


def test_double_precision_needs_x64():
    with jax.enable_x64(False):
        assert fit.Data(TS, [1, 2, 3]).ys.dtype == jnp.float32
        with pytest.raises(ValueError, match=r"float64.*64-bit mode is off.*jax_enable_x64"):
            fit.Data(TS, [1, 2, 3], dtype="float64")
    assert fit.Data(TS, [1, 2, 3], dtype=np.float32).ys.dtype == jnp.float32


def test_a_wrong_column_gets_a_hint():
    with pytest.raises(ValueError, match=r"`values='hares'` is not a column") as e:
        fit.Data.from_frame({"year": TS, "hare": TS}, time="year", values="hares")
    assert "Did you mean 'hare'?" in str(e.value) and "Columns: year, hare" in str(e.value)
    with pytest.raises(ValueError, match=r"`time='when'` is not a column") as e:
        fit.Data.from_frame({"year": TS, "hare": TS}, time="when", values="hare")
    assert "Did you mean" not in str(e.value)
    with pytest.raises(ValueError, match="names no column"):
        fit.Data.from_frame({"year": TS}, time="year", values=[])


@pytest.mark.parametrize("frame", [as_dict, pd.DataFrame, pl.DataFrame])
def test_the_text_that_spoils_a_column_is_named(frame):
    # One "n.d." makes the whole column one of texts when a file is read.
    table = frame({"t": TS, "a": ["1", "n.d.", "3"]})
    with pytest.raises(TypeError, match=r"`a` must hold numbers, but row 1 .* is 'n.d.'"):
        fit.Data.from_frame(table, time="t", values="a")
    table = frame({"t": ["0", "1", "2"], "a": TS})
    with pytest.raises(TypeError, match=r"`t` must hold numbers, but row 0 .* is '0'"):
        fit.Data.from_frame(table, time="t", values="a")


@pytest.mark.parametrize("values", [[1.0, None, "lost"], [1.0, 2.0, "lost"], (1, 2, "lost")])
@pytest.mark.parametrize("frame", [as_dict, pd.DataFrame])
def test_text_among_numbers_is_named_with_its_row(frame, values):
    with pytest.raises(TypeError, match=r"`a` must hold numbers, but row 2 .* is 'lost'"):
        fit.Data.from_frame(frame({"t": TS, "a": values}), time="t", values="a")


def test_dates_are_no_times():
    table = pd.DataFrame({"t": pd.to_datetime(["2020-01-01", "2020-01-02"]), "a": [1, 2]})
    with pytest.raises(TypeError, match="`t` must hold numbers, but row 0"):
        fit.Data.from_frame(table, time="t", values="a")


def test_what_is_not_a_frame():
    with pytest.raises(TypeError, match=r"data frame .* but is a list"):
        fit.Data.from_frame([1, 2], time="t", values="a")


def test_frames_need_an_extra_and_dicts_do_not(monkeypatch):
    monkeypatch.setitem(sys.modules, "narwhals", None)
    with pytest.raises(ImportError, match=r"sciml-jax\[frames\]"):
        fit.Data.from_frame(pd.DataFrame(COLUMNS), time="t", values="a")
    assert fit.Data.from_frame(COLUMNS, time="t", values="a").size == 3

import pathlib
import sys

import jax
import numpy as np
import pandas as pd
import polars as pl
import pytest

from sciml import fit


TABLES = pathlib.Path(__file__).parent.parent / "data" / "fit"

TS = [0.0, 1.0, 2.0]
COLUMNS = {"t": TS, "a": [3.0, 2.0, 1.0], "b": [1.0, None, 4.0], "s": [0.1, 0.2, 0.3]}


def as_dict(columns):
    return columns


def as_arrays(columns):
    return {k: np.array([np.nan if x is None else x for x in v]) for k, v in columns.items()}


frames = pytest.mark.parametrize("frame", [as_dict, as_arrays, pd.DataFrame, pl.DataFrame])


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


def same(a, b):
    assert a.names == b.names
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(x, y)


RUNS = {
    "run": ["warm", "cold", "warm", "cold", "cold"],
    "t": [0, 0, 5, 9, 4],
    "conc": [3.0, 3.1, 1.1, 1.9, None],
    "temp": [40.0, 10.0, 41.0, 11.0, 12.0],
}


@frames
def test_the_order_of_the_rows_does_not_matter(frame):
    def read(order, **kwargs):
        table = {k: [v[i] for i in order] for k, v in COLUMNS.items()}
        return fit.Data.from_frame(frame(table), time="t", values=["a", "b"], **kwargs)

    same(read([2, 0, 1]), read([0, 1, 2]))
    same(read([1, 2, 0], sigma=["s", "a"]), read([0, 1, 2], sigma=["s", "a"]))
    # Numbers, one a row, are in the order of the table.
    sigma = np.array([[3.0, 3.0], [1.0, 1.0], [2.0, 2.0]])
    np.testing.assert_array_equal(read([2, 0, 1], sigma=sigma).sigma, [[1, 1], [2, 1], [3, 3]])


def as_arrays_and_texts(columns):
    texts = {k: np.array(v) for k, v in columns.items() if isinstance(v[0], str)}
    return as_arrays({k: v for k, v in columns.items() if k not in texts}) | texts


tables = pytest.mark.parametrize(
    "frame", [as_dict, as_arrays_and_texts, pd.DataFrame, pl.DataFrame]
)


@tables
def test_experiments(frame):
    runs = fit.Data.from_frame(frame(RUNS), time="t", values=["conc", "temp"], experiment="run")
    assert list(runs) == ["warm", "cold"] and all(type(name) is str for name in runs)
    same(runs["warm"], fit.Data([0, 5], [[3.0, 40.0], [1.1, 41.0]], names=["conc", "temp"]))
    want = [[3.1, 10.0], [np.nan, 12.0], [1.9, 11.0]]
    same(runs["cold"], fit.Data([0, 4, 9], want, names=["conc", "temp"]))


def test_experiments_are_called_what_the_column_says():
    table = pd.DataFrame({"id": [7, 7, 3], "t": [0, 1, 0], "y": [1, 2, 3]})
    runs = fit.Data.from_frame(table, time="t", values="y", experiment="id", names=["conc"])
    assert list(runs) == [7, 3] and runs[3].names == ("conc",)
    table["id"] = pd.Categorical(["b", "b", "a"])
    assert list(fit.Data.from_frame(table, time="t", values="y", experiment="id")) == ["b", "a"]
    records = np.array([(7, 0, 1.0), (7, 1, 2.0)], dtype=[("id", int), ("t", int), ("y", float)])
    assert list(fit.Data.from_frame(records, time="t", values="y", experiment="id")) == [7]


LONG = {
    "who": ["B", "A", "B", "A", "B", "B", "A"],
    "what": ["sugar", "sugar", "acid", "acid", "sugar", "sugar", "acid"],
    "hour": [1, 0, 0, 2, 1, 0, 0],
    "amount": [5.0, 9.0, 0.1, 0.7, 6.0, 9.5, None],
    "sd": [0.5, 0.6, 0.1, 0.2, 0.7, 0.8, None],
    "side": [0, 0, -1, 0, 0, 1, None],
}


@tables
def test_long_tables(frame):
    names = ["sugar", "acid"]
    nan = np.nan
    read = lambda **kwargs: fit.Data.from_frame(
        frame(LONG), time="hour", values="amount", observable="what", **kwargs
    )
    both = read(experiment="who", sigma="sd", censored="side")
    assert list(both) == ["B", "A"]
    sigma = [[0.8, 0.1], [0.5, 1], [0.7, 1]]
    want = fit.Data(
        [0, 1, 1],  # two values of sugar at one time are two rows
        [[9.5, 0.1], [5, nan], [6, nan]],
        sigma,
        names,
        censored=[[1, -1], [0, 0], [0, 0]],
    )
    same(both["B"], want)
    same(both["A"], fit.Data([0, 2], [[9, nan], [nan, 0.7]], [[0.6, 1], [1, 0.2]], names))
    # One experiment: the rows that share a time are paired in the order of the table.
    same(
        read(sigma=[0.1, 0.2]),
        fit.Data(
            [0, 0, 1, 1, 2],
            [[9, 0.1], [9.5, nan], [5, nan], [6, nan], [nan, 0.7]],
            [0.1, 0.2],
            names,
        ),
    )
    assert read(names=["S", "A"]).names == ("S", "A")


def test_an_observable_that_an_experiment_lacks_is_missing_there():
    table = {"e": [1, 1, 2], "t": [0, 0, 0], "o": ["a", "b", "b"], "y": [1.0, 2.0, 3.0]}
    runs = fit.Data.from_frame(table, time="t", values="y", observable="o", experiment="e")
    assert runs[1].names == runs[2].names == ("a", "b")
    np.testing.assert_array_equal(runs[2].ys, [[np.nan, 3]])


def test_long_and_wide_tables_agree(getkey):
    ys = np.array(jax.random.normal(getkey(), (6, 3)))
    ts = np.array([0, 1, 1, 2, 3, 3])
    wide = fit.Data.from_frame({"t": ts, "a": ys[:, 0], "b": ys[:, 1], "c": ys[:, 2]}, time="t",
                               values=["a", "b", "c"])  # fmt: skip
    table = pd.DataFrame(ys, columns=["a", "b", "c"]).assign(t=ts).melt(id_vars="t")
    same(fit.Data.from_frame(table, time="t", values="value", observable="variable"), wide)


def test_tables_of_real_measurements():
    table = pd.read_csv(TABLES / "indometh.csv")
    subjects = fit.Data.from_frame(table, time="time", values="conc", experiment="Subject")
    assert [s.size for s in subjects.values()] == [11] * 6
    # Values in duplicate, and metabolites in some of the experiments.
    table = pd.read_csv(TABLES / "focus_2006.csv")
    soils = fit.Data.from_frame(
        table, time="time", values="value", observable="name", experiment="dataset"
    )
    assert list(soils) == list("ABCDEF") and soils["A"].names == soils["F"].names
    assert {k: v.size for k, v in soils.items()} == dict(table.groupby("dataset")["value"].count())
    d = soils["D"]
    assert d.ys.shape == (22, 5) and d.names[:2] == ("parent", "m1")
    np.testing.assert_array_equal(
        d.ts, np.sort(table.query("dataset == 'D' and name == 'm1'").time)
    )
    np.testing.assert_array_equal(
        d.ys[:, 0], table.query("dataset == 'D' and name == 'parent'").value
    )


bad_tables = [
    ({"experiment": "runs"}, "`experiment='runs'` is not a column.*mean 'run'"),
    ({"observable": "Run", "values": "conc"}, "`observable='Run'` is not .*mean 'run'"),
    ({"censored": "tem"}, "`censored='tem'` is not a column.*mean 'temp'"),
    ({"censored": ["temp", "temp"]}, "`censored` names 2 columns for 1 columns of values"),
    ({"censored": "temp"}, "`censored` is 40 in row 0, column 'conc', but must be -1, 0 or 1"),
    ({"observable": "run", "values": ["conc", "temp"]}, "stand in one column.*2: conc, temp"),
    ({"observable": "run", "sigma": [1, 2, 3]}, r"2 \(one for each observable\)"),
    ({"time": "conc"}, r"finite, but row 4 .* is nan"),
    ({"experiment": "conc"}, "Row 4 .* has no experiment: column 'conc' is empty"),
    ({"observable": "conc"}, "Row 4 .* has no observable"),
    ({"names": ["a", "b"]}, "must be 1 different names"),
    ({"time": ["t"]}, r"`time=\['t'\]` is not a column"),
    ({"values": 3}, r"`values=3` is not a column"),
]


@pytest.mark.parametrize(("kwargs", "message"), bad_tables, ids=lambda x: str(x)[:40])
def test_bad_tables(kwargs, message):
    with pytest.raises(ValueError, match=message):
        fit.Data.from_frame(RUNS, **{"time": "t", "values": "conc"} | kwargs)


def test_rows_are_those_of_the_table():
    # Row 0 in time is row 1 of the table.
    table = {"t": [1, 0], "y": [1.0, 2.0], "s": [0.1, -0.1], "c": [0, 7], "x": [1.0, np.inf]}
    read = lambda **kwargs: fit.Data.from_frame(table, time="t", **{"values": "y"} | kwargs)
    with pytest.raises(ValueError, match=r"is -0.1 in row 1, column 'y'"):
        read(sigma="s")
    with pytest.raises(ValueError, match="is 7 in row 1, column 'y'"):
        read(censored="c")
    with pytest.raises(ValueError, match="infinite in row 1, column 'x'"):
        read(values="x")


def test_equal_replicates_do_not_have_infinite_weight():
    table = pd.DataFrame({"t": [0, 0, 0, 1, 1, 1], "y": [2.0, 2.0, 2.0, 1.0, 1.1, 1.2]})
    means = table.groupby("t").agg(mean=("y", "mean"), sd=("y", "std")).reset_index()
    with pytest.raises(
        ValueError, match=r"is 0.0 in row 0.*exact value would have infinite weight"
    ):
        fit.Data.from_frame(means, time="t", values="mean", sigma="sd")


def test_an_experiment_without_data_is_named():
    table = {"e": ["x", "y"], "t": [0, 0], "y": [1.0, None]}
    with pytest.raises(ValueError, match="Experiment 'y': There is no data"):
        fit.Data.from_frame(table, time="t", values="y", experiment="e")


def test_times_in_the_index_get_a_hint():
    table = pd.DataFrame({"y": [1.0, 2.0]}, index=pd.Index([0, 1], name="t"))
    with pytest.raises(ValueError, match=r"`time='t'` is not a column.*`reset_index\(\)`"):
        fit.Data.from_frame(table, time="t", values="y")

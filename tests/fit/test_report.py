"""What the reader must be told, in text and in HTML."""

import dataclasses
import re

import fit_cases
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from fit_cases import decay_problem

from sciml import fit
from sciml.fit._report import _bounds, _near, warnings


@pytest.fixture(scope="module")
def result():
    return fit.estimate(decay_problem())


@pytest.fixture(scope="module")
def hares():
    """Two states of which one is fixed, and a fixed rate."""
    ts, table = fit_cases.lynx_hare()
    names = {"birth": 0.48, "growth": 0.0275, "predation": 0.0248, "death": 0.926}
    free = {name: fit.Free(0.1 * v, 10 * v, scale="log") for name, v in names.items()}
    problem = fit.Problem(
        fit_cases.LotkaVolterra(**names), fit.Data(ts, table, 4.0, names=["hare", "lynx"]),
        y0=jnp.array([35.0, 4.0]), free=free | {"y0[0]": fit.Free()}, solve=fit_cases.FAST,
    )  # fmt: skip
    return fit.estimate(problem.fix("death"))


def with_starts(result, loss, reasons):
    loss = np.array(loss)
    starts = fit.Starts(loss, np.isfinite(loss), tuple(reasons), np.zeros((len(loss), 2)))
    return dataclasses.replace(result, starts=starts)


def line(text, start) -> str:
    return next(row for row in text.splitlines() if row.split()[:1] == [start])


def test_the_table_of_the_text(result):
    text = str(result)
    assert text == repr(result)
    head = line(text, "parameter")
    for column in ("estimate", "std.err", "95% interval", "bounds", "initial"):
        assert column in head
    assert re.search(
        r"^  k +0\.4019\d* +0\.0048 +\[0\.39\d+, 0\.41\d+\] +0\.001 \.\. 10 +0\.2$", text, re.M
    )
    assert re.search(
        r"^  y0\[0\] +3\.0195\d* +0\.021 +\[2\.97\d+, 3\.06\d+\] +0 \.\. 10 +2$", text, re.M
    )


def test_the_head_and_the_statistics(result):
    first, second, third = str(result).splitlines()[:3]
    assert first.startswith("Fit of Decay   converged in 6 steps")
    assert "data 10   free 2" in second and "RSS 0.00441365" in second and "AIC" in second
    assert "noise Normal, sigma from residuals = 0.02349" in third
    assert "Tsit5 on 4 fixed steps" in third and "float64" in third
    assert "intervals: from the curvature at the optimum" in str(result)


def test_a_poor_fit_and_what_is_held_fixed_are_said(result):
    tight = dataclasses.replace(
        result, statistics=result.statistics | {"sigma": "given", "reduced chi2": 19.4}
    )
    assert "! reduced chi2 is 19.4: the model does not describe the data" in str(tight)
    polished = dataclasses.replace(result, problem=result.problem.fix("k"))
    assert "! k had been free and is held fixed: the error bars hold only for" in "\n".join(
        f"! {w}" for w in warnings(polished)
    )


def test_trouble_comes_first(result):
    bad = dataclasses.replace(result, ok=False, message="It stalled.", active=np.array([-1, 1]))
    bad = with_starts(bad, [1.0, np.nan, np.nan], ["", "Step size collapsed.", "Other."])
    bad = dataclasses.replace(bad, statistics=bad.statistics | {"precision": "float32"})
    lines = str(bad).splitlines()
    said = [row.removeprefix("  ! ") for row in lines if row.startswith("  ! ")]
    assert lines[1 : 1 + len(said)] == [f"  ! {row}" for row in said] and "did not" in lines[0]
    assert said[0] == "NOT CONVERGED: It stalled."
    assert said[1].startswith("k sits at its lower bound: no error bar")
    assert said[2].startswith("y0[0] sits at its upper bound")
    assert said[3] == "2 of 3 starts failed: Step size collapsed."
    assert said[4].startswith("float32: enable x64")
    assert said == warnings(bad)


def test_no_trouble_no_warnings(result):
    assert warnings(result) == [] and "!" not in str(result)
    assert "<ul>" not in result._repr_html_()


def test_agreement_of_starts(result):
    some = with_starts(result, [1.0, 1.0 + 1e-6, 2.0], ["", "", ""])
    assert "2 of 3 starts agree" in str(some)


def test_what_is_fixed_is_said(hares, result):
    text = str(hares)
    assert re.search(r"fixed: .*\bdeath = 0\.926\b", text)
    assert re.search(r"fixed: .*\by0\[1\] = 4(,|$)", text, re.M)  # the other element is free
    assert "fixed:" not in str(result)
    fixed = next(row for row in text.splitlines() if "fixed:" in row)
    assert "birth" not in fixed and "y0[0]" not in fixed


@pytest.mark.parametrize("r", [0.95, -0.999])
def test_strong_correlations_are_said(result, r):
    u = dataclasses.replace(result.uncertainty, covariance=np.array([[4, 2 * r], [2 * r, 1]]))
    text = str(dataclasses.replace(result, uncertainty=u))
    assert f"correlations: k, y0[0] {r:.3f}" in text
    assert "correlations" not in str(result)  # 0.56


def test_html_says_the_same(hares):
    page = hares._repr_html_()
    for piece in ("<th>95% interval</th>", "<td>y0[0]</td>", "Fit of LotkaVolterra", "fixed: "):
        assert piece in page
    assert page.count("<tr>") == 1 + len(hares.flat_names)
    bad = dataclasses.replace(hares, ok=False, message="a < b & c")._repr_html_()
    assert "<li>NOT CONVERGED: a &lt; b &amp; c</li>" in bad
    assert bad.index("<li>") < bad.index("<table>")


def test_the_table_goes_into_a_data_frame(result):
    frame = pd.DataFrame(result.table()).set_index("parameter")
    assert list(frame.index) == ["k", "y0[0]"]
    columns = ["estimate", "standard error", "low", "high", "lower bound", "upper bound", "initial"]
    assert list(frame.columns) == columns
    assert all(pd.api.types.is_float_dtype(t) for t in frame.dtypes)
    low, high = fit.intervals(result)["k"]
    want = [result.values["k"], result.standard_errors["k"], low, high, 1e-3, 10, 0.2]
    np.testing.assert_allclose(frame.loc["k"].to_numpy(), want, rtol=1e-12)


def test_missing_error_bars_are_dashes(result):
    known = np.array([False, True])
    u = dataclasses.replace(result.uncertainty, known=known, groups=((0,),))
    text = str(dataclasses.replace(result, uncertainty=u))
    assert line(text, "k").split()[2:4] == ["-", "-"]
    assert "k is not identifiable: the data do not depend on it." in text
    assert "nan" not in text


@pytest.mark.parametrize(
    ("value", "error", "want"),
    [
        (3.019538343, 0.021, "3.01954"),
        (0.0, 0.1, "0"),
        (1e-9, 1e-11, "1e-09"),
        (123456.789, 0.01, "123456.789"),
        (-2.5, np.nan, "-2.5"),
        (2.0, 100.0, "2"),
        (np.nan, 1.0, "nan"),
    ],
)
def test_digits(value, error, want):
    assert _near(value, error) == want


def test_bounds_are_short():
    assert _bounds(-np.inf, np.inf) == "free"
    assert _bounds(0.0, np.inf) == "0 .."
    assert _bounds(-np.inf, 2.5) == ".. 2.5"
    assert _bounds(0.001, 10.0) == "0.001 .. 10"

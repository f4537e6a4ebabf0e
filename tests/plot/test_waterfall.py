import dataclasses
import inspect

import numpy as np
import pytest

from sciml import fit, plot


@pytest.fixture
def with_starts(result):
    """The result as if its starts had ended with these losses."""

    def make(loss, ok=None):
        loss = np.asarray(loss)
        ok = np.isfinite(loss) if ok is None else np.asarray(ok)
        reason = tuple("" if good else "why" for good in ok)
        starts = fit.Starts(loss, ok, reason, np.zeros((loss.size, 1)))
        return dataclasses.replace(result, starts=starts)

    return make


def _groups(ax):
    """The points by label: (rank, height)."""
    points = [line for line in ax.lines if line.get_marker() == "o"]
    return {p.get_label(): (list(p.get_xdata()), list(p.get_ydata())) for p in points}


def test_sorted_above_the_best(with_starts):
    result = with_starts([7.0, 10.0, 7.001, 12.0, np.nan])
    (ax,) = plot.waterfall(result).axes
    groups = _groups(ax)
    assert list(groups) == ["2 agree with the best", "2 converged elsewhere"]
    ranks, heights = groups["2 agree with the best"]
    assert ranks == [1, 2]
    np.testing.assert_allclose(heights, [0, 0.001], atol=1e-12)
    assert groups["2 converged elsewhere"] == ([3, 4], [3.0, 5.0])
    assert ax.get_yscale() == "linear" and ax.get_ylabel() == "loss − best"
    assert ax.get_xlabel() == "start, sorted by loss (1 of 5 failed, not shown)"


def test_logarithmic_where_the_spread_is_large(with_starts):
    (ax,) = plot.waterfall(with_starts([-20.0, -20.0, -16.0, 300.0, 4e4])).axes
    assert ax.get_yscale() == "log" and ax.get_ylabel() == "loss − best + 1"
    assert _groups(ax)["2 agree with the best"] == ([1, 2], [1.0, 1.0])
    assert _groups(ax)["3 converged elsewhere"] == ([3, 4, 5], [5.0, 321.0, 40021.0])


def test_offset_follows_the_size_of_the_loss(with_starts):
    (ax,) = plot.waterfall(with_starts([2e-6, 5e-6, 1e-3])).axes
    assert ax.get_ylabel() == "loss − best + 1e-06"


def test_stopped_early_is_not_converged(with_starts):
    (ax,) = plot.waterfall(with_starts([7.0, 7.0, 9.0], ok=[True, False, False])).axes
    groups = _groups(ax)
    assert groups["1 agree with the best"] == ([1], [0.0])
    assert groups["2 did not converge"] == ([2, 3], [0.0, 2.0])


def test_agreement_is_that_of_the_report(with_starts):
    result = with_starts([7.0, 7.0069, 7.0071, 8.0])
    assert "2 of 4 starts agree" in str(result)
    assert "2 agree with the best" in _groups(plot.waterfall(result).axes[0])


def test_rounding_is_not_blown_up(with_starts):
    (ax,) = plot.waterfall(with_starts(7 + 1e-14 * np.arange(5))).axes
    assert ax.get_ylim()[1] > 1e-3


def test_one_start_in_given_axes(result, ax):
    assert plot.waterfall(result, ax=ax) is ax
    assert _groups(ax) == {"1 agree with the best": ([1], [0.0])}


def test_refusals(result, with_starts):
    waterfall = inspect.unwrap(plot.waterfall)
    with pytest.raises(TypeError, match=r"`plot.waterfall` draws a `fit.Result`, but got a Starts"):
        waterfall(result.starts)
    with pytest.raises(ValueError, match=r"All 2 starts failed.*result.starts.reason"):
        waterfall(with_starts([np.nan, np.nan]))
    with pytest.raises(TypeError, match="`ax` must be one matplotlib Axes, but is a list"):
        waterfall(result, ax=[])

import dataclasses
import inspect

import jax.numpy as jnp
import numpy as np
import pytest

from sciml import fit, plot


def _line(ax, label):
    return next(line for line in ax.lines if line.get_label() == label)


def _legend(home):
    legend = home.legends[0] if hasattr(home, "legends") else home.get_legend()
    return [text.get_text() for text in legend.get_texts()]


def test_measurements_with_error_bars(result, band):
    figure = plot.data(result, band())
    a, b = figure.axes
    for ax, column, sigma in ((a, 0, 0.1), (b, 1, 0.05)):
        points, _, (bars,) = ax.containers[0]
        ys = np.asarray(result.problem.data.ys[:, column])
        seen = np.isfinite(ys)
        assert seen.sum() == (5 if column == 0 else 6)
        np.testing.assert_allclose(points.get_xdata(), np.arange(6.0)[seen])
        np.testing.assert_allclose(points.get_ydata(), ys[seen])
        ends = np.array(bars.get_segments())[:, :, 1]
        np.testing.assert_allclose(ends, ys[seen, None] + [-sigma, sigma])


def test_error_bars_of_lognormal_noise_are_those_of_the_logarithm(result, band):
    data = fit.Data([0.0, 1.0], [[3.0, 2.0], [2.0, 1.0]], sigma=0.5, names=["a", "b"])
    old = result.problem
    free = {"k": fit.Free(1e-2, 10)}
    problem = fit.Problem(old.model, data, y0=old.y0, free=free, noise=fit.noise.LogNormal())
    figure = plot.data(dataclasses.replace(result, problem=problem), band())
    ends = np.array(figure.axes[0].containers[0][2][0].get_segments())[:, :, 1]
    np.testing.assert_allclose(ends, np.outer([3, 2], np.exp([-0.5, 0.5])))


def test_no_error_bars_without_sigma(no_sigma, band):
    figure = plot.data(no_sigma, band())
    assert not figure.axes[0].containers
    np.testing.assert_allclose(_line(figure.axes[0], "measured").get_xdata(), [0, 1, 2, 3, 5])


def test_curve_and_bands_in_order_of_time(result, band):
    wide = band(0.68, observations=True)
    figure = plot.data(result, wide, band())
    assert _legend(figure) == [
        "measured", "fitted", "95% band of the curve", "68% band of new measurements",
    ]  # fmt: skip
    for column, ax in enumerate(figure.axes):
        curve = _line(ax, "fitted")
        np.testing.assert_allclose(curve.get_xdata(), [0, 2.5, 5])
        np.testing.assert_allclose(curve.get_ydata(), band().mean[[1, 2, 0], column])
        upper, lower = ax.collections[:2]
        assert lower.get_zorder() < upper.get_zorder() and lower.get_alpha() < upper.get_alpha()
        for drawn, given in ((lower, wide), (upper, band())):
            vertices = drawn.get_paths()[0].vertices
            for t, low, high in zip(given.ts, given.low, given.high, strict=True):
                at = vertices[vertices[:, 0] == t, 1]
                np.testing.assert_allclose([at.min(), at.max()], [low[column], high[column]])


def test_a_band_that_is_not_determined_is_left_out(result, band):
    nothing = np.full((3, 2), np.nan)
    figure = plot.data(result, dataclasses.replace(band(), low=nothing, high=nothing))
    assert _legend(figure) == ["measured", "fitted"]


def test_a_panel_for_each_observable(result, band):
    figure = plot.data(result, band())
    a, b = figure.axes
    assert [ax.get_ylabel() for ax in figure.axes] == ["a", "b"]
    assert [ax.get_xlabel() for ax in figure.axes] == ["", "time"]
    assert a.get_shared_x_axes().joined(a, b)


def test_all_observables_in_given_axes(result, band, ax):
    assert plot.data(result, band(), ax=ax) is ax
    assert len(ax.figure.axes) == 1 and len(ax.containers) == 2
    assert _legend(ax) == ["a", "b", "95% band of the curve"]
    assert _line(ax, "a").get_color() != _line(ax, "b").get_color()
    assert ax.get_xlabel() == "time"


def test_predicts_by_itself(result):
    figure = plot.data(result)
    curve = _line(figure.axes[1], "fitted")
    ts = curve.get_xdata()
    assert len(ts) >= 100 and ts[0] == 0 and ts[-1] == 5
    np.testing.assert_allclose(curve.get_ydata(), 2 * np.exp(-result.values["k"] * ts), rtol=1e-6)
    assert "95% band of the curve" in _legend(figure)


def test_many_observables_share_the_page(result):
    names = tuple(f"y{i}" for i in range(7))
    data = fit.Data([0.0, 1.0], np.ones((2, 7)), names=names)
    free = {"k": fit.Free(1e-2, 10)}
    problem = fit.Problem(result.model, data, y0=jnp.ones(7), free=free)
    ones = np.ones((2, 7))
    given = fit.Prediction(np.array([0.0, 1.0]), ones, ones, ones, names, 0.95, False)
    figure = plot.data(dataclasses.replace(result, problem=problem), given)
    assert [ax.get_ylabel() for ax in figure.axes] == list(names)
    assert [bool(ax.get_xlabel()) for ax in figure.axes] == [False] * 5 + [True] * 2


def test_refusals(result, band):
    data = inspect.unwrap(plot.data)  # beartype, in tests only, would refuse first
    with pytest.raises(TypeError, match=r"got a Problem. Pass what `fit.estimate\(problem\)`"):
        data(result.problem)
    with pytest.raises(TypeError, match=r"got a ndarray. Pass `fit.predict\(result, ts\)`"):
        data(result, np.arange(3.0))
    with pytest.raises(ValueError, match="prediction is of a, but the data are of a, b"):
        data(result, band(names=("a",)))

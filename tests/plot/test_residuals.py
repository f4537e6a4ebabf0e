import dataclasses
import inspect

import jax.numpy as jnp
import numpy as np
import pytest

from sciml import fit, plot


def _points(ax):
    return [line for line in ax.lines if line.get_marker() == "o"]


def _levels(ax):
    lines = [line for line in ax.lines if line.get_marker() != "o"]
    return sorted(line.get_ydata()[0] for line in lines)


def _expected(result, sigma):
    """Measured − predicted from the exact solution."""
    data = result.problem.data
    predicted = np.array([3, 2]) * np.exp(-result.values["k"] * np.asarray(data.ts))[:, None]
    return (np.asarray(data.ys) - predicted) / sigma


@pytest.mark.parametrize(("which", "sigma"), [("result", [0.1, 0.05]), ("no_sigma", 0.2)])
def test_in_units_of_sigma(which, sigma, request):
    result = request.getfixturevalue(which)
    figure = plot.residuals(result)
    expected = _expected(result, sigma)
    for column, ax in enumerate(figure.axes):
        (points,) = _points(ax)
        seen = np.isfinite(expected[:, column])
        np.testing.assert_allclose(points.get_xdata(), np.arange(6.0)[seen])
        np.testing.assert_allclose(points.get_ydata(), expected[seen, column], atol=1e-6)
        assert _levels(ax) == [-2, 0, 2]
    assert figure.get_supylabel() == "(measured − predicted) / σ"
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["a", "b"]


def test_unit_of_the_data_where_no_sigma_is_known(no_sigma):
    statistics = no_sigma.statistics | {"residual sigma": None}
    figure = plot.residuals(dataclasses.replace(no_sigma, statistics=statistics))
    (points,) = _points(figure.axes[1])
    np.testing.assert_allclose(points.get_ydata(), _expected(no_sigma, 1)[:, 1], atol=1e-6)
    assert _levels(figure.axes[1]) == [0]
    assert figure.get_supylabel() == "measured − predicted"


def test_all_observables_in_given_axes(result, ax):
    assert plot.residuals(result, ax=ax) is ax
    assert [points.get_label() for points in _points(ax)] == ["a", "b"]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["a", "b"]
    assert _levels(ax) == [-2, 0, 2]  # once, not for each observable
    assert ax.get_ylabel() == "(measured − predicted) / σ"


def test_lognormal_noise_is_named(result):
    old = result.problem
    data = fit.Data([0.0, 1.0], [[3.0, 2.0], [2.0, 1.0]], names=["a", "b"])
    noise = fit.noise.LogNormal(sigma=0.5)
    problem = fit.Problem(old.model, data, y0=old.y0, free={"k": fit.Free(0, 10)}, noise=noise)
    figure = plot.residuals(dataclasses.replace(result, problem=problem))
    k = result.values["k"]
    expected = (np.log([3.0, 2.0]) - np.log(3) + [0, k]) / 0.5
    np.testing.assert_allclose(_points(figure.axes[0])[0].get_ydata(), expected, atol=1e-6)
    assert figure.get_supylabel() == "log(measured / predicted) / σ"


def test_refusals(result):
    with pytest.raises(TypeError, match=r"`plot.residuals` draws a `fit.Result`, but got a str"):
        inspect.unwrap(plot.residuals)("fit.sciml")
    broken = result.problem.at(jnp.array([jnp.nan]))
    with pytest.raises(RuntimeError, match="solve of the fitted model failed"):
        plot.residuals(dataclasses.replace(result, problem=broken))

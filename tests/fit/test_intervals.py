import dataclasses
import math

import jax
import numpy as np
import pytest
import scipy.stats
from fit_cases import decay_problem, T

from sciml import fit
from sciml.fit._intervals import _t_quantile


@pytest.fixture(scope="module")
def unknown():
    return fit.estimate(decay_problem())


@pytest.fixture(scope="module")
def known():
    return fit.estimate(decay_problem(0.02))


@pytest.mark.parametrize("dof", [1, 2, 3, 4, 5, 8, 20, 100, 1000, 10**6])
@pytest.mark.parametrize("p", [0.6, 0.9, 0.975, 0.995, 0.99995])
def test_quantiles_of_students_t(p, dof):
    np.testing.assert_allclose(_t_quantile(p, dof), scipy.stats.t.ppf(p, dof), rtol=1e-8)


def test_quantiles_of_students_t_in_single_precision():
    with jax.enable_x64(False):
        for dof in (1, 3, 8, 100):
            want = scipy.stats.t.ppf(0.975, dof)
            np.testing.assert_allclose(_t_quantile(0.975, dof), want, rtol=2e-5)


@pytest.mark.parametrize("level", [0.5, 0.95, 0.999])
def test_sigma_from_the_residuals_takes_students_t(unknown, level):
    q = scipy.stats.t.ppf((1 + level) / 2, 8)
    value, error = unknown.values["y0[0]"], unknown.standard_errors["y0[0]"]
    low, high = fit.intervals(unknown, level)["y0[0]"]
    np.testing.assert_allclose([low, high], [value - q * error, value + q * error], rtol=1e-8)
    assert isinstance(low, float)


@pytest.mark.parametrize("level", [0.5, 0.95, 0.999])
def test_a_known_sigma_takes_the_normal_law(known, level):
    q = scipy.stats.norm.ppf((1 + level) / 2)
    value, error = known.values["y0[0]"], known.standard_errors["y0[0]"]
    low, high = fit.intervals(known, level=level)["y0[0]"]
    np.testing.assert_allclose([low, high], [value - q * error, value + q * error], rtol=1e-8)


def test_log_scaled_intervals_are_symmetric_on_the_logarithm(known):
    value, error = known.values["k"], known.standard_errors["k"]
    low, high = fit.intervals(known)["k"]
    np.testing.assert_allclose(low * high, value**2, rtol=1e-10)
    half = scipy.stats.norm.ppf(0.975) * error / value
    np.testing.assert_allclose([low, high], value * np.exp([-half, half]), rtol=1e-8)
    assert fit.intervals(known, 0.9999999)["k"][0] > 0


def test_intervals_of_arrays_are_arrays():
    free = {"y0": fit.Free(0, 10), "k": fit.Free(0, 10)}
    low, high = fit.intervals(fit.estimate(decay_problem(0.02, free=free)))["y0"]
    assert low.shape == high.shape == (1,) and low[0] < high[0]


def test_no_degrees_of_freedom_no_intervals(unknown):
    none = dataclasses.replace(unknown, statistics=unknown.statistics | {"dof": 0})
    assert all(math.isnan(v) for pair in fit.intervals(none).values() for v in pair)


@pytest.mark.parametrize("level", [0, 1, 95, -0.5, math.nan])
def test_levels_lie_between_zero_and_one(known, level):
    with pytest.raises(ValueError, match=r"`level` must lie between 0 and 1, as 0.95 does"):
        fit.intervals(known, level=level)
    with pytest.raises(ValueError, match="`level` must lie between"):
        fit.predict(known, T, level=level)


def test_methods(known):
    assert fit.intervals(known, method="wald") == fit.intervals(known)
    with pytest.raises(ValueError, match="'profile' is not available yet: use 'wald'"):
        fit.intervals(known, method="profile")
    with pytest.raises(ValueError, match="'Wald' is unknown: use 'wald'"):
        fit.intervals(known, method="Wald")


def test_coverage():
    """Nine in ten intervals of level 0.9 hold the truth, which checks scales and quantiles."""
    hits = []
    for seed in range(60):
        noise = 0.02 * np.random.default_rng(seed).normal(size=len(T))
        result = fit.estimate(decay_problem(ys=3 * np.exp(-0.4 * T) + noise, k=0.4, y0=3.0))
        low, high = fit.intervals(result, 0.9)["k"]
        hits.append(low < 0.4 < high)
    # Three standard deviations of a binomial of 60.
    assert abs(np.mean(hits) - 0.9) < 3 * math.sqrt(0.09 / 60)

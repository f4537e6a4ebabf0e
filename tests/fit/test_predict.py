import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from fit_cases import central_differences, decay_problem, FAST, lynx_hare, T, Y

from sciml import fit


TS = np.linspace(0, 12, 13)  # one length for all, so that one program serves


@pytest.fixture(scope="module")
def known():
    return fit.estimate(decay_problem(0.02))


@pytest.fixture(scope="module")
def unknown():
    return fit.estimate(decay_problem())


@pytest.fixture(scope="module")
def log_normal():
    free = {
        "k": fit.Free(1e-3, 10, scale="log"),
        "y0[0]": fit.Free(0.01, 10),
        "noise.sigma": fit.Free(1e-3, 5, scale="log"),
    }
    return fit.estimate(decay_problem(noise=fit.noise.LogNormal(0.5), free=free))


def by_hand(result, ts):
    """The curve a exp(-k t) and its variance by the delta method, on the scale of the data."""
    k, a = result.values["k"], result.values["y0[0]"]
    slopes = np.stack([-ts * a * np.exp(-k * ts), np.exp(-k * ts)], axis=1)
    covariance = result.covariance[:2, :2]
    return a * np.exp(-k * ts), np.einsum("ti,ij,tj->t", slopes, covariance, slopes)


def test_the_band_of_the_curve(known):
    mean, variance = by_hand(known, TS)
    half = scipy.stats.norm.ppf(0.95) * np.sqrt(variance)
    curve = fit.predict(known, TS, level=0.9)
    assert (curve.names, curve.level, curve.observations) == (("conc",), 0.9, False)
    assert curve.mean.shape == curve.low.shape == curve.high.shape == (13, 1)
    np.testing.assert_array_equal(curve.ts, TS)
    np.testing.assert_allclose(curve.mean[:, 0], mean, rtol=1e-6)
    np.testing.assert_allclose(curve.low[:, 0], mean - half, rtol=1e-5)
    np.testing.assert_allclose(curve.high[:, 0], mean + half, rtol=1e-5)


def test_the_band_is_what_differences_give(known):
    def mean(x):
        moved = dataclasses.replace(known, problem=known.problem.at(x))
        return fit.predict(moved, TS).mean[:, 0]

    rows = central_differences(mean, known.problem.initial(), step=1e-4)
    variance = np.einsum("ti,ij,tj->t", rows, known.uncertainty.covariance, rows)
    curve = fit.predict(known, TS)
    half = (curve.high - curve.low)[:, 0] / 2
    np.testing.assert_allclose(half, 1.9599639845 * np.sqrt(variance), rtol=1e-5)


def test_the_band_of_a_new_observation(known, unknown):
    mean, variance = by_hand(known, TS)
    half = scipy.stats.norm.ppf(0.975) * np.sqrt(variance + 0.02**2)
    new = fit.predict(known, TS, observations=True)
    assert new.observations
    np.testing.assert_allclose(new.high[:, 0], mean + half, rtol=1e-6)
    mean, variance = by_hand(unknown, TS)
    sigma = unknown.statistics["residual sigma"]
    half = scipy.stats.t.ppf(0.975, 8) * np.sqrt(variance + sigma**2)
    new = fit.predict(unknown, TS, observations=True)
    np.testing.assert_allclose(new.low[:, 0], mean - half, rtol=1e-5)


def test_a_sigma_that_differs_from_point_to_point_says_nothing_of_a_new_one():
    result = fit.estimate(decay_problem(0.01 + 0.01 * T))
    assert np.all(np.isfinite(fit.predict(result, TS).low))
    with pytest.raises(ValueError, match="sigma differs from point to point"):
        fit.predict(result, TS, observations=True)


def test_log_normal_bands_are_positive_and_symmetric_on_the_logarithm(log_normal):
    curve = fit.predict(log_normal, TS)
    new = fit.predict(log_normal, TS, observations=True)
    for band in (curve, new):
        assert np.all(band.low > 0)
        np.testing.assert_allclose(band.low * band.high, band.mean**2, rtol=1e-9)
    _, variance = by_hand(log_normal, TS)
    sigma = log_normal.values["noise.sigma"]
    on_logs = np.sqrt(variance) / curve.mean[:, 0]
    q = scipy.stats.norm.ppf(0.975)
    np.testing.assert_allclose(np.log(curve.high / curve.mean)[:, 0], q * on_logs, rtol=1e-6)
    half = q * np.sqrt(on_logs**2 + sigma**2)
    np.testing.assert_allclose(np.log(new.high / new.mean)[:, 0], half, rtol=1e-6)


def test_one_noise_level_for_each_observable():
    _, table = lynx_hare()
    data = fit.Data(T, table[:10] / table[0])
    problem = fit.Problem(
        _growth, data, y0=jnp.ones(2), free={"y0": fit.Free()}, solve=FAST,
        noise=fit.noise.Normal([0.1, 2.0]),
    )  # fmt: skip
    result = fit.estimate(problem)
    ts = TS[:10]
    curve, new = fit.predict(result, ts), fit.predict(result, ts, observations=True)
    noise = ((new.high - new.mean) ** 2 - (curve.high - curve.mean) ** 2) / 1.9599639845**2
    np.testing.assert_allclose(noise, np.tile([0.01, 4.0], (10, 1)), rtol=1e-6)


def _growth(t, y, args):
    return 0.1 * y


def test_times_in_any_order_and_repeated(known):
    order = np.random.default_rng(0).permutation(13)
    ts = np.append(TS[order][:11], TS[order][:2])
    there = fit.predict(known, TS)
    curve = fit.predict(known, ts)
    where = np.append(order[:11], order[:2])
    np.testing.assert_array_equal(curve.ts, ts)
    for name in ("mean", "low", "high"):
        got, want = getattr(curve, name), getattr(there, name)[where]
        np.testing.assert_allclose(got, want, rtol=1e-4)  # other fixed steps between the times


def test_a_single_time(known):
    curve = fit.predict(known, 0.0)
    assert curve.mean.shape == (1, 1)
    np.testing.assert_allclose(curve.mean, [[known.values["y0[0]"]]], rtol=1e-12)


def test_times_before_the_start(known):
    with pytest.raises(ValueError, match=r"`ts` starts at -1, before the problem's t0 = 0"):
        fit.predict(known, [2.0, -1.0])


@pytest.mark.parametrize("ts", [[0.0, np.nan], [np.inf], np.zeros((2, 2))])
def test_times_must_be_finite_and_one_dimensional(known, ts):
    with pytest.raises(ValueError, match="`ts` must be finite times in one dimension"):
        fit.predict(known, ts)


def test_a_solve_that_fails_beyond_the_data():
    problem = fit.Problem(
        _square, fit.Data([0.0, 0.5], [1.0, 2.1]), y0=jnp.ones(1), free={"y0": fit.Free()},
        solve=FAST,
    )  # fmt: skip
    result = fit.estimate(problem)
    with pytest.raises(RuntimeError, match=r"solve of the fitted model failed: .*non-finite"):
        fit.predict(result, np.linspace(0, 20, 13))


def _square(t, y, args):
    return y**2


def test_the_data_lie_inside_the_band_of_observations(unknown):
    new = fit.predict(unknown, np.append(T, [10.0, 11.0, 12.0]), observations=True)
    inside = (new.low[:10, 0] < Y) & (new.high[:10, 0] > Y)
    assert inside.sum() >= 9

"""Estimates, error bars and bookkeeping, on one small problem with known answers (case 39)."""

import math

import equinox as eqx
import fit_cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from fit_cases import Decay, decay_problem, numbers, T, Y

from sciml import fit


NAMES = ("k", "y0[0]")
FREE = {"k": fit.Free(1e-3, 10, scale="log"), "y0[0]": fit.Free(0, 10)}


@pytest.fixture(scope="module")
def unknown():
    return fit.estimate(decay_problem())


@pytest.fixture(scope="module")
def known():
    return fit.estimate(decay_problem(0.02))


@pytest.fixture(scope="module")
def most_likely():
    """The noise level as a parameter."""
    free = FREE | {"noise.sigma": fit.Free(1e-4, 10, scale="log")}
    return fit.estimate(decay_problem(noise=fit.noise.Normal(0.1), free=free))


@pytest.fixture(scope="module")
def with_prior():
    free = FREE | {"y0[0]": fit.Free(prior=fit.priors.Normal(2.9, 0.01))}
    return fit.estimate(decay_problem(0.02, free=free))


@pytest.fixture(scope="module")
def many():
    free = FREE | {"k": fit.Free(1e-3, 10, scale="log"), "y0[0]": fit.Free()}
    return fit.estimate(decay_problem(0.02, free=free), starts=16, key=jax.random.key(1))


def check(by_name, want, rtol):
    assert list(by_name) == list(want)
    np.testing.assert_allclose(numbers(by_name), numbers(want), rtol=rtol)


def test_sigma_from_the_residuals(unknown):
    assert unknown.ok and isinstance(unknown.model, Decay)
    assert unknown.names == unknown.flat_names == NAMES
    assert all(isinstance(v, float) for v in unknown.values.values())
    check(unknown.values, fit_cases.DECAY, 1e-7)
    check(unknown.standard_errors, fit_cases.DECAY_SE, 1e-5)
    np.testing.assert_allclose(2 * unknown.loss, fit_cases.DECAY_SSR, rtol=1e-6)
    covariance = unknown.covariance
    se = np.sqrt(np.diag(covariance))
    np.testing.assert_allclose(covariance[0, 1] / se.prod(), fit_cases.DECAY_CORRELATION, rtol=1e-5)
    np.testing.assert_allclose(unknown.model.k, unknown.values["k"])
    np.testing.assert_allclose(unknown.problem.y0, [unknown.values["y0[0]"]])


def test_sigma_given(known):
    check(known.values, fit_cases.DECAY, 1e-7)
    check(known.standard_errors, fit_cases.DECAY_SE_KNOWN, 1e-4)
    np.testing.assert_allclose(known.loss, fit_cases.DECAY_SSR / 0.02**2 / 2, rtol=1e-6)


@pytest.mark.parametrize("absolute", [False, True])
def test_curve_fit_says_the_same(absolute, known, unknown):
    result = known if absolute else unknown
    best, covariance = scipy.optimize.curve_fit(
        lambda t, k, a: a * np.exp(-k * t), T, Y, (0.2, 2.0),
        sigma=np.full(10, 0.02), absolute_sigma=absolute, ftol=1e-14, xtol=1e-14,
    )  # fmt: skip
    np.testing.assert_allclose(numbers(result.values), best, rtol=1e-7)
    np.testing.assert_allclose(result.covariance, covariance, rtol=2e-5)


def test_statistics(known, unknown, most_likely):
    n, ssr = 10, fit_cases.DECAY_SSR
    s = unknown.statistics
    want = {"data": 10, "parameters": 2, "dof": 8, "sigma": "from residuals", "chi2": ssr}
    assert {k: pytest.approx(s[k], rel=1e-6) if k == "chi2" else s[k] for k in want} == want
    assert s["residual sigma"] == pytest.approx(math.sqrt(ssr / 8), rel=1e-6)
    # The most likely sigma is a parameter of the likelihood.
    log_likelihood = -n / 2 * (math.log(2 * math.pi * ssr / n) + 1)
    assert s["log likelihood"] == pytest.approx(log_likelihood, rel=1e-7)
    assert s["aic"] == pytest.approx(6 - 2 * log_likelihood, rel=1e-7)
    assert s["bic"] == pytest.approx(3 * math.log(n) - 2 * log_likelihood, rel=1e-7)
    # The same by another route: sigma as a parameter of the problem.
    for name in ("log likelihood", "aic", "bic"):
        assert most_likely.statistics[name] == pytest.approx(s[name], rel=1e-7)
    assert most_likely.statistics["sigma"] == "estimated"

    s = known.statistics
    chi2 = ssr / 0.02**2
    assert (s["sigma"], s["residual sigma"], s["dof"]) == ("given", None, 8)
    assert s["chi2"] == pytest.approx(chi2, rel=1e-6)
    assert s["reduced chi2"] == pytest.approx(chi2 / 8, rel=1e-6)
    log_likelihood = -chi2 / 2 - n * math.log(0.02 * math.sqrt(2 * math.pi))
    assert s["log likelihood"] == pytest.approx(log_likelihood, rel=1e-6)
    assert s["aic"] == pytest.approx(4 - 2 * log_likelihood, rel=1e-6)


def test_a_prior_gives_the_posterior_mode(with_prior):
    check(with_prior.values, {"k": 0.39029229, "y0[0]": 2.92853023}, 1e-7)
    check(with_prior.standard_errors, {"k": 0.00355184, "y0[0]": 0.00872172}, 1e-5)
    np.testing.assert_allclose(with_prior.loss, 22.5333984, rtol=1e-7)
    # chi2 is that of the data alone.
    k, y0 = with_prior.values.values()
    chi2 = np.sum(((Y - y0 * np.exp(-k * T)) / 0.02) ** 2)
    assert with_prior.statistics["chi2"] == pytest.approx(chi2, rel=1e-7)


def test_a_prior_alone_on_the_logarithm():
    # Without data that say anything, the mode of a log-normal density of the *natural* value is
    # exp(mean - sd^2), whatever the scale on which the optimiser moves.
    prior = fit.priors.LogNormal(0.5, 0.3)
    free = {"k": fit.Free(1e-3, 10, scale="log", init=1.0, prior=prior)}
    result = fit.estimate(decay_problem(1e6, free=free))
    assert result.values["k"] == pytest.approx(math.exp(0.5 - 0.09), rel=1e-6)


def test_the_most_likely_noise_level_is_the_closed_form(most_likely, unknown):
    np.testing.assert_allclose(most_likely.values["k"], unknown.values["k"], rtol=1e-7)
    sigma = math.sqrt(fit_cases.DECAY_SSR / 10)
    np.testing.assert_allclose(most_likely.values["noise.sigma"], sigma, rtol=1e-6)
    # Expected information: 2 n / sigma^2 for sigma, and that of known noise for the rest.
    errors = most_likely.standard_errors
    np.testing.assert_allclose(errors["noise.sigma"], sigma / math.sqrt(20), rtol=1e-6)
    shrink = math.sqrt(8 / 10)
    np.testing.assert_allclose(errors["k"], unknown.standard_errors["k"] * shrink, rtol=1e-6)


def test_the_scale_of_a_parameter_does_not_matter(known):
    free = {"k": fit.Free(1e-3, 10), "y0[0]": fit.Free(0.1, 10, scale="log")}
    other = fit.estimate(decay_problem(0.02, free=free))
    check(other.values, known.values, 1e-8)
    np.testing.assert_allclose(other.covariance, known.covariance, rtol=1e-6)


def test_arrays_are_fitted_whole():
    result = fit.estimate(decay_problem(0.02, free={"y0": fit.Free(0, 10), "k": FREE["k"]}))
    assert result.names == ("y0", "k") and result.flat_names == ("y0[0]", "k")
    assert isinstance(result.values["y0"], np.ndarray)
    np.testing.assert_allclose(result.values["y0"], [fit_cases.DECAY["y0[0]"]], rtol=1e-7)
    np.testing.assert_allclose(
        result.standard_errors["y0"], [fit_cases.DECAY_SE_KNOWN["y0[0]"]], rtol=1e-4
    )


def test_missing_values_are_as_good_as_absent(known):
    holes = np.where(np.isin(T, [2, 5]), np.nan, Y)
    seen = ~np.isnan(holes)
    with_holes = fit.estimate(decay_problem(0.02, ys=holes))
    data = fit.Data(T[seen], Y[seen], 0.02)
    without = fit.estimate(
        fit.Problem(Decay(0.2), data, y0=jnp.array([2.0]), free=FREE, solve=fit_cases.FAST)
    )
    assert with_holes.statistics["data"] == without.statistics["data"] == 8
    check(with_holes.values, without.values, 1e-6)
    check(with_holes.standard_errors, without.standard_errors, 1e-6)
    assert with_holes.values["k"] != known.values["k"]


def test_a_start_at_the_optimum_stays(unknown):
    again = fit.estimate(unknown.problem)
    assert again.ok and len(again.history) <= 3
    check(again.values, unknown.values, 1e-9)


def test_the_history_decreases_to_the_loss(unknown):
    assert len(unknown.history) == unknown.statistics["steps"] + 1
    assert np.all(np.diff(unknown.history) <= 1e-15)  # rounding
    assert unknown.history[-1] == unknown.loss


def test_an_exact_fit():
    ys = 3 * np.exp(-0.4 * T)
    result = fit.estimate(decay_problem(ys=ys))
    assert result.ok
    check(result.values, {"k": 0.4, "y0[0]": 3.0}, 1e-6)


def test_running_out_of_steps_is_said():
    result = fit.estimate(decay_problem(), max_steps=1)
    assert not result.ok and "ran out of iterations" in result.message
    assert result.starts.reason[0] == result.message
    assert "NOT CONVERGED" in str(result)


def test_many_starts_are_sorted_and_agree(many):
    starts = many.starts
    assert starts.loss.shape == starts.ok.shape == (16,) and starts.values.shape == (16, 2)
    assert len(starts.reason) == 16
    finite = starts.loss[np.isfinite(starts.loss)]
    assert np.all(np.diff(finite) >= 0) and np.all(np.isfinite(starts.loss[: len(finite)]))
    assert [r == "" for r in starts.reason] == starts.ok.tolist()
    assert starts.ok.sum() >= 12
    check(many.values, fit_cases.DECAY, 1e-6)
    assert many.loss == starts.loss[0]
    # `initial` is what the problem started with, whichever start was the best.
    assert many.initial == pytest.approx({"k": 0.2, "y0[0]": 2.0})


def test_starts_are_reproducible_and_start_zero_is_the_own(many):
    problem = decay_problem(0.02, free=FREE | {"y0[0]": fit.Free()})
    again = fit.estimate(problem, starts=16, key=jax.random.key(1))
    np.testing.assert_array_equal(again.starts.loss, many.starts.loss)


def test_starts_are_spread_over_the_bounds():
    from sciml.fit._starts import draw

    free = {"k": fit.Free(1e-3, 10, scale="log"), "y0[0]": fit.Free(0)}
    problem = decay_problem(free=free)
    xs = np.asarray(draw(problem, 101, jax.random.key(0), "hypercube"))
    np.testing.assert_array_equal(xs[0], problem.initial())
    # One in each hundredth of the logarithm, and around the initial value where it is unbounded.
    k = (xs[1:, 0] - np.log(1e-3)) / np.log(1e4)
    assert sorted((k * 100).astype(int)) == list(range(100))
    y0 = xs[1:, 1]
    assert np.all(y0 >= 0) and y0.min() < 1 and 3 < y0.max() < 12


def test_more_starts_need_a_key():
    with pytest.raises(ValueError, match=r"`starts` > 1 draws at random: pass `key=jax.random.key"):
        fit.estimate(decay_problem(), starts=2)


@pytest.mark.parametrize("starts", [0, -1, 1.5, True, "2"])
@pytest.mark.usefixtures("unchecked")
def test_starts_must_be_a_positive_integer(starts):
    with pytest.raises(ValueError, match="`starts` must be a positive integer, but got"):
        fit.estimate(decay_problem(), starts=starts, key=jax.random.key(0))


def test_something_must_be_free():
    with pytest.raises(ValueError, match="Nothing is free in this problem: name parameters"):
        fit.estimate(decay_problem(free={}))


def test_no_degrees_of_freedom():
    ys = np.where(T < 2, Y, np.nan)
    result = fit.estimate(decay_problem(ys=ys))
    assert result.statistics["dof"] == 0
    assert all(math.isnan(e) for e in result.standard_errors.values())
    assert "no degrees of freedom" in str(result)


class Counted(Decay):
    def __call__(self, t, y, args):
        Counted.traces += 1
        return -self.k * y


Counted.traces = 0


def test_nothing_is_compiled_twice():
    def problem(k=0.2, y0=2.0, upper=10.0, ys=Y, rtol=1e-6, scale=0.01):
        return fit.Problem(
            Counted(k), fit.Data(T, ys, 0.02), y0=jnp.array([y0]),
            free={
                "k": fit.Free(1e-3, upper, scale="log", prior=fit.priors.Normal(0.4, scale)),
                "y0[0]": fit.Free(0, upper),
            },
            solve=fit.Solve(rtol=rtol, steps=2),
        )  # fmt: skip

    def traces(problem, **kwargs):
        before = Counted.traces
        result = fit.estimate(problem, **kwargs)
        fit.predict(result, [0.0, 1.0])
        return Counted.traces - before

    assert traces(problem()) > 0
    assert traces(problem()) == 0  # an equal model, built afresh
    assert traces(problem(k=0.3, y0=2.5)) == 0
    assert traces(problem(ys=Y + 0.01)) == 0
    assert traces(problem(ys=np.where(T == 3, np.nan, Y))) == 0
    assert traces(problem(upper=7.0)) == 0
    assert traces(problem(rtol=1e-7)) == 0
    assert traces(problem(scale=0.02)) == 0
    assert traces(problem(), ftol=1e-9, xtol=1e-9) == 0
    assert traces(fit.estimate(problem()).problem) == 0


def test_problems_are_ordinary_modules():
    problem = decay_problem(0.02)
    doubled = eqx.tree_at(lambda p: p.blocks[0].data.sigma, problem, replace_fn=lambda s: 2 * s)
    np.testing.assert_allclose(
        numbers(fit.estimate(doubled).standard_errors),
        2 * numbers(fit_cases.DECAY_SE_KNOWN),
        rtol=1e-4,
    )

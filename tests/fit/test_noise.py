"""Laws of the noise against scipy's densities, and what their fits must give."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.special
import scipy.stats

from sciml import fit


class Curve(eqx.Module):
    """start * exp(-k t) without an equation to solve."""

    k: float
    start: float

    def __call__(self, t, y, args):
        return self.start * jnp.exp(-self.k * t)


RNG = np.random.default_rng(3)
T = np.linspace(0.0, 3.0, 30)
MEAN = 12 * np.exp(-0.7 * T)
QUICK = fit.Solve(steps=1)  # the state stays where it is


def problem(ys, noise, *more, free=None, **kwargs):
    names = {"observe.k": fit.Free(0, 5), "observe.start": fit.Free(0.1, 100)} | (free or {})
    still = lambda t, y, args: jnp.zeros_like(y)
    return fit.Problem(
        still, fit.Data(T, ys, *more, **kwargs), y0=jnp.zeros(1), observe=Curve(1.0, 8.0), noise=noise,
        free=names, solve=QUICK,
    )  # fmt: skip


def counts(law):
    return law.rvs(random_state=np.random.default_rng(5)).astype(float)


def student(mean, sigma):
    return scipy.stats.t(4, loc=mean, scale=sigma)


def negative_binomial(mean, size):
    return scipy.stats.nbinom(size, size / (size + mean))


LAWS = {
    "Normal": (fit.noise.Normal(0.5), "sigma", lambda m, s: scipy.stats.norm(m, s), True),
    "LogNormal": (fit.noise.LogNormal(0.2), "sigma", lambda m, s: scipy.stats.lognorm(s, scale=m), True),
    "Laplace": (fit.noise.Laplace(0.4), "sigma", lambda m, s: scipy.stats.laplace(m, s), True),
    "StudentT": (fit.noise.StudentT(0.4), "sigma", student, True),
    "Poisson": (fit.noise.Poisson(), None, lambda m, s: scipy.stats.poisson(m), False),
    "NegativeBinomial": (fit.noise.NegativeBinomial(5.0), "size", negative_binomial, False),
    "Binomial": (fit.noise.Binomial(20.0), None, lambda m, s: scipy.stats.binom(20, m / 20), False),
}  # fmt: skip
each_law = pytest.mark.parametrize("name", LAWS)


def simplex(fn, start):
    options = {"xatol": 1e-9, "fatol": 1e-11, "maxiter": 4000}
    return scipy.optimize.minimize(fn, start, method="Nelder-Mead", options=options)


def level(law, name):
    return 1.0 if name is None else float(getattr(law, name))


def sample(name):
    law, field, dist, _ = LAWS[name]
    return counts(dist(MEAN, level(law, field)))


def log_pdf(name, ys, k, start, width):
    _, _, dist, continuous = LAWS[name]
    d = dist(start * np.exp(-k * T), width)
    return np.sum(d.logpdf(ys) if continuous else d.logpmf(ys))


@each_law
@pytest.mark.parametrize("free_level", [False, True])
def test_densities_are_scipys(name, free_level):
    law, field, *_ = LAWS[name]
    if free_level and field is None:
        pytest.skip("has no level")
    ys = sample(name)
    free = {f"noise.{field}": fit.Free(1e-2, 100)} if free_level else {}
    p = problem(ys, law, free=free)
    width = 0.9 if free_level else level(law, field)
    x = jnp.array([0.8, 11.0, *([0.9] if free_level else [])])
    want = log_pdf(name, ys, 0.8, 11.0, width)
    np.testing.assert_allclose(fit.log_density(p)(x), want, rtol=1e-9)


@each_law
def test_gradient_and_rows_agree(name):
    from sciml.fit._likelihood import look

    law, field, *_ = LAWS[name]
    free = {} if field is None else {f"noise.{field}": fit.Free(1e-2, 100)}
    p = problem(sample(name), law, free=free)
    x = p.initial() + 0.1
    here, rows = jax.jit(lambda x: look(p, x))(x)
    np.testing.assert_allclose(here.loss, fit.loss(p)(x), rtol=1e-12)
    gradient = rows.rows.T @ rows.target + rows.extra
    np.testing.assert_allclose(gradient, jax.grad(fit.loss(p))(x), rtol=1e-9, atol=1e-10)


@each_law
def test_estimates_are_the_most_likely(name):
    law, field, *_ = LAWS[name]
    ys = sample(name)
    free = {} if field is None else {f"noise.{field}": fit.Free(1e-2, 100, scale="log")}
    result = fit.estimate(problem(ys, law, free=free))
    found = np.array(list(result.values.values()))
    minus = lambda x: -log_pdf(name, ys, x[0], x[1], x[2] if field else 1.0)
    want = simplex(minus, found)
    tolerance = 2e-3 if name == "Laplace" else 1e-4  # its corners are rounded off
    np.testing.assert_allclose(found, want.x, rtol=tolerance)
    np.testing.assert_allclose(result.statistics["log likelihood"], -want.fun, rtol=1e-5)


@pytest.mark.parametrize("name", ["Normal", "Poisson", "NegativeBinomial", "Binomial", "StudentT"])
def test_standard_errors_are_the_expected_information(name):
    law, field, *_ = LAWS[name]
    result = fit.estimate(problem(sample(name), law))
    k, start = (float(v) for v in result.values.values())
    mean = start * np.exp(-k * T)
    slopes = np.stack([-T * mean, mean / start], axis=1)
    s = level(law, field)
    information = {
        "Normal": 1 / s**2 + 0 * mean,
        "StudentT": 5 / 7 / s**2 + 0 * mean,
        "Poisson": 1 / mean,
        "NegativeBinomial": 1 / (mean + mean**2 / s),
        "Binomial": 20 / (mean * (20 - mean)),
    }[name]
    want = np.sqrt(np.diag(np.linalg.inv(slopes.T @ (slopes * information[:, None]))))
    np.testing.assert_allclose(list(result.standard_errors.values()), want, rtol=1e-5)


def test_outliers_pull_less():
    ys = MEAN + 0.1 * RNG.standard_normal(30)
    ys[[5, 20]] += 8
    normal = fit.estimate(problem(ys, fit.noise.Normal(0.1))).values["observe.k"]
    robust = fit.estimate(problem(ys, fit.noise.StudentT(0.1))).values["observe.k"]
    assert abs(robust - 0.7) < 0.02 < abs(normal - 0.7)


@pytest.mark.parametrize("name", ["Normal", "LogNormal", "Laplace", "StudentT"])
def test_censored_values(name):
    law, _, dist, _ = LAWS[name]
    ys = sample(name)
    free = {"noise.sigma": fit.Free(1e-2, 10)}
    limit = 3.0
    below = ys < limit
    cut = np.where(below, limit, ys)
    p = problem(cut, law, censored=np.where(below, -1, 0), free=free)
    x = jnp.array([0.8, 11.0, 0.5])
    d = dist(11 * np.exp(-0.8 * T), 0.5)
    want = np.sum(d.logpdf(ys)[~below]) + np.sum(d.logcdf(limit)[below])
    np.testing.assert_allclose(fit.log_density(p)(x), want, rtol=1e-9)
    above = problem(np.minimum(ys, 8.0), law, censored=np.where(ys > 8, 1, 0), free=free)
    want = np.sum(d.logpdf(ys)[ys <= 8]) + np.sum(d.logsf(8.0)[ys > 8])
    np.testing.assert_allclose(fit.log_density(above)(x), want, rtol=1e-9)


def test_a_censored_fit_is_a_tobit_regression():
    ys = MEAN + 0.5 * np.random.default_rng(8).standard_normal(30)
    below = ys < 3.0
    p = problem(
        np.where(below, 3.0, ys), fit.noise.Normal(0.3), censored=np.where(below, -1, 0),
        free={"noise.sigma": fit.Free(1e-2, 10)},
    )  # fmt: skip
    result = fit.estimate(p)
    found = np.array(list(result.values.values()))

    def minus(x):
        d = scipy.stats.norm(x[1] * np.exp(-x[0] * T), x[2])
        return -np.sum(np.where(below, d.logcdf(3.0), d.logpdf(ys)))

    want = simplex(minus, found)
    np.testing.assert_allclose(found, want.x, rtol=1e-5)
    with pytest.raises(ValueError, match="can't have censored"):
        fit.estimate(problem(np.round(MEAN), fit.noise.Poisson(), censored=np.where(below, -1, 0)))


def test_a_given_covariance():
    rng = np.random.default_rng(9)
    lag = np.abs(np.subtract.outer(np.arange(30), np.arange(30)))
    covariance = 0.09 * 0.8**lag
    ys = MEAN + rng.multivariate_normal(np.zeros(30), covariance)
    seen = np.ones(30, bool)
    seen[[3, 17]] = False
    result = fit.estimate(problem(np.where(seen, ys, np.nan), None, covariance=covariance))
    inverse = np.linalg.inv(covariance[np.ix_(seen, seen)])
    k, start = (float(v) for v in result.values.values())

    def residual(x):
        return (x[1] * np.exp(-x[0] * T) - ys)[seen]

    minus = lambda x: residual(x) @ inverse @ residual(x) / 2
    want = scipy.optimize.minimize(minus, [k, start], tol=1e-12)
    np.testing.assert_allclose([k, start], want.x, rtol=1e-5)
    mean = start * np.exp(-k * T)
    slopes = np.stack([-T * mean, mean / start], axis=1)[seen]
    errors = np.sqrt(np.diag(np.linalg.inv(slopes.T @ inverse @ slopes)))
    np.testing.assert_allclose(list(result.standard_errors.values()), errors, rtol=1e-5)
    law = scipy.stats.multivariate_normal(mean[seen], covariance[np.ix_(seen, seen)])
    np.testing.assert_allclose(result.statistics["log likelihood"], law.logpdf(ys[seen]), rtol=1e-9)


@pytest.mark.slow
def test_a_sigma_that_grows_with_the_prediction():
    rng = np.random.default_rng(10)
    ys = MEAN + (0.1 + 0.08 * MEAN) * rng.standard_normal(30)
    noise = fit.noise.Normal(sigma=fit.noise.Combined(0.2, 0.1))
    p = problem(ys, noise, free={"noise.sigma.relative": fit.Free(1e-3, 1)})
    x = jnp.array([0.8, 11.0, 0.07])
    mean = 11 * np.exp(-0.8 * T)
    want = np.sum(scipy.stats.norm(mean, np.sqrt(0.04 + (0.07 * mean) ** 2)).logpdf(ys))
    np.testing.assert_allclose(fit.log_density(p)(x), want, rtol=1e-9)
    result = fit.estimate(p)
    slope = jax.grad(fit.loss(p))(result.problem.initial())
    np.testing.assert_allclose(slope, 0, atol=1e-3)
    assert result.ok and abs(result.values["noise.sigma.relative"] - 0.08) < 0.04


def test_a_law_for_each_observable():
    still = lambda t, y, args: jnp.zeros_like(y)
    data = fit.Data([0.0, 1.0, 2.0], [[3.1, 4.0], [2.9, 7.0], [3.0, 6.0]], names=["level", "count"])
    noise = {"level": fit.noise.LogNormal(0.1), "count": fit.noise.Poisson()}
    free = {"y0": fit.Free(0.1, 10), "noise['level'].sigma": fit.Free(1e-3, 1)}
    p = fit.Problem(still, data, y0=jnp.array([2.0, 5.0]), noise=noise, free=free, solve=QUICK)
    result = fit.estimate(p)
    logs = np.log([3.1, 2.9, 3.0])
    np.testing.assert_allclose(result.values["y0"], [np.exp(logs.mean()), 17 / 3], rtol=1e-5)
    np.testing.assert_allclose(result.values["noise['level'].sigma"], logs.std(), rtol=1e-5)
    with pytest.raises(ValueError, match=r"names 'cuont'.*Did you mean 'count'"):
        fit.Problem(still, data, y0=jnp.ones(2), noise={"cuont": fit.noise.Poisson()}, free={})
    with pytest.raises(ValueError, match="no law for count"):
        fit.Problem(still, data, y0=jnp.ones(2), noise={"level": fit.noise.Normal(1.0)}, free={})


class Cauchy(fit.noise.AbstractNoise):
    """A law of a user's own: only what it must have."""

    sigma: float

    @property
    def level(self):
        return self.sigma

    def misfit(self, m, s, z):
        return jnp.log1p(((z - m) * jnp.exp(-s)) ** 2)

    def baseline(self, s, z):
        return s


@pytest.mark.slow
def test_a_law_of_ones_own():
    ys = MEAN + 0.1 * RNG.standard_normal(30)
    ys[4] = 40
    result = fit.estimate(problem(ys, Cauchy(0.1)))
    assert result.ok and abs(result.values["observe.k"] - 0.7) < 0.02


class Named(eqx.Module):
    noise_gain: float
    y0_scale: float

    def __call__(self, t, y, args):
        return jnp.zeros_like(y)


def test_fields_whose_names_begin_like_parts_of_the_problem():
    """A level that is known stays out of the loss, whatever a parameter of the model is called."""
    free = {"noise_gain": fit.Free(), "y0_scale": fit.Free()}
    data = fit.Data([0.0, 1.0], [1.0, 1.0], 0.1)
    p = fit.Problem(Named(1.0, 1.0), data, y0=jnp.ones(1), free=free, solve=QUICK)
    assert [slot.root for slot in p.slots] == ["model", "model"]
    assert fit.loss(p)(p.initial()) == 0


def test_least_squares_refuse_what_they_can_not_see():
    ys = {"a": fit.noise.StudentT(0.1), "b": fit.noise.Normal(0.1)}
    data = fit.Data([0.0, 1.0], np.ones((2, 2)), names=["a", "b"])
    free = {"noise['a'].df": fit.Free(1, 50)}
    p = fit.Problem(Named(1.0, 1.0), data, y0=jnp.ones(2), noise=ys, free=free, solve=QUICK)
    with pytest.raises(ValueError, match=r"can't estimate .*df"):
        fit.estimate(p, method="least_squares")


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("ys", "noise", "message"),
    [
        (MEAN, fit.noise.Poisson(), "Poisson noise needs counts.*rows 1, 2"),
        (MEAN, fit.noise.NegativeBinomial(1.0), "needs counts"),
        (np.full(30, 30.0), fit.noise.Binomial(20.0), "more successes than `trials` in rows 0, 1"),
        (MEAN, fit.noise.Laplace(), r"`Laplace` noise needs a sigma"),
        (0 * MEAN, fit.noise.LogNormal(0.1), "needs positive data"),
        (MEAN, {"obs0": 3}, "must be a law from `fit.noise`"),
    ],
)
def test_data_that_a_law_cannot_produce(ys, noise, message):
    with pytest.raises((ValueError, TypeError), match=message):
        problem(ys, noise)


def test_levels_are_positive():
    for bad in (0.0, -1.0, np.inf):
        with pytest.raises(ValueError, match="must be positive"):
            fit.noise.StudentT(bad)
    with pytest.raises(ValueError, match="needs a `size`"):
        fit.noise.NegativeBinomial()
    with pytest.raises(ValueError, match="`base` must be larger"):
        fit.noise.LogNormal(0.1, base=0.5)
    with pytest.raises(ValueError, match="`Poisson` noise has no sigma"):
        problem(np.round(MEAN), fit.noise.Poisson(), 0.3)

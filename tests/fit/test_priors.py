import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.optimize
import scipy.stats
from fit_cases import FAST

from sciml import fit
from sciml.fit import priors


# A prior, what SciPy calls it, and points in its support.
MIDDLE = np.array([0.11, 0.7, 1.3, 2.9])
ALL = [
    (priors.Normal(1.0, 0.5), scipy.stats.norm(1.0, 0.5), MIDDLE - 1),
    (priors.Laplace(1.0, 0.5), scipy.stats.laplace(1.0, 0.5), MIDDLE - 1),
    (priors.LogNormal(0.3, 0.5), scipy.stats.lognorm(0.5, scale=np.exp(0.3)), MIDDLE),
    (priors.HalfNormal(0.8), scipy.stats.halfnorm(scale=0.8), MIDDLE),
    (priors.Gamma(2.5, 1.5), scipy.stats.gamma(2.5, scale=1 / 1.5), MIDDLE),
    (priors.Gamma(0.5, 2), scipy.stats.gamma(0.5, scale=1 / 2), MIDDLE),
    (priors.Gamma(1, 2.0), scipy.stats.expon(scale=1 / 2), MIDDLE),
    (priors.Uniform(0.1, 3.0), scipy.stats.uniform(0.1, 2.9), MIDDLE),
]
each = pytest.mark.parametrize(("prior", "peer", "values"), ALL, ids=lambda x: str(x)[:14])
bases = pytest.mark.parametrize("base", [None, 10, 2.0])


def on_log(prior, base):
    """`OnLog`, and its argument of a value."""
    if base is None:
        return priors.OnLog(prior), np.log
    return priors.OnLog(prior, base), lambda v: np.log(v) / np.log(base)


@each
def test_log_densities_are_scipys(prior, peer, values):
    np.testing.assert_allclose(prior.log_prob(jnp.asarray(values)), peer.logpdf(values), rtol=1e-12)
    # The penalty differs by a constant.
    rest = prior.penalty(jnp.asarray(values)) + peer.logpdf(values)
    np.testing.assert_allclose(rest, rest[0], rtol=1e-12)


@each
@bases
def test_a_density_of_the_logarithm(prior, peer, values, base):
    on, log = on_log(prior, base)
    powers = jnp.asarray(np.exp(values) if base is None else float(base) ** values)
    np.testing.assert_allclose(on.log_prob(powers), peer.logpdf(log(powers)), rtol=1e-10)
    np.testing.assert_allclose(on.penalty(powers), prior.penalty(jnp.asarray(values)), rtol=1e-10)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@each
def test_penalties_have_slopes(prior, peer, values, dtype):
    value = jnp.asarray(values, dtype)
    for p in (prior, priors.OnLog(prior), priors.OnLog(prior, 10)):
        at = value if p is prior else jnp.exp(value)
        got = jax.vmap(jax.grad(p.penalty))(at)
        assert got.dtype == dtype and p.penalty(at).dtype == dtype and p.log_prob(at).dtype == dtype
        slope = jax.vmap(jax.grad(p.log_prob))(at)
        np.testing.assert_allclose(slope, -got, rtol=1e-4 if dtype == "float32" else 1e-12)
        if dtype == "float64":
            h = 1e-6 * np.asarray(at)
            differences = (p.penalty(at + h) - p.penalty(at - h)) / (2 * h)
            np.testing.assert_allclose(got, differences, rtol=1e-7, atol=1e-8)


@each
def test_nothing_is_outside_of_the_support(prior, peer, values):
    low, high = prior.support()
    np.testing.assert_allclose((low, high), peer.support())
    outside = jnp.array([b for b in (low - 0.5, high + 0.5) if np.isfinite(b)])
    for x in outside:
        assert prior.log_prob(x) == -jnp.inf and jax.grad(prior.log_prob)(x) == 0
    if np.isfinite(low):
        np.testing.assert_allclose(prior.log_prob(jnp.asarray(low)), peer.logpdf(low))


@each
@bases
def test_the_support_of_a_density_of_the_logarithm(prior, peer, values, base):
    on, _ = on_log(prior, base)
    number = np.e if base is None else float(base)
    np.testing.assert_allclose(on.support(), np.power(number, peer.support()))
    for x in (0.0, -1.0):
        assert on.log_prob(jnp.asarray(x)) == -jnp.inf
        assert jax.grad(on.log_prob)(jnp.asarray(x)) == 0


def test_most_probable_values():
    # The two ways to say that a logarithm is about 0.3.
    slope = lambda prior, x: jax.grad(prior.penalty)(jnp.asarray(np.exp(x)))
    np.testing.assert_allclose(slope(priors.LogNormal(0.3, 0.5), 0.3 - 0.25), 0, atol=1e-12)
    np.testing.assert_allclose(slope(priors.OnLog(priors.Normal(0.3, 0.5)), 0.3), 0, atol=1e-12)


def test_the_kink_of_laplace_is_flat():
    assert jax.grad(priors.Laplace(1.0, 0.5).penalty)(jnp.asarray(1.0)) == 0


def test_an_exponential_distribution_has_a_slope_at_zero():
    for shape in (1, 1.0, jnp.asarray(1.0)):
        assert jax.grad(priors.Gamma(shape, 2.0).penalty)(jnp.asarray(0.0)) == 2


def test_a_strangers_density_of_the_logarithm():
    class Triangle(eqx.Module):
        def log_prob(self, value):
            return jnp.log1p(-jnp.abs(value))

    prior = priors.OnLog(Triangle(), base=10)
    np.testing.assert_allclose(prior.penalty(jnp.asarray(10**0.5)), np.log(2), rtol=1e-12)
    np.testing.assert_array_equal(prior.support(), [0, np.inf])


def test_independent_numbers_may_have_priors_of_their_own():
    prior = priors.Normal(np.array([1.0, 2.0]), np.array([0.1, 1.0]))
    np.testing.assert_allclose(prior.penalty(jnp.array([1.2, 1.0])), [2, 0.5])
    with pytest.raises(ValueError, match="`sd` must be positive"):
        priors.Normal(0.0, np.array([1.0, 0.0]))


@jax.jit
def evidence(sd):
    return priors.Normal(0.0, sd).log_prob(jnp.asarray(1.0))


def test_priors_may_be_made_inside_of_a_transformation():
    np.testing.assert_allclose(evidence(jnp.asarray(2.0)), scipy.stats.norm(0, 2).logpdf(1))


class Filling(eqx.Module):
    inflow: jax.Array | float

    def __call__(self, t, y, args):
        return self.inflow - y


@pytest.mark.parametrize(
    ("prior", "slope"),
    [
        (priors.Gamma(3, 2), lambda c: 2 - 2 / c),
        (priors.OnLog(priors.Normal(0.0, 0.2), 10), lambda c: np.log10(c) / 0.04 / c / np.log(10)),
    ],
    ids=["Gamma", "OnLog"],
)
def test_a_fit_finds_the_mode_of_the_posterior(prior, slope):
    # The value at time 1 is b times the inflow, so that the penalties' slopes are known.
    problem = fit.Problem(
        Filling(1.0),
        fit.Data([1.0], [2.0], 0.5),
        y0=jnp.zeros(1),
        t0=0.0,
        free={"inflow": fit.Free(0.01, 10, prior=prior)},
        solve=FAST,
    )
    b = 1 - np.exp(-1)
    want = scipy.optimize.brentq(lambda c: (b * c - 2) * b / 0.25 + slope(c), 0.1, 5)
    np.testing.assert_allclose(fit.estimate(problem).values["inflow"], want, rtol=1e-5)


bad = [
    (lambda: priors.Normal(0.0, 0.0), ValueError, "`sd` must be positive, but got 0.0"),
    (lambda: priors.Normal(np.nan, 1.0), ValueError, "`mean` must be finite, but got nan"),
    (lambda: priors.Laplace(0.0, -1.0), ValueError, "`scale` must be positive, but got -1.0"),
    (lambda: priors.Laplace("0", 1.0), TypeError, "`mean` must be a number, but got '0'"),
    (lambda: priors.LogNormal(0.0, np.inf), ValueError, "`sd` must be finite"),
    (lambda: priors.HalfNormal(-1), ValueError, "`sd` must be positive"),
    (lambda: priors.Gamma(0, 1), ValueError, "`shape` must be positive, but got 0"),
    (lambda: priors.Gamma(1, -1), ValueError, "`rate` must be positive"),
    (lambda: priors.Uniform(2, 1), ValueError, "`low` must lie below `high`, but got 2 and 1"),
    (lambda: priors.Uniform(0, np.inf), ValueError, "`high` must be finite"),
    (lambda: priors.OnLog(3.0), TypeError, r"`prior` must have a method `log_prob\(value\)`.*3.0"),
    (lambda: priors.OnLog(priors.Normal(0, 1), 1), ValueError, "`base` must be larger than 1"),
    (lambda: priors.OnLog(priors.Normal(0, 1), "e"), TypeError, "`base` must be a number"),
]


@pytest.mark.parametrize(("make", "error", "message"), bad, ids=[message for _, _, message in bad])
def test_bad_arguments(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_densities_are_normalised():
    for prior in (priors.Laplace(0.2, 0.3), priors.Gamma(2.5, 1.5)):
        density = lambda v, prior=prior: float(jnp.exp(prior.log_prob(jnp.asarray(v))))
        total = scipy.integrate.quad(density, -10, 30, points=[0.0, 0.2, 1.0], limit=200)[0]
        np.testing.assert_allclose(total, 1, rtol=1e-7)


@pytest.mark.parametrize(
    ("prior", "law"),
    [
        (fit.priors.Normal(2.0, 3.0), scipy.stats.norm(2, 3)),
        (fit.priors.Laplace(2.0, 3.0), scipy.stats.laplace(2, 3)),
        (fit.priors.LogNormal(0.5, 0.4), scipy.stats.lognorm(0.4, scale=np.exp(0.5))),
        (fit.priors.HalfNormal(2.0), scipy.stats.halfnorm(scale=2)),
        (fit.priors.Gamma(2.0, 3.0), scipy.stats.gamma(2, scale=1 / 3)),
        (fit.priors.Uniform(-1.0, 4.0), scipy.stats.uniform(-1, 5)),
        (fit.priors.OnLog(fit.priors.Normal(1.0, 0.1), base=10), scipy.stats.lognorm(0.1 * np.log(10), scale=10)),
    ],
)  # fmt: skip
def test_draws_follow_the_law(prior, law):
    draws = np.asarray(prior.sample(jax.random.key(0), (2000,)))
    assert scipy.stats.kstest(draws, law.cdf).pvalue > 1e-3

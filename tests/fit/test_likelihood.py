"""The pure functions under the verbs, against differences, closed forms and SciPy."""

import equinox as eqx
import fit_cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from fit_cases import central_differences, Decay, decay_problem, FAST, LotkaVolterra, T, Y

from sciml import fit
from sciml.fit._likelihood import look


class Cauchy:
    """Not one of ours: only `log_prob`."""

    def log_prob(self, value):
        return -jnp.log1p(value**2) - jnp.log(jnp.pi)


HOLES = np.where(np.isin(T, [2, 5]), np.nan, Y)
LOGS = {
    "k": fit.Free(1e-3, 10, scale="log", prior=fit.priors.Normal(0.3, 0.2)),
    "y0": fit.Free(0.1, 10, prior=fit.priors.LogNormal(1.0, 0.5)),
    "noise.sigma": fit.Free(1e-3, 2, scale="log", prior=fit.priors.HalfNormal(0.3)),
}
PROBLEMS = {
    "Normal, given": decay_problem(0.02 + 0.01 * T, ys=HOLES),
    "Normal, unknown": decay_problem(),
    "Normal, free, and priors on k and y0": decay_problem(
        noise=fit.noise.Normal(0.3),
        ys=HOLES,
        free={
            "k": fit.Free(0, 10, prior=Cauchy()),
            "y0[0]": fit.Free(0.1, 10, scale="log", prior=fit.priors.Normal(2, 1)),
            "noise.sigma": fit.Free(1e-3, 2, prior=fit.priors.Uniform(0.01, 1)),
        },
    ),
    "LogNormal, free, and priors": decay_problem(noise=fit.noise.LogNormal(0.4), free=LOGS),
    "LogNormal, given": decay_problem([0.25], noise=fit.noise.LogNormal()),
}
problems = pytest.mark.parametrize("problem", list(PROBLEMS.values()), ids=list(PROBLEMS))


class Local(eqx.Module):
    loss: jax.Array
    gradient: jax.Array
    curvature: jax.Array
    rows: jax.Array


def local(problem, x):
    there, linear = look(problem, x)
    gradient = linear.rows.T @ linear.target + linear.extra
    return Local(there.loss, gradient, linear.rows.T @ linear.rows, linear.rows)


def somewhere(problem):
    return problem.initial() + 0.1 * jnp.sin(1 + jnp.arange(problem.initial().size, dtype=float))


@problems
def test_gradients_agree_by_three_routes(problem):
    x = somewhere(problem)
    here = eqx.filter_jit(local)(problem, x)
    loss = jax.jit(fit.loss(problem))
    np.testing.assert_allclose(here.loss, loss(x), rtol=1e-13)
    np.testing.assert_allclose(here.gradient, jax.jit(jax.grad(fit.loss(problem)))(x), rtol=1e-9)
    np.testing.assert_allclose(here.gradient, central_differences(loss, x), rtol=1e-6)


@problems
def test_the_curvature_is_that_of_the_rows(problem):
    here = eqx.filter_jit(local)(problem, somewhere(problem))
    np.testing.assert_allclose(here.curvature, here.rows.T @ here.rows, rtol=1e-12)
    assert np.linalg.eigvalsh(here.curvature)[0] > 0


def test_residuals_and_their_jacobian():
    problem = PROBLEMS["Normal, given"]
    x = somewhere(problem)
    fn = jax.jit(fit.residuals(problem))
    k, y0 = np.exp(x[0]), x[1]
    want = (y0 * np.exp(-k * T) - HOLES) / (0.02 + 0.01 * T)
    np.testing.assert_allclose(fn(x)[:, 0], np.where(np.isnan(HOLES), 0, want), rtol=1e-6)
    np.testing.assert_allclose(jax.jit(fit.loss(problem))(x), np.nansum(want**2) / 2, rtol=1e-6)
    rows = eqx.filter_jit(local)(problem, x).rows
    np.testing.assert_allclose(jax.jit(jax.jacfwd(fn))(x)[:, 0], rows, rtol=1e-9, atol=1e-12)


def test_residuals_of_log_normal_noise_are_logarithmic():
    problem = PROBLEMS["LogNormal, given"]
    x = somewhere(problem)
    want = (np.log(x[1]) - np.exp(x[0]) * T - np.log(Y)) / 0.25
    np.testing.assert_allclose(jax.jit(fit.residuals(problem))(x)[:, 0], want, rtol=1e-6)


def test_the_expected_information_of_a_free_noise_level():
    # For a normal law with standard deviation exp(s) it is 2 for each value, and free of the rest.
    problem = PROBLEMS["LogNormal, free, and priors"].free(
        {"noise.sigma": fit.Free(0, scale="log")}
    )
    problem = problem.free({"k": fit.Free(scale="log"), "y0": fit.Free()})
    assert [s.name for s in problem.slots] == ["noise.sigma", "k", "y0"]
    curvature = eqx.filter_jit(local)(problem, problem.initial()).curvature
    np.testing.assert_allclose(curvature[0], [2 * len(T), 0, 0], atol=1e-12)


def _natural(problem, x):
    return [np.asarray(v, float) for v in problem.naturals(x)]


def test_log_density_of_normal_noise_is_scipys():
    problem = PROBLEMS["Normal, given"]
    x = somewhere(problem)
    k, y0 = _natural(problem, x)
    seen = ~np.isnan(HOLES)
    terms = scipy.stats.norm.logpdf(HOLES, y0 * np.exp(-k * T), 0.02 + 0.01 * T)
    np.testing.assert_allclose(jax.jit(fit.log_density(problem))(x), terms[seen].sum(), rtol=1e-6)


def test_log_density_with_a_free_level_and_priors_is_scipys():
    problem = PROBLEMS["LogNormal, free, and priors"]
    x = somewhere(problem)
    k, y0, sigma = _natural(problem, x)
    want = scipy.stats.lognorm.logpdf(Y, sigma, scale=y0 * np.exp(-k * T)).sum()
    want += scipy.stats.norm.logpdf(k, 0.3, 0.2)
    want += scipy.stats.lognorm.logpdf(y0, 0.5, scale=np.e)[0]
    want += scipy.stats.halfnorm.logpdf(sigma, scale=0.3)
    np.testing.assert_allclose(jax.jit(fit.log_density(problem))(x), want, rtol=1e-6)

    problem = PROBLEMS["Normal, free, and priors on k and y0"]
    x = somewhere(problem)
    k, y0, sigma = _natural(problem, x)
    seen = ~np.isnan(HOLES)
    want = scipy.stats.norm.logpdf(HOLES, y0 * np.exp(-k * T), sigma)[seen].sum()
    want += scipy.stats.cauchy.logpdf(k) + scipy.stats.norm.logpdf(y0, 2, 1)
    want += scipy.stats.uniform.logpdf(sigma, 0.01, 0.99)
    np.testing.assert_allclose(jax.jit(fit.log_density(problem))(x), want, rtol=1e-6)


def test_density_and_loss_differ_by_a_constant():
    problem = PROBLEMS["LogNormal, free, and priors"]
    density, loss = jax.jit(fit.log_density(problem)), jax.jit(fit.loss(problem))
    x, z = problem.initial(), somewhere(problem)
    np.testing.assert_allclose(density(x) - density(z), loss(z) - loss(x), rtol=1e-12)


def test_the_density_ends_at_the_bounds():
    problem = PROBLEMS["Normal, given"]
    density = jax.jit(fit.log_density(problem))
    assert np.isfinite(density(problem.upper - 5))
    for x in (problem.upper + 0.1, problem.lower.at[1].set(-0.1)):
        assert density(x) == -np.inf
    assert np.isfinite(density(jnp.array([0.0, problem.lower[1]])))


def test_a_density_needs_a_noise_level():
    with pytest.raises(ValueError, match="needs a noise level: give `sigma`"):
        fit.log_density(PROBLEMS["Normal, unknown"])


def test_missing_values_have_no_influence():
    x = jnp.array([-1.0, 2.5])
    seen = ~np.isnan(HOLES)
    sigma = 0.02 + 0.01 * T
    without = fit.Problem(
        Decay(0.2),
        fit.Data(T[seen], Y[seen], sigma[seen]),
        y0=jnp.array([2.0]),
        free={"k": fit.Free(1e-3, 10, scale="log"), "y0[0]": fit.Free(0, 10)},
        solve=FAST,
    )
    with_holes = PROBLEMS["Normal, given"]
    for fn in (fit.loss, fit.log_density):
        a, b = (jax.jit(jax.value_and_grad(fn(p)))(x) for p in (with_holes, without))
        np.testing.assert_allclose(a[0], b[0], rtol=1e-6)
        np.testing.assert_allclose(a[1], b[1], rtol=1e-6)
    # And nothing at all depends on what stands in the place of a missing value.
    filled = np.where(np.isnan(HOLES), 1e6, HOLES)
    other = fit.Data(T, filled, sigma)
    masked = decay_problem(sigma, ys=HOLES)
    object.__setattr__(masked.data, "ys", other.ys)
    first, second = (eqx.filter_jit(local)(p, x) for p in (with_holes, masked))
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_column_seen_in_part_gives_finite_gradients_of_logarithms():
    ys = np.stack([np.where(T % 2 == 0, Y, np.nan), np.where(T % 2 == 1, 5.0, np.nan)], axis=1)
    problem = fit.Problem(
        LotkaVolterra(0.5, 0.02, 0.02, 0.9),
        fit.Data(T, ys),
        y0=jnp.array([3.0, 5.0]),
        noise=fit.noise.LogNormal([0.2, 0.3]),
        free={"birth": fit.Free(0, 2), "noise.sigma": fit.Free(0.01, 1)},
        solve=FAST,
    )
    value, gradient = jax.jit(jax.value_and_grad(fit.loss(problem)))(problem.initial())
    assert np.isfinite(value) and np.all(np.isfinite(gradient))
    assert problem.data.size == 10


class Explosive(Decay):
    def __call__(self, t, y, args):
        return self.k * y**2


def explosive(**kwargs):
    return fit.Problem(
        Explosive(0.01), fit.Data(T, Y, 0.1), y0=jnp.array([1.0]), free={"k": fit.Free(0, 100)},
        **kwargs,
    )  # fmt: skip


GOOD, BAD = jnp.array([0.02]), jnp.array([5.0])  # it blows up at t = 1 / k


def test_failing_solves_have_infinite_loss():
    problem = explosive(solve=FAST)
    loss, density = jax.jit(fit.loss(problem)), jax.jit(fit.log_density(problem))
    assert np.isfinite(loss(GOOD)) and np.isfinite(density(GOOD))
    assert loss(BAD) == np.inf and density(BAD) == -np.inf
    assert not np.isfinite(jax.grad(loss)(BAD))  # not a plausible gradient of half a solve
    assert not np.isfinite(eqx.filter_jit(local)(problem, BAD).loss)


def test_failing_adaptive_solves_have_infinite_loss():
    loss = jax.jit(fit.loss(explosive(solve=fit.Solve(max_steps=500))))
    assert np.isfinite(loss(GOOD)) and loss(BAD) == np.inf


def test_predictions_that_are_not_positive_have_infinite_loss_with_log_normal_noise():
    problem = fit.Problem(
        fit_cases.Logistic(0.5, 2.0), fit.Data(T, Y, 0.1), y0=jnp.array([1.0]),
        free={"y0": fit.Free(-1, 3)}, noise=fit.noise.LogNormal(), solve=FAST,
    )  # fmt: skip
    loss = jax.jit(fit.loss(problem))
    assert loss(jnp.array([-0.01])) == np.inf and np.isfinite(loss(jnp.array([0.01])))

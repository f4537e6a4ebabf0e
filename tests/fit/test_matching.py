"""Smooth curves through data, and parameters from them without solving."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hard_fits import hard_fit, LotkaVolterra, SYSTEMS

from sciml import fit, solvers
from sciml.fit._matching import Matching
from sciml.fit._smooth import smooth


TS = np.linspace(0.0, 10.0, 101)


@pytest.mark.slow
@pytest.mark.parametrize("name", SYSTEMS)
def test_clean_data(name):
    problem, true = hard_fit(name, 601)
    np.testing.assert_allclose(Matching().start(problem), true, rtol=5e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lotka volterra", "fitzhugh nagumo"])
def test_noisy_data_and_the_estimate_from_there(name):
    problem, true = hard_fit(name, 301, noise=0.02)
    x = Matching().start(problem)
    np.testing.assert_allclose(x, true, rtol=0.15)
    result = fit.estimate(problem.at(x))
    assert result.ok and 0.8 < 2 * result.loss / problem.size < 1.2


@pytest.mark.slow
def test_initial_states_and_several_experiments():
    ts = jnp.linspace(0.0, 6.0, 61)
    data = {}
    for name, y0 in (("few", [1.0, 1.0]), ("many", [4.0, 2.0])):
        model = LotkaVolterra(1.5, 1.0, 3.0, 1.0)
        sol = solvers.solve(model, jnp.array(y0), ts, rtol=1e-8, atol=1e-8)
        ys = np.array(sol.ys)
        ys[5::9, 1] = np.nan
        data[name] = fit.Data(ts, ys)
    problem = fit.Problem(
        LotkaVolterra(5.0, 1.0, 5.0, 1.0),
        data,
        y0=jnp.array([2.0, 2.0]),
        free={
            "a": fit.Free(0, 10, scale="log", init=5.0),
            "c": fit.Free(0, 10),
            "y0": fit.Free(0, 9, per="experiment"),
        },
    )
    x = Matching().start(problem)
    want = [np.log(1.5), 3.0, 1.0, 1.0, 4.0, 2.0]
    np.testing.assert_allclose(x, want, rtol=2e-3, atol=2e-3)


class Named(eqx.Module):
    k: float

    def __call__(self, t, y, args):
        return {"b": self.k * y["a"], "a": -self.k * y["a"]}


def test_states_by_name():
    a = np.exp(-0.7 * TS)
    data = fit.Data(TS, np.stack([1 - a, a], axis=1), names=["b", "a"])
    y0 = {"a": jnp.array(1.0), "b": jnp.array(0.0)}
    problem = fit.Problem(Named(5.0), data, y0=y0, free={"k": fit.Free(0, 9)})
    np.testing.assert_allclose(Matching().start(problem), 0.7, rtol=1e-5)


def test_bounds_are_kept():
    a = np.exp(-0.7 * TS)
    data = fit.Data(TS, np.stack([1 - a, a], axis=1), names=["b", "a"])
    y0 = {"a": jnp.array(1.0), "b": jnp.array(0.0)}
    problem = fit.Problem(Named(0.2), data, y0=y0, free={"k": fit.Free(0, 0.5)})
    assert Matching(intervals=20).start(problem)[0] == 0.5


def test_what_is_refused():
    partial, _ = hard_fit("lotka volterra", 31, partial=True)
    with pytest.raises(ValueError, match=r"needs data of every number of the state.*MultipleShoot"):
        Matching().start(partial)
    ys = np.ones((21, 2))
    model, ts, free = LotkaVolterra(1.0, 1.0, 1.0, 1.0), np.linspace(0, 2, 21), {"a": fit.Free()}
    dosed = fit.Problem(
        model,
        fit.Data(ts, ys),
        y0=jnp.ones(2),
        free=free,
        doses=solvers.Doses(jnp.array([1.0]), 1.0),
    )
    with pytest.raises(ValueError, match="`Matching` can't deal with doses"):
        Matching().start(dosed)
    unseen = ys.copy()
    unseen[:, 1] = np.nan
    data = {"full": fit.Data(ts, ys), "half": fit.Data(ts, unseen)}
    problem = fit.Problem(model, data, y0=jnp.ones(2), free=free)
    with pytest.raises(ValueError, match="in experiment 'half' there are none of obs1"):
        Matching().start(problem)
    with pytest.raises(ValueError, match="intervals"):
        Matching(intervals=0)


class Broken(eqx.Module):
    k: float

    def __call__(self, t, y, args):
        return jnp.log(-self.k) * y


def test_a_model_that_is_not_finite():
    problem = fit.Problem(
        Broken(1.0), fit.Data(TS, np.exp(-TS)), y0=1.0, free={"k": fit.Free(0, 5)}
    )
    with pytest.raises(RuntimeError, match="could not begin"):
        Matching().start(problem)


def test_a_curve_through_clean_data():
    ys = np.stack([np.sin(TS), np.cos(2 * TS)], axis=1)
    curve, left = smooth(TS, ys, np.ones(ys.shape, bool))
    assert np.all(left < 1e-6)
    at = jnp.linspace(0.0, 10.0, 333)
    want = jnp.stack([jnp.sin(at), jnp.cos(2 * at)], axis=1)
    np.testing.assert_allclose(jax.vmap(curve)(at), want, atol=2e-4)
    np.testing.assert_allclose(curve.table(np.asarray(at)), jax.vmap(curve)(at), atol=1e-12)
    slopes = jnp.stack([jnp.cos(at), -2 * jnp.sin(2 * at)], axis=1)
    np.testing.assert_allclose(jax.vmap(curve.slope)(at), slopes, atol=1e-2)


def test_a_curve_averages_noise():
    rng = np.random.default_rng(0)
    ts = np.sort(np.append(rng.uniform(0, 10, 400), [3.0, 3.0, 3.0]))
    ys = np.sin(ts) + 0.1 * rng.normal(size=ts.shape)
    seen = rng.uniform(size=ts.shape) > 0.2
    curve, left = smooth(ts, ys[:, None], seen[:, None])
    assert 0.08 < left[0] < 0.11
    off = np.asarray(jax.vmap(curve)(jnp.asarray(ts)))[:, 0] - np.sin(ts)
    assert np.sqrt(np.mean(off**2)) < 0.03


@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_few_data(n):
    ts = np.linspace(0.0, 1.0, n)
    curve, _ = smooth(ts, (2 * ts + 1)[:, None], np.ones((n, 1), bool))
    np.testing.assert_allclose(curve(jnp.asarray(0.3)), 1.6, atol=1e-6)
    with pytest.raises(ValueError, match="two times"):
        smooth(ts[:1], ts[:1, None], np.ones((1, 1), bool))

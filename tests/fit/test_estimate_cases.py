"""Fits that other libraries' users stumbled over, and real data with known estimates."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fit_cases import FAST, Logistic, LotkaVolterra, lynx_hare

from sciml import fit, solvers


class MichaelisMenten(eqx.Module):
    vmax: jax.Array | float
    km: jax.Array | float

    def __call__(self, t, y, args):
        return -self.vmax * y / (self.km + y)


@pytest.mark.slow
def test_michaelis_menten_from_far_away():
    # Case 41: exact data for Vmax = 1.2, Km = 3.
    ys = [
        10, 8.196597786654, 6.494765598948, 4.924864807188, 3.526682444296, 2.347588888852,
        1.431528020412, 0.795208412564, 0.406711183547, 0.196041530757, 0.091219368564,
    ]  # fmt: skip
    problem = fit.Problem(
        MichaelisMenten(0.5, 10.0), fit.Data(np.arange(0.0, 21, 2), ys), y0=jnp.array([10.0]),
        free={"vmax": fit.Free(1e-6), "km": fit.Free(1e-6)},
        solve=fit.Solve(steps=32),
    )  # fmt: skip
    result = fit.estimate(problem)
    assert result.ok
    np.testing.assert_allclose(result.values["vmax"], 1.2, rtol=1e-5)
    np.testing.assert_allclose(result.values["km"], 3.0, rtol=1e-5)


class Wave(eqx.Module):
    """A curve, as a model: the state idles and `observe` draws it (case 42)."""

    amplitude: jax.Array | float
    frequency: jax.Array | float
    phase: jax.Array | float

    def __call__(self, t, y, args):
        return self.amplitude * jnp.sin(2 * jnp.pi * self.frequency * t + self.phase)[None]


def idle(t, y, args):
    return jnp.zeros_like(y)


def test_many_starts_find_the_global_minimum():
    ts = np.linspace(0, 2 * np.pi, 50)
    ys = 10 * np.sin(2 * np.pi * 0.34 * ts + np.pi / 6)
    problem = fit.Problem(
        idle, fit.Data(ts, ys, 1.0), y0=jnp.array([0.0]), observe=Wave(7.0, 0.9, 0.0),
        free={
            "observe.amplitude": fit.Free(0, 20),
            "observe.frequency": fit.Free(0, 1),
            "observe.phase": fit.Free(-np.pi, np.pi),
        },
        solve=fit.Solve(steps=1),
    )  # fmt: skip
    result = fit.estimate(problem, starts=32, key=jax.random.key(0))
    np.testing.assert_allclose(list(result.values.values()), [10, 0.34, np.pi / 6], rtol=1e-6)
    starts = result.starts
    assert starts.loss.shape == (32,) and starts.loss[0] < 1e-9
    assert "starts agree" in str(result)
    # The problem's own start ends in a local minimum, where SciPy's `least_squares` ends as well.
    own = np.flatnonzero(np.isclose(starts.loss, 1263.853, rtol=1e-6))
    assert own.size
    local = [1.04394718, 0.87214026, -0.28461113]
    np.testing.assert_allclose(starts.values[own[0]], local, rtol=1e-5)
    assert starts.ok[own[0]]


LV = (1.5, 1.0, 0.5, 1.0)


@pytest.fixture(scope="module")
def lotka_volterra():
    """Case 37, with as many steps as the solution needs, but not every point on the way."""
    ts = jnp.arange(11.0)
    exact = solvers.solve(LotkaVolterra(*LV), jnp.ones(2), ts, rtol=1e-10, atol=1e-12)
    free = {n: fit.Free(1e-3, 30) for n in ("birth", "predation", "growth", "death")}
    problem = fit.Problem(
        LotkaVolterra(1.2, 0.8, 0.6, 1.2), fit.Data(ts, exact.ys), y0=jnp.ones(2), free=free,
        solve=fit.Solve(max_steps=200),
    )  # fmt: skip
    return fit.estimate(problem, starts=5, key=jax.random.key(0))


def test_lotka_volterra_least_squares(lotka_volterra):
    assert lotka_volterra.ok
    np.testing.assert_allclose(list(lotka_volterra.values.values()), LV, rtol=1e-5)


def test_starts_whose_solve_fails_are_counted(lotka_volterra):
    starts = lotka_volterra.starts
    failed = ~np.isfinite(starts.loss)
    assert 0 < failed.sum() < 5
    assert np.all(np.diff(failed.astype(int)) >= 0)  # they are the last
    for reason, bad in zip(starts.reason, failed, strict=True):
        assert ("ran out of steps" in reason) == bad
    said = f"{failed.sum()} of 5 starts failed: The solver ran out of steps"
    assert said in str(lotka_volterra)


class Explosive(eqx.Module):
    k: jax.Array | float

    def __call__(self, t, y, args):
        return self.k * y**2 - y


@pytest.fixture(scope="module")
def explosive():
    ts = np.linspace(0, 3, 13)
    ys = 1 / (0.4 + 0.6 * np.exp(ts))  # k = 0.4
    return fit.Problem(
        Explosive(0.5), fit.Data(ts, ys, 0.01), y0=jnp.array([1.0]), free={"k": fit.Free(0, 30)},
        solve=FAST,
    )  # fmt: skip


def test_starts_that_blow_up_are_counted(explosive):
    result = fit.estimate(explosive, starts=16, key=jax.random.key(0))
    np.testing.assert_allclose(result.values["k"], 0.4, rtol=1e-5)
    assert result.starts.ok[0]
    failed = int(np.sum(~np.isfinite(result.starts.loss)))
    assert failed > 8  # everything above k = 1.05
    assert f"{failed} of 16 starts failed" in str(result)
    assert "non-finite" in result.starts.reason[-1]


def test_no_start_at_all(explosive):
    with pytest.raises(RuntimeError, match=r"No start could be evaluated.*non-finite"):
        fit.estimate(explosive.free({"k": fit.Free(0, 30, init=20.0)}))


def test_predictions_that_are_not_positive_are_a_reason():
    problem = fit.Problem(
        Explosive(0.5), fit.Data([1.0, 2.0], [1.0, 0.5]), y0=jnp.array([-1.0]), solve=FAST,
        free={"k": fit.Free(0, 1)}, noise=fit.noise.LogNormal(),
    )  # fmt: skip
    with pytest.raises(RuntimeError, match=r"No start .* not positive, which log-normal"):
        fit.estimate(problem)


def test_a_trial_point_that_fails_is_passed_over(explosive):
    # From here the first full step leads to where the solution explodes.
    result = fit.estimate(explosive.free({"k": fit.Free(0, 30, init=0.0)}), starts=1)
    np.testing.assert_allclose(result.values["k"], 0.4, rtol=1e-5)
    late = fit.estimate(explosive.free({"k": fit.Free(-30, 30, init=-5.0)}))
    np.testing.assert_allclose(late.values["k"], 0.4, rtol=1e-5)
    assert late.statistics["failed trial points"] > 0


# Estimates and standard errors by ordinary least squares, from MINPACK on exact sensitivities
# (42 values, 6 parameters); the data are in examples/data/lynx_hare.csv, origin stated there.
LYNX_HARE_LEVELS = {
    "birth": (0.4811990313080793, 0.03508799796623266),
    "predation": (0.02483176058692119, 0.001638001394765532),
    "death": (0.9260183474283318, 0.07311322013878635),
    "growth": (0.02753295063466698, 0.0020928995674314057),
    "y0[0]": (34.9142878157312, 1.5769505144564142),
    "y0[1]": (3.8618663534332005, 0.589116275635624),
}
LYNX_HARE_LOGS = {
    "birth": (0.5401589916206808, 0.05948867217848806),
    "predation": (0.027165357110993237, 0.0038430442712895094),
    "death": (0.7963860445388379, 0.08385636704288882),
    "growth": (0.02369463839381762, 0.0032860341511527927),
    "y0[0]": (34.60242437143045, 2.9294081351302452),
    "y0[1]": (5.844506134727918, 0.4793002807582881),
}


def hudson_bay(ys, want, noise, rss):
    ts, table = lynx_hare()
    data = fit.Data(ts, table if ys is None else ys, names=["hare", "lynx"])
    problem = fit.Problem(
        LotkaVolterra(birth=0.5, predation=0.025, growth=0.025, death=0.8), data,
        y0=jnp.array([30.0, 4.0]), noise=noise, solve=FAST,
        free={name: fit.Free(0.1 * v, 10 * v, scale="log") for name, (v, _) in want.items()},
    )  # fmt: skip
    result = fit.estimate(problem)
    assert result.ok
    for name, (value, error) in want.items():
        np.testing.assert_allclose(result.values[name], value, rtol=1e-4, err_msg=name)
        np.testing.assert_allclose(result.standard_errors[name], error, rtol=1e-3, err_msg=name)
    np.testing.assert_allclose(2 * result.loss, rss, rtol=1e-6)
    return result


@pytest.mark.slow
def test_hares_and_lynxes_on_levels():
    result = hudson_bay(None, LYNX_HARE_LEVELS, fit.noise.Normal(), 594.7445607532528)
    assert (result.statistics["data"], result.statistics["dof"]) == (42, 36)
    np.testing.assert_allclose(result.statistics["residual sigma"], 4.064564213190131, rtol=1e-6)


def test_hares_and_lynxes_on_logarithms():
    hudson_bay(None, LYNX_HARE_LOGS, fit.noise.LogNormal(), 2.0186611552112237)


def test_hares_in_odd_years_and_lynxes_in_even_ones():
    # Field case 35.
    years, table = lynx_hare()
    ys = np.where(np.stack([years % 2 == 1, years % 2 == 0], axis=1), table, np.nan)
    want = {
        "birth": (0.56995735, 0.10176),
        "predation": (0.029014720, 0.0068437),
        "death": (0.77970232, 0.13263),
        "growth": (0.022817593, 0.0052701),
        "y0[0]": (33.991334, 5.3435),
        "y0[1]": (5.6183732, 0.75027),
    }
    result = hudson_bay(ys, want, fit.noise.LogNormal(), 1.26181395)
    assert (result.statistics["data"], result.statistics["dof"]) == (21, 15)


def test_yeast():
    # T. Carlson, Über Geschwindigkeit und Grösse der Hefevermehrung in Würze, Biochem. Z. 57
    # (1913): biomass by the hour, as printed by R. Pearl (1927).
    biomass = [
        9.6, 18.3, 29.0, 47.2, 71.1, 119.1, 174.6, 257.3, 350.7, 441.0, 513.3, 559.7, 594.8,
        629.4, 640.8, 651.1, 655.9, 659.6, 661.8,
    ]  # fmt: skip
    free = {"K": fit.Free(1, 1e4, scale="log"), "r": fit.Free(0, 5), "y0[0]": fit.Free(0, 100)}
    problem = fit.Problem(
        Logistic(r=1.0, K=300.0), fit.Data(np.arange(19.0), biomass), y0=jnp.array([20.0]),
        free=free, solve=FAST,
    )  # fmt: skip
    result = fit.estimate(problem)
    want = {"K": 663.0219906764, "r": 0.54699472759, "y0[0]": 9.1355171564}
    errors = {"K": 1.7027287021, "r": 0.0055826653, "y0[0]": 0.37881561}
    assert result.values == pytest.approx(want, rel=1e-5)
    assert result.standard_errors == pytest.approx(errors, rel=1e-4)
    assert 2 * result.loss == pytest.approx(194.3253782, rel=1e-6)


class Robertson(eqx.Module):
    slow: jax.Array | float
    fast: jax.Array | float

    def __call__(self, t, y, args):
        a = -self.slow * y[0] + 1e4 * y[1] * y[2]
        c = self.fast * y[1] ** 2
        return jnp.stack([a, -a - c, c])


def test_a_stiff_problem_is_met_by_the_default():
    # Robertson's problem (case 1): y1 and y3.
    ys = [[0.985172113861, 0.0147940221852], [np.nan, np.nan], [0.715827068719, 0.284163745746]]
    ts = jnp.array([0.4, 4.0, 40.0])
    problem = fit.Problem(
        Robertson(0.05, 2e7), fit.Data(ts, ys, 1e-3), y0=jnp.array([1.0, 0.0, 0.0]), t0=0.0,
        observe=lambda t, y, args: y[jnp.array([0, 2])],
        free={"slow": fit.Free(1e-3, 1, scale="log"), "fast": fit.Free(1e5, 1e9, scale="log")},
        solve=fit.Solve(max_steps=1000),
    )  # fmt: skip
    result = fit.estimate(problem)
    assert "solver AutoSwitch" in str(result)
    np.testing.assert_allclose(list(result.values.values()), [0.04, 3e7], rtol=1e-4)
    assert np.all(np.isfinite(fit.predict(result, ts).low))

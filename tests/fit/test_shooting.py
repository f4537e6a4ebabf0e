"""Multiple shooting and growing horizons: from far starts to the optimum."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from hard_fits import hard_fit, LotkaVolterra, simulate, SYSTEMS

from sciml import fit, solvers
from sciml.fit._horizon import GrowingHorizon
from sciml.fit._likelihood import look
from sciml.fit._shooting import MultipleShooting


def errors(shot):
    return np.sqrt(np.diag(np.linalg.inv(shot.rows.T @ shot.rows)))


@pytest.mark.slow
@pytest.mark.parametrize("name", SYSTEMS)
def test_clean_data_of_all_states(name):
    problem, true = hard_fit(name, 301)
    shot = MultipleShooting().shoot(problem)
    assert shot.ok and shot.gap < 1e-6 and shot.unexplained < 1e-8
    np.testing.assert_allclose(shot.x, true, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", SYSTEMS)
def test_noisy_data_of_one_state(name):
    problem, true = hard_fit(name, 601, noise=0.02, partial=True)
    shot = MultipleShooting().shoot(problem)
    assert shot.ok and 0.8 < 2 * shot.loss / problem.size < 1.2
    assert np.all(np.abs(shot.x - true) < 4 * errors(shot))
    assert np.all(errors(shot) > 0)


@pytest.mark.slow
@pytest.mark.parametrize("partial", [False, True], ids=["all", "first"])
@pytest.mark.parametrize("noise", [0.0, 0.02])
@pytest.mark.parametrize("name", SYSTEMS)
def test_as_published(name, noise, partial):
    problem, true = hard_fit(name, 3001, noise, partial)
    shot = MultipleShooting().shoot(problem)
    assert shot.ok
    if noise:
        assert np.all(np.abs(shot.x - true) < 4 * errors(shot))
    else:
        np.testing.assert_allclose(shot.x, true, rtol=1e-4)


@pytest.mark.slow
def test_it_ends_at_the_optimum_of_single_shooting():
    problem, _ = hard_fit("lotka volterra", 201, noise=0.02, span=10.0)
    shot = MultipleShooting(gap=1e-8).shoot(problem)
    result = fit.estimate(problem.at(shot.x))
    assert result.ok and fit.estimate(problem).loss > 100 * problem.size
    np.testing.assert_allclose(shot.x, result.problem.initial(), rtol=1e-5)
    np.testing.assert_allclose(shot.loss, result.loss, rtol=1e-5)
    # With the states eliminated, the curvature is that of the whole trajectory.
    rows = np.asarray(look(problem, shot.x)[1].rows)
    np.testing.assert_allclose(shot.rows.T @ shot.rows, rows.T @ rows, rtol=1e-3)


@pytest.mark.slow
def test_states_are_on_the_solution():
    problem, _ = hard_fit("fitzhugh nagumo", 301)
    shot = MultipleShooting(windows=10).shoot(problem)
    ts, states = shot.states[""]
    assert ts.shape == (9,) and states.shape == (9, 2)
    ys = simulate("fitzhugh nagumo", 301)[1]
    place = np.round(ts * 10).astype(int)
    np.testing.assert_allclose(ts, place / 10, atol=1e-12)
    np.testing.assert_allclose(states, ys[place], rtol=1e-4)


class Named(eqx.Module):
    """Lotka and Volterra with a state by name."""

    a: float
    c: float

    def __call__(self, t, y, args):
        x, z = y["prey"], y["hunters"]
        return {"prey": self.a * x - x * z, "hunters": x * z - self.c * z}


def experiments():
    """Of different lengths, with missing values, one of them without hunters."""
    out = {}
    for name, a, points in (("wet", 1.5, 61), ("dry", 0.9, 41)):
        ts = jnp.linspace(0.0, points / 5 - 0.2, points)
        y0 = {"prey": jnp.array(1.0), "hunters": jnp.array(1.0)}
        sol = solvers.solve(Named(a, 3.0), y0, ts, rtol=1e-9, atol=1e-9)
        ys = np.stack([sol.ys["hunters"], sol.ys["prey"]], axis=1)
        ys[3::7, 0] = np.nan
        if name == "dry":
            ys[:, 0] = np.nan
        out[name] = fit.Data(ts, ys, names=["hunters", "prey"])
    return out


@pytest.mark.slow
def test_experiments_with_parameters_of_their_own():
    problem = fit.Problem(
        Named(5.0, 5.0),
        experiments(),
        y0={"prey": 1.0, "hunters": 1.0},
        free={"a": fit.Free(0, 10, per="experiment"), "c": fit.Free(1e-2, 10, scale="log")},
        solve=fit.Solve(method=solvers.Tsit5()),
    )
    shot = MultipleShooting(windows=12).shoot(problem)
    assert shot.ok and list(shot.states) == ["wet", "dry"]
    np.testing.assert_allclose(shot.x, [1.5, 0.9, np.log(3.0)], rtol=1e-5)


@pytest.mark.slow
def test_initial_states_can_be_free():
    problem, true = hard_fit("fitzhugh nagumo", 301, noise=0.02)
    problem = problem.free({"y0": fit.Free(-3, 3, init=[0.0, 0.0])})
    shot = MultipleShooting().shoot(problem)
    assert shot.ok
    true = np.array([*true, 1.0, 1.0])
    assert np.all(np.abs(shot.x - true) < 4 * errors(shot))


@pytest.mark.slow
def test_priors_count():
    problem, _ = hard_fit("lotka volterra", 101, noise=0.02, span=10.0)
    pulled = problem.free({"a": fit.Free(prior=fit.priors.Normal(1.3, 0.001), init=5.0)})
    x = MultipleShooting(gap=1e-8).start(pulled)
    result = fit.estimate(pulled.at(x))
    np.testing.assert_allclose(x, result.problem.initial(), rtol=1e-3)


@pytest.mark.slow
def test_one_window_is_single_shooting():
    problem, true = hard_fit("lotka volterra", 51, span=3.0)
    shot = MultipleShooting(windows=1).shoot(problem.at(1.1 * jnp.asarray(true)))
    assert shot.ok and shot.gap == 0
    np.testing.assert_allclose(shot.x, true, rtol=1e-6)


def test_windows_need_data():
    problem, _ = hard_fit("lotka volterra", 21)
    with pytest.raises(ValueError, match=r"50 windows need 51 different times, .* have 21"):
        MultipleShooting(windows=50).shoot(problem)


def test_doses_are_refused():
    ts = jnp.linspace(0.0, 5.0, 21)
    problem = fit.Problem(
        LotkaVolterra(1.0, 1.0, 1.0, 1.0),
        fit.Data(ts, jnp.ones((21, 2))),
        y0=jnp.ones(2),
        free={"a": fit.Free(0, 5)},
        doses=solvers.Doses(jnp.array([1.0]), 1.0),
    )
    with pytest.raises(ValueError, match="can't deal with doses"):
        MultipleShooting().shoot(problem)


class Broken(eqx.Module):
    k: float

    def __call__(self, t, y, args):
        return jnp.log(-self.k) * y


def test_a_start_that_can_not_be_solved():
    ts = jnp.linspace(0.0, 5.0, 21)
    data = fit.Data(ts, jnp.exp(-ts))
    problem = fit.Problem(Broken(1.0), data, y0=1.0, free={"k": fit.Free(0, 5)})
    with pytest.raises(RuntimeError, match="could not begin"):
        MultipleShooting().shoot(problem)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"gap": 0.0}, "between 0 and 1"),
        ({"windows": 0}, "windows"),
        ({"max_steps": 0}, "max_steps"),
    ],
)
def test_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        MultipleShooting(**arguments)


def test_a_growing_horizon():
    problem, true = hard_fit("lotka volterra", 301, noise=0.02)
    x = GrowingHorizon(first=0.05).start(problem)
    result = fit.estimate(problem.at(x))
    assert 0.8 < 2 * result.loss / problem.size < 1.2
    np.testing.assert_allclose(result.problem.initial(), true, rtol=0.03)


def test_arguments_of_a_horizon():
    with pytest.raises(ValueError, match="between 0 and 1"):
        GrowingHorizon(first=1.0)
    with pytest.raises(ValueError, match="stages"):
        GrowingHorizon(stages=0)


class Counted(eqx.Module):
    k: float
    traces: list = eqx.field(static=True, default_factory=list)

    def __call__(self, t, y, args):
        self.traces.append(1)
        return -self.k * y


@pytest.mark.slow
def test_other_values_compile_nothing_new():
    ts = jnp.linspace(0.0, 2.0, 21)
    data = fit.Data(ts, jnp.exp(-3 * ts))
    problem = fit.Problem(
        Counted(1.0),
        data,
        y0=1.0,
        free={"k": fit.Free(0, 5)},
        solve=fit.Solve(method=solvers.Tsit5()),
    )
    strategy = MultipleShooting(windows=5)
    strategy.start(problem)
    before = len(problem.model.traces)
    x = strategy.start(problem.at(jnp.array([2.0])))
    # One more abstract look at the state, none at the solve.
    assert len(problem.model.traces) == before
    np.testing.assert_allclose(x, 3.0, rtol=1e-6)

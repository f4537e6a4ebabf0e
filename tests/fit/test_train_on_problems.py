"""What `fit.train` does with problems beyond plain steps: phases, held-out data, batches, checkpoints."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sciml import fit, nets, solvers
from sciml.fit._problem_goal import _shift


class Growth(eqx.Module):
    rate: jax.Array | float
    net: nets.MLP

    def __call__(self, t, y, args):
        return self.rate * y + self.net(y)


TS = np.linspace(0, 3, 16)
YS = 1 / (1 + 9 * np.exp(-2 * TS))
NET = nets.MLP(1, 1, width=4, depth=1, scale=0.1, key=jax.random.key(0))
ADAM = optax.adam(2e-2)


def problem(data):
    return fit.Problem(
        Growth(2.0, NET),
        data,
        y0=jnp.array([0.1]),
        free={"net": fit.Free()},
        solve=fit.Solve(steps=1),
    )


PROBLEM = problem(fit.Data(TS, YS))


def weights(result):
    return np.concatenate([np.ravel(v) for v in result.values.values()])


def test_a_second_order_phase_goes_further():
    first = fit.Phase(ADAM, 40)
    short = fit.train(PROBLEM, [first])
    both = fit.train(PROBLEM, [first, fit.Phase(solvers.LevenbergMarquardt(), 50)])
    assert both.loss < 1e-3 * short.loss
    assert both.history.size > 40
    np.testing.assert_array_equal(both.history[:40], short.history)


@pytest.mark.slow
@pytest.mark.parametrize("method", [solvers.BFGS(), solvers.LBFGS()], ids=["BFGS", "LBFGS"])
def test_quasi_newton_phases(method):
    first = fit.Phase(ADAM, 40)
    short = fit.train(PROBLEM, [first])
    both = fit.train(PROBLEM, [first, fit.Phase(method, 200)])
    assert both.loss < 0.05 * short.loss


def test_held_out_data_decide_which_parameters_are_the_best():
    # The held-out curve is another one, met on the way and left behind.
    other = fit.Data(TS[4:12:2], 0.7 * YS[4:12:2])
    looks = []
    options = {"validation": other, "every": 10, "horizon": None}
    full = fit.train(PROBLEM, ADAM, steps=100, callbacks=looks.append, **options)
    assert [look.step for look in looks] == list(range(10, 101, 10))
    losses = [look.validation for look in looks]
    best = int(np.argmin(losses))
    assert 0 < best < 9
    assert full.statistics["validation loss"] == pytest.approx(losses[best], rel=1e-9)
    stopped = fit.train(PROBLEM, ADAM, steps=100, patience=2, **options)
    assert stopped.history.size == 10 * (best + 1 + 2)
    assert stopped.message.startswith(f"stopped early at step {stopped.history.size}")
    np.testing.assert_array_equal(weights(stopped), weights(full))


def test_resumed_training_is_the_same_training(tmp_path):
    options = {"horizon": None, "every": 10}
    file = tmp_path / "half"
    whole = fit.train(PROBLEM, ADAM, steps=40, **options)
    fit.train(PROBLEM, ADAM, steps=20, checkpoint=file, **options)
    resumed = fit.train(PROBLEM, ADAM, steps=40, checkpoint=file, **options)
    np.testing.assert_array_equal(weights(resumed), weights(whole))
    np.testing.assert_array_equal(resumed.history, whole.history)
    again = fit.train(PROBLEM, ADAM, steps=40, checkpoint=file, **options)  # nothing left to do
    np.testing.assert_array_equal(weights(again), weights(whole))
    with pytest.raises(ValueError, match="it differs in `horizon`, `steps`"):
        fit.train(PROBLEM, ADAM, steps=40, checkpoint=file, every=10)
    # Where the horizon grows, how fast it does depends on the steps.
    fit.train(PROBLEM, ADAM, steps=20, checkpoint=tmp_path / "grown", every=10)
    with pytest.raises(ValueError, match=r"holds a training of 20 steps, not of 40: its horizon"):
        fit.train(PROBLEM, ADAM, steps=40, checkpoint=tmp_path / "grown", every=10)


def test_the_horizon_grows_over_the_first_phase_alone():
    result = fit.train(PROBLEM, [fit.Phase(optax.sgd(0.0), 11), fit.Phase(optax.sgd(0.0), 11)])
    assert len(set(result.history[:6].tolist())) > 3
    np.testing.assert_array_equal(result.history[5:], result.history[5])


def test_the_average_is_what_is_returned():
    options = {"horizon": None, "every": 10, "steps": 40}
    plain = fit.train(PROBLEM, ADAM, **options)
    mean = fit.train(PROBLEM, ADAM, ema=0.9, **options)
    np.testing.assert_array_equal(mean.history, plain.history)
    assert np.all(weights(mean) != weights(plain))
    # The average lags: the loss falls, and so it is higher.
    assert plain.loss < mean.loss < len(TS) * plain.history[0]


def test_what_is_held_out_is_named_so():
    looks = []
    result = fit.train(PROBLEM, ADAM, steps=10, every=10, callbacks=looks.append)
    assert looks[0].validation is None and looks[0].overall is not None
    assert "validation loss" not in result.statistics
    assert result.statistics["sigma"] == "not given" and "sigma not given" in str(result)


def test_batches_of_several_forms_take_some_of_each():
    # Three experiments of sixteen rows, two of eight: the losses of a step tell which it saw.
    scales = {"a": 1.0, "b": 3.0, "c": 9.0, "d": 27.0, "e": 81.0}
    rows = {name: 16 if name in "abc" else 8 for name in scales}
    experiments = {
        name: fit.Experiment(fit.Data(TS[: rows[name]], scales[name] * YS[: rows[name]], sigma=1.0))
        for name in scales
    }
    p = problem(experiments)
    for batch in (1, 3, 5):
        few = fit.train(
            p, optax.sgd(0.0), batch=batch, steps=6, key=jax.random.key(1), horizon=None
        ).history
        assert (len(np.unique(np.round(few, 9))) > 1) == (batch < 5)
        if (
            batch == 1
        ):  # the first three steps see each of the three once, the first two both others
            assert len(np.unique(np.round(few[:3], 9))) == 3
    with pytest.raises(ValueError, match="`batch=6` is more than the 5 experiments"):
        fit.train(p, ADAM, batch=6, steps=2, key=jax.random.key(1))


def test_batches_of_rows_take_each_once():
    # Sixteen rows, four at a time: sixteen steps are four epochs, and their losses sum up.
    sums = fit.train(
        PROBLEM, optax.sgd(0.0), batch=4, steps=16, key=jax.random.key(1), horizon=None
    ).history
    whole = fit.train(PROBLEM, optax.sgd(0.0), steps=1, horizon=None).history[0]
    assert np.mean(sums) == pytest.approx(whole, rel=1e-10)
    assert np.ptp(sums) > 0.1 * whole


def test_shifted_times_stay_in_order():
    ts = jnp.array([0.0, 0.0, 1.0, 1.0, 1.5, 4.0, 4.0])  # replicates, and padding at the end
    for seed in range(20):
        new = _shift(ts, jax.random.key(seed), 1.0)
        assert new[0] == new[1] == 0.0 and new[2] == new[3] and new[5] == new[6]
        assert jnp.all(jnp.diff(new) >= 0)
        assert abs(float(new[2]) - 1) <= 0.25 and 0 < abs(float(new[5]) - 4) <= 1.25


def test_each_epoch_takes_every_experiment_once():
    # Three experiments of different size, hardly any training: the losses tell which of them a step saw.
    scales = (0.1, 1.0, 10.0)
    experiments = {
        name: fit.Experiment(fit.Data(TS, scale * YS, sigma=1.0))
        for name, scale in zip("abc", scales, strict=True)
    }
    together = problem(experiments)
    optimiser = optax.sgd(1e-12)
    options = {"steps": 12, "key": jax.random.key(1), "horizon": None}
    alone = fit.train(together, optimiser, batch=1, **options).history.reshape(4, 3)
    everything = fit.train(together, optimiser, **options).history
    assert len({round(float(v), 6) for v in alone[0]}) == 3
    np.testing.assert_allclose(
        np.sort(alone, axis=1), np.tile(np.sort(alone[0]), (4, 1)), rtol=1e-6
    )
    assert np.any(np.argsort(alone, axis=1) != np.argsort(alone[0]))  # in another order
    np.testing.assert_allclose(alone.mean(axis=1), everything[::3], rtol=1e-6)


@pytest.mark.slow
def test_steer_moves_the_times_and_keeps_the_fit():
    still = fit.train(PROBLEM, ADAM, steps=500)
    result = fit.train(PROBLEM, ADAM, steps=500, steer=0.5, key=jax.random.key(2))
    assert np.all(result.history[1:] != still.history[1:])
    curve = fit.predict(result, TS)
    assert np.sqrt(np.mean((curve.mean[:, 0] - YS) ** 2)) < 0.08


class Spiral(eqx.Module):
    net: nets.MLP

    def __call__(self, t, y, args):
        return self.net(y**3)


@pytest.mark.slow
def test_a_cubic_spiral_does_not_flatten():
    """Plain Adam from the whole span leaves 13 of 20 seeds at a mean square of 0.7 or more; data vary by about one."""
    ts = np.linspace(0, 5, 30)
    matrix = jnp.array([[-0.1, 2.0], [-2.0, -0.1]])
    truth = lambda t, y, args: matrix.T @ y**3
    y0 = jnp.array([2.0, 0.0])
    ys = np.asarray(solvers.solve(truth, y0, ts, rtol=1e-9, atol=1e-9).ys)
    for seed in range(3):
        net = nets.MLP(2, 2, width=16, depth=1, key=jax.random.key(seed))
        spiral = fit.Problem(
            Spiral(net),
            fit.Data(ts, ys),
            y0=y0,
            free={"net": fit.Free()},
            solve=fit.Solve(method=solvers.Tsit5()),
        )
        result = fit.train(spiral, optax.adam(0.05), steps=2000)
        mean_square = float(np.mean((fit.predict(result, ts).mean - ys) ** 2))
        assert mean_square < 0.15, seed

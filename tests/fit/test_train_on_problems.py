"""What `fit.train` does with problems beyond plain steps: phases, held-out data, batches, checkpoints."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sciml import fit, nets, solvers


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
    result = fit.train(PROBLEM, ADAM, steps=500, steer=0.5, key=jax.random.key(2))
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

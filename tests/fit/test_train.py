import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sciml import fit, nets


class Growth(eqx.Module):
    rate: jax.Array | float
    net: nets.MLP

    def __call__(self, t, y, args):
        return self.rate * y + self.net(y)


# Logistic growth with rate 2: the net should learn -2 y^2.
TS = np.linspace(0, 3, 16)
YS = 1 / (1 + 9 * np.exp(-2 * TS))
FREE = {"net": fit.Free()}
ADAM = optax.adam(1e-2)  # one object: another is another function to compile


def problem(ys=YS, free=FREE, **kwargs):
    net = nets.MLP(1, 1, width=4, depth=1, scale=0.1, key=jax.random.key(0))
    kwargs = {"solve": fit.Solve(steps=1)} | kwargs
    return fit.Problem(Growth(2.0, net), fit.Data(TS, ys), y0=jnp.array([0.1]), free=free, **kwargs)


@pytest.fixture(scope="module")
def short():
    return fit.train(problem(), ADAM, steps=40)


def weights(result):
    return np.concatenate([np.ravel(v) for v in result.values.values()])


def test_it_learns():
    result = fit.train(problem(), optax.adam(2e-2), steps=1000, key=jax.random.key(1))
    assert result.ok and result.verb == "train"
    curve = fit.predict(result, TS)
    assert np.sqrt(np.mean((curve.mean[:, 0] - YS) ** 2)) < 0.02
    assert np.all(np.isnan(curve.low)) and np.all(np.isnan(curve.high))  # no bands
    assert result.history.shape == (1000,)
    assert float(result.model.rate) == 2.0  # exactly: not named, not trained


def test_the_result(short):
    assert isinstance(short.model, Growth)
    assert short.names == tuple(f"net.layers[{i}].{w}" for i in (0, 1) for w in ("weight", "bias"))
    assert short.values["net.layers[0].weight"].shape == (4, 1)
    assert all(np.all(np.isnan(v)) for v in short.standard_errors.values())
    assert np.all(np.isnan(short.covariance))
    assert short.message == "best of 40 steps" and short.statistics["rejected steps"] == 0
    # `loss` is that of the whole problem, `history` the mean by value.
    x = short.problem.initial()
    assert short.loss == pytest.approx(float(fit.loss(short.problem)(x)), rel=1e-10)
    text = str(short)
    assert text.startswith("Training of Growth   40 steps, best loss")
    assert "fixed: rate = 2" in text and "not identifiable" not in text


def test_frozen_fields_stay_under_weight_decay():
    # Case 43: decay acts on what is trained, and on nothing else.
    optimiser = optax.adamw(1e-3, weight_decay=0.5)
    result = fit.train(problem(), optimiser, steps=30)
    assert float(result.model.rate) == 2.0
    assert np.any(weights(result) != np.asarray(problem().initial()))
    assert result.problem.y0.tolist() == [0.1]


def test_the_best_is_kept_not_the_last():
    # A rate that explodes halfway: what is returned is the best of the whole span before.
    schedule = optax.piecewise_constant_schedule(1e-2, {30: 1e3})
    result = fit.train(problem(), optax.sgd(schedule), steps=60, horizon=None)
    finite = result.history[np.isfinite(result.history)]
    assert result.loss / len(TS) == pytest.approx(finite.min(), rel=1e-9)
    start = float(fit.loss(problem())(problem().initial()))
    assert result.loss <= start * (1 + 1e-12)  # up to rounding, which differs between programs


def test_the_last_update_counts():
    # One step: the history holds the loss before it, the result is what it led to.
    result = fit.train(problem(), ADAM, steps=1, horizon=None)
    start = float(fit.loss(problem())(problem().initial()))
    assert result.history[0] * len(TS) == pytest.approx(start, rel=1e-10)
    assert result.loss < start
    assert np.any(weights(result) != np.asarray(problem().initial()))


def test_shares_of_the_horizon():
    shares = [float(fit.Grow(0.2, 1.0).share(jnp.array(p))) for p in (0, 0.25, 0.5, 0.75, 1)]
    np.testing.assert_allclose(shares, [0.2, 0.6, 1.0, 1.0, 1.0], rtol=1e-12)
    assert float(fit.Grow(0.5, 0.8).share(jnp.array(1.0))) == pytest.approx(0.8)


@pytest.mark.parametrize(("start", "stop"), [(0, 1), (0.5, 0.2), (0.2, 1.1), (-0.1, 1)])
def test_bad_horizons(start, stop):
    with pytest.raises(ValueError, match="needs 0 < start <= stop <= 1"):
        fit.Grow(start, stop)


def test_the_horizon_grows_to_the_whole_by_half_of_the_steps(short):
    # Data that come after the horizon have no influence on the loss; a change of the last value is
    # felt from the first step on whose horizon holds it.
    late = YS.copy()
    late[-1] += 1.0
    other = fit.train(problem(late), ADAM, steps=40)
    same = short.history == other.history
    first = int(np.argmin(same))
    assert same[:first].all() and first == 20  # of 0 .. 39
    early = YS.copy()
    early[int(0.2 * 15)] += 1.0  # at t = 0.6: the last within the first fifth
    assert fit.train(problem(early), ADAM, steps=40).history[0] != short.history[0]
    after = YS.copy()
    after[int(0.2 * 15) + 1] += 1.0
    assert fit.train(problem(after), ADAM, steps=40).history[0] == short.history[0]


def test_without_a_horizon_all_data_count_at_once():
    whole = fit.train(problem(), ADAM, steps=40, horizon=None).history[0]
    start = problem().initial()
    assert whole * len(TS) == pytest.approx(float(fit.loss(problem())(start)), rel=1e-10)


def test_the_history_is_the_mean_over_the_values_in_sight(short):
    x = problem().initial()
    r = np.asarray(fit.residuals(problem())(x))[TS <= 0.6 + 1e-12, 0]
    assert short.history[0] == pytest.approx(np.mean(r**2) / 2, rel=1e-8)


def test_training_is_reproducible(short):
    again = fit.train(problem(), ADAM, steps=40)
    np.testing.assert_array_equal(again.history, short.history)
    np.testing.assert_array_equal(weights(again), weights(short))


def test_batches_are_drawn_by_the_key():
    run = lambda key: fit.train(problem(), ADAM, steps=20, key=jax.random.key(key), batch=5)
    a, b, c = run(0), run(0), run(1)
    np.testing.assert_array_equal(a.history, b.history)
    np.testing.assert_array_equal(weights(a), weights(b))
    assert np.any(a.history != c.history)
    assert a.loss == pytest.approx(float(fit.loss(a.problem)(a.problem.initial())), rel=1e-10)
    with pytest.raises(ValueError, match=r"`batch` draws at random: pass `key=jax.random.key\(0\)"):
        fit.train(problem(), ADAM, steps=20, batch=5)


def test_each_parameter_is_trained_under_its_own_name():
    # JAX sorts the keys of dicts: the order of `free` must survive it.
    p = problem(
        free={
            "rate": fit.Free(1.5, 1.9, init=1.7),
            "net.layers[1].bias": fit.Free(0.5, 0.7, init=0.6),
        }
    )
    result = fit.train(p, optax.sgd(0.0), steps=3, horizon=None)
    assert result.values["rate"] == 1.7 and result.values["net.layers[1].bias"].tolist() == [0.6]
    assert result.history[0] * len(TS) == pytest.approx(float(fit.loss(p)(p.initial())), rel=1e-10)


def test_steps_are_cut_into_chunks():
    # 101 steps are two programs of 51, the last step of which is empty.
    result = fit.train(problem(), ADAM, steps=101)
    assert result.history.shape == (101,) and np.all(np.isfinite(result.history))


class Explosive(eqx.Module):
    k: jax.Array | float

    def __call__(self, t, y, args):
        return self.k * y**2


def explosive(bounds=(), k=0.5):
    ys = 1 / (1 - 0.3 * TS)
    return fit.Problem(
        Explosive(k), fit.Data(TS, np.where(TS < 3, ys, np.nan)), y0=jnp.array([1.0]),
        free={"k": fit.Free(*bounds)}, solve=fit.Solve(steps=2),
    )  # fmt: skip


def test_steps_into_failing_solves_are_rejected_and_counted():
    result = fit.train(explosive(k=0.25), optax.sgd(-1e3), steps=10, horizon=None)
    rejected = result.statistics["rejected steps"]
    assert 0 < rejected < 10
    assert f"{rejected} of 10 steps were rejected" in result.message
    assert np.isfinite(result.loss) and np.isfinite(result.values["k"])


def test_no_step_at_all():
    with pytest.raises(RuntimeError, match=r"Training failed: .*Lower the learning rate"):
        fit.train(explosive(k=5.0), optax.sgd(1e-3), steps=3, horizon=None)


def test_bounds_are_respected():
    result = fit.train(explosive((0.1, 0.2), k=0.15), optax.adam(0.05), steps=30)
    assert result.values["k"] == 0.2
    low = fit.train(explosive((0.31, 0.32), k=0.315), optax.adam(0.05), steps=30)
    assert low.values["k"] == 0.31


def test_chains_and_schedules():
    optimiser = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.scale_by_adam(),
        optax.scale_by_schedule(optax.cosine_decay_schedule(-1e-2, 60)),
    )
    result = fit.train(problem(), optimiser, steps=60)
    assert result.history[-1] < result.history[30]  # both on the whole span


def test_parameters_on_their_scales_with_priors():
    free = {"rate": fit.Free(0.1, 10, scale="log", prior=fit.priors.LogNormal(0.7, 0.1))}
    p = problem(free=free, noise=fit.noise.Normal(0.05))
    result = fit.train(p, optax.adam(0.01), steps=40)
    assert result.names == ("rate",) and 0.1 < result.values["rate"] < 10
    assert result.values["rate"] != 2.0
    assert result.loss == pytest.approx(float(fit.loss(p)(result.problem.initial())), rel=1e-10)


def test_a_fit_polishes_what_training_found(short):
    more = short.problem.fix("net").free({"rate": fit.Free(0, 10), "y0": fit.Free(0, 1)})
    result = fit.estimate(more)
    assert result.names == ("rate", "y0") and result.loss < short.loss
    assert np.isfinite(result.standard_errors["rate"])
    np.testing.assert_array_equal(
        result.model.net.layers[0].weight, short.model.net.layers[0].weight
    )
    # And the other way round: values of a fit, trained on.
    again = fit.train(result.problem.free(FREE), ADAM, steps=5, horizon=None)
    assert again.loss <= result.loss * (1 + 1e-9)


def test_results_of_training_are_saved(short, tmp_path):
    fit.save(tmp_path / "net.sciml", short)
    again = fit.load(tmp_path / "net.sciml", like=problem())
    np.testing.assert_array_equal(weights(again), weights(short))
    assert str(again) == str(short) and again.uncertainty is None
    assert all(np.all(np.isnan(v)) for pair in fit.intervals(again).values() for v in pair)


def test_adaptive_steps():
    result = fit.train(problem(solve=None), ADAM, steps=3)
    assert result.history.shape == (3,) and result.statistics["rtol"] == pytest.approx(1e-6)


misuse = [
    ({"steps": 0}, ValueError, "`steps` must be a positive integer, but got 0"),
    ({"steps": 2.5}, ValueError, "`steps` must be a positive integer, but got 2.5"),
    ({"steps": True}, ValueError, "`steps` must be a positive integer"),
    ({"batch": 0, "key": 1}, ValueError, "`batch` must be a positive integer, but got 0"),
    ({"optimiser": 1e-3}, TypeError, "`optimiser` must be an Optax optimiser, .* but got 0.001"),
    ({"problem": problem(free={})}, ValueError, "Nothing is free in this problem"),
]


@pytest.mark.parametrize(("kwargs", "error", "message"), misuse, ids=lambda x: str(x)[:20])
@pytest.mark.usefixtures("unchecked")
def test_misuse(kwargs, error, message):
    kwargs = {"problem": problem(), "optimiser": ADAM, "steps": 5} | kwargs
    with pytest.raises(error, match=message):
        fit.train(kwargs.pop("problem"), **kwargs)

import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sciml import fit, nets, solvers


KEY = jax.random.key(1)
X = np.linspace(-1, 1, 40)[:, None]
DATA = (X, X**2)
ADAM = optax.adam(1e-2)


def net(dtype=None):
    return nets.MLP(1, 1, width=6, depth=1, dtype=dtype, key=jax.random.key(0))


def loss(model, batch):
    x, y = batch
    return jnp.mean((jax.vmap(model)(x) - y) ** 2)


def noisy(model, batch, key):
    x, y = batch
    return jnp.mean((jax.vmap(model)(x) + 0.01 * jax.random.normal(key, y.shape) - y) ** 2)


def train(fn=loss, optimiser=ADAM, **kwargs):
    defaults = {"steps": 30, "model": net(), "data": DATA, "every": 10}
    return fit.train(fn, optimiser, **defaults | kwargs)


def same(a, b):
    assert bool(eqx.tree_equal(a, b))


def by_hand(steps, optimiser=ADAM, fn=loss):
    """The same by a plain loop."""
    params, static = eqx.partition(net(), eqx.is_inexact_array)
    state = optimiser.init(params)
    losses = []
    value = jax.jit(jax.value_and_grad(lambda p: fn(eqx.combine(p, static), DATA)))
    for _ in range(steps):
        v, g = value(params)
        with jax.numpy_dtype_promotion("standard"):
            updates, state = optimiser.update(g, state, params)
        losses.append(float(v))
        params = optax.apply_updates(params, updates)
    return eqx.combine(params, static), np.array(losses)


def test_it_does_what_a_plain_loop_does():
    result = train()
    model, losses = by_hand(30)
    np.testing.assert_allclose(result.history["loss"], losses, rtol=1e-10)
    for a, b in zip(jax.tree.leaves(result.last), jax.tree.leaves(model), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-8)
    assert result.steps == 30 and result.rejected == 0 and result.message == "30 steps"
    assert result.loss == pytest.approx(losses.min(), rel=1e-10)
    assert "first" in repr(result)


def test_a_tiny_fit():
    result = train(optimiser=optax.adam(3e-2), steps=600, every=100)
    assert result.loss < 1e-3
    assert float(loss(result.model, DATA)) == pytest.approx(result.loss, rel=1e-9)


@pytest.mark.parametrize(
    "options", [{}, {"batch": 8}, {"batch": 8, "ema": 0.9}, {"fn": noisy}], ids=",".join
)
def test_ten_and_ten_steps_are_twenty(options, tmp_path):
    kwargs = {"key": KEY, "validation": DATA} | options
    straight = train(steps=20, **kwargs)
    file = tmp_path / "run.ckpt"
    first = train(steps=10, checkpoint=file, **kwargs)
    assert first.steps == 10
    both = train(steps=20, checkpoint=file, **kwargs)
    same(both.model, straight.model)
    same(both.last, straight.last)
    for name in straight.history:
        np.testing.assert_array_equal(both.history[name], straight.history[name])
    np.testing.assert_array_equal(both.validation, straight.validation)


def test_an_interrupted_training_goes_on(tmp_path):
    def interrupt(progress):
        if progress.step == 20:
            raise KeyboardInterrupt

    file = tmp_path / "run.ckpt"
    with pytest.raises(KeyboardInterrupt):
        train(steps=40, batch=8, key=KEY, checkpoint=file, callbacks=interrupt)
    seen = []
    result = train(
        steps=40, batch=8, key=KEY, checkpoint=file, callbacks=lambda p: seen.append(p.step)
    )
    assert seen == [30, 40]
    same(result.last, train(steps=40, batch=8, key=KEY).last)


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"data": (X, X**3)}, "`data`"),
        ({"batch": 8, "key": KEY}, "`key`, `batch`"),
        ({"optimiser": optax.adam(1.0)}, "`optimiser`"),
        ({"optimiser": optax.sgd(1e-2)}, "`optimiser`"),
        ({"fn": lambda model, batch: 2 * loss(model, batch)}, "`loss`"),
        ({"validation": (X, X)}, "`validation`"),
        ({"weights": {"loss": 2.0}}, "`weights`"),
        ({"compute": "float32"}, "`compute`"),
        ({"ema": 0.9}, "`ema`"),
    ],
    ids=["data", "batch", "rate", "rule", "loss", "validation", "weights", "compute", "ema"],
)
def test_another_training_in_the_file_is_refused(change, names, tmp_path):
    file = tmp_path / "run.ckpt"
    train(checkpoint=file, steps=10, optimiser=optax.adam(1e-2))
    train(checkpoint=file, steps=10, optimiser=optax.adam(1e-2))  # made anew, but the same
    with pytest.raises(ValueError, match=f"holds another training: it differs in {names}[.]"):
        train(checkpoint=file, **{"steps": 10, "optimiser": optax.adam(1e-2)} | change)


def test_what_can_not_be_resumed(tmp_path):
    file = tmp_path / "run.ckpt"
    train(checkpoint=file)
    with pytest.raises(
        ValueError, match="has done 30 steps of phase 1 already, more than are asked"
    ):
        train(checkpoint=file, steps=20)
    with pytest.raises(ValueError, match="must name a file in a folder that exists"):
        train(checkpoint=tmp_path / "no" / "run.ckpt")
    file.write_text("hello\n")
    with pytest.raises(ValueError, match=r"is no checkpoint of this version of `fit.train`"):
        train(checkpoint=file)


SCRIPT = """
import sys
import equinox as eqx, jax, jax.numpy as jnp, optax
from sciml import fit, nets

def loss(model, batch):
    return jnp.mean((jax.vmap(model)(batch) - batch) ** 2)

x = jnp.linspace(-1, 1, 8)[:, None]
phases = [fit.Phase(optax.adam(optax.cosine_decay_schedule(1e-2, 9)), int(n)) for n in sys.argv[2:]]
trained = fit.train(
    loss, phases, model=nets.MLP(1, 1, width=4, depth=1, key=jax.random.key(0)), data=x, batch=3,
    key=jax.random.key(1, impl="rbg"), checkpoint=sys.argv[1],
)
print(repr([w.tolist() for w in jax.tree.leaves(trained.last)]))
"""


def test_another_process_goes_on(tmp_path):
    def run(file, *steps):
        command = [sys.executable, "-c", SCRIPT, tmp_path / file, *map(str, steps)]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    run("two", 5)
    assert run("two", 8) == run("one", 8)


def test_checkpoints_of_several_phases(tmp_path):
    phases = [fit.Phase(ADAM, 20), fit.Phase(solvers.BFGS(), 5), fit.Phase(optax.sgd(1e-2), 20)]
    options = {"steps": None, "every": 10}
    whole = train(optimiser=phases, **options)
    stops = [(0, 10), (0, 20), (1, 5), (2, 10)]
    for stop in stops:
        file = tmp_path / "run.ckpt"

        def interrupt(progress, stop=stop):
            if (progress.phase, progress.step) == stop:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            train(optimiser=phases, checkpoint=file, callbacks=interrupt, **options)
        resumed = train(optimiser=phases, checkpoint=file, **options)
        same(resumed.model, whole.model)
        same(resumed.last, whole.last)
        np.testing.assert_array_equal(resumed.history["loss"], whole.history["loss"])
        file.unlink()


def test_what_was_stopped_early_stays_stopped(tmp_path):
    options = {"validation": lambda model: jnp.sum((model - 0.5) ** 2), "every": 5, "steps": 1000}
    options |= {"model": jnp.zeros(2), "data": None, "checkpoint": tmp_path / "run.ckpt"}
    fn = lambda model: jnp.sum((model - 1) ** 2)
    sgd = optax.sgd(0.01)
    stopped = train(fn, sgd, patience=3, **options)
    again = train(fn, sgd, patience=3, **options)
    assert again.steps == stopped.steps < 200 and "stopped early" in again.message
    same(again.model, stopped.model)
    assert train(fn, sgd, **options | {"steps": 300}).steps == 300  # without patience it goes on


@pytest.mark.parametrize("items", [12, 10])
def test_each_epoch_takes_every_item_once(items):
    items = np.arange(float(items))
    seen = []

    def watching(model, batch):
        jax.debug.callback(lambda b: seen.append(np.asarray(b)), batch, ordered=True)
        return jnp.mean(model**2) + 0 * jnp.sum(batch)

    # What is left over goes into a batch with the first of the next epoch.
    kwargs = {"model": jnp.ones(2), "data": items, "batch": 4, "steps": 15, "key": KEY}
    fit.train(watching, optax.sgd(0.1), every=7, **kwargs)
    jax.effects_barrier()
    epochs = np.reshape(seen, (-1, len(items)))
    for epoch in epochs:
        np.testing.assert_array_equal(np.sort(epoch), items)
    assert np.any(epochs[0] != epochs[1])


def test_early_stopping_gives_back_the_best():
    # The validation wants something else than the training: it improves and then gets worse.
    target = lambda model: jnp.sum((model - 0.5) ** 2)
    result = fit.train(
        lambda model: jnp.sum((model - 1) ** 2), optax.sgd(0.01), model=jnp.zeros(2),
        steps=1000, every=5, patience=3, validation=target,
    )  # fmt: skip
    assert "stopped early" in result.message and result.steps < 200
    best = int(np.argmin(result.validation[:, 1]))
    assert best == len(result.validation) - 4
    assert result.loss == result.validation[best, 1] == pytest.approx(float(target(result.model)))
    assert float(target(result.last)) > result.loss


def test_without_patience_it_goes_on_and_still_gives_back_the_best():
    target = lambda model: jnp.sum((model - 0.5) ** 2)
    result = fit.train(
        lambda model: jnp.sum((model - 1) ** 2), optax.sgd(0.01), model=jnp.zeros(2),
        steps=200, every=5, validation=target,
    )  # fmt: skip
    assert result.steps == 200 and result.loss < 1e-2 < float(target(result.last))


def test_a_step_into_nothing_is_taken_back_and_cut():
    # The logarithm ends at 0; the first step leads beyond.
    fn = lambda model: jnp.sum(model - jnp.log(model))
    result = fit.train(fn, optax.sgd(5.0), model=jnp.array([3.0]), steps=60)
    assert 0 < result.rejected < 60
    assert np.isnan(result.history["loss"][1]) and np.isfinite(result.history["loss"][-1])
    assert abs(float(result.model[0]) - 1) < 0.5
    assert f"{result.rejected} of 60 steps were rejected" in repr(result)


def test_where_nothing_helps_it_stops_and_keeps_what_it_has():
    # Finite at the start alone.
    fn = lambda model: jnp.where(model[0] == 1, jnp.sum(model**2), jnp.nan)
    result = fit.train(fn, optax.sgd(0.1), model=jnp.array([1.0]), steps=500, every=20)
    assert "30 steps in a row were rejected" in result.message and result.steps < 60
    assert float(result.model[0]) == 1.0
    with pytest.raises(RuntimeError, match="in none of 30 steps were the loss and its gradient"):
        fit.train(fn, optax.sgd(0.1), model=jnp.array([2.0]), steps=500)


def test_weight_decay_leaves_frozen_leaves_alone():
    # Case 43.
    optimiser = optax.adamw(1e-2, weight_decay=0.5)
    whole = train(optimiser=optimiser, model=net())
    assert not np.array_equal(whole.last.layers[0].weight, net().layers[0].weight)
    for trainable in (
        lambda m: m.layers[1],
        _only_the_last(),
    ):
        result = train(optimiser=optimiser, trainable=trainable)
        np.testing.assert_array_equal(result.last.layers[0].weight, net().layers[0].weight)
        np.testing.assert_array_equal(result.last.layers[0].bias, net().layers[0].bias)
        assert not np.array_equal(result.last.layers[1].weight, net().layers[1].weight)
    matrices = train(optimiser=optimiser, trainable=lambda x: eqx.is_array(x) and x.ndim == 2)
    np.testing.assert_array_equal(matrices.last.layers[0].bias, net().layers[0].bias)


def _only_the_last():
    none = jax.tree.map(lambda _: False, net())
    return eqx.tree_at(lambda m: m.layers[1], none, jax.tree.map(lambda _: True, net().layers[1]))


def test_named_terms_and_weights():
    def fn(model, batch):
        return {"data": loss(model, batch), "size": jnp.mean(model.layers[0].weight ** 2)}

    result = train(fn, weights={"size": 0.1})
    assert set(result.history) == {"loss", "data", "size"}
    np.testing.assert_allclose(
        result.history["loss"], result.history["data"] + 0.1 * result.history["size"], rtol=1e-12
    )
    # Such losses can't be compared, nor decide which is the best: that is the last one.
    rising = {"size": lambda step: step / 10}
    ramp = train(fn, weights=rising)
    same(ramp.model, ramp.last)
    assert np.isnan(ramp.loss)
    held = train(fn, weights=rising, validation=DATA)
    final = fn(held.model, DATA)
    assert held.loss == pytest.approx(float(final["data"] + 2.9 * final["size"]), rel=1e-9)
    parts = [fit.Phase(ADAM, 10), fit.Phase(ADAM, 20)]
    whole = train(fn, parts, steps=None, weights=rising).history
    np.testing.assert_allclose(
        whole["loss"], whole["data"] + np.arange(30) / 10 * whole["size"], rtol=1e-12
    )
    np.testing.assert_allclose(
        ramp.history["loss"], ramp.history["data"] + np.arange(30) / 10 * ramp.history["size"]
    )
    with pytest.raises(
        ValueError, match=r"`weights` names 'sise', but the loss has the terms 'data', 'size'"
    ):
        train(fn, weights={"sise": 1.0})


def test_the_average_follows_the_parameters():
    result = train(ema=0.9, optimiser=optax.sgd(0.1))
    average, params = jax.tree.leaves(net()), jax.tree.leaves(net())
    # Not debiased: young averages forget faster.
    for i, model in enumerate(_path(30)):
        decay = min(0.9, (1 + i) / (10 + i))
        params = jax.tree.leaves(model)
        average = [a + (1 - decay) * (p - a) for a, p in zip(average, params, strict=True)]
    for a, b in zip(jax.tree.leaves(result.last), average, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9)
    same(result.model, result.last)  # not the best single step
    held = train(ema=0.9, optimiser=optax.sgd(0.1), validation=DATA)
    assert held.loss == pytest.approx(float(loss(held.model, DATA)), rel=1e-9)
    np.testing.assert_allclose(held.validation[-1, 1], float(loss(result.last, DATA)), rtol=1e-9)


def _path(steps):
    model = net()
    for _ in range(steps):
        yield model
        grads = eqx.filter_grad(loss)(model, DATA)
        model = jax.tree.map(lambda p, g: p - 0.1 * g, model, grads)


def test_phases():
    phases = [fit.Phase(optax.adam(3e-2), 100), fit.Phase(solvers.BFGS(), 300)]
    result = train(optimiser=phases, steps=None)
    first = train(optimiser=optax.adam(3e-2), steps=100)
    assert result.loss < 0.01 * first.loss
    np.testing.assert_array_equal(result.history["loss"][:100], first.history["loss"])
    alone = train(optimiser=solvers.LBFGS(), steps=200)
    assert alone.loss < 1e-3
    with pytest.raises(TypeError, match="needs residuals, which a loss does not show"):
        train(optimiser=solvers.LevenbergMarquardt(), steps=20)
    with pytest.raises(ValueError, match="Leave out `steps`"):
        train(optimiser=phases, steps=10)


@pytest.mark.parametrize(
    "optimiser",
    [
        optax.lbfgs(),
        optax.MultiSteps(optax.adam(1e-2), every_k_schedule=2),
        optax.chain(optax.clip_by_global_norm(1.0), optax.adam(optax.cosine_decay_schedule(1e-2, 30))),
        optax.chain(optax.adam(1e-2), optax.contrib.reduce_on_plateau(patience=5)),
        optax.apply_if_finite(optax.adam(1e-2), 3),
    ],
    ids=["lbfgs", "accumulation", "chain", "plateau", "apply_if_finite"],
)  # fmt: skip
def test_what_optax_has(optimiser):
    result = train(optimiser=optimiser)
    losses = result.history["loss"]
    assert result.rejected == 0 and losses[-1] < losses[0]


def test_lower_precision_of_the_computation_alone():
    seen = []

    def fn(model, batch):
        seen.append((model.layers[0].weight.dtype, batch[0].dtype))
        return loss(model, batch)

    result = train(
        fn, compute="bfloat16", model=net("float32"), steps=50, optimiser=optax.adam(3e-2)
    )
    assert seen[0] == (jnp.bfloat16, jnp.bfloat16)
    assert {x.dtype for x in jax.tree.leaves(result.model)} == {jnp.dtype("float32")}
    assert result.history["loss"][-1] < 0.5 * result.history["loss"][0]


def test_single_precision_stays():
    data = jax.tree.map(np.float32, DATA)
    result = train(model=net("float32"), data=data, batch=8, key=KEY, ema=0.9)
    assert {x.dtype for x in jax.tree.leaves(result.model)} == {jnp.dtype("float32")}


def test_iterators(tmp_path):
    def batches():
        lots = np.random.default_rng(0)
        while True:
            at = lots.integers(0, 40, 8)
            yield X[at], X[at] ** 2

    result = train(data=batches(), steps=30)
    file = tmp_path / "run.ckpt"
    train(data=batches(), steps=10, checkpoint=file)
    again = train(data=batches(), steps=30, checkpoint=file)
    same(again.last, result.last)
    few = train(data=iter([DATA] * 12))
    assert few.steps == 12 and few.message == "the data ended after 12 steps"
    np.testing.assert_allclose(few.history["loss"], by_hand(12)[1], rtol=1e-10)


def test_callbacks_are_told_and_may_stop():
    told = []

    def callback(progress):
        told.append(progress)
        return progress.step >= 20

    result = train(callbacks=[callback], validation=DATA)
    assert [p.step for p in told] == [
        10,
        20,
    ] and "stopped by a callback at step 20" in result.message
    stop = lambda answer: train(callbacks=lambda progress: answer).steps
    assert stop(np.bool_(True)) == stop(jnp.array(True)) == 10 and stop(np.bool_(False)) == 30
    with pytest.raises(TypeError, match=r"must return `True` to stop, .* returned 0.5"):
        stop(0.5)
    assert told[0].loss == result.history["loss"][9]
    assert told[0].validation == result.validation[0, 1]
    assert told[1].validation == pytest.approx(float(loss(told[1].model, DATA)), rel=1e-10)


def test_dropout_is_off_when_validating():
    model = eqx.nn.Sequential([net(), eqx.nn.Dropout(0.5)])

    def fn(model, batch, key):
        x, y = batch
        keys = jax.random.split(key, x.shape[0])
        return jnp.mean((jax.vmap(lambda x, k: model(x, key=k))(x, keys) - y) ** 2)

    result = train(fn, model=model, key=KEY, validation=DATA)
    quiet = eqx.nn.inference_mode(result.last)
    assert result.validation[-1, 1] == pytest.approx(float(fn(quiet, DATA, KEY)), rel=1e-10)


def test_the_users_arrays_survive():
    model = net()
    train(model=model)
    assert np.isfinite(np.asarray(model.layers[0].weight)).all()  # not donated


misuse = [
    ({"model": None}, ValueError, "Which model is trained"),
    ({"fn": noisy}, ValueError, r"The loss takes a key: pass `key=jax.random.key\(0\)`"),
    ({"key": 0}, TypeError, "`key` must be a random key of JAX, such as `jax.random.key"),
    ({"batch": 8}, ValueError, "`batch` draws at random"),
    ({"batch": 50, "key": KEY}, ValueError, "`batch=50` is more than the 40 items"),
    ({"data": (X, X[:3]), "batch": 2, "key": KEY}, ValueError, "leading axis of the same length"),
    ({"data": None}, ValueError, "The loss takes a batch"),
    ({"fn": lambda m: 0.0}, ValueError, "There are `data`, but the loss takes the model alone"),
    ({"fn": lambda m, b: m(b[0][0])}, ValueError, "must be a real number or a dict of them"),
    ({"optimiser": optax.adam}, TypeError, "`optimiser` must be an Optax optimiser"),
    ({"optimiser": solvers.BFGS}, TypeError, "`optimiser` must be an Optax optimiser"),
    ({"steps": None}, ValueError, "How many `steps`"),
    ({"ema": 1.5}, ValueError, "`ema` must lie between 0 and 1"),
    ({"patience": 0}, ValueError, "`patience` must be a positive integer"),
    ({"patience": 3, "batch": 8, "key": KEY}, ValueError, "`patience` compares losses, .* `validation=`"),
    ({"steer": 0.5, "key": KEY}, TypeError, "`steer` is for a `fit.Problem`"),
    ({"horizon": fit.Grow(0.1)}, TypeError, "`horizon` is for a `fit.Problem`"),
    ({"optimiser": solvers.LBFGS(), "ema": 0.9}, TypeError, "`ema` is for optimisers of Optax"),
    ({"fn": lambda m: m(X[0])[0], "data": None, "batch": 8, "key": KEY}, ValueError, "no `data` of which"),
    ({"fn": lambda m, key: m(X[0])[0], "key": KEY}, ValueError, "write it as `loss\\(model, batch, key\\)`"),
    ({"fn": lambda m, a, b, c: 0.0}, ValueError, "this one needs 4 arguments"),
    ({"fn": lambda m, b: (loss(m, b), 1)}, ValueError, "must be a real number or a dict of them, but got a tuple"),
    ({"trainable": "layers"}, TypeError, "`trainable` must be a filter"),
    ({"trainable": lambda m: m.layer}, ValueError, "`trainable` fails on the model: .*'layer'"),
    ({"data": [object()]}, TypeError, "`data` must be a pytree of arrays, or an iterator"),
    ({"optimiser": solvers.LBFGS(), "fn": lambda m, b: jnp.inf * loss(m, b)}, RuntimeError, "not finite where a phase"),
    ({"callbacks": [3]}, TypeError, "`callbacks` must be functions"),
    ({"checkpoint": 3}, TypeError, "`checkpoint` must be the name of a file"),
    ({"model": jnp.arange(3), "fn": lambda m, b: 0.0}, ValueError, "Nothing of the model is trained"),
    ({"fn": 3}, TypeError, r"takes a `fit.Problem` or a loss"),
    ({"data": iter([DATA]), "batch": 3, "key": KEY}, ValueError, "leave out `batch`"),
    ({"data": iter([DATA, (X[:3], X[:3])])}, ValueError, "All batches of an iterator must have the same structure"),
]  # fmt: skip


@pytest.mark.parametrize(("kwargs", "error", "message"), misuse, ids=range(len(misuse)))
@pytest.mark.usefixtures("unchecked")
def test_misuse(kwargs, error, message):
    with pytest.raises(error, match=message):
        train(**kwargs)


def test_orbax_keeps_the_last_ones_and_refuses_another_training(tmp_path):
    folder = tmp_path / "runs" / "one"
    straight = train(steps=30, batch=8, key=KEY)

    def interrupt(progress):
        if progress.step == 20:
            raise KeyboardInterrupt

    options = {"batch": 8, "key": KEY, "checkpoint": fit.Orbax(folder, keep=2)}
    with pytest.raises(KeyboardInterrupt):
        train(callbacks=interrupt, **options)
    assert sorted(p.name for p in folder.iterdir()) == ["10", "20"]
    resumed = train(**options)
    same((resumed.model, resumed.last, resumed.history), (straight.model, straight.last, straight.history))  # fmt: skip
    assert sorted(p.name for p in folder.iterdir()) == ["20", "30"]
    with pytest.raises(ValueError, match="holds another training: it differs in `batch`"):
        train(**options | {"batch": 4})
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"writes into a folder, but .* is a file"):
        train(checkpoint=fit.Orbax(tmp_path / "file"))
    with pytest.raises(ValueError, match="`keep` must be a positive integer"):
        fit.Orbax(folder, keep=0)


def test_without_orbax_the_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "orbax.checkpoint", None)
    with pytest.raises(ImportError, match=r"pip install 'sciml-jax\[orbax\]'"):
        train(checkpoint=fit.Orbax(tmp_path / "run"))

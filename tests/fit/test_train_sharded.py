"""Training on eight devices gives what one gives, and nothing is exchanged inside its loops."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import COLLECTIVES, loop_bodies
from jax.sharding import AxisType

from sciml import fit, nets, solvers
from sciml.fit._descending import begin, Options
from sciml.fit._layout import as_layout, value_and_grad
from sciml.fit._loss_goal import LossGoal
from sciml.fit._problem_goal import for_training, ProblemGoal, split


pytestmark = pytest.mark.skipif(
    jax.device_count() < 8, reason="needs 8 devices; see the root conftest.py"
)
KEY = jax.random.key(1)
X = np.linspace(-1, 1, 64)[:, None]
DATA = (X, X**2)
NET = nets.MLP(1, 1, width=64, depth=2, key=jax.random.key(0))  # wide enough to be spread
CHAIN = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(optax.linear_schedule(1e-2, 0, 20)))
EXPLICIT = jax.make_mesh((8,), ("a",), axis_types=(AxisType.Explicit,))
AUTO = jax.make_mesh((4, 2), ("a", "b"), axis_types=(AxisType.Auto, AxisType.Auto))


def loss(model, batch):
    x, y = batch
    return jnp.mean((jax.vmap(model)(x) - y) ** 2)


def train(**options):
    defaults = {"fn": loss, "optimiser": CHAIN, "steps": 20, "model": NET, "data": DATA}
    options = defaults | {"every": 10, "key": KEY} | options
    return fit.train(options.pop("fn"), options.pop("optimiser"), **options)


def close(a, b):
    a, b = (jax.tree.leaves(eqx.filter(x, eqx.is_array)) for x in (a, b))
    for u, v in zip(a, b, strict=True):
        np.testing.assert_allclose(np.asarray(u), np.asarray(v), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("fsdp", [False, True], ids=["replicated", "spread"])
@pytest.mark.parametrize(
    ("mesh", "batch"), [(4, None), ("all", 16), (EXPLICIT, 16), (AUTO, 16)], ids=["4", "all", "explicit", "auto"]
)  # fmt: skip
def test_losses(mesh, batch, fsdp):
    one = train(batch=batch, ema=0.9, validation=DATA)
    many = train(batch=batch, ema=0.9, validation=DATA, mesh=mesh, fsdp=fsdp)
    seen = lambda end: (end.model, end.last, end.history["loss"], end.validation)
    close(seen(one), seen(many))
    spread = many.model.layers[1].weight.sharding.is_fully_replicated
    assert spread is not fsdp


def test_inside_the_context_of_an_explicit_mesh():
    one = train(batch=16)
    with jax.set_mesh(EXPLICIT):
        many = train(batch=16, mesh=EXPLICIT)
    close(one.model, many.model)


def test_terms_streams_and_second_order():
    def terms(model, batch):
        return {"fit": loss(model, batch), "small": jnp.mean(model.layers[0].weight ** 2)}

    def batches():
        while True:
            for k in range(4):
                yield X[k::4], X[k::4] ** 2

    small = nets.MLP(1, 1, width=4, depth=1, key=jax.random.key(0))
    phases = [fit.Phase(CHAIN, 10), fit.Phase(solvers.BFGS(), 5)]
    for options in (
        {"fn": terms, "weights": {"small": 1e-2}},
        {"data": batches, "key": None},
        {"optimiser": phases, "steps": None, "model": small},
        {"optimiser": optax.lbfgs(), "steps": 5, "model": small},
    ):
        fresh = lambda o=options: o | ({"data": batches()} if callable(o.get("data")) else {})
        one, many = train(**fresh()), train(**fresh(), mesh=8)
        close((one.model, one.history), (many.model, many.history))


def test_draws_differ_between_devices():
    def noise(model, batch, key):
        return jnp.mean(model.layers[0].weight) * 0 + jax.random.normal(key, ())

    one, many = train(fn=noise, steps=1), train(fn=noise, steps=1, mesh=8)
    assert abs(float(many.history["loss"][0] - one.history["loss"][0])) > 1e-3


@pytest.mark.parametrize("orbax", [True, False], ids=["orbax", "file"])
def test_checkpoints_are_resumed_on_other_devices(orbax, tmp_path):
    place = tmp_path / "run"
    checkpoint = fit.Orbax(place) if orbax else place
    train(batch=16, steps=10, checkpoint=checkpoint, mesh=4, fsdp=True)
    resumed = train(batch=16, checkpoint=checkpoint, mesh=8, fsdp=True)
    close(train(batch=16).model, resumed.model)
    assert resumed.model.layers[1].weight.sharding.num_devices == 8
    alone = train(batch=16, steps=30, checkpoint=checkpoint)
    assert alone.steps == 30


class Growth(eqx.Module):
    rate: jax.Array
    net: nets.MLP

    def __call__(self, t, y, args):
        return self.rate * y + self.net(y)


def curves(count=5):
    """Logistic growth from several starts, of different lengths, which no eight devices divide."""
    out = []
    for k in range(count):
        ts, y0 = np.linspace(0, 3, 9 + k), 0.1 * (k + 1)
        ys = 1 / (1 + (1 / y0 - 1) * np.exp(-2 * ts))
        out.append(fit.Experiment(fit.Data(ts, ys), y0=jnp.array([y0])))
    net = nets.MLP(1, 1, width=4, depth=1, scale=0.1, key=jax.random.key(0))
    return fit.Problem(
        Growth(jnp.array(2.0), net),
        out,
        y0=jnp.array([0.1]),
        free={"net": fit.Free()},
        solve=fit.Solve(steps=1),
    )


@pytest.mark.parametrize(
    "options", [{}, {"batch": 3, "steer": 0.5, "horizon": None}], ids=["all", "some"]
)
def test_problems(options):
    options |= {"steps": 20, "key": KEY}
    one = fit.train(curves(), optax.adam(2e-2), **options)
    many = fit.train(curves(), optax.adam(2e-2), mesh=8, **options)
    np.testing.assert_allclose(many.history, one.history, rtol=1e-10)
    close(list(one.values.values()), list(many.values.values()))
    assert many.loss == pytest.approx(one.loss, rel=1e-10)


def hlo(goal, layout, params, batch):
    arrays, static = eqx.partition(goal, eqx.is_array)

    def gradient(arrays, params, batch, key, step):
        return value_and_grad(
            eqx.combine(arrays, static), layout, params, batch, key, step, step + 1
        )

    operands = layout.gather((arrays, layout.place(params), batch, KEY, jnp.asarray(0)))
    return jax.jit(gradient).lower(*operands).compile().as_text()


def test_nothing_is_exchanged_in_the_loops_of_adaptive_solves():
    layout = as_layout("all", False)
    problem = curves()
    working = for_training(problem, True)
    working = eqx.tree_at(lambda p: p.solve, working, fit.Solve())
    goal = ProblemGoal(working, None, fit.Grow(1.0, 1.0), None, 0.0)
    text = hlo(goal, layout, split(problem, problem.initial()), None)
    inside = [name for name, body in loop_bodies(text).items() if COLLECTIVES.search(body)]
    assert not inside
    # The count of what is in sight, and loss and gradient together.
    found = [line for line in text.splitlines() if COLLECTIVES.search(line.partition("=")[2])]
    assert 1 <= len(found) <= 2


def test_parameters_are_gathered_and_gradients_scattered_once():
    layout = as_layout("all", True)
    params, rest = eqx.partition(NET, eqx.is_inexact_array)
    goal = LossGoal(loss, rest, {}, None, 2, True, None, jnp.asarray(0))
    text = hlo(goal, layout, params, DATA)
    assert len(jax.tree.leaves([layout.cut(x) for x in jax.tree.leaves(params)])) == 1
    count = lambda name: sum(f" {name}(" in line for line in text.splitlines())
    assert count("all-gather") == 1 and count("reduce-scatter") == 1 and count("all-reduce") == 1


def test_the_state_of_the_optimiser_is_spread_as_the_parameters():
    layout = as_layout("all", True)
    params = eqx.filter(NET, eqx.is_inexact_array)
    state = layout.place(begin(optax.adam(1e-2), params, Options(None, None, None, layout), KEY))
    large = [x for x in jax.tree.leaves(state.opt) if x.size >= 1024]
    assert len(large) == 2 and all(not x.sharding.is_fully_replicated for x in large)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"mesh": 9}, ValueError, "more devices than the 8 there are"),
        ({"mesh": "some"}, TypeError, "a number of devices or"),
        ({"fsdp": True}, ValueError, "spreads parameters over a mesh"),
        ({"mesh": 8, "batch": 12}, ValueError, "12 items can't be shared out evenly among 8"),
        ({"mesh": 8, "data": (X[:9], X[:9])}, ValueError, "9 items can't be shared out"),
        ({"mesh": 8, "fn": lambda m: jnp.sum(m.layers[0].weight), "data": None}, ValueError, "but there are none"),
    ],
    ids=["too many", "name", "no mesh", "batch", "data", "no data"],
)  # fmt: skip
def test_bad_input(options, error, message):
    with pytest.raises(error, match=message):
        train(**options)


def test_one_experiment_can_not_be_shared_out():
    with pytest.raises(ValueError, match="this problem has one"):
        fit.train(curves(1), optax.adam(1e-2), steps=2, mesh=8)

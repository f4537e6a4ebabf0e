import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sciml import nets, solvers


TS = jnp.linspace(0.5, 1.5, 5)
Y0 = jnp.array([1.0, -0.5])
NET = nets.MLP(2, 2, width=4, depth=1, key=jax.random.key(0))
TIMED = nets.MLP(3, 2, width=4, depth=1, key=jax.random.key(1))


def fixed(net=NET, **kwargs):
    return nets.NeuralODE(net, **{"method": solvers.RK4(), "steps": 10} | kwargs)


def test_it_is_the_solution_of_its_field():
    model = nets.NeuralODE(NET, rtol=1e-8, atol=1e-10)
    ys = model(Y0, TS)
    want = solvers.solve(lambda t, y, args: NET(y), Y0, TS, rtol=1e-8, atol=1e-10)
    assert ys.shape == (5, 2)
    np.testing.assert_allclose(ys, want.ys, rtol=1e-12)
    np.testing.assert_array_equal(ys[0], Y0)
    np.testing.assert_allclose(model.field(0.3, Y0), NET(Y0), rtol=1e-14)
    np.testing.assert_allclose(fixed()(Y0, TS), ys, rtol=1e-6)  # RK4 on 40 steps


def test_time_may_be_an_input():
    model = fixed(TIMED, time=True)
    want = solvers.solve(
        lambda t, y, args: TIMED(jnp.append(y, t)), Y0, TS, method=solvers.RK4(), steps=10
    )
    np.testing.assert_allclose(model(Y0, TS), want.ys, rtol=1e-12)
    assert np.any(model(Y0, TS) != model(Y0, TS + 1.0))
    np.testing.assert_allclose(fixed()(Y0, TS), fixed()(Y0, TS + 1.0), rtol=1e-12)


def test_inputs_and_constants_are_told_to_the_net():
    u = solvers.Input(jnp.array([0.5, 0.9]), jnp.array([[1.0], [-1.0]]), kind="zoh")
    net = nets.MLP(5, 2, width=4, depth=1, key=jax.random.key(1))
    model = fixed(net, time=True)
    got = model(Y0, TS, {"u": u, "x": 0.3})
    told = lambda t, y, u: net(jnp.concatenate([y, t[None], u(t), jnp.array([0.3])]))
    want = solvers.solve(told, Y0, TS, u, method=solvers.RK4(), steps=10).ys
    np.testing.assert_allclose(got, want, rtol=1e-12)

    # Each trajectory with an input of its own.
    values = jnp.array([[[1.0], [-1.0]], [[0.0], [2.0]]])
    many = lambda v: model(Y0, TS, (solvers.Input(u.times, v, kind="zoh"), 0.3))
    batch = eqx.filter_jit(jax.vmap(many))(values)
    np.testing.assert_allclose(batch[0], got, rtol=1e-12)
    assert np.any(batch[1, 1:] != batch[0, 1:])


@pytest.mark.parametrize("method", [diffrax.Tsit5(), diffrax.Kvaerno5()], ids=str)
def test_diffraxs_methods(method):
    model = nets.NeuralODE(NET, method=method, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(model(Y0, TS), fixed()(Y0, TS), rtol=1e-6)


def test_each_trajectory_may_have_times_of_its_own():
    y0s = jnp.stack([Y0, -Y0])
    tss = jnp.stack([TS, 2 * TS])
    batch = eqx.filter_jit(eqx.filter_vmap(fixed()))(y0s, tss)
    for y0, ts, ys in zip(y0s, tss, batch, strict=True):
        np.testing.assert_allclose(ys, fixed()(y0, ts), rtol=1e-12)


def test_gradients_and_batches():
    model = fixed()
    y0s = jax.random.normal(jax.random.key(2), (3, 2))

    @eqx.filter_jit
    def loss(model):
        return jnp.mean(jax.vmap(model, in_axes=(0, None))(y0s, TS) ** 2)

    gradient = eqx.filter_jit(eqx.filter_grad(loss))(model)
    assert jax.tree.structure(gradient) == jax.tree.structure(eqx.filter(model, eqx.is_array))
    where = lambda m: m.net.layers[0].weight
    step = lambda h: eqx.tree_at(where, model, where(model) + h)
    slope = (loss(step(1e-6)) - loss(step(-1e-6))) / 2e-6
    np.testing.assert_allclose(jnp.sum(where(gradient)), slope, rtol=1e-6)
    singles = jnp.stack([model(y0, TS) for y0 in y0s])
    np.testing.assert_allclose(loss(model), jnp.mean(singles**2), rtol=1e-12)


def test_adaptive_gradients_agree_with_fixed_ones():
    def gradient(model):
        loss = lambda m: jnp.sum(m(Y0, TS) ** 2)
        return eqx.filter_jit(eqx.filter_grad(loss))(model).net.layers[0].weight

    adaptive = nets.NeuralODE(NET, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(gradient(adaptive), gradient(fixed()), rtol=1e-6)


def test_only_weights_are_leaves():
    leaves = jax.tree_util.tree_leaves_with_path(nets.NeuralODE(NET, rtol=1e-5, steps=None))
    assert len(leaves) == 4
    assert all(jax.tree_util.keystr(path).startswith(".net.layers") for path, _ in leaves)


def test_serialisation(tmp_path):
    eqx.tree_serialise_leaves(tmp_path / "model.eqx", fixed())
    like = fixed(nets.MLP(2, 2, width=4, depth=1, key=jax.random.key(9)))
    again = eqx.tree_deserialise_leaves(tmp_path / "model.eqx", like)
    np.testing.assert_array_equal(again(Y0, TS), fixed()(Y0, TS))


def test_failures():
    model = fixed(lambda y: 10 * y**3, steps=3)
    with pytest.raises(RuntimeError, match="non-finite"):
        model(Y0, TS)
    ys = model(Y0, TS, throw=False)
    assert np.all(np.isnan(ys[-1])) and np.all(np.isfinite(ys[0]))


def test_nothing_is_compiled_for_new_weights():
    traces = []

    class Traced(eqx.Module):
        net: nets.MLP

        def __call__(self, y):
            traces.append(1)
            return self.net(y)

    fixed(Traced(NET))(Y0, TS)
    before = len(traces)
    assert before > 0
    other = nets.MLP(2, 2, width=4, depth=1, key=jax.random.key(3))
    other = eqx.tree_at(lambda n: n.layers[0].bias, other, jnp.ones(4))
    fixed(Traced(other))(Y0 + 1, TS + 1)
    assert len(traces) == before


@pytest.mark.usefixtures("unchecked")
def test_a_net_is_callable():
    with pytest.raises(TypeError, match="`net` must be callable, but is a float"):
        nets.NeuralODE(3.0)


def test_single_precision():
    with jax.enable_x64(False):
        net = nets.MLP(2, 2, width=4, depth=1, key=jax.random.key(0))
        assert fixed(net)(jnp.array([1.0, -0.5]), np.linspace(0, 1, 3)).dtype == jnp.float32

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sciml import nets, solvers


KEY = jax.random.key(0)
SCALE = [1.0, 1e-3]


def mlp(key=KEY, dtype=None, sizes=(2, 2)):
    return nets.MLP(*sizes, width=8, depth=1, dtype=dtype, key=key)


@pytest.mark.parametrize("log", [pytest.param(False, marks=pytest.mark.slow), True])
def test_battery(battery, log):
    def make(key, dtype):
        return nets.Scaled(mlp(key, dtype), y_scale=SCALE, t_scale=50.0, log=log)

    ys = jax.random.uniform(jax.random.key(1), (3, 2), minval=0.5) * jnp.array([SCALE])
    battery(make, lambda net, y: net(y), ys)


def test_the_formula():
    net = mlp(sizes=(3, 2))
    y, told = jnp.array([0.5, 2e-3]), jnp.array([7.0])
    x = jnp.array([0.5, 2.0, 7.0])
    scale = np.array(SCALE)
    got = nets.Scaled(net, y_scale=SCALE, t_scale=50.0)(jnp.append(y, told))
    np.testing.assert_allclose(got, net(x) * scale / 50, rtol=1e-12)
    got = nets.Scaled(net, y_scale=SCALE, log=True)(jnp.append(y, told))
    np.testing.assert_allclose(got, net(jnp.log10(x).at[2].set(7.0)) * scale, rtol=1e-12)
    low = nets.Scaled(mlp(), y_scale=SCALE, log=True, floor=1e-4)
    want = low.net(jnp.array([-4.0, -4.0])) * scale
    np.testing.assert_allclose(low(jnp.array([0.0, -1.0])), want, rtol=1e-12)


def test_a_time_for_each_component():
    y = jnp.array([0.5, 2e-3])
    one = nets.Scaled(mlp(), y_scale=SCALE)(y)
    got = nets.Scaled(mlp(), y_scale=SCALE, t_scale=[50.0, 1e-3])(y)
    np.testing.assert_allclose(got, one / np.array([50.0, 1e-3]), rtol=1e-12)


def test_only_the_net_is_trained():
    scaled = nets.Scaled(mlp(), y_scale=SCALE)
    assert len(jax.tree.leaves(scaled)) == len(jax.tree.leaves(mlp()))


def test_it_learns_in_units_that_a_net_alone_can_not(train):
    # y0' = -y0 / 1000, y1' = 1e-6 - y1 / 1000: of sizes 1 and 1e-3, over a span of 1000.
    ts = jnp.linspace(0.0, 1e3, 9)
    share = jnp.exp(-ts / 1e3)
    ys = jnp.stack([share, 1e-3 * (1 - share)], axis=1)
    y0 = ys[0]

    def loss(model, key):
        return jnp.mean(((model(y0, ts) - ys) / jnp.array([SCALE])) ** 2)

    def model(net):
        return nets.NeuralODE(net, method=solvers.RK4(), steps=2)

    scaled = model(nets.Scaled(mlp(), y_scale=SCALE, t_scale=1e3))
    _, value = train(scaled, loss, optax.adam(1e-2), 300)
    assert value < 1e-4
    _, alone = train(model(mlp()), loss, optax.adam(1e-2), 300)
    assert not alone < 100


@pytest.mark.usefixtures("unchecked")
def test_what_is_refused():
    with pytest.raises(ValueError, match=r"`y_scale` must be a vector .* but is \[1.0, 0.0\]"):
        nets.Scaled(mlp(), y_scale=[1.0, 0.0])
    with pytest.raises(ValueError, match="`y_scale` must be a vector"):
        nets.Scaled(mlp(), y_scale=2.0)
    for wrong in (0, [1.0, 2.0, 3.0], [1.0, jnp.nan]):
        with pytest.raises(ValueError, match="`t_scale` must be a positive number, or one for"):
            nets.Scaled(mlp(), y_scale=SCALE, t_scale=wrong)
    with pytest.raises(TypeError, match="`net` must be callable"):
        nets.Scaled(3.0, y_scale=SCALE)
    with pytest.raises(ValueError, match="`y_scale` has 2 numbers, but the state has only 1"):
        nets.Scaled(mlp(), y_scale=SCALE)(jnp.ones(1))
    with pytest.raises(ValueError, match=r"must return 2 numbers, .* but returned shape \(3,\)"):
        nets.Scaled(mlp(sizes=(2, 3)), y_scale=SCALE)(jnp.ones(2))

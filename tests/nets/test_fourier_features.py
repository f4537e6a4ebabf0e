import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sciml import fit, nets


KEY = jax.random.key(0)


def in_front(key=KEY, dtype=None, scale=1.0):
    k1, k2 = jax.random.split(key)
    features = nets.FourierFeatures(2, 5, scale=scale, dtype=dtype, key=k1)
    return eqx.nn.Sequential([features, nets.MLP(10, 1, width=8, depth=1, dtype=dtype, key=k2)])


class Wrapped(eqx.Module):
    net: eqx.nn.Sequential

    def __call__(self, t, y, args):
        return self.net(y) * y


def test_battery(battery):
    xs = jax.random.uniform(jax.random.key(1), (3, 2), minval=-1.0)
    battery(in_front, lambda net, x: net(x), xs, frozen=True)


def test_the_formula():
    features = nets.FourierFeatures(2, 500, scale=3.0, key=jax.random.key(0))
    assert abs(jnp.std(features.frequencies) - 3) < 0.2
    x = jnp.array([0.3, -0.2])
    phase = 2 * np.pi * np.asarray(features.frequencies) @ x
    np.testing.assert_allclose(features(x)[:500], np.cos(phase), atol=1e-10)
    np.testing.assert_allclose(features(x)[500:], np.sin(phase), atol=1e-10)


def test_frequencies_are_not_trained():
    features = nets.FourierFeatures(2, 5, key=jax.random.key(0))
    gradient = eqx.filter_grad(lambda f: jnp.sum(f(jnp.ones(2))))(features)
    assert np.all(gradient.drawn.array == 0)
    # Nor in a problem, nor by weight decay.
    model = Wrapped(in_front())
    data = fit.Data(jnp.arange(3.0), jnp.ones((3, 2)))
    free = {"net": fit.Free()}
    problem = fit.Problem(model, data, y0=jnp.ones(2), free=free, solve=fit.Solve(steps=1))
    assert {s.name.split(".")[1] for s in problem.slots} == {"layers[1]"}
    trained = fit.train(
        lambda net: jnp.sum(net(jnp.ones(2)) ** 2), optax.adamw(0.1), steps=2, model=in_front()
    )
    same = trained.last[0].frequencies == in_front()[0].frequencies
    assert np.all(same) and np.any(trained.last[1].layers[0].bias != in_front()[1].layers[0].bias)
    assert np.any(jax.jacfwd(features)(jnp.ones(2)) != 0)


def test_they_let_a_net_learn_what_varies_fast(train):
    x = jnp.linspace(-1.0, 1.0, 65)[:, None]
    y = jnp.sin(20 * x)
    k1, k2 = jax.random.split(jax.random.key(0))
    net = eqx.nn.Sequential(
        [
            nets.FourierFeatures(1, 16, scale=3.0, key=k1),
            nets.MLP(32, 1, width=32, depth=1, key=k2),
        ]
    )
    loss = lambda net, key: jnp.mean((jax.vmap(net)(x) - y) ** 2)
    _, value = train(net, loss, optax.adam(3e-3), 300)
    assert value < 1e-3


@pytest.mark.usefixtures("unchecked")
def test_what_is_refused():
    with pytest.raises(ValueError, match="`count` must be a positive integer, but got 0"):
        nets.FourierFeatures(2, 0, key=jax.random.key(0))
    with pytest.raises(ValueError, match="`scale` must be positive, but got 0"):
        nets.FourierFeatures(2, 3, scale=0, key=jax.random.key(0))

import jax
import jax.numpy as jnp
import optax
import pytest

from sciml import nets


KEY = jax.random.key(0)


def siren(key=KEY, dtype=None, **kwargs):
    return nets.SIREN(2, 3, key=key, dtype=dtype, **{"width": 6, "depth": 2} | kwargs)


def test_battery(battery):
    xs = jax.random.uniform(jax.random.key(1), (3, 2), minval=-1.0)
    battery(lambda key, dtype: siren(key, dtype, frequency=3.0), lambda net, x: net(x), xs)


def test_what_enters_the_sines_is_normal():
    net = siren(width=1000, depth=3)
    xs = jax.random.uniform(jax.random.key(1), (50, 2), minval=-1.0)
    for i, layer in enumerate(net.layers):
        before = jax.vmap(layer)(xs) * 30.0
        if 0 < i < 3:
            assert abs(jnp.std(before) - 1) < 0.15
        limit = 0.5 if i == 0 else (6 / 1000) ** 0.5 / 30
        assert 0.9 * limit < jnp.max(jnp.abs(layer.weight)) <= limit
        xs = jnp.sin(before)


def test_it_learns_fine_detail(train):
    x = jnp.linspace(-1.0, 1.0, 65)[:, None]
    y = jnp.sin(20 * x) + 0.3 * jnp.cos(45 * x)
    net = nets.SIREN(1, 1, width=32, depth=2, key=jax.random.key(0))
    loss = lambda net, key: jnp.mean((jax.vmap(net)(x) - y) ** 2)
    _, value = train(net, loss, optax.adam(1e-3), 300)
    assert value < 1e-3
    mlp = nets.MLP(1, 1, width=32, depth=2, key=jax.random.key(0))
    _, smooth = train(mlp, loss, optax.adam(1e-3), 300)
    assert smooth > 0.1


@pytest.mark.usefixtures("unchecked")
def test_what_is_refused():
    with pytest.raises(ValueError, match="`depth` must be a positive integer, but got 0"):
        siren(depth=0)
    with pytest.raises(ValueError, match="`frequency` must be positive, but got -1"):
        siren(frequency=-1)

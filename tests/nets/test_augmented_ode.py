import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sciml import nets, solvers


TS = jnp.linspace(0.0, 1.0, 3)


def augmented(key, dtype=None, *, size=2, extra=1, **kwargs):
    net = nets.MLP(size + extra, size + extra, width=8, depth=1, dtype=dtype, key=key)
    return nets.AugmentedODE(net, extra, **{"method": solvers.RK4(), "steps": 2} | kwargs)


def test_battery(battery):
    y0s = jax.random.normal(jax.random.key(1), (3, 2))
    battery(augmented, lambda model, y0: model(y0, TS.astype(y0.dtype)), y0s)


def test_it_is_a_neural_ode_of_a_longer_state():
    model = augmented(jax.random.key(0), extra=2)
    y0 = jnp.array([1.0, -0.5])
    long = model.ode(jnp.array([1.0, -0.5, 0.0, 0.0]), TS)
    np.testing.assert_array_equal(model(y0, TS), long[:, :2])
    np.testing.assert_array_equal(model.augment(y0), long[0])
    np.testing.assert_array_equal(model.field(0.0, long[0]), model.ode.net(long[0]))


def test_it_turns_a_line_around_which_a_neural_ode_can_not(train):
    x = jnp.linspace(-1.0, 1.0, 9)[:, None]
    ends = jnp.array([0.0, 1.0])

    def loss(model, key):
        y = jax.vmap(lambda x: model(x, ends)[-1])(x)
        return jnp.mean((y + x) ** 2)

    model = augmented(jax.random.key(0), size=1, steps=5)
    model, value = train(model, loss, optax.adam(3e-2), 300)
    assert value < 1e-3
    net = nets.MLP(1, 1, width=8, depth=1, key=jax.random.key(0))
    plain = nets.NeuralODE(net, method=solvers.RK4(), steps=5)
    plain, stuck = train(plain, loss, optax.adam(3e-2), 300)
    # What keeps its order is at best the constant zero, and its error the mean of x².
    assert stuck > 0.9 * jnp.mean(x**2)


@pytest.mark.usefixtures("unchecked")
def test_what_is_refused():
    with pytest.raises(ValueError, match="`extra` must be a positive integer, but got 0"):
        augmented(jax.random.key(0), extra=0)
    with pytest.raises(TypeError, match="`net` must be callable"):
        nets.AugmentedODE(3.0, 1)

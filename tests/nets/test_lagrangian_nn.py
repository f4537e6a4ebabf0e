import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sciml import nets, solvers
from sciml.nets._lagrangian_nn import _solve_damped


KEY = jax.random.key(0)


def lnn(size=2, key=KEY, **kwargs):
    return nets.LagrangianNN(size, key=key, **{"width": 8, "depth": 2} | kwargs)


@pytest.mark.parametrize(
    "options",
    [{"angles": True}, pytest.param({"init": "cranmer"}, marks=pytest.mark.slow)],
    ids=",".join,
)
def test_battery(battery, options):
    q, v = jax.random.normal(jax.random.key(1), (2, 3, 2))
    make = lambda key, dtype: lnn(key=key, dtype=dtype, **options)
    battery(make, lambda net, y: net(0.0, y), (q, v), rtol=1e-5, single=2e-2)


class Pendulum(eqx.Module):
    """In place of a net: a double pendulum with arms and masses of one, g = 9.8."""

    def __call__(self, x):
        q, v = x[:2], x[2:]
        kinetic = v[0] ** 2 + v[1] ** 2 / 2 + v[0] * v[1] * jnp.cos(q[0] - q[1])
        return (kinetic + 9.8 * (2 * jnp.cos(q[0]) + jnp.cos(q[1])))[None]


def test_the_motion_of_a_known_lagrangian():
    net = eqx.tree_at(lambda m: m.net, lnn(init="cranmer"), Pendulum())
    q, v = jnp.array([0.7, -1.1]), jnp.array([0.4, 2.0])
    dq, a = net(0.0, (q, v))
    np.testing.assert_array_equal(dq, v)
    # The equations of motion of the textbooks, multiplied out.
    d = q[0] - q[1]
    c, s = jnp.cos(d), jnp.sin(d)
    mass = jnp.array([[2.0, c], [c, 1.0]])
    right = jnp.array(
        [-(v[1] ** 2) * s - 19.6 * jnp.sin(q[0]), v[0] ** 2 * s - 9.8 * jnp.sin(q[1])]
    )
    np.testing.assert_allclose(a, np.linalg.solve(mass, right), rtol=1e-10)
    kinetic = v @ mass @ v / 2
    potential = -9.8 * (2 * jnp.cos(q[0]) + jnp.cos(q[1]))
    np.testing.assert_allclose(net.energy(q, v), kinetic + potential, rtol=1e-12)


def test_the_energy_is_conserved():
    net = lnn(angles=True)
    y0 = jnp.array([0.3, -0.2]), jnp.array([0.1, 0.2])
    q, v = solvers.solve(net, y0, jnp.linspace(0, 0.5, 6), method=solvers.Dopri8(), rtol=1e-9).ys
    energy = jax.vmap(net.energy)(q, v)
    np.testing.assert_allclose(energy, energy[0], rtol=1e-6)


def test_angles_have_a_period():
    net = lnn(angles=True)
    q, v = jnp.array([0.7, -1.1]), jnp.array([0.4, 2.0])
    np.testing.assert_allclose(net.lagrangian(q, v), net.lagrangian(q + 2 * jnp.pi, v), rtol=1e-12)
    assert abs(lnn().lagrangian(q, v) - lnn().lagrangian(q + 2 * jnp.pi, v)) > 1e-3


def test_the_linear_solve():
    m = jnp.array([[2.0, 1.0], [1.0, -3.0]])
    b = jnp.array([0.3, 1.2])
    np.testing.assert_allclose(_solve_damped(m, b, None), np.linalg.solve(m, b), rtol=1e-12)
    singular = jnp.array([[1.0, 1.0], [1.0, 1.0]])
    want = np.linalg.pinv(singular) @ np.array([1.0, 1.0])
    np.testing.assert_allclose(_solve_damped(singular, jnp.ones(2), 1e-6), want, rtol=1e-6)
    for bad in (singular, jnp.zeros((2, 2))):
        gradient = jax.grad(lambda m: jnp.sum(_solve_damped(m, b, 1e-6)))(bad)
        assert np.all(np.isfinite(_solve_damped(bad, b, None))) and np.all(np.isfinite(gradient))


def test_the_deviations_of_the_paper():
    layers = lnn(width=400, depth=3, init="cranmer").net.layers
    want = np.array([2.2, 0.58, 1.16, 400.0]) / 20
    got = [jnp.std(layer.weight) for layer in layers]
    np.testing.assert_allclose(got, want, rtol=0.1)
    assert all(np.all(layer.bias == 0) for layer in layers)


def test_it_learns_a_pendulum(train):
    q, v = 2 * jax.random.uniform(jax.random.key(1), (2, 128, 1), minval=-1.0)
    a = -jnp.sin(q)
    loss = lambda net, key: net.loss(q, v, a)
    _, value = train(lnn(1, width=16, angles=True), loss, optax.adam(1e-2), 600)
    assert value < 1e-3
    assert np.mean(a**2) > 0.4


@pytest.mark.usefixtures("unchecked")
def test_what_is_refused():
    with pytest.raises(ValueError, match=r"must be a pair `\(q, v\)` of positions and velocities"):
        lnn()(0.0, jnp.ones(4))
    with pytest.raises(ValueError, match=r'`init` must be "unit" or "cranmer", but is \'he\''):
        lnn(init="he")
    with pytest.raises(ValueError, match="`ridge` must be positive, but got 0"):
        lnn(ridge=0)
    with pytest.raises(ValueError, match="`depth` must be a positive integer, but got 0"):
        lnn(depth=0)

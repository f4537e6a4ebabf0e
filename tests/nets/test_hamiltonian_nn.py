import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sciml import nets, solvers


KEY = jax.random.key(0)


def hnn(size=1, key=KEY, **kwargs):
    return nets.HamiltonianNN(size, key=key, **{"width": 8, "depth": 2} | kwargs)


@pytest.mark.parametrize(
    "options",
    [{}, {"separable": True}, {"dissipative": True, "activation": jax.nn.softplus}],
    ids=",".join,
)
def test_battery(battery, options):
    q, p = jax.random.normal(jax.random.key(1), (2, 3, 2))
    make = lambda key, dtype: hnn(2, key=key, dtype=dtype, **options)
    battery(make, lambda net, y: net(0.0, y), (q, p))


def test_the_field_is_the_derivative_of_the_energy():
    net = hnn(2)
    q, p = jax.random.normal(jax.random.key(1), (2, 2))
    dq, dp = net(0.0, (q, p))
    h = 1e-6
    for i in range(2):
        e = h * jnp.eye(2)[i]
        slope = (net.energy(q, p + e) - net.energy(q, p - e)) / (2 * h)
        np.testing.assert_allclose(dq[i], slope, rtol=1e-6, atol=1e-9)
        slope = (net.energy(q + e, p) - net.energy(q - e, p)) / (2 * h)
        np.testing.assert_allclose(dp[i], -slope, rtol=1e-6, atol=1e-9)


def test_the_energy_is_conserved_and_friction_takes_from_it():
    y0 = jnp.array([1.0, -0.3]), jnp.array([0.2, 0.5])
    ts = jnp.linspace(0.0, 3.0, 7)
    energies = {}
    for dissipative in (False, True):
        net = hnn(2, dissipative=dissipative)
        q, p = solvers.solve(net, y0, ts, method=solvers.Tsit5(), rtol=1e-9, atol=1e-9).ys
        energies[dissipative] = jax.vmap(net.energy)(q, p)
    np.testing.assert_allclose(energies[False], energies[False][0], rtol=1e-7)
    assert np.all(np.diff(energies[True]) < 0)


def test_symplectic_methods_take_separable_ones():
    y0, ts = (jnp.ones(1), jnp.zeros(1)), jnp.linspace(0.0, 2.0, 3)
    net = hnn(separable=True)
    exact = solvers.solve(net, y0, ts, method=solvers.Tsit5(), rtol=1e-9, atol=1e-9).ys
    got = solvers.solve(net, y0, ts, method=solvers.Yoshida4(), steps=20).ys
    np.testing.assert_allclose(got[0], exact[0], rtol=1e-5)
    with pytest.raises(ValueError, match="separable"):
        solvers.solve(hnn(), y0, ts, method=solvers.Leapfrog(), steps=20)


def test_the_loss():
    net = hnn(2)
    q, p = jax.random.normal(jax.random.key(1), (2, 5, 2))
    dq, dp = jax.vmap(lambda q, p: net(0.0, (q, p)))(q, p)
    assert net.loss(q, p, dq, dp) == 0
    want = (jnp.mean(dq**2) + jnp.mean((dp - 1) ** 2)) / 2
    np.testing.assert_allclose(net.loss(q, p, 0 * dq, 0 * dp + 1), want, rtol=1e-12)


def test_it_learns_a_spring(train):
    q, p = jax.random.uniform(jax.random.key(1), (2, 64, 1), minval=-1.0)
    loss = lambda net, key: net.loss(q, p, p, -q)
    net, value = train(hnn(width=16), loss, optax.adam(1e-2), 400)
    assert value < 1e-3
    # Over many periods nothing is lost.
    y0 = jnp.array([0.7]), jnp.array([0.0])
    ts = jnp.linspace(0.0, 60.0, 61)
    q, p = solvers.solve(net, y0, ts, method=solvers.Tsit5()).ys
    np.testing.assert_allclose(q[:, 0] ** 2 + p[:, 0] ** 2, 0.49, rtol=0.1)


def test_friction_is_learnt(train):
    q, p = jax.random.uniform(jax.random.key(1), (2, 64, 1), minval=-1.0)
    loss = lambda net, key: net.loss(q, p, p, -q - 0.3 * p)
    net, value = train(hnn(width=16, dissipative=True), loss, optax.adam(1e-2), 600)
    assert value < 1e-3
    np.testing.assert_allclose(net.friction**2, 0.3, rtol=0.1)


@pytest.mark.parametrize(
    ("y", "text"),
    [
        (jnp.ones(4), r"must be a pair `\(q, p\)` .* but is \(4,\).*Split a vector"),
        ((jnp.ones(2), jnp.ones(3)), r"got shapes \(2,\) and \(3,\)"),
        ((jnp.ones((5, 2)), jnp.ones((5, 2))), r"use `jax.vmap`"),
    ],
    ids=str,
)
@pytest.mark.usefixtures("unchecked")
def test_states_that_are_refused(y, text):
    with pytest.raises(ValueError, match=text):
        hnn(2)(0.0, y)


@pytest.mark.usefixtures("unchecked")
def test_sizes_that_are_refused():
    with pytest.raises(ValueError, match="`size` must be a positive integer, but got 0"):
        hnn(0)
    with pytest.raises(ValueError, match="`depth` must be a positive integer, but got 0"):
        hnn(1, depth=0)


def test_only_weights_are_leaves():
    for leaf in jax.tree.leaves(hnn(2, dissipative=True, separable=True)):
        assert eqx.is_inexact_array(leaf)

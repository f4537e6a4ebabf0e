"""Symplectic methods: order, drift of the energy, reversibility, derivatives, and refusals."""

import math

import helpers
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sciml import solvers


methods = pytest.mark.parametrize(
    "method", [solvers.Leapfrog(), solvers.Yoshida4()], ids=helpers.name
)


def pendulum(q, p, g):
    return jnp.sum(p["x"] ** 2) / 2 - g * jnp.sum(jnp.cos(q["x"]))


FIELD = solvers.hamiltonian(pendulum)
START = ({"x": jnp.array([1.0, 2.5])}, {"x": jnp.array([0.3, -0.2])})
G = jnp.array(1.7)


def run(method, ts, steps, y0=START, g=G):
    return solvers.solve(FIELD, y0, ts, g, method=method, steps=steps).ys


@methods
def test_observed_order(method):
    ts = jnp.array([0.0, 3.0])
    exact = helpers.flat(
        solvers.solve(FIELD, START, ts, G, method=solvers.Dopri8(), rtol=1e-12, atol=1e-13).ys
    )
    errors = [np.linalg.norm(helpers.flat(run(method, ts, n)) - exact) for n in (60, 120)]
    assert abs(math.log2(errors[0] / errors[1]) - method.order) < 0.25


@methods
def test_observed_order_of_a_field_with_time_in_both_halves(method):
    field = lambda t, y, a: (y[1] * (1 + 0.5 * jnp.sin(t)), -jnp.sin(y[0]) + jnp.cos(2 * t))
    solve = lambda **kw: solvers.solve(field, (1.0, 0.0), jnp.array([0.0, 3.0]), **kw).ys
    exact = helpers.flat(solve(method=solvers.Dopri8(), rtol=1e-12, atol=1e-13))
    errors = [
        np.linalg.norm(helpers.flat(solve(method=method, steps=n)) - exact) for n in (60, 120)
    ]
    assert abs(math.log2(errors[0] / errors[1]) - method.order) < 0.25


@methods
def test_the_energy_does_not_drift(method):
    # 30,000 steps, 1,000 periods and more; RK4 loses energy steadily with as many.
    ts = jnp.linspace(0.0, 6000.0, 61)
    energy = lambda ys: jax.vmap(pendulum, (0, 0, None))(*ys, G)
    energies = energy(run(method, ts, 500))
    bound = {2: 2e-2, 4: 2e-3}[method.order]
    assert float(jnp.abs(energies - energies[0]).max()) < bound
    slope = np.polyfit(np.asarray(ts), np.asarray(energies), 1)[0]
    lossy = energy(run(solvers.RK4(), ts, 500))
    assert abs(slope) < 0.02 * abs(np.polyfit(np.asarray(ts), np.asarray(lossy), 1)[0])


@methods
def test_time_can_be_reversed(method):
    there = run(method, jnp.array([0.0, 5.0]), 50)
    end = jax.tree.map(lambda x: x[-1], there)
    back = run(method, jnp.array([5.0, 0.0]), 50, y0=end)
    helpers.assert_close(jax.tree.map(lambda x: x[-1], back), START, rtol=1e-12, atol=1e-13)


@methods
def test_a_step_keeps_area(method):
    """The Jacobian of the flow is symplectic."""
    unravel = jax.flatten_util.ravel_pytree(START)[1]

    def flow(v):
        return jax.flatten_util.ravel_pytree(
            jax.tree.map(lambda x: x[-1], run(method, jnp.array([0.0, 2.0]), 20, unravel(v)))
        )[0]

    m = jax.jit(jax.jacrev(flow))(jax.flatten_util.ravel_pytree(START)[0])
    zero, one = np.zeros((2, 2)), np.eye(2)
    j = np.block([[zero, one], [-one, zero]])
    np.testing.assert_allclose(m.T @ j @ m, j, atol=1e-12)


@methods
def test_derivatives(method):
    def loss(g, y0):
        return jnp.sum(run(method, jnp.array([0.0, 1.0, 2.0]), 10, y0, g)[0]["x"] ** 2)

    got = jax.jit(jax.value_and_grad(loss, (0, 1)))(G, START)[1]
    forwards = jax.jit(jax.jacfwd(loss, (0, 1)))(G, START)
    helpers.assert_close(got, forwards, rtol=1e-11, atol=1e-13)
    e = 1e-6
    np.testing.assert_allclose(
        got[0], (loss(G + e, START) - loss(G - e, START)) / (2 * e), rtol=1e-7
    )


def test_a_field_of_ones_own_and_single_precision():
    field = lambda t, y, k: [y[1], -k * y[0]]
    one = jnp.array(1.0, jnp.float32)
    sol = solvers.solve(
        field, [one, 0 * one], jnp.array([0.0, math.pi]), 4.0, method=solvers.Yoshida4(), steps=80
    )
    assert sol.ys[0].dtype == jnp.float32
    np.testing.assert_allclose([sol.ys[0][-1], sol.ys[1][-1]], [1.0, 0.0], atol=1e-4)


def test_what_it_can_not_take():
    options = {"method": solvers.Leapfrog(), "steps": 3}
    ts = jnp.array([0.0, 1.0])
    with pytest.raises(ValueError, match=r"pair `\(q, p\)`"):
        solvers.solve(lambda t, y, a: -y, jnp.ones(2), ts, **options)
    with pytest.raises(ValueError, match="same shapes"):
        solvers.solve(lambda t, y, a: y, (jnp.ones(2), jnp.ones(3)), ts, **options)
    with pytest.raises(ValueError, match="and dtypes"):
        solvers.solve(lambda t, y, a: y, (jnp.ones(2), jnp.ones(2, complex)), ts, **options)
    damped = lambda t, y, a: (y[1], -y[0] - 0.1 * y[1])
    for wrap in (lambda f: f, jax.jit):
        with pytest.raises(ValueError, match="dp/dt depends on p"):
            wrap(lambda y0: solvers.solve(damped, y0, ts, **options).ys)((1.0, 0.0))
    crossed = solvers.hamiltonian(lambda q, p, a: jnp.sum(p**2 * q**2))
    with pytest.raises(ValueError, match="dq/dt depends on q"):
        solvers.solve(crossed, (1.0, 0.0), ts, **options)
    with pytest.raises(ValueError, match="pass `steps=`"):
        solvers.solve(FIELD, START, ts, G, method=solvers.Leapfrog())

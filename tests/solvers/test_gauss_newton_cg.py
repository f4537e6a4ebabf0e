"""Least squares with many unknowns, without a Jacobian."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sciml import solvers


METHOD = solvers.GaussNewtonCG()


def chain(y, data):
    return jnp.concatenate([y + 0.1 * y**3 - data, 3 * jnp.diff(y), 0.1 * (y[1:] * y[:-1] - 0.3)])


def data(n):
    return jnp.sin(jnp.arange(n) / 30)


@pytest.mark.parametrize("loss", ["linear", "huber", "cauchy"])
@pytest.mark.parametrize("bounds", [None, (-0.5, 0.4)], ids=["free", "box"])
def test_it_agrees_with_levenberg_marquardt(loss, bounds):
    run = lambda method: solvers.least_squares(
        chain, jnp.zeros(40), data(40), method=method, loss=loss, f_scale=0.1, bounds=bounds
    )
    one, two = run(METHOD), run(None)
    np.testing.assert_allclose(one.value, two.value, atol=2e-6)
    np.testing.assert_allclose(one.loss, two.loss, rtol=1e-9)
    np.testing.assert_array_equal(one.active, two.active)


@pytest.mark.slow
def test_ten_thousand_unknowns_in_little_memory():
    n = 10_000
    y0, goal = jnp.zeros(n), data(n)
    run = jax.jit(lambda goal: solvers.least_squares(chain, y0, goal, method=METHOD, throw=False))
    # A Jacobian would take 2.4 GB.
    assert run.lower(goal).compile().memory_analysis().temp_size_in_bytes < 2e7
    sol = run(goal)
    assert bool(sol.ok) and sol.stats["evaluations"] < 15
    gradient = jax.grad(lambda y: jnp.sum(chain(y, goal) ** 2) / 2)(sol.value)
    np.testing.assert_allclose(gradient, 0, atol=1e-7)


@pytest.mark.parametrize("n", [20, pytest.param(1200, marks=pytest.mark.slow)])
def test_derivatives(n):
    def total(shift, method=METHOD):
        sol = solvers.least_squares(chain, jnp.zeros(n), data(n) + shift, method=method)
        return jnp.sum(sol.value)

    h = 1e-4
    want = (total(h) - total(-h)) / (2 * h)
    for derivative in (jax.grad, jax.jacfwd):
        np.testing.assert_allclose(derivative(total)(0.0), want, rtol=1e-6)

"""Our methods as solvers of Optimistix."""

import jax
import jax.numpy as jnp
import numpy as np
import optimistix as optx
import pytest

from sciml import solvers


def residuals(y, args):
    return {"valley": 10 * (y[1:] - y[:-1] ** 2), "end": 1 - y[:-1]}


def rosenbrock(y, args):
    return sum(jnp.sum(r**2) for r in residuals(y, args).values()), {"seen": y[0]}


START = jnp.array([-1.2, 1.0, 0.5])
MINIMISERS = (solvers.TrustRegionNewton(), solvers.NewtonCG(), solvers.BFGS(), solvers.LBFGS())


@pytest.mark.parametrize("method", MINIMISERS, ids=lambda m: type(m).__name__)
def test_minimisers_with_bounds_and_aux(method):
    sol = optx.minimise(rosenbrock, method, START, has_aux=True, max_steps=400)
    np.testing.assert_allclose(sol.value, 1.0, rtol=1e-6)
    np.testing.assert_allclose(sol.aux["seen"], sol.value[0])
    options = {"lower": jnp.full(3, -2.0), "upper": jnp.array([0.5, 2.0, 2.0])}
    held = optx.minimise(rosenbrock, method, START, has_aux=True, options=options, max_steps=400)
    ours = solvers.minimise(
        lambda y, args: rosenbrock(y, args)[0],
        START,
        method=method,
        bounds=(options["lower"], options["upper"]),
    )
    np.testing.assert_allclose(held.value, ours.value, rtol=1e-9)
    assert held.value[0] == 0.5


def test_least_squares_in_a_batch():
    run = lambda y0: optx.least_squares(residuals, solvers.LevenbergMarquardt(), y0).value
    many = jax.jit(jax.vmap(run))(jnp.stack([START, -START]))
    np.testing.assert_allclose(many, 1.0, rtol=1e-9)


@pytest.mark.parametrize(
    "method",
    [
        solvers.Newton(),
        solvers.Broyden(),
        solvers.LevenbergMarquardt(),
        solvers.TrustRegionNewton(),
    ],
    ids=lambda m: type(m).__name__,
)
def test_roots_and_their_derivatives(method):
    def run(a):
        fn = lambda y, a: y**3 - a
        return optx.root_find(fn, method, jnp.array([1.0, 3.0]), a, max_steps=200).value[1]

    value, slope = jax.jit(jax.value_and_grad(run))(2.0)
    np.testing.assert_allclose(value, 2 ** (1 / 3), rtol=1e-8)
    np.testing.assert_allclose(slope, 2 ** (-2 / 3) / 3, rtol=1e-7)


def test_fixed_points():
    sol = optx.fixed_point(lambda y, _: jnp.cos(y), solvers.Anderson(), jnp.array([0.3, 1.0]))
    np.testing.assert_allclose(sol.value, 0.7390851332151607, rtol=1e-9)


def test_a_failure_is_a_result_of_optimistix():
    fn = lambda y, _: y**2 + 1
    sol = optx.root_find(fn, solvers.Newton(), jnp.array(1.0), throw=False, max_steps=2000)
    assert sol.result != optx.RESULTS.successful

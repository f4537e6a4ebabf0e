"""Where systems settle: to rest, or to a cycle."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sciml import solvers


def inflow(t, y, k):
    return k[0] - k[1] * y


def exchange(t, y, k):
    """Two forms of one substance, whose total is conserved."""
    return jnp.stack([-k[0] * y[0] + k[1] * y[1], k[0] * y[0] - k[1] * y[1]])


K = jnp.array([2.0, 0.5])


def test_value_and_derivatives():
    """Case 14, also from a start that is at rest."""
    f = lambda k: solvers.steady_state(inflow, 0.0, k).value
    np.testing.assert_allclose(f(K), 4.0, rtol=1e-9)
    for mode in (jax.grad, jax.jacfwd):
        np.testing.assert_allclose(mode(f)(K), [2.0, -8.0], rtol=1e-9)
    np.testing.assert_allclose(jax.hessian(f)(K), [[0.0, -4.0], [-4.0, 32.0]], atol=1e-8)
    at_rest = solvers.steady_state(inflow, 4.0, K)
    np.testing.assert_allclose(at_rest.value, 4.0)
    assert at_rest.ok and int(at_rest.stats["steps"]) == 0
    many = jax.vmap(lambda y0: solvers.steady_state(inflow, y0, K).value)(jnp.array([0.0, 99.0]))
    np.testing.assert_allclose(many, 4.0, rtol=1e-9)


def test_what_is_conserved_stays():
    f = lambda k, y0: solvers.steady_state(exchange, y0, k).value
    y0 = jnp.array([3.0, 1.0])
    exact = lambda k, y0: y0.sum() * jnp.stack([k[1], k[0]]) / k.sum()
    np.testing.assert_allclose(f(K, y0), [0.8, 3.2], rtol=1e-9)
    got, want = jax.jacrev(f, (0, 1))(K, y0), jax.jacrev(exact, (0, 1))(K, y0)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-7), got, want)


def test_the_one_that_is_reached():
    """Newton's method alone would find the unstable one at zero."""
    double_well = lambda t, y, a: y - y**3
    for start, want in ((-0.1, -1.0), (0.1, 1.0), (5.0, 1.0)):
        np.testing.assert_allclose(solvers.steady_state(double_well, start).value, want)


def test_what_never_settles_is_a_failure():
    """Case 14: an oscillator, whose derivative is nan then; and growth."""
    turn = lambda t, y, w: jnp.stack([y[1], -(w**2) * y[0]])
    run = lambda w, **options: solvers.steady_state(
        turn, jnp.array([1.0, 0.0]), w, max_time=100.0, **options
    )
    with pytest.raises(RuntimeError, match="did not come to rest"):
        run(1.0)
    sol = run(1.0, throw=False)
    assert not sol.ok and np.isfinite(sol.value).all()
    assert np.isnan(jax.grad(lambda w: run(w, throw=False).value[0])(1.0))
    with pytest.raises(RuntimeError, match="did not come to rest"):
        solvers.steady_state(lambda t, y, a: y, 1.0, max_time=50.0)


def test_a_stiff_network():
    """Robertson's reaction with an outflow and an inflow: rates from 0.04 to 3e7."""

    def fn(t, y, a):
        r1, r2, r3 = 0.04 * y[0], 1e4 * y[1] * y[2], 3e7 * y[1] ** 2
        return jnp.stack([-r1 + r2, r1 - r2 - r3, r3]) + 0.1 * (jnp.array([1.0, 0.0, 0.0]) - y)

    sol = solvers.steady_state(fn, jnp.zeros(3), atol=1e-12)
    np.testing.assert_allclose(fn(0.0, sol.value, None), 0.0, atol=1e-12)
    np.testing.assert_allclose(sol.value.sum(), 1.0)


@pytest.mark.slow
def test_dosing_at_steady_state():
    """The trough of repeated doses, its derivatives, and a solve that starts from it."""

    def trough(k, amount):
        doses = solvers.Doses([0.0], amount)
        fn = lambda t, a, k: -k * a
        return solvers.steady_cycle(
            fn, jnp.zeros(1), 24.0, k, doses=doses,
            method=solvers.Tsit5(), rtol=1e-9, atol=1e-11,
        ).value[0]  # fmt: skip

    exact = lambda k, amount: amount / jnp.expm1(24 * k)
    np.testing.assert_allclose(trough(0.2, 100.0), exact(0.2, 100.0), rtol=1e-8)
    got = jax.jit(jax.grad(trough, (0, 1)))(0.2, 100.0)
    np.testing.assert_allclose(got, jax.grad(exact, (0, 1))(0.2, 100.0), rtol=1e-7)


def test_doses_outside_the_period_are_refused():
    """They would be lost."""
    for doses in (
        solvers.Doses([24.0], 1.0),
        solvers.Doses([-1.0], 1.0, duration=2.0),
        solvers.Doses([23.0], 1.0, duration=2.0),
    ):
        with pytest.raises(ValueError, match=r"lies before|within one period"):
            solvers.steady_cycle(inflow, 0.0, 24.0, K, doses=doses)
    with pytest.raises(ValueError, match="takes no `Input`"):
        solvers.steady_state(lambda t, y, u: u(t) - y, 0.0, solvers.Input([0.0], [1.0]))


def test_a_driven_oscillator():
    """A limit cycle: after one period the state is the same."""

    def fn(t, y, a):
        return jnp.stack([y[1], jnp.cos(t) - 0.3 * y[1] - y[0] - 0.2 * y[0] ** 3])

    tight = {"rtol": 1e-9, "atol": 1e-11, "method": solvers.Tsit5()}
    sol = solvers.steady_cycle(fn, jnp.zeros(2), 2 * np.pi, **tight)
    end = solvers.solve(fn, sol.value, jnp.array([0.0, 2 * np.pi]), **tight).ys[-1]
    np.testing.assert_allclose(end, sol.value, rtol=1e-7)
    with pytest.raises(RuntimeError, match="steady_cycle"):
        solvers.steady_cycle(lambda t, y, a: jnp.ones(1), jnp.zeros(1), 1.0)

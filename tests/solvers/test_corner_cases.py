"""Corners that were found by attacking the engine: each was once wrong."""

import helpers
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import decay

from sciml import RESULTS, solvers


TIGHT = {"rtol": 1e-9, "atol": 1e-11, "throw": False}


def test_mixed_second_derivatives_by_a_save_time():
    def value(z):
        k, t, y0, t0 = z
        ts = jnp.stack([t0, t, t0 + 2.0])
        return solvers.solve(decay, y0, ts, k, method=solvers.Tsit5(), **TIGHT).ys[1]

    z = jnp.array([0.7, 1.0, 1.5, 0.2])
    want = jax.hessian(lambda z: z[2] * jnp.exp(-z[0] * (z[1] - z[3])))(z)
    got = jax.jit(jax.hessian(value))(z)
    np.testing.assert_allclose(got, want, atol=2e-6)
    np.testing.assert_allclose(got, got.T, atol=2e-6)


def test_an_empty_span_has_derivatives():
    def last(y0, t1):
        return solvers.solve(
            decay, y0, jnp.stack([0 * t1, t1]), 0.7, method=solvers.Tsit5(), **TIGHT
        ).ys[-1]

    for mode in (jax.jacfwd, jax.jacrev):
        by_y0, by_t1 = jax.vmap(mode(last, (0, 1)), (None, 0))(1.5, jnp.array([0.0, 1.0]))
        np.testing.assert_allclose(by_y0, [1.0, np.exp(-0.7)], rtol=1e-7)
        np.testing.assert_allclose(by_t1, [-1.05, -1.05 * np.exp(-0.7)], rtol=1e-7)


def test_what_is_not_differentiated_may_have_no_derivative():
    # d sqrt(t)/dt is infinite at the start, but nobody asks for it.
    def final(k):
        fn = lambda t, y, k: -k * jnp.sqrt(t) * y
        return solvers.solve(
            fn, 1.0, jnp.linspace(0.0, 2.0, 5), k, method=solvers.Tsit5(), **TIGHT
        ).ys[-1]

    c = 2 / 3 * 2**1.5
    for mode in (jax.grad, jax.jacfwd):
        np.testing.assert_allclose(mode(final)(0.7), -c * np.exp(-0.7 * c), rtol=1e-5)


def test_constants_beyond_the_precision_of_the_state():
    c = jnp.array(1e-46)  # zero in float32

    def final(k):
        fn = lambda t, y, k: -y * (k * (c * 1e46)).astype(y.dtype)
        return solvers.solve(
            fn,
            jnp.ones((), jnp.float32),
            jnp.array([0.0, 1.0]),
            k,
            method=solvers.Tsit5(),
            throw=False,
        )

    for mode in (jax.jacfwd, jax.jacrev):
        got = mode(lambda k: final(k).ys[-1])(0.7)
        np.testing.assert_allclose(got, -np.exp(-0.7), rtol=1e-4)


@pytest.mark.parametrize("ts", [[0.0, 2.0, 1.0], [0.0, np.nan, 1.0], [0.0, 1.5, 1.0, 2.0]])
@pytest.mark.parametrize("steps", [None, 5])
def test_traced_times_out_of_order_fail_and_end(ts, steps):
    run = jax.jit(lambda ts: solvers.solve(decay, 1.0, ts, 0.7, steps=steps, throw=False))
    sol = run(jnp.array(ts))
    assert not sol.ok and not sol.valid.any()
    assert "do not increase or decrease" in RESULTS[sol.result]


def test_a_tiny_absolute_tolerance_does_not_stop_the_first_step():
    fn = lambda t, y, args: jnp.array([1.0, -1.0], y.dtype)
    y0 = jnp.array([0.0, 1.0], jnp.float32)
    sol = solvers.solve(fn, y0, jnp.array([0.0, 1.0]), atol=1e-20)
    np.testing.assert_allclose(sol.ys[-1], [1.0, 0.0], atol=1e-5)


def test_no_absolute_tolerance_at_a_zero_of_the_state():
    fn = lambda t, y, args: jnp.stack([y[0], -y[1]])
    sol = solvers.solve(fn, jnp.array([0.0, 1.0]), jnp.array([0.0, 1.0]), atol=0.0)
    np.testing.assert_allclose(sol.ys[-1], [0.0, np.exp(-1)], rtol=1e-5)
    assert sol.stats["accepted"] < 50


def test_dense_output_reaches_the_last_time_in_float32():
    ts = jnp.linspace(1000.1, 1000.37, 4)
    sol = solvers.solve(decay, jnp.ones((), jnp.float32), ts, jnp.float32(0.7), dense=True)
    np.testing.assert_allclose(sol.at(ts), sol.ys, rtol=1e-4)


def test_dense_output_needs_adaptive_steps():
    with pytest.raises(ValueError, match="`dense=` needs adaptive steps"):
        solvers.solve(decay, 1.0, jnp.array([0.0, 1.0]), 0.7, steps=4, dense=True)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
def test_gradients_inside_a_mapped_shard(kind):
    kind = getattr(jax.sharding.AxisType, kind)
    mesh = jax.make_mesh((8,), ("member",), axis_types=(kind,))
    y0s = jnp.linspace(0.5, 2.0, 16)

    def final(y0, k):
        ts = jnp.array([0.0, 1.0])
        return solvers.solve(decay, y0, ts, k, rtol=1e-8, atol=1e-10).ys[-1]  # may not throw here

    def local(y0s, k):
        values = jax.vmap(lambda y0: final(y0, k))(y0s)
        return values, jax.vmap(jax.grad(final), (0, None))(y0s, k)

    spec = jax.P("member")
    spread = jax.jit(
        jax.shard_map(local, mesh=mesh, in_specs=(spec, jax.P()), out_specs=(spec, spec))
    )
    placed = jax.device_put(y0s, jax.NamedSharding(mesh, spec))
    values, grads = spread(placed, jax.device_put(jnp.array(0.7), jax.NamedSharding(mesh, jax.P())))
    np.testing.assert_allclose(values, y0s * np.exp(-0.7), rtol=1e-7)
    np.testing.assert_allclose(grads, np.full(16, np.exp(-0.7)), rtol=1e-7)


def test_an_adaptive_ensemble_on_a_mesh_equals_one_device():
    mesh = jax.make_mesh((8,), ("member",))
    mus = jnp.linspace(0.5, 5.0, 13)
    y0, ts = jnp.array([2.0, 0.0]), jnp.array([0.0, 3.0])
    run = lambda **kw: solvers.solve_ensemble(
        helpers.van_der_pol, y0, ts, mus, in_axes=(None, None, 0), **kw
    )
    np.testing.assert_allclose(run(mesh=mesh).ys, run().ys, rtol=1e-12)


def test_stiff_members_change_the_method_as_a_single_solve_does():
    ks = jnp.array([1.0, 1e6])
    options = {"rtol": 1e-6, "atol": 1e-9, "max_steps": 2000}
    sol = solvers.solve_ensemble(
        helpers.forced, jnp.array([1.0]), jnp.array([0.0, 2.0]), ks,
        in_axes=(None, None, 0), **options,
    )  # fmt: skip
    assert sol.ok.all()
    np.testing.assert_allclose(sol.ys[1, -1, 0], np.cos(2.0), atol=1e-5)


@pytest.mark.slow
@helpers.each_kind
def test_mixed_second_derivatives_by_a_save_time_at_the_start(method):
    def f(t1, k):
        ts = jnp.stack([jnp.zeros(()), t1, jnp.array(2.0)])
        return solvers.solve(
            lambda t, y, k: -k * y, jnp.array([1.0]), ts, k, method=method, throw=False
        ).ys[1, 0]

    hessian = jax.jit(jax.hessian(f, (0, 1)))(0.0, 1.3)
    np.testing.assert_allclose(hessian, [[1.69, -1.0], [-1.0, 0.0]], atol=1e-6)


def test_unordered_times_of_a_trace_give_nothing():
    run = jax.jit(lambda ts: solvers.solve(lambda t, y, a: -y, jnp.array([1.0]), ts, throw=False))
    sol = run(jnp.array([0.0, 1.0, 0.5, 2.0]))
    assert not sol.ok and not sol.valid.any() and bool(jnp.isnan(sol.ys).all())

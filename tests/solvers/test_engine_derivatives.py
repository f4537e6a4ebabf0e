"""Derivatives through adaptive steps: in every mode, order and nesting, of everything that goes in."""

import functools

import equinox as eqx
import helpers
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from sciml import solvers
from sciml.solvers import _record, _tangents


methods = helpers.each_kind
twice_as_slow = helpers.each_kind_the_second_slow
TIGHT = {"rtol": 1e-9, "atol": 1e-11, "throw": False}


class Field(eqx.Module):
    """`y' = -p t y`, where p comes in through a leaf, the arguments and a closure."""

    leaf: jax.Array
    closure: object

    def __call__(self, t, y, args):
        return -self.leaf * args["a"] * self.closure(t) * y


def loss(method, x):
    """Of the start, three factors of p and three times, of which `t1` may lie before `t0`."""
    y0, a, leaf, c, t0, tm, t1 = x
    fn = Field(leaf, lambda t: c * t)
    ts = jnp.stack([t0, tm, t1])
    ys = solvers.solve(fn, y0, ts, {"a": a}, method=method, **TIGHT).ys
    return ys[1] ** 2 + jnp.sin(ys[2])


def exact(x):
    y0, a, leaf, c, t0, tm, t1 = x
    at = lambda t: y0 * jnp.exp(-a * leaf * c * (t**2 - t0**2) / 2)
    return at(tm) ** 2 + jnp.sin(at(t1))


POINTS = jnp.array(
    [
        [1.2, 0.7, 1.1, 0.9, 0.3, 0.9, 1.6],
        [1.2, 0.7, 1.1, 0.9, 1.5, 0.8, 0.2],  # backward
        [0.5, -0.4, 0.8, 1.3, -0.5, 0.1, 0.4],
    ]
)


@functools.cache
def compiled(method):
    """The gradient with the Hessian, compiled once for all tests."""

    def twice(x):
        gradient = jax.grad(functools.partial(loss, method))(x)
        return gradient, gradient

    return jax.jit(jax.jacfwd(twice, has_aux=True))


@methods
@pytest.mark.parametrize("point", range(3), ids=["forward", "backward", "across zero"])
def test_gradient_and_hessian(method, point):
    x = POINTS[point]
    second, first = compiled(method)(x)
    np.testing.assert_allclose(first, jax.grad(exact)(x), rtol=1e-6, atol=1e-7)
    want = jax.hessian(exact)(x)
    np.testing.assert_allclose(second, want, rtol=1e-5, atol=5e-6)
    # By a save time once the field's slope is taken and once the interpolant's, of one order less.
    np.testing.assert_allclose(second, second.T, atol=5e-6)


@pytest.mark.slow
@twice_as_slow
def test_forward_mode_and_reverse_over_reverse(method):
    f = functools.partial(loss, method)
    x = POINTS[0]
    second, first = compiled(method)(x)
    np.testing.assert_allclose(jax.jit(jax.jacfwd(f))(x), first, rtol=1e-9, atol=1e-10)
    along = lambda x: jax.grad(f)(x) @ jnp.arange(1.0, 8.0)
    got = jax.jit(jax.grad(along))(x)
    np.testing.assert_allclose(got, second @ np.arange(1.0, 8.0), rtol=1e-5, atol=5e-6)


@pytest.mark.slow
@twice_as_slow
def test_batches(method):
    f = functools.partial(loss, method)
    alone = jnp.stack([compiled(method)(x)[1] for x in POINTS])
    together = jax.jit(jax.vmap(jax.grad(f)))(POINTS)
    np.testing.assert_allclose(together, alone, rtol=1e-9, atol=1e-11)
    of_sum = jax.jit(jax.grad(lambda xs: jax.vmap(f)(xs).sum()))(POINTS)
    np.testing.assert_allclose(of_sum, alone, rtol=1e-9, atol=1e-11)


@twice_as_slow
def test_complex_states(method):
    """Of the frequency, the damping and both parts of the start."""

    def last(solved, x):
        w, k, re, im = x
        y0 = jax.lax.complex(re, im)
        if solved:
            fn = lambda t, y, args: jax.lax.complex(-k, w) * y
            y = solvers.solve(fn, y0, jnp.array([0.0, 1.5]), method=method, **TIGHT).ys[-1]
        else:
            y = y0 * jnp.exp(jax.lax.complex(-k, w) * 1.5)
        return y.real**2 * y.imag + jnp.abs(y)

    x = jnp.array([2.0, 0.4, 1.0, 0.5])

    def twice(solved, x):
        gradient = jax.grad(lambda x: last(solved, x))(x)
        return gradient, gradient

    got, want = (jax.jit(jax.jacfwd(lambda x, s=s: twice(s, x), has_aux=True))(x) for s in (1, 0))
    np.testing.assert_allclose(got[1], want[1], rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(got[0], want[0], rtol=1e-5, atol=1e-6)


@twice_as_slow
def test_fields_that_are_not_finite_at_zero(method):
    """Unused rows of the record must not bring the nan of log 0 or 1/0 into any derivative."""

    def f(x):
        y0, p = x[:3], x[3]

        def fn(t, y, args):
            return jnp.stack([-p * jnp.log(y[0]), -jnp.sqrt(p * y[1]), p / y[2]])

        return jnp.sum(solvers.solve(fn, y0, jnp.array([0.0, 0.4, 1.0]), method=method, **TIGHT).ys)

    def twice(x):
        gradient = jax.grad(f)(x)
        return gradient, gradient

    run = jax.jit(jax.jacfwd(twice, has_aux=True))
    x, eps = jnp.array([3.0, 2.0, 0.5, 0.8]), 1e-4
    second, first = run(x)
    # Two of three have closed forms.
    ts = jnp.array([0.0, 0.4, 1.0])
    root = lambda y, p: jnp.sum((jnp.sqrt(y) - jnp.sqrt(p) * ts / 2) ** 2)
    inverse = lambda y, p: jnp.sum(jnp.sqrt(y**2 + 2 * p * ts))
    np.testing.assert_allclose(first[1], jax.grad(root)(2.0, 0.8), rtol=1e-6)
    np.testing.assert_allclose(first[2], jax.grad(inverse)(0.5, 0.8), rtol=1e-6)
    np.testing.assert_allclose(second[1, 3], jax.grad(jax.grad(root), 1)(2.0, 0.8), rtol=1e-5)
    np.testing.assert_allclose(second[2, 3], jax.grad(jax.grad(inverse), 1)(0.5, 0.8), rtol=1e-5)
    for i in range(4):
        up, down = (run(x.at[i].add(d))[1] for d in (eps, -eps))
        np.testing.assert_allclose(second[i], (up - down) / (2 * eps), rtol=1e-4, atol=2e-5)


@twice_as_slow
def test_integers_booleans_and_keys_in_the_field(method):
    """In a closure and in the arguments; they have no derivatives and are no obstacle."""
    which, slow, key = jnp.array([1, 0, 1]), jnp.array([True, False, False]), jr.key(3)
    y0 = jnp.array([1.0, 2.0, 3.0])

    def rates(p, args, key):
        noise = 1 + 0.1 * jr.normal(key, (3,))
        return p[which] * jnp.where(args["slow"], 0.5, 1.0) * noise * args["n"].astype(float)

    def last(p, solved):
        args = {"slow": slow, "n": jnp.array(2), "key": key, "nothing": None}
        if solved:
            fn = lambda t, y, args: (
                -rates(p, args, jr.split(key)[0]) * y + 0 * jr.uniform(args["key"])
            )
            ts = jnp.array([0.0, 1.0])
            return solvers.solve(fn, y0, ts, args, method=method, **TIGHT).ys[-1].sum()
        return jnp.sum(y0 * jnp.exp(-rates(p, args, jr.split(key)[0])))

    p = jnp.array([0.3, 0.6])
    value, got = jax.jit(jax.value_and_grad(lambda p: last(p, True)))(p)
    np.testing.assert_allclose(value, last(p, False), rtol=1e-8)
    np.testing.assert_allclose(got, jax.grad(last)(p, False), rtol=1e-6)


@pytest.mark.slow
@twice_as_slow
def test_inside_scan_cond_and_checkpoint(method):
    def solve(y, k):
        fn = lambda t, y, args: -k * y
        return solvers.solve(fn, y, jnp.array([0.0, 1.0]), method=method, **TIGHT).ys[-1]

    def f(ks):
        y, _ = jax.lax.scan(lambda y, k: (solve(y, k), None), jnp.array(2.0), ks[:3])
        y = jax.lax.cond(ks[3] > 0, solve, lambda y, k: y, y, ks[3])
        return jax.checkpoint(solve)(y, ks[4]) ** 2

    def exact(ks):
        return (2 * jnp.exp(-ks[:3].sum() - jnp.maximum(ks[3], 0) - ks[4])) ** 2

    run = jax.jit(lambda ks: jax.jvp(jax.grad(f), (ks,), (jnp.ones(5),)))
    for ks in (jnp.array([0.1, 0.2, 0.3, 0.4, 0.5]), jnp.array([0.1, 0.2, 0.3, -0.4, 0.5])):
        first, second = run(ks)
        np.testing.assert_allclose(first, jax.grad(exact)(ks), rtol=1e-6)
        np.testing.assert_allclose(second, jax.hessian(exact)(ks).sum(1), rtol=1e-5)


@twice_as_slow
def test_a_failed_solve_has_no_gradient(method):
    def f(k):
        fn = lambda t, y, args: -k * y
        ts = jnp.array([0.0, 0.001, 3.0])
        return solvers.solve(fn, 1.0, ts, method=method, max_steps=7, **TIGHT).ys[:2].sum()

    value, grad = jax.jit(jax.value_and_grad(f))(2.0)
    # What was asked for is there, but its derivative is half of a solve's.
    np.testing.assert_allclose(value, 1 + np.exp(-0.002), rtol=1e-6)
    assert np.isnan(grad)


@twice_as_slow
def test_more_steps_than_the_record_holds(method, monkeypatch):
    monkeypatch.setattr(_record, "SEGMENTS", 2)
    monkeypatch.setattr(_tangents, "SEGMENTS", 2)

    def f(w, rtol):
        fn = lambda t, y, w: jnp.stack([w * y[1], -w * y[0]])
        ts, y0 = jnp.array([0.0, 10.0]), jnp.array([1.0, 0.0])
        sol = solvers.solve(fn, y0, ts, w, method=method, rtol=rtol, atol=1e-9, throw=False)
        return sol.ys[-1, 0], (sol.ok, sol.stats["accepted"], sol.result)

    run = jax.jit(jax.value_and_grad(f, has_aux=True))
    (value, (ok, accepted, _)), grad = run(0.5, 1e-4)
    assert ok and accepted < 64
    np.testing.assert_allclose([value, grad], [np.cos(5.0), -10 * np.sin(5.0)], atol=1e-2)
    (value, (ok, accepted, result)), grad = run(5.0, 1e-8)
    assert not ok and accepted == 64 and bool(result == solvers.RESULTS.record_full)
    assert np.isnan(value) and np.isnan(grad)
    # Without a derivative nothing is recorded, and the solve is fine.
    value, (ok, accepted, _) = jax.jit(f)(5.0, 1e-8)
    assert ok and accepted > 64
    np.testing.assert_allclose(value, np.cos(50.0), atol=1e-5)

"""Derivatives of a solve, in every mode and of everything that goes in."""

import diffrax
import equinox as eqx
import helpers
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import decay, lotka_volterra, problem

from sciml import solvers


def _weighted(ys):
    """One smooth number of all that is saved."""
    return sum(
        jnp.sum(jnp.sin(0.3 * x + jnp.arange(float(x.size)).reshape(x.shape)))
        for x in jax.tree.leaves(ys)
    )


def _second(f, argnums=0):
    """The Hessian and, from the same compilation, the gradient."""

    def twice(*point):
        gradient = jax.grad(f, argnums)(*point)
        return gradient, gradient

    return jax.jit(jax.jacfwd(twice, argnums, has_aux=True))


@pytest.mark.parametrize(
    ("name", "method"),
    [("oscillator", solvers.RK4()), ("forced", solvers.RK4()), ("logistic", solvers.Tsit5())],
    ids=["oscillator", "forced", "logistic"],
)
def test_fixed_steps(name, method):
    """Of the start, the arguments and the save times, first and second, forward and reverse."""
    p = problem[name]
    everything = (0, 1, 2)
    point = (p.y0, p.args, p.times()[1:])
    times = lambda ts: jnp.concatenate([jnp.zeros(1), ts])

    def loss(y0, args, ts):
        return _weighted(
            solvers.solve(p.fn, y0, times(ts), args, method=method, steps=30, throw=False).ys
        )

    def exact(y0, args, ts):
        return _weighted(jax.vmap(p.exact, in_axes=(0, None, None))(times(ts), y0, args))

    want_second, want = _second(exact, everything)(*point)
    got_second, got = _second(loss, everything)(*point)
    forward = jax.jit(jax.jacfwd(loss, everything))(*point)
    helpers.assert_close(got, want, rtol=1e-6, atol=2e-7)
    helpers.assert_close(forward, want, rtol=1e-6, atol=2e-7)
    helpers.assert_close(got_second, want_second, rtol=1e-5, atol=1e-6)


def test_the_first_time():
    def final(t0):
        ts = jnp.stack([t0, jnp.array(2.0)])
        return solvers.solve(decay, jnp.array([1.0]), ts, 0.7, steps=40).ys[-1, 0]

    second, first = _second(final)(0.5)
    np.testing.assert_allclose(first, 0.7 * np.exp(-0.7 * 1.5), rtol=1e-8)
    np.testing.assert_allclose(second, 0.49 * np.exp(-0.7 * 1.5), rtol=1e-7)


def test_modules_and_closures():
    class Field(eqx.Module):
        k: jax.Array
        n: int  # a count: not trained, and no obstacle

        def __call__(self, t, y, args):
            return -self.k * y * self.n

    def final(k, through):
        fn = Field(k, 2) if through == "module" else (lambda t, y, args: -2 * k * y)
        return solvers.solve(fn, jnp.array([1.0]), jnp.array([0.0, 1.0]), steps=20).ys[-1, 0]

    for through in ("module", "closure"):
        for mode in (jax.grad, jax.jacfwd):
            got = jax.jit(mode(lambda k: final(k, through)))(0.35)  # noqa: B023
            np.testing.assert_allclose(got, -2 * np.exp(-0.7), rtol=1e-7)


def test_without_jit_too():
    f = lambda k: solvers.solve(decay, jnp.array([1.0]), jnp.array([0.0, 1.0]), k, steps=20).ys[
        -1, 0
    ]
    np.testing.assert_allclose(jax.grad(f)(0.7), -np.exp(-0.7), rtol=1e-7)


def test_checkpointing_changes_nothing():
    p = problem["forced"]
    ts = p.times(3)

    def plain(y0, k):
        y, h = y0, ts[1] / 2
        for i in range(4):
            y = solvers.RK4().advance(lambda t, y: p.fn(t, y, k), i * h, y, h)
        return y.sum()

    saved = lambda y0, k: (
        solvers.solve(p.fn, y0, ts, k, method=solvers.RK4(), steps=2, throw=False).ys[-1].sum()
    )
    for mode in (jax.grad, jax.hessian):
        got, want = (jax.jit(mode(f, (0, 1)))(p.y0, p.args) for f in (saved, plain))
        helpers.assert_close(got, want, rtol=1e-12)


def test_vmap_is_a_loop():
    f = lambda y0, k: solvers.solve(decay, y0, jnp.array([0.0, 0.5, 1.0]), k, steps=5).ys
    df = lambda y0, k: jax.grad(lambda y0, k: f(y0, k)[-1].sum(), (0, 1))(y0, k)
    y0s, ks = jnp.arange(1.0, 7.0).reshape(3, 2), jnp.array([0.1, 1.0, 3.0])
    for g in (f, df):
        together = jax.jit(jax.vmap(g))(y0s, ks)
        alone = [jax.jit(g)(y, k) for y, k in zip(y0s, ks, strict=True)]
        helpers.assert_close(together, jax.tree.map(lambda *x: jnp.stack(x), *alone), rtol=1e-13)


def test_vmap_of_adaptive_steps_is_a_loop():
    run = lambda k: solvers.solve(decay, jnp.array([1.0]), jnp.array([0.0, 0.5, 1.0]), k)
    ks = jnp.array([0.1, 30.0])
    together = jax.jit(jax.vmap(run))(ks)
    for i, k in enumerate(ks):
        alone = run(k)
        np.testing.assert_allclose(together.ys[i], alone.ys, rtol=1e-9, atol=1e-15)
        assert together.stats["accepted"][i] == alone.stats["accepted"]
    assert together.stats["accepted"][1] > together.stats["accepted"][0]


# Cases 16 and 17: y(10) by the parameters, and the sum over 11 times and both states.
P = jnp.array([1.5, 1.0, 0.5, 1.0])
SENSITIVITIES = [
    [-0.476228775323, 0.679074288835, -0.196473947714, 0.350348380227],
    [-2.538765234893, -0.799666304417, -2.127817192863, -3.017377169368],
]
GRADIENT = [5.670857766428, -16.986676992491, -45.282872468820, 14.413699981180]


def _lotka_volterra(p, **options):
    return solvers.solve(
        lotka_volterra, jnp.ones(2), jnp.arange(11.0), p, throw=False, **options
    ).ys


HESSIAN_ROW = [-9.867534, -7.384040, 9.094696, -19.777745]
FIRST = jnp.array([1.0, 0.0, 0.0, 0.0])


def test_adaptive_steps_forward():
    run = lambda p: _lotka_volterra(p, rtol=1e-9, atol=1e-11)[-1]
    np.testing.assert_allclose(jax.jit(jax.jacfwd(run))(P), SENSITIVITIES, rtol=1e-6)


def test_adaptive_steps_reverse_and_forward_over_reverse():
    def final(k):
        ts = jnp.array([0.0, 2.0])
        options = {
            "rtol": 1e-9,
            "atol": 1e-11,
            "max_steps": 256,
            "throw": False,
            "method": solvers.Tsit5(),
        }
        return solvers.solve(decay, jnp.array(1.0), ts, k, **options).ys[-1]

    second, first = _second(final)(0.7)
    np.testing.assert_allclose(first, -2 * np.exp(-1.4), rtol=1e-7)
    np.testing.assert_allclose(second, 0.986387855766, rtol=1e-6)


def test_fixed_steps_on_lotka_volterra():
    gradient = jax.grad(lambda p: _lotka_volterra(p, steps=100).sum())
    first, second = jax.jit(lambda p: jax.jvp(gradient, (p,), (FIRST,)))(P)
    np.testing.assert_allclose(first, GRADIENT, rtol=1e-8)
    np.testing.assert_allclose(second, HESSIAN_ROW, rtol=1e-6)


@pytest.mark.slow
def test_implicit_methods():
    # A linear stiff pair: y1 follows cos t within 1/k.
    def final(k):
        fn = lambda t, y, k: jnp.stack([-k * (y[0] - jnp.cos(t)), y[0] - y[1]])
        sol = solvers.solve(
            fn,
            jnp.array([1.0, 0.0]),
            jnp.array([0.0, 1.0]),
            k,
            method=diffrax.Kvaerno5(),
            rtol=1e-8,
            atol=1e-10,
            throw=False,
        )
        return sol.ys[-1, 0]

    def exact(k):
        return k * (k * jnp.cos(1.0) + jnp.sin(1.0)) / (1 + k**2) + jnp.exp(-k) / (1 + k**2)

    np.testing.assert_allclose(jax.jit(jax.jacfwd(final))(100.0), jax.grad(exact)(100.0), rtol=1e-4)


@pytest.mark.slow
def test_an_adjoint_may_be_chosen():
    def final(k):
        return solvers.solve(
            decay,
            jnp.array(1.0),
            jnp.array([0.0, 2.0]),
            k,
            method=diffrax.Tsit5(),
            adjoint=diffrax.RecursiveCheckpointAdjoint(),
            throw=False,
        ).ys[-1]

    np.testing.assert_allclose(jax.jit(jax.grad(final))(0.7), -2 * np.exp(-1.4), rtol=1e-4)
    with pytest.raises(TypeError, match="forward-mode"):  # it is the one that runs
        jax.jacfwd(final)(0.7)


def test_an_adjoint_for_our_own_methods_is_refused():
    with pytest.raises(ValueError, match="`adjoint=` is for Diffrax's solvers"):
        solvers.solve(
            decay, 1.0, jnp.array([0.0, 1.0]), 0.7, adjoint=diffrax.RecursiveCheckpointAdjoint()
        )


@pytest.mark.slow
def test_the_solution_of_least_squares_has_derivatives():
    # min (p0 - a)^2 + (p1 - a^2)^2 with p1 <= 1: the bound is active for a > 1.
    def solution(a):
        sol = solvers.least_squares(
            lambda p, a: jnp.stack([p[0] - a, p[1] - a**2, 0.1 * p[0] * p[1]]),
            jnp.array([0.5, 0.5]), a, bounds=(-10.0, 1.0), throw=False,
        )  # fmt: skip
        return sol.value

    for a in (0.6, 1.3):
        h = 1e-5
        want = (solution(a + h) - solution(a - h)) / (2 * h)
        np.testing.assert_allclose(jax.jacfwd(solution)(a), want, rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(jax.jacrev(solution)(a), want, rtol=1e-6, atol=1e-9)
    second = jax.jacfwd(jax.jacrev(solution))(0.6)
    h = 1e-4
    want = (jax.jacrev(solution)(0.6 + h) - jax.jacrev(solution)(0.6 - h)) / (2 * h)
    np.testing.assert_allclose(second, want, rtol=1e-4, atol=1e-7)

"""The engine's less travelled ways: each must give what the usual way gives."""

import helpers
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from helpers import problem

from sciml import solvers
from sciml.solvers import _record, _stiffness, _tangents
from sciml.solvers._linear import factorise


methods = helpers.each_kind
twice_as_slow = helpers.each_kind_the_second_slow
TIGHT = {"rtol": 1e-9, "atol": 1e-11, "throw": False}


def turning(t, y, p):
    """A rotation by the angle `p0 t + p1 t^2 / 2`."""
    w = p[0] + p[1] * t
    return jnp.stack([-w * y[1], w * y[0]])


def turned(t, y0, p):
    angle = p[0] * t + p[1] * t**2 / 2
    c, s = jnp.cos(angle), jnp.sin(angle)
    return jnp.stack([c * y0[0] - s * y0[1], s * y0[0] + c * y0[1]])


def derivatives(f, p):
    """The gradient, and the Hessian along one direction."""
    return jax.jit(lambda p: jax.jvp(jax.grad(f), (p,), (jnp.array([1.0, -2.0]),)))(p)


@twice_as_slow
@pytest.mark.parametrize("kept", [{"KEPT_SIZE": 0}, {"KEPT": 1}], ids=["none", "one segment"])
def test_states_are_recomputed_where_they_are_not_kept(method, kept, monkeypatch):
    y0, ts, p = jnp.array([1.0, 0.0]), jnp.array([0.0, 2.0, 6.0]), jnp.array([2.0, 0.8])
    steps = []
    for name, value in kept.items():
        monkeypatch.setattr(_record, name, value)
        monkeypatch.setattr(_tangents, name, value, raising=False)

    fresh = lambda *a: turning(*a)  # nothing that was compiled before fits it

    def f(p):
        sol = solvers.solve(fresh, y0, ts, p, method=method, **TIGHT)
        jax.debug.callback(steps.append, sol.stats["accepted"])
        return jnp.sum(sol.ys[:, 0])

    exact = lambda p: jnp.sum(jax.vmap(turned, (0, None, None))(ts, y0, p)[:, 0])
    got, want = derivatives(f, p), derivatives(exact, p)
    jax.effects_barrier()
    assert steps[-1] > 2 * _record.SEGMENT  # several segments
    np.testing.assert_allclose(got[0], want[0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(got[1], want[1], rtol=1e-4, atol=1e-4)


def test_many_unknowns():
    n = 600
    assert n > _record.KEPT_SIZE
    k = jnp.linspace(0.1, 2.0, n)
    f = lambda k: solvers.solve(helpers.decay, jnp.ones(n), jnp.array([0.0, 1.0]), k, **TIGHT).ys[
        -1
    ]
    got = jax.jit(jax.grad(lambda k: f(k).sum()))(k)
    np.testing.assert_allclose(got, -np.exp(-k), rtol=1e-7)


@twice_as_slow
def test_parameters_shared_by_a_batch(method, monkeypatch):
    """Many of them stay out of the unknowns."""
    y0s, p = jnp.array([[1.0, 1.0], [2.0, 0.5], [0.7, 3.0]]), jnp.array([1.0, 0.6])
    ts = jnp.array([0.0, 0.7, 2.0])
    seen = []
    is_batched = _tangents.is_batched
    monkeypatch.setattr(_tangents, "is_batched", lambda x: seen.append(is_batched(x)) or seen[-1])
    monkeypatch.setattr(_tangents, "_FEW", 0)
    fresh = lambda *a: turning(*a)  # nothing that was compiled before fits it

    def f(p):
        run = lambda y0: solvers.solve(fresh, y0, ts, p, method=method, **TIGHT).ys
        return jnp.sum(jnp.sin(jax.vmap(run)(y0s)))

    def exact(p):
        run = lambda y0: jax.vmap(turned, (0, None, None))(ts, y0, p)
        return jnp.sum(jnp.sin(jax.vmap(run)(y0s)))

    got, want = derivatives(f, p), derivatives(exact, p)
    assert seen[:2] == [True, False]  # the start is batched, the parameters are not
    helpers.assert_close(got, want, rtol=1e-6, atol=1e-6)


def test_rodas5p_with_a_factorisation_from_lapack():
    n = 40
    rng = np.random.default_rng(1)
    a = rng.normal(size=(n, n)) - 12 * np.eye(n)
    a[0, 0] = -1e4  # stiff
    y0, w = jnp.asarray(rng.normal(size=n)), jnp.asarray(rng.normal(size=n))
    fn = lambda t, y, args: args[0] * (args[1] @ y)

    def f(p, y0, t1):
        ts = jnp.stack([jnp.zeros(()), t1])
        options = {"rtol": 1e-8, "atol": 1e-10, "throw": False, "method": solvers.Rodas5P()}
        return w @ solvers.solve(fn, y0, ts, (p, jnp.asarray(a)), **options).ys[-1]

    p, t1 = 0.8, 0.2
    value, (by_p, by_y0, by_t1) = jax.jit(jax.value_and_grad(f, (0, 1, 2)))(p, y0, t1)
    e = scipy.linalg.expm(p * a * t1)
    np.testing.assert_allclose(value, w @ e @ y0, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(by_y0, e.T @ w, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(by_p, t1 * w @ a @ e @ y0, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(by_t1, p * w @ a @ e @ y0, rtol=1e-5, atol=1e-7)


@methods
def test_single_precision(method):
    p = problem["bell"]
    y0, a = p.y0.astype(jnp.float32), p.args.astype(jnp.float32)
    ts = jnp.array([0.0, 0.4, 1.0], jnp.float32)

    def f(y0, a):
        ys = solvers.solve(p.fn, y0, ts, a, method=method, throw=False).ys
        return jnp.sum(ys[1:] ** 2)

    def exact(y0, a):
        return jnp.sum(jax.vmap(p.exact, in_axes=(0, None, None))(ts[1:], y0, a) ** 2)

    value, got = jax.jit(jax.value_and_grad(f, (0, 1)))(y0, a)
    assert all(x.dtype == jnp.float32 for x in (value, *got))
    helpers.assert_close((value, got), jax.value_and_grad(exact, (0, 1))(y0, a), rtol=2e-4)


@pytest.mark.parametrize("n", [1, 3, 40])
def test_factorise(n):
    rng = np.random.default_rng(n)
    m, b = jnp.asarray(rng.normal(size=(n, n)) + 3 * np.eye(n)), jnp.asarray(rng.normal(size=n))
    ours = lambda m, b: factorise(m)(b)
    loss = lambda solve: lambda m, b: jnp.sum(jnp.sin(solve(m, b)))
    point, tangent = (m, b), (m.T * m, b**2)
    np.testing.assert_allclose(ours(m, b), jnp.linalg.solve(m, b), rtol=1e-10, atol=1e-12)

    def derivatives(solve):
        first = jax.grad(loss(solve), (0, 1))
        forward = jax.jvp(solve, point, tangent)
        return forward, jax.jvp(first, point, tangent), jax.vmap(solve, (None, 0))(m, m)

    got, want = (jax.jit(derivatives, static_argnums=0)(s) for s in (ours, jnp.linalg.solve))
    helpers.assert_close(got, want, rtol=1e-8, atol=1e-10)


def test_factorise_pivots_and_batches():
    m = jnp.array([[0.0, 1.0, 0.0], [1e-20, 0.0, 1.0], [2.0, 0.0, 1.0]])
    b = jnp.array([1.0, 2.0, 3.0])
    np.testing.assert_allclose(factorise(m)(b), jnp.linalg.solve(m, b), rtol=1e-14)
    ms = jnp.stack([m, m.T, jnp.eye(3)])
    got = jax.vmap(lambda m: factorise(m)(b))(ms)
    np.testing.assert_allclose(got, [np.linalg.solve(m, b) for m in ms], rtol=1e-13)


@pytest.mark.parametrize("n", [3, 40])
def test_a_singular_matrix_gives_no_finite_solution(n):
    m = jnp.eye(n).at[1, 1].set(0.0)
    assert not np.isfinite(factorise(m)(jnp.ones(n))).all()
    assert not np.isfinite(factorise(jnp.zeros((n, n)))(jnp.ones(n))).all()


@pytest.mark.slow
@pytest.mark.skipif(jax.device_count() < 8, reason="needs 8 devices; see the root conftest.py")
@methods
def test_shards(method):
    """Values and gradients of what is spread and of what all share, with varying types checked."""
    axis_types = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((8,), ("member",), axis_types=axis_types)
    ks = jnp.linspace(0.5, 5.0, 16)
    ts = jnp.array([0.0, 0.5, 1.0])

    def fn(t, y, args):
        k, shared = args
        return shared[0] * k * (jnp.cos(t) - y) + shared[1] * y**2

    def local(ks, shared):
        options = {"method": method} | TIGHT
        run = lambda k: solvers.solve(fn, jnp.array([0.5]), ts, (k, shared), **options).ys
        return jax.vmap(run)(ks)

    members, everywhere = jax.P("member"), jax.P()
    spread = jax.shard_map(
        local, mesh=mesh, in_specs=(members, everywhere), out_specs=members, check_vma=True
    )
    shared = jnp.array([1.0, 0.1])

    def everything(run):
        def loss(ks, shared):
            ys = run(ks, shared)
            return jnp.sum(jnp.sin(ys)), ys

        return jax.value_and_grad(loss, (0, 1), has_aux=True)

    compiled = jax.jit(everything(spread)).lower(ks, shared).compile()
    hlo = compiled.as_text()
    bodies = helpers.loop_bodies(hlo)
    assert bodies and helpers.COLLECTIVES.search(hlo)  # those of the sums at the end
    for name, text in bodies.items():
        assert text and not helpers.COLLECTIVES.search(text), name
    # Only now: with one inside a loop the devices would wait for each other for ever.
    want = jax.jit(everything(local))(ks, shared)
    helpers.assert_close(compiled(ks, shared), want, rtol=1e-10, atol=1e-12)


@pytest.mark.slow
@twice_as_slow
def test_dense_output_and_its_derivatives(method):
    p = problem["forced"]

    def at(t, y0, k, t1):
        ts = jnp.stack([jnp.zeros(()), t1])
        return solvers.solve(p.fn, y0, ts, k, method=method, dense=True, **TIGHT).at(t)[0]

    exact = lambda t, y0, k, t1: p.exact(t, y0, k)[0]
    everything = (0, 1, 2, 3)
    run = jax.jit(
        lambda *x: jax.vmap(jax.value_and_grad(at, everything), (0, None, None, None))(*x)
    )
    x = (p.y0, p.args, jnp.array(p.t1))
    ts = jnp.array([0.0, 0.011, 0.5, 1.2345, 2.9, 3.0])
    value, got = run(ts, *x)
    want_value, want = jax.vmap(jax.value_and_grad(exact, everything), (0, None, None, None))(
        ts, *x
    )
    np.testing.assert_allclose(value, want_value, rtol=1e-7)
    helpers.assert_close(got[1:], want[1:], rtol=1e-6, atol=1e-6)
    # By the time it is the interpolant's slope, of one order less; at the very ends, one side.
    np.testing.assert_allclose(got[0], want[0], atol=1e-5)
    value, _ = run(jnp.array([-0.1, 3.1]), *x)
    assert np.isnan(value).all()


def test_the_ratio_that_tells_stiffness():
    """|h| times the spectral radius, for real and complex pairs of eigenvalues."""
    real = jnp.array([[-1.0, 3.0, 0.0], [0.0, -50.0, 1.0], [0.0, 0.0, -3.0]])
    pair = jnp.array([[-1.0, 20.0], [-20.0, -1.0]])
    linear = lambda t, y, a: a @ y
    for a, radius in ((real, 50.0), (pair, np.hypot(20, 1))):
        y = jnp.ones(len(a))
        for h in (0.03, -0.03):
            ratio = _stiffness._ratio(linear, a, jnp.array(0.0), y, jnp.array(h))
            np.testing.assert_allclose(ratio, 0.03 * radius, rtol=1e-2)
    # On the limit of stability it is found stiff, and not when the tolerance holds the steps.
    for k, stiff in ((1e4, True), (1.0, False)):
        fn = lambda t, y, k: k * (jnp.cos(t) - y)
        options = {"method": solvers.Tsit5(), "max_steps": 300, "throw": False}
        tolerance = 1e-3 if stiff else 1e-14
        sol = solvers.solve(
            fn, 0.0, jnp.array([0.0, 100.0]), k, rtol=tolerance, atol=tolerance, **options
        )
        assert bool(sol.result == solvers.RESULTS.looks_stiff) == stiff


@pytest.mark.skipif(jax.device_count() < 8, reason="needs 8 devices; see the root conftest.py")
def test_a_closure_over_what_all_devices_share_is_refused():
    mesh = jax.make_mesh((8,), ("member",), axis_types=(jax.sharding.AxisType.Auto,))
    ts = jnp.array([0.0, 1.0])

    def loss(shared, ks):
        fn = lambda t, y, k: -shared * k * y
        return solvers.solve(fn, jnp.array([1.0]), ts, ks[0], throw=False).ys[-1]

    specs = (jax.P(), jax.P("member"))
    spread = jax.shard_map(loss, mesh=mesh, in_specs=specs, out_specs=jax.P("member"))
    with pytest.raises(ValueError, match="Pass it as `args`"):
        jax.jit(jax.grad(lambda s: spread(s, jnp.arange(1.0, 9.0)).sum()))(1.0)


@pytest.mark.skipif(jax.device_count() < 8, reason="needs 8 devices; see the root conftest.py")
def test_tolerances_that_differ_between_shards():
    mesh = jax.make_mesh((8,), ("member",), axis_types=(jax.sharding.AxisType.Auto,))
    run = lambda rtol: solvers.solve(
        helpers.decay, jnp.array([1.0]), jnp.array([0.0, 1.0]), 0.7, rtol=rtol, throw=False
    ).ys[-1, 0]
    spread = jax.shard_map(
        jax.vmap(run), mesh=mesh, in_specs=jax.P("member"), out_specs=jax.P("member")
    )
    tols = jnp.logspace(-8, -3, 8)
    np.testing.assert_allclose(jax.jit(spread)(tols), jax.vmap(run)(tols), rtol=1e-12)

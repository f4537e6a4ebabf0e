"""A batch of solves under `jax.vmap`: one loop for all, without copies of what it carries."""

import helpers
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend import core

from sciml import solvers


methods = helpers.each_kind_the_second_slow
RATES = jnp.array([0.1, 30.0, -3.0])  # different numbers of steps
TIMES = jnp.array([[0.0, 0.0, 0.5, 2.0], [0.0, 0.01, 0.02, 0.1], [1.0, 0.7, -0.5, -0.5]])


def forced(t, y, k):
    return -k * (y - jnp.cos(t)) * y


def solve(k, ts, method):
    y0 = jnp.array([1.5, 0.8])
    return solvers.solve(forced, y0, ts, k, method=method, rtol=1e-8, atol=1e-10, throw=False)


@methods
def test_members_equal_single_solves_with_their_own_times(method):
    members = jax.jit(jax.vmap(lambda k, ts: solve(k, ts, method)))(RATES, TIMES)
    assert len(set(members.stats["accepted"].tolist())) == 3
    for i, (k, ts) in enumerate(zip(RATES, TIMES, strict=True)):
        one = solve(k, ts, method)
        np.testing.assert_allclose(members.ys[i], one.ys, rtol=1e-9)
        for name, value in one.stats.items():
            np.testing.assert_allclose(members.stats[name][i], value, rtol=1e-5, err_msg=name)
        assert bool(members.ok[i])


@pytest.mark.slow
@methods
def test_derivatives_of_members_equal_those_of_single_solves(method):
    loss = lambda k, ts: jnp.sum(jnp.sin(solve(k, ts, method).ys))
    both = lambda k, ts: jax.jvp(jax.grad(loss, (0, 1)), (k, ts), (1.0 + 0 * k, 0.3 + 0 * ts))
    members = jax.jit(jax.vmap(both))(RATES, TIMES)
    for i, (k, ts) in enumerate(zip(RATES, TIMES, strict=True)):
        helpers.assert_close(
            jax.tree.map(lambda x, i=i: x[i], members), jax.jit(both)(k, ts), rtol=1e-7, atol=1e-9
        )


def test_a_member_that_fails_leaves_the_others_alone():
    blows_up = lambda t, y, k: k * y**2
    run = lambda k: solvers.solve(
        blows_up, jnp.array([1.0]), jnp.array([0.0, 1.0, 2.0]), k, throw=False
    )
    ks = jnp.array([0.1, 0.7, jnp.nan, -1.0])
    sol = jax.jit(jax.vmap(run))(ks)
    np.testing.assert_array_equal(sol.ok, [True, False, False, True])
    np.testing.assert_array_equal(sol.valid[1], [True, True, False])
    grads = jax.jit(jax.vmap(jax.grad(lambda k: run(k).ys[-1, 0])))(ks)
    exact = lambda k: 2 / (1 - 2 * k) ** 2
    np.testing.assert_allclose(grads[jnp.array([0, 3])], exact(ks[jnp.array([0, 3])]), rtol=1e-4)
    assert bool(jnp.isnan(grads[1:3]).all())


def test_ragged_members_padded_with_their_last_time():
    """Measurements of three subjects (case 19)."""
    ts = jnp.array([[0.0, 1, 2, 3, 4], [0, 0.5, 1.5, 2.5, 2.5], [0, 1, 1, 1, 1]])
    measured = jnp.array([[1.0, 1, 1, 1, 1], [0, 1, 1, 1, 0], [0, 1, 0, 0, 0]])
    ks = jnp.array([0.5, 1.0, 2.0])
    tols = {"method": solvers.Tsit5(), "rtol": 1e-8, "atol": 1e-10}
    run = lambda k, ts: solvers.solve(helpers.decay, jnp.array([1.0]), ts, k, **tols)

    def loss(ks):
        ys = jax.vmap(run)(ks, ts).ys[..., 0]
        return jnp.sum(measured * (ys - 0.3) ** 2), ys

    (value, ys), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(ks)
    exact = jnp.exp(-ks[:, None] * ts)
    np.testing.assert_allclose(ys, exact, rtol=1e-6)
    np.testing.assert_allclose(value, jnp.sum(measured * (exact - 0.3) ** 2), rtol=1e-6)
    slopes = jnp.sum(measured * 2 * (exact - 0.3) * -ts * exact, axis=1)
    np.testing.assert_allclose(gradient, slopes, rtol=1e-5)
    # No integration past a subject's last time.
    steps = jax.jit(jax.vmap(run))(ks, ts).stats
    np.testing.assert_allclose(steps["reached"], ts[:, -1])
    alone = [
        int(run(k, t[: n + 1]).stats["accepted"]) for k, t, n in zip(ks, ts, [4, 3, 1], strict=True)
    ]
    np.testing.assert_array_equal(steps["accepted"], alone)


def loops_of(jaxpr, inside=False):
    """All equations inside loops, and the loops themselves."""
    is_jaxpr = lambda x: isinstance(x, core.Jaxpr | core.ClosedJaxpr)
    for eqn in jaxpr.eqns:
        loop = eqn.primitive.name in ("while", "scan")
        if inside or loop:
            yield eqn
        params = eqn.params
        if eqn.primitive.name == "custom_linear_solve":  # its products don't run to first order
            params = {"solve": params["jaxprs"].transpose_solve}
        for param in jax.tree.leaves(params, is_leaf=is_jaxpr):
            if isinstance(param, core.ClosedJaxpr):
                yield from loops_of(param.jaxpr, inside or loop)
            elif isinstance(param, core.Jaxpr):
                yield from loops_of(param, inside or loop)


@pytest.mark.parametrize("what", ["values", "gradients"])
def test_nothing_long_is_copied_in_a_loop(what):
    """Under `vmap` a loop with a batched condition selects between all it carries, every turn."""
    rows = 1000
    ts = jnp.linspace(0.0, 2.0, rows)
    run = lambda k: jnp.sum(solve(k, ts, solvers.Tsit5()).ys)
    run = run if what == "values" else jax.grad(run)
    closed = jax.make_jaxpr(jax.vmap(run))(RATES)
    selects = [e for e in loops_of(closed.jaxpr) if e.primitive.name == "select_n"]
    assert selects
    assert max(e.outvars[0].aval.size for e in selects) < rows
    for loop in (e for e in loops_of(closed.jaxpr) if e.primitive.name == "while"):
        assert loop.params["cond_jaxpr"].out_avals[0].shape == ()


@pytest.mark.slow
def test_dense_output_of_members_that_reject_different_steps():
    def fn(t, y, mu):
        return jnp.stack([y[1], mu * (1 - y[0] ** 2) * y[1] - y[0]])

    ts, mus = jnp.linspace(0.0, 20.0, 11), jnp.array([0.5, 5.0, 12.0])
    y0, method = jnp.array([2.0, 0.0]), solvers.Tsit5()
    run = lambda mu, **options: solvers.solve(fn, y0, ts, mu, method=method, **options)
    at = lambda mu: run(mu, dense=True).at(ts)
    ys, dense = jax.jit(jax.vmap(lambda mu: (run(mu).ys, at(mu))))(mus)
    assert len(set(jax.vmap(run)(mus).stats["rejected"].tolist())) == 3
    np.testing.assert_allclose(dense, ys, atol=1e-8)
    slope = jax.grad(lambda mu: jnp.sum(at(mu)[:, 0]))
    np.testing.assert_allclose(jax.jit(jax.vmap(slope))(mus)[0], slope(mus[0]), rtol=1e-6)


def test_a_start_that_is_not_finite_saves_no_row():
    run = lambda k: solvers.solve(
        lambda t, y, k: jnp.log(k) * y, jnp.array([1.0]), jnp.linspace(0.0, 1.0, 3), k, throw=False
    )
    sol = jax.vmap(run)(jnp.array([2.0, -1.0]))
    np.testing.assert_array_equal(sol.valid, [[True, True, True], [False, False, False]])
    assert bool(jnp.isnan(sol.ys[1]).all())

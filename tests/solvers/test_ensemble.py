"""Many members at once: each equals its single solve, on one device and on several."""

import diffrax
import helpers
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import COLLECTIVES, decay, loop_bodies

from sciml import RESULTS, solvers


pytestmark = pytest.mark.skipif(
    jax.device_count() < 8, reason="needs 8 devices; see the root conftest.py"
)

TS = jnp.array([0.0, 0.5, 1.0])


def relax(t, y, k):
    """Case 45: stiffer and stiffer members follow cos t."""
    return -k * (y - jnp.cos(t))


def pendulum(t, y, args):
    return {"q": y["p"], "p": -args["g"] / args["l"] * jnp.sin(y["q"])}


def auto(shape=(8,), names=("member",)):
    return jax.make_mesh(shape, names, axis_types=(jax.sharding.AxisType.Auto,) * len(names))


def explicit(shape=(8,), names=("member",)):
    return jax.make_mesh(shape, names, axis_types=(jax.sharding.AxisType.Explicit,) * len(names))


def test_case_45():
    ks = jnp.linspace(1.0, 50.0, 16)
    sol = solvers.solve_ensemble(
        relax,
        jnp.array(0.5),
        jnp.array([0.0, 1.0]),
        ks,
        in_axes=(None, None, 0),
        mesh=auto((4, 2), ("a", "b")),
        method=solvers.RK4(),
        steps=2000,
    )
    want = [
        0.690886645338, 0.69283459677, 0.640453920522, 0.612951105858, 0.597104487497, 0.586895270448,
        0.579784155929, 0.574550809765, 0.5705397894, 0.567368343778, 0.564798191044, 0.562673320695,
        0.560887344756, 0.559365238827, 0.558052586338, 0.55690896198,
    ]  # fmt: skip
    np.testing.assert_allclose(sol.ys[:, -1], want, rtol=1e-10)


def test_members_equal_single_solves_on_fixed_steps():
    y0, ks = jnp.array([[1.0], [2.0], [3.0]]), jnp.array([0.5, 1.0, 20.0])
    sol = solvers.solve_ensemble(decay, y0, TS, ks, steps=5)
    assert sol.ys.shape == (3, 3, 1) and sol.ts.shape == (3, 3) and sol.ok.shape == (3,)
    for i in range(3):
        np.testing.assert_allclose(
            sol.ys[i], solvers.solve(decay, y0[i], TS, ks[i], steps=5).ys, rtol=1e-12
        )


def test_members_equal_single_solves_and_one_that_fails_is_a_value():
    # The fast one runs out of steps; the others don't notice.
    y0, ks = jnp.array([[1.0], [2.0], [3.0]]), jnp.array([0.5, 1e4, 5.0])
    options = {"max_steps": 40}
    sol = solvers.solve_ensemble(decay, y0, TS, ks, throw=False, **options)
    np.testing.assert_array_equal(sol.ok, [True, False, True])
    assert RESULTS.out_of_steps == jax.tree.map(lambda x: x[1], sol.result)
    assert np.isnan(sol.ys[1, -1]).all() and np.isfinite(sol.ys[jnp.array([0, 2])]).all()
    for i in range(3):
        alone = solvers.solve(
            decay, y0[i], TS, ks[i], method=solvers.Tsit5(), throw=False, **options
        )
        np.testing.assert_allclose(sol.ys[i], alone.ys, rtol=1e-9, atol=1e-15)
        for count in ("accepted", "rejected"):
            assert sol.stats[count][i] == alone.stats[count]
    with pytest.raises(
        RuntimeError, match=r"1 of 3 members failed, the first is member 1: The solver ran out"
    ):
        solvers.solve_ensemble(decay, y0, TS, ks, **options)


@pytest.mark.parametrize("mesh", [None, auto()], ids=["one", "mesh"])
def test_a_failing_member_on_fixed_steps(mesh):
    blow_up = lambda t, y, _: y**2
    y0 = jnp.array([0.5, 2.0, -1.0])
    run = lambda **kw: solvers.solve_ensemble(
        blow_up, y0, jnp.array([0.0, 1.0, 1.5]), in_axes=(0, None, None), steps=50, mesh=mesh, **kw
    )
    sol = run(throw=False)
    np.testing.assert_array_equal(sol.ok, [True, False, True])
    np.testing.assert_array_equal(sol.valid, [[True] * 3, [True, False, False], [True] * 3])
    np.testing.assert_array_equal(np.isnan(sol.ys), ~sol.valid)
    np.testing.assert_allclose(sol.ys[0], [0.5, 1.0, 2.0], rtol=1e-6)
    with pytest.raises(RuntimeError, match="1 of 3 members failed, the first is member 1"):
        run()


def test_a_failure_inside_jit_raises():
    run = jax.jit(
        lambda ks: (
            solvers.solve_ensemble(decay, jnp.ones(1), TS, ks, in_axes=(None, None, 0), steps=2).ys
        )
    )
    assert run(jnp.ones(2)).shape == (2, 3, 1)
    with pytest.raises(Exception, match="A member of `solve_ensemble` failed"):
        jax.block_until_ready(run(jnp.array([1.0, jnp.nan])))


AXES = {
    "states": (0, None, None),
    "arguments": (None, None, 0),
    "times": (None, 0, None),
    "all": (0, 0, 0),
    "one argument": (0, None, {"g": None, "l": 0}),
    "last": ({"q": -1, "p": 0}, None, None),
}


def _operands(axes, members=5):
    """What all share repeated along the axes of `axes`, differing from member to member."""
    grow = 1 + 0.1 * jnp.arange(float(members))
    y0 = {"q": jnp.array([1.0, 0.5]), "p": jnp.array([0.0, 0.1])}
    args = {"g": jnp.array(9.81), "l": jnp.array(2.0)}

    def spread(x, axis):
        return x if axis is None else jnp.stack([x * g for g in grow], axis)

    y_axes, t_axis, a_axes = axes
    full = lambda ax, tree: ax if isinstance(ax, dict) else dict.fromkeys(tree, ax)
    y_axes, a_axes = full(y_axes, y0), full(a_axes, args)
    operands = (
        {k: spread(v, y_axes[k]) for k, v in y0.items()},
        spread(TS, t_axis),
        {k: spread(v, a_axes[k]) for k, v in args.items()},
    )

    def member(i):
        take = lambda x, axis: x if axis is None else jnp.take(x, i, axis)
        y, ts, a = operands
        return (
            {k: take(v, y_axes[k]) for k, v in y.items()},
            take(ts, t_axis),
            {k: take(v, a_axes[k]) for k, v in a.items()},
        )

    return operands, member


@pytest.mark.parametrize("axes", AXES.values(), ids=AXES)
def test_axes_on_one_and_on_eight_devices(axes):
    operands, member = _operands(axes)
    run = lambda mesh: solvers.solve_ensemble(
        pendulum, *operands, in_axes=axes, method=solvers.RK4(), steps=8, mesh=mesh
    )
    one, eight = run(None), run(auto())
    helpers.assert_close((eight.ts, eight.ys), (one.ts, one.ys), rtol=1e-12, atol=1e-14)
    for i in (0, 4):
        y0, ts, args = member(i)
        alone = solvers.solve(pendulum, y0, ts, args, method=solvers.RK4(), steps=8)
        helpers.assert_close(jax.tree.map(lambda x: x[i], one.ys), alone.ys, rtol=1e-12, atol=1e-14)  # noqa: B023
        np.testing.assert_array_equal(one.ts[i], ts)


@pytest.mark.parametrize("make", [auto, explicit])
@pytest.mark.parametrize(
    ("members", "shape", "names"), [(13, (8,), ("m",)), (16, (4, 2), ("a", "b")), (3, (8,), ("m",))]
)
def test_meshes(make, members, shape, names):
    ks = jnp.linspace(0.5, 3.0, members)
    run = lambda mesh: solvers.solve_ensemble(
        decay, jnp.ones(2), TS, ks, in_axes=(None, None, 0), steps=4, mesh=mesh
    )
    one, many = run(None), run(make(shape, names))
    assert many.ys.shape == (members, 3, 2)
    np.testing.assert_allclose(many.ys, one.ys, rtol=1e-12)
    np.testing.assert_array_equal(many.ok, one.ok)
    for k, v in one.stats.items():
        np.testing.assert_allclose(many.stats[k], v, rtol=1e-12, err_msg=k)
    if members % 8 == 0:
        assert len(many.ys.sharding.device_set) == 8
        assert {s.data.shape for s in many.ys.addressable_shards} == {(members // 8, 3, 2)}


@pytest.mark.parametrize("make", [auto, explicit])
def test_gradients_through_a_mesh(make):
    ks = jnp.linspace(0.5, 3.0, 11)

    def loss(ks, y0, mesh):
        sol = solvers.solve_ensemble(
            decay, y0, TS, ks, in_axes=(None, None, 0), steps=4, mesh=mesh, throw=False
        )
        return jnp.sum(jnp.sin(sol.ys))

    mesh = make()
    for mode in (jax.grad, jax.jacfwd):
        got = jax.jit(mode(lambda ks, y0: loss(ks, y0, mesh), (0, 1)))(ks, jnp.ones(2))
        want = jax.jit(mode(lambda ks, y0: loss(ks, y0, None), (0, 1)))(ks, jnp.ones(2))
        helpers.assert_close(got, want, rtol=1e-12)


def test_members_already_spread_stay_where_they_are():
    mesh = auto()
    ks = jax.device_put(jnp.linspace(0.5, 3.0, 16), jax.NamedSharding(mesh, jax.P("member")))
    sol = solvers.solve_ensemble(
        decay, jnp.ones(1), TS, ks, in_axes=(None, None, 0), steps=4, mesh=mesh
    )
    assert sol.ys.sharding.is_equivalent_to(jax.NamedSharding(mesh, jax.P("member")), 3)
    alone = solvers.solve_ensemble(
        decay, jnp.ones(1), TS, jnp.linspace(0.5, 3.0, 16), in_axes=(None, None, 0), steps=4
    )
    np.testing.assert_allclose(sol.ys, alone.ys, rtol=1e-12)


def test_an_array_in_the_field_is_shared():
    import equinox as eqx

    class Field(eqx.Module):
        rate: jax.Array

        def __call__(self, t, y, args):
            return -self.rate * args * y

    ks = jnp.linspace(0.5, 3.0, 5)
    run = lambda mesh: solvers.solve_ensemble(
        Field(jnp.array(2.0)), jnp.ones(1), TS, ks, in_axes=(None, None, 0), steps=20, mesh=mesh
    )
    np.testing.assert_allclose(run(auto()).ys[:, -1, 0], np.exp(-2 * ks), rtol=1e-6)


@pytest.mark.parametrize("gradient", [False, True], ids=["value", "gradient"])
def test_devices_do_not_talk_inside_the_loop(gradient):
    mesh = auto()

    def loss(ks):
        sol = solvers.solve_ensemble(
            decay, jnp.ones(3), TS, ks, in_axes=(None, None, 0), steps=50, mesh=mesh, throw=False
        )
        return jnp.sum(sol.ys)

    hlo = jax.jit(jax.grad(loss) if gradient else loss).lower(jnp.ones(16)).compile().as_text()
    bodies = loop_bodies(hlo)
    assert bodies, "the scan is not a loop any more"
    for name, text in bodies.items():
        assert text, name
        assert not COLLECTIVES.search(text), name
    # The sum at the end needs one, so that the search can find something.
    assert COLLECTIVES.search(hlo)


def test_the_search_for_collectives_finds_them():
    mesh = auto()

    def f(x):
        body = lambda _, x: x - 1e-3 * jax.lax.psum(x, "member")
        return jax.lax.fori_loop(0, 10, body, x)

    run = jax.shard_map(
        f, mesh=mesh, in_specs=jax.P("member"), out_specs=jax.P("member"), check_vma=False
    )
    hlo = jax.jit(run).lower(jnp.ones(16)).compile().as_text()
    assert any(COLLECTIVES.search(text) for text in loop_bodies(hlo).values())


def test_nothing_is_traced_twice():
    traces = []

    def fn(t, y, k):
        traces.append(1)
        return -k * y

    run = lambda ks, mesh: solvers.solve_ensemble(
        fn, jnp.ones(1), TS, ks, in_axes=(None, None, 0), steps=2, mesh=mesh
    )
    run(jnp.ones(4), auto())
    before = len(traces)
    assert before > 0
    run(jnp.linspace(0.0, 1.0, 4), auto())
    assert len(traces) == before


def test_diffrax_on_a_mesh_is_refused():
    mesh = jax.make_mesh((8,), ("member",))
    with pytest.raises(ValueError, match="`mesh=` needs one of our own methods"):
        solvers.solve_ensemble(
            decay, jnp.ones((8, 1)), jnp.array([0.0, 1.0]), jnp.ones(8),
            mesh=mesh, method=diffrax.Kvaerno5(),
        )  # fmt: skip


@pytest.mark.slow
def test_doses_events_and_inputs_on_a_mesh_equal_one_device():
    ks, held = jnp.linspace(0.1, 1.0, 6), solvers.Input([0.0, 2.0], [1.0, 0.5], kind="zoh")
    fn = lambda t, y, args: args[1](t) - args[0] * y
    options = {
        "doses": solvers.Doses([1.0], 1.0),
        "events": solvers.Event(lambda t, y, args: y[0] - 1.5, direction=1, terminate=False),
        "max_events": 2,
        "in_axes": (0, None, (0, None)),
        "method": solvers.Tsit5(),
    }

    def run(ks, **where):
        sol = solvers.solve_ensemble(
            fn, jnp.zeros((6, 1)), jnp.array([0.0, 1.5, 3.0]), (ks, held), **options, **where
        )
        return sol.ys.sum(), (sol.ys, sol.events.t, sol.events.index)

    run = jax.value_and_grad(run, has_aux=True)
    helpers.assert_close(run(ks, mesh=auto()), run(ks), rtol=1e-10, atol=1e-12)

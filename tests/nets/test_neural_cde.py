import warnings

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sciml import nets, solvers


KEY = jax.random.key(0)
TS = jnp.array([0.0, 0.4, 0.7, 1.5, 1.6, 2.0])
XS = jax.random.normal(jax.random.key(1), (3, 6, 2))
GAPS = XS.at[0, 2, 1].set(jnp.nan).at[1, 0, 0].set(jnp.nan).at[2, 5, :].set(jnp.nan)


def cde(key=KEY, **kwargs):
    return nets.NeuralCDE(2, 3, 2, key=key, **{"width": 5, "depth": 1} | kwargs)


ADAPTIVE = {"method": solvers.Tsit5(), "steps": None, "rtol": 1e-8, "atol": 1e-10}


@pytest.mark.parametrize("path", ["hermite", pytest.param("linear", marks=pytest.mark.slow)])
def test_battery(battery, path):
    make = lambda key, dtype: cde(key, dtype=dtype, path=path)
    battery(make, lambda net, x: net.evolve(TS.astype(x.dtype), x), GAPS)


@pytest.mark.parametrize("path", ["hermite", pytest.param("linear", marks=pytest.mark.slow)])
def test_it_is_diffraxs(path):
    x = XS[0]
    net = cde(path=path, **ADAPTIVE)
    full = jnp.concatenate([TS[:, None], x], axis=1)
    if path == "hermite":
        coefficients = diffrax.backward_hermite_coefficients(TS, full)
        control = diffrax.CubicInterpolation(TS, coefficients)
    else:
        control = diffrax.LinearInterpolation(TS, full)
    term = diffrax.ControlTerm(lambda t, z, args: net.field(z).reshape(3, 3), control).to_ode()
    sol = diffrax.diffeqsolve(
        term, diffrax.Tsit5(), TS[0], TS[-1], None, net.initial(full[0]), saveat=diffrax.SaveAt(ts=TS),
        stepsize_controller=diffrax.ClipStepSizeController(
            diffrax.PIDController(rtol=1e-8, atol=1e-10), jump_ts=TS
        ),
    )  # fmt: skip
    want = jax.vmap(net.readout)(sol.ys)
    np.testing.assert_allclose(net.evolve(TS, x), want, rtol=1e-6)
    np.testing.assert_allclose(net(TS, x), want[-1], rtol=1e-6)
    fixed = cde(path=path, steps=8)
    np.testing.assert_allclose(fixed.evolve(TS, x), want, rtol=1e-3)


@pytest.mark.slow
def test_diffraxs_methods():
    net = cde(**ADAPTIVE | {"method": diffrax.Tsit5()})
    np.testing.assert_allclose(net(TS, XS[0]), cde(**ADAPTIVE)(TS, XS[0]), rtol=1e-5)


def test_outputs_depend_on_what_was_measured_up_to_there():
    net = eqx.filter_jit(cde().evolve)
    changed = XS[0].at[4].add(1.0)
    same = np.all(net(TS, XS[0]) == net(TS, changed), axis=1)
    np.testing.assert_array_equal(same, [True, True, True, True, False, False])


def test_missing_values_are_interpolated():
    net = eqx.filter_jit(cde())
    x = XS[0]
    filled = x.at[2, 1].set(x[1, 1] + (x[3, 1] - x[1, 1]) * (0.7 - 0.4) / (1.5 - 0.4))
    np.testing.assert_allclose(net(TS, GAPS[0]), net(TS, filled), rtol=1e-12)


def test_shorter_series_are_padded():
    net = eqx.filter_jit(cde())
    end = jnp.full(3, TS[-1])
    rows = jnp.full((3, 2), jnp.nan)
    padded = lambda x: (jnp.concatenate([TS, end]), jnp.concatenate([x, rows]))
    for x in (XS[0], GAPS[0]):
        np.testing.assert_allclose(net(*padded(x)), net(TS, x), rtol=1e-10)
    gradient = jax.grad(lambda x: jnp.sum(net(*padded(x))))(GAPS[0])
    assert np.all(np.isfinite(gradient))


def test_time_is_a_channel_and_its_absence_is_warned_of():
    later = 3 * TS
    net = cde(**ADAPTIVE)
    assert np.all(np.abs(net(TS, XS[0]) - net(later, XS[0])) > 1e-3)
    with pytest.warns(UserWarning, match="does not depend on the times") as record:
        bare = cde(time=False, **ADAPTIVE)
    assert record[0].filename == __file__
    np.testing.assert_allclose(bare(TS, XS[0]), bare(later, XS[0]), rtol=1e-6)


def test_it_learns_which_way_a_path_turns(train):
    angle = jnp.linspace(0.0, 4.0, 9)
    start = jax.random.uniform(jax.random.key(1), (32, 1)) * 6
    sign = jnp.where(jnp.arange(32) % 2 == 0, 1.0, -1.0)[:, None]
    phase = start + sign * angle[None]
    xs = jnp.stack([jnp.cos(phase), jnp.sin(phase)], axis=-1)
    ts = jnp.tile(angle, (32, 1))

    def loss(net, key):
        logits = jax.vmap(net)(ts, xs)
        return jnp.mean(optax.sigmoid_binary_cross_entropy(logits[:, 0], (sign[:, 0] + 1) / 2))

    net, value = train(cde(width=16), loss, optax.adam(1e-2), 60)
    assert value < 0.1
    assert np.all(jnp.sign(jax.vmap(net)(ts, xs)[:, :1]) == sign)


@pytest.mark.usefixtures("unchecked")
def test_what_is_refused():
    with pytest.raises(ValueError, match=r'`path` must be "hermite" or "linear", but is \'cubic\''):
        cde(path="cubic")
    with pytest.raises(ValueError, match="`hidden` must be a positive integer, but got 0"):
        nets.NeuralCDE(2, 0, 1, width=5, depth=1, key=KEY)
    with pytest.raises(ValueError, match=r"2 columns, but has shape \(6, 3\) .* use `jax.vmap`"):
        cde()(TS, jnp.ones((6, 3)))
    with pytest.raises(ValueError, match=r"has shape \(3, 6, 2\)"):
        cde()(TS, XS)
    with pytest.raises(ValueError, match="at least two times"):
        cde()(TS[:1], XS[0, :1])
    with warnings.catch_warnings(), pytest.raises(ValueError, match="missing"):
        cde()(TS, XS[0].at[:, 1].set(jnp.nan))


def test_failures():
    net = cde(steps=None, method=solvers.Tsit5(), max_steps=3)
    with pytest.raises(RuntimeError, match="max_steps"):
        net(TS, XS[0])
    assert np.all(np.isnan(net(TS, XS[0], throw=False)))

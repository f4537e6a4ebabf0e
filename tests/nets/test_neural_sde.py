import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sciml import nets, solvers


KEY = jax.random.key(0)
TS = jnp.array([0.0, 0.3, 0.5, 1.0])
Y0 = jnp.array([1.0, -0.5])


def sde(key=KEY, dtype=None, *, time=False, **kwargs):
    k1, k2 = jax.random.split(key)
    net = lambda k: nets.MLP(2 + time, 2, width=4, depth=1, dtype=dtype, key=k)
    return nets.NeuralSDE(net(k1), net(k2), time=time, **{"steps": 2} | kwargs)


class Inverse(eqx.Module):
    """A net whose softplus is `scale * |y|`, or `scale`."""

    scale: float
    multiplicative: bool = True

    def __call__(self, y):
        return jnp.log(
            jnp.expm1(self.scale * (jnp.abs(y) if self.multiplicative else jnp.ones_like(y)))
        )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ito", "stratonovich"])
def test_battery(battery, kind):
    # The same noise in both precisions: none to speak of.
    class Small(eqx.Module):
        net: nets.MLP

        def __call__(self, y):
            return self.net(y) - 12.0

    def make(key, dtype):
        model = sde(key, dtype, kind=kind, floor=0.0)
        return eqx.tree_at(lambda m: m.diffusion, model, Small(model.diffusion))

    y0s = jax.random.normal(jax.random.key(1), (3, 2))
    battery(make, lambda model, y0: model(y0, TS.astype(y0.dtype), key=KEY), y0s)


def test_gradients_reach_drift_and_diffusion():
    model = sde(time=True)

    @eqx.filter_jit
    def loss(model):
        keys = jax.random.split(KEY, 4)
        return jnp.mean(jax.vmap(lambda k: model(Y0, TS, key=k))(keys) ** 2)

    gradient = eqx.filter_jit(eqx.filter_grad(loss))(model)
    for where in (lambda m: m.drift.layers[0].weight, lambda m: m.diffusion.layers[1].bias):
        step = lambda h, w=where: eqx.tree_at(w, model, w(model) + h)
        slope = (loss(step(1e-5)) - loss(step(-1e-5))) / 2e-5
        np.testing.assert_allclose(jnp.sum(where(gradient)), slope, rtol=1e-5)


def test_keys():
    model = eqx.filter_jit(sde())
    a, b = (model(Y0, TS, key=jax.random.key(i)) for i in (1, 2))
    np.testing.assert_array_equal(a, model(Y0, TS, key=jax.random.key(1)))
    np.testing.assert_array_equal(a[0], Y0)
    assert np.all(a[1:] != b[1:])
    assert np.all(np.ptp(a, axis=0) > 0)


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        ("ito", None),
        ("stratonovich", None),
        pytest.param("ito", diffrax.ItoMilstein(), marks=pytest.mark.slow),
        pytest.param("stratonovich", diffrax.ReversibleHeun(), marks=pytest.mark.slow),
    ],
)
def test_the_kind_of_the_integral(kind, method):
    # dy = 0.5 y dW: the mean of y(1) is 1 for Itô, exp(0.125) for Stratonovich.
    model = nets.NeuralSDE(
        jnp.zeros_like, Inverse(0.5), kind=kind, floor=0.0, steps=20, method=method
    )
    keys = jax.random.split(KEY, 4000)
    ends = jnp.array([0.0, 1.0])
    run = eqx.filter_jit(jax.vmap(lambda k: model(jnp.ones(1), ends, key=k)[-1, 0]))
    ys = run(keys)
    want = 1.0 if kind == "ito" else np.exp(0.125)
    assert abs(jnp.mean(ys) - want) < 4 * jnp.std(ys) / 4000**0.5 + 0.005
    np.testing.assert_allclose(jnp.std(jnp.log(ys)), 0.5, rtol=0.05)


def test_the_floor():
    silent = lambda y: jnp.full_like(y, -1e3)
    keys = jax.random.split(KEY, 2000)
    model = nets.NeuralSDE(jnp.zeros_like, silent, floor=0.1, steps=2)
    run = eqx.filter_jit(jax.vmap(lambda k: model(jnp.zeros(1), jnp.array([0.0, 4.0]), key=k)[-1]))
    np.testing.assert_allclose(jnp.std(run(keys)), 0.1 * 2, rtol=0.1)


def test_the_divergence():
    # Constant drifts 0.6 and 0.2 and noise 0.5: half of (0.4 / 0.5)² a unit of time.
    constant = lambda value: lambda y: jnp.full_like(y, value)
    model = nets.NeuralSDE(constant(0.6), Inverse(0.5, False), floor=0.0, steps=3)
    ys, divergence = model.divergence(constant(0.2), Y0, TS, key=KEY)
    np.testing.assert_allclose(divergence, 2 * 0.5 * 0.8**2, rtol=1e-10)
    assert ys.shape == (4, 2) and np.all(ys[0] == Y0)
    _, none = model.divergence(constant(0.6), Y0, TS, key=KEY)
    assert none == 0


@pytest.mark.slow
def test_it_learns_an_ornstein_uhlenbeck_process(train):
    # Mean exp(-t), variance 0.18 (1 - exp(-2t)), from y(0) = 1.
    ts = jnp.linspace(0.0, 1.5, 4)
    mean, std = jnp.exp(-ts), jnp.sqrt(0.18 * (1 - jnp.exp(-2 * ts)))
    net = lambda i: nets.MLP(1, 1, width=8, depth=1, key=jax.random.key(i))
    model = nets.NeuralSDE(net(1), net(2), steps=4)

    def loss(model, key):
        run = lambda k: model(jnp.ones(1), ts, key=k)[:, 0]
        ys = jax.vmap(run)(jax.random.split(key, 128))
        spread = jnp.sqrt(jnp.var(ys, axis=0) + 1e-12)
        return jnp.mean((jnp.mean(ys, axis=0) - mean) ** 2 + (spread - std) ** 2)

    model, _ = train(model, loss, optax.adam(2e-2), 150)
    keys = jax.random.split(jax.random.key(9), 2000)
    ys = eqx.filter_jit(jax.vmap(lambda k: model(jnp.ones(1), ts, key=k)[:, 0]))(keys)
    np.testing.assert_allclose(jnp.mean(ys, axis=0), mean, atol=0.06)
    np.testing.assert_allclose(jnp.std(ys, axis=0), std, atol=0.06)


@pytest.mark.usefixtures("unchecked")
def test_what_is_refused():
    with pytest.raises(TypeError, match=r"`diffrax.Euler\(\)` .* own methods solve ordinary"):
        sde(method=solvers.RK4())
    with pytest.raises(TypeError, match='`kind="stratonovich"` the method must be'):
        sde(kind="stratonovich", method=diffrax.Euler())
    with pytest.raises(ValueError, match='`kind` must be "ito" or "stratonovich"'):
        sde(kind="backward")
    with pytest.raises(ValueError, match="`floor` must not be negative, but got -1"):
        sde(floor=-1)
    with pytest.raises(TypeError, match="`diffusion` must be callable, but is a float"):
        nets.NeuralSDE(jnp.zeros_like, 1.0)
    with pytest.raises(ValueError, match="at least two times"):
        sde()(Y0, TS[:1], key=KEY)
    with pytest.raises(Exception, match="must increase strictly"):
        sde()(Y0, TS[::-1], key=KEY)

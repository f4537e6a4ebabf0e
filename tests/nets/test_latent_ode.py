import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.stats

from sciml import nets, solvers


KEY = jax.random.key(0)
TS = jnp.array([0.0, 0.4, 0.7, 1.5])
YS = jax.random.normal(jax.random.key(1), (3, 4, 2))
GAPS = YS.at[0, 2, 1].set(jnp.nan).at[1, 0, 0].set(jnp.nan).at[2, 1, :].set(jnp.nan)


def latent_ode(key=KEY, dtype=None, **kwargs):
    sizes = {"latent": 3, "hidden": 4, "width": 5, "depth": 1}
    return nets.LatentODE(2, key=key, dtype=dtype, **sizes | kwargs)


@pytest.mark.parametrize("encoder", ["gru", pytest.param("ode-rnn", marks=pytest.mark.slow)])
def test_battery(battery, encoder):
    def call(model, ys):
        ts = TS.astype(ys.dtype)
        key = jax.random.key(5)
        later = jnp.concatenate([ts, 2 + ts])
        return (
            model(ts, ys, later, key=key)[:, :1],
            model.loss(ts, ys, key=key),
        )

    def steady(model, ys):
        # Draws of the two precisions differ: compare what does not hang on them.
        ts = TS.astype(ys.dtype)
        mean, std = model.encode(ts, ys)
        return model.decode(mean + std, ts)

    battery(lambda key, dtype: latent_ode(key, dtype, encoder=encoder), steady, GAPS)
    model = latent_ode(encoder=encoder)
    together = eqx.filter_jit(jax.vmap(call, in_axes=(None, 0)))(model, GAPS)
    one = eqx.filter_jit(call)(model, GAPS[1])
    assert one[0].shape == (8, 1)
    for a, b in zip(jax.tree.leaves(together), jax.tree.leaves(one), strict=True):
        np.testing.assert_allclose(a[1], b, rtol=1e-9)


def test_the_terms_of_the_loss():
    model = latent_ode(noise=0.3)
    key = jax.random.key(5)
    terms = model.loss(TS, GAPS[0], key=key)
    mean, std = model.encode(TS, GAPS[0])
    got = model(TS, GAPS[0], key=key)
    seen = ~np.isnan(GAPS[0])
    logs = scipy.stats.norm.logpdf(GAPS[0], got, 0.3)[seen]
    want = -np.sum(logs) - seen.sum() * np.log(2 * np.pi) / 2
    np.testing.assert_allclose(terms["reconstruction"], want, rtol=1e-12)
    # The divergence by many draws.
    mean, std = np.asarray(mean), np.asarray(std)
    z = mean + std * np.random.default_rng(0).normal(size=(200_000, 3))
    ratio = scipy.stats.norm.logpdf(z, mean, std) - scipy.stats.norm.logpdf(z)
    np.testing.assert_allclose(terms["kl"], np.mean(np.sum(ratio, axis=1)), rtol=0.02)
    half = model.loss(TS, GAPS[0], key=key, kl_weight=0.5)
    np.testing.assert_allclose(half["kl"], terms["kl"] / 2, rtol=1e-12)
    np.testing.assert_allclose(half["reconstruction"], terms["reconstruction"], rtol=1e-12)


@pytest.mark.parametrize("encoder", ["gru", "ode-rnn"])
def test_what_is_missing_changes_nothing(encoder):
    model = latent_ode(encoder=encoder)
    encode = eqx.filter_jit(model.encode)
    # Rows of nan at the end are padding.
    end, rows = jnp.full(2, TS[-1]), jnp.full((2, 2), jnp.nan)
    padded = jnp.concatenate([TS, end]), jnp.concatenate([GAPS[0], rows])
    for a, b in zip(encode(*padded), encode(TS, GAPS[0]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)
    one, two = (model.loss(*series, key=KEY) for series in (padded, (TS, GAPS[0])))
    for name in ("reconstruction", "kl"):
        np.testing.assert_allclose(one[name], two[name], rtol=1e-10)
    if encoder == "gru":  # and one in the middle as if that time were not there
        keep = jnp.array([0, 2, 3])
        for a, b in zip(encode(TS, GAPS[2]), encode(TS[keep], GAPS[2, keep]), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12)


def test_the_encoder_hears_of_times_and_masks():
    encode = eqx.filter_jit(latent_ode().encode)
    mean, _ = encode(TS, GAPS[0])
    assert np.any(mean != encode(2 * TS, GAPS[0])[0])
    assert np.any(mean != encode(TS, jnp.nan_to_num(GAPS[0]))[0])


def test_draws():
    model = latent_ode()
    ts = jnp.linspace(0.0, 3.0, 5)
    a, b = (model.sample(ts, key=jax.random.key(i)) for i in (1, 2))
    assert a.shape == (5, 2) and np.any(a != b)
    z = jax.random.normal(jax.random.key(1), (3,))
    np.testing.assert_allclose(a, model.decode(z, ts), rtol=1e-12)
    adaptive = latent_ode(steps=None, method=solvers.Tsit5())
    np.testing.assert_allclose(adaptive.decode(z, ts), a, rtol=1e-3)


def test_it_learns_decays(train):
    rates = jnp.linspace(0.3, 2.0, 32)
    ts = jnp.sort(jax.random.uniform(jax.random.key(1), (32, 6), maxval=2.0), axis=1)
    ys = jnp.exp(-rates[:, None] * ts)[..., None]
    sizes = {"latent": 2, "hidden": 8, "width": 16, "depth": 1, "noise": 0.05}
    model = nets.LatentODE(1, key=KEY, **sizes)

    def loss(model, key):
        each = lambda t, y, k: model.loss(t, y, key=k, kl_weight=0.1)
        terms = jax.vmap(each)(ts, ys, jax.random.split(key, 32))
        return jnp.mean(terms["reconstruction"] + terms["kl"])

    def error(model):
        means = jax.vmap(lambda t, y: model.decode(model.encode(t, y)[0], t))(ts, ys)
        return jnp.sqrt(jnp.mean((means - ys) ** 2))

    model, _ = train(model, loss, optax.adam(2e-2), 400)
    assert jnp.std(ys) > 0.25 and error(model) < 0.08


@pytest.mark.usefixtures("unchecked")
def test_what_is_refused():
    with pytest.raises(ValueError, match=r'`encoder` must be "gru" or "ode-rnn", but is \'lstm\''):
        latent_ode(encoder="lstm")
    with pytest.raises(ValueError, match="`noise` must be positive, but got 0"):
        latent_ode(noise=0)
    with pytest.raises(ValueError, match="`latent` must be a positive integer"):
        latent_ode(latent=0)
    with pytest.raises(ValueError, match=r"2 columns, but has shape \(4, 3\) .* use `jax.vmap`"):
        latent_ode().encode(TS, jnp.ones((4, 3)))

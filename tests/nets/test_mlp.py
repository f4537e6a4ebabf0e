import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sciml import nets


KEY = jax.random.key(0)


def mlp(in_size=2, out_size=3, *, width=5, depth=2, **kwargs):
    return nets.MLP(in_size, out_size, width=width, depth=depth, **{"key": KEY} | kwargs)


def by_hand(net, x):
    for layer in net.layers[:-1]:
        x = np.tanh(np.asarray(layer.weight) @ x + np.asarray(layer.bias))
    return np.asarray(net.layers[-1].weight) @ x + np.asarray(net.layers[-1].bias)


@pytest.mark.parametrize(
    ("depth", "shapes"),
    [(0, [(3, 2)]), (1, [(5, 2), (3, 5)]), (3, [(5, 2), (5, 5), (5, 5), (3, 5)])],
)
def test_layers(depth, shapes):
    net = mlp(depth=depth)
    assert [layer.weight.shape for layer in net.layers] == shapes
    assert [layer.bias.shape for layer in net.layers] == [s[:1] for s in shapes]
    x = jnp.array([0.3, -0.7])
    np.testing.assert_allclose(net(x), by_hand(net, x), rtol=1e-12)


def test_every_leaf_is_a_weight():
    net = mlp(depth=1, activation=jax.nn.softplus)
    leaves = jax.tree_util.tree_leaves_with_path(net)
    names = [jax.tree_util.keystr(path) for path, _ in leaves]
    assert names == [f".layers[{i}].{w}" for i in (0, 1) for w in ("weight", "bias")]
    assert all(eqx.is_inexact_array(leaf) for _, leaf in leaves)
    assert net.activation is jax.nn.softplus


def test_the_activation_is_applied_after_hidden_layers_only():
    net = mlp(activation=jnp.zeros_like)
    np.testing.assert_array_equal(net(jnp.ones(2)), net.layers[-1].bias)


def test_the_scale_multiplies_the_last_layer():
    net, small = mlp(), mlp(scale=0.01)
    x = jnp.array([0.3, -0.7])
    np.testing.assert_allclose(small(x), 0.01 * np.asarray(net(x)), rtol=1e-12)
    np.testing.assert_array_equal(small.layers[0].weight, net.layers[0].weight)
    np.testing.assert_array_equal(mlp(scale=0.0)(x), np.zeros(3))


def test_dtypes():
    x = jnp.ones(2, jnp.float32)
    assert mlp().layers[0].weight.dtype == jnp.float64
    single = mlp(dtype=jnp.float32, scale=0.5)
    assert {leaf.dtype for leaf in jax.tree.leaves(single)} == {jnp.dtype("float32")}
    assert single(x).dtype == jnp.float32
    with jax.enable_x64(False):
        assert mlp().layers[0].weight.dtype == jnp.float32
        with pytest.raises(ValueError, match=r"`MLP\(dtype=…\)` asks for float64"):
            mlp(dtype="float64")


def test_keys():
    assert eqx.tree_equal(mlp(), mlp())
    assert not eqx.tree_equal(mlp(), mlp(key=jax.random.key(1)))
    first, second = mlp(depth=3).layers[1:3]
    assert np.any(first.weight != second.weight)
    mlp()(jnp.ones(2), key=KEY)  # as layers of `equinox.nn.Sequential` are called


def test_gradients_and_batches():
    net = mlp()
    xs = jax.random.normal(jax.random.key(1), (7, 2))
    loss = lambda net: jnp.sum(jax.vmap(net)(xs) ** 2)
    assert jax.vmap(net)(xs).shape == (7, 3)
    gradient = eqx.filter_jit(eqx.filter_grad(loss))(net)
    for i, name in ((0, "weight"), (2, "bias")):
        where = lambda n, i=i, name=name: getattr(n.layers[i], name)
        direction = jnp.ones_like(where(net))
        step = lambda h, w=where, d=direction: eqx.tree_at(w, net, w(net) + h * d)
        slope = (loss(step(1e-6)) - loss(step(-1e-6))) / 2e-6
        np.testing.assert_allclose(jnp.sum(where(gradient)), slope, rtol=1e-6)


def test_serialisation(tmp_path):
    net = mlp()
    eqx.tree_serialise_leaves(tmp_path / "net.eqx", net)
    again = eqx.tree_deserialise_leaves(tmp_path / "net.eqx", mlp(key=jax.random.key(1)))
    assert eqx.tree_equal(again, net)


@pytest.mark.parametrize(
    ("name", "value", "least"),
    [
        ("in_size", 0, 1),
        ("out_size", -1, 1),
        ("width", 2.5, 1),
        ("depth", -1, 0),
        ("width", True, 1),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_bad_sizes(name, value, least):
    sizes = {"in_size": 2, "out_size": 3, "width": 5, "depth": 2, name: value}
    with pytest.raises(
        ValueError,
        match=f"`{name}` must be (a positive integer|an integer of at least {least}), but got",
    ):
        mlp(**sizes)


def test_inputs_have_one_dimension():
    with pytest.raises(TypeError):  # says jaxtyping; without it, the matrix product does
        mlp()(jnp.ones((7, 2)))

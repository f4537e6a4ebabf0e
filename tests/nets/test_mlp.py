import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
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


@pytest.mark.parametrize(
    "options",
    [
        {"bound": 2.0, "activation": jax.nn.softplus},
        {"bound": jnp.array(2.0), "residual": True, "depth": 3},
        {"init": jax.nn.initializers.orthogonal(), "activation": nets.rbf},
    ],
    ids=",".join,
)
def test_battery(battery, options):
    xs = jax.random.normal(jax.random.key(1), (3, 2))
    battery(lambda key, dtype: mlp(key=key, dtype=dtype, **options), lambda net, x: net(x), xs)


def test_bounds():
    x = jnp.array([30.0, -70.0])
    free, fixed, learnt = mlp(), mlp(bound=0.5), mlp(bound=jnp.array(0.5))
    for net in (fixed, learnt):
        np.testing.assert_allclose(net(x), 0.5 * np.tanh(np.asarray(free(x))), rtol=1e-12)
    assert len(jax.tree.leaves(fixed)) == 6  # the number is no leaf, and so never trained
    gradient = eqx.filter_grad(lambda net: jnp.sum(net(x)))(learnt)
    np.testing.assert_allclose(gradient.bound, jnp.sum(jnp.tanh(free(x))), rtol=1e-12)
    assert mlp(bound=jnp.array(0.5), dtype=jnp.float32).bound.dtype == jnp.float32


def test_residual_layers_add_to_their_input():
    plain, deep = mlp(depth=3), mlp(depth=3, residual=True)
    x = jnp.array([0.3, -0.7])
    y = jnp.tanh(plain.layers[0](x))
    for layer in plain.layers[1:3]:
        y = y + jnp.tanh(layer(y))
    np.testing.assert_allclose(deep(x), plain.layers[3](y), rtol=1e-12)


def test_initialisers():
    net = mlp(5, 5, init=jax.nn.initializers.orthogonal())
    for layer in net.layers:
        np.testing.assert_allclose(layer.weight @ layer.weight.T, np.eye(5), atol=1e-12)
        assert np.all(layer.bias == 0)
    wide = mlp(400, 3, width=300, depth=1, init=jax.nn.initializers.lecun_normal())
    got = [jnp.std(layer.weight) for layer in wide.layers]
    np.testing.assert_allclose(got, [400**-0.5, 300**-0.5], rtol=0.1)


def test_rbf():
    np.testing.assert_allclose(nets.rbf(jnp.array([0.0, 1.0, -2.0])), np.exp([0.0, -1.0, -4.0]))


def test_it_learns_a_curve(train):
    x = jnp.linspace(-1.0, 1.0, 33)[:, None]
    loss = lambda net, key: jnp.mean((jax.vmap(net)(x) - jnp.sin(4 * x)) ** 2)
    net = mlp(1, 1, width=16, depth=3, residual=True, bound=jnp.array(2.0), activation=nets.rbf)
    net, value = train(net, loss, optax.adam(1e-2), 300)
    assert value < 1e-3


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


@pytest.mark.usefixtures("unchecked")
def test_bad_options():
    with pytest.raises(ValueError, match="`bound` must be positive, but got 0"):
        mlp(bound=0)
    with pytest.raises(TypeError, match=r"`activation` must be a function .* but is a str"):
        mlp(activation="tanh")


@pytest.mark.usefixtures("unchecked")
def test_inputs_are_vectors_of_the_right_length():
    for shape in ((7, 2), (3,), ()):
        with pytest.raises(ValueError, match=r"takes a vector of 2 numbers, but got shape"):
            mlp()(jnp.ones(shape))

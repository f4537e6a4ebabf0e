import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest


@pytest.fixture
def unchecked():
    """Switches the checks of types off, as they are for users: what is refused is refused by us."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def battery(tmp_path):
    """What every net has to meet.

    - `make(key, dtype)`: the net.
    - `call(net, x)`: its output, any pytree of arrays.
    - `xs`: a batch of inputs, in double precision.
    - `rtol`, `single`: how near finite differences and single precision must come.
    - `frozen`: whether there are leaves without a gradient on purpose.
    """

    def run(make, call, xs, rtol=1e-6, single=1e-3, frozen=False):
        net = make(jax.random.key(0), None)
        weights, static = eqx.partition(net, eqx.is_inexact_array)
        leaves = jax.tree.leaves(weights)
        assert leaves and all(x.dtype == jnp.float64 for x in leaves)
        flat, unravel = jax.flatten_util.ravel_pytree(weights)

        @jax.jit
        def outputs(flat, xs):
            return jax.vmap(lambda x: call(eqx.combine(unravel(flat), static), x))(xs)

        size = lambda tree: sum(jnp.sum(x**2) for x in jax.tree.leaves(tree))
        loss = lambda flat: size(outputs(flat, xs))

        # A batch is a loop.
        batch = outputs(flat, xs)
        alone = eqx.filter_jit(call)
        for i in (0, 1):
            one = alone(net, jax.tree.map(lambda x, i=i: x[i], xs))
            for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(batch), strict=True):
                assert a.dtype == jnp.float64
                np.testing.assert_allclose(a, b[i], rtol=1e-9, atol=1e-12)

        # The gradient is that of finite differences.
        value, gradient = jax.jit(jax.value_and_grad(loss))(flat)
        assert np.isfinite(value) and np.all(np.isfinite(gradient))
        assert frozen or np.mean(gradient == 0) < 0.5
        for k in (1, 2):
            direction = jax.random.normal(jax.random.key(k), flat.shape)
            if frozen:
                direction = jnp.where(gradient == 0, 0.0, direction)
            slope = (loss(flat + 1e-5 * direction) - loss(flat - 1e-5 * direction)) / 2e-5
            np.testing.assert_allclose(gradient @ direction, slope, rtol=rtol)

        # What was saved comes back.
        eqx.tree_serialise_leaves(tmp_path / "net.eqx", net)
        other = make(jax.random.key(1), None)
        assert not eqx.tree_equal(other, net)
        assert eqx.tree_equal(eqx.tree_deserialise_leaves(tmp_path / "net.eqx", other), net)

        # Single precision stays single.
        small = jax.tree.map(
            lambda x: x.astype(jnp.float32) if eqx.is_inexact_array(x) else x, (net, xs)
        )
        made = make(jax.random.key(0), jnp.float32)
        dtypes = {x.dtype for x in jax.tree.leaves(eqx.filter(made, eqx.is_inexact_array))}
        assert dtypes == {jnp.dtype("float32")}
        assert jax.tree.structure(made) == jax.tree.structure(net)
        net32, xs32 = small
        singles = eqx.filter_jit(jax.vmap(call, in_axes=(None, 0)))(net32, xs32)
        for a, b in zip(jax.tree.leaves(singles), jax.tree.leaves(batch), strict=True):
            assert a.dtype == jnp.float32
            np.testing.assert_allclose(a, b, rtol=single, atol=single)
        return net

    return run


@pytest.fixture
def train():
    """`train(net, loss, optimiser, steps) -> (net, loss)`, the loop of every Equinox user."""

    def run(net, loss, optimiser, steps):
        @eqx.filter_jit
        def loop(net, state):
            arrays, static = eqx.partition(net, eqx.is_inexact_array)

            def step(carry, i):
                arrays, state = carry
                of = lambda a: loss(eqx.combine(a, static), jax.random.key(i))
                value, gradient = jax.value_and_grad(of)(arrays)
                with jax.numpy_dtype_promotion("standard"):  # Optax wants it
                    updates, state = optimiser.update(gradient, state, arrays)
                return (eqx.apply_updates(arrays, updates), state), value

            (arrays, state), values = jax.lax.scan(step, (arrays, state), jnp.arange(steps))
            return eqx.combine(arrays, static), values

        net, values = loop(net, optimiser.init(eqx.filter(net, eqx.is_inexact_array)))
        return net, float(values[-1])

    return run

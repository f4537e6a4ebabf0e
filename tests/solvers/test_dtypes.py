"""Which precision a solve runs in, and what becomes of integers and Python numbers."""

import helpers
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import decay

from sciml import solvers
from sciml._dtypes import as_state, float_leaves_as_arrays, require_dtype, tolerances


def test_integers_become_the_default_float():
    # Case 21.
    sol = solvers.solve(decay, jnp.array([1, 2]), jnp.array([0, 1]), 1, rtol=1e-9, atol=1e-11)
    assert sol.ys.dtype == jnp.float64
    np.testing.assert_allclose(sol.ys[-1], [0.367879441171, 0.735758882343], rtol=1e-7)
    with jax.enable_x64(False):
        assert (
            solvers.solve(decay, jnp.array([1, 2]), jnp.array([0, 1]), 1, steps=2).ys.dtype
            == jnp.float32
        )


@pytest.mark.parametrize("steps", [None, 8])
def test_a_float32_state_stays_float32_under_x64(steps):
    seen = []

    def fn(t, y, args):
        seen.append((t.dtype.name, y.dtype.name))
        return -y

    sol = solvers.solve(fn, jnp.ones(2, jnp.float32), jnp.array([0.0, 1.0]), steps=steps)
    assert sol.ys.dtype == jnp.float32
    assert set(seen) == {("float32", "float32")}
    np.testing.assert_allclose(sol.ys[-1], np.exp(-1), rtol=1e-4)


def test_a_field_of_another_precision_does_not_change_the_state():
    fn = lambda t, y, k: -k * y.astype(jnp.float64)
    sol = solvers.solve(
        fn, jnp.ones(2, jnp.float32), jnp.array([0.0, 1.0]), jnp.array(1.0), steps=8
    )
    assert sol.ys.dtype == jnp.float32


@pytest.mark.parametrize("steps", [None, 8])
def test_float32_far_from_zero(steps):
    # At 1e6 float32 resolves time to 1/16: steps are counted from the start instead.
    with jax.enable_x64(False):
        ts = jnp.float32(1e6) + jnp.array([0.0, 0.5, 1.0])
        sol = solvers.solve(decay, jnp.array([1.0]), ts, jnp.array(1.0), steps=steps)
        assert sol.ys.dtype == jnp.float32 and bool(sol.ok)
        np.testing.assert_allclose(sol.ys[:, 0], np.exp([0, -0.5, -1]), rtol=1e-4)


def test_float64_times_of_a_float32_state_keep_their_differences():
    ts = 1e6 + jnp.array([0.0, 0.01, 0.02])  # all equal in float32
    sol = solvers.solve(decay, jnp.ones(1, jnp.float32), ts, jnp.float32(50.0), steps=8)
    np.testing.assert_allclose(sol.ys[:, 0], np.exp([0, -0.5, -1]), rtol=1e-4)


# Diffrax warns that its adaptive steps on complex states are work in progress.
@pytest.mark.filterwarnings("ignore:Complex dtype support")
@pytest.mark.parametrize(
    ("steps", "dtype"), [(None, "complex128"), (40, "complex128"), (40, "complex64")]
)
def test_complex_states(steps, dtype):
    fn = lambda t, y, w: 1j * w * y
    sol = solvers.solve(fn, jnp.array([1.0 + 0j], dtype), jnp.array([0.0, 2.0]), 1.5, steps=steps)
    assert sol.ys.dtype == dtype
    np.testing.assert_allclose(sol.ys[-1], [np.exp(3j)], rtol=1e-4)


def test_real_and_complex_leaves_share_a_precision():
    fn = lambda t, y, _: {"z": 1j * y["z"], "x": -y["x"]}
    y0 = {"z": jnp.ones(1, jnp.complex64), "x": jnp.ones(1, jnp.float32)}
    sol = solvers.solve(fn, y0, jnp.array([0.0, 1.0]), steps=20)
    assert (sol.ys["z"].dtype, sol.ys["x"].dtype) == (jnp.complex64, jnp.float32)
    np.testing.assert_allclose(sol.ys["z"][-1], [np.exp(1j)], rtol=1e-5)


def test_the_rule_for_states():
    cases = [
        (1.0, jnp.float64),
        (1, jnp.float64),
        (True, jnp.float64),
        (np.float32(1.0), jnp.float32),
        (np.ones(2, np.int8), jnp.float64),
        (jnp.ones(2, jnp.bfloat16), jnp.bfloat16),
        (1j, jnp.complex128),
    ]
    for leaf, dtype in cases:
        assert as_state(leaf)[0].dtype == dtype, leaf
    # Python numbers and integers follow the arrays beside them; arrays meet at the wider one.
    follow, real = as_state({"a": 1.0, "b": 2, "c": jnp.ones(1, jnp.float32)})
    assert {x.dtype for x in jax.tree.leaves(follow)} == {
        jnp.dtype("float32")
    } and real == "float32"
    meet, real = as_state((jnp.ones(1, jnp.float32), jnp.ones(1, jnp.float64)))
    assert {x.dtype for x in meet} == {jnp.dtype("float64")} and real == "float64"
    with jax.enable_x64(False):
        assert as_state(1.0)[0].dtype == jnp.float32


def test_only_floats_in_a_model_become_arrays():
    out = float_leaves_as_arrays({"f": 1.5, "z": 2j, "i": 3, "b": True, "s": "text", "n": None})
    assert isinstance(out["f"], jax.Array) and isinstance(out["z"], jax.Array)
    assert {k: out[k] for k in "ibsn"} == {"i": 3, "b": True, "s": "text", "n": None}


def test_float64_must_be_possible_where_it_is_asked_for():
    assert require_dtype("float64", "`y0`") == np.float64
    with jax.enable_x64(False):
        assert require_dtype("float32", "`y0`") == np.float32
        with pytest.raises(ValueError, match=r"`y0` asks for float64.*jax_enable_x64"):
            require_dtype("float64", "`y0`")


def test_default_tolerances_depend_on_the_precision():
    double = tolerances(None, None, np.dtype("float64"), (1e-6, 1e-9))
    single = tolerances(None, None, np.dtype("float32"), (1e-6, 1e-9))
    np.testing.assert_allclose(double, (1e-6, 1e-9))
    np.testing.assert_allclose(single, (1e-5, 1e-7))
    assert {x.dtype for x in single} == {np.dtype("float32")}
    assert (
        tolerances(jnp.array(1e-4), None, np.dtype("float32"), (1e-6, 1e-9))[0].dtype == jnp.float32
    )


def test_a_tolerance_below_the_precision_is_called_out():
    # Case 23.
    with (
        jax.enable_x64(False),
        pytest.warns(UserWarning, match=r"rtol 1e-06 is below what float32 .*enable x64"),
    ):
        solvers.solve(
            decay, jnp.array([1.0]), jnp.array([0.0, 1.0]), jnp.array(1.0), rtol=1e-6, steps=2
        )
    with pytest.warns(UserWarning, match="below what float64 supports") as seen:
        solvers.solve(
            decay, jnp.array([1.0]), jnp.array([0.0, 1.0]), jnp.array(1.0), rtol=1e-16, steps=2
        )
    assert "x64" not in str(seen[0].message)


@pytest.mark.slow
def test_robertson_in_float32():
    with jax.enable_x64(False):
        sol = solvers.solve(
            helpers.robertson,
            jnp.array([1.0, 0.0, 0.0]),
            jnp.array([0.0, 100.0]),
            rtol=1e-4,
            atol=1e-8,
        )
        np.testing.assert_allclose(sol.ys[-1, 2], 0.38275892, rtol=2e-3)


def test_integer_fields_do_not_break_gradients():
    def final(p):
        fn = lambda t, y, p: -p["k"] * y * p["n"].astype(y.dtype)
        return solvers.solve(fn, jnp.array([1.0]), jnp.array([0.0, 1.0]), p, steps=20).ys[-1, 0]

    grad = jax.grad(final, allow_int=True)({"k": jnp.array(0.5), "n": jnp.array(2)})
    np.testing.assert_allclose(grad["k"], -2 * np.exp(-1), rtol=1e-6)
    assert grad["n"].dtype == jax.dtypes.float0

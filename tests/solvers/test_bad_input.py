"""What can't be meant is refused at the door, with what is wrong, what was given and what to do."""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import decay

from sciml import solvers
from sciml._dtypes import as_state
from sciml.solvers import AbstractMethod
from sciml.solvers._solve import check_method, check_times


Y, TS = jnp.array([1.0]), jnp.array([0.0, 1.0])


@pytest.mark.parametrize(
    ("ts", "message"),
    [
        (0.0, r"one-dimensional, but has shape \(\)"),
        (np.zeros((2, 2)), r"one-dimensional, but has shape \(2, 2\)"),
        (np.zeros(1), "at least two times"),
        (np.zeros(0), "at least two times"),
        (np.array([0.0, np.nan, 1.0]), r"finite, but ts\[1\] is nan"),
        (np.array([0.0, 1.0, np.inf]), r"finite, but ts\[2\] is inf"),
        (
            np.array([0.0, 2.0, 1.0, 3.0]),
            r"increasing or decreasing.*ts\[1\] = 2 is followed by ts\[2\] = 1",
        ),
        (
            np.array([3.0, 1.0, 2.0, 0.0]),
            r"increasing or decreasing.*ts\[1\] = 1 is followed by ts\[2\] = 2",
        ),
    ],
)
def test_times(ts, message):
    with pytest.raises(ValueError, match=message):
        solvers.solve(decay, Y, ts, 1.0)


def test_good_times_pass():
    assert check_times(np.array([2, 1, 1])).dtype == jnp.float64
    jax.jit(check_times)(jnp.array([0.0, jnp.nan]))  # values under a transformation are not seen


@pytest.mark.parametrize(
    ("y0", "error", "message"),
    [
        ((), ValueError, "no arrays in it"),
        (
            {"a": 1.0, "b": "text"},
            TypeError,
            "number, an array or a pytree of them, but holds 'text'",
        ),
        ([1.0, decay], TypeError, "but holds <function decay"),
    ],
)
def test_states(y0, error, message):
    with pytest.raises(error, match=message):
        as_state(y0)
    with pytest.raises(error, match=message):
        solvers.solve(decay, y0, TS, 1.0)


@pytest.mark.parametrize(
    ("fn", "y0", "message"),
    [
        (lambda t, y, a: (y, y), Y, r"must return the structure of `y0`, PyTreeDef\(\*\), but returned .*\*, \*"),
        (lambda t, y, a: y[:1], jnp.ones(2), r"returned shape \(1,\) for `y0` of shape \(2,\)"),
        (lambda t, y, a: dict.fromkeys("uv", y["u"]), {"u": jnp.ones(2), "v": 1.0}, r"for `y0\['v'\]` of shape \(\)"),
        (lambda t, y, a: y.astype(complex), Y, r"complex numbers for the real `y0`.*y0 = y0 \+ 0j"),
    ],
    ids=["structure", "shape", "leaf", "complex"],
)  # fmt: skip
def test_vector_fields(fn, y0, message):
    with pytest.raises(ValueError, match=message):
        solvers.solve(fn, y0, TS)
    with pytest.raises(ValueError, match=message):
        jax.jit(lambda y0: solvers.solve(fn, y0, TS, steps=1).ys)(y0)


@pytest.mark.parametrize(
    ("method", "steps", "error", "message"),
    [
        (solvers.RK4, 1, TypeError, r"must be an instance: pass `RK4\(\)`"),
        ("Tsit5", None, TypeError, r"solvers\.Tsit5\(\).*or None, but got 'Tsit5'"),
        (solvers.RK4(), None, ValueError, r"`RK4` has no error estimate: pass `steps=`"),
        (diffrax.Dopri5(), 10, ValueError, r"`steps=` runs our own methods.*diffrax\.diffeqsolve"),
        (None, 0, ValueError, "`steps` must be a positive integer, but got 0"),
        (None, 2.0, ValueError, "`steps` must be a positive integer, but got 2.0"),
        (None, True, ValueError, "`steps` must be a positive integer, but got True"),
    ],
)
def test_methods(method, steps, error, message):
    with pytest.raises(error, match=message):
        check_method(method, steps, 100)


@pytest.mark.parametrize("max_steps", [0, -1, 1e4, None])
def test_max_steps(max_steps):
    with pytest.raises(
        ValueError, match=f"`max_steps` must be a positive integer, but got {max_steps}"
    ):
        check_method(None, None, max_steps)


def test_good_methods_pass():
    method, steps, max_steps = check_method(None, np.int32(3), np.int64(100))
    assert isinstance(method, AbstractMethod)
    assert (type(steps), type(max_steps)) == (int, int)
    assert check_method(diffrax.Kvaerno5(), None, 1) == (diffrax.Kvaerno5(), None, 1)


def test_a_method_without_an_error_estimate_is_refused_by_solve():
    with pytest.raises(ValueError, match="pass `steps=`"):
        solvers.solve(decay, Y, TS, 1.0, method=solvers.RK4())
    with pytest.raises(ValueError, match="pass `steps=`"):
        solvers.solve_ensemble(
            decay, Y, TS, jnp.ones(2), in_axes=(None, None, 0), method=solvers.RK4()
        )


@pytest.mark.parametrize("name", ["rtol", "atol"])
@pytest.mark.parametrize("value", [-1e-6, np.nan, np.inf, np.array([1e-3, -1.0])], ids=str)
def test_tolerances(name, value):
    with pytest.raises(ValueError, match=f"`{name}` must be finite and not negative, but got"):
        solvers.solve(decay, Y, TS, 1.0, **{name: value})


X = jnp.linspace(0.0, 1.0, 5)


def line(p, args):
    return p[0] + p[1] * X - 1


@pytest.mark.parametrize(
    ("y0", "bounds", "error", "message"),
    [
        (jnp.array([3.0, 0.0]), (0.0, 1.0), ValueError, r"start of unknown 0 is 3, outside its bounds 0 \.\. 1"),
        (jnp.ones(2), (jnp.array([0.0, 2.0]), 3.0), ValueError, r"unknown 1 is 1, outside its bounds 2 \.\. 3"),
        (jnp.ones(2), (2.0, 1.0), ValueError, r"bounds of unknown 0 are 2 \.\. 1: swapped or nan"),
        (jnp.ones(2), (0.0, jnp.array([2.0, jnp.nan])), ValueError, r"unknown 1 are 0 \.\. nan: swapped or nan"),
        (jnp.ones(2), ({"a": 0.0}, 1.0), ValueError, "number or structured as `y0`"),
        (jnp.ones(2, complex), None, TypeError, "real unknowns"),
    ],
)  # fmt: skip
def test_least_squares(y0, bounds, error, message):
    with pytest.raises(error, match=message):
        solvers.least_squares(line, y0, bounds=bounds)


def test_complex_residuals():
    with pytest.raises(TypeError, match="stack real and imaginary parts"):
        solvers.least_squares(lambda p, _: p.astype(complex), jnp.ones(2))


@pytest.mark.parametrize(
    ("y0", "ts", "args", "in_axes", "message"),
    [
        (jnp.ones((3, 1)), TS, jnp.ones(2), (0, None, 0), "agree in number, but `in_axes` gives y0: 3, args: 2"),
        (jnp.ones((3, 1)), TS, {"k": jnp.ones(3), "c": 1.0}, (0, None, 0), r"`args\['c'\]` the member axis 0, but it"),
        (jnp.ones((3, 1)), TS, jnp.ones(3), (0, 0), r"three entries, for `\(y0, ts, args\)`, but got \(0, 0\)"),
        (jnp.ones((3, 1)), TS, jnp.ones(3), (None, None, None), "no member axis at all"),
        (jnp.ones((3, 1)), TS, jnp.ones(3), (0, 0, 0), "y0: 3, ts: 2, args: 3"),
        (jnp.ones((2, 1)), jnp.array([0.0, 2.0, 1.0]), jnp.ones(2), (0, None, 0), "increasing or decreasing"),
        (jnp.ones((2, 1)), np.array([[0, 1], [0, np.nan]]), jnp.ones(2), (0, 0, 0), "Member 1: `ts` must be finite"),
        (jnp.ones((2, 1)), np.array([[0, 0], [1, 2], [2, 1]]), jnp.ones(2), (0, 1, 0), r"Member 1: .*ts\[1\] = 2 is"),
        (jnp.ones((2, 1)), jnp.array(1.0), jnp.ones(2), (0, None, 0), "one-dimensional"),
        (jnp.ones((2, 1)), jnp.ones(2), jnp.ones(2), (0, 0, 0), r"two-dimensional, but has shape \(2,\)"),
    ],
)  # fmt: skip
def test_ensembles(y0, ts, args, in_axes, message):
    fn = lambda t, y, k: -(k["k"] if isinstance(k, dict) else k) * y
    with pytest.raises(ValueError, match=message):
        solvers.solve_ensemble(fn, y0, ts, args, in_axes=in_axes, steps=2)


def test_a_state_without_numbers_and_tolerances_of_another_shape():
    ts = jnp.array([0.0, 1.0])
    with pytest.raises(ValueError, match="at least one number"):
        solvers.solve(lambda t, y, a: -y, jnp.zeros((0,)), ts)
    with pytest.raises(ValueError, match=r"`atol` must be a number, or one for each of the 2 real"):
        solvers.solve(lambda t, y, a: -y, jnp.ones(2), ts, atol=jnp.full(3, 1e-6))
    assert solvers.solve(lambda t, y, a: -y, jnp.ones(2), ts, atol=jnp.full(2, 1e-6)).ok
    two_each = jnp.full(4, 1e-6)  # real and imaginary parts
    assert solvers.solve(lambda t, y, a: -y, jnp.ones(2, complex), ts, atol=two_each).ok

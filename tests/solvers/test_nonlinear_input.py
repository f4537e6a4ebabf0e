"""What `root`, `least_squares` and `minimise` say to input that can't be meant, and what they take all the same."""

import jax
import jax.numpy as jnp
import numpy as np
import optimistix as optx
import pytest

from sciml import RESULTS, solvers


ONES = jnp.ones(2)


def bowl(y, args):
    return jnp.sum((y - 3) ** 2)


@pytest.mark.parametrize(
    ("bounds", "error", "text"),
    [
        (2.0, ValueError, "must be a pair"),
        ("ab", ValueError, "must be a pair"),
        (("a", 2.0), TypeError, "the lower one holds 'a'"),
        ((0.0, 2j), TypeError, "the upper one holds 2j"),
        ((jnp.zeros(3), 2.0), ValueError, r"lower one .* shape \(3,\), but .* shape \(2,\)"),
        (([0.0], 2.0), ValueError, r"lower one .* shape \(1,\)"),
        (({"a": 1.0}, 2.0), ValueError, "structured as `y0`"),
        ((2.0, 0.0), ValueError, "swapped or nan"),
    ],
    ids=str,
)
def test_bounds_that_can_not_be_meant(bounds, error, text):
    with pytest.raises(error, match=text):
        solvers.minimise(bowl, ONES, bounds=bounds)


@pytest.mark.parametrize(
    "bounds", [(None, 2.0), (None, [2.0, 2]), [[0, 0], np.full(2, 2.0)]], ids=str
)
def test_bounds_of_one_side_and_as_lists(bounds):
    np.testing.assert_array_equal(solvers.minimise(bowl, ONES, bounds=bounds).value, 2.0)


def test_bounds_in_optimistix_are_as_elsewhere():
    fn = lambda y, _: (y["a"] - 3) ** 2 + (y["b"] + 3) ** 2
    y0 = {"a": jnp.array(0.5), "b": jnp.array(0.5)}
    box = {"lower": 0.0, "upper": 1.0}
    run = lambda box: optx.minimise(fn, solvers.TrustRegionNewton(), y0, options=box).value
    assert run(box) == {"a": 1.0, "b": 0.0}
    with pytest.raises(ValueError, match=r"shape \(3,\)"):
        run({"lower": {"a": jnp.zeros(3), "b": 0.0}})


@pytest.mark.parametrize("low", [3.0, 1.5])
def test_bounds_that_only_show_at_run_time(low):
    # Swapped, or above the start.
    run = jax.jit(lambda low: solvers.minimise(bowl, ONES, bounds=(low, 2.0), throw=False))
    assert RESULTS.nonfinite_residual == run(low).result
    assert bool(run(0.0).ok)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"history": jnp.array(True)}, TypeError, "`history` must be True or False"),
        ({"throw": np.ones(2)}, TypeError, "`throw` must be True or False"),
        ({"args": [{3}]}, TypeError, r"`args` may hold .* but holds \{3\}"),
        ({"max_steps": 2.0}, ValueError, "`max_steps` must be a positive integer"),
    ],
    ids=str,
)
def test_options_that_can_not_be_meant(options, error, text):
    for run in (solvers.minimise, solvers.least_squares):
        with pytest.raises(error, match=text):
            run(bowl, ONES, **options)


def test_losses_and_their_scales_are_checked():
    with pytest.raises(ValueError, match="`f_scale` must be a positive number, but got 'a'"):
        solvers.least_squares(bowl, ONES, f_scale="a")
    with pytest.raises(ValueError, match="`loss` must be one of"):
        solvers.least_squares(bowl, ONES, loss=["huber"])


def test_what_functions_return():
    for run in (solvers.root, solvers.least_squares, solvers.minimise):
        with pytest.raises(TypeError, match="but returned 'far'"):
            run(lambda y, _: "far", ONES)


def test_half_precision():
    for run in (solvers.root, solvers.least_squares, solvers.minimise):
        with pytest.raises(TypeError, match="single or double precision, but `y0` is bfloat16"):
            run(lambda y, _: y, jnp.ones(1, jnp.bfloat16))


def test_numbers_in_options_need_no_new_compilation():
    traces = []

    def fn(y, args):
        traces.append(1)
        return y**3 - args["a"]

    run = lambda a, rtol: solvers.root(fn, ONES, {"a": a}, jac=solvers.Krylov(rtol=rtol))
    run(2.0, 1e-8)
    before = len(traces)
    np.testing.assert_allclose(run(3.0, 1e-6).value, 3 ** (1 / 3), rtol=1e-9)
    assert len(traces) == before

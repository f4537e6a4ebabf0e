"""Fits in single precision, which is what JAX has by default."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fit_cases import DECAY, Decay, decay_problem, DECAY_SE_KNOWN, FAST, numbers, T

from sciml import fit


@pytest.fixture(scope="module")
def result():
    with jax.enable_x64(False):
        problem = decay_problem(0.02)
        arrays = jax.tree.leaves(eqx.filter(problem, eqx.is_inexact_array))
        assert {x.dtype for x in arrays} == {np.dtype("float32")}
        return fit.estimate(problem)


def test_estimates_and_errors(result):
    assert result.ok
    np.testing.assert_allclose(numbers(result.values), numbers(DECAY), rtol=1e-4)
    np.testing.assert_allclose(numbers(result.standard_errors), numbers(DECAY_SE_KNOWN), rtol=1e-3)


def test_the_report_advises_double_precision(result):
    assert result.statistics["precision"] == "float32"
    assert (
        "  ! float32: enable x64" in str(result) and "float32: enable x64" in result._repr_html_()
    )
    assert "float32\n" in str(result)


def test_what_follows_a_fit(result, tmp_path):
    with jax.enable_x64(False):
        low, high = fit.intervals(result)["k"]
        assert low < DECAY["k"] < high
        band = fit.predict(result, np.linspace(0, 12, 5), observations=True)
        assert np.all(band.low < band.mean) and np.all(band.mean < band.high)
        fit.save(tmp_path / "run.sciml", result)
        again = fit.load(tmp_path / "run.sciml", like=decay_problem(0.02))
        assert again.values == result.values
        assert again.problem.lower.dtype == jnp.float32
        assert fit.loss(decay_problem(0.02))(result.problem.initial()).dtype == jnp.float32


def test_a_single_precision_file_is_not_for_a_double_precision_problem(result, tmp_path):
    with jax.enable_x64(False):
        fit.save(tmp_path / "run.sciml", result)
    with pytest.raises(ValueError, match=r"run.sciml holds"):
        fit.load(tmp_path / "run.sciml", like=decay_problem(0.02))


def test_a_single_precision_state_among_doubles():
    data = fit.Data(T, np.exp(-0.4 * T), 0.02)
    y0 = jnp.ones(1, jnp.float32)
    with jax.numpy_dtype_promotion("standard"):  # as users have it
        problem = fit.Problem(Decay(0.3), data, y0=y0, free={"k": fit.Free(0, 5)}, solve=FAST)
    assert problem.initial().dtype == jnp.float64
    with jax.numpy_dtype_promotion("standard"):
        result = fit.estimate(problem)
    np.testing.assert_allclose(result.values["k"], 0.4, rtol=1e-4)
    assert "float32" in str(result)

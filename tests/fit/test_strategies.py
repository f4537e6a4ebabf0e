"""Estimates that begin with a strategy."""

import hard_fits
import numpy as np
import pytest
from fit_cases import decay_problem

from sciml import fit


@pytest.mark.slow
def test_a_chaotic_system_keeps_what_multiple_shooting_found():
    problem, true = hard_fits.hard_fit("lorenz", 3001)
    result = fit.estimate(problem, strategy=fit.MultipleShooting())
    assert result.ok and "result is that of multiple shooting" in str(result)
    np.testing.assert_allclose(list(result.values.values()), true, rtol=1e-6)
    assert result.statistics["gap between windows"] < 1e-6


@pytest.mark.slow
def test_an_ordinary_one_is_optimised_over_the_whole():
    problem, true = hard_fits.hard_fit("lotka volterra", 301)
    result = fit.estimate(problem, strategy=(fit.Matching(), fit.MultipleShooting(windows=20)))
    assert result.ok and "multiple shooting" not in str(result)
    np.testing.assert_allclose(list(result.values.values()), true, rtol=1e-5)


def test_what_is_no_strategy():
    with pytest.raises(TypeError, match=r"`strategy` must be a `fit.MultipleShooting"):
        fit.estimate(decay_problem(), strategy="shooting")

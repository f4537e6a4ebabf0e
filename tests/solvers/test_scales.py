"""Units of unknowns and values, and other ways to be told that all is well where it isn't."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sciml import RESULTS, solvers


pytestmark = pytest.mark.slow


MINIMISERS = {
    "TrustRegionNewton": solvers.TrustRegionNewton(),
    "NewtonCG": solvers.NewtonCG(),
    "BFGS": solvers.BFGS(),
    "LBFGS": solvers.LBFGS(),
}
minimisers = pytest.mark.parametrize("method", MINIMISERS.values(), ids=list(MINIMISERS))


def bowl(y, scale):
    return jnp.sum((y / scale - 1) ** 2)


@minimisers
@pytest.mark.parametrize("scale", [1e-9, 1e9])
def test_unknowns_of_any_size(method, scale):
    sol = solvers.minimise(bowl, jnp.zeros(3), jnp.array(scale), method=method)
    np.testing.assert_allclose(sol.value, scale, rtol=1e-6)


@minimisers
def test_unknowns_of_any_size_in_single_precision(method):
    sol = solvers.minimise(bowl, jnp.zeros(2, jnp.float32), jnp.float32(1e4), method=method)
    np.testing.assert_allclose(sol.value, 1e4, rtol=1e-3)


@minimisers
@pytest.mark.parametrize("unit", [1e-20, 1e20])
def test_values_of_any_size(method, unit):
    fn = lambda y, unit: unit * ((1 - y[0]) ** 2 + 100 * (y[1] - y[0] ** 2) ** 2)
    sol = solvers.minimise(fn, jnp.array([-1.2, 1.0]), jnp.array(unit), method=method)
    np.testing.assert_allclose(sol.value, 1.0, rtol=1e-5)


def test_unknowns_of_different_sizes():
    fn = lambda y, _: (y[0] * 1e8 - 1) ** 2 + (y[1] / 1e8 - 1) ** 2
    sol = solvers.minimise(fn, jnp.zeros(2))
    np.testing.assert_allclose(sol.value, [1e-8, 1e8], rtol=1e-6)


@pytest.mark.parametrize("fn", [lambda y, _: jnp.arctan(y) - 1, lambda y, _: 1 / y - 1])
def test_infinity_is_no_start(fn):
    assert RESULTS.nonfinite_residual == solvers.root(fn, jnp.inf, throw=False).result


def test_a_pole_is_no_root():
    run = lambda fn, start=1.0, **kw: solvers.root(
        fn, start, method=solvers.Bracket(), bounds=(0.0, 2.0), throw=False, **kw
    )
    assert not bool(run(lambda y, _: 1 / (y - 0.5)).ok)
    # nan at one bound: the start and the other one enclose a root.
    sol = run(lambda y, _: jnp.where(y < 0.5, jnp.nan, y - 1.5))
    assert bool(sol.ok) and abs(sol.value - 1.5) < 1e-12
    assert RESULTS.no_sign_change == run(lambda y, _: jnp.where(y < 1.9, jnp.nan, 1.0), 1.95).result
    # A jump across zero is as near as one can get.
    jump = run(lambda y, _: jnp.where(y < 0.3, -2.0, 1.0))
    assert abs(jump.value - 0.3) < 1e-12


def test_a_fixed_point_is_like_what_it_is_of():
    with pytest.raises(TypeError, match="complex numbers"):
        solvers.fixed_point(lambda y, _: jax.lax.complex(jnp.cos(y), y), 1.0)
    with pytest.raises(ValueError, match=r"of shape \(3,\), but returned shape \(\)"):
        solvers.fixed_point(lambda y, _: jnp.cos(jnp.sum(y)), jnp.ones(3))


@pytest.mark.parametrize("value", [-1.0, jnp.array(-1.0), jnp.ones(2) / 10], ids=str)
def test_tolerances_are_checked(value):
    with pytest.raises((ValueError, TypeError), match="`xtol` must"):
        solvers.root(lambda y, _: y, 1.0, xtol=value)


def test_no_globalisation():
    with pytest.raises(ValueError, match="`globalisation` is empty"):
        solvers.Newton(globalisation=())


def test_traced_failures_raise():
    with pytest.raises(Exception, match="`root` did not converge"):
        jax.jit(lambda: solvers.root(lambda y, _: y**2 + 1, 1.0).value)().block_until_ready()


@pytest.mark.parametrize("unit", [1e-140, 1e-50, 1e50])
def test_residuals_of_any_size(unit):
    x = jnp.linspace(0.1, 5.0, 20)
    fn = lambda p, unit: (
        unit * (p[0] * jnp.exp(-p[1] * x) - jnp.exp(-1.3 * x) - 0.1 * jnp.sin(9 * x))
    )
    want = solvers.least_squares(fn, jnp.array([0.4, 0.5]), jnp.array(1.0))
    sol = solvers.least_squares(fn, jnp.array([0.4, 0.5]), jnp.array(unit))
    np.testing.assert_allclose(sol.value, want.value, rtol=1e-9)


def test_residuals_whose_squares_vanish_are_no_success():
    sol = solvers.least_squares(lambda y, _: 1e-170 * (y - 3), 1.0, throw=False)
    assert not bool(sol.ok)

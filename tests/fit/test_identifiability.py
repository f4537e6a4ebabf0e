"""Parameters at bounds, and directions that the data leave open."""

import jax.numpy as jnp
import numpy as np
import pytest
from fit_cases import Decay, decay_problem, FAST, numbers, Product, T, Y

from sciml import fit
from sciml.fit._uncertainty import uncertainty, undetermined


YS = np.stack([6 * np.exp(-0.5 * T), 3 * np.exp(-0.5 * T)], axis=1) + 0.1 * np.sin(7 * T)[:, None]


def product_problem(free):
    data = fit.Data(T, YS, 0.1, names=["big", "small"])
    return fit.Problem(Product(2.0, 0.3), data, y0=jnp.array([6.0, 3.0]), free=free, solve=FAST)


@pytest.fixture(scope="module")
def product():
    free = {"a": fit.Free(0, 10), "b": fit.Free(0, 10), "y0[1]": fit.Free(), "idle": fit.Free()}
    return fit.estimate(product_problem(free))


@pytest.fixture(scope="module")
def alone():
    """The same with one factor fixed: what can be known."""
    return fit.estimate(product_problem({"a": fit.Free(0, 10), "y0[1]": fit.Free()}))


@pytest.fixture(scope="module")
def bounded():
    free = {"k": fit.Free(1e-3, 0.3, scale="log"), "y0[0]": fit.Free(0, 10)}
    return fit.estimate(decay_problem(free=free))


def test_a_product_is_named_and_has_no_error_bars(product, alone):
    assert product.ok
    values, errors = product.values, product.standard_errors
    np.testing.assert_allclose(values["a"] * values["b"], alone.values["a"] * 0.3, rtol=1e-6)
    assert np.isnan(errors["a"]) and np.isnan(errors["b"])
    assert "a and b are not identifiable: the data determine only a combination" in str(product)
    low, high = fit.intervals(product)["a"]
    assert np.isnan(low) and np.isnan(high)


def test_a_parameter_without_effect_is_named(product):
    assert np.isnan(product.standard_errors["idle"])
    assert "idle is not identifiable: the data do not depend on it." in str(product)
    assert product.values["idle"] == 1.0


def test_what_is_determined_keeps_its_error_bar(product, alone):
    np.testing.assert_allclose(
        product.standard_errors["y0[1]"], alone.standard_errors["y0[1]"], rtol=1e-6
    )


def test_bands_are_finite_where_the_data_determine_the_curve(product, alone):
    ts = np.linspace(0, 12, 7)
    a, b = fit.predict(product, ts), fit.predict(alone, ts)
    np.testing.assert_allclose(a.mean, b.mean, rtol=1e-6)
    np.testing.assert_allclose(a.low, b.low, rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose(a.high, b.high, rtol=1e-5, atol=1e-9)


def test_a_parameter_at_its_bound(bounded):
    assert bounded.ok
    np.testing.assert_allclose(bounded.values["k"], 0.3, rtol=1e-14)
    assert bounded.active.tolist() == [1, 0]
    assert np.isnan(bounded.standard_errors["k"])
    assert np.all(np.isnan(fit.intervals(bounded)["k"]))
    assert np.all(np.isnan(bounded.covariance[0]))
    assert "k sits at its upper bound: no error bar" in str(bounded)
    assert bounded.statistics["dof"] == 9  # it does not count
    # The other's error bar is conditional on it: that of the linear regression on exp(-0.3 t).
    x = np.exp(-0.3 * T)
    y0 = x @ Y / (x @ x)
    error = np.sqrt(np.sum((Y - y0 * x) ** 2) / 9 / (x @ x))
    np.testing.assert_allclose(bounded.values["y0[0]"], y0, rtol=1e-6)
    np.testing.assert_allclose(bounded.standard_errors["y0[0]"], error, rtol=1e-5)


def test_a_fit_may_go_on_from_a_bound(bounded):
    rest = fit.estimate(bounded.problem.fix("k"))
    assert rest.values["y0[0]"] == pytest.approx(bounded.values["y0[0]"], rel=1e-7)
    again = fit.estimate(bounded.problem)
    assert again.active.tolist() == [1, 0] and len(again.history) <= 3


def test_bands_at_a_bound_are_conditional_on_it(bounded):
    curve = fit.predict(bounded, [0.0, 1.0])
    half = (curve.high - curve.mean)[:, 0]
    np.testing.assert_allclose(half[1] / half[0], np.exp(-0.3), rtol=1e-6)


def test_lower_bounds_and_several_at_once():
    free = {"k": fit.Free(0.5, 10), "y0[0]": fit.Free(0, 2.5)}
    result = fit.estimate(decay_problem(k=0.6, free=free))
    assert result.active.tolist() == [-1, 1]
    report = str(result)
    assert "k sits at its lower bound" in report and "y0[0] sits at its upper bound" in report
    assert np.all(np.isnan(numbers(result.standard_errors)))


def test_priors_determine_what_the_data_leave_open():
    free = {"k": fit.Free(0, 10), "y0[0]": fit.Free(prior=fit.priors.Normal(3, 0.1))}
    ys = np.where(T == 1, Y, np.nan)  # one value for two parameters
    data = fit.Data(T, ys, 0.02)
    problem = fit.Problem(Decay(0.2), data, y0=jnp.array([2.0]), free=free, solve=FAST)
    result = fit.estimate(problem)
    assert np.all(np.isfinite(numbers(result.standard_errors)))
    np.testing.assert_allclose(result.standard_errors["y0[0]"], 0.1, rtol=1e-4)
    assert "identifiable" not in str(result)


# The linear algebra by itself.


def rows_of(*columns):
    return np.stack(columns, axis=1)


RNG = np.random.default_rng(0)
P, Q, R = RNG.normal(size=(3, 20))


def test_the_covariance_is_the_inverse_information():
    rows = rows_of(P, 1e8 * Q, 1e-8 * R)  # whatever the units
    u = uncertainty(rows, np.zeros(3, int), 0.25)
    want = 0.25 * np.linalg.inv(rows_of(P, Q, R).T @ rows_of(P, Q, R))
    units = np.array([1, 1e-8, 1e8])
    np.testing.assert_allclose(u.covariance, want * np.outer(units, units), rtol=1e-12)
    assert u.known.all() and u.groups == ()


def test_nearly_dependent_columns_are_still_determined():
    rows = rows_of(P, P + 1e-6 * Q)
    u = uncertainty(rows, np.zeros(2, int), 1.0)
    assert u.known.all()
    q = Q - P * (P @ Q) / (P @ P)
    np.testing.assert_allclose(u.covariance[1, 1], 1e12 / (q @ q), rtol=1e-6)


@pytest.mark.parametrize(
    ("rows", "known", "groups"),
    [
        (rows_of(P, 0 * P), [True, False], {(1,)}),
        (rows_of(P, 2 * P, Q), [False, False, True], {(0, 1)}),
        (rows_of(P, Q, P + Q, R), [False, False, False, True], {(0, 1, 2)}),
        (rows_of(P, 1e5 * P, Q, -Q), [False] * 4, {(0, 1), (2, 3)}),
        (rows_of(P, P, 0 * P, Q), [False, False, False, True], {(0, 1), (2,)}),
        (np.zeros((5, 2)), [False, False], {(0,), (1,)}),
        (np.eye(2, 3), [True, True, False], {(2,)}),
        (np.array([[1.0, 1.0]]), [False, False], {(0, 1)}),
    ],
)
def test_open_directions(rows, known, groups):
    u = uncertainty(rows, np.zeros(rows.shape[1], int), 1.0)
    assert u.known.tolist() == known
    assert {tuple(sorted(g)) for g in u.groups} == groups


def test_parameters_at_bounds_take_no_part():
    u = uncertainty(rows_of(P, P, Q), np.array([0, -1, 0]), 1.0)
    assert u.known.tolist() == [True, False, True] and u.groups == ()
    want = np.linalg.inv(rows_of(P, Q).T @ rows_of(P, Q))
    np.testing.assert_allclose(u.covariance[np.ix_([0, 2], [0, 2])], want, rtol=1e-12)
    assert np.all(u.covariance[1] == 0)
    assert not uncertainty(rows_of(P, Q), np.array([1, 1]), 1.0).known.any()


def test_functions_of_what_is_determined_are_determined():
    u = uncertainty(rows_of(P, 1e5 * P, Q), np.zeros(3, int), 1.0)
    functions = np.array([[1, 1e5, 0], [1, 0, 0], [0, 0, 1], [1, -1e5, 0], [0, 0, 0]])
    assert undetermined(functions, u).tolist() == [False, True, False, True, False]

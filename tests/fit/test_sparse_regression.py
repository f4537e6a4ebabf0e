import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sciml import fit
from sciml.fit._stlsq import _regression


LIBRARY = fit.Library.polynomials(["x", "y"], 3)
X = np.random.default_rng(0).uniform(0.2, 2.0, (80, 2))
Y = np.stack([1.5 * X[:, 0] - 0.9 * X[:, 0] * X[:, 1], 0.5 - 2 * X[:, 1] ** 3], 1)
WAYS = [fit.stlsq, fit.best_subset]
each_way = pytest.mark.parametrize("find", WAYS)


def test_the_terms_of_a_library():
    assert fit.Library.polynomials("u", 2).texts == ("1", "u", "u^2")
    library = fit.Library.polynomials(["u", "v"], 2, constant=False) + fit.Library.sines(["u", "v"])
    names = ("u", "v", "u^2", "u v", "v^2", "sin(u)", "cos(u)", "sin(v)", "cos(v)")
    assert library.texts == names
    u, v = 0.3, -2.0
    expected = [u, v, u * u, u * v, v * v, np.sin(u), np.cos(u), np.sin(v), np.cos(v)]
    np.testing.assert_allclose(library(jnp.array([u, v])), expected, rtol=1e-15)


@each_way
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_exact_values_give_the_exact_law(find, dtype):
    options = {"tolerance": 1e-4} if find is fit.best_subset else {"threshold": 0.02}
    law = find(LIBRARY, X.astype(dtype), Y.astype(dtype), **options)
    assert law.coefficients.dtype == dtype
    assert {name: set(terms) for name, terms in law.terms.items()} == {
        "f0": {"x", "x y"},
        "f1": {"1", "y^3"},
    }
    rtol = 1e-4 if dtype == np.float32 else 1e-9
    np.testing.assert_allclose(law.coefficients, [1.5, -0.9, 0.5, -2], rtol=rtol)
    np.testing.assert_allclose(jax.vmap(law)(X.astype(dtype)), Y, rtol=10 * rtol, atol=rtol)
    assert str(law) == "f0 = 1.5 x - 0.9 x y\nf1 = 0.5 - 2 y^3"


@each_way
def test_several_trajectories_and_units(find):
    law = find(LIBRARY, X, Y)
    parts = find(LIBRARY, [X[:30], X[30:]], [Y[:30], Y[30:]])
    assert parts.terms == law.terms
    units = np.array([1e-6, 1e3])
    other = find(LIBRARY, X * units, Y * 1e5)
    assert other.kept == law.kept
    for (output, term), a, b in zip(law.kept, law.coefficients, other.coefficients, strict=True):
        powers = np.array(LIBRARY.functions[term].powers)
        assert float(b) == pytest.approx(float(a) * 1e5 / np.prod(units**powers), rel=1e-6), output


@each_way
def test_it_is_a_module_with_parameters(find):
    law = find(LIBRARY, X, Y[:, 0], outputs=["growth"])
    x = jnp.array([0.7, 1.1])
    assert law(x).shape == ()
    gradient = eqx.filter_grad(lambda law: law(x))(law)
    np.testing.assert_allclose(gradient.coefficients, [0.7, 0.77])
    np.testing.assert_allclose(eqx.filter_jit(law)(x), 1.5 * 0.7 - 0.9 * 0.77)
    np.testing.assert_allclose(jax.grad(law)(x), [1.5 - 0.9 * 1.1, -0.9 * 0.7])


def test_the_best_subset_is_that_of_trying_all():
    rng = np.random.default_rng(1)
    x = rng.uniform(-1, 1, (40, 2))
    y = np.exp(x[:, 0] - x[:, 1] ** 2)  # no sum of these terms
    table = np.asarray(LIBRARY.table(jnp.asarray(x)))
    for size in (1, 2, 3):
        law = fit.best_subset(LIBRARY, x, y, tolerance=1e-6, max_terms=size)
        errors = {
            subset: np.linalg.lstsq(table[:, subset], y)[1][0]
            for subset in itertools.combinations(range(10), size)
        }
        best = min(errors, key=errors.__getitem__)
        assert tuple(term for _, term in law.kept) == best
        assert law.error[0] == pytest.approx(np.sqrt(errors[best] / np.sum(y**2)), rel=1e-6)


def test_more_subsets_than_can_be_tried():
    library = fit.Library.polynomials([f"x{i}" for i in range(5)], 4)
    assert len(library.texts) == 126  # 9.7 million subsets of four
    x = np.random.default_rng(2).normal(size=(400, 5))
    y = x[:, 0] - 2 * x[:, 1] * x[:, 2] + 0.5 * x[:, 3] ** 3 + x[:, 4] ** 2 * x[:, 0]
    law = fit.best_subset(library, x, y, tolerance=1e-3)
    assert set(law.terms["f0"]) == {"x0", "x1 x2", "x3^3", "x0 x4^2"}


def test_noise_and_a_curve_leave_the_fewest_terms():
    # On one orbit many terms look alike; thresholding then keeps what it shouldn't.
    t = np.linspace(0, 3, 200)
    x = np.stack([1 + 0.8 * np.sin(2 * t), 1.5 + np.cos(2 * t)], 1)
    y = -0.9 * x[:, 0] * x[:, 1] + 0.03 * np.random.default_rng(3).normal(size=200)
    library = fit.Library.polynomials(["x", "y"], 5)
    law = fit.best_subset(library, x, y, tolerance=0.1)
    assert list(law.terms["f0"]) == ["x y"]
    assert law.terms["f0"]["x y"] == pytest.approx(-0.9, rel=0.01)


def test_ridge_shrinks_what_hardly_differs():
    # The second term is the first and a hair: without a ridge noise gives it any coefficient.
    noise = np.random.default_rng(4).normal(size=(80, 2))
    table = np.stack([X[:, 0], X[:, 0] + 1e-3 * noise[:, 0]], 1)
    value = 3 * X[:, 0] + 0.05 * noise[:, 1]
    loose, steady = (_regression(table, value, ridge) for ridge in (0.0, 1e-3))
    assert abs(loose[1] - loose[0]) > 3 and np.all(np.abs(steady - 1.5) < 0.05)
    normal = table.T @ table / 80 + 1e-3 * np.eye(2)
    np.testing.assert_allclose(steady, np.linalg.solve(normal, table.T @ value / 80), rtol=1e-8)


def test_powers_of_integers_do_not_overflow():
    x = np.arange(-40, 40)[:, None] * 100_000
    library = fit.Library.polynomials(["x"], 4)
    law = fit.best_subset(library, x, 2 * x[:, 0].astype(float) ** 4, tolerance=1e-9)
    assert law.terms == {"f0": {"x^4": pytest.approx(2)}}
    assert float(law(jnp.array([100_000]))) == pytest.approx(2e20)


def test_exact_data_meet_any_tolerance():
    law = fit.best_subset(LIBRARY, X, Y, tolerance=1e-12)
    assert [len(terms) for terms in law.terms.values()] == [2, 2] and law.ok == (True, True)


def test_what_is_not_explained_is_said():
    law = fit.best_subset(LIBRARY, X, np.exp(X[:, 0]), tolerance=1e-6, max_terms=1)
    assert law.ok == (False,)
    assert f"(leaves {100 * law.error[0]:.2g} % unexplained)" in str(law)


@each_way
def test_nothing_to_explain(find):
    law = find(LIBRARY, X, np.zeros(80))
    assert law.kept == ()
    assert str(law) == "f0 = 0"
    assert float(law(jnp.ones(2))) == 0


misuse = [
    (("no", X, Y), {}, TypeError, "`library` must be a `fit.Library`"),
    ((LIBRARY, X[:, :1], Y), {}, ValueError, r"shape \(sample, 2\).*but has \(80, 1\)"),
    ((LIBRARY, X, Y[:5]), {}, ValueError, r"`y` must have shape \(80,\)"),
    ((LIBRARY, [X, X], [Y]), {}, ValueError, "`x` has 2 trajectories, but `y` has 1"),
    ((LIBRARY, X, Y * np.nan), {}, ValueError, "must be finite"),
    ((LIBRARY, X, Y), {"outputs": ["a"]}, ValueError, "must be a list of 2 names"),
]


@each_way
@pytest.mark.parametrize(("args", "kwargs", "error", "message"), misuse, ids=range(len(misuse)))
@pytest.mark.usefixtures("unchecked")
def test_misuse(find, args, kwargs, error, message):
    with pytest.raises(error, match=message):
        find(*args, **kwargs)


@pytest.mark.usefixtures("unchecked")
def test_misuse_of_options_and_libraries():
    with pytest.raises(ValueError, match="`threshold` is relative"):
        fit.stlsq(LIBRARY, X, Y, threshold=2.0)
    with pytest.raises(ValueError, match="`tolerance` is relative"):
        fit.best_subset(LIBRARY, X, Y, tolerance=0.0)
    with pytest.raises(ValueError, match=r"3 samples can't tell .* give at least 10"):
        fit.best_subset(LIBRARY, X[:3], Y[:3])
    with pytest.raises(ValueError, match="80 samples can't tell 91 terms apart"):
        fit.stlsq(fit.Library.polynomials(["x", "y"], 12), X, Y)
    with pytest.raises(TypeError, match="outside of `jit`"):
        jax.jit(lambda y: fit.stlsq(LIBRARY, X, y).coefficients)(Y)
    with pytest.raises(ValueError, match="not finite at all samples"):
        fit.stlsq(fit.Library(["x", "y"], {"log": lambda x: jnp.log(-x[0])}), X, Y)
    with pytest.raises(ValueError, match="must have the same inputs"):
        LIBRARY + fit.Library.sines(["a"])
    with pytest.raises(ValueError, match="Both libraries have"):
        LIBRARY + fit.Library.polynomials(["x", "y"], 1)
    with pytest.raises(ValueError, match="a name of its own"):
        fit.Library.polynomials(["x", "x"], 1)
    with pytest.raises(TypeError, match="must be a dictionary"):
        fit.Library(["x"], [jnp.sin])
    with pytest.raises(ValueError, match="must return a scalar"):
        fit.Library(["x", "y"], {"x": lambda x: x})(jnp.ones(2))

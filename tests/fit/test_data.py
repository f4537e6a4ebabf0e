import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from sciml import fit


TS = [0.0, 1.0, 2.0]


def test_arrays():
    data = fit.Data(TS, [[3.0, 1.0], [2.0, np.nan], [1.0, 4.0]], names=["a", "b"])
    assert data.ys.dtype == data.ts.dtype == jnp.float64 and data.ys.shape == (3, 2)
    assert data.sigma is None and data.names == ("a", "b") and data.size == 5
    np.testing.assert_array_equal(data.seen, [[True, True], [True, False], [True, True]])
    np.testing.assert_array_equal(data.first, [3.0, 1.0])
    assert repr(data) == "Data(5 values of a, b at 3 times 0 .. 2)"


def test_one_observable_may_be_one_dimensional():
    data = fit.Data(jnp.arange(3), [3, 2, 1])
    assert data.ys.shape == (3, 1) and data.names == ("obs0",)
    assert data.ys.dtype == data.ts.dtype == jnp.float64  # integers become floats
    assert fit.Data(TS, [3, 2, 1], names="conc").names == ("conc",)


def test_equal_times_are_replicates():
    assert fit.Data([0.0, 0.0, 1.0], [1.0, 2.0, 3.0]).size == 3


@pytest.mark.parametrize(
    ("sigma", "want"),
    [
        (0.5, [[0.5, 0.5]] * 3),
        ([0.5, 2], [[0.5, 2.0]] * 3),
        ([[1, 2], [3, 4], [5, 6]], [[1, 2], [3, 4], [5, 6]]),
        (np.array([[1], [2], [3]]), [[1, 1], [2, 2], [3, 3]]),
    ],
)
def test_sigma_is_spread_over_the_values(sigma, want):
    data = fit.Data(TS, np.ones((3, 2)), sigma)
    np.testing.assert_array_equal(data.sigma, want)


def test_sigma_of_one_observable_may_be_one_number_a_time():
    np.testing.assert_array_equal(fit.Data(TS, [3, 2, 1], [1, 2, 3]).sigma, [[1], [2], [3]])


def test_sigma_may_be_missing_where_the_value_is():
    data = fit.Data(TS, [1, np.nan, 3], [0.1, np.nan, 0.1])
    assert np.all(np.isfinite(data.sigma))
    fit.Data(TS, [1, np.nan, 3], [0.1, 0.0, 0.1])


def test_the_first_row_must_be_complete_to_be_a_start():
    data = fit.Data(TS, [[1.0, np.nan], [2.0, 1.0], [3.0, 1.0]], names=["a", "b"])
    with pytest.raises(ValueError, match="no value for b") as e:
        _ = data.first
    assert "`y0` as numbers" in str(e.value)


bad_arguments = [
    (([0.0, 2.0, 1.0], [1, 2, 3]), {}, "row 1 is 2 and row 2 is 1.*Sort the rows"),
    (([0.0, np.nan, 1.0], [1, 2, 3]), {}, "finite, but row 1 .* is nan"),
    (([0.0, 1.0, np.inf], [1, 2, 3]), {}, "finite, but row 2 .* is inf"),
    (([], []), {}, "at least one time"),
    (([[0.0], [1.0]], [1, 2]), {}, r"one dimension, but has shape \(2, 1\)"),
    ((TS, [1, 2]), {}, r"`ys` must have shape .* 3 times .* \(2,\)"),
    ((TS, np.ones((3, 1, 1))), {}, r"shape \(3, 1, 1\)"),
    ((TS, [[1, 2], [3], [4, 5]]), {}, "rows of `ys` have different lengths"),
    ((TS, [1, -np.inf, 3]), {}, "infinite in row 1, column 0"),
    ((TS, [np.nan] * 3), {}, "no data"),
    ((TS, np.ones((3, 0))), {}, "no data"),
    ((TS, [1, 2, 3]), {"names": ["a", "b"]}, r"1 different names.*\['a', 'b'\]"),
    ((TS, np.ones((3, 2))), {"names": ["a", "a"]}, "2 different names"),
    ((TS, [1, 2, 3], 0.0), {}, "is 0.0 in row 0, column 0"),
    ((TS, [1, 2, 3], [1, -2, 3]), {}, "positive and finite, but is -2.0 in row 1"),
    ((TS, [1, 2, 3], [1, 2, np.nan]), {}, "is nan in row 2"),
    ((TS, [1, 2, 3], np.inf), {}, "is inf in row 0"),
    ((TS, np.ones((3, 2)), [1, 2, 3]), {}, r"one number, 2 .*\(3, 2\).* but has shape \(3,\)"),
]


@pytest.mark.parametrize(("args", "kwargs", "message"), bad_arguments, ids=lambda x: str(x)[:30])
def test_bad_values(args, kwargs, message):
    with pytest.raises(ValueError, match=message):
        fit.Data(*args, **kwargs)


def test_complex_values_are_no_measurements():
    with pytest.raises(TypeError, match="complex"):
        fit.Data(TS, np.ones(3) * 1j)


def test_double_precision_needs_x64():
    with jax.enable_x64(False):
        assert fit.Data(TS, [1, 2, 3]).ys.dtype == jnp.float32
        with pytest.raises(ValueError, match=r"float64.*64-bit mode is off.*jax_enable_x64"):
            fit.Data(TS, [1, 2, 3], dtype="float64")
    assert fit.Data(TS, [1, 2, 3], dtype=np.float32).ys.dtype == jnp.float32


def test_censored_values_are_marked():
    data = fit.Data(TS, [[3, 1], [2, np.nan], [0.5, 4]], 0.1, censored=[[0, 0], [0, 0], [-1, 1]])
    assert data.censored is not None and data.censored.dtype == jnp.int8
    np.testing.assert_array_equal(data.censored, [[0, 0], [0, 0], [-1, 1]])
    assert data.size == 5 and data.seen[2].all()  # the limits are numbers that count
    assert repr(data) == "Data(5 values (2 censored) of obs0, obs1 at 3 times 0 .. 2)"
    assert fit.Data(TS, [3, 2, 1], censored=np.array([0, 0, -1])).censored.shape == (3, 1)
    assert fit.Data(TS, [3, 2, 1], censored=[0, 0, 0]).censored is None
    # Where the value is missing, so may the mark be.
    data = fit.Data(TS, [3, np.nan, 1], censored=[0, None, -1])
    np.testing.assert_array_equal(data.censored, [[0], [0], [-1]])


bad_marks = [
    ([0, 2, 0], ValueError, "`censored` is 2 in row 1, column 0.*-1: the true value lies below"),
    ([0, 0.5, 0], ValueError, "is 0.5 in row 1"),
    ([0, np.nan, 0], ValueError, "is nan in row 1"),
    ([0, 0], ValueError, r"the shape \(3, 1\) of `ys`, but has shape \(2,\)"),
    (-1, ValueError, r"has shape \(\)"),
    ([[0], [1, 2], [0]], ValueError, "different lengths"),
    ([True, False, False], TypeError, "not True and False .*-1: the true value lies below"),
    (np.array([True, None, False]), TypeError, "not True and False"),
    (["0", "<", "0"], TypeError, "must hold numbers, but row 1 .* is '<'"),
]


@pytest.mark.parametrize(("marks", "error", "message"), bad_marks, ids=lambda x: str(x)[:20])
def test_bad_marks(marks, error, message):
    with pytest.raises(error, match=message):
        fit.Data(TS, [3, 2, 1], censored=marks)


def test_a_censored_value_needs_its_limit():
    with pytest.raises(ValueError, match=r"nan in row 1, column 0, where `censored` is -1.*limit"):
        fit.Data(TS, [3, np.nan, 1], censored=[0, -1, 0])


def random_covariance(rng, *shape):
    root = rng.normal(size=(*shape, shape[-1]))
    scales = 10.0 ** rng.uniform(-1, 1, size=shape)  # units that differ
    covariance = np.einsum("...ik,...jk->...ij", root, root) + np.eye(shape[-1])
    return covariance * scales[..., :, None] * scales[..., None, :]


def full_covariance(covariance, n, m):
    """Over all values, in C order."""
    if covariance.ndim == 3:
        return jax.scipy.linalg.block_diag(*covariance)
    return covariance if covariance.shape == (n * m, n * m) else np.kron(np.eye(n), covariance)


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize(
    ("n", "m", "shape", "blocks"),
    [
        (4, 3, (3,), (4, 3, 3)),
        (4, 3, (4, 3), (4, 3, 3)),
        (4, 3, (12,), (1, 12, 12)),
        (4, 1, (4,), (1, 4, 4)),
        (4, 1, (1,), (4, 1, 1)),
        (1, 3, (3,), (1, 3, 3)),
    ],
)
def test_whitened_residuals_have_the_likelihood_of_the_covariance(n, m, shape, blocks, missing):
    rng = np.random.default_rng(1)
    covariance = random_covariance(rng, *shape)
    full = np.asarray(full_covariance(covariance, n, m))
    ys = rng.multivariate_normal(np.zeros(n * m), full).reshape(n, m)
    if missing:
        ys[0, -1] = ys[n // 2, 0] = np.nan
    data = fit.Data(np.arange(n), ys, covariance=covariance)
    assert data.sigma is None and data.whitener.shape == blocks and data.log_det.shape == ()
    white = np.einsum("bij,bj->bi", data.whitener, np.nan_to_num(ys).reshape(blocks[:2]))
    seen = ~np.isnan(ys.ravel())
    marginal = full[np.ix_(seen, seen)]
    want = scipy.stats.multivariate_normal.logpdf(ys.ravel()[seen], cov=marginal)
    got = -np.sum(white**2) / 2 - data.log_det - seen.sum() * np.log(2 * np.pi) / 2
    np.testing.assert_allclose(got, want, rtol=1e-8)
    # By blocks, hence also without correlations between blocks.
    w = np.asarray(jax.scipy.linalg.block_diag(*data.whitener))
    np.testing.assert_allclose(w @ full @ w.T, np.diag(seen.astype(float)), atol=1e-7)
    assert not w[:, ~seen].any() and not w[~seen].any()


def test_variances_alone_are_sigma():
    sigma = np.array([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]])
    data = fit.Data(TS, np.ones((3, 2)), covariance=np.diag(sigma.ravel() ** 2), dtype="float32")
    assert data.whitener.dtype == data.log_det.dtype == jnp.float32
    np.testing.assert_allclose(np.diagonal(data.whitener[0]), 1 / sigma.ravel(), rtol=1e-6)
    np.testing.assert_allclose(data.log_det, np.log(sigma).sum(), rtol=1e-6)


def test_what_is_missing_needs_no_covariance():
    covariance = np.array([[1.0, np.nan], [np.nan, np.nan]])
    data = fit.Data(TS, [[1, np.nan]] * 3, covariance=covariance)
    np.testing.assert_array_equal(data.whitener, [[[1, 0], [0, 0]]] * 3)


ONES, UNIT = np.ones((3, 2)), np.eye(2)


bad_covariances = [
    (ONES, {"covariance": UNIT, "sigma": 1.0}, "not both"),
    (ONES, {"covariance": UNIT, "censored": np.eye(3, 2, dtype=int)}, "Censored values can't have"),
    (ONES, {"covariance": np.eye(3)}, r"\(2, 2\), \(3, 2, 2\), \(6, 6\): for each time the same"),
    (ONES, {"covariance": np.ones(2)}, r"has shape \(2,\).*without correlation use `sigma`"),
    (ONES, {"covariance": [[1, 0.5], [0.4, 1]]}, r"symmetric, but is 0.5 at \(0, 1\) and 0.4 at"),
    (ONES, {"covariance": [[1, 1], [1, 1]]}, "smallest eigenvalue of its correlations is"),
    (ONES, {"covariance": [[1, 2], [2, 1]]}, "smallest eigenvalue of its correlations is -1"),
    (ONES, {"covariance": [[1, 0], [0, 0]]}, r"variance at \(1, 1\) is 0.*infinite weight"),
    (ONES, {"covariance": [[1, np.nan], [np.nan, 1]]}, r"is nan at \(0, 1\)"),
    (ONES, {"covariance": np.stack([UNIT, UNIT, -UNIT])}, r"`covariance` of row 2 \(counted"),
    (ONES[:, :1], {"covariance": np.ones((3, 3))}, "smallest eigenvalue"),
]


@pytest.mark.parametrize(("ys", "kwargs", "message"), bad_covariances)
def test_bad_covariances(ys, kwargs, message):
    with pytest.raises(ValueError, match=message):
        fit.Data(TS, ys, **kwargs)


def test_units_matter_not_for_a_covariance():
    tiny = np.array([[1e-20, 5e-12], [5e-12, 1e-2]])  # a correlation of one half
    data = fit.Data(TS, ONES, covariance=tiny)
    np.testing.assert_allclose(data.log_det, 3 * np.log(np.linalg.det(tiny)) / 2, rtol=1e-9)

"""Smooth curves through measurements, without a model.

A spline of degree five with knots at quantiles of the times, whose third derivative is penalised (a P-spline). How
much is chosen by generalised cross-validation, for each column: data without noise are interpolated, noisy ones
averaged.

**References:** P. H. C. Eilers, B. D. Marx, *Flexible smoothing with B-splines and penalties*, Stat. Sci. 11 (1996),
89-121, doi 10.1214/ss/1038425655. P. Craven, G. Wahba, *Smoothing noisy data with spline functions*, Numer. Math. 31
(1979), 377-403, doi 10.1007/BF01404567. Y.-J. Kim, C. Gu, *Smoothing spline Gaussian regression*, J. R. Stat. Soc. B
66 (2004), 337-356, doi 10.1046/j.1369-7412.2003.05316.x.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


_DEGREE = 5
_KNOTS = 400  # coefficients at most: their eigenvalues are computed
_FEW = 6  # values below which there is no telling what is noise


class Curve(eqx.Module):
    """A piecewise polynomial, one for each column: `coefficients[k]` belongs to the power k."""

    breaks: Float[Array, " break"]
    coefficients: Float[Array, "power piece column"]

    def __call__(self, t: Float[Array, ""]) -> Float[Array, " column"]:
        last = self.coefficients.shape[1] - 1
        piece = jnp.clip(jnp.searchsorted(self.breaks, t, side="right") - 1, 0, last)
        r = t - self.breaks[piece]
        value = jnp.zeros_like(self.coefficients[0, 0])
        for c in self.coefficients[::-1]:
            value = value * r + c[piece]
        return value

    def table(self, ts: np.ndarray) -> np.ndarray:
        """The values at many times, without compiling anything."""
        breaks, c = np.asarray(self.breaks), np.asarray(self.coefficients)
        piece = np.clip(np.searchsorted(breaks, ts, side="right") - 1, 0, c.shape[1] - 1)
        r = (ts - breaks[piece])[..., None]
        value = np.zeros((*ts.shape, c.shape[2]), c.dtype)
        for power in c[::-1]:
            value = value * r + power[piece]
        return value

    def slope(self, t: Float[Array, ""]) -> Float[Array, " column"]:
        return jax.jvp(self, (t,), (jnp.ones_like(t),))[1]


def smooth(
    ts: np.ndarray, ys: np.ndarray, seen: np.ndarray, weights: np.ndarray | None = None
) -> tuple[Curve, np.ndarray]:
    """A curve for each column of a table.

    **Arguments:**

    - `ts`: times that don't decrease, of shape `(time,)`. `ys`, `seen`: of shape `(time, column)`.
    - `weights`: one over the standard deviation of each value, up to a common factor.

    **Returns:**

    The curve, and the root mean square of what it leaves over, one number for each column.
    """
    from scipy.interpolate import BSpline  # JAX requires SciPy, but does not import all of it

    at = np.unique(ts[seen.any(axis=1)].astype(float))
    if len(at) < 2:
        raise ValueError("A curve needs data at two times at least.")
    degree = min(_DEGREE, len(at) - 1)
    inner = min(len(at), _KNOTS) - degree - 1
    share = np.arange(1, inner + 1) / (inner + 1)
    # Quantiles of a few times each, evenly filled: knots as close as two random times can be spoil the numbers.
    blocks = (len(at) - 1) // min(max(len(at) // 6, 1), 8)
    coarse = np.interp(np.linspace(0, len(at) - 1, blocks + 1), np.arange(len(at)), at)
    middle = np.interp(share * blocks, np.arange(blocks + 1), coarse)
    edges = np.unique(np.concatenate([at[:1], middle, at[-1:]]))
    knots = np.concatenate([np.repeat(at[0], degree), edges, np.repeat(at[-1], degree)])
    size = len(knots) - degree - 1
    basis = BSpline(knots, np.eye(size), degree)
    penalty = _penalty(basis, edges, min(3, degree))
    design = BSpline.design_matrix(np.clip(ts, at[0], at[-1]), knots, degree).toarray()
    columns, left = [], []
    for j in range(ys.shape[1]):
        use = seen[:, j]
        if not use.any():
            columns.append(np.zeros(size))
            left.append(0.0)
            continue
        w = np.ones(use.sum()) if weights is None else weights[use, j] / weights[use, j].mean()
        c, rms = _chosen(design[use], ys[use, j].astype(float), w, penalty)
        columns.append(c)
        left.append(rms)
    spline = BSpline(knots, np.stack(columns, axis=1), degree)
    powers = [spline(edges[:-1], nu=k) / math.factorial(k) for k in range(degree + 1)]
    dtype = jnp.zeros(()).dtype if ys.dtype.kind != "f" else ys.dtype
    curve = Curve(jnp.asarray(edges, dtype), jnp.asarray(np.stack(powers), dtype))
    return curve, np.array(left)


def _penalty(basis, edges: np.ndarray, order: int) -> np.ndarray:
    """Rows whose squares are the integral of the squared derivative of a spline."""
    # The polynomials under the integral are of degree 2 * (5 - 3): three nodes of Gauss are exact.
    nodes, weights = np.polynomial.legendre.leggauss(3)
    half = np.diff(edges)[:, None] / 2
    points = (edges[:-1, None] + half * (1 + nodes)).ravel()
    rows = basis.derivative(order)(points) * np.sqrt(half * weights).ravel()[:, None]
    return np.linalg.qr(rows, mode="r")


def _chosen(design, y, w, penalty) -> tuple[np.ndarray, float]:
    """The coefficients with the best cross-validation, and the root mean square of the residuals."""
    # notation: minimise |w (B c - y)|^2 + lam |P c|^2; with T^T T = B^T w^2 B and P T^-1 = U sqrt(s) V^T the influence
    # of the data on the fit has the eigenvalues 1 / (1 + lam s). Products of the matrices with themselves would lose
    # the small ones, which belong to smooth curves.
    b = design * w[:, None]
    # Knots without data between them are held by the penalty.
    small = 1e-5 * np.linalg.norm(b) / np.linalg.norm(penalty)
    t = np.linalg.qr(np.concatenate([b, small * penalty]), mode="r")
    s, v = np.linalg.svd(np.linalg.solve(t.T, penalty.T).T, full_matrices=True)[1:]
    s = np.concatenate([s**2, np.zeros(len(v) - len(s))])
    q = v @ np.linalg.solve(t.T, b.T @ (w * y))
    n, size = len(y), float(np.sum((w * y) ** 2))
    scale = 1 / np.median(s[s > 0])
    lams = scale * 10.0 ** np.linspace(-14, 12, 105)
    gain = 1 / (1 + lams[:, None] * s)
    rest = np.maximum(size - np.sum(q**2), 0)
    rss = rest + np.sum(((1 - gain) * q) ** 2, axis=1)
    used = np.sum(gain, axis=1)
    score = lambda cost: (rss + 1e-15 * size) / np.maximum(n - cost * used, 1e-3) ** 2
    # Plain cross-validation follows the noise now and then, which a higher price of freedom prevents (Kim and Gu
    # 2004). But it can't interpolate, which is right where that predicts far better.
    k, exact = (int(np.argmin(score(cost))) for cost in (1.4, 1.0))
    if n < _FEW:
        k = 0
    elif score(1.0)[exact] < 0.1 * score(1.0)[k]:
        k = exact
    c = np.linalg.solve(t, v.T @ (gain[k] * q))
    return c, float(np.sqrt(np.mean((design @ c - y) ** 2)))

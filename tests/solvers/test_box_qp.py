"""The quadratic programme in a box, against a projected-gradient certificate and brute force."""

import itertools

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from sciml.solvers._nonlinear._loop import Box
from sciml.solvers._nonlinear._quadratic import Quadratic


@jax.jit
def run(a, g, low, high):
    """The minimiser of `g.p + p.A.p / 2` in the box."""
    root = jnp.linalg.cholesky(a)
    model = Quadratic(root.T, jax.scipy.linalg.solve_triangular(root, g, lower=True), None)
    return model.damped(jnp.zeros_like(g), jnp.zeros_like(g), Box(low, high, True))


def _random(key, n, spread=1.0):
    a, g, w, x = jr.split(key, 4)
    rows = jr.normal(a, (2 * n, n)) * 10.0 ** (spread * jnp.linspace(-1, 1, n))[None]
    matrix = rows.T @ rows + 1e-6 * jnp.diag(jnp.diag(rows.T @ rows))
    size = 1 / jnp.sqrt(jnp.diag(matrix))
    low = -size * jr.uniform(w, (n,))
    high = size * jr.uniform(x, (n,))
    return matrix, jr.normal(g, (n,)) / size, low, high


def _violation(a, g, low, high, p):
    """How far the point is from the conditions of Karush, Kuhn and Tucker, in units without scale."""
    scale = np.sqrt(np.diag(a))
    slope = np.asarray(g + a @ p) / scale
    room = np.asarray(high - p) * scale, np.asarray(p - low) * scale
    # Downhill must be blocked by a bound: the smaller of slope and room is zero.
    return max(
        np.max(np.minimum(np.maximum(-slope, 0), room[0])),
        np.max(np.minimum(np.maximum(slope, 0), room[1])),
    )


def test_without_bounds_it_is_the_linear_solve(getkey):
    a, g, _, _ = _random(getkey(), 5)
    inf = jnp.full(5, jnp.inf)
    np.testing.assert_allclose(run(a, g, -inf, inf), -jnp.linalg.solve(a, g), rtol=1e-9)


def test_diagonal_problems_are_clipped(getkey):
    d, g = jnp.array([1.0, 1e12, 1e-12]), jnp.array([-3.0, 2e12, -1e-12])
    low, high = jnp.array([-1.0, -1.0, -jnp.inf]), jnp.array([2.0, 1.0, 0.25])
    np.testing.assert_allclose(run(jnp.diag(d), g, low, high), [2.0, -1.0, 0.25], rtol=1e-14)


@pytest.mark.parametrize("n", [1, 3, 4])
def test_against_all_active_sets(n, getkey):
    for _ in range(5):
        a, g, low, high = map(np.asarray, _random(getkey(), n))
        best = np.inf
        for sides in itertools.product((-1, 0, 1), repeat=n):
            sides = np.array(sides)
            p = np.where(sides < 0, low, np.where(sides > 0, high, 0.0))
            free = sides == 0
            if free.any():
                p[free] = np.linalg.solve(a[np.ix_(free, free)], -(g + a @ p)[free])
            if (p >= low - 1e-12).all() and (p <= high + 1e-12).all():
                best = min(best, g @ p + p @ a @ p / 2)
        p = np.asarray(run(a, g, low, high))
        np.testing.assert_allclose(g @ p + p @ a @ p / 2, best, rtol=1e-9)


@pytest.mark.parametrize(("n", "spread"), [(8, 0.0), (8, 4.0)], ids=["alike", "apart"])
def test_optimality_in_many_random_boxes(n, spread, getkey):
    problems = jax.vmap(lambda k: _random(k, n, spread))(jr.split(getkey(), 50))
    ps = jax.jit(jax.vmap(run))(*problems)
    for a, g, low, high, p in zip(*map(np.asarray, (*problems, ps)), strict=True):
        assert (p >= low).all() and (p <= high).all()
        assert _violation(a, g, low, high, p) < 1e-8


def test_a_closed_box_leaves_nothing_to_choose():
    a = jnp.array([[2.0, 1.0], [1.0, 3.0]])
    low, high = jnp.array([0.0, -1.0]), jnp.array([0.0, 1.0])
    np.testing.assert_allclose(run(a, jnp.array([5.0, -1.5]), low, high), [0.0, 0.5], rtol=1e-12)
    np.testing.assert_array_equal(
        run(a, jnp.array([5.0, -1.5]), jnp.zeros(2), jnp.zeros(2)), [0.0, 0.0]
    )


def test_an_indefinite_matrix_gives_nan():
    p = run(
        jnp.array([[1.0, 2.0], [2.0, 1.0]]),
        jnp.ones(2),
        -jnp.full(2, jnp.inf),
        jnp.full(2, jnp.inf),
    )
    assert np.isnan(p).any()

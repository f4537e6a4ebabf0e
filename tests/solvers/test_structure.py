"""Declared Jacobians: the same solution as with a dense one, and less work."""

import equinox as eqx
import helpers
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.sparse

from sciml import solvers
from sciml.solvers import _block_tridiagonal as blocks, _pattern
from sciml.solvers._linear import inverse


ON = jnp.array([0.0, 0.05, 0.1])


def heat(t, u, k):
    n = u.shape[0]
    wide = jnp.concatenate([jnp.zeros(1), u, jnp.zeros(1)])
    return k * (n + 1) ** 2 * (wide[:-2] - 2 * wide[1:-1] + wide[2:])


def brusselator(t, y, p):
    """Two species on a line, beside each other at each point (Hairer and Wanner II, section I.1)."""
    u, v = y[0::2], y[1::2]
    n = u.shape[0]
    wide = lambda x, edge: jnp.concatenate([jnp.full(1, edge), x, jnp.full(1, edge)])
    second = lambda x: (x[:-2] - 2 * x[1:-1] + x[2:]) * p * (n + 1) ** 2
    du = 1 + u**2 * v - 4 * u + second(wide(u, 1.0))
    dv = 3 * u - u**2 * v + second(wide(v, 3.0))
    return jnp.stack([du, dv], axis=1).ravel()


def brusselator_start(n):
    x = np.arange(1, n + 1) / (n + 1)
    return jnp.asarray(np.stack([1 + np.sin(2 * np.pi * x), np.full(n, 3.0)], 1).ravel())


def ring(t, y, k):
    return k * (jnp.roll(y, 1) - 2 * y + jnp.roll(y, -1)) + jnp.sin(y)


def cells(t, y, k):
    """Robertson's reactions in many cells, each at its own pace."""
    y = y.reshape(-1, 3)
    pace = 1 + jnp.arange(float(y.shape[0]))[:, None] / y.shape[0]
    each = jax.vmap(lambda y: helpers.robertson(t, y, None))(y)
    return (k * pace * each).ravel()


# --- the linear algebra ---


@pytest.mark.parametrize(
    ("b", "m"), [(1, 1), (1, 300), (2, 129), (2, 257), (3, 140), (5, 7), (30, 4)]
)
def test_block_tridiagonal_systems(b, m):
    rng = np.random.default_rng(b * m)
    lower, diag, upper = rng.normal(size=(3, b, b, m))
    # Zeros on the diagonal of a block need pivoting.
    diag = 4 * b * np.roll(np.eye(b), 1, axis=0)[:, :, None] + diag
    lower[..., 0] = upper[..., -1] = 0
    full = np.zeros((b * m, b * m))
    for k in range(m):
        full[k * b : (k + 1) * b, k * b : (k + 1) * b] = diag[..., k]
        if k:
            full[k * b : (k + 1) * b, (k - 1) * b : k * b] = lower[..., k]
            full[(k - 1) * b : k * b, k * b : (k + 1) * b] = upper[..., k - 1]
    matrix = blocks.BlockTridiagonalMatrix(*map(jnp.asarray, (lower, diag, upper)))
    x = rng.normal(size=(b, m))
    flat = lambda x: np.asarray(x).T.ravel()
    np.testing.assert_allclose(
        flat(blocks.matrix_vector(matrix, jnp.asarray(x))), full @ flat(x), rtol=1e-11
    )
    solve = blocks.factorise(matrix)
    np.testing.assert_allclose(
        flat(solve(jnp.asarray(x))), np.linalg.solve(full, flat(x)), rtol=1e-9
    )
    (transposed,) = jax.linear_transpose(solve, jnp.asarray(x))(jnp.asarray(x))
    np.testing.assert_allclose(flat(transposed), np.linalg.solve(full.T, flat(x)), rtol=1e-9)


@pytest.mark.parametrize("b", [1, 2, 3, 8, 30])
def test_inverses_of_blocks(b):
    matrices = np.random.default_rng(b).normal(size=(b, b, 6))
    got = inverse(jnp.asarray(matrices))
    want = np.moveaxis(np.linalg.inv(np.moveaxis(matrices, -1, 0)), 0, -1)
    np.testing.assert_allclose(got, want, rtol=1e-8, atol=1e-10)


def _dense(layout, n, field):
    """The Jacobian that a layout finds of a field, column by column."""
    along = lambda e: jax.jvp(field, (jnp.linspace(1.0, 2.0, n),), (e,))[1]
    values = jax.vmap(along)(layout.seeds(float))
    found = layout.gather(values, layout.by_colour)
    if layout.size is None:
        return np.asarray(found)
    matrix = blocks.BlockTridiagonalMatrix(*found)
    times = lambda e: layout.from_blocks(blocks.matrix_vector(matrix, layout.to_blocks(e)))
    return np.asarray(jax.vmap(times, out_axes=1)(jnp.eye(n)))


@pytest.mark.parametrize(
    ("field", "n", "structure"),
    [
        (heat, 7, solvers.Banded(1, 1)),
        (brusselator, 12, solvers.Banded(2, 2)),
        (brusselator, 12, solvers.BlockTridiagonal(2)),
        (brusselator, 12, solvers.BlockTridiagonal(3)),
        (cells, 12, solvers.BlockDiagonal(3)),
        (ring, 40, None),
        (ring, 5, None),
        (lambda t, y, k: k * jnp.cumsum(y[::-1]), 6, None),
        (lambda t, y, k: k * jnp.cumsum(y), 9, solvers.Banded(8, 0)),
        (lambda t, y, k: -k * y, 5, solvers.Banded(0, 0)),
    ],
)
def test_structures_find_the_whole_jacobian(field, n, structure):
    y = jnp.linspace(1.0, 2.0, n)
    fn = lambda y: field(0.0, y, 1.5)
    if structure is None:
        structure = solvers.Sparse(solvers.sparsity(field, y, 1.5))
    np.testing.assert_allclose(_dense(structure.layout(n), n, fn), jax.jacfwd(fn)(y), atol=1e-12)


def test_few_directions_suffice():
    assert solvers.Banded(1, 1).layout(1000).seeds(float).shape == (3, 1000)
    assert solvers.BlockTridiagonal(2).layout(1000).seeds(float).shape == (6, 1000)
    grid = scipy.sparse.diags_array(
        [1.0, 1, 1, 1, 1], offsets=[-20, -1, 0, 1, 20], shape=(400, 400)
    )
    layout = solvers.Sparse(grid).layout(400)
    assert len(layout.seeds(float)) <= 10 and layout.size <= 21
    # The ring, cut open, has its ends beside each other.
    assert solvers.Sparse(solvers.sparsity(ring, jnp.ones(100), 1.0)).layout(100).size <= 3
    star = np.eye(50)
    star[0] = star[:, 0] = 1
    assert solvers.Sparse(star).layout(50).size is None


# --- solving with them ---


CASES = {
    "Banded": (heat, jnp.sin(jnp.pi * jnp.arange(1.0, 151.0) / 151), 1.0, solvers.Banded(1, 1)),
    "BlockTridiagonal": (brusselator, brusselator_start(70), 0.02, solvers.BlockTridiagonal(2)),
    "BlockDiagonal": (
        cells,
        jnp.tile(jnp.array([1.0, 0.0, 0.0]), 4),
        1e3,
        solvers.BlockDiagonal(3),
    ),
    "Sparse": (ring, jnp.linspace(0.0, 1.0, 40), 1e3, "found"),
    "Krylov": (brusselator, brusselator_start(10), 0.02, solvers.Krylov()),
    "Dense": (helpers.robertson, jnp.array([1.0, 0.0, 0.0]), 0.0, solvers.Dense()),
}


def case(name):
    fn, y0, k, jac = CASES[name]
    jac = solvers.Sparse(solvers.sparsity(fn, y0, k)) if jac == "found" else jac
    return fn, y0, k, jac


@pytest.mark.parametrize("name", CASES)
def test_the_solution_is_that_of_a_dense_jacobian(name):
    fn, y0, k, jac = case(name)
    options = {"method": solvers.Rodas5P(), "rtol": 1e-6, "atol": 1e-8}
    dense = solvers.solve(fn, y0, ON, k, **options)
    sol = solvers.solve(fn, y0, ON, k, jac=jac, **options)
    np.testing.assert_allclose(sol.ys, dense.ys, rtol=1e-6, atol=1e-8)
    assert abs(int(sol.stats["accepted"]) - int(dense.stats["accepted"])) <= 1
    default = solvers.solve(fn, y0, ON, k, jac=jac, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(default.ys, dense.ys, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "name", ["Banded", "BlockDiagonal", pytest.param("Sparse", marks=pytest.mark.slow)]
)
def test_derivatives_in_both_modes(name):
    fn, y0, k, jac = case(name)
    y0 = y0[:12] if name == "Banded" else y0

    def loss(k, jac):
        return jnp.sum(
            solvers.solve(
                fn, y0, ON, k, jac=jac, method=solvers.Rodas5P(), rtol=1e-8, atol=1e-10
            ).ys[-1]
            ** 2
        )

    k = float(k)
    by_hand = (loss(k * (1 + 1e-4), None) - loss(k * (1 - 1e-4), None)) / (2e-4 * k)
    reverse = jax.jit(jax.grad(lambda k: loss(k, jac)))(k)
    np.testing.assert_allclose(reverse, by_hand, rtol=1e-5, atol=1e-9 / k)
    np.testing.assert_allclose(jax.jit(jax.jacfwd(lambda k: loss(k, jac)))(k), reverse, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Banded", "Krylov"])
def test_second_derivatives(name):
    fn, y0, k, jac = case(name)
    y0 = y0[:12]

    def slope(k, jac):
        run = lambda k: solvers.solve(
            fn, y0, ON, k, jac=jac, method=solvers.Rodas5P(), rtol=1e-8
        ).ys[-1, 0]
        return jax.grad(run)(k)

    want = jax.jit(jax.grad(lambda k: slope(k, None)))(k)
    np.testing.assert_allclose(jax.jit(jax.grad(lambda k: slope(k, jac)))(k), want, rtol=1e-5)
    np.testing.assert_allclose(jax.jit(jax.jacfwd(lambda k: slope(k, jac)))(k), want, rtol=1e-5)


def test_ensembles_of_structured_systems():
    ks = jnp.array([0.5, 1.0, 2.0])
    y0 = CASES["Banded"][1]
    method = solvers.Rodas5P(jac=solvers.Banded(1, 1))
    sol = solvers.solve_ensemble(heat, y0, ON, ks, in_axes=(None, None, 0), method=method)
    for i, k in enumerate(ks):
        alone = solvers.solve(heat, y0, ON, float(k), method=method)
        np.testing.assert_allclose(sol.ys[i], alone.ys, rtol=1e-10, atol=1e-14)


class Stiff(eqx.Module):
    """Robertson's rates and their derivatives, which share a parameter."""

    k: jax.Array

    def __call__(self, t, y, args):
        a, c = -0.04 * y[0] + 1e4 * y[1] * y[2], self.k * y[1] ** 2
        return jnp.stack([a, -a - c, c])

    def jac(self, t, y, args):
        zero = 0 * y[0]
        a = jnp.stack([-0.04 + zero, 1e4 * y[2], 1e4 * y[1]])
        c = jnp.stack([zero, 2 * self.k * y[1], zero])
        return jnp.stack([a, -a - c, c])


def test_a_jacobian_by_the_user():
    y0, ts = jnp.array([1.0, 0.0, 0.0]), jnp.array([0.0, 40.0])

    def run(k, by_hand):
        model = Stiff(jnp.asarray(k))
        return solvers.solve(
            model, y0, ts, jac=model.jac if by_hand else None, method=solvers.Rodas5P()
        )

    np.testing.assert_allclose(run(3e7, True).ys, run(3e7, False).ys, rtol=1e-9)
    grads = [jax.jit(jax.grad(lambda k, b=b: run(k, b).ys[-1, 0]))(3e7) for b in (True, False)]
    np.testing.assert_allclose(*grads, rtol=1e-8)
    # A wrong one costs steps, not the solution.
    follow = lambda t, y, k: -k * (y - jnp.cos(t))
    options = {"method": solvers.Rodas5P(), "rtol": 1e-6, "atol": 1e-8}
    right = solvers.solve(follow, jnp.array([0.0]), ts, 10.0, **options)
    wrong = lambda t, y, k: jnp.full((1, 1), -0.8) * k
    sol = solvers.solve(follow, jnp.array([0.0]), ts, 10.0, jac=wrong, **options)
    assert int(sol.stats["accepted"]) > 1.5 * int(right.stats["accepted"])
    np.testing.assert_allclose(sol.ys, right.ys, rtol=1e-4)


def test_diagonals_by_the_user():
    def diagonals(t, u, k):
        n = u.shape[0]
        return k * (n + 1) ** 2 * jnp.array([1.0, -2.0, 1.0])[:, None] * jnp.ones((1, n))

    y0 = CASES["Banded"][1]
    by_hand = solvers.solve(heat, y0, ON, 1.0, jac=solvers.Banded(1, 1, diagonals))
    np.testing.assert_allclose(
        by_hand.ys, solvers.solve(heat, y0, ON, 1.0, jac=solvers.Banded(1, 1)).ys, rtol=1e-9
    )
    # not symmetric, so that rows and columns can't be mistaken
    lower = lambda t, y, k: (
        k * (jnp.concatenate([jnp.zeros(1), y[:-1]]) * jnp.arange(20.0) - 30 * y)
    )
    ab = lambda t, y, k: (
        k * jnp.stack([jnp.full(20, -30.0), jnp.concatenate([jnp.arange(1.0, 20), jnp.zeros(1)])])
    )
    options = {"method": solvers.Rodas5P(), "rtol": 1e-7}
    got = solvers.solve(lower, jnp.ones(20), ON, 1e3, jac=solvers.Banded(1, 0, ab), **options)
    want = solvers.solve(lower, jnp.ones(20), ON, 1e3, **options)
    np.testing.assert_allclose(got.ys, want.ys, rtol=1e-8, atol=1e-12)
    assert got.stats["accepted"] == want.stats["accepted"]


# --- Case 6: the heat equation on a line ---


@pytest.mark.parametrize(
    ("n", "mid", "edge"),
    [(100, 0.772178839885, 0.024640466779), (1000, 0.772310255151, 0.002486639907)],
)
def test_the_heat_equation(n, mid, edge):
    """From 1 everywhere to t = 0.05; exact values of the discretised equation."""
    sol = solvers.solve(heat, jnp.ones(n), jnp.array([0.0, 0.05]), 1.0, jac=solvers.Banded(1, 1))
    assert sol.stats["stiff_attempts"] > 0
    np.testing.assert_allclose(sol.ys[-1, n // 2 - 1], mid, atol=1e-5)
    np.testing.assert_allclose(sol.ys[-1, 0], edge, atol=1e-5)
    if n == 1000:
        np.testing.assert_allclose(sol.ys[-1].sum() / (n + 1), 0.495911587035, atol=1e-5)
    assert sol.stats["accepted"] < 100


def test_memory_is_linear_in_the_size():
    n = 10_000
    y0 = jnp.sin(jnp.pi * jnp.arange(1.0, n + 1) / (n + 1))
    run = jax.jit(
        lambda y0: solvers.solve(heat, y0, ON, 1.0, jac=solvers.Banded(1, 1), throw=False)
    )
    compiled = run.lower(y0).compile()
    used = compiled.memory_analysis().temp_size_in_bytes
    assert used < 500 * 8 * n  # a dense Jacobian alone would take 10,000 of these
    sol = run(y0)
    assert sol.ok
    rate = 4 * (n + 1) ** 2 * np.sin(np.pi / 2 / (n + 1)) ** 2
    np.testing.assert_allclose(sol.ys[-1], np.exp(-0.1 * rate) * y0, atol=1e-6)


def test_the_brusselator_against_scipy():
    y0 = brusselator_start(60)
    f = jax.jit(lambda t, y: brusselator(t, y, 0.02))
    want = scipy.integrate.solve_ivp(
        lambda t, y: np.asarray(f(t, y)),
        (0, 10),
        y0,
        "LSODA",
        rtol=1e-9,
        atol=1e-10,
        lband=2,
        uband=2,
    ).y[:, -1]
    sol = solvers.solve(brusselator, y0, jnp.array([0.0, 10.0]), 0.02, jac=solvers.Banded(2, 2))
    np.testing.assert_allclose(sol.ys[-1], want, rtol=1e-4)


@pytest.mark.parametrize(
    "jac", [solvers.Krylov(), solvers.BlockDiagonal(1), solvers.Banded(1, 1)], ids=helpers.name
)
@pytest.mark.parametrize("unit", [1e-18, 1e18])
def test_units_of_the_state_do_not_matter(jac, unit):
    rates = jnp.array([1.0, 2.0, 3.0])
    sol = solvers.solve(
        lambda t, y, a: -a * y,
        unit * jnp.ones(3),
        ON * 10,
        rates,
        jac=jac,
        method=solvers.Rodas5P(),
        atol=1e-9 * unit,
    )
    np.testing.assert_allclose(sol.ys[-1] / unit, jnp.exp(-rates), rtol=1e-4)


def test_rates_whose_squares_overflow():
    y0, ts = jnp.array([0.0, 0.5], jnp.float32), jnp.array([0.0, 1.0], jnp.float32)
    fn = lambda t, y, r: -r * (y - 1)
    sol = solvers.solve(
        fn, y0, ts, jnp.float32(1e20), method=solvers.Rodas5P(), jac=solvers.BlockDiagonal(2)
    )
    np.testing.assert_allclose(sol.ys[-1], 1.0, rtol=1e-5)


def test_krylov_in_single_precision():
    y0 = jnp.ones(3, jnp.float32)
    fn = lambda t, y, k: -k * (y - jnp.cos(t))
    for k in (1.0, 1e3):
        sol = solvers.solve(
            fn, y0, ON, jnp.float32(k), method=solvers.Rodas5P(), jac=solvers.Krylov()
        )
        want = solvers.solve(fn, y0, ON, jnp.float32(k), method=solvers.Rodas5P())
        np.testing.assert_allclose(sol.ys, want.ys, rtol=1e-4)


def test_a_function_keeps_large_states_stiff():
    run = lambda jac: solvers.solve(
        lambda t, y, a: -1e6 * (y - jnp.cos(t)), jnp.ones(600), ON, jac=jac, max_steps=500
    )
    assert run(lambda t, y, a: -1e6 * jnp.eye(600)).stats["stiff_attempts"] > 0


# --- at the door ---


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"jac": solvers.Banded(1, 1), "method": solvers.Tsit5()}, ValueError, r"for our stiff methods.*Tsit5"),
        ({"jac": 3}, TypeError, r"must be a function.*Banded\(1, 1\).*got 3"),
        ({"jac": solvers.BlockDiagonal(2)}, ValueError, r"Blocks of 2 do not divide a state of 5"),
        ({"jac": solvers.BlockTridiagonal(3)}, ValueError, r"Blocks of 3 do not divide a state of 5"),
        ({"jac": solvers.Sparse(np.eye(4))}, ValueError, r"pattern of shape \(4, 4\).*state has 5"),
        ({"jac": lambda t, y, a: jnp.eye(4)}, ValueError, r"must return shape \(5, 5\), but gave \(4, 4\)"),
        (
            {"jac": solvers.Banded(1, 1, lambda t, y, a: jnp.eye(5))}, ValueError,
            r"must return shape \(3, 5\), but gave \(5, 5\)",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(options, error, message):
    with pytest.raises(error, match=message):
        solvers.solve(lambda t, y, a: -y, jnp.ones(5), ON, **options)


def test_structures_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match=r"rtol of Krylov.*between 0 and 1, but is 2"):
        solvers.Krylov(rtol=2.0)
    with pytest.raises(ValueError, match=r"lower of Banded.*at least 0, but is -1"):
        solvers.Banded(-1, 1)
    with pytest.raises(ValueError, match=r"size of BlockDiagonal.*at least 1, but is 0"):
        solvers.BlockDiagonal(0)
    with pytest.raises(ValueError, match=r"square matrix, but has shape \(2, 3\)"):
        solvers.Sparse(np.ones((2, 3)))
    with pytest.raises(TypeError, match=r"takes real states"):
        solvers.sparsity(lambda t, y, a: -y, jnp.ones(3, complex))
    assert solvers.Sparse(np.eye(3)) == solvers.Sparse(scipy.sparse.eye_array(3))
    assert "3 entries" in repr(_pattern.Pattern.of(np.eye(3)))

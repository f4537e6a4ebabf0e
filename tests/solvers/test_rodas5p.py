"""Rodas5P: its coefficients proved by order conditions, its stability, and stiff problems with known answers."""

import math

import helpers
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
from helpers import problem, robertson, van_der_pol

from sciml import solvers
from sciml.solvers import _rodas5p


METHOD = solvers.Rodas5P()

# In the variables of Rosenbrock's form (Hairer & Wanner II, section IV.7): the stages there are
# k = (I/gamma - C)^-1 u. notation: y1 = y + sum b_i k_i, stages at y + sum alpha_ij k_j
GAMMA = np.linalg.inv(np.eye(8) / _rodas5p._GAMMA - _rodas5p._C)
ALPHA = _rodas5p._A @ GAMMA
B = _rodas5p._B @ GAMMA

# Rooted trees, each the tuple of its branches, by number of nodes.
TREES = {1: [()]}
TREES[2] = [((),)]
TREES[3] = [((), ()), (TREES[2][0],)]
TREES[4] = [((), (), ()), ((), TREES[2][0])] + [(t,) for t in TREES[3]]
TREES[5] = [
    ((), (), (), ()),
    ((), (), TREES[2][0]),
    (TREES[2][0], TREES[2][0]),
    *[((), t) for t in TREES[3]],
    *[(t,) for t in TREES[4]],
]
TREES[6] = [(t,) for t in TREES[5]]  # some of order 6


def _size(tree) -> int:
    return 1 + sum(map(_size, tree))


def _density(tree) -> int:
    return _size(tree) * math.prod(map(_density, tree))


def _weights(tree):
    """The elementary weight of each stage: a node with one branch has the Jacobian's term, too."""
    edge = ALPHA + GAMMA if len(tree) == 1 else ALPHA
    return np.prod([np.ones(8), *(edge @ _weights(branch) for branch in tree)], axis=0)


def _defect(b, tree, theta=1.0) -> float:
    return abs(b @ _weights(tree) - theta ** _size(tree) / _density(tree))


def test_structure():
    assert [len(TREES[n]) for n in range(1, 6)] == [1, 1, 2, 4, 9]
    np.testing.assert_allclose(np.diag(GAMMA), _rodas5p._GAMMA, rtol=1e-14)
    # The nodes and sums that the paper lists, not used in the code.
    nodes = [0, 0.6358126895828704, 0.4095798393397535, 0.9769306725060716, 0.4288403609558664]
    sums = [_rodas5p._GAMMA, -0.42387512638858027, -0.3384627126235924, 1.8046452872882734]
    sums = [*sums, 2.325825639765069, 0, 0, 0]
    np.testing.assert_allclose(ALPHA.sum(1), [*nodes, 1, 1, 1], atol=1e-13)
    np.testing.assert_allclose(GAMMA.sum(1), sums, atol=1e-13)
    np.testing.assert_allclose(_rodas5p._ALPHA, ALPHA.sum(1), atol=1e-13)
    np.testing.assert_allclose(_rodas5p._GAMMA_SUM, GAMMA.sum(1), atol=1e-13)
    # Stiffly accurate: the solution is the last row of alpha + gamma, the embedded one the row before.
    np.testing.assert_allclose((ALPHA + GAMMA)[7], B, atol=1e-13)
    np.testing.assert_allclose((ALPHA + GAMMA)[6], ALPHA[7], atol=1e-13)


def test_order_conditions():
    for order in range(1, 6):
        for tree in TREES[order]:
            assert _defect(B, tree) < 1e-13, tree
    assert max(_defect(B, t) for t in TREES[6]) > 1e-6


def test_the_embedded_solution_is_of_order_4():
    embedded = B - GAMMA[7]  # the error estimate is the last stage
    unit = METHOD.error(jnp.eye(8))
    np.testing.assert_array_equal(unit, np.eye(8)[7])
    for order in range(1, 5):
        for tree in TREES[order]:
            assert _defect(embedded, tree) < 1e-13, tree
    assert max(_defect(embedded, t) for t in TREES[5]) > 1e-5


def test_the_dense_output_is_of_order_4():
    for theta in (0.1, 0.37, 0.5, 0.9):
        b = np.asarray(METHOD.weights(jnp.array(theta))) @ GAMMA
        for order in range(1, 5):
            for tree in TREES[order]:
                assert _defect(b, tree, theta) < 1e-13, (theta, tree)
        assert max(_defect(b, t, theta) for t in TREES[5]) > 1e-6
    np.testing.assert_array_equal(METHOD.weights(jnp.array(0.0)), np.zeros(8))
    np.testing.assert_allclose(METHOD.weights(jnp.array(1.0)), _rodas5p._B, rtol=1e-15)


@jax.jit
def _stability(z):
    """R(z), z complex, as a real system of two."""
    a, b = z.real, z.imag
    field = lambda t, y: jnp.stack([a * y[0] - b * y[1], b * y[0] + a * y[1]])
    y = METHOD.advance(field, jnp.array(0.0), jnp.array([1.0, 0.0]), jnp.array(1.0))
    return jax.lax.complex(y[0], y[1])


def test_stability_function():
    R = jax.vmap(_stability)
    # The same by linear algebra: 1 + z b (I - z (alpha + gamma))^-1 1
    z = np.array([-0.5, -3.0, 1.0 + 1.0j, -20.0j, -50 + 3j])
    want = [1 + w * B @ np.linalg.solve(np.eye(8) - w * (ALPHA + GAMMA), np.ones(8)) for w in z]
    np.testing.assert_allclose(R(z), want, rtol=1e-10, atol=1e-12)
    # A-stable, hence bounded by 1 on the imaginary axis and to its left; L-stable.
    y = np.concatenate([np.linspace(0, 60, 400), np.logspace(2, 6, 40)])
    assert np.abs(R(1j * y)).max() <= 1 + 1e-12
    x = -np.logspace(-3, 6, 30)
    assert np.abs(R((x[:, None] + 1j * y[None, ::20]).ravel())).max() <= 1 + 1e-12
    assert abs(_stability(jnp.array(-1e8 + 0j))) < 1e-6
    # Of order 5: R(z) - exp(z) is C z^6.
    errors = np.abs(np.asarray(R(np.array([-0.2 + 0j, -0.1 + 0j]))) - np.exp([-0.2, -0.1]))
    assert 5.7 < np.log2(errors[0] / errors[1]) < 7


@pytest.mark.parametrize("name", ["logistic", "forced", "bell"])
def test_observed_order(name):
    """Autonomous and not."""
    slope = helpers.observed_order(METHOD, problem[name], steps=(8, 16))
    assert 4.7 < slope < 6.1


def test_observed_order_of_a_system():
    # Nonlinear, with time in it, and without a closed form: against a far finer solve.
    def fn(t, y, args):
        return jnp.stack([y[1] * jnp.cos(t), -jnp.sin(y[0]) - 0.1 * y[1] ** 2 + 0.3 * t])

    run = lambda n, method: solvers.solve(
        fn, jnp.array([1.0, 0.5]), jnp.array([0.0, 2.0]), method=method, steps=n
    ).ys[-1]
    exact = run(400, solvers.Tsit5())
    errors = [np.linalg.norm(run(n, METHOD) - exact) for n in (8, 16)]
    assert 4.7 < math.log2(errors[0] / errors[1]) < 5.5


def test_prothero_robinson():
    """A stiff linear problem on a smooth solution: of order 3 however stiff, where others drop to 1 or 2."""
    fn = lambda t, y, L: -L * (y - jnp.cos(t)) - jnp.sin(t)
    run = lambda n: solvers.solve(
        fn, jnp.array([1.0]), jnp.array([0.0, 2.0]), jnp.array(1e4), method=METHOD, steps=n
    ).ys[-1, 0]
    errors = [abs(float(run(n)) - np.cos(2.0)) for n in (40, 80)]
    assert math.log2(errors[0] / errors[1]) > 3
    assert errors[1] < 1e-11


def test_robertson():
    """Case 1."""
    sol = solvers.solve(
        robertson, jnp.array([1.0, 0.0, 0.0]), jnp.array([0.0, 0.4, 40.0, 1e5]),
        method=METHOD, rtol=1e-8, atol=1e-11,
    )  # fmt: skip
    want = [
        [0.985172113861, 3.38639537897e-05, 0.0147940221852],
        [0.715827068719, 9.18553476456e-06, 0.284163745746],
        [0.0178659211421, 7.274751468436e-08, 0.9821340061103],
    ]
    np.testing.assert_allclose(sol.ys[1:], want, rtol=1e-6)
    np.testing.assert_allclose(sol.ys.sum(1), 1, rtol=1e-12)  # mass
    assert sol.stats["accepted"] + sol.stats["rejected"] <= 250


def test_van_der_pol():
    """Case 1, second instance."""
    sol = solvers.solve(
        van_der_pol, jnp.array([2.0, 0.0]), jnp.array([0.0, 2000.0]), 1000.0,
        method=METHOD, rtol=1e-9, atol=1e-11,
    )  # fmt: skip
    np.testing.assert_allclose(sol.ys[-1], [1.706167732171, -8.928097010e-04], rtol=1e-5)


def _hires(t, y, args):
    r = 280 * y[5] * y[7]
    terms = [
        -1.71 * y[0] + 0.43 * y[1] + 8.32 * y[2] + 0.0007,
        1.71 * y[0] - 8.75 * y[1],
        -10.03 * y[2] + 0.43 * y[3] + 0.035 * y[4],
        8.32 * y[1] + 1.71 * y[2] - 1.12 * y[3],
        -1.745 * y[4] + 0.43 * y[5] + 0.43 * y[6],
        -r + 0.69 * y[3] + 1.71 * y[4] - 0.43 * y[5] + 0.69 * y[6],
        r - 1.81 * y[6],
        -r + 1.81 * y[6],
    ]
    return (np if isinstance(y, np.ndarray) else jnp).stack(terms)


def test_hires():
    y0, t1 = np.array([1.0, 0, 0, 0, 0, 0, 0, 0.0057]), 321.8122
    ts = np.array([0.0, 5.0, 100.0, t1])
    want = scipy.integrate.solve_ivp(
        lambda t, y: _hires(t, y, None), (0, t1), y0, "Radau", ts, rtol=1e-9, atol=1e-14
    ).y.T
    sol = solvers.solve(_hires, jnp.asarray(y0), ts, method=METHOD, rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(sol.ys, want, rtol=2e-6, atol=1e-10)


def test_a_singular_matrix_is_a_rejected_step():
    # I/(h gamma) - J is singular for J = 1/(h gamma): whatever comes, the solve goes on.
    sol = solvers.solve(
        lambda t, y, k: k * y, jnp.array([1e-30]), jnp.array([0.0, 1.0]),
        jnp.array(1 / _rodas5p._GAMMA), method=METHOD, rtol=1e-2, atol=1e-6,
    )  # fmt: skip
    np.testing.assert_allclose(sol.ys[-1], 1e-30 * np.exp(1 / _rodas5p._GAMMA), atol=1e-6)


@pytest.mark.parametrize("problem", helpers.exact_problems, ids=str)
def test_accuracy_on_fixed_steps(problem):
    ts = problem.times()
    sol = solvers.solve(problem.fn, problem.y0, ts, problem.args, method=METHOD, steps=15)
    helpers.assert_close(sol.ys, problem.solution(ts), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("problem", helpers.exact_problems, ids=str)
def test_accuracy_on_adaptive_steps(problem):
    ts = problem.times()
    sol = solvers.solve(
        problem.fn, problem.y0, ts, problem.args, method=METHOD, rtol=1e-7, atol=1e-9
    )
    helpers.assert_close(sol.ys, problem.solution(ts), rtol=1e-6, atol=1e-7)
    assert sol.stats["accepted"] < 100

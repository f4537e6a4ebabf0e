"""Rodas5P: its coefficients as the paper has them, and stiff problems with known answers."""

import math

import jax.numpy as jnp
import numpy as np
import scipy.integrate
from helpers import robertson, van_der_pol

from sciml import solvers
from sciml.solvers import _rodas5p


METHOD = solvers.Rodas5P()

# In the variables of Rosenbrock's form (Hairer & Wanner II, section IV.7): the stages there are
# k = (I/gamma - C)^-1 u. notation: y1 = y + sum b_i k_i, stages at y + sum alpha_ij k_j
GAMMA = np.linalg.inv(np.eye(8) / _rodas5p._GAMMA - _rodas5p._C)
ALPHA = _rodas5p._A @ GAMMA
B = METHOD.b @ GAMMA


def test_structure():
    np.testing.assert_allclose(np.diag(GAMMA), _rodas5p._GAMMA, rtol=1e-14)
    # The nodes and sums that the paper lists, not used in the code.
    nodes = [0, 0.6358126895828704, 0.4095798393397535, 0.9769306725060716, 0.4288403609558664]
    sums = [_rodas5p._GAMMA, -0.42387512638858027, -0.3384627126235924, 1.8046452872882734]
    sums = [*sums, 2.325825639765069, 0, 0, 0]
    np.testing.assert_allclose(ALPHA.sum(1), [*nodes, 1, 1, 1], atol=1e-13)
    np.testing.assert_allclose(GAMMA.sum(1), sums, atol=1e-13)
    # Stiffly accurate: the solution is the last row of alpha + gamma, the embedded one the row before.
    np.testing.assert_allclose((ALPHA + GAMMA)[7], B, atol=1e-13)
    np.testing.assert_allclose((ALPHA + GAMMA)[6], ALPHA[7], atol=1e-13)


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

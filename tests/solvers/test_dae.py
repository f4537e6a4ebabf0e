"""Mass matrices: regular and singular ones (differential-algebraic equations of index 1)."""

import helpers
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
import scipy.sparse

from sciml import solvers
from sciml.solvers import _dae


RODAS = solvers.Rodas5P()
ON = jnp.array([0.0, 0.5, 1.0])


def robertson(t, y, k):
    a, c = -0.04 * y[0] + 1e4 * y[1] * y[2], k * y[1] ** 2
    return jnp.stack([a, -a - c, y.sum() - 1])


def akzo(t, y, p):
    """Chemical Akzo Nobel, test set for IVP solvers: five concentrations and an equilibrium."""
    y1, y2, y3, y4, y5, y6 = y
    root = jnp.sqrt(jnp.abs(y2))
    r1, r2, r3 = 18.7 * y1**4 * root, 0.58 * y3 * y4, 0.58 / 34.4 * y1 * y5
    r4, r5, inflow = 0.09 * y1 * y4**2, 0.42 * y6**2 * root, 3.3 * (0.9 / 737 - y2)
    return jnp.stack(
        [
            -2 * r1 + r2 - r3 - r4, -r1 / 2 - r4 - r5 / 2 + inflow, r1 - r2 + r3,
            -r2 + r3 - 2 * r4, r2 - r3 + r5, 115.83 * y1 * y4 - y6,
        ]
    )  # fmt: skip


def follows(t, y, k):
    """x' = -k x + z, 0 = z - x^2 cos t: the state with which z is eliminated solves the same ODE."""
    x, z = y
    return jnp.stack([-k * x + z, z - x**2 * jnp.cos(t)])


def eliminated(t, x, k):
    return -k * x + x**2 * jnp.cos(t)


@pytest.mark.parametrize("third", [0.0, 0.1])
def test_robertson_as_a_dae(third):
    """Case 26; values of case 1. An inconsistent start is corrected."""
    ts, y0 = jnp.array([0.0, 0.4, 40.0, 1e5]), jnp.array([1.0, 0.0, third])
    sol = solvers.solve(robertson, y0, ts, 3e7, mass=[1.0, 1.0, 0.0], rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(sol.ys[0], [1.0, 0.0, 0.0], atol=1e-14)
    want = [
        [0.985172113861, 3.38639537897e-05, 0.0147940221852],
        [0.715827068719, 9.18553476456e-06, 0.284163745746],
        [0.0178659211421, 7.274751468436e-08, 0.9821340061103],
    ]
    np.testing.assert_allclose(sol.ys[1:], want, rtol=1e-6)
    np.testing.assert_allclose(sol.ys.sum(axis=1), 1.0, rtol=1e-12)


@pytest.mark.parametrize(
    "method",
    [RODAS, None, solvers.Rodas4(), pytest.param(solvers.Rosenbrock23(), marks=pytest.mark.slow)],
    ids=lambda m: helpers.name(m) if m else "default",
)
def test_akzo_nobel(method):
    rtol = 1e-5 if isinstance(method, solvers.Rosenbrock23) else 1e-8
    y0 = jnp.array([0.444, 0.00123, 0.0, 0.007, 0.0, 0.35])
    sol = solvers.solve(
        akzo,
        y0,
        jnp.array([0.0, 180.0]),
        method=method,
        mass=[1.0] * 5 + [0.0],
        rtol=rtol,
        atol=rtol * 1e-4,
    )
    np.testing.assert_allclose(sol.ys[0, -1], 0.35999964, rtol=1e-12)
    want = [
        0.1150794920661702, 0.001203831471567715, 0.1611562887407974, 0.0003656156421249283,
        0.01708010885264404, 0.004873531310307455,
    ]  # fmt: skip
    np.testing.assert_allclose(sol.ys[-1], want, rtol=10 * rtol)


def test_robertson_to_4e10():
    ts = jnp.array([0.0, 0.4, 4.0, 4e5, 4e10])
    sol = solvers.solve(
        robertson, jnp.array([1.0, 0.0, 0.0]), ts, 3e7, mass=[1.0, 1.0, 0.0], rtol=1e-9, atol=1e-16
    )
    np.testing.assert_allclose(
        sol.ys[1:, 0], [0.9851721138609882, 0.9055186785842543, 0.004938274520980275, 5.208345176798315e-08],
        rtol=1e-6,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["Rosenbrock23", "Rodas4", "Rodas5P"])
def test_order(name):
    """Fixed steps with an algebraic equation: the order of the paper, or nearly so."""
    method = getattr(solvers, name)(mass=solvers.Mass([1.0, 0.0]))
    exact = solvers.solve(
        eliminated, 0.5, jnp.array([0.0, 2.0]), 1.3, method=solvers.Dopri8(), rtol=1e-13, atol=1e-15
    )

    def error(steps):
        y0 = jnp.array([0.5, 0.25])
        sol = solvers.solve(follows, y0, jnp.array([0.0, 2.0]), 1.3, method=method, steps=steps)
        return float(abs(sol.ys[-1, 0] - exact.ys[-1]))

    n = {"Rosenbrock23": 40, "Rodas4": 10, "Rodas5P": 10}[name]
    assert np.log2(error(n) / error(2 * n)) > method.order - 0.4


@pytest.mark.parametrize("kind", ["diagonal", "dense", "sparse", "Mass"])
def test_regular_matrices(kind):
    """A linear system M y' = A y, against the matrix exponential."""
    rng = np.random.default_rng(0)
    a = rng.normal(size=(4, 4)) - 2 * np.eye(4)
    m = (
        np.diag([1.0, 2.0, 0.5, 3.0])
        if kind == "diagonal"
        else rng.normal(size=(4, 4)) + 3 * np.eye(4)
    )
    mass = {
        "diagonal": np.diag(m),
        "dense": m,
        "sparse": scipy.sparse.csr_array(m),
        "Mass": solvers.Mass(m),
    }[kind]
    y0 = rng.normal(size=4)
    sol = solvers.solve(
        lambda t, y, a: a @ y, jnp.asarray(y0), ON, jnp.asarray(a), mass=mass, rtol=1e-9, atol=1e-11
    )
    want = [scipy.linalg.expm(np.linalg.solve(m, a) * t) @ y0 for t in ON]
    np.testing.assert_allclose(sol.ys, want, rtol=1e-7, atol=1e-8)
    assert "inconsistency" not in sol.stats
    by_method = solvers.solve(
        lambda t, y, a: a @ y, jnp.asarray(y0), ON, jnp.asarray(a), method=solvers.Rodas5P(mass=m)
    )
    np.testing.assert_allclose(by_method.ys, sol.ys, rtol=1e-5, atol=1e-6)


def test_a_singular_matrix_that_is_not_diagonal():
    # In turned coordinates, and with mixed equations.
    rng = np.random.default_rng(1)
    left, right = rng.normal(size=(2, 2, 2))
    mass = left @ np.diag([1.0, 0.0]) @ right
    fn = lambda t, y, k: jnp.asarray(left) @ follows(t, jnp.asarray(right) @ y, k)
    y0 = jnp.linalg.solve(jnp.asarray(right), jnp.array([0.5, 0.7]))  # inconsistent
    options = {"rtol": 1e-9, "atol": 1e-11}
    sol = solvers.solve(fn, y0, ON, 1.3, mass=mass, **options)
    want = solvers.solve(eliminated, 0.5, ON, 1.3, **options).ys
    got = jnp.asarray(right) @ sol.ys.T
    np.testing.assert_allclose(got, jnp.stack([want, want**2 * jnp.cos(ON)]), rtol=1e-7)


@pytest.mark.slow
def test_with_a_structured_jacobian():
    """Many small systems in one: x and z of each beside each other."""
    n, ks = 20, jnp.linspace(0.5, 2.0, 20)
    fn = lambda t, y, k: jax.vmap(follows, (None, 0, 0))(t, y.reshape(n, 2), k).ravel()
    y0 = jnp.full((2 * n,), 0.5)
    mass = np.tile([1.0, 0.0], n)
    want = solvers.solve(fn, y0, ON, ks, mass=mass, rtol=1e-8, atol=1e-10).ys
    for jac in (
        solvers.BlockDiagonal(2),
        solvers.BlockTridiagonal(2),
        solvers.Banded(1, 1),
        solvers.Krylov(),
    ):
        sol = solvers.solve(fn, y0, ON, ks, mass=mass, jac=jac, rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(sol.ys, want, rtol=1e-8)


def test_a_banded_mass_matrix():
    """Linear finite elements of the heat equation: M and K are tridiagonal."""
    n = 40
    h = 1 / (n + 1)
    tri = lambda off, main: scipy.sparse.diags_array(
        [off, main, off], offsets=[-1, 0, 1], shape=(n, n)
    )
    mass, stiffness = tri(h / 6, 4 * h / 6), tri(1 / h, -2 / h).toarray()
    x = np.arange(1, n + 1) * h
    fn = lambda t, u, a: a @ u
    sol = solvers.solve(
        fn, jnp.asarray(np.sin(np.pi * x)), jnp.array([0.0, 0.1]), jnp.asarray(stiffness), mass=mass,
        jac=solvers.Banded(1, 1), rtol=1e-8, atol=1e-10,
    )  # fmt: skip
    c = np.cos(np.pi * h)
    rate = 6 / h**2 * (1 - c) / (2 + c)
    np.testing.assert_allclose(sol.ys[-1], np.exp(-0.1 * rate) * np.sin(np.pi * x), rtol=1e-6)
    with pytest.raises(ValueError, match=r"entry in row 1, column 2.*declared structure"):
        solvers.solve(
            fn, jnp.ones(n), ON, jnp.asarray(stiffness), mass=mass, jac=solvers.BlockDiagonal(2)
        )


# --- derivatives: those of the equation with z eliminated ---


def last(x0, z0, k, mass=(1.0, 0.0)):
    y0 = jnp.stack([x0, z0])
    return solvers.solve(
        follows, y0, ON, k, method=RODAS, mass=np.array(mass), rtol=1e-9, atol=1e-11
    ).ys[-1]


def plain(x0, k):
    x = solvers.solve(eliminated, x0, ON, k, rtol=1e-11, atol=1e-13).ys[-1]
    return jnp.stack([x, x**2 * jnp.cos(1.0)])


def test_derivatives():
    for mode in (jax.jacfwd, jax.jacrev):
        by_x, by_z, by_k = jax.jit(mode(last, argnums=(0, 1, 2)))(0.5, 0.7, 1.3)
        np.testing.assert_allclose(by_x, jax.jacfwd(plain, 0)(0.5, 1.3), rtol=1e-6)
        np.testing.assert_allclose(by_k, jax.jacfwd(plain, 1)(0.5, 1.3), rtol=1e-6)
        np.testing.assert_array_equal(by_z, 0.0)


@pytest.mark.slow
def test_second_derivatives():
    want = jax.jit(jax.hessian(lambda x, k: plain(x, k)[1], argnums=(0, 1)))(0.5, 1.3)
    for mode in (jax.hessian, lambda f, argnums: jax.jacrev(jax.jacrev(f, argnums), argnums)):
        got = jax.jit(mode(lambda x, k: last(x, 0.7, k)[1], argnums=(0, 1)))(0.5, 1.3)
        np.testing.assert_allclose(np.array(got), np.array(want), rtol=1e-5)


def test_the_derivative_by_a_save_time_is_the_slope():
    def at(t):
        ts = jnp.stack([0.0 * t, t, 1.0 + 0 * t])
        return solvers.solve(
            follows, jnp.array([0.5, 0.25]), ts, 1.3, method=RODAS, mass=[1.0, 0.0], rtol=1e-9
        ).ys[1]

    x, z = at(0.5)
    dx = -1.3 * x + z
    dz = 2 * x * dx * jnp.cos(0.5) - x**2 * jnp.sin(0.5)
    np.testing.assert_allclose(jax.jit(jax.jacfwd(at))(0.5), [dx, dz], rtol=1e-7)
    mass = solvers.Mass([1.0, 0.0])
    field = lambda s, y: follows(s, y, 1.3)
    np.testing.assert_allclose(
        _dae.slope(mass, field, jnp.array(0.5), jnp.stack([x, z])), [dx, dz], rtol=1e-7
    )


def test_members_and_precisions():
    ks = jnp.array([0.5, 1.3])
    got = jax.vmap(lambda k: last(jnp.array(0.5), jnp.array(0.0), k))(ks)
    np.testing.assert_allclose(got, [plain(0.5, k) for k in ks], rtol=1e-7)
    y0 = jnp.array([0.5, 0.0], jnp.float32)
    sol = solvers.solve(follows, y0, ON, jnp.float32(1.3), mass=[1.0, 0.0])
    assert sol.ys.dtype == jnp.float32
    np.testing.assert_allclose(sol.ys[-1], plain(0.5, 1.3), rtol=1e-4)
    back = solvers.solve(follows, last(0.5, 0.0, 1.3), ON[::-1], 1.3, mass=[1.0, 0.0], rtol=1e-9)
    np.testing.assert_allclose(back.ys[-1], [0.5, 0.25], rtol=1e-6)


def test_dense_output():
    sol = solvers.solve(
        follows, jnp.array([0.5, 0.25]), ON, 1.3, mass=[1.0, 0.0], rtol=1e-8, dense=True
    )
    t = jnp.linspace(0.0, 1.0, 11)
    x = sol.at(t)
    np.testing.assert_allclose(x[:, 1], x[:, 0] ** 2 * jnp.cos(t), rtol=1e-4)


@pytest.mark.parametrize("guess", [0.0, 2.0, 50.0])
@pytest.mark.parametrize(
    ("dtype", "atol"), [(jnp.float32, None), (jnp.float64, None), (jnp.float64, 0.0)]
)
def test_nonlinear_equations_are_made_consistent(guess, dtype, atol):
    fn = lambda t, y, c: jnp.stack([-y[0], y[1] ** 3 + y[1] - c * y[0]])
    y0 = jnp.array([1.0, guess], dtype)
    sol = solvers.solve(
        fn, y0, ON.astype(dtype), jnp.asarray(11.3, dtype), mass=[1.0, 0.0], atol=atol
    )
    z = sol.ys[0, 1]
    np.testing.assert_allclose(z**3 + z, 11.3, rtol=1e-5 if dtype == jnp.float32 else 1e-13)


def test_a_consistent_start_with_no_absolute_tolerance():
    sol = solvers.solve(
        robertson,
        jnp.array([1.0, 0.0, 0.0]),
        jnp.array([0.0, 0.4]),
        3e7,
        mass=[1.0, 1.0, 0.0],
        atol=0.0,
        throw=False,
    )
    assert solvers.RESULTS.inconsistent_start != sol.result


# --- the failure path ---


def test_a_start_that_is_not_finite_is_called_so():
    sol = solvers.solve(follows, jnp.array([jnp.nan, 0.0]), ON, 1.3, mass=[1.0, 0.0], throw=False)
    assert solvers.RESULTS.nonfinite_start == sol.result


def test_lost_accuracy_between_blocks_is_noticed():
    """Two algebraic equations that determine each other: the diagonal of the matrix is zero there."""
    fn = lambda t, y, a: jnp.stack([-y[0], y[2] - y[0] ** 2, y[1] - y[2]])
    y0, mass = jnp.array([1.0, 0.0, 0.0]), [1.0, 0.0, 0.0]
    want = solvers.solve(fn, y0, ON, mass=mass, rtol=1e-8, atol=1e-10).ys
    np.testing.assert_allclose(want[:, 1:], jnp.exp(-2 * ON)[:, None] * jnp.ones((1, 2)), rtol=1e-4)
    with pytest.raises(RuntimeError, match=r"singular diagonal block.*larger blocks"):
        solvers.solve(fn, y0, ON, mass=mass, jac=solvers.Banded(1, 1))
    np.testing.assert_allclose(
        solvers.solve(
            fn, y0, ON, mass=mass, jac=solvers.BlockTridiagonal(3), rtol=1e-8, atol=1e-10
        ).ys,
        want,
        rtol=1e-6,
    )


def test_a_solution_prints_itself():
    sol = solvers.solve(follows, jnp.array([0.5, 0.25]), ON, 1.3, mass=[1.0, 0.0])
    assert "accepted" in repr(sol) and "ok" in repr(sol)


def test_a_start_that_cannot_be_repaired_says_so():
    never = lambda t, y, a: jnp.stack([y[1], y[1] ** 2 + 1 + y[0] ** 2])
    with pytest.raises(
        RuntimeError, match=r"algebraic equations.*largest residual is 2, of equation 1"
    ):
        solvers.solve(never, jnp.array([1.0, 0.0]), ON, mass=[1.0, 0.0])
    sol = solvers.solve(never, jnp.array([1.0, 0.0]), ON, mass=[1.0, 0.0], throw=False)
    assert not sol.ok and not sol.valid.any() and np.isnan(sol.ys).all()
    np.testing.assert_allclose(sol.stats["inconsistency"], [2.0])


def test_a_higher_index_is_named():
    # A pendulum in Cartesian coordinates: the constraint does not contain the tension (index 3).
    def pendulum(t, y, g):
        x, z, u, w, tension = y
        return jnp.stack([u, w, -tension * x, -tension * z - g, x**2 + z**2 - 1])

    with pytest.raises(RuntimeError, match=r"index of the system may be higher than 1"):
        solvers.solve(pendulum, jnp.array([1.0, 0, 0, 0, 0]), ON, 9.81, mass=[1.0, 1, 1, 1, 0])

    # Differentiated twice it is of index 1.
    def reduced(t, y, g):
        x, z, u, w, tension = y
        return jnp.stack(
            [u, w, -tension * x, -tension * z - g, u**2 + w**2 - tension * (x**2 + z**2) - g * z]
        )

    sol = solvers.solve(
        reduced, jnp.array([1.0, 0, 0, 0, 0]), ON, 9.81, mass=[1.0, 1, 1, 1, 0], rtol=1e-9
    )
    angle = lambda t, y, g: jnp.stack([y[1], -g * jnp.sin(y[0])])
    want = solvers.solve(angle, jnp.array([jnp.pi / 2, 0.0]), ON, 9.81, rtol=1e-10, atol=1e-12).ys[
        :, 0
    ]
    np.testing.assert_allclose(sol.ys[:, 0], jnp.sin(want), atol=1e-6)
    np.testing.assert_allclose(sol.ys[:, 1], -jnp.cos(want), atol=1e-6)


@pytest.mark.parametrize(
    ("mass", "message"),
    [
        ([1.0, 0.0, 0.0], r"matrix of 3 rows, but the state has 2"),
        (np.ones((2, 3)), r"square matrix.*\(2, 3\)"),
        ([1.0, np.nan], r"must be finite"),
        (np.ones(2) * 1j, r"matrix of real numbers"),
        ("ab", r"matrix of real numbers"),
        (2.0, r"matrix of 1 rows"),
    ],
)
def test_matrices_that_do_not_fit(mass, message):
    with pytest.raises((ValueError, TypeError), match=message):
        solvers.solve(follows, jnp.array([0.5, 0.25]), ON, 1.3, mass=mass)


def test_explicit_methods_have_no_use_for_it():
    with pytest.raises(ValueError, match=r"`mass=` are for our stiff methods.*Tsit5"):
        solvers.solve(
            follows, jnp.array([0.5, 0.25]), ON, 1.3, mass=[1.0, 0.0], method=solvers.Tsit5()
        )


def test_a_traced_matrix_is_refused():
    run = lambda m: solvers.solve(follows, jnp.array([0.5, 0.25]), ON, 1.3, mass=m).ys
    with pytest.raises(TypeError, match=r"`mass` is a constant of the program"):
        jax.jit(run)(jnp.array([1.0, 0.0]))


def test_masses_are_values():
    # as finite-element codes assemble them
    twice = scipy.sparse.coo_array(([1.0, 1.0, 2.0], ([0, 0, 1], [0, 0, 1])))
    assert solvers.Mass(twice) == solvers.Mass([2.0, 2.0])
    np.testing.assert_allclose(solvers.Mass(twice).times(jnp.ones(2)), 2.0)
    rank = np.random.default_rng(0).normal(size=(60, 57)) @ np.random.default_rng(1).normal(
        size=(57, 60)
    )
    assert solvers.Mass(rank).equations == 3
    assert np.abs(solvers.Mass(rank).pseudo_inverse).max() < 1e3
    band = scipy.sparse.diags_array([1.0, 2.0, 3.0], offsets=[-1, 0, 1], shape=(60, 60))
    x = np.random.default_rng(2).normal(size=60)
    np.testing.assert_allclose(solvers.Mass(band).times(jnp.asarray(x)), band @ x, rtol=1e-12)
    assert solvers.Mass([1.0, 2.0]) == solvers.Mass(np.diag([1.0, 2.0]))
    assert solvers.Mass([1.0, 2.0]) != solvers.Mass([1.0, 0.0])
    assert hash(solvers.Mass([1.0, 2.0])) == hash(
        solvers.Mass(scipy.sparse.diags_array([1.0, 2.0]))
    )

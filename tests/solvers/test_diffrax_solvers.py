"""Implicit and implicit-explicit solvers of Diffrax through `solve`."""

import diffrax
import helpers
import jax
import jax.numpy as jnp
import numpy as np
import optimistix as optx
import pytest
from helpers import decay

from sciml import solvers


ON = jnp.array([0.0, 0.5, 1.0])


def slow_part(t, y, k):
    return {"x": jnp.sin(y["x"])}


def fast_part(t, y, k):
    return {"x": -k * (y["x"] - jnp.cos(t))}


SPLIT = solvers.Split(slow_part, fast_part)
START = {"x": jnp.array([0.3, 1.0])}


def reference(k):
    return solvers.solve(SPLIT, START, ON, k, method=solvers.Rodas5P(), rtol=1e-10, atol=1e-12).ys[
        "x"
    ]


@pytest.mark.parametrize(
    "method", [diffrax.KenCarp4(), diffrax.KenCarp3(), diffrax.Kvaerno5(), None]
)
def test_a_split_field(method):
    """Implicit-explicit where the method can, as a sum where it can't."""
    sol = solvers.solve(SPLIT, START, ON, 1e3, method=method, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(sol.ys["x"], reference(1e3), rtol=1e-5)
    # not held down by stability
    assert sol.stats["accepted"] < 500


def test_the_first_part_is_explicit():
    """If it is the stiff one, steps are held down by stability; the other way round they aren't."""
    tols = {"method": diffrax.KenCarp4(), "rtol": 1e-4, "atol": 1e-6, "throw": False}
    wrong = solvers.solve(solvers.Split(fast_part, slow_part), START, ON, 1e4, **tols)
    right = solvers.solve(SPLIT, START, ON, 1e4, **tols)
    assert wrong.stats["accepted"] > 20 * right.stats["accepted"]


@pytest.mark.slow
def test_derivatives_and_backwards():
    run = lambda k: solvers.solve(
        SPLIT, START, ON, k, method=diffrax.KenCarp4(), rtol=1e-8, atol=1e-10
    ).ys["x"][-1, 0]
    want = (reference(100.1)[-1, 0] - reference(99.9)[-1, 0]) / 0.2
    np.testing.assert_allclose(jax.grad(run)(100.0), want, rtol=1e-3)
    end = solvers.solve(SPLIT, START, ON, -10.0, method=diffrax.KenCarp4(), rtol=1e-8).ys["x"][-1]
    back = solvers.solve(
        SPLIT, {"x": end}, ON[::-1], -10.0, method=diffrax.KenCarp4(), rtol=1e-8
    ).ys["x"][-1]
    np.testing.assert_allclose(back, START["x"], rtol=1e-4)


def test_an_unsplit_field_is_refused():
    with pytest.raises(TypeError, match=r"KenCarp4.*solvers\.Split\(explicit="):
        solvers.solve(fast_part, START, ON, 1e3, method=diffrax.KenCarp4())


@pytest.mark.parametrize("method", [diffrax.Kvaerno3(), diffrax.Kvaerno5()], ids=helpers.name)
def test_kvaerno_takes_the_steps_it_needs(method):
    """Without our root finder it is stopped after two iterations of each stage (1643 attempts)."""
    sol = solvers.solve(
        helpers.robertson,
        jnp.array([1.0, 0.0, 0.0]),
        jnp.array([0.0, 40.0]),
        method=method,
        rtol=1e-6,
        atol=1e-10,
    )
    np.testing.assert_allclose(
        sol.ys[-1], [0.715827068719, 9.18553476456e-06, 0.284163745746], rtol=1e-4
    )
    assert sol.stats["accepted"] + sol.stats["rejected"] < 250


# --- our methods inside `diffeqsolve` ---

RODAS = solvers.RosenbrockSolver(solvers.Rodas5P())


def by_diffrax(fn, y0, t1, args, rtol=1e-8, solver=RODAS, t0=0.0, **options):
    control = diffrax.PIDController(rtol=rtol, atol=rtol / 1e3)
    return diffrax.diffeqsolve(
        diffrax.ODETerm(fn), solver, t0, t1, None, y0, args, stepsize_controller=control, **options
    )


def test_the_same_solution_by_diffeqsolve():
    y0 = jnp.array([1.0, 0.0, 0.0])
    sol = by_diffrax(
        helpers.robertson, y0, 40.0, None, saveat=diffrax.SaveAt(ts=jnp.array([0.4, 40.0]))
    )
    want = [
        [0.985172113861, 3.38639537897e-05, 0.0147940221852],
        [0.715827068719, 9.18553476456e-06, 0.284163745746],
    ]
    np.testing.assert_allclose(sol.ys, want, rtol=1e-5)
    ours = solvers.solve(
        helpers.robertson,
        y0,
        jnp.array([0.0, 40.0]),
        method=solvers.Rodas5P(),
        rtol=1e-8,
        atol=1e-11,
    )
    assert abs(int(sol.stats["num_accepted_steps"]) - int(ours.stats["accepted"])) < 20


def test_pytrees_dense_output_and_backwards():
    sol = by_diffrax(fast_part, START, 1.0, 1e3, saveat=diffrax.SaveAt(dense=True))
    t = jnp.linspace(0.1, 0.9, 7)
    got = jax.vmap(sol.evaluate)(t)["x"]
    exact = 1e6 / (1 + 1e6) * (jnp.cos(t) + jnp.sin(t) / 1e3)
    np.testing.assert_allclose(got, jnp.broadcast_to(exact[:, None], got.shape), rtol=1e-6)
    back = by_diffrax(lambda t, y, k: k * y, jnp.array([1.0]), 0.0, 2.0, t0=1.0).ys
    np.testing.assert_allclose(back[-1], jnp.exp(-2.0), rtol=1e-6)


@pytest.mark.slow
def test_structure_mass_and_derivatives():
    def last(k, solver):
        fn = lambda t, y, k: jnp.stack([-k * y[0] + y[1], y[1] - y[0] ** 2])
        return by_diffrax(fn, jnp.array([0.5, 0.25]), 1.0, k, solver=solver).ys[-1, 0]

    solver = solvers.RosenbrockSolver(solvers.Rodas5P(mass=[1.0, 0.0], jac=solvers.Banded(1, 1)))
    exact = lambda k: 1 / (1 / k + (2 - 1 / k) * jnp.exp(k))
    np.testing.assert_allclose(last(1.3, solver), exact(1.3), rtol=1e-6)
    np.testing.assert_allclose(jax.grad(last)(1.3, solver), jax.grad(exact)(1.3), rtol=1e-5)


def test_events():
    event = diffrax.Event(lambda t, y, args, **_: y[0] - 0.5, root_finder=optx.Newton(1e-8, 1e-8))
    sol = by_diffrax(decay, jnp.array([1.0]), 10.0, 1.0, event=event)
    np.testing.assert_allclose(sol.ts[-1], np.log(2.0), rtol=1e-6)


def test_single_precision():
    zero, one = jnp.float32(0), jnp.float32(1)
    sol = by_diffrax(decay, jnp.array([1.0], jnp.float32), one, one, 1e-5, t0=zero)
    assert sol.ys.dtype == jnp.float32
    np.testing.assert_allclose(sol.ys[-1], np.exp(-1.0), rtol=1e-4)


def test_a_function_for_the_jacobian_is_refused_there():
    with pytest.raises(ValueError, match=r"leave the function for the Jacobian out"):
        solvers.RosenbrockSolver(solvers.Rodas5P(jac=lambda t, y, a: -jnp.eye(3)))

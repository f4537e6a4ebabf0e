"""Implicit and implicit-explicit solvers of Diffrax through `solve`."""

import diffrax
import helpers
import jax
import jax.numpy as jnp
import numpy as np
import pytest

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

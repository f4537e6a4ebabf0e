"""Explicit Runge-Kutta methods on fixed steps: against Diffrax's, and what the loop does with memory."""

import math

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from helpers import problem

from sciml import solvers
from sciml.solvers._fixed import solve_fixed


def test_tsit5_has_the_coefficients_of_diffrax():
    table = diffrax.Tsit5.tableau
    ours = solvers.Tsit5()
    for i, row in enumerate(table.a_lower[:-1], start=1):
        np.testing.assert_allclose(ours.a[i, :i], row, rtol=1e-14, atol=1e-16)
    np.testing.assert_allclose(ours.b, table.b_sol[:-1], rtol=1e-14)
    np.testing.assert_allclose(ours.a.sum(axis=1)[1:], table.c[:-1], rtol=1e-14)


def test_tsit5_takes_the_steps_of_diffrax():
    p = problem["forced"]
    ts = p.times(4)
    sol = diffrax.diffeqsolve(
        diffrax.ODETerm(p.fn),
        diffrax.Tsit5(),
        0.0,
        p.t1,
        p.t1 / 12,
        p.y0,
        p.args,
        saveat=diffrax.SaveAt(ts=ts),
    )
    ours = solvers.solve(p.fn, p.y0, ts, p.args, steps=4)
    np.testing.assert_allclose(ours.ys, sol.ys, rtol=1e-12)


def test_steps_without_a_method_are_those_of_tsit5():
    p = problem["logistic"]
    run = lambda **kw: solvers.solve(p.fn, p.y0, p.times(), p.args, steps=3, **kw).ys
    np.testing.assert_array_equal(run(), run(method=solvers.Tsit5()))
    assert not np.array_equal(run(), run(method=solvers.RK4()))


def test_steps_are_equal_between_neighbouring_saves():
    seen = []
    fn = lambda t, y, args: (
        jax.debug.callback(lambda t: seen.append(float(t)), t, ordered=False) or jnp.ones_like(y)
    )
    sol = solvers.solve(fn, 0.0, jnp.array([0.0, 1.0, 5.0]), method=solvers.RK4(), steps=2)
    jax.effects_barrier()
    np.testing.assert_allclose(sol.ys, [0.0, 1.0, 5.0])
    np.testing.assert_allclose(
        sorted({round(t, 12) for t in seen}), [0.0, 0.25, 0.5, 0.75, 1.0, 2.0, 3.0, 4.0, 5.0]
    )
    np.testing.assert_allclose(sol.stats["last_step"], 2.0)


def test_memory_of_the_gradient_is_that_of_one_segment():
    """The residuals kept between the passes grow with the saves, not with all the steps."""

    def residuals(saves, steps):
        def final(y0):
            field = lambda s, y: jnp.sin(y)
            return solve_fixed(solvers.RK4(), field, y0, jnp.linspace(0.0, 1.0, saves), steps)[0][
                -1
            ].sum()

        kept = jax.eval_shape(lambda y0: jax.vjp(final, y0)[1], jnp.ones(100))
        return sum(math.prod(x.shape) for x in jax.tree.leaves(kept) if hasattr(x, "shape"))

    base = residuals(5, 10)
    assert residuals(5, 1000) < 1.5 * base
    assert residuals(50, 10) > 5 * base

"""Explicit Runge-Kutta methods on fixed steps: coefficients, order, and what the loop does with memory."""

import itertools
import math

import diffrax
import helpers
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import problem

from sciml import solvers
from sciml.solvers._fixed import solve_fixed


methods = pytest.mark.parametrize("method", helpers.fixed_methods, ids=helpers.name)


def trees(order: int) -> list:
    """All rooted trees with `order` nodes; a tree is the sorted tuple of its branches."""
    if order == 1:
        return [()]
    found = set()
    for sizes in _partitions(order - 1):
        for branches in itertools.product(*(trees(n) for n in sizes)):
            found.add(tuple(sorted(branches)))
    return sorted(found)


def _partitions(n: int, largest: int | None = None):
    largest = n if largest is None else largest
    if n == 0:
        yield ()
    for first in range(min(n, largest), 0, -1):
        for rest in _partitions(n - first, first):
            yield (first, *rest)


def _size(tree) -> int:
    return 1 + sum(map(_size, tree))


def _density(tree) -> int:
    return _size(tree) * math.prod(map(_density, tree))


def _weights(tree, a):
    """The elementary weight of every stage (Hairer, Nørsett & Wanner I, section II.2)."""
    return np.prod([np.ones(len(a)), *(a @ _weights(branch, a) for branch in tree)], axis=0)


def test_there_are_as_many_trees_as_there_should_be():
    assert [len(trees(n)) for n in range(1, 6)] == [1, 1, 2, 4, 9]


@methods
def test_order_conditions(method):
    defect = lambda tree: abs(method.b @ _weights(tree, method.a) - 1 / _density(tree))
    for order in range(1, method.order + 1):
        for tree in trees(order):
            assert defect(tree) < 1e-13, tree
    assert max(map(defect, trees(method.order + 1))) > 1e-5  # and not of a higher order


@methods
@pytest.mark.parametrize("name", ["logistic", "oscillator", "forced"])
def test_observed_order(method, name):
    slope = helpers.observed_order(method, problem[name])
    # Tsit5 is nearly of order 6 where its small error constant meets smooth problems.
    assert method.order - 0.2 < slope < method.order + 1.1


@methods
@pytest.mark.parametrize("problem", helpers.exact_problems, ids=str)
def test_accuracy(method, problem):
    ts = problem.times()
    sol = solvers.solve(problem.fn, problem.y0, ts, problem.args, method=method, steps=25)
    helpers.assert_close(sol.ys, problem.solution(ts), rtol=1e-5, atol=1e-7)


@methods
def test_stability_function(method):
    # One step of y' = z y is a polynomial in z, 1 + z b.(I - zA)^-1 1, and agrees with exp to the order.
    s = len(method.b)
    for z in (-0.5, -2.0, 1.0 + 1.0j):
        got = method.advance(
            lambda t, y, z=z: z * y, jnp.array(0.0), jnp.array(1.0 + 0j), jnp.array(1.0)
        )
        want = 1 + z * method.b @ np.linalg.solve(np.eye(s) - z * method.a, np.ones(s))
        np.testing.assert_allclose(got, want, rtol=1e-13)
    z = 1e-2
    np.testing.assert_allclose(
        method.advance(lambda t, y: z * y, jnp.array(0.0), jnp.array(1.0), jnp.array(1.0)),
        np.exp(z), rtol=z ** (method.order + 1),
    )  # fmt: skip


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


def test_a_polynomial_of_the_order_is_solved_exactly():
    fn = lambda t, y, args: 4 * t**3
    for method in helpers.fixed_methods:
        sol = solvers.solve(fn, 0.0, jnp.array([0.0, 1.0, 3.0]), method=method, steps=1)
        np.testing.assert_allclose(sol.ys, [0.0, 1.0, 81.0], rtol=1e-13)


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

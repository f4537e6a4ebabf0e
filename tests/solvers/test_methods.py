"""The battery that every method of our own passes: coefficients, order, dense output, stability.

Order conditions are those of rooted trees, for Runge-Kutta methods (Hairer, Nørsett & Wanner I,
section II.2) and Rosenbrock methods (Hairer & Wanner II, section IV.7) alike.
"""

import functools
import itertools
import math

import equinox as eqx
import helpers
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import problem

from sciml import solvers
from sciml.solvers import _loop, _state
from sciml.solvers._explicit import AbstractExplicitMethod
from sciml.solvers._rosenbrock import AbstractRosenbrockMethod


every = pytest.mark.parametrize("method", helpers.all_methods, ids=helpers.name)
adaptive = [m for m in helpers.all_methods if m.adaptive]
each_adaptive = pytest.mark.parametrize("method", adaptive, ids=helpers.name)
rosenbrock = [m for m in helpers.all_methods if isinstance(m, AbstractRosenbrockMethod)]
explicit = [m for m in helpers.all_methods if isinstance(m, AbstractExplicitMethod)]
each_rosenbrock = pytest.mark.parametrize("method", rosenbrock, ids=helpers.name)
# Orders of the embedded solution and of the dense output.
EMBEDDED = {"Heun": 1, "Bosh3": 2, "Tsit5": 4, "Dopri8": 7, "Rodas4": 3, "Rodas5P": 4}
DENSE = {"Heun": 2, "Bosh3": 3, "Tsit5": 4, "Dopri8": 5, "Rosenbrock23": 2, "Rodas4": 3}
DENSE["Rodas5P"] = 4
# To how many digits published coefficients fulfil the conditions.
DIGITS = {"Dopri8": 1e-11, "Rodas4": 3e-9}


@functools.cache
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


@functools.cache
def _size(tree) -> int:
    return 1 + sum(map(_size, tree))


@functools.cache
def _density(tree) -> int:
    return _size(tree) * math.prod(map(_density, tree))


class Table:
    """A method in the variables of Runge, Kutta and Rosenbrock, with all its stages.

    notation: stages k_i = h f(y + sum alpha_ij k_j) + h J sum gamma_ij k_j.
    """

    def __init__(self, method):
        self.method, self.digits = method, DIGITS.get(helpers.name(method), 1e-13)
        if isinstance(method, AbstractRosenbrockMethod):
            inverse = np.eye(len(method.a)) / method.gamma - method.c
            self.gamma = np.linalg.inv(inverse)
            self.alpha = method.a @ self.gamma
            self.to_k = self.gamma  # weights of the stages as they are kept -> of the k_i
        else:
            n = method.stage_count
            self.alpha, self.gamma, self.to_k = np.zeros((n, n)), np.zeros((n, n)), np.eye(n)
            s = len(method.b)
            self.alpha[:s, :s] = method.a
            if method.shares_last_stage:
                self.alpha[s, :s] = method.b
        b = np.zeros(len(self.alpha))
        b[: len(method.b)] = method.b
        self.b = b @ self.to_k
        self.cache = {}

    def weights(self, tree):
        """The elementary weight of each stage: a node with one branch has the Jacobian's term, too."""
        if tree not in self.cache:
            edge = self.alpha + self.gamma if len(tree) == 1 else self.alpha
            rows = (edge @ self.weights(branch) for branch in tree)
            self.cache[tree] = np.prod([np.ones(len(edge)), *rows], axis=0)
        return self.cache[tree]

    def defect(self, b, tree, theta=1.0) -> float:
        return abs(b @ self.weights(tree) - theta ** _size(tree) / _density(tree))

    def check(self, b, order, theta=1.0):
        """Of this order, and of no higher one."""
        for n in range(1, order + 1):
            for tree in trees(n):
                assert self.defect(b, tree, theta) < self.digits, (tree, theta)
        assert max(self.defect(b, t, theta) for t in trees(order + 1)) > 100 * self.digits


def test_there_are_as_many_trees_as_there_should_be():
    assert [len(trees(n)) for n in range(1, 9)] == [1, 1, 2, 4, 9, 20, 48, 115]


@every
def test_order_conditions(method):
    table = Table(method)
    table.check(table.b, method.order)


@each_adaptive
def test_the_embedded_solution(method):
    table = Table(method)
    error = np.asarray(method.error(jnp.eye(method.stage_count))) @ table.to_k
    if isinstance(method, solvers.Rosenbrock23):  # the other formula is the more accurate one
        table.check(table.b - error, 3)
        assert method.error_order == 3
        return
    embedded = EMBEDDED[helpers.name(method)]
    table.check(table.b - error, embedded)
    assert method.error_order == embedded + 1


@each_adaptive
def test_the_dense_output(method):
    table = Table(method)
    for theta in (0.1, 0.37, 0.5, 0.9):
        weights = np.asarray(method.weights(jnp.array(theta))) @ table.to_k
        table.check(weights, DENSE[helpers.name(method)], theta)
    np.testing.assert_array_equal(method.weights(jnp.array(0.0)), np.zeros(method.stage_count))
    end = np.asarray(method.weights(jnp.array(1.0))) @ table.to_k
    np.testing.assert_allclose(end, table.b, atol=10 * table.digits)


@each_rosenbrock
def test_nodes(method):
    table = Table(method)
    np.testing.assert_allclose(np.diag(table.gamma), method.gamma, rtol=1e-12)
    np.testing.assert_allclose(method.nodes[0], table.alpha.sum(1), atol=1e-13)
    np.testing.assert_allclose(method.nodes[1], table.gamma.sum(1), atol=1e-13)


@every
@pytest.mark.parametrize("name", ["logistic", "bell"])
def test_observed_order(method, name):
    """Autonomous and not."""
    steps = (4, 8) if method.order > 5 else (20, 40)
    slope = helpers.observed_order(method, problem[name], steps=steps)
    # Where a small error constant meets a smooth problem it looks like more.
    assert method.order - 0.35 < slope < method.order + (3 if method.order > 5 else 1.1)


@every
def test_accuracy_on_fixed_steps(method):
    problem = helpers.problem["oscillator"]  # a pytree
    ts = problem.times()
    steps = {1: 400, 2: 200, 3: 60}.get(method.order, 25)
    sol = solvers.solve(problem.fn, problem.y0, ts, problem.args, method=method, steps=steps)
    tol = {1: 3e-2, 2: 2e-4}.get(method.order, 1e-5)
    helpers.assert_close(sol.ys, problem.solution(ts), rtol=tol, atol=tol / 10)


@each_adaptive
@pytest.mark.parametrize(
    ("name", "dtype"),
    [("bell", jnp.float32), ("bell", jnp.float64), ("oscillator", jnp.float64)],
    ids=["single", "double", "pytree"],
)
def test_accuracy_on_adaptive_steps(method, name, dtype):
    problem = helpers.problem[name]
    cast = lambda tree: jax.tree.map(lambda x: jnp.asarray(x, dtype), tree)
    ts, y0, args = problem.times(), cast(problem.y0), cast(problem.args)
    rtol = 1e-4 if dtype == jnp.float32 or method.order < 4 else 1e-7
    sol = solvers.solve(problem.fn, y0, ts, args, method=method, rtol=rtol, atol=rtol / 100)
    assert all(x.dtype == dtype for x in jax.tree.leaves(sol.ys))
    helpers.assert_close(sol.ys, cast(problem.solution(ts)), rtol=30 * rtol, atol=10 * rtol)
    assert sol.stats["accepted"] < (400 if method.order < 4 else 100)


@each_adaptive
def test_slopes_of_the_error_estimate_and_the_dense_output(method):
    """Within one step, both against the exact solution."""
    p = problem["forced"]
    field = lambda s, y: p.fn(s, y, p.args)

    @jax.jit
    def one(h):
        _, stages = method.replay(field, jnp.array(0.0), p.y0, h)
        thetas = jnp.array([0.2, 0.5, 0.8])
        inside = p.y0[None] + jax.vmap(method.weights)(thetas) @ stages
        exact = jax.vmap(p.exact, in_axes=(0, None, None))(thetas * h, p.y0, p.args)
        return jnp.linalg.norm(method.error(stages)), jnp.linalg.norm(inside - exact)

    steps = (0.4, 0.2) if method.order > 5 else (0.1, 0.05)
    coarse, fine = (np.array(one(jnp.array(h))) for h in steps)
    slopes = np.log2(coarse / fine)
    np.testing.assert_allclose(slopes[0], method.error_order, atol=0.4)
    np.testing.assert_allclose(slopes[1], DENSE[helpers.name(method)] + 1, atol=0.6)


@every
def test_three_routes_of_one_step(method):
    """As the loop, the derivatives and fixed steps take it; the last stage is the next first one."""
    p = problem["forced"]
    field = lambda s, y: p.fn(s, y, p.args)
    s, h = jnp.array(0.3), jnp.array(0.2)
    f = field(s, p.y0) if method.shares_last_stage else None
    y1, stages, f1, _ = method.step(field, s, p.y0, h, f)
    again, same = method.replay(field, s, p.y0, h)
    np.testing.assert_allclose(again, y1, rtol=1e-14)
    np.testing.assert_allclose(same, stages, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(method.advance(field, s, p.y0, h), y1, rtol=1e-14)
    if method.shares_last_stage:
        np.testing.assert_allclose(f1, field(s + h, y1), rtol=1e-14)


@every
def test_a_step_of_no_length_does_nothing(method):
    """Unused rows of a record are such steps."""
    y, stages = method.replay(
        lambda s, y: jnp.exp(3 * y), jnp.array(1.0), jnp.array([1.0, 2.0]), jnp.array(0.0)
    )
    np.testing.assert_array_equal(y, [1.0, 2.0])
    assert np.all(np.isfinite(stages))


@each_adaptive
def test_gradient_and_jacobian(method):
    """What the engine's derivatives ask of a method; `test_engine_derivatives.py` has the rest."""
    p = problem["logistic"]
    ts, rtol = p.times(), 1e-5 if method.order < 4 else 1e-8
    options = {"method": method, "rtol": rtol, "atol": rtol / 100}
    exact = lambda args: jnp.sum(jnp.sin(jax.vmap(p.exact, (0, None, None))(ts, p.y0, args)))
    run = lambda args: jnp.sum(jnp.sin(solvers.solve(p.fn, p.y0, ts, args, **options).ys))
    want = jax.grad(exact)(p.args)
    helpers.assert_close(jax.jit(jax.grad(run))(p.args), want, rtol=100 * rtol)
    helpers.assert_close(jax.jit(jax.jacfwd(run))(p.args), want, rtol=100 * rtol)


def _stability(method):
    """R(z), z complex, as a real system of two."""

    @jax.jit
    @jax.vmap
    def at(z):
        a, b = z.real, z.imag
        field = lambda t, y: jnp.stack([a * y[0] - b * y[1], b * y[0] + a * y[1]])
        y = method.advance(field, jnp.array(0.0), jnp.array([1.0, 0.0]), jnp.array(1.0))
        return jax.lax.complex(y[0], y[1])

    return at


@every
def test_stability_function(method):
    # By linear algebra: 1 + z b (I - z (alpha + gamma))^-1 1; it agrees with exp to the order.
    table, R = Table(method), _stability(method)
    s = len(table.b)
    z = np.array([-0.5, -2.0, 1.0 + 1.0j, -3.0j])
    edge = table.alpha + table.gamma
    want = [1 + w * table.b @ np.linalg.solve(np.eye(s) - w * edge, np.ones(s)) for w in z]
    np.testing.assert_allclose(R(z), want, rtol=1e-10, atol=1e-12)
    small = np.array([-0.4 + 0j, -0.2 + 0j])
    errors = np.abs(np.asarray(R(small)) - np.exp(small))
    if method.order < 6:  # beyond that rounding is in the way
        assert method.order + 0.6 < np.log2(errors[0] / errors[1]) < method.order + 2.5


@each_rosenbrock
def test_stable_for_all_that_decays(method):
    R = _stability(method)
    y = np.concatenate([np.linspace(0, 60, 400), np.logspace(2, 6, 40)])
    assert np.abs(R(1j * y)).max() <= 1 + 1e-12
    x = -np.logspace(-3, 6, 30)
    assert np.abs(R((x[:, None] + 1j * y[None, ::20]).ravel())).max() <= 1 + 1e-12
    assert abs(R(np.array([-1e8 + 0j]))[0]) < 1e-6  # L-stable


@each_rosenbrock
@pytest.mark.parametrize("rate", [1e4, 1e8])
def test_prothero_robinson(method, rate):
    """A stiff linear problem on a smooth solution: what is left of the order."""
    fn = lambda t, y, L: -L * (y - jnp.cos(t)) - jnp.sin(t)
    run = lambda n: solvers.solve(
        fn, jnp.array([1.0]), jnp.array([0.0, 2.0]), jnp.array(rate), method=method, steps=n
    ).ys[-1, 0]
    errors = [abs(float(run(n)) - np.cos(2.0)) for n in (20, 40)]
    least = {"Rosenbrock23": 0.9, "Rodas4": 0.9, "Rodas5P": 2.8}[helpers.name(method)]
    assert errors[1] < 1e-11 or math.log2(errors[0] / errors[1]) > least
    # Stiffly accurate methods damp the error by the rate as well.
    stiffly_accurate = not isinstance(method, solvers.Rosenbrock23)
    assert errors[1] < (max(1e-3 / rate, 1e-10) if stiffly_accurate else 1e-3)


@each_rosenbrock
def test_a_singular_matrix_is_a_rejected_step(method):
    # I/(h gamma) - J is singular for J = 1/(h gamma).
    s, y, h = jnp.array(0.0), jnp.array([1.0]), jnp.array(0.5)
    field = lambda s, y: y / (h * method.gamma)
    stages = method.step(field, s, y, h, None).stages
    assert not jnp.isfinite(method.error(stages)).all()
    tol = _state.Tolerances(jnp.array(1e-3), jnp.array(1e-3), jnp.array(100))
    before = eqx.tree_at(lambda c: c.h, _loop.start(method, field, y, tol), h)
    after, _ = _loop.attempt(method, 0, field, tol, before, jnp.array(True))
    assert after.accepted == 0 and after.attempted == 1 and after.status == _state.RUNNING
    assert after.h < h
    np.testing.assert_array_equal(after.y, y)


@pytest.mark.parametrize("method", explicit, ids=helpers.name)
def test_a_polynomial_of_the_order_is_solved_exactly(method):
    k = min(method.order, 4)
    fn = lambda t, y, args: k * t ** (k - 1)
    sol = solvers.solve(fn, 0.0, jnp.array([0.0, 1.0, 3.0]), method=method, steps=1)
    np.testing.assert_allclose(sol.ys, [0.0, 1.0, 3.0**k], rtol=1e-11)

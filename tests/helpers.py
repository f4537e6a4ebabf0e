"""What several test files share: problems with known answers, and lists of our methods.

A problem's `exact(t, y0, args)` is a closed form that JAX can differentiate, so that it is an oracle for values,
gradients and Hessians alike.
"""

import dataclasses
import math
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest

from sciml import solvers


@dataclasses.dataclass(frozen=True)
class Problem:
    """`y' = fn(t, y, args)` with `y(0) = y0` on `[0, t1]`."""

    name: str
    fn: Callable[..., Any]
    y0: Any
    args: Any
    t1: float
    exact: Callable[..., Any]

    def __str__(self) -> str:
        return self.name

    def times(self, n: int = 5) -> jax.Array:
        return jnp.linspace(0.0, self.t1, n)

    def solution(self, ts) -> Any:
        """The exact states at `ts`, with a leading time axis as in `Solution.ys`."""
        return jax.vmap(self.exact, in_axes=(0, None, None))(ts, self.y0, self.args)


# The fields are functions of this module: what is compiled for one test serves the next.


def decay(t, y, k):
    return -k * y


def logistic(t, y, p):
    return p["r"] * y * (1 - y / p["K"])


def oscillator(t, y, omega):
    return {"x": y["v"], "v": -(omega**2) * y["x"]}


def forced(t, y, k):
    return k * (jnp.cos(t) - y)


def bell(t, y, a):
    return -2 * a * t * y


def lotka_volterra(t, y, p):
    return jnp.stack([p[0] * y[0] - p[1] * y[0] * y[1], p[2] * y[0] * y[1] - p[3] * y[1]])


def robertson(t, y, args):
    a = -0.04 * y[0] + 1e4 * y[1] * y[2]
    c = 3e7 * y[1] ** 2
    return jnp.stack([a, -a - c, c])


def van_der_pol(t, y, mu):
    return jnp.stack([y[1], mu * (1 - y[0] ** 2) * y[1] - y[0]])


def _logistic(t, y0, p):
    return p["K"] / (1 + (p["K"] / y0 - 1) * jnp.exp(-p["r"] * t))


def _oscillator(t, y0, omega):
    c, s = jnp.cos(omega * t), jnp.sin(omega * t)
    return {"x": y0["x"] * c + y0["v"] / omega * s, "v": y0["v"] * c - omega * y0["x"] * s}


def _forced(t, y0, k):
    swing = lambda t: k * (k * jnp.cos(t) + jnp.sin(t)) / (1 + k**2)
    return swing(t) + (y0 - swing(jnp.zeros_like(t))) * jnp.exp(-k * t)


exact_problems = [
    Problem(
        "decay", decay, jnp.array([1.0, 3.0]), jnp.array(0.7), 2.0,
        lambda t, y0, k: y0 * jnp.exp(-k * t),
    ),
    Problem(
        "logistic", logistic, jnp.array(0.1), {"r": jnp.array(1.5), "K": jnp.array(2.0)}, 3.0,
        _logistic,
    ),
    Problem(
        "oscillator", oscillator, {"x": jnp.array(1.0), "v": jnp.array(0.5)}, jnp.array(2.0), 2.0,
        _oscillator,
    ),
    Problem("forced", forced, jnp.array([0.2]), jnp.array(1.3), 3.0, _forced),
    Problem(
        "bell", bell, jnp.array([[2.0], [-1.0]]), jnp.array(0.8), 1.5,
        lambda t, y0, a: y0 * jnp.exp(-a * t**2),
    ),
]  # fmt: skip
problem = {p.name: p for p in exact_problems}

# Methods for any state pass the battery of `test_methods.py`, the symplectic ones `test_symplectic.py`.
# `adaptive_methods`: one of each kind, for slow tests.
all_methods = [
    solvers.Euler(), solvers.Heun(), solvers.RK4(), solvers.Bosh3(), solvers.Tsit5(), solvers.Dopri8(),
    solvers.Rosenbrock23(), solvers.Rodas4(), solvers.Rodas5P(),
]  # fmt: skip
adaptive_methods = [solvers.Tsit5(), solvers.Rodas5P()]


def name(x) -> str:
    return type(x).__name__


each_kind = pytest.mark.parametrize("method", adaptive_methods, ids=name)
each_kind_the_second_slow = pytest.mark.parametrize(
    "method",
    [solvers.Tsit5(), pytest.param(solvers.Rodas5P(), marks=pytest.mark.slow)],
    ids=name,
)


def flat(tree) -> np.ndarray:
    return np.asarray(jax.flatten_util.ravel_pytree(tree)[0])


def assert_close(got, want, *, rtol=0.0, atol=0.0):
    """`np.testing.assert_allclose` on pytrees of one structure."""
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for (path, g), w in zip(
        jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(want), strict=True
    ):
        np.testing.assert_allclose(g, w, rtol=rtol, atol=atol, err_msg=jax.tree_util.keystr(path))


def global_error(method, problem: Problem, steps: int) -> float:
    sol = solvers.solve(
        problem.fn,
        problem.y0,
        jnp.array([0.0, problem.t1]),
        problem.args,
        method=method,
        steps=steps,
    )
    last = jax.tree.map(lambda x: x[-1], sol.ys)
    return float(
        np.linalg.norm(
            flat(last) - flat(problem.exact(jnp.array(problem.t1), problem.y0, problem.args))
        )
    )


def observed_order(method, problem: Problem, steps=(16, 32)) -> float:
    """The slope of the global error against the step size, on logarithmic axes."""
    errors = [global_error(method, problem, n) for n in steps]
    return math.log(errors[0] / errors[1]) / math.log(steps[1] / steps[0])


COLLECTIVES = re.compile(
    r"\b(all-reduce|all-gather|all-to-all|reduce-scatter|collective-permute|collective-broadcast)"
)


def loop_bodies(hlo: str) -> dict[str, str]:
    """The text of every computation that runs inside a `while`, with all that it calls."""
    computations, name = {}, None
    for line in hlo.splitlines():
        if opening := re.match(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{$", line):
            name = opening[1]
            computations[name] = ""
        elif name is not None:
            computations[name] += line + "\n"
    calls = re.compile(
        r"(?:body|condition|to_apply|calls|branch_computations)=\{?%?([\w.\-]+)((?:, %?[\w.\-]+)*)"
    )

    def reach(name, seen):
        if name in seen or name not in computations:
            return seen
        seen.add(name)
        for first, others in calls.findall(computations[name]):
            for callee in [first, *re.findall(r"[\w.\-]+", others)]:
                reach(callee, seen)
        return seen

    bodies = re.findall(r"(?:body|condition)=%?([\w.\-]+)", hlo)
    return {body: "".join(computations[c] for c in reach(body, set())) for body in bodies}

"""Large systems with structure, and middle-sized ones without: ours, Diffrax, CVODE, SciPy.

    python benchmarks/structured.py                # all
    python benchmarks/structured.py CUSP heat      # those whose names contain one of these

Every solver runs at a few tolerances; what counts is the time that a given error costs, as in
`work_precision.py`. Ours and Diffrax compile the field; for CVODE (scikit-sundae) and SciPy it is NumPy. Diffrax
has dense Jacobians only, and runs up to 256 numbers. Says which ratio fell by a third since the stored
run in `structured.json`.
"""

import dataclasses
import json
import os
import pathlib
import sys
import warnings
from collections.abc import Callable
from typing import Any


os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from scipy.integrate import solve_ivp
from timing import interleaved
from work_precision import compare, report

from sciml import solvers


jax.config.update("jax_enable_x64", True)
warnings.filterwarnings("ignore", module="scipy")
HERE = pathlib.Path(__file__).parent
TOLERANCES = [1e-3, 1e-4, 1e-5, 1e-6, 1e-7]
TARGETS = [1e-3, 1e-5]
DIFFRAX_UP_TO = 256
DENSE_UP_TO = 600


@dataclasses.dataclass(frozen=True)
class Problem:
    """`field(xp, y)` with `xp` either NumPy or JAX; `band` of its Jacobian, `None` without structure."""

    field: Callable
    y0: np.ndarray
    t1: float
    jac: Any
    band: int | None


def brusselator(n: int) -> Problem:
    """Hairer and Wanner, section I.1: two species on a line of n points, beside each other."""
    x = np.arange(1, n + 1) / (n + 1)
    c = 0.02 * (n + 1) ** 2

    def field(xp, y):
        u, v = y[0::2], y[1::2]
        wide = lambda x, edge: xp.concatenate([xp.full(1, edge), x, xp.full(1, edge)])
        second = lambda x: c * (x[:-2] - 2 * x[1:-1] + x[2:])
        reaction = u * u * v
        du = 1 + reaction - 4 * u + second(wide(u, 1.0))
        dv = 3 * u - reaction + second(wide(v, 3.0))
        return xp.stack([du, dv], axis=1).ravel()

    y0 = np.stack([1 + np.sin(2 * np.pi * x), np.full(n, 3.0)], 1).ravel()
    return Problem(field, y0, 10.0, solvers.BlockTridiagonal(2), 2)


def heat(n: int) -> Problem:
    c = (n + 1.0) ** 2

    def field(xp, u):
        wide = xp.concatenate([xp.zeros(1), u, xp.zeros(1)])
        return c * (wide[:-2] - 2 * u + wide[2:])

    return Problem(field, np.ones(n), 0.05, solvers.Banded(1, 1), 1)


def cusp(cells: int) -> Problem:
    """Hairer and Wanner, section IV.10: nerve impulse and cusp catastrophe on a ring of cells."""
    d = cells**2 / 144

    def field(xp, state):
        y, a, b = state[0::3], state[1::3], state[2::3]
        second = lambda x: d * (xp.roll(x, 1) - 2 * x + xp.roll(x, -1))
        u = (y - 0.7) * (y - 1.3)
        v = u / (u + 0.1)
        dy = -1e4 * (y**3 + a * y + b) + second(y)
        da = b + 0.07 * v + second(a)
        db = (1 - a * a) * b - a - 0.4 * y + 0.035 * v + second(b)
        return xp.stack([dy, da, db], axis=1).ravel()

    angle = 2 * np.pi * np.arange(1, cells + 1) / cells
    y0 = np.stack([np.zeros(cells), -2 * np.cos(angle), 2 * np.sin(angle)], 1).ravel()
    pattern = solvers.sparsity(lambda t, y, _: field(jnp, y), jnp.asarray(y0 + 0.1))
    return Problem(field, y0, 1.1, solvers.Sparse(pattern), None)


def unstructured(n: int) -> Problem:
    """y' = A y + sin y with a full A, rates from 1 to 1e4."""
    rng = np.random.default_rng(0)
    q, _ = np.linalg.qr(rng.normal(size=(n, n)))
    a = -(q * np.logspace(0, 4, n)) @ q.T

    def field(xp, y):
        return xp.asarray(a) @ y + xp.sin(y)

    return Problem(field, rng.normal(size=n), 2.0, None, None)


PROBLEMS = {
    "Brusselator, 128": lambda: brusselator(64),
    "Brusselator, 1024": lambda: brusselator(512),
    "Brusselator, 10000": lambda: brusselator(5000),
    "heat, 1000": lambda: heat(1000),
    "heat, 10000": lambda: heat(10_000),
    "CUSP, 96": lambda: cusp(32),
    "CUSP, 3072": lambda: cusp(1024),
    "unstructured, 100": lambda: unstructured(100),
    "unstructured, 500": lambda: unstructured(500),
}


def _compiled(run, *args):
    compiled = jax.jit(run).lower(*args).compile()
    return lambda: np.asarray(compiled(*args))


def ours(method, problem: Problem, rtol: float):
    fn = lambda t, y, args: problem.field(jnp, y)
    options = {"method": method, "rtol": rtol, "atol": 1e-2 * rtol, "throw": False}

    def run(y0, ts):
        return solvers.solve(fn, y0, ts, jac=problem.jac, **options).ys[-1]

    return _compiled(run, jnp.asarray(problem.y0), jnp.array([0.0, problem.t1]))


def by_diffrax(problem: Problem, rtol: float):
    if problem.y0.size > DIFFRAX_UP_TO:
        return None
    term = diffrax.ODETerm(lambda t, y, args: problem.field(jnp, y))
    solver = solvers._root_finder.repair(diffrax.Kvaerno3())
    control = diffrax.PIDController(rtol=rtol, atol=1e-2 * rtol)

    def run(y0, t1):
        return diffrax.diffeqsolve(
            term, solver, 0.0, t1, None, y0, max_steps=100_000, stepsize_controller=control,
            throw=False, adjoint=diffrax.ForwardMode(),
        ).ys[-1]  # fmt: skip

    return _compiled(run, jnp.asarray(problem.y0), jnp.asarray(problem.t1))


def by_cvode(problem: Problem, rtol: float):
    from sksundae.cvode import CVODE

    def rhs(t, y, yp):
        yp[:] = problem.field(np, y)

    solver = {"linsolver": "lapackdense"}
    if problem.band is not None:
        solver = {"linsolver": "band", "lband": problem.band, "uband": problem.band}
    elif problem.y0.size > DENSE_UP_TO:
        return None  # it finds a sparse Jacobian by Python's differences
    elif problem.jac is not None:
        n = problem.y0.size
        pattern = np.zeros((n, n))
        pattern[problem.jac.pattern.rows, problem.jac.pattern.cols] = 1
        solver = {"linsolver": "sparse", "sparsity": pattern}
    options = {"rtol": rtol, "atol": 1e-2 * rtol, "max_num_steps": 100_000, **solver}
    span = np.array([0.0, problem.t1])
    return lambda: CVODE(rhs, **options).solve(span, problem.y0).y[-1]


def by_scipy(method, problem: Problem, rtol: float):
    options = {}
    if method == "LSODA" and problem.band is not None:
        options = {"lband": problem.band, "uband": problem.band}
    elif problem.y0.size > DENSE_UP_TO:
        return None
    fn = lambda t, y: problem.field(np, y)
    tols = {"rtol": rtol, "atol": 1e-2 * rtol, **options}
    return lambda: solve_ivp(fn, (0.0, problem.t1), problem.y0, method, **tols).y[:, -1]


RIVALS = {
    "sciml Rodas5P": lambda p, rtol: ours(solvers.Rodas5P(), p, rtol),
    "sciml default": lambda p, rtol: ours(None, p, rtol),
    "diffrax Kvaerno3": by_diffrax,
    "CVODE": by_cvode,
    "SciPy LSODA": lambda p, rtol: by_scipy("LSODA", p, rtol),
    "SciPy BDF": lambda p, rtol: by_scipy("BDF", p, rtol),
}


def measure(problem: Problem) -> dict[str, list[tuple[float, float]]]:
    """`(error, seconds)` of every solver at every tolerance; the reference is ours at 1e-10."""
    exact = ours(solvers.Rodas5P(), problem, 1e-10)()
    points = {name: [] for name in RIVALS}
    for rtol in TOLERANCES:
        runs, errors = {}, {}
        for name, make in RIVALS.items():
            run = make(problem, rtol)
            if run is None:
                continue
            errors[name] = float(np.sqrt(np.mean((run() - exact) ** 2) / np.mean(exact**2)))
            runs[name] = run
        for name, seconds in interleaved(runs, rounds=7, budget=6.0).items():
            points[name].append((errors[name], seconds))
    return {name: p for name, p in points.items() if p}


def main(words: list[str]) -> None:
    chosen = {n: p for n, p in PROBLEMS.items() if not words or any(w in n for w in words)}
    costs = {}
    for name, make in chosen.items():
        costs[name] = report(name, measure(make()), TARGETS)
    path = HERE / "structured.json"
    if path.exists():
        compare(json.loads(path.read_text()), costs)
    if len(chosen) == len(PROBLEMS):
        path.write_text(json.dumps(costs, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])

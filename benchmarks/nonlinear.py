"""Root finding, least squares and minimisation: a scoreboard against SciPy and Optimistix.

    python benchmarks/nonlinear.py            # all tables
    python benchmarks/nonlinear.py speed      # one of: systems nist mgh minima speed

Times are wall medians of interleaved runs, compiled, in double precision on one CPU; `first` is tracing and
compilation together. SciPy gets our compiled functions and exact derivatives.
"""

import contextlib
import os
import pathlib
import sys
import time


os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
TESTS = pathlib.Path(__file__).parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "solvers")]


import equinox as eqx  # noqa: E402
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import optimistix as optx  # noqa: E402
import scipy.optimize  # noqa: E402
from timing import interleaved  # noqa: E402


jax.config.update("jax_enable_x64", True)

import mgh_problems  # noqa: E402
from test_nist import _problem as nist_problem, digits, FILES  # noqa: E402

from sciml import solvers  # noqa: E402


TOLS = {"rtol": 1e-8, "atol": 1e-8}  # of Optimistix


def systems():
    """The 23 square systems of NonlinearSolve.jl's benchmarks; solved means every residual below 1e-6."""

    def optimistix(method):
        def run(problem):
            fn = lambda y, args: problem.residuals(y)
            return optx.root_find(fn, method, problem.start, throw=False, max_steps=1000).value

        return run

    def scipy_root(method):
        return lambda p: (
            scipy.optimize.root(
                jax.jit(p.residuals), p.start, jac=jax.jit(jax.jacfwd(p.residuals)), method=method
            ).x
        )

    columns = {
        "sciml": lambda p: solvers.root(p.residuals, p.start, throw=False).value,
        "Optimistix Newton": optimistix(optx.Newton(**TOLS)),
        "Optimistix Dogleg": optimistix(optx.Dogleg(**TOLS)),
        "Optimistix LM": optimistix(optx.LevenbergMarquardt(**TOLS)),
        "SciPy hybr": scipy_root("hybr"),
        "SciPy lm": scipy_root("lm"),
    }
    print("Square systems solved, of 23")
    for name, run in columns.items():
        count = 0
        for problem in mgh_problems.SYSTEMS:
            with contextlib.suppress(Exception):  # a failure, whatever the library raises
                count += bool(np.max(np.abs(problem.residuals(jnp.asarray(run(problem))))) < 1e-6)
        print(f"  {name:20s} {count:3d}")


def nist():
    """NIST's regressions from both starts, with default settings: the digits of the worst parameter."""
    print("NIST StRD, 18 problems from both starts: right digits (least), evaluations")
    total = []
    for file in FILES:
        data, residuals = nist_problem(file.stem)
        row = []
        for start in ("start1", "start2"):
            sol = solvers.least_squares(residuals, jnp.array(data[start]), throw=False)
            row.append((digits(sol.value, data["certified"]), int(sol.stats["evaluations"])))
        total += row
        cells = "   ".join(f"{d:5.1f} ({n:3d})" for d, n in row)
        print(f"  {file.stem:10s} {cells}   SciPy lm: {data['scipy_lm_digits']}")
    print(f"  at least 9 digits: {sum(d >= 9 for d, _ in total)} of {len(total)}")


def mgh():
    """Moré-Garbow-Hillstrom least squares from 1, 10 and 100 times the start: a verified minimum is reached."""
    ours, theirs, evaluations = 0, 0, 0
    for problem in mgh_problems.LEAST_SQUARES:
        for factor in (1, 10, 100):
            sol = solvers.least_squares(problem.residuals, problem.start * factor, throw=False)
            mine = problem.solved(2 * float(sol.loss))
            runs = [r for r in problem.scipy if r["start_factor"] == factor]
            scipy_solves = any(problem.solved(r["f"]) for r in runs)
            ours, theirs = ours + mine, theirs + scipy_solves
            evaluations += int(sol.stats["evaluations"])
            if mine != scipy_solves:
                who = "sciml" if mine else "SciPy"
                print(f"  only {who}: {problem.name} from {factor} times the start")
    print(
        f"MGH least squares, 126 starts: sciml {ours} ({evaluations} evaluations), SciPy lm or trf {theirs}"
    )


def minima():
    """Moré-Garbow-Hillstrom as functions to minimise, standard start."""
    print("MGH minima reached, of 42, and evaluations in all")
    for name in ("TrustRegionNewton", "NewtonCG", "BFGS", "LBFGS"):
        method, count, evaluations = getattr(solvers, name)(), 0, 0
        for problem in mgh_problems.LEAST_SQUARES:
            sol = solvers.minimise(
                problem.sum_of_squares, problem.start, method=method, throw=False
            )
            count += problem.solved(float(sol.loss)) and bool(sol.ok)
            evaluations += int(sol.stats["evaluations"])
        print(f"  {name:20s} {count:3d} {evaluations:6d}")


def tridiagonal(y, args):
    zero = jnp.zeros(1)
    left, right = jnp.concatenate([zero, y[:-1]]), jnp.concatenate([y[1:], zero])
    return (3 - 2 * y) * y - left - 2 * right + 1


def rosenbrock(y, args):
    return jnp.sum(100 * (y[1:] - y[:-1] ** 2) ** 2 + (1 - y[:-1]) ** 2)


def valley(y, args):
    return jnp.concatenate([10 * (y[1:] - y[:-1] ** 2), 1 - y[:-1]])


def _first(run):
    start = time.perf_counter()
    jax.block_until_ready(run())
    return time.perf_counter() - start


def speed():
    """Compiled times, first calls, and a batch of a thousand starts."""
    print(f"{'':34s} {'sciml':>18s} {'Optimistix':>18s} {'SciPy':>10s}   ms (first, s)")

    def row(name, ours, peers, plain):
        ours, theirs = eqx.filter_jit(ours), [eqx.filter_jit(p) for p in peers]
        firsts = [_first(f) for f in (ours, *theirs)]
        plain()
        todo = {
            str(i): lambda f=f: jax.block_until_ready(f()) for i, f in enumerate((ours, *theirs))
        }
        times = 1e3 * np.array(list(interleaved({**todo, "scipy": plain}, 15, 8.0).values()))
        best = int(np.argmin(times[1:-1])) + 1 if peers else None
        middle = f"{times[best]:9.3f} ({firsts[best]:5.2f})" if best else " " * 17
        print(f"{name:34s} {times[0]:9.3f} ({firsts[0]:5.2f}) {middle} {times[-1]:10.3f}")

    for n in (2, 10, 100, 1000):
        row(f"Broyden tridiagonal, {n}", *_root_runs(-jnp.ones(n)))
    band = solvers.Newton(jac=solvers.Banded(1, 1))
    ours, _, _ = _root_runs(-jnp.ones(1000), band)
    fn = jax.jit(lambda y: tridiagonal(y, None))
    row(
        "  the same, banded; krylov",
        ours,
        [],
        lambda: scipy.optimize.root(fn, -np.ones(1000), method="krylov").x,
    )
    for n in (2, 10, 50):
        row(f"Rosenbrock residuals, {n}", *_residual_runs(jnp.full(n, -1.2)))
    for n in (2, 10, 100, 1000):
        row(f"Rosenbrock function, {n}", *_function_runs(jnp.tile(jnp.array([-1.2, 1.0]), n // 2)))

    starts = jax.random.normal(jax.random.key(0), (1000, 2)) * 2
    fn, jac = jax.jit(lambda y: valley(y, None)), jax.jit(jax.jacfwd(lambda y: valley(y, None)))
    many = lambda: jax.vmap(lambda y: solvers.least_squares(valley, y, throw=False).value)(starts)
    method = optx.LevenbergMarquardt(**TOLS)
    peer = lambda: jax.vmap(lambda y: optx.least_squares(valley, method, y, throw=False).value)(
        starts
    )
    loop = lambda: [
        scipy.optimize.least_squares(fn, y, jac, method="lm").x for y in np.asarray(starts)
    ]
    row("1,000 starts, residuals, 2", many, [peer], loop)


def _root_runs(y0, method=None):
    fn = jax.jit(lambda y: tridiagonal(y, None))
    jac = jax.jit(jax.jacfwd(lambda y: tridiagonal(y, None)))
    peers = [
        lambda m=m: optx.root_find(tridiagonal, m, y0, throw=False).value
        for m in (optx.Newton(**TOLS), optx.Dogleg(**TOLS))
    ]
    ours = lambda: solvers.root(tridiagonal, y0, method=method, throw=False).value
    return ours, peers, lambda: scipy.optimize.root(fn, np.asarray(y0), jac=jac).x


def _residual_runs(y0):
    fn, jac = jax.jit(lambda y: valley(y, None)), jax.jit(jax.jacfwd(lambda y: valley(y, None)))
    peers = [
        lambda m=m: optx.least_squares(valley, m, y0, throw=False, max_steps=1000).value
        for m in (optx.LevenbergMarquardt(**TOLS), optx.Dogleg(**TOLS))
    ]
    plain = lambda: scipy.optimize.least_squares(fn, np.asarray(y0), jac, method="lm").x
    return lambda: solvers.least_squares(valley, y0, throw=False).value, peers, plain


def _function_runs(y0):
    fn = jax.jit(jax.value_and_grad(lambda y: rosenbrock(y, None)))
    methods = [optx.LBFGS(**TOLS)] + ([optx.BFGS(**TOLS)] if y0.size <= 100 else [])
    peers = [
        lambda m=m: optx.minimise(rosenbrock, m, y0, throw=False, max_steps=5000).value
        for m in methods
    ]
    value = lambda y: tuple(map(np.asarray, fn(y)))
    plain = lambda: scipy.optimize.minimize(value, np.asarray(y0), jac=True, method="L-BFGS-B").x
    return lambda: solvers.minimise(rosenbrock, y0, throw=False, max_steps=9000).value, peers, plain


if __name__ == "__main__":
    for task in sys.argv[1:] or ("systems", "nist", "mgh", "minima", "speed"):
        globals()[task]()

"""Work against precision: ours and the field's best solvers on the same problems.

    python benchmarks/work_precision.py                  # all problems
    python benchmarks/work_precision.py HIRES Lorenz     # those whose names contain one of these

Every solver runs at a range of tolerances; what counts is the time that a given *error* at the end
costs. Ours and Diffrax are one compiled program each, called with arrays; CVODES comes with
CasADi, which interprets the field and derives its Jacobian; diffsol compiles it; SciPy's is Python.
Prints a table, says which ratio fell by a third since the stored run, and, if all problems ran,
stores this one in `work_precision.json` and `work_precision.png` beside this file.
"""

import json
import os
import pathlib
import sys
import warnings


os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from problems import Problem, PROBLEMS, reference
from scipy.integrate import solve_ivp
from timing import at_error, interleaved

from sciml import solvers


jax.config.update("jax_enable_x64", True)
warnings.filterwarnings("ignore", module="scipy")
TOLERANCES = [1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9, 1e-10]
TARGETS = [1e-4, 1e-6, 1e-8]
HERE = pathlib.Path(__file__).parent


def _compiled(run):
    """`make(problem, rtol)` of a program `run(problem, y0, ts, rtol)` that is compiled once for each problem."""
    programs = {}

    def make(problem: Problem, rtol: float):
        args = (jnp.array(problem.y0), jnp.array([0.0, problem.t1]), jnp.array(rtol))
        if id(problem) not in programs:
            programs[id(problem)] = jax.jit(lambda *a: run(problem, *a)).lower(*args).compile()
        program = programs[id(problem)]
        return lambda: np.asarray(program(*args))

    return make


def ours(method):
    def run(problem, y0, ts, rtol):
        fn = lambda t, y, args: jnp.stack(problem.evaluate(t, y))
        options = {"rtol": rtol, "atol": problem.atol * rtol, "max_steps": 100_000, "throw": False}
        return solvers.solve(fn, y0, ts, method=method, **options).ys[-1]

    return _compiled(run)


def by_diffrax(solver):
    def run(problem, y0, ts, rtol):
        fn = lambda t, y, args: jnp.stack(problem.evaluate(t, y))
        control = diffrax.PIDController(rtol=rtol, atol=problem.atol * rtol)
        return diffrax.diffeqsolve(
            diffrax.ODETerm(fn), solver, ts[0], ts[1], None, y0, max_steps=100_000,
            stepsize_controller=control, throw=False, adjoint=diffrax.ForwardMode(),
        ).ys[-1]  # fmt: skip

    return _compiled(run)


def by_cvodes(problem: Problem, rtol: float):
    import casadi

    y = casadi.SX.sym("y", len(problem.y0))
    t = casadi.SX.sym("t")
    ode = casadi.vertcat(*problem.evaluate(t, [y[i] for i in range(len(problem.y0))]))
    options = {"reltol": rtol, "abstol": problem.atol * rtol, "max_num_steps": 100_000}
    solver = casadi.integrator(
        "solver", "cvodes", {"x": y, "t": t, "ode": ode}, 0.0, problem.t1, options
    )
    y0 = np.array(problem.y0)
    return lambda: np.asarray(solver(x0=y0)["xf"]).ravel()


def by_diffsol(problem: Problem, rtol: float):
    import pydiffsol

    ode = pydiffsol.Ode(problem.diffsl(), matrix_type=pydiffsol.nalgebra_dense)
    ode.rtol, ode.atol = rtol, problem.atol * rtol
    # the dense output stops at the end; without it the last step ends behind
    ends, nothing = np.array([problem.t1]), np.array([])
    return lambda: np.asarray(ode.solve_dense(nothing, ends).ys)[:, -1]


def by_scipy(method):
    def make(problem: Problem, rtol: float):
        y0 = np.array(problem.y0)
        tols = {"rtol": rtol, "atol": problem.atol * rtol}
        fn = problem.evaluate
        return lambda: solve_ivp(fn, (0.0, problem.t1), y0, method, **tols).y[:, -1]

    return make


STIFF = {
    "sciml Rodas5P": ours(solvers.Rodas5P()),
    "sciml default": ours(None),
    "diffrax Kvaerno5": by_diffrax(diffrax.Kvaerno5()),
    "diffrax Kvaerno5, our root finder": by_diffrax(
        solvers._root_finder.repair(diffrax.Kvaerno5())
    ),
    "CVODES (CasADi)": by_cvodes,
    "diffsol BDF": by_diffsol,
    "SciPy LSODA": by_scipy("LSODA"),
}
NONSTIFF = {
    "sciml Tsit5": ours(solvers.Tsit5()),
    "sciml Dopri8": ours(solvers.Dopri8()),
    "sciml default": ours(None),
    "diffrax Tsit5": by_diffrax(diffrax.Tsit5()),
    "diffrax Dopri8": by_diffrax(diffrax.Dopri8()),
    "SciPy DOP853": by_scipy("DOP853"),
    "SciPy LSODA": by_scipy("LSODA"),
}


def measure(problem: Problem) -> dict[str, list[tuple[float, float]]]:
    """`(error, seconds)` of every solver at every tolerance."""
    exact = reference(problem)
    rivals = STIFF if problem.stiff else NONSTIFF
    points = {name: [] for name in rivals}
    for rtol in TOLERANCES:
        runs, errors = {}, {}
        for name, make in rivals.items():
            try:
                run = make(problem, rtol)
                got = run()
            except Exception as e:  # a rival that fails is a result
                print(f"  {name} at {rtol:g}: {type(e).__name__}: {str(e).splitlines()[0][:80]}")
                continue
            error = np.sqrt(np.mean(((got - exact) / (1e-14 + np.abs(exact))) ** 2))
            runs[name], errors[name] = run, float(error)
        for name, seconds in interleaved(runs, rounds=15, budget=3.0).items():
            points[name].append((errors[name], seconds))
    return points


def report(name: str, points: dict, targets=TARGETS) -> dict[str, dict[str, float | None]]:
    print(f"\n{name}: milliseconds for an error of " + ", ".join(f"{e:g}" for e in targets))
    mine = next(iter(points))
    costs = {who: {f"{e:g}": at_error(p, e) for e in targets} for who, p in points.items()}
    for who, cost in costs.items():
        cells = []
        for error, seconds in cost.items():
            own = costs[mine][error]
            ratio = f"{seconds / own:6.1f}x" if seconds and own else "      -"
            cells.append(f"{seconds * 1e3:9.3f} {ratio}" if seconds else "        -       -")
        print(f"  {who:34}" + "  ".join(cells), flush=True)
    return costs


def draw(results: dict, path: pathlib.Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    columns = min(3, len(results))
    rows = -(-len(results) // columns)
    fig, axes = plt.subplots(rows, columns, figsize=(4.6 * columns, 3.6 * rows), squeeze=False)
    for ax in axes.flat[len(results) :]:
        ax.set_visible(False)
    for ax, (name, points) in zip(axes.flat, results.items(), strict=False):
        for who, pairs in points.items():
            pairs = [(e, s * 1e3) for e, s in pairs if np.isfinite(e) and e < 1]
            style = {"lw": 2.4, "color": "k"} if who.startswith("sciml") else {"lw": 1.2}
            if pairs:
                ax.loglog(*zip(*pairs, strict=True), "o-", ms=3, label=who, **style)
        ax.set(title=name, xlabel="relative error at the end", ylabel="time [ms]")
        ax.invert_xaxis()
        ax.legend(fontsize=6)
    fig.tight_layout()
    fig.savefig(path, dpi=150)


def compare(old: dict, new: dict) -> None:
    """Says which ratio to a rival fell by a third since the stored run."""
    for name, costs in new.items():
        mine = next(iter(costs))
        for who in list(costs)[1:]:
            for error, seconds in costs[who].items():
                try:
                    before = old[name][who][error] / old[name][mine][error]
                    now = seconds / costs[mine][error]
                except (KeyError, TypeError):  # not measured then or now
                    continue
                if now < before * 2 / 3:
                    print(f"fell: {name}, {who}, error {error}: {before:.1f}x -> {now:.1f}x")


def main(words: list[str]) -> None:
    chosen = {n: p for n, p in PROBLEMS.items() if not words or any(w in n for w in words)}
    results, costs = {}, {}
    for name, problem in chosen.items():
        results[name] = measure(problem)
        costs[name] = report(name, results[name])
    for kind in (STIFF, NONSTIFF):
        mine = next(iter(kind))
        for who in list(kind)[1:]:
            ratios = [
                cost[who][e] / cost[mine][e]
                for cost in costs.values()
                if mine in cost
                for e in cost[mine]
                if cost[mine][e] and cost[who][e]
            ]
            if ratios:
                mean = np.exp(np.mean(np.log(ratios)))
                print(f"geometric mean, {who} / {mine}: {mean:.1f}x over {len(ratios)}")
    path = HERE / "work_precision.json"
    if path.exists():
        compare(json.loads(path.read_text())["seconds_at_error"], costs)
    if len(chosen) == len(PROBLEMS):  # a part does not replace the stored run
        path.write_text(json.dumps({"points": results, "seconds_at_error": costs}, indent=1) + "\n")
        draw(results, HERE / "work_precision.png")


if __name__ == "__main__":
    main(sys.argv[1:])

"""The engine's core against Diffrax: values, derivatives, and what a user waits for first.

    python benchmarks/core.py            # all problems
    python benchmarks/core.py lorenz     # one

Each row is one compiled program; runs of both libraries are interleaved, and the median wall time
counts. `first` is tracing and compilation together. Double precision, one device.
"""

import os
import sys
import time
from collections.abc import Callable


os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from timing import interleaved

from sciml import nets, solvers


jax.config.update("jax_enable_x64", True)


def lotka_volterra(t, y, p):
    return jnp.stack([p[0] * y[0] - p[1] * y[0] * y[1], p[3] * y[0] * y[1] - p[2] * y[1]])


def lorenz(t, y, p):
    return jnp.stack([p[0] * (y[1] - y[0]), y[0] * (p[1] - y[2]) - y[1], y[0] * y[1] - p[2] * y[2]])


def robertson(t, y, p):
    a = -p[0] * y[0] + p[1] * y[1] * y[2]
    c = p[2] * y[1] ** 2
    return jnp.stack([a, -a - c, c])


def hires(t, y, p):
    a, b, c, d, e, f, g, h = y
    k = p[0] * f * h
    return jnp.stack(
        [
            -1.71 * a + 0.43 * b + 8.32 * c + 0.0007,
            1.71 * a - 8.75 * b,
            -10.03 * c + 0.43 * d + 0.035 * e,
            8.32 * b + 1.71 * c - 1.12 * d,
            -1.745 * e + 0.43 * f + 0.43 * g,
            -k + 0.69 * d + 1.71 * e - 0.43 * f + 0.69 * g,
            k - p[1] * g,
            -k + p[1] * g,
        ]
    )


def mass_action(n: int):
    """Random reactions of two species into two others, rates over six decades: a dense Jacobian."""
    rng = np.random.default_rng(0)
    count = 3 * n
    a, b, c, d = rng.integers(0, n, (4, count))
    change = np.zeros((n, count))
    for species, sign in ((a, -1), (b, -1), (c, 1), (d, 1)):
        np.add.at(change, (species, np.arange(count)), sign)
    rates = 10.0 ** rng.uniform(-2, 4, count)
    field = lambda t, y, k: jnp.asarray(change) @ (k * y[a] * y[b])
    return field, rng.uniform(0.1, 1.0, n), np.array([0.0, 0.1, 1.0, 10.0]), rates, True


PROBLEMS = {
    "lotka_volterra": (
        lotka_volterra, [30.0, 4.0], np.linspace(0, 20, 21), [0.55, 0.028, 0.84, 0.026], False,
    ),
    "lorenz": (lorenz, [1.0, 0.0, 0.0], np.linspace(0, 10, 21), [10.0, 28.0, 8 / 3], False),
    "robertson": (
        robertson, [1.0, 0.0, 0.0], np.array([0, 0.4, 40, 1e5]), [0.04, 1e4, 3e7], True,
    ),
    "hires": (
        hires, [1.0] + [0.0] * 6 + [0.0057], np.array([0.0, 321.8122]), [280.0, 1.81], True,
    ),
    "mass action, n = 50": mass_action(50),
    "mass action, n = 100": mass_action(100),
}  # fmt: skip


def by_sciml(fn, y0, ts, p, rtol, atol, stiff, mode):
    del mode  # there is nothing to choose
    method = solvers.Rodas5P() if stiff else solvers.Tsit5()
    return solvers.solve(
        fn, y0, ts, p, method=method, rtol=rtol, atol=atol, max_steps=4096, throw=False
    ).ys


def by_diffrax(fn, y0, ts, p, rtol, atol, stiff, mode):
    solver = solvers._root_finder.repair(diffrax.Kvaerno5()) if stiff else diffrax.Tsit5()
    adjoint = {"grad": diffrax.RecursiveCheckpointAdjoint()}.get(mode, diffrax.ForwardMode())
    return diffrax.diffeqsolve(
        diffrax.ODETerm(fn), solver, ts[0], ts[-1], None, y0, p,
        saveat=diffrax.SaveAt(ts=ts), max_steps=4096, adjoint=adjoint, throw=False,
        stepsize_controller=diffrax.PIDController(rtol=rtol, atol=atol),
    ).ys  # fmt: skip


def jobs(name: str, rtol: float, atol: float) -> dict[str, tuple[Callable, jax.Array]]:
    fn, y0, ts, p, stiff = PROBLEMS[name]
    y0, ts, p = jnp.array(y0), jnp.array(ts), jnp.array(p)
    out = {}
    for who, run in (("sciml", by_sciml), ("diffrax", by_diffrax)):
        values = lambda p, mode, run=run: run(fn, y0, ts, p, rtol, atol, stiff, mode)
        loss = lambda p, mode, values=values: jnp.sum((values(p, mode) - 1) ** 2)
        out[f"{who} solve"] = (lambda p, v=values: v(p, "solve"), p)
        out[f"{who} grad"] = (jax.grad(lambda p, f=loss: f(p, "grad")), p)
        if len(p) > 10:
            continue  # nobody wants the Jacobian by hundreds of rates
        out[f"{who} jacfwd"] = (jax.jacfwd(lambda p, v=values: v(p, "jacfwd")), p)
        if who == "sciml":
            out[f"{who} hessian"] = (jax.hessian(lambda p, f=loss: f(p, "")), p)
    return out


def neural_jobs(rtol: float = 1e-6, atol: float = 1e-8) -> dict:
    """A training gradient: 2-50-50-2 tanh, 32 trajectories, 40 times."""
    net = nets.MLP(2, 2, width=50, depth=2, key=jax.random.key(0))
    y0 = jax.random.normal(jax.random.key(1), (32, 2))
    ts = jnp.linspace(0.0, 6.0, 40)
    out = {}
    for who, run in (("sciml", by_sciml), ("diffrax", by_diffrax)):

        def one_state(net, run=run):
            ys = run(lambda t, y, a: jax.vmap(net)(y), y0, ts, None, rtol, atol, False, "grad")
            return jnp.mean(ys**2)

        def mapped(net, run=run):
            solve = lambda y: run(lambda t, y, a: net(y), y, ts, None, rtol, atol, False, "grad")
            return jnp.mean(jax.vmap(solve)(y0) ** 2)

        for form, loss in (("one state", one_state), ("vmap", mapped)):
            out[f"{who} {form}, grad"] = (eqx.filter_grad(loss), net)
    return out


def measure(todo: dict, rounds: int = 40) -> None:
    runs, first, memory = {}, {}, {}
    for name, (fn, x) in todo.items():
        arrays, static = eqx.partition(x, eqx.is_array)  # plain `jit`: the cheapest call
        pure = jax.jit(lambda arrays, fn=fn, static=static: fn(eqx.combine(arrays, static)))
        begin = time.perf_counter()
        compiled = pure.lower(arrays).compile()
        first[name] = time.perf_counter() - begin
        memory[name] = compiled.memory_analysis().temp_size_in_bytes / 1e6
        runs[name] = lambda c=compiled, arrays=arrays: jax.block_until_ready(c(arrays))
        runs[name]()
    seconds = interleaved(runs, rounds)
    for name in todo:
        run = seconds[name]
        peer = name.replace("sciml", "diffrax")
        ratio = ""
        if name.startswith("sciml") and peer in todo:
            ratio = f"{seconds[peer] / run:5.2f}x  {first[peer] / first[name]:5.2f}x"
        cells = f"{run * 1e3:9.3f} ms   first {first[name]:6.2f} s   {memory[name]:6.2f} MB"
        print(f"  {name:24} {cells}   {ratio}", flush=True)


def main(names: list[str]) -> None:
    print("(ratios: diffrax / sciml, of the run and of the first call)")
    for name in names or [*PROBLEMS, "neural"]:
        print(name)
        if name == "neural":
            measure(neural_jobs(), rounds=15)
        else:
            stiff = PROBLEMS[name][4]
            measure(jobs(name, 1e-6, 1e-10 if stiff else 1e-8))


if __name__ == "__main__":
    main(sys.argv[1:])

"""Many members under `jax.vmap`, and fixed steps, against Diffrax.

    python benchmarks/batches.py

Interleaved wall medians of compiled programs; `temp` is the memory a program takes beside its
arguments and results. Double precision, one device.
"""

import os
import time


os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import diffrax
import jax
import jax.numpy as jnp
from core import by_diffrax, by_sciml, PROBLEMS
from timing import interleaved

from sciml import solvers


jax.config.update("jax_enable_x64", True)
STEPS = 50  # between two of 21 save times


def members(name: str, rows: int, count: int = 64):
    """Values and gradients of alike members, adaptive."""
    fn, y0, ts, p, stiff = PROBLEMS[name]
    y0, p, ts = jnp.array(y0), jnp.array(p), jnp.linspace(ts[0], ts[-1], rows)
    atol = 1e-10 if stiff else 1e-8
    todo = {}
    for who, run in (("sciml", by_sciml), ("diffrax", by_diffrax)):
        values = lambda p, mode, run=run: run(fn, y0, ts, p, 1e-6, atol, stiff, mode)
        loss = lambda p, v=values: jnp.sum(v(p, "grad") ** 2)
        todo[f"{who} values"] = jax.vmap(lambda p, v=values: v(p, "solve"))
        todo[f"{who} gradients"] = jax.vmap(jax.grad(loss))
    return todo, p * (1 + 1e-2 * jnp.linspace(0, 1, count))[:, None]


def fixed(count: int):
    """1,000 fixed steps: values and gradients."""
    fn, y0, ts, p, _ = PROBLEMS["lotka_volterra"]
    y0, ts, p = jnp.array(y0), jnp.array(ts), jnp.array(p)

    def own(method):
        return lambda p: solvers.solve(fn, y0, ts, p, method=method, steps=STEPS, throw=False).ys

    def rival(p):
        steps = STEPS * (len(ts) - 1)
        return diffrax.diffeqsolve(
            diffrax.ODETerm(fn), diffrax.Tsit5(), ts[0], ts[-1], (ts[-1] - ts[0]) / steps, y0, p,
            saveat=diffrax.SaveAt(ts=ts), max_steps=steps + 8, throw=False,
            stepsize_controller=diffrax.ConstantStepSize(),
        ).ys  # fmt: skip

    each = (lambda f: f) if count == 1 else jax.vmap
    todo = {}
    runs = {
        "sciml": own(solvers.Tsit5()),
        "diffrax": rival,
        "sciml (RK4)": own(solvers.RK4()),
    }
    for who, run in runs.items():
        todo[f"{who} values"] = each(run)
        todo[f"{who} gradients"] = each(jax.grad(lambda p, run=run: jnp.sum(run(p) ** 2)))
    ps = p if count == 1 else p * (1 + 1e-2 * jnp.linspace(0, 1, count))[:, None]
    return todo, ps


def measure(title: str, todo: dict, x, rounds: int) -> None:
    print(title)
    compiled, first, runs = {}, {}, {}
    for name, fn in todo.items():
        begin = time.perf_counter()
        compiled[name] = jax.jit(fn).lower(x).compile()
        first[name] = time.perf_counter() - begin
        runs[name] = lambda c=compiled[name]: jax.block_until_ready(c(x))
        runs[name]()
    seconds = interleaved(runs, rounds)
    for name, run in compiled.items():
        what = name.rsplit(" ", 1)[1]
        ratio = seconds[f"diffrax {what}"] / seconds[name]
        temp = run.memory_analysis().temp_size_in_bytes / 1e6
        ms = seconds[name] * 1e3
        print(
            f"  {name:24} {ms:9.3f} ms {ratio:6.2f}x   first {first[name]:5.2f} s   {temp:8.2f} MB"
        )


def main() -> None:
    for name, rows in (("lotka_volterra", 21), ("lotka_volterra", 1000), ("lorenz", 21)):
        measure(f"64 members of {name}, {rows} saved rows", *members(name, rows), rounds=15)
    for count, rounds in ((1, 100), (1000, 9)):
        measure(f"fixed steps, {count} members", *fixed(count), rounds)


if __name__ == "__main__":
    main()

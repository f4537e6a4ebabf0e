"""A training step of a neural ODE, against Diffrax and torchdiffeq at matched errors.

    python benchmarks/nets.py                                # ours and Diffrax
    TORCH_PYTHON=.../bin/python python benchmarks/nets.py    # and torchdiffeq, from an environment of its own

The net is 2-50-50-2 with tanh and has learnt the field of a cubic spiral; 32 trajectories of it at 40 times on [0, 2].
A step is loss and gradient, in double precision. The error is that of the trajectories, against a solve with tolerances
of 1e-12; each way is run at several tolerances or numbers of steps, and the cheapest time that reaches an error of
1e-4 counts.
"""

import json
import os
import subprocess
import sys
import time


os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from timing import at_error, interleaved

from sciml import fit, nets, solvers


jax.config.update("jax_enable_x64", True)

TARGET = 1e-4
TS = jnp.linspace(0.0, 2.0, 40)
Y0 = jax.random.uniform(jax.random.key(1), (32, 2), minval=-2.0, maxval=2.0)


def spiral(t, y, args):
    return jnp.array([[-0.1, 2.0], [-2.0, -0.1]]).T @ y**3


YS = solvers.solve_ensemble(spiral, Y0, TS, rtol=1e-8, atol=1e-8).ys


def learnt():
    """The net that has learnt the field: that of an untrained one is nearly a straight line."""
    lots = jax.random.uniform(jax.random.key(2), (512, 2), minval=-2.0, maxval=2.0)
    slopes = jax.vmap(spiral, in_axes=(None, 0, None))(None, lots, None)
    loss = lambda net: jnp.mean((jax.vmap(net)(lots) - slopes) ** 2)
    net = nets.MLP(2, 2, width=50, depth=2, key=jax.random.key(0))
    rate = optax.cosine_decay_schedule(1e-2, 3000)
    return fit.train(loss, optax.adam(rate), steps=3000, model=net, every=3000).model


NET = learnt()


# The ways: each maps (net, tolerance or steps) to trajectories of shape (32, 40, 2).


def ours(**options):
    def run(net, level):
        tolerances = {"steps": level} if isinstance(level, int) else {"rtol": level, "atol": level}
        model = nets.NeuralODE(net, **options, **tolerances)
        return jax.vmap(model, in_axes=(0, None))(Y0, TS)

    return run


def ours_batched(net, level):
    """One solve of all trajectories as one state, with steps for all."""
    field = lambda t, y, args: jax.vmap(net)(y)
    ys = solvers.solve(field, Y0, TS, method=solvers.Tsit5(), rtol=level, atol=level).ys
    return jnp.swapaxes(ys, 0, 1)


def by_vmap(net, level):
    field = lambda t, y, args: net(y)
    return jax.vmap(lambda y0: _diffrax(field, y0, level, {}))(Y0)


def batched(adjoint):
    """One solve of all trajectories as one state, with steps for all: what experts write."""

    def run(net, level):
        field = lambda t, y, args: jax.vmap(net)(y)
        return jnp.swapaxes(_diffrax(field, Y0, level, {"adjoint": adjoint}), 0, 1)

    return run


def _diffrax(field, y0, level, options):
    if isinstance(level, int):
        controller, step = diffrax.ConstantStepSize(), (TS[1] - TS[0]) / level
    else:
        controller, step = diffrax.PIDController(rtol=level, atol=level), None
    return diffrax.diffeqsolve(
        diffrax.ODETerm(field), diffrax.Tsit5(), TS[0], TS[-1], step, y0,
        saveat=diffrax.SaveAt(ts=TS), stepsize_controller=controller, max_steps=4096, **options,
    ).ys  # fmt: skip


TOLERANCES, STEPS = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6), (1, 2, 4)
WAYS = {
    "ours, RK4 on fixed steps": (ours(method=solvers.RK4()), STEPS),
    "ours, Tsit5 on fixed steps": (ours(method=solvers.Tsit5()), STEPS),
    "ours, Tsit5": (ours(method=solvers.Tsit5()), TOLERANCES),
    "ours, default": (ours(), TOLERANCES),
    "ours, batch as state": (ours_batched, TOLERANCES),
    "diffrax, vmap": (by_vmap, TOLERANCES),
    "diffrax, vmap, fixed steps": (by_vmap, STEPS),
    "diffrax, batch as state": (batched(diffrax.RecursiveCheckpointAdjoint()), TOLERANCES),
    "diffrax, batch as state, fixed steps": (batched(diffrax.RecursiveCheckpointAdjoint()), STEPS),
}

TORCH = """
import json, sys, time
import numpy as np, torch
from torchdiffeq import odeint
torch.set_default_dtype(torch.float64)
given = np.load(sys.argv[1])
ts, y0, ys = (torch.tensor(given[k]) for k in ("ts", "y0", "ys"))
layers = []
for i in range(3):
    layer = torch.nn.Linear(*given[f"w{i}"].T.shape)
    layer.weight.data, layer.bias.data = torch.tensor(given[f"w{i}"]), torch.tensor(given[f"b{i}"])
    layers += [layer, torch.nn.Tanh()]
net = torch.nn.Sequential(*layers[:-1])
out = []
for options in [{"rtol": t, "atol": t} for t in (1e-2, 1e-3, 1e-4, 1e-5, 1e-6)] + [{"method": "rk4"}]:
    def step():
        net.zero_grad()
        pred = odeint(lambda t, y: net(y), y0, ts, **options).transpose(0, 1)
        loss = ((pred - ys) ** 2).mean()
        loss.backward()
        return pred
    pred = step().detach().numpy()
    error = float(np.abs(pred - given["exact"]).max())
    seconds = []
    for _ in range(10):
        begin = time.perf_counter(); step(); seconds.append(time.perf_counter() - begin)
    out.append((error, float(np.median(seconds))))
print(json.dumps(out))
"""


def main():
    exact = ours(method=solvers.Tsit5())(NET, 1e-12)
    loss = lambda run: lambda net, level: jnp.mean((run(net, level) - YS) ** 2)
    table, todo = {}, {}
    for name, (run, levels) in WAYS.items():
        for level in levels:
            step = eqx.filter_jit(
                lambda net, run=run, n=level: eqx.filter_value_and_grad(loss(run))(net, n)
            )
            begin = time.perf_counter()
            jax.block_until_ready(step(NET))
            first = time.perf_counter() - begin
            forward = eqx.filter_jit(lambda net, run=run, n=level: run(net, n))
            error = float(jnp.max(jnp.abs(forward(NET) - exact)))
            table[name, level] = [error, first]
            todo[name, level] = lambda step=step: jax.block_until_ready(step(NET))
    times = interleaved(todo, rounds=30, budget=60.0)
    print(f"{'':38}{'level':>8}{'error':>10}{'ms':>8}{'first s':>9}")
    points, firsts = {}, {}
    for (name, level), (error, first) in table.items():
        ms = 1e3 * times[name, level]
        print(f"{name:38}{level!s:>8}{error:10.1e}{ms:8.2f}{first:9.1f}")
        points.setdefault(name, []).append((error, ms))
        firsts.setdefault(name, []).append(first)
    if python := os.environ.get("TORCH_PYTHON"):
        points["torchdiffeq"] = [(e, 1e3 * s) for e, s in _torch(python, exact)]
        firsts["torchdiffeq"] = [np.nan]
    print(f"\nmilliseconds a step at an error of {TARGET:g}, and seconds until the first")
    for name, rows in points.items():
        ms = at_error(rows, TARGET)
        text = "never" if ms is None else f"{ms:.2f}"
        print(f"{name:38}{text:>8}{np.median(firsts[name]):9.1f}")


def _torch(python: str, exact) -> list:
    layers = {f"w{i}": k.weight for i, k in enumerate(NET.layers)}
    layers |= {f"b{i}": k.bias for i, k in enumerate(NET.layers)}
    path = "/tmp/spiral.npz"
    np.savez(path, ts=TS, y0=Y0, ys=YS, exact=exact, **layers)
    done = subprocess.run([python, "-c", TORCH, path], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


if __name__ == "__main__":
    sys.exit(main())

"""Fits against Optimistix over Diffrax and SciPy: one fit, a cold start, a hundred starts.

    python benchmarks/fit.py            # all tables
    python benchmarks/fit.py single     # one of: single cold starts

The model is Lotka-Volterra with six unknowns on 21 measurements of two species (hares and lynxes, logarithmic
residuals), in double precision. Times are wall medians of interleaved runs, compiled, on one machine; the first call
is tracing and compilation together.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import time


os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optimistix as optx
import scipy.integrate
import scipy.optimize
from timing import interleaved


jax.config.update("jax_enable_x64", True)

from sciml import fit  # noqa: E402


ROOT = pathlib.Path(__file__).parents[1]
TABLE = np.genfromtxt(ROOT / "examples" / "data" / "lynx_hare.csv", delimiter=",", names=True)
TS = TABLE[TABLE.dtype.names[0]] - 1900
YS = np.stack([TABLE["hare"], TABLE["lynx"]], axis=1)
START = np.array([0.55, 0.028, 0.8, 0.024, 33.0, 6.0])
OPTIMUM = 2.01866  # the sum of squares, confirmed in tests/data/fit/fits.json
LOW, HIGH = (
    np.array([0.01, 1e-3, 0.01, 1e-3, 1.0, 1.0]),
    np.array([3.0, 0.3, 3.0, 0.3, 100.0, 50.0]),
)


class LotkaVolterra(eqx.Module):
    alpha: float
    beta: float
    gamma: float
    delta: float

    def __call__(self, t, y, args):
        hare, lynx = y
        return jnp.stack(
            [(self.alpha - self.beta * lynx) * hare, (self.delta * hare - self.gamma) * lynx]
        )


def problem(start=START, observed=YS):
    names = ("alpha", "beta", "gamma", "delta", "y0[0]", "y0[1]")
    free = {n: fit.Free(a, b, scale="log") for n, a, b in zip(names, LOW, HIGH, strict=True)}
    return fit.Problem(
        LotkaVolterra(*start[:4]), fit.Data(TS, observed), y0=jnp.asarray(start[4:]), noise=fit.noise.LogNormal(),
        free=free,
    )  # fmt: skip


def residuals(x, args):
    """The same residuals by Diffrax, in the logarithms of the parameters."""
    p = jnp.exp(x)
    field = lambda t, y, p: LotkaVolterra(p[0], p[1], p[2], p[3])(t, y, None)
    sol = diffrax.diffeqsolve(
        diffrax.ODETerm(field), diffrax.Tsit5(), 0.0, TS[-1], 0.1, p[4:], args=p,
        saveat=diffrax.SaveAt(ts=jnp.asarray(TS)), adjoint=diffrax.ForwardMode(), throw=False, max_steps=4096,
        stepsize_controller=diffrax.PIDController(rtol=1e-8, atol=1e-10),
    )  # fmt: skip
    return jnp.ravel(jnp.log(sol.ys) - jnp.log(YS))


def optimistix(x):
    method = optx.LevenbergMarquardt(rtol=1e-8, atol=1e-8)
    options = {"jac": "fwd"}
    sol = optx.least_squares(residuals, method, x, options=options, throw=False, max_steps=200)
    return sol.value, jnp.sum(residuals(sol.value, None) ** 2)


JITTED = jax.jit(lambda x: residuals(x, None))
JACOBIAN = jax.jit(jax.jacfwd(lambda x: residuals(x, None)))


def scipy_trf(x):
    fn = lambda x: np.nan_to_num(np.asarray(JITTED(x)), nan=1e6, posinf=1e6, neginf=-1e6)
    jac = lambda x: np.nan_to_num(np.asarray(JACOBIAN(x)))
    return scipy.optimize.least_squares(fn, x, jac, method="trf", xtol=1e-8, ftol=1e-8).cost * 2


def scipy_odeint(x):
    def fn(x):
        p = np.exp(x)
        field = lambda y, t: [(p[0] - p[1] * y[1]) * y[0], (p[3] * y[0] - p[2]) * y[1]]
        ys = scipy.integrate.odeint(field, p[4:], TS, rtol=1e-8, atol=1e-10)
        return np.ravel(np.log(np.maximum(ys, 1e-12)) - np.log(YS))

    return scipy.optimize.least_squares(fn, x, method="lm", xtol=1e-8, ftol=1e-8).cost * 2


def single():
    """One fit, warm."""
    x0, p, peer = jnp.log(START), problem(), eqx.filter_jit(optimistix)
    todo = {
        "sciml": lambda: fit.estimate(p),
        "Optimistix LM, Diffrax Tsit5": lambda: jax.block_until_ready(peer(x0)),
        "SciPy trf, jitted Diffrax": lambda: scipy_trf(x0),
        "SciPy lm, odeint": lambda: scipy_odeint(x0),
    }
    first = {}
    for name, run in todo.items():
        start = time.perf_counter()
        run()
        first[name] = time.perf_counter() - start
    times = interleaved(todo, 15, 30.0)
    sums = {
        "sciml": fit.estimate(p).statistics["chi2"],
        "Optimistix LM, Diffrax Tsit5": float(peer(x0)[1]),
        "SciPy trf, jitted Diffrax": scipy_trf(x0),
        "SciPy lm, odeint": scipy_odeint(x0),
    }
    print(f"{'one fit':32s} {'ms':>9s} {'first, s':>9s} {'sum of squares':>15s}")
    for name in todo:
        print(f"{name:32s} {1e3 * times[name]:9.2f} {first[name]:9.2f} {sums[name]:15.6f}")

    print("\nfrom starts that are wrong by a factor: sum of squares (the optimum has 2.018661)")
    for factor in (0.8, 1.2, 0.5, 2.0):
        x = jnp.log(START * factor)
        ours = fit.estimate(problem(START * factor)).statistics["chi2"]
        theirs = float(peer(x)[1])
        print(
            f"  {factor:4.1f}: sciml {ours:9.4f}   Optimistix {theirs:9.4f}   SciPy trf {scipy_trf(x):9.4f}"
        )


_COLD = """
import time; start = time.perf_counter()
import sys; sys.path.insert(0, {here!r})
import jax; jax.config.update("jax_enable_x64", True)
if {cache!r}: jax.config.update("jax_compilation_cache_dir", {cache!r}); jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
import equinox as eqx, jax.numpy as jnp, numpy as np
from sciml import fit
exec(open({model!r}).read())
text = str(fit.estimate(problem()))
print(time.perf_counter() - start)
"""  # noqa: E501


def cold():
    """From the start of the process to the printed report."""
    source = pathlib.Path(__file__).read_text()
    begin, end = source.index("ROOT ="), source.index("def residuals(")
    with tempfile.TemporaryDirectory() as folder:
        model = pathlib.Path(folder) / "model.py"
        text = (
            source[begin:end]
            .replace("__file__", repr(__file__))
            .replace("pathlib.Path", "__import__('pathlib').Path")
        )
        model.write_text(text)
        print("seconds from the start of Python to the report")
        for label, cache in (
            ("without a cache", ""),
            ("filling JAX's cache", folder + "/c"),
            ("from it", folder + "/c"),
        ):
            code = _COLD.format(here=str(ROOT), cache=cache, model=str(model))
            out = subprocess.run(
                [sys.executable, "-c", code], capture_output=True, text=True, check=True
            )
            print(f"  {label:22s} {float(out.stdout):6.2f}")


def starts():
    """A hundred starts over the bounds."""
    p, key = problem(), jax.random.key(0)
    xs = fit._starts.draw(p, 100, key, "hypercube")
    batch = eqx.filter_jit(lambda xs: jax.vmap(optimistix)(xs))
    runs = {
        "sciml": lambda: fit.estimate(p, starts=100, key=key).starts.loss,
        "Optimistix, vmap": lambda: np.asarray(batch(xs)[1]) / 2,
        "SciPy trf in a loop": lambda: np.array([scipy_trf(x) for x in xs]) / 2,
    }
    print(f"{'100 starts':24s} {'s':>8s} {'first, s':>9s} {'at the optimum':>15s}")
    for name, run in runs.items():
        begun = time.perf_counter()
        run()
        first, begun = time.perf_counter() - begun, time.perf_counter()
        losses = run()
        took = time.perf_counter() - begun
        there = int(np.sum(np.abs(2 * losses - OPTIMUM) < 1e-3))
        print(f"{name:24s} {took:8.2f} {first:9.2f} {there:15d}")
    # Wide bounds, so that some of the starts leave every scale.
    wild = problem()
    failed = fit.estimate(wild, starts=100, key=key).starts
    print(
        f"  {int(np.sum(~np.isfinite(failed.loss)))} of the starts of sciml failed and were counted"
    )


if __name__ == "__main__":
    tasks = {"single": single, "cold": cold, "starts": starts}
    for name in sys.argv[1:] or tasks:
        tasks[name]()
        print()

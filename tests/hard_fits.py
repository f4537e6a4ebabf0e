"""Fits in which single shooting fails from afar: published starts and boxes, on [0, 30]."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from sciml import fit, solvers


class LotkaVolterra(eqx.Module):
    a: jax.Array | float
    b: jax.Array | float
    c: jax.Array | float
    d: jax.Array | float

    def __call__(self, t, y, args):
        x, z = y
        return jnp.stack([self.a * x - self.b * x * z, -self.c * z + self.d * x * z])


class FitzHughNagumo(eqx.Module):
    a: jax.Array | float
    b: jax.Array | float
    tau: jax.Array | float
    current: jax.Array | float

    def __call__(self, t, y, args):
        v, w = y
        return jnp.stack([v - v**3 / 3 - w + self.current, self.tau * (v + self.a - self.b * w)])


class Lorenz(eqx.Module):
    sigma: jax.Array | float
    rho: jax.Array | float
    beta: jax.Array | float

    def __call__(self, t, y, args):
        x, y, z = y
        return jnp.stack([self.sigma * (y - x), x * (self.rho - z) - y, x * y - self.beta * z])


# The true values, the initial state, the start and the upper bounds; the lower ones are 0.
SYSTEMS = {
    "lotka volterra": (LotkaVolterra, (1.5, 1.0, 3.0, 1.0), (1.0, 1.0), (5.0,) * 4, (10,) * 4),
    "fitzhugh nagumo": (FitzHughNagumo, (0.7, 0.8, 0.08, 0.5), (1.0, 1.0), (2.5,) * 4, (5,) * 4),
    "lorenz": (
        Lorenz,
        (10.0, 28.0, 2.66666),
        (0.1, 0.0, 0.0),
        (0.0, 0.5, 0.1),
        (22, 60, 6),
    ),
}


def first_number(t, y, args):
    return y[:1]


def simulate(name: str, points: int, span: float = 30.0):
    kind, true, y0, _, _ = SYSTEMS[name]
    ts = jnp.linspace(0.0, span, points)
    method, model = solvers.Dopri8(), kind(*true)
    sol = solvers.solve(model, jnp.array(y0), ts, method=method, rtol=1e-9, atol=1e-9)
    return ts, np.asarray(sol.ys)


def hard_fit(name: str, points: int, noise: float = 0.0, partial: bool = False, span: float = 30.0):
    """A problem at its far start, and the true parameters."""
    kind, true, y0, start, upper = SYSTEMS[name]
    ts, ys = simulate(name, points, span)
    sigma = noise * ys.std(axis=0)
    ys = ys + sigma * np.random.default_rng(0).normal(size=ys.shape)
    if partial:
        ys, sigma = ys[:, :1], sigma[:1]
    names = list(kind.__dataclass_fields__)
    problem = fit.Problem(
        kind(*start),
        fit.Data(ts, ys, sigma=sigma if noise else None),
        y0=jnp.array(y0),
        free={n: fit.Free(0, u) for n, u in zip(names, upper, strict=True)},
        observe=first_number if partial else None,
        solve=fit.Solve(method=solvers.Tsit5()),
    )
    return problem, np.array(true)

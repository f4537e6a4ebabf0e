"""Models, data and reference values that the tests of `fit` share.

The models are classes of this module: what is compiled for one test serves the next.
"""

import csv
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from sciml import fit


EXAMPLES = Path(__file__).resolve().parent.parent / "examples"

# Four fixed steps between neighbouring times: programs that compile three times faster than
# adaptive ones, and exact to about 1e-8 for the decay below.
FAST = fit.Solve(steps=4)

# Case 39: 3 exp(-0.4 t) and errors of a few hundredths. The reference values are those of linear
# algebra at the optimum of a exp(-b t), recomputed with SciPy in `test_estimate.py`.
T = np.arange(10.0)
Y = np.array(
    [
        3.03, 1.99096014, 1.35798689, 0.94358264, 0.57568955,
        0.40600585, 0.26215386, 0.20243019, 0.10228661, 0.09197117,
    ]
)  # fmt: skip
DECAY = {"k": 0.401941032, "y0[0]": 3.019538343}
DECAY_SE = {"k": 0.0048281, "y0[0]": 0.0210543}  # sigma from the residuals
DECAY_SE_KNOWN = {"k": 0.0041110, "y0[0]": 0.0179274}  # sigma = 0.02
DECAY_SSR = 0.004413647
DECAY_CORRELATION = 0.558796


class Decay(eqx.Module):
    k: jax.Array | float

    def __call__(self, t, y, args):
        return -self.k * y


class Product(eqx.Module):
    """Only `a * b` acts, and `idle` does not act at all."""

    a: jax.Array | float
    b: jax.Array | float
    idle: jax.Array | float = 1.0

    def __call__(self, t, y, args):
        return -self.a * self.b * y


class LotkaVolterra(eqx.Module):
    birth: jax.Array | float
    predation: jax.Array | float
    growth: jax.Array | float
    death: jax.Array | float

    def __call__(self, t, y, args):
        meeting = y[0] * y[1]
        return jnp.stack(
            [
                self.birth * y[0] - self.predation * meeting,
                self.growth * meeting - self.death * y[1],
            ]
        )


class Logistic(eqx.Module):
    r: jax.Array | float
    K: jax.Array | float

    def __call__(self, t, y, args):
        return self.r * y * (1 - y / self.K)


def decay_problem(sigma=None, *, k=0.2, y0=2.0, ys=Y, free=None, solve=FAST, **kwargs):
    data = fit.Data(T, ys, sigma, names=["conc"])
    if free is None:
        free = {"k": fit.Free(1e-3, 10, scale="log"), "y0[0]": fit.Free(0, 10)}
    return fit.Problem(Decay(k), data, y0=jnp.array([y0]), free=free, solve=solve, **kwargs)


def lynx_hare():
    """Years since 1900, and thousands of pelts of hare and lynx."""
    with open(EXAMPLES / "data" / "lynx_hare.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    table = np.array([[float(r[c]) for c in ("year", "hare", "lynx")] for r in rows])
    return table[:, 0] - 1900, table[:, 1:]


def numbers(by_name) -> np.ndarray:
    """The values of a dict of numbers and arrays, one after the other."""
    return np.concatenate([np.ravel(v) for v in by_name.values()])


def central_differences(fn, x, step=1e-5) -> np.ndarray:
    """The Jacobian of `fn` at `x` by central differences, with the parameter last."""
    columns = []
    for i in range(x.shape[0]):
        h = step * max(1.0, abs(float(x[i])))
        e = jnp.zeros_like(x).at[i].set(h)
        columns.append((np.asarray(fn(x + e)) - np.asarray(fn(x - e))) / (2 * h))
    return np.stack(columns, axis=-1)

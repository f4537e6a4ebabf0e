import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pytest

from sciml import fit


class Decays(eqx.Module):
    """Two substances that decay at the same rate."""

    k: jax.Array | float

    def __call__(self, t, y, args):
        return -self.k * y


TS = np.arange(6.0)
YS = np.stack([3 * np.exp(-0.4 * TS) + 0.05 * np.sin(5 * TS), 2 * np.exp(-0.4 * TS)], axis=1)
YS[4, 0] = np.nan


def problem_of(sigma=None, noise=None):
    data = fit.Data(TS, YS, sigma, names=["a", "b"])
    free = {"k": fit.Free(1e-2, 10, scale="log")}
    return fit.Problem(Decays(0.3), data, y0=jnp.array([3.0, 2.0]), free=free, noise=noise)


@pytest.fixture(scope="session")
def result():
    """A fit with sigma 0.1 for `a`, of which the value at t = 4 is missing, and 0.05 for `b`."""
    return fit.estimate(problem_of([0.1, 0.05]))


@pytest.fixture(scope="session")
def no_sigma(result):
    """The same, as if sigma had been estimated from the residuals as 0.2."""
    return dataclasses.replace(
        result,
        problem=problem_of().at(result.problem.initial()),
        statistics=result.statistics | {"sigma": "from residuals", "residual sigma": 0.2},
    )


@pytest.fixture
def band():
    """Makes predictions by hand, at times that are out of order: nothing is compiled."""

    def make(level=0.95, observations=False, names=("a", "b")):
        ts = np.array([5.0, 0.0, 2.5])
        mean = np.stack([3 * np.exp(-0.4 * ts), 2 * np.exp(-0.4 * ts)], axis=1)[:, : len(names)]
        half = 0.5 if observations else 0.1
        return fit.Prediction(ts, mean, mean - half, mean + half, names, level, observations)

    return make


@pytest.fixture
def ax():
    return plt.figure().subplots()


@pytest.fixture(autouse=True)
def _close():
    yield
    plt.close("all")

"""# First fit

Ten measurements of a decaying concentration, two unknowns, error bars.
"""

import equinox as eqx
import jax
import jax.numpy as jnp

from sciml import fit


jax.config.update("jax_enable_x64", True)  # fits want double precision


class Decay(eqx.Module):
    k: float

    def __call__(self, t, y, args):
        return -self.k * y


ts = jnp.arange(10.0)
ys = jnp.array([3.03, 1.991, 1.358, 0.944, 0.576, 0.406, 0.262, 0.202, 0.102, 0.092])
data = fit.Data(ts, ys[:, None], names=["conc"])
free = {"k": fit.Free(1e-3, 10, scale="log"), "y0": fit.Free(0, 10)}
problem = fit.Problem(Decay(0.2), data, y0=jnp.array([2.0]), free=free)
result = fit.estimate(problem)
print(result)  # the report: estimates, standard errors, 95% intervals

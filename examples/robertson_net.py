"""# A stiff neural differential equation

Robertson's reactions, a standard problem of stiff chemistry: the second species is there in traces, a few hundred
thousandths, and reacts within microseconds, while the whole takes days. A network in place of the rate laws learns
nothing of that, unless it is put into units of the problem: of each species its range, and of each a time of its own.
Then it follows the three species over ten decades of time, each to 0.13 % of its range on average; a minute on a
processor with two cores. Not from every start: of three keys two came to this, and the third got stuck on thirty times,
which its loss tells.
"""

# %%
import sys
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

from sciml import fit, nets, solvers


QUICK = "--quick" in sys.argv  # a short run, to see that it works
jax.config.update("jax_enable_x64", True)

# %% [markdown]
# ## The data
#
# Fifty times between 1e-5 and 1e5, evenly spread on a logarithmic axis.


# %%
def robertson(t, y, args):
    slow, fast, joint = 0.04 * y[0], 3e7 * y[1] ** 2, 1e4 * y[1] * y[2]
    return jnp.stack([joint - slow, slow - joint - fast, fast])


ts = np.append(0.0, np.logspace(-5, 5, 50))
y0 = jnp.array([1.0, 0.0, 0.0])
ys = np.asarray(solvers.solve(robertson, y0, ts, rtol=1e-9, atol=1e-12).ys)
size = np.ptp(ys, axis=0)
size

# %% [markdown]
# ## The model
#
# `nets.Scaled` divides states by their sizes, and multiplies what the network returns by size over time, where the time
# is that of the fastest change of each species, from the differences of the data. With one time for all, say the span,
# the second species is lost.

# %%
slopes = np.max(np.abs(np.diff(ys, axis=0) / np.diff(ts)[:, None]), axis=0)
print("sizes:", size, "times:", size / slopes)


class Reactions(eqx.Module):
    net: nets.Scaled

    def __call__(self, t, y, args):
        return self.net(y)


def begin(seed):
    net = nets.MLP(3, 3, width=8, depth=2, key=jax.random.key(seed))
    return Reactions(nets.Scaled(net, y_scale=size, t_scale=size / slopes))


# %% [markdown]
# ## The training
#
# On the first seventeen times, then on more and more of them, each time by Adam and then by Levenberg and Marquardt's
# method. The solver is ours for stiff problems, `Rodas5P`.

# %%
phases = [fit.Phase(optax.adam(5e-3), 300), fit.Phase(solvers.LevenbergMarquardt(), 100)]
stages = (17, 30, 40, 46, 51)
if QUICK:
    phases = [fit.Phase(optax.adam(5e-3), 3), fit.Phase(solvers.LevenbergMarquardt(), 2)]
    stages = (17,)


def train(seed):
    model, clock = begin(seed), time.perf_counter()
    for count in stages:
        problem = fit.Problem(
            model,
            fit.Data(ts[:count], ys[:count], sigma=0.01 * size),
            y0=y0,
            free={"net": fit.Free()},
            solve=fit.Solve(method=solvers.Rodas5P(), rtol=1e-5, atol=1e-10),
        )
        result = fit.train(problem, phases, horizon=None)
        model = result.model
        print(
            f"{count} times: {result.loss / problem.size:.1e}, {time.perf_counter() - clock:.0f} s"
        )
    return model


model = train(0)

# %% [markdown]
# ## The test
#
# The learnt field, solved anew with tighter tolerances. In units of each species' range, the mean absolute error:

# %%
learnt = np.asarray(solvers.solve(model, y0, ts, rtol=1e-8, atol=1e-12).ys)
errors = np.mean(np.abs(learnt - ys), axis=0) / size
print("mean absolute errors:", errors)

# %%
figure, panels = plt.subplots(1, 3, figsize=(9, 3), layout="constrained")
for i, panel in enumerate(panels):
    panel.semilogx(ts[1:], ys[1:, i], "o", color="0.6", markersize=3, label="data")
    panel.semilogx(ts[1:], learnt[1:, i], color="C0", label="learnt")
    panel.set(xlabel="time (s)", title=f"species {i + 1}")
    panel.spines[["top", "right"]].set_visible(False)
panels[0].legend(frameon=False, fontsize=8)
figure

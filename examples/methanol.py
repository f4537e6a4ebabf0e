"""# At a bound: methanol to hydrocarbons

Over a zeolite methanol turns into olefins, and those into everything else, aromatics and paraffins. A
published mechanism with five rates fits the measurements well, but one of the rates would like to be negative.
What does a fit say then, and what follows from it?

Data and mechanism: Maria, *An adaptive strategy for solving kinetic model concomitant estimation - reduction
problems*, Can. J. Chem. Eng. 67 (1989) 825; here as in Floudas and others, *Handbook of test problems in
local and global optimization* (1999), and Dolan, Moré and Munson, *Benchmarking optimization software with COPS
3.0* (2004).
"""

# %%
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

from sciml import fit, plot, solvers


jax.config.update("jax_enable_x64", True)

# %% [markdown]
# ## The data
#
# Fractions of the three lumps, at seventeen times in arbitrary units. The first row is pure
# methanol: that is how the experiment was set up, hence an initial state and no measurement.

# %%
here = Path(__file__).resolve().parent
table = np.genfromtxt(here / "data" / "methanol_hydrocarbons.csv", delimiter=",", names=True)
lumps = {"methanol": "methanol_A", "olefins": "olefins_C", "rest": "rest_P"}
columns = {"t": table["t"]} | {name: table[column] for name, column in lumps.items()}
measured = {name: column[1:] for name, column in columns.items()}
data = fit.Data.from_frame(measured, time="t", values=list(lumps))
data

# %% [markdown]
# ## The model
#
# An intermediate is used up as soon as it is made: that is where the fraction comes from. Its fates
# are told by `k1` and `k5`, relative to each other; `k2`, `k3` and `k4` are rates at which methanol
# goes.


# %%
class Methanol(eqx.Module):
    k1: float
    k2: float
    k3: float
    k4: float
    k5: float

    def __call__(self, t, y, args):
        a, c = y["methanol"], y["olefins"]
        rate = self.k1 * a / ((self.k2 + self.k5) * a + c)
        return {
            "methanol": -(2 * self.k2 + self.k3 + self.k4) * a + rate * c,
            "olefins": rate * (self.k2 * a - c) + self.k3 * a,
            "rest": rate * (c + self.k5 * a) + self.k4 * a,
        }


# %% [markdown]
# ## The fit

# %%
quick = fit.Solve(method=solvers.Tsit5())  # not stiff: compiles faster than the default
rates = ("k1", "k2", "k3", "k4", "k5")
problem = fit.Problem(
    Methanol(1.0, 1.0, 1.0, 1.0, 1.0),
    data,
    t0=0.0,
    y0={"methanol": 1.0, "olefins": 0.0, "rest": 0.0},
    free={name: fit.Free(0, 100) for name in rates},
    solve=quick,
)
result = fit.estimate(problem, starts=8, key=jax.random.key(0))
print(result)

# %% [markdown]
# The report leads with what matters: `k5` sits at its lower bound. The derivative of the sum of
# squares is not zero there, so a curvature gives no error bar, and those of the other four are what
# they would be if `k5` were known to be zero.
#
# All starts ended at the same point, so it is not a matter of a bad start. A bound that holds means
# one of three things:
#
# - The bound is wrong. Not here: a rate is not negative.
# - The process is not there, or too slow to be seen. Then a model without it is as good, and simpler.
# - The model is wrong elsewhere, and `k5` tries to make up for it. Residuals show that.
#
# ## Without the process

# %%
simpler = fit.Problem(
    Methanol(1.0, 1.0, 1.0, 1.0, 0.0),
    data,
    t0=0.0,
    y0={"methanol": 1.0, "olefins": 0.0, "rest": 0.0},
    free={name: fit.Free(0, 100) for name in rates[:4]},
    solve=quick,
)
without = fit.estimate(simpler)
print(without)

# %% [markdown]
# The same sum of squares with one parameter less, and an AIC that is lower by 2.
#
# ## How large could it be?
#
# An estimate at a bound has an error bar to one side. We hold `k5` at a few values, fit the others
# again, and see how the sum of squares grows: a likelihood profile by hand. Where it has grown by
# 2.71 times the variance of the residuals is the upper end of a one-sided 95% interval.

# %%
trials = np.linspace(0, 3, 13)
sums = []
for value in trials:
    at = eqx.tree_at(lambda p: p.model.k5, without.problem, jnp.asarray(value))
    sums.append(fit.estimate(at).statistics["chi2"])
sums = np.array(sums)
limit = sums[0] + 2.71 * without.statistics["residual sigma"] ** 2
print(f"k5 < {np.interp(limit, sums, trials):.2f}, with 95% confidence")

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
plot.data(without, fit.predict(without, jnp.linspace(0, 1.15, 200)), ax=left)
left.set(xlabel="time", ylabel="fraction")
right.plot(trials, sums, "o-")
right.axhline(limit, color="grey", lw=0.8)
right.set(xlabel="k5, held", ylabel="sum of squares")
figure.savefig("methanol.png", dpi=150)

# %% [markdown]
# Or is the model wrong elsewhere? The residuals, in units of their standard deviation: those of
# methanol are far smaller than those of the others, and decrease as it vanishes. One sigma for all
# three is a coarse assumption; `sigma=` in the data, one for each column, would be the next thing
# to try.

# %%
plot.residuals(without)

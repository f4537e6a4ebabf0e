"""# Nearly singular: the life of a virus

Before this experiment HIV seemed to sleep for years. Then patients were given a drug that makes new virus
particles harmless, and their virus was counted for a week: it vanished within days, hence had been made
and lost by the billions each day. How fast particles are cleared and how fast infected cells die follow from the
shape of one curve, barely: the report of a fit has to say so.

Data: patient 105 of Perelson, Neumann, Markowitz, Leonard and Ho, *HIV-1 dynamics in vivo: virion clearance
rate, infected cell life-span, and viral generation time*, Science 271 (1996) 1582.
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
# Millions of copies of RNA in a millilitre of plasma.

# %%
here = Path(__file__).resolve().parent
table = np.genfromtxt(here / "data" / "hiv_perelson_p105.csv", delimiter=",", names=True)
data = fit.Data(table["t_day"], table["V_rna_copies_ml"] / 1e6, names=["virus"])
data

# %% [markdown]
# ## The model
#
# Infected cells release particles and die at the rate `death`; particles are cleared at the rate
# `clearance`. Those made before the drug are infectious and keep infecting cells; those made
# afterwards are not. Before, everything was at rest. In units of that state the constants of
# infection and release cancel, and three unknowns are left.


# %%
class Virus(eqx.Module):
    clearance: float  # of particles, per day
    death: float  # of infected cells, per day
    before: float  # million copies per mL

    def __call__(self, t, y, args):
        return {
            "infectious": -self.clearance * y["infectious"],
            "harmless": self.clearance * (y["cells"] - y["harmless"]),
            "cells": self.death * (y["infectious"] - y["cells"]),
        }


def at_rest(model, args):
    return {"infectious": model.before, "harmless": 0.0 * model.before, "cells": model.before}


def rna(t, y, args):
    return y["infectious"] + y["harmless"]


def problem(noise, **more):
    rate = fit.Free(0.01, 100, scale="log")
    return fit.Problem(
        Virus(clearance=3.0, death=0.3, before=1.0),
        data,
        y0=at_rest,
        observe=rna,
        noise=noise,
        free={"clearance": rate, "death": rate, "before": rate} | more,
        solve=fit.Solve(method=solvers.Tsit5()),  # not stiff: compiles faster than the default
    )


# %% [markdown]
# ## A fit to the numbers as they are

# %%
levels = fit.estimate(problem(fit.noise.Normal()))
print(levels)

# %% [markdown]
# Converged, and yet useless: standard errors of a million, intervals from nothing to infinity, and
# the correlation of the two rates is minus one. They came out equal. There the curve, made of two
# exponentials, does not change at first order if the clearance grows by a little and the death rate
# shrinks by twice that: the curvature determines only a combination of them.
#
# ## A better noise
#
# An assay that doubles RNA from cycle to cycle errs by a factor, not by a number of copies. The fit
# above listened to the first two days, when numbers are large, and hardly to the last three. With
# log-normal noise each count speaks.

# %%
decades = fit.estimate(problem(fit.noise.LogNormal(base=10)))
print(decades)

# %% [markdown]
# Now there are finite error bars, which are still wide, and the correlation is still -0.96: a fast
# clearance with slow death looks much as slow clearance with fast death.
#
# ## What does the curve say of the clearance?
#
# A likelihood profile by hand: hold the clearance at some values, fit the rest, see how the
# likelihood falls. The intervals in the report assume that it falls as a parabola, with the
# curvature at the optimum; a profile shows what it does.

# %%
trials = np.geomspace(0.3, 30, 21)


def profile(result):
    rest = result.problem.fix("clearance")
    log_likelihoods = []
    for value in trials:
        at = eqx.tree_at(lambda p: p.model.clearance, rest, jnp.asarray(value))
        log_likelihoods.append(fit.estimate(at).statistics["log likelihood"])
    return 2 * (result.statistics["log likelihood"] - np.array(log_likelihoods))


falls = {"levels": profile(levels), "logarithms": profile(decades)}
for name, fall in falls.items():
    likely = trials[fall < 3.84]
    print(f"{name:10} 95% interval from {likely.min():.1f} to {likely.max():.1f} per day")

# %% [markdown]
# (To the next of the trial values.) So the data do say something, even taken as they are: only the
# curvature at that one point does not. And neither fall is a parabola. They are steep on the left,
# where the clearance would be slower than the decline that one sees, and flat on the right: a
# clearance much faster than everything else leaves no trace.
# On logarithms there are even two optima, one on each side of the point where both rates are equal:
# the second one, where cells die fast and particles are cleared slowly, is nearly as likely as the first.
#
# ## What to do
#
# More measurements in the first day would help, where a fast rate shows. So does knowledge from
# elsewhere: the five patients of the study had clearances around 3 per day. If that is believed to
# hold within a factor of two for this patient, it is a prior. A prior is weighed against the data,
# hence needs to know their noise, which is freed as well.

# %%
known = fit.priors.OnLog(fit.priors.Normal(jnp.log(3.0), jnp.log(2.0)))
informed = fit.estimate(
    problem(
        fit.noise.LogNormal(sigma=0.2, base=10),
        clearance=fit.Free(0.01, 100, scale="log", prior=known),
        **{"noise.sigma": fit.Free(0.01, 1, scale="log")},
    )
)
print(informed)

# %% [markdown]
# Half a day after it was made a particle is gone, and an infected cell lives for about two days.
# The lifetime of the cells is known more than twice as well now, although the prior said nothing
# about it.

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
days = jnp.linspace(0, 7, 141)
plot.data(
    informed, fit.predict(informed, days), fit.predict(informed, days, observations=True), ax=left
)
left.set(xlabel="days", ylabel="million copies per mL", yscale="log")
for name, fall in falls.items():
    right.plot(trials, fall, label=name)
right.axhline(3.84, color="grey", lw=0.8, label="95% interval")
right.set(xlabel="clearance, held (1/day)", ylabel="fall of twice the log likelihood", xscale="log")
right.set_ylim(0, 12)
right.legend()
figure.savefig("hiv.png", dpi=150)

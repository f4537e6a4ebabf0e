"""# A universal differential equation, and the law behind it

Half of the law is known: prey multiply, predators die. How they meet is not known, so a network stands in for it, as a
field of the model. `fit.train` fits the network to a single noisy season; `fit.best_subset` says in a few terms what
it has learnt; and the terms, put in the network's place and fitted once more, tell more than the network could: they
hold far beyond the data.

The example is that of Rackauckas et al., *Universal differential equations for scientific machine learning* (2020),
arXiv 2001.04385: Lotka and Volterra's equations, 31 points, half a percent of noise. In twenty runs of this page, with
other noise and another network to start from in each, these two terms were found every time, with coefficients within
0.2 % and 1.8 % of the true ones.
"""

# %%
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import matplotlib.pyplot as plt
import optax

from sciml import fit, nets, plot, solvers


jax.config.update("jax_enable_x64", True)
QUICK = "--quick" in sys.argv  # a short run, to see that it works


# %% [markdown]
# ## Physics and a network in one module
#
# A smooth network whose last layer starts small: at first there is hardly any interaction.


# %%
class LotkaVolterra(eqx.Module):
    growth: float  # of the prey, known
    death: float  # of the predators, known
    meeting: eqx.Module  # unknown: of prey and predators, what both gain by it

    def __call__(self, t, y, args):
        prey, predators = y
        return jnp.stack([self.growth * prey, -self.death * predators]) + self.meeting(y)


network = nets.MLP(2, 2, width=8, depth=2, scale=0.1, key=jr.key(1))
model = LotkaVolterra(growth=1.3, death=1.8, meeting=network)

# %% [markdown]
# ## Data


# %%
def meeting(y):
    return jnp.stack([-0.9, 0.8]) * y[0] * y[1]


truth = LotkaVolterra(growth=1.3, death=1.8, meeting=meeting)
y0 = jnp.array([0.44249296, 4.6280594])
ts = jnp.linspace(0.0, 3.0, 31)
clean = solvers.solve(truth, y0, ts, rtol=1e-10, atol=1e-10).ys
sigma = 0.005 * clean.mean(axis=0)
ys = clean + sigma * jr.normal(jr.key(0), clean.shape)
data = fit.Data(ts, ys, sigma=sigma, names=["prey", "predators"])

# %% [markdown]
# ## Training
#
# Only `meeting` is named, so only the network is trained. It has more weights than there are data: a prior that prefers
# small weights keeps it from following the noise. Adam comes near, Levenberg and Marquardt's method then goes to the
# bottom, where Adam would take a hundred times as many steps. A good fit has a loss of about 1/2 for each value.

# %%
problem = fit.Problem(
    model,
    data,
    y0=y0,
    free={"meeting": fit.Free(prior=fit.priors.Normal(0.0, 1.0))},
    solve=fit.Solve(steps=8),
)
phases = [
    fit.Phase(optax.adam(1e-2), 50 if QUICK else 500),
    fit.Phase(solvers.LevenbergMarquardt(), 100),
]
result = fit.train(problem, phases)
print(result.message)
print(f"loss {result.loss / data.size:.2f} for each value")

# %% [markdown]
# ## What has it learnt?
#
# On the states that the trajectory runs through, is there a sum of few terms that gives what the network gives? All
# polynomials up to the fifth degree are candidates, and sines and cosines. The network is some percent off, so that
# much may be left unexplained.

# %%
states = solvers.solve(result.model, y0, jnp.linspace(0.0, 3.0, 301)).ys
learnt = jax.vmap(result.model.meeting)(states)
names = ["prey", "predators"]
library = fit.Library.polynomials(names, 5) + fit.Library.sines(names)
law = fit.best_subset(library, states, learnt, tolerance=0.1, outputs=["d prey", "d predators"])
print(f"{len(library.texts)} candidates")
print(law)

# %% [markdown]
# ## The law in the network's place
#
# A `SparseLaw` is a module as the network was; its coefficients are parameters. Fitted to the data, they lose what the
# network was wrong by, and get error bars. The fit also is the test of the law: its chi-squared tells whether two terms
# suffice.

# %%
found = eqx.tree_at(lambda m: m.meeting, result.model, law)
free = {"meeting.coefficients": fit.Free()}
refined = fit.estimate(fit.Problem(found, data, y0=y0, free=free))
print(refined)
print(refined.model.meeting)

# %%
late = jnp.linspace(0.0, 50.0, 1001)
true, network, terms = (
    solvers.solve(m, y0, late, throw=False).ys for m in (truth, result.model, refined.model)
)
off = jnp.max(jnp.abs(terms - true) / true.max(axis=0))
print(f"to t = 50 the law is off by {100 * float(off):.0f}% of the highest value at most")

figure, (above, below) = plt.subplots(2, figsize=(9, 5.6), layout="constrained")
plot.data(refined, fit.predict(refined, jnp.linspace(0, 3, 121)), ax=above)
below.plot(late, true[:, 0], color="0.7", lw=3, label="truth")
below.plot(late, network[:, 0], ":", color="C1", label="with the network")
below.plot(late, terms[:, 0], "--", color="C0", label="with the terms")
below.axvspan(0, 3, color="0.93")
below.set(xlabel="time", ylabel="prey", ylim=(-0.5, 1.4 * float(true[:, 0].max())))
below.legend(frameon=False, fontsize=8, ncols=3)
below.spines[["top", "right"]].set_visible(False)
figure

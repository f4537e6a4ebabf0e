"""# A universal differential equation

Half of the law is known: a population grows at a known rate. What holds it back is not known, so
a network stands in for it, as a field of the model next to the rate. `fit.train` fits the network
to the data, and the learnt term can be looked at: it should be -r y^2 / K, the logistic brake.
"""

# %%
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import matplotlib.pyplot as plt
import optax

from sciml import fit, nets, plot


jax.config.update("jax_enable_x64", True)
QUICK = "--quick" in sys.argv  # a short run, to see that it works


# %% [markdown]
# ## Physics and a network in one module


# %%
class Growth(eqx.Module):
    rate: float  # known, per day
    net: nets.MLP  # the unknown term

    def __call__(self, t, y, args):
        return self.rate * y + self.net(y)


# %% [markdown]
# ## Data
#
# Logistic growth with rate 2 and capacity 1, thirty-one points with one percent noise.

# %%
ts = jnp.linspace(0.0, 3.0, 31)
clean = 1 / (1 + 9 * jnp.exp(-2 * ts))
ys = clean + 0.01 * jr.normal(jr.key(0), ts.shape)
data = fit.Data(ts, ys, sigma=0.01, names=["population"])

# %% [markdown]
# ## Training
#
# Only `net` is named, so only the network is trained; `rate` stays 2. The horizon grows from a
# fifth of the time to all of it by default. Few data and few weights: four fixed steps between
# the points are accurate enough, and fast.

# %%
model = Growth(rate=2.0, net=nets.MLP(1, 1, width=8, depth=2, scale=0.1, key=jr.key(1)))
problem = fit.Problem(
    model,
    data,
    y0=jnp.array([0.1]),
    free={"net": fit.Free()},
    solve=fit.Solve(steps=4),
)
result = fit.train(problem, optax.adam(1e-2), steps=50 if QUICK else 3000)
print(result.message, f"loss per value {result.loss / data.size:.3f}")

# %% [markdown]
# ## What did it learn?

# %%
size = jnp.linspace(0.1, 1.0, 46)
learnt = jax.vmap(result.model.net)(size[:, None])[:, 0]
print(f"largest error of the learnt term: {float(jnp.max(jnp.abs(learnt + 2 * size**2))):.3f}")

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
plot.data(result, fit.predict(result, jnp.linspace(0, 3, 121)), ax=left)
right.plot(size, -2 * size**2, color="0.4", label="truth, $-2y^2$")
right.plot(size, learnt, "--", color="C0", label="learnt")
right.set(xlabel="population", ylabel="unknown term")
right.legend(frameon=False, fontsize=8)
right.spines[["top", "right"]].set_visible(False)
figure

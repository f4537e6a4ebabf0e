"""# Hares and lynxes

Ninety years of fur trade left one of the best known records in ecology: how many pelts of
snowshoe hares and of Canadian lynxes the Hudson's Bay Company bought each year. We fit the
Lotka-Volterra equations to the years 1900 to 1920, with both initial populations and a noise
level for each species unknown, and ask how sure we can be of each number.
"""

# %%
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from sciml import fit, plot


jax.config.update("jax_enable_x64", True)

# %% [markdown]
# ## The data
#
# Thousands of pelts by year, after MacLulich (1937) and Odum (1953), in the table that
# P. Howard (Texas A&M University) made of them and that B. Carpenter used for the case study
# *Predator-Prey Population Dynamics: the Lotka-Volterra model in Stan* (2018).

# %%
here = Path(__file__).resolve().parent
table = np.genfromtxt(here / "data" / "lynx_hare.csv", delimiter=",", names=True)
columns = {"t": table["year"] - 1900, "hare": table["hare"], "lynx": table["lynx"]}
data = fit.Data.from_frame(columns, time="t", values=["hare", "lynx"])
data

# %% [markdown]
# ## The model
#
# Hares multiply and are eaten; lynxes starve and eat. A plain Equinox module, one field a rate.


# %%
class LotkaVolterra(eqx.Module):
    birth: float  # of hares, per year
    predation: float  # of hares, per year and thousand lynxes
    death: float  # of lynxes, per year
    growth: float  # of lynxes, per year and thousand hares

    def __call__(self, t, y, args):
        hare, lynx = y
        return jnp.stack(
            [
                self.birth * hare - self.predation * hare * lynx,
                self.growth * hare * lynx - self.death * lynx,
            ]
        )


# %% [markdown]
# ## The problem
#
# Pelts scatter in proportion to their number, so the noise is log-normal. Its level, about 0.25
# or 25 percent, is estimated together with everything else, one for each species. All unknowns
# are positive and of unknown magnitude: that is what `scale="log"` is for.

# %%
positive = lambda low, high: fit.Free(low, high, scale="log")
problem = fit.Problem(
    LotkaVolterra(birth=0.5, predation=0.02, death=1.0, growth=0.02),
    data,
    y0=data.first,
    noise=fit.noise.LogNormal(sigma=jnp.array([0.5, 0.5])),
    free={
        "birth": positive(0.1, 2),
        "predation": positive(0.005, 0.2),
        "death": positive(0.1, 2),
        "growth": positive(0.005, 0.2),
        "y0[0]": positive(5, 100),
        "y0[1]": positive(1, 50),
        "noise.sigma": positive(0.05, 2),
    },
)

# %% [markdown]
# ## The fit
#
# From sixteen starts, spread over the bounds. Many of them end in local minima, where the model
# swings in another rhythm than the animals; the report says how many agree with the best.

# %%
result = fit.estimate(problem, starts=16, key=jax.random.key(0))
print(result)

# %% [markdown]
# The case study reports posterior means of 0.55, 0.028, 0.80 and 0.024 for the four rates and
# 0.25 for both noise levels. Each lies inside our 95% interval:

# %%
published = {"birth": 0.55, "predation": 0.028, "death": 0.80, "growth": 0.024, "noise.sigma": 0.25}
for name, (low, high) in fit.intervals(result, level=0.95).items():
    if name in published:
        inside = np.all((low < published[name]) & (published[name] < high))
        print(f"{name:12} {np.array2string(np.asarray(low), precision=3)} .. "
              f"{np.array2string(np.asarray(high), precision=3)}   published {published[name]}"
              f"   {'inside' if inside else 'OUTSIDE'}")  # fmt: skip

# %% [markdown]
# ## The picture
#
# Two bands: the dark one is how well the curve is known, the light one where a new count would
# fall 95 times in 100.

# %%
times = jnp.linspace(0, 20, 401)
curve = fit.predict(result, times)
counts = fit.predict(result, times, observations=True)
figure = plot.data(result, counts, curve)
for panel, unit in zip(figure.axes, ("thousand hares", "thousand lynxes"), strict=True):
    panel.set_ylabel(unit)
figure.axes[-1].set_xlabel("years since 1900")
figure.savefig("hare_lynx.png", dpi=150)

# %% [markdown]
# Did the search find the best point? The waterfall shows where every start ended.

# %%
plot.waterfall(result)

# %% [markdown]
# And is what remains noise? The residuals, in units of their estimated standard deviation:

# %%
plot.residuals(result)

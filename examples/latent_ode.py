"""# Series with gaps, and what comes after them

Ten thousand short series of decaying oscillations, each at twenty random times of its own. A latent ODE learns
to say from which state a series began, and how states go on: so it can continue a series for longer than any it
has seen, and draw new ones. Rubanova, Chen and Duvenaud, *Latent ODEs for irregularly-sampled time series*, 2019,
arXiv 1907.03907; the setting is that of the example in Diffrax's documentation.

The loss falls from 24.9 to 3.9 in 250 steps (there: from 19.9 to 3.97), in 15 s on a processor with two cores.
"""

# %%
import sys
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import matplotlib.pyplot as plt
import optax

from sciml import fit, nets


QUICK = "--quick" in sys.argv  # a short run, to see that it works

# %% [markdown]
# ## Data
#
# The law is linear, y' = A y, so the solutions are matrix exponentials. Each series begins somewhere else and ends
# between t = 2 and 3.

# %%
law = jnp.array([[-0.1, 1.3], [-1.0, -0.1]])


def follow(y0, ts):
    return jax.vmap(lambda t: jax.scipy.linalg.expm(t * law) @ y0)(ts)


def series(key, count):
    k1, k2, k3 = jr.split(key, 3)
    y0 = jr.normal(k1, (count, 2))
    end = 2 + jr.uniform(k2, (count, 1))
    ts = jnp.sort(end * jr.uniform(k3, (count, 20)), axis=1).at[:, 0].set(0.0)
    return ts, jax.jit(jax.vmap(follow))(y0, ts)


ts, ys = series(jr.key(0), 500 if QUICK else 10_000)

# %% [markdown]
# ## Model

# %%
model = nets.LatentODE(2, latent=16, hidden=16, width=16, depth=2, key=jr.key(1))

# %% [markdown]
# ## Training
#
# The loss comes in two terms: how far the reconstruction is from the series, and how far the
# encoder's belief is from the standard normal distribution, from which new series will be drawn.


# %%
def loss(model, batch, key):
    ts, ys = batch
    each = lambda ts, ys, key: model.loss(ts, ys, key=key)
    terms = jax.vmap(each)(ts, ys, jr.split(key, len(ts)))
    return jax.tree.map(jnp.mean, terms)


begin = time.perf_counter()
trained = fit.train(
    loss,
    optax.adam(1e-2),
    steps=5 if QUICK else 250,
    model=model,
    data=(ts, ys),
    batch=256,
    key=jr.key(2),
)
model, history = trained.model, trained.history["loss"]
seconds = time.perf_counter() - begin
last = sum(history[-10:]) / len(history[-10:])
print(f"loss {history[0]:.2f} at first, {last:.2f} in the last ten steps, {seconds:.0f} s")

# %% [markdown]
# ## Four times as far
#
# Training ended at t = 3 or before. Series that it has not seen are followed to t = 12.

# %%
seen, measured = series(jr.key(3), 100)
longer = jnp.linspace(0.0, 12.0, 121)
truth = jax.jit(jax.vmap(follow, in_axes=(0, None)))(measured[:, 0], longer)
forecast = eqx.filter_jit(jax.vmap(lambda ts, ys: model.decode(model.encode(ts, ys)[0], longer)))(
    seen, measured
)
error = jnp.sqrt(jnp.mean((forecast - truth) ** 2, axis=(0, 2)))
print(
    f"root mean square error up to t = 3: {jnp.mean(error[:31]):.2f}, beyond: {jnp.mean(error[31:]):.2f}"
)

# %%
drawn = jax.vmap(lambda key: model.sample(longer, key=key))(jr.split(jr.key(4), 5))
figure, (left, middle, right) = plt.subplots(1, 3, figsize=(11, 3.2), layout="constrained")
left.semilogy(history, color="C0", linewidth=1)
left.set(xlabel="step", ylabel="loss")
middle.plot(longer, truth[0, :, 0], color="0.4", label="truth")
middle.plot(longer, forecast[0, :, 0], "--", color="C0", label="forecast")
middle.plot(seen[0], measured[0, :, 0], ".", color="0.2", label="measured")
middle.set(xlabel="time", title="a series continued")
middle.legend(frameon=False, fontsize=8)
right.plot(longer, drawn[:, :, 0].T, linewidth=1)
right.set(xlabel="time", title="drawn")
for axes in (left, middle, right):
    axes.spines[["top", "right"]].set_visible(False)
figure

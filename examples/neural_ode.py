"""# A neural differential equation

Nobody tells the network what an oscillator is. It sees short, damped swings that start from many
places, learns the vector field behind them, and is then asked about a start it has never seen.
The loop is the one every Equinox user writes: `filter_jit`, `filter_value_and_grad`, Optax.
"""

# %%
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import matplotlib.pyplot as plt
import optax

from sciml import nets, solvers


QUICK = "--quick" in sys.argv  # a short run, to see that it works

# %% [markdown]
# ## The data
#
# Sixty-four trajectories of a damped nonlinear oscillator at forty times each. `solve_ensemble`
# solves them together.


# %%
def oscillator(t, y, args):
    x, v = y
    return jnp.stack([v, -0.2 * v - x - 0.5 * x**3])


ts = jnp.linspace(0.0, 6.0, 40)
y0s = jr.uniform(jr.key(0), (64, 2), minval=-1.5, maxval=1.5)
ys = solvers.solve_ensemble(oscillator, y0s, ts).ys
ys.shape

# %% [markdown]
# ## The model
#
# A small network is the vector field; `NeuralODE` solves it. Fixed steps (`steps=`) run as one
# `lax.scan` without decisions at run time, which makes the cheapest gradient: two steps of the
# classical Runge-Kutta method between neighbouring times are plenty here.

# %%
net = nets.MLP(2, 2, width=32, depth=2, key=jr.key(1))
model = nets.NeuralODE(net, method=solvers.RK4(), steps=2)


# %%
@eqx.filter_value_and_grad
def loss_and_gradient(model, ts, ys):
    predicted = jax.vmap(model, in_axes=(0, None))(ys[:, 0], ts)
    return jnp.mean((predicted - ys) ** 2)


# %% [markdown]
# ## The training
#
# First on the first quarter of each trajectory, then on all of it: on a long horizon a fresh
# network's early errors drown what later times could teach. Each phase compiles once.

# %%
history = []
for share, steps, rate in ((0.25, 300, 5e-3), (1.0, 500, 5e-3)):
    seen = int(len(ts) * share)
    steps = 10 if QUICK else steps
    optimiser = optax.adabelief(optax.cosine_decay_schedule(rate, steps, alpha=0.05))
    state = optimiser.init(eqx.filter(model, eqx.is_inexact_array))

    @eqx.filter_jit
    def step(model, state, ts, ys, optimiser=optimiser):
        loss, gradient = loss_and_gradient(model, ts, ys)
        updates, state = optimiser.update(gradient, state)
        return eqx.apply_updates(model, updates), state, loss

    for _ in range(steps):
        model, state, loss = step(model, state, ts[:seen], ys[:, :seen])
        history.append(float(loss))
    print(f"{steps} steps on {share:.0%} of the time: loss {history[-1]:.2e}")

# %% [markdown]
# ## The test
#
# A start outside the training set, followed three times as long as anything in training.

# %%
longer = jnp.linspace(0.0, 18.0, 361)
start = jnp.array([1.3, 0.4])
truth = solvers.solve(oscillator, start, longer).ys
learnt = solvers.solve(model.field, start, longer).ys
error = float(jnp.sqrt(jnp.mean((learnt - truth) ** 2)))
print(f"root mean square error to t = 18: {error:.4f}")

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
left.plot(longer, truth[:, 0], color="0.4", label="truth")
left.plot(longer, learnt[:, 0], "--", color="C0", label="learnt")
left.axvspan(0, 6, color="0.93", label="seen in training")
left.set(xlabel="time", ylabel="position")
left.legend(frameon=False, fontsize=8)
right.semilogy(history, color="C0", linewidth=1)
right.set(xlabel="step", ylabel="training loss")
for axes in (left, right):
    axes.spines[["top", "right"]].set_visible(False)
figure

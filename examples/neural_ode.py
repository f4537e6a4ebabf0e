"""# A neural differential equation

Nobody tells the network what an oscillator is. It sees swings that start from many places, learns the vector field
behind them, and is then asked about a start it has never seen. Data and settings are those of the example in
Diffrax's documentation. There the loss of the last batch of 32 is 2.0e-3; here that of all 256 trajectories is
3.5e-3, with batches near the end between 1e-3 and 1e-2. It is 2.0e-3, with each of three keys, after 1500 steps on all
of the time with a rate that falls from 5e-3.
"""

# %%
import sys
import time

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import matplotlib.pyplot as plt
import optax

from sciml import fit, nets, solvers


QUICK = "--quick" in sys.argv  # a short run, to see that it works

# %% [markdown]
# ## The data
#
# 256 trajectories of a nonlinear oscillator at a hundred times each. `solve_ensemble` solves them together.


# %%
def oscillator(t, y, args):
    return jnp.stack([y[1] / (1 + y[1]), -y[0] / (1 + y[0])])


ts = jnp.linspace(0.0, 10.0, 100)
y0s = jr.uniform(jr.key(0), (256, 2), minval=-0.6, maxval=1.0)
ys = solvers.solve_ensemble(oscillator, y0s, ts).ys
ys.shape

# %% [markdown]
# ## The model
#
# A small network is the vector field; its output is bounded by a learnt scale, so that an early guess can't blow up.
# `NeuralODE` solves it. Fixed steps (`steps=`) run as one `lax.scan` without decisions at run time, which makes the
# cheapest gradient: one step of the classical Runge-Kutta method between neighbouring times is plenty here.

# %%
net = nets.MLP(
    2, 2, width=64, depth=2, activation=jax.nn.softplus, bound=jnp.array(1.0), key=jr.key(1)
)
model = nets.NeuralODE(net, method=solvers.RK4(), steps=1)


def loss(model, ys):
    predicted = jax.vmap(model, in_axes=(0, None))(ys[:, 0], ts[: ys.shape[1]])
    return jnp.mean((predicted - ys) ** 2)


# %% [markdown]
# ## The training
#
# First on the first tenth of each trajectory, then on all of it: on a long horizon a fresh network's early errors drown
# what later times could teach. `fit.train` takes any loss of model and batch.

# %%
steps = 10 if QUICK else 500


def train(loss, model, shares):
    history = []
    for share in shares:
        begin = time.perf_counter()
        seen = ys[:, : int(len(ts) * share)]
        options = {"data": seen, "batch": 32, "key": jr.key(2), "steps": steps}
        trained = fit.train(loss, optax.adabelief(3e-3), model=model, **options)
        model = trained.model
        history.extend(trained.history["loss"])
        whole = float(eqx.filter_jit(loss)(model, seen))
        print(
            f"{steps} steps on {share:.0%} of the time: loss {whole:.1e}, {time.perf_counter() - begin:.0f} s"
        )
    return model, history


trained, history = train(loss, model, (0.1, 1.0))

# %% [markdown]
# ## The test
#
# A start outside the training set, followed three times as long as anything in training.

# %%
longer = jnp.linspace(0.0, 30.0, 601)
start = jnp.array([0.9, -0.5])
truth = solvers.solve(oscillator, start, longer).ys
learnt = solvers.solve(trained.field, start, longer).ys
error = float(jnp.sqrt(jnp.mean((learnt - truth) ** 2)))
print(f"root mean square error to t = 30: {error:.3f}")

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
left.plot(longer, truth[:, 0], color="0.4", label="truth")
left.plot(longer, learnt[:, 0], "--", color="C0", label="learnt")
left.axvspan(0, 10, color="0.93", label="seen in training")
left.set(xlabel="time", ylabel="position")
left.legend(frameon=False, fontsize=8)
right.semilogy(history, color="C0", linewidth=1)
right.set(xlabel="step", ylabel="training loss")
for axes in (left, right):
    axes.spines[["top", "right"]].set_visible(False)
figure

# %% [markdown]
# ## The same network in Diffrax
#
# The field of a `NeuralODE` is a vector field as Diffrax takes it, and `fit.train` doesn't ask what the loss computes.
# Here the steps are adaptive and chosen by Diffrax, which also differentiates through them. The first part of the
# training, once more:


# %%
def diffrax_loss(model, ys):
    times = ts[: ys.shape[1]]

    def solve(y0):
        return diffrax.diffeqsolve(
            diffrax.ODETerm(model.field),
            diffrax.Tsit5(),
            times[0],
            times[-1],
            times[1] - times[0],
            y0,
            stepsize_controller=diffrax.PIDController(rtol=1e-3, atol=1e-6),
            saveat=diffrax.SaveAt(ts=times),
            adjoint=diffrax.RecursiveCheckpointAdjoint(),
        ).ys

    return jnp.mean((jax.vmap(solve)(ys[:, 0]) - ys) ** 2)


by_diffrax, _ = train(diffrax_loss, model, (0.1,))

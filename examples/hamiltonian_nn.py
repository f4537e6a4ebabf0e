"""# Networks that conserve energy

A network that learns a vector field learns energy only as well as it learns all else, and loses it on
the way. A Hamiltonian network learns the energy, and has the vector field as its derivative: whatever it has
learnt, it conserves. Three systems of the paper that proposed it, with its settings: a mass on a spring, a
pendulum, and two bodies that attract each other. Greydanus, Dzamba and Yosinski, *Hamiltonian neural
networks*, 2019, arXiv 1906.01563.

Mean squared errors of energy over twenty units of time, for the Hamiltonian network here and in the paper: spring
1.5e-4 (3.8e-4), pendulum 3.4e-4 (2.5e-2), two bodies 2.5e-5 (3.9e-5). The paper's test trajectories are
others, so compare orders of magnitude. All six networks take 80 s on a processor with two cores.
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

from sciml import fit, nets, solvers


QUICK = "--quick" in sys.argv  # a short run, to see that it works

# %% [markdown]
# ## Three systems, by their energies


# %%
def spring(q, p, args=None):
    return jnp.sum(q**2 + p**2)


def pendulum(q, p, args=None):
    return jnp.sum(3 * (1 - jnp.cos(q)) + p**2)


def two_bodies(q, p, args=None):
    """Masses and constant of gravity one; q = (x₁, x₂, y₁, y₂)."""
    apart = jnp.sqrt((q[0] - q[1]) ** 2 + (q[2] - q[3]) ** 2)
    return jnp.sum(p**2) / 2 - 1 / apart


# %% [markdown]
# ## Data
#
# Trajectories, and the derivatives along them. For spring and pendulum the states are noisy, as if measured; the
# two bodies start on orbits that are nearly circles.


# %%
def starts_in_a_ring(key, count, least, most):
    """Starts of given distance from rest, for one position and one momentum."""
    k1, k2 = jr.split(key)
    radius = jr.uniform(k1, (count, 1), minval=least, maxval=most)
    angle = jr.uniform(k2, (count, 1), maxval=2 * jnp.pi)
    return radius * jnp.cos(angle), radius * jnp.sin(angle)


def starts_on_orbits(key, count):
    k1, k2 = jr.split(key)
    at = jr.uniform(k1, (count, 2), minval=0.5, maxval=1.5)
    radius = jnp.linalg.norm(at, axis=1, keepdims=True)
    velocity = at[:, ::-1] * jnp.array([[-1.0, 1.0]]) / (2 * radius**1.5)
    velocity = velocity * (1 + 0.05 * jr.normal(k2, (count, 1)))
    opposite = lambda x: jnp.stack([x[:, 0], -x[:, 0], x[:, 1], -x[:, 1]], axis=1)
    return opposite(at), opposite(velocity)


def trajectories(energy, starts, ts):
    """States of shape (start, time, ...)."""
    return solvers.solve_ensemble(
        solvers.hamiltonian(energy), starts, ts, method=solvers.Dopri8(), rtol=1e-5, atol=1e-7
    ).ys


def data(energy, starts, ts, noise, key):
    """States (noisy) and derivatives, all times of all trajectories in a row."""
    q, p = trajectories(energy, starts, ts)
    q, p = q.reshape(-1, q.shape[-1]), p.reshape(-1, p.shape[-1])
    field = solvers.hamiltonian(energy)
    dq, dp = jax.vmap(lambda q, p: field(None, (q, p), None))(q, p)
    k1, k2 = jr.split(key)
    return q + noise * jr.normal(k1, q.shape), p + noise * jr.normal(k2, p.shape), dq, dp


# %% [markdown]
# ## Training
#
# The loss is the error of the derivatives. No equation is solved while training.


# %%
def train(model, data, steps, batch, decay, key):
    trained = fit.train(
        lambda model, rows: model.loss(*rows),
        optax.adamw(1e-3, weight_decay=decay),
        steps=10 if QUICK else steps,
        model=model,
        data=data,
        batch=batch,
        key=key,
    )
    return trained.model, float(trained.history["loss"][-1])


# %% [markdown]
# The other network has the same size, and nothing that makes it conserve anything. It has the same two
# methods, a field and a loss.


# %%
class Plain(eqx.Module):
    net: nets.MLP

    def __call__(self, t, y, args):
        return tuple(jnp.split(self.net(jnp.concatenate(y)), 2))

    def loss(self, q, p, dq, dp):
        got_q, got_p = jax.vmap(lambda q, p: self(None, (q, p), None))(q, p)
        return (jnp.mean((got_q - dq) ** 2) + jnp.mean((got_p - dp) ** 2)) / 2


def make(kind, size, key):
    width = 20 if QUICK else 200
    if kind == "Hamiltonian":
        return nets.HamiltonianNN(size, width=width, depth=2, key=key)
    orthogonal = jax.nn.initializers.orthogonal()
    return Plain(nets.MLP(2 * size, 2 * size, width=width, depth=2, init=orthogonal, key=key))


# %% [markdown]
# ## How well energy is kept
#
# Each network is started where it has not been trained and followed for twenty units of time. Of the states that it
# goes through we take the true energy, and its mean squared distance from that of the true trajectory.


# %%
def energies(energy, field, starts, ts):
    q, p = solvers.solve_ensemble(field, starts, ts, method=solvers.Tsit5(), throw=False).ys
    return jax.vmap(jax.vmap(energy))(q, p)


short, long = jnp.linspace(0, 3, 30), jnp.linspace(0, 20, 50)
ring, orbits = starts_in_a_ring, starts_on_orbits
keys = jr.split(jr.key(0), 6)
many = 20 if QUICK else 800
systems = {
    # energy, starts for training and for the test, times, noise, steps, batch, weight decay
    "spring": (spring, ring(keys[0], 25, 0.1, 1.0), ring(keys[1], 25, 0.1, 1.0), short, 0.1, 2000, None, 1e-4),
    "pendulum": (
        pendulum, ring(keys[2], 25, 0.5, 1.5), ring(keys[3], 25, 0.5, 1.5),
        jnp.linspace(0, 3, 45), 0.1, 2000, None, 1e-4,
    ),
    "two bodies": (two_bodies, orbits(keys[4], many), orbits(keys[5], 50), long, 0.0, 10_000, 200, 0.0),
}  # fmt: skip
published = {
    "spring": (1.71e-1, 3.84e-4),
    "pendulum": (4.15e-2, 2.49e-2),
    "two bodies": (6.33e-2, 3.88e-5),
}

print(f"{'mean squared error of energy':<30}{'here':>10}{'paper':>10}")
found = {}
for name, (energy, starts, tests, ts, noise, steps, batch, decay) in systems.items():
    rows = data(energy, starts, ts, noise, jr.key(1))
    truth = jax.vmap(energy)(*tests)[:, None]
    for kind, paper in zip(("plain", "Hamiltonian"), published[name], strict=True):
        begin = time.perf_counter()
        model, loss = train(
            make(kind, rows[0].shape[1], jr.key(2)), rows, steps, batch, decay, jr.key(3)
        )
        kept = energies(energy, model, tests, long)
        found[name, kind] = model, kept
        error = float(jnp.mean((kept - truth) ** 2))
        seconds = time.perf_counter() - begin
        print(
            f"{name + ', ' + kind:<30}{error:>10.2e}{paper:>10.2e}   loss {loss:.1e}, {seconds:.0f} s"
        )

# %% [markdown]
# ## The energy of one trajectory

# %%
figure, panels = plt.subplots(1, 3, figsize=(10, 3), layout="constrained")
for axes, name in zip(panels, systems, strict=True):
    for kind, color in (("plain", "C1"), ("Hamiltonian", "C0")):
        kept = found[name, kind][1]
        axes.plot(long, kept[0] - kept[0, 0], color=color, label=kind)
    axes.axhline(0.0, color="0.4", linewidth=0.8)
    axes.set(xlabel="time", title=name)
    axes.spines[["top", "right"]].set_visible(False)
panels[0].set_ylabel("change of energy")
panels[0].legend(frameon=False, fontsize=8)
figure

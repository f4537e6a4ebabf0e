"""# A driven oscillator with a sampled input

A mass on a spring is shaken by a force that was recorded as samples. The samples go in as data: an
`Input`. The solver steps exactly onto them, so that no peak between two steps is missed, and the
solution has derivatives by every sample.
"""

# %%
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import matplotlib.pyplot as plt

from sciml import fit, plot, solvers


jax.config.update("jax_enable_x64", True)


# %% [markdown]
# ## The recorded force
#
# A hammer blow and a swell, sampled ten times a second; one sample was lost.

# %%
times = jnp.linspace(0.0, 20.0, 201)
samples = 0.3 * jnp.sin(0.7 * times) + 5.0 * (jnp.abs(times - 4.0) < 0.05)
samples = samples.at[120].set(jnp.nan)
force = solvers.Input(times, samples, kind="linear")


# %%
class Oscillator(eqx.Module):
    stiffness: float
    damping: float

    def __call__(self, t, y, force):
        position, speed = y
        return jnp.stack([speed, force(t) - self.stiffness * position - self.damping * speed])


truth = Oscillator(stiffness=2.0, damping=0.3)
grid = jnp.linspace(0.0, 20.0, 401)
sol = solvers.solve(truth, jnp.zeros(2), grid, force)
print(sol)

# %%
figure, (top, bottom) = plt.subplots(2, sharex=True)
top.plot(grid, jax.vmap(force)(grid))
top.set(ylabel="force")
bottom.plot(grid, sol.ys[:, 0])
bottom.set(xlabel="time (s)", ylabel="position")
plt.show()

# %% [markdown]
# ## How a sample acts on the end

# %%
held = lambda samples: solvers.Input(times, samples)
end = lambda samples: solvers.solve(truth, jnp.zeros(2), grid[::400], held(samples)).ys[-1, 0]
influence = jax.grad(end)(force.values)
figure, axes = plt.subplots()
axes.plot(times, influence)
axes.set(xlabel="time of the sample (s)", ylabel="effect on the last position")
plt.show()

# %% [markdown]
# ## Stiffness and damping from measured positions

# %%
ts = jnp.linspace(0.5, 20.0, 40)
measured = solvers.solve(truth, jnp.zeros(2), jnp.concatenate([jnp.zeros(1), ts]), force).ys[1:, 0]
data = fit.Data(ts, measured + 0.02 * jr.normal(jr.key(0), ts.shape), sigma=0.02)
problem = fit.Problem(
    Oscillator(stiffness=1.5, damping=0.5),
    data,
    y0=jnp.zeros(2),
    t0=0.0,
    args=force,
    observe=lambda t, y, force: y[0],
    free={"stiffness": fit.Free(0.1, 10.0), "damping": fit.Free(0.0, 5.0)},
)
result = fit.estimate(problem)
print(result)
plot.data(result, fit.predict(result, grid))
plt.show()

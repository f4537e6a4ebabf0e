"""# Events: a bouncing ball

A ball falls, and at each bounce loses a fifth of its speed. The bounce is an event: a function of the
state that crosses zero, and what happens then. Everything has derivatives, the times of the bounces as
well, so that gravity and restitution can be found from when the ball was heard to bounce.
"""

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt

from sciml import solvers


jax.config.update("jax_enable_x64", True)


# %% [markdown]
# ## The flight and the bounce


# %%
def flight(t, y, p):
    return {"height": y["speed"], "speed": -p["gravity"]}


def reverse(t, y, p):
    return {"height": 0.0 * y["height"], "speed": -p["restitution"] * y["speed"]}


bounce = solvers.Event(lambda t, y, p: y["height"], direction=-1, apply=reverse)
start = {"height": 10.0, "speed": 0.0}
p = {"gravity": 9.81, "restitution": 0.8}
sol = solvers.solve(
    flight, start, jnp.array([0.0, 8.0]), p, events=bounce, max_events=10, dense=True
)
print(f"{sol.events.count} bounces, at", sol.events.t[: int(sol.events.count)].round(4))

# %%
t = jnp.linspace(0.0, 8.0, 500)
figure, axes = plt.subplots()
axes.plot(t, sol.at(t)["height"])
axes.plot(sol.steps().ts, sol.steps().ys["height"], ".", label="steps of the solver")
axes.set(xlabel="time (s)", ylabel="height (m)")
axes.legend()
plt.show()

# %% [markdown]
# ## How the end depends on the ball
#
# The derivative of the height after three seconds, through one bounce. Had the time of the bounce been treated as a
# constant, it would be wrong.


# %%
def after_three_seconds(p):
    ts = jnp.array([0.0, 3.0])
    return solvers.solve(flight, start, ts, p, events=bounce, max_events=2).ys["height"][-1]


print(jax.grad(after_three_seconds)(p))

# %% [markdown]
# ## Gravity from a sound recording
#
# Only the first four bounces were heard, each to about a millisecond. Times alone can't tell a high fall under strong
# gravity from a low one under weak gravity, so the height is known; gravity and what is left of the speed are not.

# %%
heard = jnp.array([1.4283, 3.7128, 5.5397, 7.0020])


def misfit(unknown, _):
    ball = {"gravity": unknown[0], "restitution": unknown[1]}
    ts = jnp.array([0.0, 8.0])
    sol = solvers.solve(flight, start, ts, ball, events=bounce, max_events=8, throw=False)
    return (sol.events.t[:4] - heard) / 1e-3


found = solvers.least_squares(misfit, jnp.array([9.0, 0.7]))
print("gravity {:.3f} m/s2, restitution {:.4f}".format(*found.value))

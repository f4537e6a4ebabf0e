"""# Dosing: theophylline by mouth

A patient swallows theophylline, an asthma drug, and its concentration in the blood is measured for a
day. The drug is absorbed from the gut and eliminated from the blood. The dose is data, not code: a
table of times and amounts. From the fit follows what a regimen of repeated doses does.

Data: subject 1 of twelve, Upton, in Boeckmann, Sheiner and Beal, *NONMEM users guide* V (1994).
"""

# %%
import pathlib

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

from sciml import fit, plot, solvers


jax.config.update("jax_enable_x64", True)
DATA = pathlib.Path(__file__).parent / "data" / "theophylline.csv"


# %% [markdown]
# ## The model
#
# One compartment with first-order absorption; amounts and concentrations per kilogram of body weight.


# %%
class OneCompartment(eqx.Module):
    absorption: float  # ka, 1/h
    elimination: float  # ke, 1/h
    clearance: float  # L/h/kg

    def __call__(self, t, y, args):
        absorbed = self.absorption * y["gut"]
        volume = self.clearance / self.elimination
        return {"gut": -absorbed, "conc": absorbed / volume - self.elimination * y["conc"]}


# %% [markdown]
# ## The data and the dose
#
# 4.02 mg/kg at time zero, into the gut. A measurement at the time of a dose counts as taken before it.

# %%
table = np.genfromtxt(DATA, delimiter=",", names=True)
subject = table[table["Subject"] == 1]
data = fit.Data(subject["Time"], subject["conc"], names=["conc"])
dose = solvers.Doses([0.0], subject["Dose"][0], into=lambda y: y["gut"])

# %%
positive = fit.Free(1e-4, 10.0, scale="log")
problem = fit.Problem(
    OneCompartment(absorption=1.0, elimination=0.1, clearance=0.05),
    data,
    y0={"gut": 0.0, "conc": 0.0},
    doses=dose,
    free={"absorption": positive, "elimination": positive, "clearance": positive},
)
result = fit.estimate(problem)
print(result)

# %%
hours = np.linspace(0.0, 25.0, 200)
plot.data(result, fit.predict(result, hours))
plt.show()

# %% [markdown]
# ## A dose every eight hours
#
# The same table, longer. `steady_cycle` finds the state that comes back after each interval, the trough of a
# patient who has taken the drug for long; a solve that starts there shows the next day.

# %%
model, amount = result.model, subject["Dose"][0]
gut = lambda y: y["gut"]
regimen = solvers.Doses.every(8.0, 6, amount, into=gut)
grid = jnp.linspace(0.0, 48.0, 481)
empty = {"gut": 0.0, "conc": 0.0}
first_days = solvers.solve(model, empty, grid, doses=regimen)

one = solvers.Doses([0.0], amount, into=gut)
trough = solvers.steady_cycle(model, empty, 8.0, doses=one)
later = solvers.solve(model, trough.value, grid, doses=regimen)
print(f"trough {trough.value['conc']:.2f} mg/L, peak {later.ys['conc'].max():.2f} mg/L")

# %%
figure, axes = plt.subplots()
axes.plot(grid, first_days.ys["conc"], label="from the first dose")
axes.plot(grid, later.ys["conc"], label="at steady state")
axes.axhspan(10, 20, alpha=0.15, label="therapeutic range")
axes.set(xlabel="time (h)", ylabel="concentration (mg/L)")
axes.legend()
plt.show()

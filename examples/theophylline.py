"""# Dosing: theophylline by mouth

A patient swallows theophylline, an asthma drug, and its concentration in the blood is measured for a
day. The drug is absorbed from the gut and eliminated from the blood. The dose is data, not code: a
table of times and amounts. From the fit follows what a regimen of repeated doses does.

Twelve subjects took part. We begin with the first one, and end with all of them: do they have the same rates?

Data: Upton, in Boeckmann, Sheiner and Beal, *NONMEM users guide* V (1994).
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
quick = fit.Solve(method=solvers.Tsit5())  # not stiff: compiles faster than the default
problem = fit.Problem(
    OneCompartment(absorption=1.0, elimination=0.1, clearance=0.05),
    data,
    y0={"gut": 0.0, "conc": 0.0},
    doses=dose,
    free={"absorption": positive, "elimination": positive, "clearance": positive},
    solve=quick,
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

# %% [markdown]
# ## All twelve
#
# Each subject is an experiment, with data and a dose of its own. Shared parameters are the default;
# `per="experiment"` gives each its own. In one extreme all rates are shared, in the other none,
# which is twelve fits in one.

# %%
columns = {"subject": table["Subject"].astype(int), "time": table["Time"], "conc": table["conc"]}
experiments = {
    f"subject {i}": fit.Experiment(
        d, doses=solvers.Doses([0.0], table["Dose"][table["Subject"] == i][0], into=gut)
    )
    for i, d in fit.Data.from_frame(
        columns, time="time", values="conc", experiment="subject"
    ).items()
}


def everyone(own):
    """The names in `own` differ between subjects."""
    rates = ("absorption", "elimination", "clearance")
    per = {name: "experiment" if name in own else None for name in rates}
    return fit.Problem(
        OneCompartment(absorption=1.0, elimination=0.1, clearance=0.05),
        experiments,
        y0=empty,
        free={name: fit.Free(1e-4, 100.0, scale="log", per=per[name]) for name in rates},
        solve=quick,
    )


pooled = fit.estimate(everyone(own=()))
print(pooled)

# %% [markdown]
# A residual sigma of 1.5 mg/L, twice that of the first subject alone: people differ. In what?

# %%
variants = {
    "nothing": pooled,
    "absorption, clearance": fit.estimate(everyone(own=("absorption", "clearance"))),
    "everything": fit.estimate(everyone(own=("absorption", "elimination", "clearance"))),
}
print(f"{'own':22} parameters     RSS   sigma     AIC     BIC")
for name, r in variants.items():
    s = r.statistics
    print(f"{name:22} {s['parameters']:10} {s['chi2']:7.2f}  {s['residual sigma']:6.3f}"
          f"  {s['aic']:6.1f}  {s['bic']:6.1f}")  # fmt: skip

# %% [markdown]
# With everything of their own the curves describe each subject, but AIC and BIC prefer a common
# rate of elimination: twelve of them fit no better than chance would have it. (How rates are
# distributed in a population is a question for mixed effects, in which such differences are random.
# Here each subject stands for himself.)

# %%
print(variants["absorption, clearance"])

# %%
figure, axes = plt.subplots(3, 4, figsize=(11, 7), sharex=True, sharey=True, layout="constrained")
for ax, name in zip(axes.flat, experiments, strict=True):
    seen = pooled.problem.data_of(name)
    ax.plot(seen.ts, seen.ys[:, 0], "ko", ms=3)
    for r, style in ((pooled, "--"), (variants["absorption, clearance"], "-")):
        curve = fit.predict(r, hours, experiment=name)
        ax.plot(curve.ts, curve.mean[:, 0], style, lw=1.2)
    ax.set_title(name, fontsize="small")
figure.supxlabel("time (h)")
figure.supylabel("concentration (mg/L); dashed: the same rates for all")
figure.savefig("theophylline.png", dpi=150)
plt.show()

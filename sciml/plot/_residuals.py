from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Array

from ..fit import noise, Problem, residuals as weighted_residuals, Result
from ..fit._levels import laws_of, levelled
from ._axes import caption, check_result, colour_of, INK, legend, panels, POINTS, QUIET


def residuals(result: Result, *, ax: Any = None) -> Any:
    """Draws the weighted residuals over time: what the model leaves unexplained.

    They are measured − predicted (the other sign than `fit.residuals`) on the scale of the noise,
    in units of its sigma, be it given or estimated. Noise alone looks like noise: no pattern, and
    19 of 20 points between the dashed lines at ±2. A wave or a trend is what the model misses.
    Where no sigma is known (no degrees of freedom are left), they keep the unit of the data and
    there are no dashed lines. Missing values are not drawn.

    ```python
    import equinox as eqx
    import jax, jax.numpy as jnp
    from sciml import fit, plot


    class Decay(eqx.Module):
        k: jax.Array | float

        def __call__(self, t, y, args):
            return -self.k * y


    ts = jnp.arange(5.0)
    ys = 3 * jnp.exp(-0.4 * ts) + jnp.array([0.02, -0.01, 0.01, 0.0, -0.02])
    problem = fit.Problem(Decay(0.2), fit.Data(ts, ys), y0=3.0, free={"k": fit.Free(0, 10)})
    figure = plot.residuals(fit.estimate(problem))
    ```

    **Arguments:**

    - `result`: of `fit.estimate` or `fit.train`.
    - `ax`: matplotlib Axes, to draw all observables into them, told apart by colour. Otherwise
      each has its own panel, with common axes.

    **Returns:**

    The matplotlib Figure, or `ax` if it was given.

    **Raises:**

    `TypeError` for what is not a result, `RuntimeError` if the fitted model can't be solved.
    """
    check_result(result, "residuals")
    problem = result.problem
    names = problem.observables
    values, scaled = _measured_minus_predicted(result)
    home, axes = panels(names, ax, sharey=True)
    tables = [problem.data_of(name) for name in problem.experiments]
    ts = np.concatenate([np.asarray(table.ts) for table in tables])
    seen = np.concatenate([np.asarray(table.seen) for table in tables])
    for panel in axes if ax is None else axes[:1]:
        panel.axhline(0, color=QUIET, lw=0.8, zorder=1)
        for level in (-2, 2) if scaled else ():
            panel.axhline(level, color=QUIET, lw=0.8, ls=(0, (4, 3)), zorder=1)
    shared = ax is not None and len(names) > 1
    for i, (name, panel) in enumerate(zip(names, axes, strict=True)):
        colour, shown = colour_of(i, ax), seen[:, i]
        t, r = ts[shown], values[shown, i]
        panel.vlines(t, 0, r, color=colour, lw=0.9, alpha=0.45, zorder=2)
        panel.plot(t, r, color=colour, zorder=3, label=name if shared else None, **POINTS)
        if ax is None:
            panel.set_title(name, loc="left", fontsize="medium", color=INK)
    label = _label(problem, scaled)
    if ax is None and len(names) > 1:
        home.supylabel(label, fontsize="medium")
    else:
        caption(axes[0], "", label)
    caption(axes[-1], "time", "")
    if shared:
        legend(home, axes[:1])
    return home


def _measured_minus_predicted(result: Result) -> tuple[np.ndarray, bool]:
    """Residuals of shape (time, observable), and whether they are in units of sigma."""
    problem = result.problem
    flat = -np.asarray(_at(problem, problem.initial()), np.float64)
    values = _unpadded(problem, flat.reshape(-1, len(problem.observables)))
    if not np.all(np.isfinite(values)):
        raise RuntimeError(
            "The solve of the fitted model failed, so there are no residuals. "
            "`fit.predict(result, ts)` says why."
        )
    if levelled(problem):
        return values, True
    sigma = result.statistics.get("residual sigma")
    if sigma is None or not sigma > 0:
        return values, False
    return values / sigma, True


def _unpadded(problem: Problem, rows: np.ndarray) -> np.ndarray:
    """The rows of all experiments in their order; those of a block come padded, one after the other."""
    out, start = {}, 0
    for block in problem.blocks:
        for index in np.asarray(block.index):
            out[int(index)] = rows[start : start + problem.rows[index]]
            start += block.data.ts.shape[1]
    return np.concatenate([out[i] for i in range(len(out))])


# The problem is an argument, not a captured constant: a second figure compiles nothing.
@eqx.filter_jit
def _at(problem: Problem, x: Array) -> Array:
    return weighted_residuals(problem)(x)


def _label(problem: Problem, scaled: bool) -> str:
    laws = laws_of(problem.noise, problem.observables)
    if all(isinstance(law, noise.LogNormal) for law, _ in laws):
        return "log(measured / predicted)" + (" / σ" if scaled else "")
    return "(measured − predicted) / σ" if scaled else "measured − predicted"

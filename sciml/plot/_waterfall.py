import math
from typing import Any

import numpy as np

from ..fit import Result, Starts
from ._axes import caption, check_axes, check_result, COLOURS, legend, pyplot, QUIET, restrain


def waterfall(result: Result, *, ax: Any = None) -> Any:
    """Draws the loss that each start reached, the best first.

    A plateau at the bottom says that many starts agree, so the best is likely the global optimum.
    A staircase means local minima, or too few starts. Starts agree if their loss exceeds the best
    by less than a thousandth of it, as in the report. The axis is linear where that shows all
    steps, else logarithmic with an offset that its label tells. Failed starts are counted.

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
    result = fit.estimate(problem, starts=5, key=jax.random.key(0))
    figure = plot.waterfall(result)
    ```

    **Arguments:**

    - `result`: of `fit.estimate` with several starts.
    - `ax`: matplotlib Axes to draw into.

    **Returns:**

    The matplotlib Figure, or `ax` if it was given.

    **Raises:**

    `TypeError` for what is not a result, `ValueError` if every start failed.

    **Reference:** A. Raue et al., *Lessons learned from quantitative dynamical modeling in systems
    biology*, PLoS ONE 8, e74335, 2013, doi:10.1371/journal.pone.0074335.
    """
    check_result(result, "waterfall")
    starts = result.starts
    if not np.isfinite(starts.loss).any():
        raise ValueError(
            f"All {len(starts.loss)} starts failed, so there is nothing to draw: see "
            "`result.starts.reason`."
        )
    plt = pyplot()
    from matplotlib.ticker import MaxNLocator

    if ax is None:
        home, ax = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
        restrain(ax)
    else:
        check_axes(ax)
        home = ax
    above, agree, converged = _sorted(starts)
    offset = _offset(above, agree)
    heights, ranks = above + offset, np.arange(1, above.size + 1)
    ax.plot(ranks, heights, color=QUIET, lw=0.8, zorder=1)
    groups = (
        ("agree with the best", agree & converged, COLOURS[0], COLOURS[0]),
        ("converged elsewhere", ~agree & converged, COLOURS[1], COLOURS[1]),
        ("did not converge", ~converged, "white", QUIET),
    )
    for label, of, face, edge in groups:
        if of.any():
            ax.plot(
                ranks[of], heights[of], "o", ms=5, mfc=face, mec=edge, label=f"{of.sum()} {label}"
            )
    legend(home, [ax])
    failed = len(starts.loss) - above.size
    note = f" ({failed} of {len(starts.loss)} failed, not shown)" if failed else ""
    height = "loss − best" + (f" + {offset:g}" if offset else "")
    caption(ax, "start, sorted by loss" + note, height)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    if offset:
        ax.set_yscale("log")
    elif agree.all():  # do not blow up the differences in the last digits
        room = 1e-3 * max(abs(float(starts.loss[0])), 1e-12)
        ax.set_ylim(-0.1 * room, 1.5 * room)
    return home


def _sorted(starts: Starts) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Losses above the best in rising order, which of them agree with it, which converged."""
    loss = np.asarray(starts.loss, np.float64)
    order = np.argsort(loss, kind="stable")[: np.isfinite(loss).sum()]
    best = loss[order[0]]
    return loss[order] - best, starts.agree[order], np.asarray(starts.ok)[order]


def _offset(above: np.ndarray, agree: np.ndarray) -> float:
    """What to add for a logarithmic axis: a power of ten below the first step; 0 for a linear one.

    A step of less than a thirtieth of the axis would not be seen.
    """
    steps = above[~agree]
    if not steps.size or steps.min() > steps.max() / 30:
        return 0.0
    return 10.0 ** math.floor(math.log10(steps.min()))

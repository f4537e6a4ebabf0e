from typing import Any

import numpy as np

from ..fit import predict, Prediction, Problem, Result
from ._axes import caption, check_result, colour_of, INK, legend, MEASURED, panels, POINTS, QUIET


_GRID = 300  # points of a curve that nobody gave


def data(
    result: Result, *predictions: Prediction, experiment: str | None = None, ax: Any = None
) -> Any:
    """Draws the measurements with the fitted curve and its band.

    Each observable has its own panel over a common time axis. Missing values are not drawn. Error
    bars are drawn if the data give sigma; for log-normal noise they are those of the logarithm.

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
    measured = fit.Data(ts, ys, sigma=0.02, names=["conc"])
    problem = fit.Problem(Decay(0.2), measured, y0=3.0, free={"k": fit.Free(0, 10)})
    result = fit.estimate(problem)

    grid = jnp.linspace(0, 8, 100)  # further than the data
    figure = plot.data(
        result, fit.predict(result, grid), fit.predict(result, grid, observations=True)
    )
    figure.savefig("decay.png")
    ```

    **Arguments:**

    - `result`: of `fit.estimate` or `fit.train`.
    - `predictions`: of [`fit.predict`][sciml.fit.predict] for this result. The line is that of the
      first, the bands are those of all: dark for the curve, light for new measurements
      (`observations=True`). Without any, the curve is drawn over the span of the data.
    - `experiment`: which one to draw, if there are several; by default all, each in panels of its own.
    - `ax`: matplotlib Axes, to draw all observables into them, told apart by colour.

    **Returns:**

    The matplotlib Figure, or `ax` if it was given.

    **Raises:**

    `TypeError` for what is not a result or a prediction, `ValueError` for a prediction of other
    observables.
    """
    check_result(result, "data")
    problem = result.problem
    names = problem.observables
    for prediction in predictions:
        _check_prediction(prediction, names)
    if experiment is None and not predictions and len(problem.experiments) > 1:
        if ax is not None:
            raise ValueError("Into one `ax` goes one experiment: name it, `experiment=…`.")
        shown = problem.experiments
    else:
        own = predictions[0].experiment if predictions and experiment is None else experiment
        shown = (problem.experiments[problem.number(own)],)
    titles = [f"{e} {n}".strip() for e in shown for n in names] if len(shown) > 1 else list(names)
    home, axes = panels(titles, ax)
    alone = ax is None or len(names) == 1
    drawn: list[Prediction] = []
    for k, name in enumerate(shown):
        curves = predictions or (_over_the_data(result, name),)
        drawn += curves
        part = slice(k * len(names), (k + 1) * len(names))
        _draw(problem, name, curves, axes[part], titles[part], ax, alone)
    caption(axes[-1], "time", "")
    legend(home, axes, () if alone else _grey_patches(drawn))
    return home


def _draw(problem: Problem, experiment: str, predictions, axes, titles, ax, alone: bool) -> None:
    """One experiment: each observable into its panel."""
    bands = sorted(predictions, key=lambda p: p.observations)
    first = predictions[0]
    order = np.argsort(first.ts, kind="stable")
    for i, (name, panel) in enumerate(zip(titles, axes, strict=True)):
        colour = colour_of(i, ax)
        label = "fitted" if alone else name
        panel.plot(first.ts[order], first.mean[order, i], color=colour, lw=1.6, label=label)
        for prediction in bands:
            _band(panel, prediction, i, colour, _band_label(prediction) if alone else None)
        ink, text = (INK, MEASURED) if alone else (colour, None)
        _points(panel, problem, experiment, i, ink, text)
        caption(panel, "", name if alone else "")


def _check_prediction(prediction: object, names: tuple[str, ...]) -> None:
    if not isinstance(prediction, Prediction):
        raise TypeError(
            f"`plot.data` draws predictions beside the result, but got a "
            f"{type(prediction).__name__}. Pass `fit.predict(result, ts)`; axes go by name, `ax=…`."
        )
    if prediction.names != names:
        raise ValueError(
            f"The prediction is of {', '.join(prediction.names)}, but the data are of "
            f"{', '.join(names)}. Pass a prediction made from this result."
        )


def _over_the_data(result: Result, experiment: str) -> Prediction:
    ts = np.asarray(result.problem.data_of(experiment).ts, np.float64)
    # All at one time: there is no span but the way from t0.
    first = ts[0] if ts[-1] > ts[0] else float(result.problem.member(experiment).t0)
    return predict(result, np.linspace(first, ts[-1], _GRID), experiment=experiment)


def _band_label(prediction: Prediction) -> str:
    of = "new measurements" if prediction.observations else "the curve"
    return f"{100 * prediction.level:g}% band of {of}"


def _opacity(prediction: Prediction) -> float:
    return 0.14 if prediction.observations else 0.32


def _band(panel, prediction: Prediction, i: int, colour: str, label: str | None) -> None:
    order = np.argsort(prediction.ts, kind="stable")
    low, high = prediction.low[order, i], prediction.high[order, i]
    if not np.any(np.isfinite(low) & np.isfinite(high)):
        return  # not determined, or none asked for
    panel.fill_between(
        prediction.ts[order], low, high,
        color=colour, alpha=_opacity(prediction), linewidth=0, label=label,
        zorder=0.9 if prediction.observations else 1,  # the wider one behind
    )  # fmt: skip


def _points(panel, problem: Problem, experiment, i: int, colour: str, label: str | None) -> None:
    table = problem.data_of(experiment)
    seen = np.asarray(table.seen[:, i])
    if not seen.any():
        return
    ts, ys = np.asarray(table.ts)[seen], table.ys[seen, i]
    style = POINTS | {"color": colour, "zorder": 3, "label": label}
    if table.sigma is None:
        panel.plot(ts, ys, **style)
        return
    law = (
        problem.noise[problem.observables[i]] if isinstance(problem.noise, dict) else problem.noise
    )
    location, sigma = law.location(ys), table.sigma[seen, i]
    low, high = (np.asarray(law.natural(location + s * sigma)) for s in (-1, 1))
    ys = np.asarray(ys)
    panel.errorbar(ts, ys, yerr=(ys - low, high - ys), elinewidth=0.9, **style)


def _grey_patches(predictions) -> list:
    from matplotlib.patches import Patch

    drawn = [p for p in predictions if np.any(np.isfinite(p.low))]
    style: dict[str, Any] = {"facecolor": QUIET, "linewidth": 0}
    return [Patch(alpha=1.5 * _opacity(p), label=_band_label(p), **style) for p in drawn]

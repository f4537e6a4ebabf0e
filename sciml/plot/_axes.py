"""What the figures share: where they are drawn, and how they look.

matplotlib is imported inside of functions, so that `import sciml` neither needs nor loads it. The
style is set artist by artist and only on axes made here: nobody's `rcParams` change, and axes that
a user brings keep their own spines, ticks and titles.
"""

import math
from collections.abc import Sequence
from typing import Any

from ..fit import Result


# Okabe & Ito's palette for all kinds of colour vision (https://jfly.uni-koeln.de/color/), the
# colours that stand out on white first; its yellow is left out, being too pale for a line.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
INK = "#333333"  # measurements
QUIET = "#8C8C8C"  # lines that only guide the eye
MEASURED = "measured"
POINTS: dict[str, Any] = {
    "linestyle": "none",
    "marker": "o",
    "markersize": 4.5,
    "markeredgewidth": 0.6,
    "markeredgecolor": "white",  # keeps neighbours apart
}


def pyplot() -> Any:
    try:
        import matplotlib.pyplot as plt
    except ImportError as e:
        raise ImportError(
            "Figures need the extra `plot`: pip install 'sciml-jax[plot]' (or matplotlib alone)."
        ) from e
    return plt


def check_result(result: object, function: str) -> None:
    if not isinstance(result, Result):
        raise TypeError(
            f"`plot.{function}` draws a `fit.Result`, but got a {type(result).__name__}. Pass what "
            "`fit.estimate(problem)` or `fit.train(problem, …)` returns."
        )
    pyplot()  # missing? Say so before anything is computed.


def panels(names: Sequence[str], ax: Any, *, sharey: bool = False) -> tuple[Any, list[Any]]:
    """Axes for each of the names: small multiples in a new figure, or `ax` for all of them.

    Returns what the user gets back (the figure or `ax`) beside the axes.
    """
    plt = pyplot()
    if ax is not None:
        check_axes(ax)
        return ax, [ax] * len(names)
    n = len(names)
    columns = 1 if n <= 4 else 2 if n <= 10 else 3
    rows = math.ceil(n / columns)
    figure, grid = plt.subplots(
        rows, columns, sharex=True, sharey=sharey, squeeze=False, layout="constrained",
        figsize=(6.4 if columns == 1 else 3.4 * columns, 3.8 if n == 1 else 1.0 + 1.9 * rows),
    )  # fmt: skip
    for panel in grid.flat[n:]:
        panel.remove()
    axes = list(grid.flat[:n])
    for i, panel in enumerate(axes):
        restrain(panel)
        if i + columns >= n:  # nothing below it
            panel.tick_params(labelbottom=True)
            panel.set_xlabel("time")
    figure.align_ylabels(axes)
    return figure, axes


def check_axes(ax: object) -> None:
    from matplotlib.axes import Axes

    if not isinstance(ax, Axes):
        raise TypeError(
            f"`ax` must be one matplotlib Axes, but is a {type(ax).__name__}. Take it from "
            "`figure, ax = plt.subplots()`, or leave it out to have a figure made."
        )


def restrain(ax: Any) -> None:
    """The frame of axes made here: two quiet spines, no box, ticks at round numbers."""
    from matplotlib.ticker import MaxNLocator

    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(QUIET)
    ax.tick_params(color=QUIET)
    ax.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10]))
    ax.margins(x=0.02)


def caption(ax: Any, xlabel: str, ylabel: str) -> None:
    """Labels the axes, unless the user has; no time where the axes below share it."""
    if not ax.get_xlabel() and ax.xaxis.get_tick_params().get("labelbottom", True):
        ax.set_xlabel(xlabel)
    if not ax.get_ylabel():
        ax.set_ylabel(ylabel)


def colour_of(i: int, ax: Any) -> str:
    """By observable where they share axes; one colour for all where each has its own."""
    return COLOURS[0] if ax is None else COLOURS[i % len(COLOURS)]


def legend(home: Any, axes: Sequence[Any], extra: Sequence[Any] = ()) -> None:
    """One legend for all panels, above them, where it covers nothing."""
    entries: dict[str, Any] = {}
    for panel in axes:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    entries |= {patch.get_label(): patch for patch in extra}
    # matplotlib lists error bars last; the data come first.
    labels = sorted(entries, key=lambda label: label != MEASURED)
    if labels:
        above: dict[str, Any] = {"loc": "outside upper right"}
        if home is axes[0]:  # the user's
            above = {"loc": "lower right", "bbox_to_anchor": (1, 1), "borderaxespad": 0.1}
        handles = [entries[label] for label in labels]
        home.legend(handles, labels, frameon=False, fontsize="small", ncols=4, **above)

"""The report of a fit, as text and HTML. It leads with trouble, if there is any."""

import html
from typing import TYPE_CHECKING

import numpy as np


if TYPE_CHECKING:
    from ._result import Result

_MANY = 40  # parameters beyond this are summed up
_CORRELATED = 0.9
_FEW = 5  # names and directions shown in one warning
_WIDE = 2.4  # standard error of a logarithm above which an interval spans four decades
_POOR = 3.0  # reduced chi2 above which the fit is called poor


def table(result: "Result", level: float = 0.95) -> dict[str, list]:
    from ._intervals import flat_intervals

    low, high = flat_intervals(result, level)
    values = _flatten(result.values)
    errors = np.sqrt(np.diag(result.covariance))
    bounds = [b for slot, b in _slots(result) for _ in range(slot.size)]
    return {
        "parameter": list(result.flat_names),
        "estimate": [float(v) for v in values],
        "standard error": [float(e) for e in errors],
        "low": [float(v) for v in low],
        "high": [float(v) for v in high],
        "lower bound": [b[0] for b in bounds],
        "upper bound": [b[1] for b in bounds],
        "initial": [float(v) for v in _flatten(result.initial)],
    }


def warnings(result: "Result") -> list[str]:
    """What the reader has to know before the numbers, the worst first."""
    names = result.flat_names
    out = []
    if not result.ok:
        out.append(f"NOT CONVERGED: {result.message}")
    if "gap between windows" in result.statistics:
        out.append(
            "The result is that of multiple shooting (gaps between windows at most "
            f"{result.statistics['gap between windows']:.1e}): the whole trajectory at once, and so predictions over "
            "all of it, do not stay near, as in chaotic systems."
        )
    for i in np.flatnonzero(result.active)[:_MANY]:
        side = "lower" if result.active[i] < 0 else "upper"
        out.append(
            f"{names[i]} sits at its {side} bound: no error bar; the others are conditional on it."
        )
    if result.uncertainty is not None:
        out += _unidentified(result.uncertainty.groups, names)
        out += _hardly_determined(result, names)
    s = result.statistics
    if s["dof"] <= 0 and result.verb == "estimate":
        out.append(
            f"{s['data']} values for {s['parameters']} parameters: no degrees of freedom are left "
            "to judge the fit."
        )
    if s["sigma"] == "given" and s.get("reduced chi2", 0) > _POOR:
        out.append(
            f"reduced chi2 is {s['reduced chi2']:.3g}: the model does not describe the data within "
            "the given sigma, so the error bars are too small."
        )
    if result.verb == "estimate" and result.problem.fixed_since:
        out.append(
            f"{', '.join(result.problem.fixed_since)} had been free and is held fixed: the error "
            "bars hold only for these values, and may be far too small if they can trade off."
        )
    failed = int(np.sum(~np.isfinite(result.starts.loss)))
    if failed:
        reason = next(
            r
            for r, v in zip(result.starts.reason, result.starts.loss, strict=True)
            if not np.isfinite(v)
        )
        out.append(f"{failed} of {len(result.starts.loss)} starts failed: {reason}")
    if s["precision"] == "float32":
        out.append("float32: enable x64 for tighter tolerances and reliable error bars.")
    return out


def _unidentified(groups, names) -> list[str]:
    out = []
    for group in groups[:_FEW]:
        tied = [names[i] for i in group]
        if len(tied) == 1:
            out.append(f"{tied[0]} is not identifiable: the data do not depend on it.")
            continue
        shown = tied if len(tied) <= _FEW else [*tied[:_FEW], f"{len(tied) - _FEW} more"]
        listed = ", ".join(shown[:-1]) + " and " + shown[-1]
        out.append(
            f"{listed} are not identifiable: the data determine only a combination of them "
            "(correlation 1.00)."
        )
    if len(groups) > _FEW:
        out.append(f"{len(groups)} directions of the parameters are not identifiable in all.")
    return out


def _hardly_determined(result: "Result", names) -> list[str]:
    """Log-scaled parameters whose interval spans orders of magnitude."""
    u = result.uncertainty
    assert u is not None
    wide = result.problem.log_scaled() & u.known & (np.sqrt(np.diag(u.covariance)) > _WIDE)
    shown = [names[i] for i in np.flatnonzero(wide)]
    if not shown:
        return []
    listed = ", ".join(shown[:_FEW]) + (", …" if len(shown) > _FEW else "")
    return [
        f"{listed}: the data hardly determine the magnitude; the interval spans more than four decades."
    ]


def headline(result: "Result") -> str:
    model = type(result.problem.model).__name__
    starts = result.starts
    if result.verb == "train":
        ended = f"   {end}" if (end := result.statistics.get("ended")) else ""
        return (
            f"Training of {model}   {len(result.history)} steps, best loss {result.loss:.6g}{ended}"
        )
    how = f"converged in {len(result.history) - 1} steps" if result.ok else "did not converge"
    if len(starts.loss) > 1:
        how += f", {int(starts.agree.sum())} of {len(starts.loss)} starts agree"
    return f"Fit of {model}   {how}"


def statistics_lines(result: "Result") -> list[str]:
    s = result.statistics
    first = f"experiments {s['experiments']}   " if s.get("experiments", 1) > 1 else ""
    first += f"data {s['data']}   free {s['parameters']}   loss {result.loss:.6g}"
    if "chi2" in s:
        # Without a given sigma it is no chi-square: a sum of squares, or n by construction.
        name = "RSS" if s["sigma"] == "from residuals" else "chi2"
        first += f"   {name} {s['chi2']:.6g}"
        if s["sigma"] == "given":
            first += f"   reduced {s['reduced chi2']:.4g}"
    if "aic" in s:
        first += f"   AIC {s['aic']:.5g}   BIC {s['bic']:.5g}"
    second = f"noise {s['noise']}, sigma {s['sigma']}"
    if s.get("residual sigma") is not None:
        second += f" = {s['residual sigma']:.4g}"
    if "validation loss" in s:
        first += f"   validation loss {s['validation loss']:.6g}"
    return [first, f"{second}   {solver_line(s)}"]


def solver_line(statistics: dict) -> str:
    """How the model is solved; on fixed steps no tolerance counts."""
    rtol = "" if "fixed steps" in statistics["solver"] else f"rtol {statistics['rtol']:.0e}, "
    return f"solver {statistics['solver']}, {rtol}{statistics['precision']}"


def in_short(values) -> str:
    """An array as its range."""
    flat = np.ravel(values)
    same = np.all(flat == flat[0])
    return f"{flat[0]:.4g}" if same else f"{np.min(flat):.4g} … {np.max(flat):.4g}"


def text_report(result: "Result", level: float = 0.95) -> str:
    lines = [headline(result)]
    lines += [f"  ! {w}" for w in warnings(result)]
    lines += ["  " + line for line in statistics_lines(result)]
    rows = _rows(result, level)
    widths = [max(len(r[i]) for r in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = [row[0].ljust(widths[0])] + [
            c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True)
        ]
        lines.append("  " + "  ".join(cells).rstrip())
    lines += ["  " + line for line in _footer(result)]
    return "\n".join(lines)


def html_report(result: "Result", level: float = 0.95) -> str:
    rows = _rows(result, level)
    cell = lambda tag, c: f"<{tag}>{html.escape(c)}</{tag}>"
    head = "".join(cell("th", c) for c in rows[0])
    body = "".join("<tr>" + "".join(cell("td", c) for c in r) + "</tr>" for r in rows[1:])
    trouble = "".join(f"<li>{html.escape(w)}</li>" for w in warnings(result))
    trouble = f"<ul>{trouble}</ul>" if trouble else ""
    notes = "<br>".join(html.escape(x) for x in statistics_lines(result) + _footer(result))
    return (
        f"<div><b>{html.escape(headline(result))}</b>{trouble}"
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><small>{notes}</small></div>"
    )


def _slots(result):
    return list(zip(result.problem.slots, np.asarray(result.problem.bounds).tolist(), strict=True))


def _flatten(by_name: dict) -> np.ndarray:
    return np.concatenate([np.zeros(0)] + [np.ravel(v) for v in by_name.values()])


def _rows(result, level) -> list[list[str]]:
    if result.verb == "train":
        return _rows_by_array(result)
    percent = f"{100 * level:g}%"
    head = ["parameter", "estimate", "std.err", f"{percent} interval", "bounds", "initial"]
    t = table(result, level)
    rows = [head]
    for i, name in enumerate(t["parameter"][:_MANY]):
        error, low, high = t["standard error"][i], t["low"][i], t["high"][i]
        has = np.isfinite(error)
        rows.append(
            [
                name,
                _near(t["estimate"][i], error),
                f"{error:.2g}" if has else "-",
                f"[{_near(low, error)}, {_near(high, error)}]" if has else "-",
                _bounds(t["lower bound"][i], t["upper bound"][i]),
                f"{t['initial'][i]:.5g}",
            ]
        )
    return rows


def _rows_by_array(result) -> list[list[str]]:
    """What was trained has no error bars, and often many numbers: one row for each array."""
    rows = [["parameter", "estimate", "bounds", "initial"]]
    pairs = zip(_slots(result), result.values.values(), result.initial.values(), strict=True)
    for (slot, bounds), value, initial in list(pairs)[:_MANY]:
        name = f"{slot.name} {slot.shape}" if slot.shape else slot.name
        rows.append([name, in_short(value), _bounds(*bounds), in_short(initial)])
    return rows


def _near(value: float, error: float) -> str:
    """A number with three digits more than its error justifies at the leading place."""
    if not (np.isfinite(error) and error > 0 and value != 0 and np.isfinite(value)):
        return f"{value:.6g}"
    digits = int(np.ceil(np.log10(abs(value) / error))) + 3
    return f"{value:.{min(max(digits, 4), 12)}g}"


def _bounds(low: float, high: float) -> str:
    if np.isinf(low) and np.isinf(high):
        return "free"
    left = "" if np.isinf(low) else f"{low:g}"
    right = "" if np.isinf(high) else f"{high:g}"
    return f"{left} .. {right}".strip()


def _footer(result) -> list[str]:
    out = []
    count = len(result.names) if result.verb == "train" else len(result.flat_names)
    hidden = count - _MANY
    if hidden > 0:
        out.append(f"and {hidden} more parameters: see `result.values`")
    fixed = _fixed(result)
    if fixed:
        out.append("fixed: " + fixed)
    ties = [f"{t.slot.name} to {', '.join(s.name for s in t.sources)}" for t in result.problem.ties]
    if ties:
        out.append("tied: " + "; ".join(ties))
    correlations = _correlations(result)
    if correlations:
        out.append("correlations: " + correlations)
    if result.uncertainty is not None and result.problem.slots:
        out.append(
            "intervals: from the curvature at the optimum (log-scaled parameters: on the logarithm)"
        )
    return out


def _fixed(result) -> str:
    """The numbers of the model that are not free."""
    import jax

    from ._names import leaf_names

    problem = result.problem
    parts = problem.parts()
    shown = []
    for i, (name, leaf) in enumerate(zip(leaf_names(parts), jax.tree.leaves(parts), strict=True)):
        free = {slot.element for slot in problem.slots if slot.leaf == i}
        free |= {tie.slot.element for tie in problem.ties if tie.slot.leaf == i}
        own = any(v.slot.leaf == i and v.slot.element is None for v in problem.own)
        if name is None or None in free or own:
            continue
        values = np.asarray(leaf)
        if values.ndim == 0:
            shown.append(f"{name} = {values:g}")
        elif values.size <= 4 or free:
            rest = [index for index in np.ndindex(values.shape) if index not in free]
            shown += [f"{name}[{', '.join(map(str, index))}] = {values[index]:g}" for index in rest]
        else:
            shown.append(f"{name} {values.shape}")
    return ", ".join(shown[:12]) + (", …" if len(shown) > 12 else "")


def _correlations(result) -> str:
    covariance = result.covariance
    names = result.flat_names
    if len(names) > _MANY:
        return ""
    error = np.sqrt(np.diag(covariance))
    out = []
    for i in range(len(names)):
        for j in range(i):
            r = covariance[i, j] / (error[i] * error[j])
            if np.isfinite(r) and abs(r) > _CORRELATED:
                out.append((abs(r), f"{names[j]}, {names[i]} {r:.3f}"))
    return "; ".join(text for _, text in sorted(out, reverse=True)[:8])

"""What will be fitted, before it is."""

import numpy as np

from ._conclude import describe_problem
from ._problem import check_problem, Problem
from ._report import in_short, solver_line


def describe(problem: Problem) -> str:
    """Says in words what a problem asks for: its data, its law of noise, what is free and what is tied.

    ```python
    import jax.numpy as jnp
    from sciml import fit

    ts = jnp.arange(5.0)
    problem = fit.Problem(
        lambda t, y, args: -y, fit.Data(ts, jnp.exp(-ts)), y0=2.0, free={"y0": fit.Free(0, 10)}
    )
    print(fit.describe(problem))
    ```
    """
    check_problem(problem)
    s = describe_problem(problem, np.zeros(problem.lower.shape[0], int))
    lines = [repr(problem)]
    for name, rows in zip(problem.experiments, problem.rows, strict=True):
        if len(problem.experiments) == 1 or len(problem.experiments) > 20:
            break
        data = problem.data_of(name)
        seen = [
            n for n, some in zip(data.names, np.asarray(data.seen).any(axis=0), strict=True) if some
        ]
        span = f"{float(data.ts[0]):g} .. {float(data.ts[-1]):g}"
        lines.append(f"  experiment {name}: {', '.join(seen)} at {rows} times {span}")
    lines.append(f"  noise {s['noise']}, sigma {s['sigma']}   {solver_line(s)}")
    rows = [["free", "start", "bounds", "scale", "prior"]]
    values = problem.naturals(np.asarray(problem.initial()))
    table = zip(problem.slots, values, np.asarray(problem.bounds), problem.priors, strict=True)
    for slot, value, (low, high), prior in table:
        start = in_short(value)
        name = f"{slot.name} {slot.shape}" if slot.shape else slot.name
        if slot.labels:
            name = f"{slot.name} per {', '.join(slot.labels[:5])}" + (
                ", …" if len(slot.labels) > 5 else ""
            )
        bounds = "none" if np.isinf(low) and np.isinf(high) else f"{low:g} .. {high:g}"
        rows.append(
            [name, start, bounds, slot.scale, "" if prior is None else type(prior).__name__]
        )
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    lines += [
        "  " + "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    lines += [
        f"  {t.slot.name} tied to {', '.join(x.name for x in t.sources)}" for t in problem.ties
    ]
    return "\n".join(lines)

"""Experiments as members of a problem: what each has of its own, and what it takes over."""

from typing import Any

import jax
import jax.numpy as jnp

from .._dtypes import as_state
from ..solvers._stops import as_stops
from ._blocks import Member, stack, widen
from ._data import Data
from ._experiment import as_arrays, Equilibrium, Experiment, start_time, with_fields
from ._hints import did_you_mean
from ._names import locate
from ._parameters import Varied, varied


def make_member(i: int, name: str, e: Experiment, defaults: dict, side: str, observables) -> Member:
    where = f" of experiment {name!r}" if name else ""
    own = {k: defaults[k] if getattr(e, k) is None else getattr(e, k) for k in defaults}
    t0 = start_time(own["t0"], e.data, where)
    span = jnp.stack([t0, e.data.ts[-1].astype(t0.dtype)])
    stops = as_stops((), own["doses"], None, side, 1, span)
    args = as_arrays(own["args"])
    rest = e.y0 if isinstance(e.y0, Equilibrium) else None
    if rest is not None:
        at_rest = args if rest.args is None else as_arrays(rest.args)
        time = lambda t: jnp.asarray(t, t0.dtype)
        rest = Equilibrium(at_rest, {}, time(rest.t), time(rest.max_time))
    return Member(jnp.asarray(i), widen(e.data, observables), t0, args, stops, rest)


def on_other_data(problem: Any, data: Data) -> Any:
    """The same problem with other data of its only experiment."""
    if len(problem.experiments) > 1 or set(data.names) != set(problem.observables):
        raise ValueError(
            f"These data ({', '.join(data.names)}) must have the columns of the problem's only experiment, but it has "
            f"{len(problem.experiments)} with {', '.join(problem.observables)}. State a `fit.Problem` with them."
        )
    member = problem.member()
    if member.stops.doses or member.stops.events:
        raise ValueError(
            "With doses, state a `fit.Problem` with these data and doses of their own."
        )
    if float(data.ts[0]) < float(member.t0):
        raise ValueError(
            f"These data begin at {float(data.ts[0]):g}, before the problem, at {float(member.t0):g}."
        )
    data = widen(data, problem.observables)
    span = jnp.stack([member.t0, data.ts[-1].astype(member.t0.dtype)])
    stops = as_stops((), None, None, "before", 1, span)
    member = with_fields(member, data=data, stops=stops)
    return with_fields(problem, blocks=stack([member]), rows=(data.ts.shape[0],))


def trim(data: Data, rows: int) -> Data:
    if data.ts.shape[0] == rows:
        return data
    cut = lambda x: None if x is None else x[:rows]
    whitener = data.whitener
    if whitener is not None and whitener.shape[0] == 1:
        size = rows * data.ys.shape[1]
        whitener = whitener[:, :size, :size]
    else:
        whitener = cut(whitener)
    fields = {k: cut(getattr(data, k)) for k in ("ts", "ys", "seen", "sigma", "censored")}
    return with_fields(data, **fields, whitener=whitener)


def initial_states(problem: Any, experiments: dict[str, Experiment]) -> tuple[Varied, ...]:
    """The initial states that experiments have of their own."""
    given = {
        name: None if e.y0 is None or isinstance(e.y0, Equilibrium) else e.y0
        for name, e in experiments.items()
    }
    if all(y0 is None for y0 in given.values()):
        return ()
    if callable(problem.y0):
        raise ValueError(
            "`y0` is a function of the model and `args`: tell experiments apart by their `args`, not "
            "by a `y0` of their own."
        )
    columns = []
    for name, y0 in given.items():
        state = None if y0 is None else as_state(y0)[0]
        shapes = lambda tree: jax.tree.map(jnp.shape, tree)
        if state is not None and shapes(state) != shapes(problem.y0):
            raise ValueError(
                f"`y0` of experiment {name!r} must have the structure and shapes of the problem's, "
                f"{shapes(problem.y0)}, but has {shapes(state)}."
            )
        columns.append(None if state is None else jax.tree.leaves(state))
    slots = locate(problem.parts(), "y0")
    return tuple(
        varied(slot, [None if c is None else c[k] for c in columns], list(experiments))
        for k, slot in enumerate(slots)
    )


def find_experiment(names: tuple[str, ...], experiment: Any) -> int:
    if experiment is None or str(experiment) not in names:
        what = "Which" if experiment is None else f"There is no experiment {experiment!r}. Which"
        hint = "" if experiment is None else did_you_mean(str(experiment), list(names))
        shown = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
        raise ValueError(f"{what} `experiment`?{hint} There are: {shown}.")
    return names.index(str(experiment))

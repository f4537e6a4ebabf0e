"""A model, its data, and what is unknown: all that the verbs of `fit` need."""

import inspect
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PyTree

from .._compat import is_traced
from .._dtypes import as_state, tolerances
from ..solvers._checks import check_field
from ..solvers._doses import Doses
from ._blocks import Member, member_of, stack
from ._data import Data
from ._experiment import as_arrays, as_experiments, Equilibrium, with_fields
from ._freeing import free_fields, freed
from ._levels import check_noise
from ._members import find_experiment, initial_states, make_member, trim
from ._names import find, refuse_overlaps, refuse_shadowing, resolve, Slot
from ._parameters import known_values, put, put_own, state_of, take, Tie, Varied
from ._solving import Solve, traced_tolerances


class Problem(eqx.Module):
    """States what is to be fitted to what.

    ```python
    import equinox as eqx
    import jax, jax.numpy as jnp
    from sciml import fit


    class Decay(eqx.Module):
        k: jax.Array | float

        def __call__(self, t, y, args):
            return -self.k * y


    ts = jnp.arange(5.0)
    problem = fit.Problem(
        Decay(0.2),
        fit.Data(ts, 3 * jnp.exp(-0.4 * ts)),
        y0=2.0,
        free={"k": fit.Free(1e-3, 10, scale="log"), "y0": fit.Free(0, 10)},
    )
    ```

    **Arguments:**

    - `model`: the vector field, any callable `model(t, y, args)`; parameters of an Equinox module
      are found by name. Python floats in it become arrays.
    - `data`: a [`Data`][sciml.fit.Data], or several, in a dict by the names of the experiments or a list; an
      [`Experiment`][sciml.fit.Experiment] in place of a `Data` has its own initial state, `args`, doses or values.
    - `y0`: initial state at `t0`, or a function `y0(model, args)` that returns it.
    - `free`: what is unknown: a dict of names to [`Free`][sciml.fit.Free] or [`Tied`][sciml.fit.Tied], or a list
      of pairs `(where, Free)` with `where` as in `equinox.tree_at`. The rest stays fixed. Names: `"k"`,
      `"rates.k1"`, `"net"` for a whole subtree, `"y0"`, `"y0[1]"`, `"noise.sigma"`.
    - `t0`: start of the solve; by default the first time of the data. Doses must not lie before it.
    - `args`: passed on to the model; inputs u(t) known at some times go there, as
      [`Input`][sciml.solvers.Input], or into the model.
    - `doses`: a table, [`Doses`][sciml.solvers.Doses], or a tuple of them. `side` says whether a measurement at
      the time of a dose was made `"before"` it or `"after"`.
    - `observe`: `observe(t, y, args)` -> the observables, shape `(observable,)`; by default the
      numbers of the state in their order, or by name if the state is a dict that has the names of
      the data's columns. A module's arrays can be freed, as `"observe.scale"`.
    - `noise`: a law from `fit.noise`, or a dict of laws by the names of the data's columns; by
      default `Normal` with the sigma of the data, or with one common level estimated from the residuals.
    - `solve`: a [`Solve`][sciml.fit.Solve].

    **Raises:**

    `ValueError`, `TypeError` for anything that does not fit together.
    """

    model: Any
    y0: PyTree[Any]
    noise: Any
    observe: Any
    solve: Solve
    blocks: tuple[Member, ...]
    own: tuple[Varied, ...]
    known: tuple[Varied, ...]
    known_at_rest: tuple[Varied, ...]
    ties: tuple[Tie, ...]
    lower: Float[Array, " parameter"]
    upper: Float[Array, " parameter"]
    priors: tuple[Any, ...]
    bounds: Float[Array, "name 2"]
    experiments: tuple[str, ...] = eqx.field(static=True)
    rows: tuple[int, ...] = eqx.field(static=True)
    observables: tuple[str, ...] = eqx.field(static=True)
    fixed_since: tuple[str, ...] = eqx.field(static=True)
    slots: tuple[Slot, ...] = eqx.field(static=True)

    def __init__(
        self,
        model: Any,
        data: Any,
        *,
        y0: PyTree[Any],
        free: Any,
        t0: ArrayLike | None = None,
        args: PyTree[Any] = None,
        doses: Doses | tuple[Doses, ...] | None = None,
        side: str = "before",
        observe: Callable | None = None,
        noise: Any = None,
        solve: Solve | None = None,
    ):
        if not callable(model):
            raise TypeError(
                f"`model` must be callable as `model(t, y, args)`, but is a {type(model).__name__}."
            )
        if isinstance(model, type):
            raise TypeError(f"`model` must be an instance: pass `{model.__name__}(…)`.")
        if callable(getattr(model, "field", None)):
            raise TypeError(
                f"A `{type(model).__name__}` returns trajectories, but `model` must be the vector field. Write a "
                "module whose `__call__(self, t, y, args)` returns `self.net(y)`, and free its `net`."
            )
        if isinstance(model, eqx.Module) and not _takes(model, 3):
            raise TypeError(
                f"`model` is called as `model(t, y, args)`, which `{type(model).__name__}` does not take. Write a "
                "module that has it as a field, `net`, and whose `__call__(self, t, y, args)` returns `self.net(y)`."
            )
        if observe is not None and not callable(observe):
            raise TypeError(
                f"`observe` must be a function `observe(t, y, args)`, but got {observe!r}."
            )
        if solve is not None and not isinstance(solve, Solve):
            raise TypeError(f"`solve` must be a `fit.Solve(…)`, but got {solve!r}.")
        experiments = as_experiments(data)
        self.experiments = tuple(experiments)
        self.observables = tuple(
            dict.fromkeys(n for e in experiments.values() for n in e.data.names)
        )
        self.rows = tuple(e.data.ts.shape[0] for e in experiments.values())
        noise = check_noise(noise, experiments, self.observables)
        solve = Solve() if solve is None else solve
        self.solve = traced_tolerances(solve)
        self.y0 = as_arrays(y0) if callable(y0) else as_state(y0)[0]
        self.model, self.noise, self.observe = as_arrays((model, noise, observe))
        defaults = {"args": args, "doses": doses, "t0": t0}
        members = [
            make_member(i, name, e, defaults, side, self.observables)
            for i, (name, e) in enumerate(experiments.items())
        ]
        self.blocks = stack(members)
        self.own = initial_states(self, experiments)
        values = [e.values for e in experiments.values()]
        at_rest = [
            e.y0.values if isinstance(e.y0, Equilibrium) else {} for e in experiments.values()
        ]
        self.known = known_values(self.parts(), values, list(experiments))
        self.known_at_rest = known_values(self.parts(), at_rest, list(experiments))
        self.ties, self.slots, self.fixed_since = (), (), ()
        self._check_shapes()
        tolerances(solve.rtol, solve.atol, self.dtype, default=(1e-8, 1e-10))
        if isinstance(free, dict):
            refuse_shadowing(self.model)
        for name, value in free_fields(self, resolve(self.parts(), free)).items():
            setattr(self, name, value)

    def parts(self) -> tuple:
        """The four places in which parameters live."""
        return self.model, self.y0, self.noise, self.observe

    @property
    def dtype(self) -> np.dtype:
        """In which the state and time are measured."""
        y0 = self.y0
        if callable(y0):
            args = member_of(self.blocks[0], 0).args
            y0 = jax.eval_shape(lambda: state_of(self.parts(), args))
        return np.dtype(jnp.finfo(jax.tree.leaves(y0)[0].dtype).dtype)

    @property
    def data(self) -> Any:
        """The [`Data`][sciml.fit.Data], or a dict of them if there are several experiments."""
        data = {name: self.data_of(name) for name in self.experiments}
        return data[""] if self.experiments == ("",) else data

    @property
    def size(self) -> int:
        """How many values were measured."""
        return int(sum(np.sum(np.asarray(block.data.seen)) for block in self.blocks))

    def member(self, experiment: str | None = None) -> Member:
        """One experiment, by name; it may be left out if there is only one."""
        index = self.number(experiment)
        for block in self.blocks:
            for i in np.flatnonzero(np.asarray(block.index) == index):
                return member_of(block, int(i))
        raise IndexError(index)

    def number(self, experiment: str | None = None) -> int:
        if experiment is None and len(self.experiments) == 1:
            return 0
        return find_experiment(self.experiments, experiment)

    def data_of(self, experiment: str | None = None) -> Data:
        """The data of one experiment, without padding."""
        return trim(self.member(experiment).data, self.rows[self.number(experiment)])

    def model_of(self, experiment: str | None = None) -> Any:
        """The model with the values of one experiment."""
        i = self.number(experiment)
        return self.parts_in(i, self.local(self.initial(), i))[0]

    def _check_shapes(self):
        """What the model makes of the state must match the data."""
        parts = self.parts()
        for block in self.blocks:
            member = member_of(block, 0)
            args = member.args
            y0 = jax.eval_shape(lambda args: state_of(parts, args), args)
            see = lambda t, y, args: self.observed(parts, t, y, args)
            observed = jax.eval_shape(see, member.t0, y0, args)
            wanted = len(self.observables)
            if observed.shape != (wanted,):
                what = "`observe` returns" if self.observe is not None else "the state `y0` gives"
                columns = "1 column" if wanted == 1 else f"{wanted} columns"
                raise ValueError(
                    f"The data have {columns} ({', '.join(self.observables)}), but {what} "
                    f"shape {observed.shape}. Pass `observe=lambda t, y, args: …` with one number for "
                    "each column."
                )
            check_field(self.model, member.t0, y0, args)
            if member.rest is not None:
                check_field(self.model, member.t0, y0, member.rest.args)

    def observed(self, parts: tuple, t, y, args=None) -> Array:
        """The observables of one state."""
        observe = parts[3]
        if observe is None:
            if isinstance(y, dict) and set(y) >= set(self.observables):
                y = [y[name] for name in self.observables]  # JAX would sort them
            return jax.flatten_util.ravel_pytree(y)[0]
        return jnp.atleast_1d(jax.flatten_util.ravel_pytree(observe(t, y, args))[0])

    def initial(self) -> Float[Array, " parameter"]:
        """The current values of the free parameters, flat and on their scales."""
        current, dtype = self._current(), self.lower.dtype
        bounds = (self.lower, self.upper)
        # What is known is computed by NumPy: one operation of JAX by itself costs as much as all of these.
        xp: Any = jnp if any(map(is_traced, (*current, *bounds))) else np
        if xp is np:
            current, bounds = jax.tree.map(np.asarray, (current, bounds))
        flat = [xp.zeros(0, dtype)]
        for slot, value in zip(self.slots, current, strict=True):
            value = xp.ravel(take(value, slot)).astype(dtype)
            flat.append(xp.log(value) if slot.scale == "log" else value)
        # A value at its bound stays there, although exp(log(v)) is not always v.
        return jnp.asarray(xp.clip(xp.concatenate(flat), bounds[0], bounds[1]))

    def _current(self) -> list[Array]:
        leaves = jax.tree.leaves(self.parts())
        own = {v.slot: v.value for v in self.own}
        return [own[s] if s.labels else leaves[s.leaf] for s in self.slots]

    def unflatten(self, x: Any) -> tuple:
        """The parts with the free parameters at `x`; the inverse of `initial`.

        Parameters that differ between experiments are left as they are: see `at(x).model_of(experiment)`.
        """
        leaves, treedef = jax.tree.flatten(self.parts())
        for slot, value in zip(self.slots, self.naturals(x), strict=True):
            if not slot.labels:
                leaves[slot.leaf] = put(leaves[slot.leaf], slot, value)
        for tie in self.ties:
            leaves[tie.slot.leaf] = put(leaves[tie.slot.leaf], tie.slot, tie.value(leaves))
        return jax.tree.unflatten(treedef, leaves)

    def naturals(self, x: Any) -> list[Any]:
        """The values in natural units, one array for each name."""
        return self._split(x, [slot.shape for slot in self.slots])

    def _split(self, x, shapes) -> list[Any]:
        out, start = [], 0
        for slot, shape in zip(self.slots, shapes, strict=True):
            size = int(np.prod(shape, dtype=int))
            value = x[start : start + size].reshape(shape)
            exp = np.exp if isinstance(x, np.ndarray) else jnp.exp
            out.append(exp(value) if slot.scale == "log" else value)
            start += size
        return out

    def table(self) -> np.ndarray | None:
        """Which of the flat parameters an experiment uses, one row for each; `None` for all of them."""
        if not any(slot.labels for slot in self.slots):
            return None
        starts = np.cumsum([0] + [slot.size for slot in self.slots])
        columns = [
            start + slot.offsets(len(self.experiments))
            for start, slot in zip(starts, self.slots, strict=False)
        ]
        return np.concatenate(columns, axis=1)

    def local(self, x: Float[Array, " parameter"], experiment) -> Float[Array, " local"]:
        """The flat parameters of an experiment, whose number may be traced."""
        table = self.table()
        return x if table is None else x[jnp.asarray(table)[experiment]]

    def parts_in(self, experiment, local: Float[Array, " local"], at_rest: bool = False) -> tuple:
        """The parts in an experiment, whose number may be traced."""
        leaves, treedef = jax.tree.flatten(self.parts())
        free = set(self.slots)
        for v in self.own:
            if v.slot not in free:
                put_own(leaves, v.slot, v.value, experiment)
        for slot, value in zip(
            self.slots, self._split(local, [s.inner for s in self.slots]), strict=True
        ):
            new = put(leaves[slot.leaf], slot, value)
            if slot.labels and min(slot.groups) < 0:
                used = jnp.asarray(slot.groups)[experiment] >= 0
                new = jnp.where(used, new, leaves[slot.leaf])
            leaves[slot.leaf] = new
        for tie in self.ties:
            leaves[tie.slot.leaf] = put(leaves[tie.slot.leaf], tie.slot, tie.value(leaves))
        for v in self.known_at_rest if at_rest else self.known:
            put_own(leaves, v.slot, v.value, experiment)
        return jax.tree.unflatten(treedef, leaves)

    def log_scaled(self) -> np.ndarray:
        """Which of the flat parameters are logarithms."""
        return np.repeat([s.scale == "log" for s in self.slots], [s.size for s in self.slots])

    def at(self, x: Any) -> "Problem":
        """The same problem with `x` as its current values."""
        model, y0, noise, observe = self.unflatten(x)
        new = dict(zip(self.slots, self.naturals(x), strict=True))
        own = tuple(
            Varied(v.slot, jnp.asarray(new.get(v.slot, v.value), v.value.dtype)) for v in self.own
        )
        return with_fields(self, model=model, y0=y0, noise=noise, observe=observe, own=own)

    def fix(self, *names: str) -> "Problem":
        """The same problem with these parameters fixed at their current values."""
        gone = {slot.name for name in names for slot in find(self.slots, name)}
        kept = [pair for pair in freed(self) if pair[0].name not in gone]
        fixed = (*self.fixed_since, *(name for name in names if name not in self.fixed_since))
        return with_fields(self, fixed_since=fixed, **free_fields(self, kept))

    def free(self, more: Any) -> "Problem":
        """The same problem with further parameters freed, or freed anew; `more` as in `Problem`."""
        if isinstance(more, dict):
            refuse_shadowing(self.model)
        new = resolve(self.parts(), more)
        renewed = {slot.name for slot, _ in new}
        old = [pair for pair in freed(self) if pair[0].name not in renewed]
        refuse_overlaps([slot for slot, _ in old + new])
        return with_fields(self, **free_fields(self, old + new))

    def __repr__(self) -> str:
        names = ", ".join(s.name for s in self.slots) or "nothing"
        one = self.experiments == ("",)
        data = (
            repr(self.data)
            if one
            else f"{len(self.experiments)} experiments with {self.size} values"
        )
        return f"Problem({type(self.model).__name__} on {data}, free: {names})"


def _takes(fn: Any, count: int) -> bool:
    """Whether a callable may be called with so many arguments."""
    try:
        inspect.signature(fn).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # nobody knows
        return True
    return True


def check_problem(problem) -> None:
    if not isinstance(problem, Problem):
        hint = " Did you mean `result.problem`?" if hasattr(problem, "problem") else ""
        raise TypeError(f"This takes a `fit.Problem`, but got a {type(problem).__name__}.{hint}")

"""A model, its data, and what is unknown: all that the verbs of `fit` need."""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PyTree

from .._dtypes import as_state, default_float, tolerances
from ..solvers._checks import check_field, check_method
from ..solvers._doses import Doses
from ..solvers._stops import as_stops, Stops
from ._data import Data
from ._free import Free
from ._names import find, refuse_overlaps, refuse_shadowing, resolve, Slot
from .noise import AbstractNoise, Normal
from .priors import Uniform


class Solve(eqx.Module):
    """How a problem's differential equation is solved.

    **Arguments:**

    - `method`, `rtol`, `atol`, `steps`, `max_steps`: as in
      [`solve`][sciml.solvers.solve]. The tolerances are tighter by default, 1e-8 and 1e-10 in
      double precision, because optimisers need a smooth objective. `Tsit5()` compiles
      faster than the default, which holds a stiff method as well.
    """

    method: Any = None
    rtol: Any = None
    atol: Any = None
    steps: int | None = eqx.field(static=True, default=None)
    max_steps: int = eqx.field(static=True, default=16384)

    def __check_init__(self):
        check_method(self.method, self.steps, self.max_steps)


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
    - `data`: a [`Data`][sciml.fit.Data].
    - `y0`: initial state at `t0`.
    - `free`: what is unknown: a dict of names to [`Free`][sciml.fit.Free], or a list of pairs
      `(where, Free)` with `where` as in `equinox.tree_at`. The rest stays fixed. Names: `"k"`,
      `"rates.k1"`, `"net"` for a whole subtree, `"y0"`, `"y0[1]"`, `"noise.sigma"`.
    - `t0`: start of the solve; by default the first time of the data. Doses must not lie before it.
    - `args`: passed on to the model; inputs u(t) known at some times go there, as
      [`Input`][sciml.solvers.Input], or into the model.
    - `doses`: a table, [`Doses`][sciml.solvers.Doses], or a tuple of them. `side` says whether a measurement at
      the time of a dose was made `"before"` it or `"after"`.
    - `observe`: `observe(t, y, args)` -> the observables, shape `(observable,)`; by default the
      numbers of the state in their order, or by name if the state is a dict that has the names of
      the data's columns.
    - `noise`: a law from `fit.noise`; by default `Normal` with the sigma of the data, or with one
      common level estimated from the residuals.
    - `solve`: a [`Solve`][sciml.fit.Solve].

    **Raises:**

    `ValueError`, `TypeError` for anything that does not fit together.
    """

    model: Any
    data: Data
    y0: PyTree[Any]
    args: PyTree[Any]
    observe: Any
    noise: AbstractNoise
    solve: Solve
    stops: Stops
    t0: Float[Array, ""]
    lower: Float[Array, " parameter"]
    upper: Float[Array, " parameter"]
    priors: tuple[Any, ...]
    bounds: Float[Array, "name 2"]
    fixed_since: tuple[str, ...] = eqx.field(static=True)
    slots: tuple[Slot, ...] = eqx.field(static=True)

    def __init__(
        self,
        model: Any,
        data: Data,
        *,
        y0: PyTree[Any],
        free: Any,
        t0: ArrayLike | None = None,
        args: PyTree[Any] = None,
        doses: Doses | tuple[Doses, ...] | None = None,
        side: str = "before",
        observe: Callable | None = None,
        noise: AbstractNoise | None = None,
        solve: Solve | None = None,
    ):
        if not callable(model):
            raise TypeError(
                f"`model` must be callable as `model(t, y, args)`, but is a {type(model).__name__}."
            )
        if isinstance(model, type):
            raise TypeError(f"`model` must be an instance: pass `{model.__name__}(…)`.")
        if observe is not None and not callable(observe):
            raise TypeError(
                f"`observe` must be a function `observe(t, y, args)`, but got {observe!r}."
            )
        if solve is not None and not isinstance(solve, Solve):
            raise TypeError(f"`solve` must be a `fit.Solve(…)`, but got {solve!r}.")
        if not isinstance(data, Data):
            raise TypeError(f"`data` must be a `fit.Data`, but is a {type(data).__name__}.")
        noise = Normal() if noise is None else noise
        if not isinstance(noise, AbstractNoise):
            raise TypeError(f"`noise` must be a law from `fit.noise`, but got {noise!r}.")
        if noise.sigma is not None and data.sigma is not None:
            raise ValueError(
                "sigma is given twice: in `data` and in `noise`. Leave out the one that is not "
                "meant (a sigma that is to be estimated belongs into `noise`)."
            )
        if noise.sigma is not None and jnp.shape(noise.sigma) not in ((), (len(data.names),)):
            raise ValueError(
                f"The `sigma` of a noise law must be one number or {len(data.names)}, one for each "
                f"column of the data, but has shape {jnp.shape(noise.sigma)}."
            )
        noise.check(np.asarray(data.ys), np.asarray(data.seen))
        self.data = data
        solve = Solve() if solve is None else solve
        self.solve = _traced_tolerances(solve)
        self.y0 = as_state(y0)[0]
        self.model = _arrays(model)
        self.noise = _arrays(noise)
        self.observe = _arrays(observe)
        self.args = _arrays(args)
        self.t0 = _start_time(t0, data)
        span = jnp.stack([self.t0, data.ts[-1].astype(self.t0.dtype)])
        self.stops = as_stops((), doses, None, side, 1, span)
        self.fixed_since = ()
        self._check_shapes()
        dtype = jax.tree.leaves(self.y0)[0].real.dtype
        tolerances(solve.rtol, solve.atol, dtype, default=(1e-8, 1e-10))
        if isinstance(free, dict):
            refuse_shadowing(self.model)
        fields = _free_fields(self.parts(), resolve(self.parts(), free), data)
        for name, value in fields.items():
            setattr(self, name, value)

    def parts(self) -> tuple:
        """The four places in which parameters live."""
        return self.model, self.y0, self.noise, self.observe

    def _check_shapes(self):
        """What the model makes of the state must match the data."""
        observed = jax.eval_shape(lambda t, y: self.observed(self.parts(), t, y), self.t0, self.y0)
        wanted = len(self.data.names)
        if observed.shape != (wanted,):
            what = "`observe` returns" if self.observe is not None else "the state `y0` gives"
            columns = "1 column" if wanted == 1 else f"{wanted} columns"
            raise ValueError(
                f"The data have {columns} ({', '.join(self.data.names)}), but {what} "
                f"shape {observed.shape}. Pass `observe=lambda t, y, args: …` with one number for "
                "each column."
            )
        check_field(self.model, self.t0, self.y0, self.args)

    def observed(self, parts: tuple, t, y) -> Array:
        """The observables of one state."""
        observe = parts[3]
        if observe is None:
            if isinstance(y, dict) and set(y) >= set(self.data.names):
                y = [y[name] for name in self.data.names]  # JAX would sort them
            return jax.flatten_util.ravel_pytree(y)[0]
        return jnp.atleast_1d(jax.flatten_util.ravel_pytree(observe(t, y, self.args))[0])

    def initial(self) -> Float[Array, " parameter"]:
        """The current values of the free parameters, flat and on their scales."""
        leaves = jax.tree.leaves(self.parts())
        flat = []
        for slot in self.slots:
            value = jnp.ravel(_take(leaves[slot.leaf], slot)).astype(self.lower.dtype)
            flat.append(jnp.log(value) if slot.scale == "log" else value)
        x = jnp.concatenate(flat) if flat else jnp.zeros((0,), self.lower.dtype)
        # A value at its bound stays there, although exp(log(v)) is not always v.
        return jnp.clip(x, self.lower, self.upper)

    def unflatten(self, x: Float[Array, " parameter"]) -> tuple:
        """The parts with the free parameters at `x`; the inverse of `initial`."""
        leaves, treedef = jax.tree.flatten(self.parts())
        for slot, value in zip(self.slots, self.naturals(x), strict=True):
            leaves[slot.leaf] = _put(leaves[slot.leaf], slot, value)
        return jax.tree.unflatten(treedef, leaves)

    def naturals(self, x: Float[Array, " parameter"]) -> list[Array]:
        """The values in natural units, one array for each name."""
        out, start = [], 0
        for slot in self.slots:
            value = x[start : start + slot.size].reshape(slot.shape)
            out.append(jnp.exp(value) if slot.scale == "log" else value)
            start += slot.size
        return out

    def log_scaled(self) -> np.ndarray:
        """Which of the flat parameters are logarithms."""
        return np.repeat([s.scale == "log" for s in self.slots], [s.size for s in self.slots])

    def at(self, x: Float[Array, " parameter"]) -> "Problem":
        """The same problem with `x` as its current values."""
        model, y0, noise, observe = self.unflatten(x)
        return with_fields(self, model=model, y0=y0, noise=noise, observe=observe)

    def fix(self, *names: str) -> "Problem":
        """The same problem with these parameters fixed at their current values."""
        gone = {slot.name for name in names for slot in find(self.slots, name)}
        kept = [pair for pair in self._found() if pair[0].name not in gone]
        fixed = (*self.fixed_since, *(name for name in names if name not in self.fixed_since))
        fields = _free_fields(self.parts(), kept, self.data)
        return with_fields(self, fixed_since=fixed, **fields)

    def free(self, more: Any) -> "Problem":
        """The same problem with further parameters freed, or freed anew; `more` as in `Problem`."""
        if isinstance(more, dict):
            refuse_shadowing(self.model)
        new = resolve(self.parts(), more)
        renewed = {slot.name for slot, _ in new}
        old = [pair for pair in self._found() if pair[0].name not in renewed]
        refuse_overlaps([slot for slot, _ in old + new])
        return with_fields(self, **_free_fields(self.parts(), old + new, self.data))

    def _found(self) -> list[tuple[Slot, Free]]:
        rows = zip(self.slots, self.bounds, self.priors, strict=True)
        return [(s, Free(*pair, scale=s.scale, prior=prior)) for s, pair, prior in rows]

    def __repr__(self) -> str:
        names = ", ".join(s.name for s in self.slots) or "nothing"
        return f"Problem({type(self.model).__name__} on {self.data!r}, free: {names})"


def with_fields(problem: Problem, **fields) -> Problem:
    """A copy with other fields, not checked again."""
    out = object.__new__(Problem)
    for field in dataclasses.fields(problem):
        value = fields[field.name] if field.name in fields else getattr(problem, field.name)
        object.__setattr__(out, field.name, value)
    return out


def _free_fields(parts: tuple, found: list[tuple[Slot, Free]], data: Data) -> dict[str, Any]:
    """The fields of a problem that follow from what is free."""
    leaves, treedef = jax.tree.flatten(parts)
    lower, upper = [], []
    for slot, spec in found:
        if spec.init is not None:
            leaves[slot.leaf] = _put(leaves[slot.leaf], slot, spec.init)
        low, high = spec.lower, spec.upper
        if hasattr(spec.prior, "penalty"):
            below, above = (float(b) for b in spec.prior.support())
            low, high = max(low, below), min(high, above)
        _check_start(slot, np.asarray(_take(leaves[slot.leaf], slot)), low, high)
        if slot.scale == "log":
            low, high = (float(np.log(b)) if b > 0 else -np.inf for b in (low, high))
        lower += [low] * slot.size
        upper += [high] * slot.size
    model, y0, noise, observe = jax.tree.unflatten(treedef, leaves)
    priors = tuple(_arrays(spec.prior) for _, spec in found)
    if data.sigma is None and noise.sigma is None and any(informative(p) for p in priors):
        raise ValueError(
            "A prior needs to know how noisy the data are, to be weighed against them: give "
            "`sigma` in the data, or `noise=fit.noise.Normal(sigma=…)`, whose sigma can be freed "
            "as 'noise.sigma'."
        )
    return {
        "model": model,
        "y0": y0,
        "noise": noise,
        "observe": observe,
        "lower": jnp.asarray(lower, default_float()),
        "upper": jnp.asarray(upper, default_float()),
        "priors": priors,
        "slots": tuple(slot for slot, _ in found),
        "bounds": jnp.asarray(
            [(spec.lower, spec.upper) for _, spec in found], default_float()
        ).reshape(-1, 2),
    }


def check_problem(problem) -> None:
    if not isinstance(problem, Problem):
        hint = " Did you mean `result.problem`?" if hasattr(problem, "problem") else ""
        raise TypeError(f"This takes a `fit.Problem`, but got a {type(problem).__name__}.{hint}")


def informative(prior) -> bool:
    return prior is not None and not isinstance(prior, Uniform)


def _arrays(tree):
    """Python floats, NumPy arrays and scalars as arrays of the default dtype, once."""

    def leaf(x):
        if isinstance(x, float | complex | np.floating | np.complexfloating):
            return jnp.asarray(x, default_float() if np.isrealobj(x) else None)
        return jnp.asarray(x) if isinstance(x, np.ndarray) else x

    return jax.tree.map(leaf, tree)


def _traced_tolerances(options: Solve) -> Solve:
    """Tolerances as arrays, so that another one compiles nothing new."""
    rtol, atol = _arrays((options.rtol, options.atol))
    return Solve(options.method, rtol, atol, options.steps, options.max_steps)


def _start_time(t0, data: Data) -> Array:
    if t0 is None:
        return data.ts[0]
    t0 = jnp.asarray(t0, data.ts.dtype)
    if t0.shape != () or not bool(jnp.isfinite(t0)):
        raise ValueError(f"`t0` must be one finite number, but got {t0}.")
    if bool(t0 > data.ts[0]):
        raise ValueError(f"`t0` is {t0:g}, later than the first time of the data, {data.ts[0]:g}.")
    return t0


def _take(leaf, slot: Slot):
    return leaf if slot.element is None else leaf[slot.element]


def _put(leaf, slot: Slot, value):
    value = jnp.asarray(value, leaf.dtype)
    if value.shape not in ((), slot.shape):
        raise ValueError(
            f"{slot.name!r} has shape {slot.shape}, but a value of {value.shape} came."
        )
    if slot.element is None:
        return jnp.broadcast_to(value, slot.shape)
    return leaf.at[slot.element].set(value)


def _check_start(slot: Slot, value: np.ndarray, low: float, high: float):
    if not np.all(np.isfinite(value)):
        raise ValueError(f"The start value of {slot.name!r} is {value}, not finite.")
    if slot.scale == "log" and np.any(value <= 0):
        raise ValueError(
            f"The start value of {slot.name!r} is {np.min(value):g}, but `scale='log'` needs "
            "positive values."
        )
    # An estimate at its bound may lie beyond it by the rounding of exp(log(v)).
    size, info = np.abs(value), np.finfo(value.dtype)
    slack = 4 * info.eps * size * (1 + np.abs(np.log(np.maximum(size, info.tiny))))
    outside = (value < low - slack) | (value > high + slack)
    if np.any(outside):
        bad = value[outside].ravel()[0]
        raise ValueError(
            f"The start value of {slot.name!r} is {bad:g}, outside its bounds {low:g} .. {high:g}. "
            "Widen them or pass `Free(…, init=…)`."
        )

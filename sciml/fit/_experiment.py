"""Experiments: what differs between the conditions under which the same model was measured."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from .._dtypes import default_float
from ..solvers._doses import Doses
from ._data import Data


class Equilibrium(eqx.Module):
    """An initial state at rest: the model is first followed until nothing changes any more.

    As the `y0` of an [`Experiment`][sciml.fit.Experiment]: cells that were kept in a medium for long before
    they were stimulated. It is found by [`steady_state`][sciml.solvers.steady_state] from the `y0` of the problem.

    **Arguments:**

    - `args`: of the model at rest, in place of the experiment's.
    - `values`: of parameters at rest, by name, known numbers in place of all others.
    - `t`: the time at which the model is evaluated.
    - `max_time`: after which it must have settled.
    """

    args: Any = None
    values: dict[str, Any] = eqx.field(default_factory=dict)
    t: Any = 0.0
    max_time: Any = 1e6


class Experiment(eqx.Module):
    """The data of one experiment, and how it differs from the others.

    ```python
    import equinox as eqx
    import jax, jax.numpy as jnp
    from sciml import fit


    class Decay(eqx.Module):
        k: jax.Array | float

        def __call__(self, t, y, args):
            return -self.k * y


    ts = jnp.arange(5.0)
    warm = fit.Experiment(fit.Data(ts, 3 * jnp.exp(-0.8 * ts)), y0=3.0)
    cold = fit.Experiment(fit.Data(ts, 2 * jnp.exp(-0.3 * ts)), y0=2.0)
    problem = fit.Problem(
        Decay(0.5),
        {"warm": warm, "cold": cold},
        y0=1.0,
        free={"k": fit.Free(0, 10, per="experiment")},
    )
    assert jnp.allclose(fit.estimate(problem).values["k"], jnp.array([0.8, 0.3]), rtol=1e-5)
    ```

    What is left out is that of the problem.

    **Arguments:**

    - `data`: a [`Data`][sciml.fit.Data]. Experiments may have measured different observables.
    - `y0`: the initial state, of the structure of the problem's, or an [`Equilibrium`][sciml.fit.Equilibrium].
    - `args`: passed on to the model and to `observe`: covariates, inputs.
    - `doses`: as in [`Problem`][sciml.fit.Problem].
    - `t0`: start of the solve.
    - `values`: numbers for parameters that are known here, by name; they win over what is free. For a state
      (`"y0[1]"`), also over that of an equilibrium.
    """

    data: Data
    y0: Any
    args: Any
    doses: Any
    t0: Any
    values: dict[str, Any]

    def __init__(
        self,
        data: Data,
        *,
        y0: Any = None,
        args: Any = None,
        doses: Doses | tuple[Doses, ...] | None = None,
        t0: Any = None,
        values: dict[str, Any] | None = None,
    ):
        if not isinstance(data, Data):
            raise TypeError(f"`data` must be a `fit.Data`, but is a {type(data).__name__}.")
        if values is not None and not isinstance(values, dict):
            raise TypeError(f"`values` must be a dict of names to numbers, but got {values!r}.")
        self.data, self.y0, self.args, self.doses, self.t0 = data, y0, args, doses, t0
        self.values = {} if values is None else values


def as_experiments(data: Any) -> dict[str, Experiment]:
    """One data set, experiments in a row or by name: all by name."""
    if isinstance(data, Data | Experiment):
        data = {"": data}
    elif isinstance(data, list | tuple):
        data = {str(i): d for i, d in enumerate(data, start=1)}
    if not isinstance(data, dict):
        raise TypeError(
            "`data` must be a `fit.Data`, a `fit.Experiment`, or a dict or list of them, but is a "
            f"{type(data).__name__}."
        )
    if not data:
        raise ValueError("`data` holds no experiment.")
    out = {}
    for name, d in data.items():
        if not isinstance(d, Data | Experiment):
            raise TypeError(
                f"`data[{name!r}]` must be a `fit.Data` or a `fit.Experiment`, but is a {type(d).__name__}."
            )
        out[str(name)] = Experiment(d) if isinstance(d, Data) else d
    if len(out) < len(data):
        raise ValueError(f"Two experiments have the same name: {', '.join(map(str, data))}.")
    return out


def as_arrays(tree: Any) -> Any:
    """Python floats, NumPy arrays and scalars as arrays of the default dtype, once."""

    def leaf(x):
        if isinstance(x, float | complex | np.floating | np.complexfloating):
            return jnp.asarray(x, default_float() if np.isrealobj(x) else None)
        return jnp.asarray(x) if isinstance(x, np.ndarray) else x

    return jax.tree.map(leaf, tree)


def start_time(t0: ArrayLike | None, data: Data, where: str) -> Float[Array, ""]:
    if t0 is None:
        return data.ts[0]
    t0 = jnp.asarray(t0, data.ts.dtype)
    if t0.shape != () or not bool(jnp.isfinite(t0)):
        raise ValueError(f"`t0`{where} must be one finite number, but got {t0}.")
    if bool(t0 > data.ts[0]):
        raise ValueError(
            f"`t0`{where} is {t0:g}, later than the first time of the data, {data.ts[0]:g}."
        )
    return t0


def with_fields(module: Any, **fields) -> Any:
    """A copy of a module with other fields, not checked again."""
    out = object.__new__(type(module))
    for field in dataclasses.fields(module):
        value = fields[field.name] if field.name in fields else getattr(module, field.name)
        object.__setattr__(out, field.name, value)
    return out

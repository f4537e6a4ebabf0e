"""Training by gradients: the verb."""

from collections.abc import Callable
from os import PathLike
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from .._checks import integer_at_least
from ._grow import Grow
from ._layout import as_layout
from ._orbax import Orbax
from ._phases import as_phases
from ._problem import Problem
from ._result import Result
from ._train_on_loss import train_on_loss
from ._train_on_problem import train_on_problem
from ._trained import Trained
from ._training import Rules


_HORIZON = Grow(0.2, 1.0)


def train(
    target: Problem | Callable,
    optimiser: Any,
    *,
    steps: int | None = None,
    model: Any = None,
    data: Any = None,
    key: Any = None,
    batch: int | None = None,
    horizon: Grow | None = _HORIZON,
    strategy: Any = None,
    balance: bool = True,
    steer: float = 0.0,
    weights: dict[str, Any] | None = None,
    trainable: Any = None,
    compute: Any = None,
    ema: float | None = None,
    validation: Any = None,
    patience: int | None = None,
    min_delta: float = 0.0,
    every: int = 100,
    callbacks: Any = (),
    checkpoint: str | PathLike | Orbax | None = None,
    mesh: Mesh | int | str | None = None,
    fsdp: bool = False,
) -> Result | Trained:
    """Trains by gradient descent: the free parameters of a problem, or a model on any loss.

    A step after which the loss or its gradient is not finite is taken back, and half of it is tried, then a quarter.
    The best parameters are kept, not the last. For a few physical parameters use `fit.estimate`,
    which is faster and gives error bars; the two can be chained.

    ```python
    import equinox as eqx
    import jax, jax.numpy as jnp, optax
    from sciml import fit, nets


    class Model(eqx.Module):
        rate: jax.Array
        net: nets.MLP

        def __call__(self, t, y, args):
            return -self.rate * y + self.net(y)


    ts = jnp.linspace(0.0, 2.0, 21)
    model = Model(jnp.array(1.0), nets.MLP(1, 1, width=4, depth=1, key=jax.random.key(0)))
    problem = fit.Problem(
        model,
        fit.Data(ts, jnp.exp(-2 * ts)),
        y0=jnp.array([1.0]),
        free={"net": fit.Free()},
        solve=fit.Solve(steps=2),
    )
    result = fit.train(problem, optax.adam(1e-2), steps=200)
    assert result.model.rate == 1.0 and result.loss < 0.1
    ```

    Any other loss is `loss(model, batch, key)`, or with fewer arguments, and gives a number or a dict of named
    terms:

    ```python
    def loss(model, batch):
        x, y = batch
        return jnp.mean((jax.vmap(model)(x) - y) ** 2)


    x = jnp.linspace(-1.0, 1.0, 64)[:, None]
    net = nets.MLP(1, 1, width=8, depth=1, key=jax.random.key(0))
    trained = fit.train(
        loss,
        optax.adam(1e-2),
        steps=300,
        model=net,
        data=(x, x**2),
        batch=16,
        key=jax.random.key(1),
    )
    assert loss(trained.model, (x, x**2)) < 0.05
    ```

    **Arguments:**

    - `target`: a [`Problem`][sciml.fit.Problem], whose tolerances are 1e-6 and 1e-8 here in double precision, unless
      its `solve` says otherwise (`fit.Solve(steps=…)` is often the fastest choice); or a loss.
    - `optimiser`: any Optax optimiser or chain, with schedules in it (of a problem it sees the mean loss per measured
      value, and the parameters as a dict by name, on their scales); a method of
      [`minimise`][sciml.solvers.minimise]; or a list of [`Phase`][sciml.fit.Phase].
    - `steps`: how many updates; `None` if the phases say it.
    - `key`: a JAX random key; needed for `batch`, `steer` and losses that draw at random.
    - `batch`: of a problem, how many of its experiments enter a step (of each form at least one: experiments with
      as many rows and the like), or if it has one, how many of its rows; of other data, how many items. By
      default all. Each comes once before any comes again, in an order drawn anew, which depends on `key` alone.
    - `ema`: return an exponential moving average of the parameters, with this decay, say 0.999; it is the average then
      that is validated.
    - `validation`: what decides which parameters are the best and when to stop: of a problem a
      [`Data`][sciml.fit.Data] or another `Problem` with the same free parameters; of a loss, items like `data`, or
      a function of the model.
    - `patience`: stop after so many looks without an improvement by more than `min_delta`; while the horizon grows,
      none counts.
    - `every`: steps between two looks at the validation, the callbacks and the checkpoint.
    - `callbacks`: functions of a [`Progress`][sciml.fit.Progress]; one that returns `True` stops.
    - `checkpoint`: a file that holds all that is needed to go on: called again with the same arguments, training
      goes on from there, bit for bit as if it had not been interrupted. More `steps` may be asked for, unless a growing
      horizon or weights depend on them. Another training in the file is an error. Or a folder in which
      [`Orbax`][sciml.fit.Orbax] keeps the same.
    - `mesh`: devices to train on: a `jax.sharding.Mesh`, how many, or `"all"`. Each takes its share of the
      experiments of a problem, or of the items of a batch, of whose loss the mean over the devices is taken. So a loss
      must be a mean over items; where it draws at random each device draws its own.
      Gradients are added up once a step; validations and methods of second order are computed by each device alike.
    - `fsdp`: whether large parameters and the state of the optimiser are spread over the mesh as well, and gathered for
      each step ("fully sharded data parallel").

    Of problems only:

    - `horizon`: a [`Grow`][sciml.fit.Grow] over the first phase, or `None` for the whole span from the start.
    - `strategy`: what brings the parameters nearer before, as in [`estimate`][sciml.fit.estimate]:
      [`Matching`][sciml.fit.Matching] to smoothed data, [`MultipleShooting`][sciml.fit.MultipleShooting].
    - `balance`: count several observables without a known sigma in units of how much each varies.
    - `steer`: in [0, 1], shifts times at random by up to this share of half the gaps between them, which keeps the
      dynamics smooth (Ghosh et al. 2020).

    Of losses only:

    - `model`: a pytree, such as an Equinox module. `trainable`: which of it is trained: a filter such as
      `eqx.is_inexact_array` (the default), a pytree of bools, or `where(model)` as in `eqx.tree_at`. The
      rest stays as it is, under weight decay too, and so do numbers that are no arrays.
    - `data`: a pytree of arrays with a leading axis of items; or an iterator of batches; or `None`.
    - `weights`: of the named terms, numbers or functions of the step, counted over all phases; a validation is
      weighed as in the last step.
    - `compute`: a dtype, say `"bfloat16"`, in which model and batch enter the loss. Parameters, gradients and the
      optimiser keep theirs.

    **Returns:**

    A [`Result`][sciml.fit.Result] without error bars, whose `history` is the mean loss by step; or, of a loss, a
    [`Trained`][sciml.fit.Trained].

    **Raises:**

    `RuntimeError` if no step on the final horizon could be evaluated; `ValueError`, `TypeError` for arguments that
    don't fit together.

    **Reference:** A. Ghosh, H. S. Behl, E. Dupont, P. H. S. Torr, V. Namboodiri, *STEER: simple temporal
    regularization for neural ODEs*, NeurIPS 2020, arXiv 2006.10711.
    """
    phases = as_phases(optimiser, steps)
    callbacks = (callbacks,) if callable(callbacks) else tuple(callbacks)
    for callback in callbacks:
        if not callable(callback):
            raise TypeError(
                f"`callbacks` must be functions of a `fit.Progress`, but got {callback!r}."
            )
    if patience is not None:
        integer_at_least("patience", patience)
    if ema is not None and not 0 < ema < 1:
        raise ValueError(f"`ema` must lie between 0 and 1, but is {ema}.")
    integer_at_least("every", every)
    if batch is not None:
        integer_at_least("batch", batch)
        _need_key(key, "`batch`")
    if steer:
        _need_key(key, "`steer`")
    key = _as_key(key)
    rules = Rules(every, patience, min_delta, ema, callbacks)
    of_losses = {"model": model, "data": data, "weights": weights, "trainable": trainable}
    of_losses["compute"] = compute
    layout = as_layout(mesh, fsdp)
    of_problems = {"horizon": horizon, "strategy": strategy, "balance": balance, "steer": steer}
    growing = horizon is not _HORIZON
    in_steps = {"ema": ema is not None, "batch": batch is not None, "steer": bool(steer)}
    in_steps |= {"patience": patience is not None, "horizon": growing and horizon is not None}
    if all(p.second_order for p in phases):
        _refuse(
            in_steps, "is for optimisers of Optax: a method of second order takes all data at once"
        )
    if isinstance(target, Problem):
        given = {name: value is not None for name, value in of_losses.items()}
        _refuse(given, "is for a loss of your own; a `Problem` has its own model and data")
        return train_on_problem(
            target, phases, rules, key, batch, checkpoint, validation, layout=layout, **of_problems
        )
    if not callable(target):
        raise TypeError(
            f"`train` takes a `fit.Problem` or a loss `loss(model, batch, key)`, but got a {type(target).__name__}."
        )
    given = {"horizon": growing, "strategy": strategy is not None, "balance": not balance}
    _refuse(given | {"steer": bool(steer)}, "is for a `fit.Problem`, not for a loss of your own")
    return train_on_loss(
        target, phases, rules, key, batch, checkpoint, validation, layout=layout, **of_losses
    )


def _refuse(given: dict[str, bool], why: str) -> None:
    for name, there in given.items():
        if there:
            raise TypeError(f"`{name}` {why}.")


def _need_key(key: Any, what: str) -> None:
    if key is None:
        raise ValueError(f"{what} draws at random: pass `key=jax.random.key(0)`.")


def _as_key(key: Any) -> Any:
    if key is None:
        return None
    if (
        isinstance(key, jax.Array)
        and key.shape == ()
        and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    ):
        return key
    if isinstance(key, jax.Array | np.ndarray) and key.dtype == jnp.uint32:
        return jax.random.wrap_key_data(jnp.asarray(key))
    raise TypeError(
        f"`key` must be a random key of JAX, such as `jax.random.key(0)`, but got {key!r}."
    )

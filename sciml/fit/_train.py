"""Training by gradients, with any Optax optimiser."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array

from .._checks import integer_at_least
from ._conclude import by_name, describe_problem
from ._experiment import with_fields
from ._likelihood import loss_at
from ._problem import check_problem, Problem
from ._progress import progress
from ._result import Result, Starts
from ._solving import Solve


_CHUNK = 100  # steps compiled into one program, between two ticks of the bar


class Grow(eqx.Module):
    """A horizon that grows: the share of the time span that is fitted, from `start` to `stop`.

    Long horizons from random weights tend to end in a flat line, since early errors swamp the
    late ones' gradient. The horizon grows linearly and has reached `stop` by half of the steps.

    **Arguments:**

    - `start`, `stop`: shares of the span between `t0` and the last time, in (0, 1].
    """

    start: float = 0.2
    stop: float = 1.0

    def __check_init__(self):
        if not 0 < self.start <= self.stop <= 1:
            raise ValueError(
                f"`Grow` needs 0 < start <= stop <= 1, but got {self.start} and {self.stop}."
            )

    def share(self, progress: Array) -> Array:
        """The share at `progress` between 0 and 1 of the training."""
        return self.start + (self.stop - self.start) * jnp.minimum(2 * progress, 1.0)


def train(
    problem: Problem,
    optimiser: optax.GradientTransformation,
    *,
    steps: int,
    key: Any = None,
    horizon: Grow | None = Grow(0.2, 1.0),
    batch: int | None = None,
) -> Result:
    """Trains the free parameters by gradient descent, for models with networks inside.

    The optimiser sees the mean loss per measured value, and the parameters as a dict by name, on
    their scales. A step whose solve fails or whose gradient is not finite is rejected and counted.
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
    result = fit.train(problem, optax.adam(1e-2), steps=200, key=jax.random.key(1))
    assert result.model.rate == 1.0 and result.loss < 0.1
    ```

    **Arguments:**

    - `problem`: a [`Problem`][sciml.fit.Problem]. Unless its `solve` says otherwise, tolerances are
      1e-6 and 1e-8 here; `fit.Solve(steps=…)` is often the fastest choice.
    - `optimiser`: any Optax optimiser or chain.
    - `steps`: how many updates.
    - `key`: a JAX random key; needed for `batch`, otherwise training is deterministic.
    - `horizon`: a [`Grow`][sciml.fit.Grow], or `None` for the whole span from the start.
    - `batch`: how many of the rows of all experiments, drawn anew each step, enter the loss; by default all.

    **Returns:**

    A [`Result`][sciml.fit.Result] without error bars, whose `history` is the mean loss by step.

    **Raises:**

    `RuntimeError` if no step on the final horizon could be evaluated.
    """
    steps = integer_at_least("steps", steps)
    if not isinstance(optimiser, optax.GradientTransformation):
        raise TypeError(f"`optimiser` must be an Optax optimiser, but got {optimiser!r}.")
    check_problem(problem)
    if not problem.slots:
        raise ValueError("Nothing is free in this problem: name parameters in `free`.")
    if batch is not None:
        batch = min(integer_at_least("batch", batch), sum(problem.rows))
        if key is None:
            raise ValueError("`batch` draws at random: pass `key=jax.random.key(0)`.")
    key = jax.random.key(0) if key is None else key
    horizon = Grow(1.0, 1.0) if horizon is None else horizon
    working = _looser(problem)

    x = problem.initial()
    start = x
    params = _split(problem, x)
    # The start is the first to beat, so that no training returns something worse.
    begun, begun_ok = _full_loss(working, x)
    best = (jnp.where(begun_ok, begun, jnp.inf), params)
    state = (params, optimiser.init(params), best)
    chunks = math.ceil(steps / _CHUNK)
    size = math.ceil(steps / chunks)
    history, good = [], []
    with progress(steps, "steps") as tick:
        for i in range(chunks):
            first = jnp.asarray(i * size)
            state, (losses, ok) = _chunk(
                working, state, optimiser, horizon, key, first, jnp.asarray(steps), size, batch
            )
            if batch is not None:  # the batches' losses can't be compared: look at all data
                state = _keep_best(working, state)
            kept = min(size, steps - i * size)
            history.append(np.asarray(losses)[:kept])
            good.append(np.asarray(ok)[:kept])
            tick(kept, f"loss {float(losses[kept - 1]):.3g}")
    (last, _, (best_loss, best_params)) = state
    # The last update has not been looked at yet.
    final, final_ok = _full_loss(working, _join(working, last))
    if bool(final_ok) and bool(final < best_loss):
        best_loss, best_params = final, last
    rejected = int(np.sum(~np.concatenate(good)))
    if not np.isfinite(best_loss) or rejected == steps:
        raise RuntimeError(
            f"Training failed: {rejected} of {steps} steps were rejected because the solve or its "
            "gradient was not finite, and no other parameters solve the whole span. Lower the "
            "learning rate, let the horizon grow from a smaller share, or start from weights nearer "
            "to zero."
        )
    x = _join(problem, best_params)
    message = "" if not rejected else f"{rejected} of {steps} steps were rejected (solve failed)"
    loss = float(best_loss) * problem.size
    n = x.shape[0]
    return Result(
        ok=True,
        message=message or f"best of {steps} steps",
        problem=problem.at(x),
        loss=loss,
        starts=Starts(np.array([loss]), np.array([True]), ("",), np.asarray(x)[None]),
        history=np.concatenate(history),
        statistics=describe_problem(working, np.zeros(n, int)) | {"rejected steps": rejected},
        initial=by_name(problem, start),
        active=np.zeros(n, int),
        verb="train",
        uncertainty=None,
    )


def _looser(problem: Problem) -> Problem:
    """Training needs no more digits than its loss has."""
    old = problem.solve
    rtol = 1e-6 if old.rtol is None else old.rtol
    atol = 1e-8 if old.atol is None else old.atol
    if problem.lower.dtype.itemsize < 8:
        rtol, atol = old.rtol, old.atol  # single precision has its own defaults
    return with_fields(problem, solve=Solve(old.method, rtol, atol, old.steps, old.max_steps))


def _split(problem: Problem, x: Array) -> dict[str, Array]:
    """The flat parameters by name, on their scales."""
    out, start = {}, 0
    for slot in problem.slots:
        out[slot.name] = x[start : start + slot.size].reshape(slot.shape)
        start += slot.size
    return out


def _join(problem: Problem, params: dict[str, Array]) -> Array:
    """The inverse of `_split`, by name: JAX sorts the keys of a dict."""
    return jnp.concatenate([jnp.ravel(params[slot.name]) for slot in problem.slots])


def _mean_loss(problem: Problem, params: dict[str, Array], share: Array, chosen):
    """The loss per value of the rows `chosen`, up to a share of the span."""
    x = _join(problem, params)
    data, prior, ok, count = loss_at(problem, x, "reverse", share, chosen)
    # A prior weighs the same against each value, however many are in sight.
    size = _size(problem).astype(data.dtype)
    return data / jnp.maximum(count, 1).astype(data.dtype) + prior / size, ok


def _size(problem: Problem) -> Array:
    return sum((jnp.sum(block.data.seen) for block in problem.blocks), jnp.zeros((), int))


def _some_rows(problem: Problem, key: Array, batch: int) -> list[Array]:
    """Which rows of each block are in a batch; padding is in none."""
    real = []
    for block in problem.blocks:
        rows = jnp.asarray(problem.rows)[block.index]
        real.append(jnp.arange(block.data.ts.shape[1])[None] < rows[:, None])
    every = jnp.concatenate([r.ravel() for r in real])
    lot = jnp.where(every, jax.random.permutation(key, every.shape[0]), every.shape[0])
    picked = (jnp.argsort(jnp.argsort(lot)) < batch) & every
    cuts = np.cumsum([r.size for r in real])[:-1]
    parts = jnp.split(picked, cuts)
    return [p.reshape(r.shape) for p, r in zip(parts, real, strict=True)]


@eqx.filter_jit
def _chunk(problem, state, optimiser, horizon, key, first, steps, size: int, batch):
    low, high = _split(problem, problem.lower), _split(problem, problem.upper)
    dtype = problem.blocks[0].data.ts.dtype

    def step(state, i):
        params, opt_state, (best_loss, best_params) = state
        share = horizon.share(i / jnp.maximum(steps - 1, 1)).astype(dtype)
        chosen = None
        if batch is not None:
            chosen = _some_rows(problem, jax.random.fold_in(key, i), batch)
        (loss, ok), grads = jax.value_and_grad(
            lambda p: _mean_loss(problem, p, share, chosen), has_aux=True
        )(params)
        finite = jnp.stack([jnp.all(jnp.isfinite(g)) for g in jax.tree.leaves(grads)]).all()
        ok = ok & jnp.isfinite(loss) & finite
        with jax.numpy_dtype_promotion("standard"):  # Optax mixes counts and floats
            updates, new_opt = optimiser.update(grads, opt_state, params)
        moved = jax.tree.map(jnp.clip, optax.apply_updates(params, updates), low, high)
        whole = jnp.asarray(batch is None) & (share >= 1)
        better = ok & whole & (loss < best_loss)
        pick = lambda c, a, b: jax.tree.map(lambda u, v: jnp.where(c, u, v), a, b)
        best = (jnp.where(better, loss, best_loss), pick(better, params, best_params))
        return (pick(ok, moved, params), pick(ok, new_opt, opt_state), best), (loss, ok)

    def guarded(state, i):
        nothing = (jnp.asarray(jnp.nan, problem.lower.dtype), jnp.asarray(True))
        return jax.lax.cond(i < steps, step, lambda state, i: (state, nothing), state, i)

    return jax.lax.scan(guarded, state, first + jnp.arange(size))


@eqx.filter_jit
def _full_loss(problem: Problem, x: Array):
    data, prior, ok, count = loss_at(problem, x, "forward")
    total = data + prior
    ok = ok & jnp.isfinite(total)
    return jnp.where(ok, total, jnp.inf) / count.astype(total.dtype), ok


def _keep_best(problem: Problem, state):
    params, opt_state, best = state
    loss, ok = _full_loss(problem, _join(problem, params))
    return params, opt_state, ((loss, params) if bool(ok & (loss < best[0])) else best)

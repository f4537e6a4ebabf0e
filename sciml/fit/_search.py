"""Optimisation from many starts, in compiled chunks that can be interrupted and taken up again."""

import hashlib
import math
import os
import pathlib
import time
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._results import RESULTS
from ..solvers._nonlinear._levenberg_marquardt import LevenbergMarquardt
from ..solvers._nonlinear._looking import at_function
from ..solvers._nonlinear._loop import as_result, Box, CONVERGED, run
from ._densities import log_constant, loss as loss_of
from ._laws import LogNormal
from ._levels import laws_of
from ._likelihood import look, prior_terms
from ._problem import Problem
from ._progress import progress
from ._simulate import solve_result


_NOT_POSITIVE = (
    "The model predicts values that are not positive, which log-normal noise does not allow."
)
_CHUNK = 16  # starts compiled into one program, between two ticks of the bar


class End(eqx.Module):
    """Where a start ended.

    - `misfit`, `rows`: as of a look; `rows^T rows` is the curvature, if the method knows it.
    - `prior`: the part of the loss that comes from priors. `constant`: what the loss leaves out of the likelihood.
    """

    x: Array
    loss: Array
    ok: Array
    misfit: Array | None
    rows: Array | None
    prior: Array
    constant: Array
    result: RESULTS
    active: Array
    steps: Array
    failures: Array
    history: Array


@eqx.filter_jit
def _chunk(problem: Problem, xs: Array, method: Any, max_steps: int) -> End:
    box = Box(problem.lower, problem.upper, True)
    squares = isinstance(method, LevenbergMarquardt)
    of_squares = lambda x: look(problem, x)
    looking = of_squares if squares else at_function(loss_of(problem), method.order)

    def one(x):
        end = run(method, looking, x, box, max_steps, history=True)
        here, finish = end.here, method.finish(end, box)
        assert end.history is not None
        return End(
            x=here.x,
            loss=here.loss,
            ok=finish.code == CONVERGED,
            misfit=here.misfit if squares else None,
            rows=end.memory.model.r if squares else None,
            prior=prior_terms(problem, here.x)[0],
            constant=log_constant(problem, here.x),
            result=as_result(finish.code),
            active=box.active(here.x),
            steps=end.evaluations - 1,
            failures=end.failures,
            history=end.history,
        )

    if xs.shape[0] == 1:
        return jax.tree.map(lambda v: v[None], one(xs[0]))
    # One after the other on a CPU, where members in lockstep would all wait for the slowest.
    return jax.lax.map(one, xs) if jax.default_backend() == "cpu" else jax.vmap(one)(xs)


def search(
    problem: Problem,
    xs: Array,
    method: Any,
    max_steps: int,
    max_time: float | None,
    checkpoint: str | os.PathLike | None,
) -> End:
    """The ends of the starts, of as many as there was time for, as arrays of NumPy."""
    n = xs.shape[0]
    chunks = math.ceil(n / _CHUNK)
    size = math.ceil(n / chunks)
    more = chunks * size - n
    padded = jnp.concatenate([xs, jnp.broadcast_to(xs[-1:], (more, xs.shape[1]))]) if more else xs
    store = None if checkpoint is None else _Store(checkpoint, problem, xs)
    ends: list[End] = []
    begun = time.monotonic()
    with progress(n, "starts") as tick:
        for i in range(chunks):
            if i and max_time is not None and time.monotonic() - begun > max_time:
                break
            part = padded[i * size : (i + 1) * size] if chunks > 1 else padded
            run_one = lambda part=part: _chunk(problem, part, method, max_steps)
            end = run_one() if store is None else store.get(i, run_one)
            ends.append(jax.device_get(end))
            tick(min(size, n - i * size))
    return jax.tree.map(lambda *parts: np.concatenate(parts)[:n], *ends)


class _Store:
    """A file with the ends of the chunks that are done."""

    def __init__(self, path: str | os.PathLike, problem: Problem, xs: Array):
        self.path = pathlib.Path(path)
        digest = hashlib.sha256(np.asarray(xs).tobytes())
        for leaf in jax.tree.leaves(eqx.filter(problem, eqx.is_array)):
            digest.update(np.asarray(leaf).tobytes())
        self.mark = np.frombuffer(digest.digest(), np.uint8)
        self.arrays: dict[str, np.ndarray] = {}
        if self.path.exists():
            with np.load(self.path, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            if not np.array_equal(arrays.pop("mark", None), self.mark):
                raise ValueError(
                    f"{self.path} holds the starts of another fit (other data, bounds, values, key or number of "
                    "starts). Delete it, or name another file."
                )
            self.arrays = arrays

    def get(self, i: int, run_one) -> End:
        leaves, treedef = jax.tree.flatten(jax.eval_shape(run_one))
        names = [f"{i}.{k}" for k in range(len(leaves))]
        if all(name in self.arrays for name in names):
            return jax.tree.unflatten(treedef, [jnp.asarray(self.arrays[name]) for name in names])
        end = jax.block_until_ready(run_one())
        self.arrays |= dict(zip(names, map(np.asarray, jax.tree.leaves(end)), strict=True))
        # Written aside and moved, so that an interruption leaves the old file.
        aside = self.path.with_name(self.path.name + ".part")
        with aside.open("wb") as file:
            np.savez(file, mark=self.mark, **self.arrays)  # pyright: ignore[reportArgumentType]
        aside.replace(self.path)
        return end


def reasons(problem: Problem, xs: Array, ends: End) -> list[str]:
    """Why each start did not converge; an empty text for those that did."""
    out = []
    for i in range(xs.shape[0]):
        if ends.ok[i]:
            out.append("")
            continue
        # Equinox looks up results that are arrays of JAX.
        result = jax.tree.map(lambda v, i=i: jnp.asarray(v[i]), ends.result)
        if not np.isfinite(ends.loss[i]):
            solved = _compiled_result(problem, xs[i])
            if bool(solved != RESULTS.successful):
                result = solved
            elif any(
                isinstance(law, LogNormal) for law, _ in laws_of(problem.noise, problem.observables)
            ):
                out.append(_NOT_POSITIVE)
                continue
        out.append(RESULTS[result])
    return out


_compiled_result = eqx.filter_jit(solve_result)

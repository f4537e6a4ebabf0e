"""Predictions of the experiments of a problem."""

import warnings

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._dtypes import tolerances
from .._results import RESULTS
from ..solvers._checks import check_method
from ..solvers._core import solve_core
from ..solvers._steady_state import _steady_state as steady
from ._blocks import Member, over
from ._parameters import state_of
from ._problem import Problem


def predict_at(
    problem: Problem,
    local: Float[Array, " local"],
    member: Member,
    ts: Float[Array, " time"],
    derivatives,
) -> tuple[Float[Array, "time observable"], RESULTS, tuple]:
    """The observables of an experiment at times that don't decrease and don't lie before its start."""
    parts = problem.parts_in(member.index, local)
    y0, rested = _start(problem, local, member, parts)
    options = problem.solve
    method, steps, max_steps = check_method(options.method, options.steps, options.max_steps)
    rtol, atol = solve_tolerances(problem)
    times = jnp.concatenate([member.t0[None].astype(ts.dtype), ts])
    tols = (rtol, atol, steps, max_steps)
    options = {"derivatives": derivatives, "stops": member.stops}
    sol = solve_core(parts[0], y0, times, member.args, method, *tols, **options)
    ys = jax.tree.map(lambda x: x[1:], sol.ys)
    pred = jax.vmap(lambda t, y: problem.observed(parts, t, y, member.args))(ts, ys)
    result = (
        sol.result if rested is None else RESULTS.where(rested, sol.result, RESULTS.not_settled)
    )
    return pred.astype(member.data.ys.dtype), result, parts


def _start(problem: Problem, local, member: Member, parts: tuple):
    """The initial state, and whether it came to rest, if it had to."""
    rest = member.rest
    if rest is None:
        return state_of(parts, member.args), None
    before = problem.parts_in(member.index, local, at_rest=True)
    guess = state_of(before, rest.args)
    rtol, atol = solve_tolerances(problem)
    times = (rest.t, rest.max_time)
    sol = steady(
        before[0], guess, rest.args, times, rtol, atol, jnp.asarray(problem.solve.max_steps)
    )
    # What is known of the state in this experiment is set now.
    set_here = [v for v in problem.known if v.slot.root == "y0"]
    if not set_here or callable(problem.y0):
        return sol.value, sol.ok
    leaves = jax.tree.leaves(parts)
    first = len(jax.tree.leaves(parts[0]))
    rested = jax.tree.leaves(sol.value)
    for v in set_here:
        here = jnp.asarray(v.slot.groups)[member.index] >= 0
        place = v.slot.leaf - first
        index = ... if v.slot.element is None else v.slot.element
        value = jnp.where(here, leaves[v.slot.leaf][index], rested[place][index])
        rested[place] = rested[place].at[index].set(value)
    return jax.tree.unflatten(jax.tree.structure(sol.value), rested), sol.ok


def solve_tolerances(problem: Problem) -> tuple:
    options = problem.solve
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # said once, when the problem was built
        return tolerances(options.rtol, options.atol, problem.dtype, default=(1e-8, 1e-10))


def first_failure(results: RESULTS) -> RESULTS:
    """Of several results the first that is not a success, if there is one."""
    i = jnp.argmax(results != RESULTS.successful)
    return jax.tree.map(lambda v: v[i], results)


def solve_result(problem: Problem, x: Float[Array, " parameter"]) -> RESULTS:
    """How the solves went."""
    one = lambda m: predict_at(problem, problem.local(x, m.index), m, m.data.ts, "forward")[1]
    worst = [first_failure(over(block, one)) for block in problem.blocks]
    return first_failure(jax.tree.map(lambda *v: jnp.stack(v), *worst))

"""Levenberg-Marquardt on the parameters and the states of all windows."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._results import RESULTS
from ..solvers._checks import check_method
from ..solvers._core import solve_core
from ..solvers._nonlinear._loop import all_finite, Box
from ..solvers._nonlinear._triangle import triangle
from ._blocks import Member, over
from ._joints import columns_of, lengths, losses, Piece, reduced, substitute
from ._levels import laws_of
from ._likelihood import prior_terms
from ._problem import Problem
from ._simulate import solve_tolerances
from ._windows import flat_state, flatten, initial_state, Windows


def _shoot(problem: Problem, member: Member, windows: Windows, x, states):
    """One experiment, window by window: the linear part, and whether all is well."""
    local = problem.local(x, member.index)
    d, unravel = flat_state(problem, member)
    method, steps, max_steps = check_method(
        problem.solve.method, problem.solve.steps, problem.solve.max_steps
    )
    rtol, atol = solve_tolerances(problem)
    data = member.data

    def initial(local):
        y0, rested = initial_state(problem, local, member)
        flat = flatten(y0).astype(x.dtype)
        return flat, (flat, jnp.asarray(True) if rested is None else rested)

    def window(args):
        start, edges, rows, used = args
        ts = jnp.where(used, data.ts[rows], edges[1])
        times = jnp.concatenate([edges[:1], ts, edges[1:]])
        weight = jnp.where(used[:, None], windows.weight[rows], 0)

        def fn(both):
            y, local = both[:d], both[d:]
            parts = problem.parts_in(member.index, local)
            options = (method, rtol, atol, steps, max_steps)
            y0, args = unravel(y), member.args
            sol = solve_core(parts[0], y0, times, args, *options, derivatives="forward")
            ys = jax.tree.map(lambda v: v[1:-1], sol.ys)
            pred = jax.vmap(lambda t, y: problem.observed(parts, t, y, member.args))(ts, ys)
            laws = laws_of(parts[2], problem.observables)
            m = jnp.concatenate([law.location(pred[:, place]) for law, place in laws], axis=1)
            r = jnp.where(weight > 0, (m.astype(weight.dtype) - windows.z[rows]) * weight, 0)
            end = flatten(jax.tree.map(lambda v: v[-1], sol.ys))
            out = r.reshape(-1).astype(x.dtype), end.astype(x.dtype)
            return out, (*out, sol.result == RESULTS.successful)

        (j_r, j_end), (r, end, fine) = jax.jacfwd(fn, has_aux=True)(jnp.concatenate([start, local]))
        rows = triangle(jnp.concatenate([j_r, r[:, None]], axis=1))
        return rows, j_end, end, fine & all_finite((r, j_r, end, j_end))

    first, (start, rested) = jax.jacfwd(initial, has_aux=True)(local)
    starts = jnp.concatenate([start[None], states])
    spans = jnp.stack([windows.edges[:-1], windows.edges[1:]], axis=1)
    inputs = (starts, spans, windows.rows, windows.used)
    # On a CPU windows in lockstep would all wait for the slowest.
    one_by_one = jax.default_backend() == "cpu"
    out = jax.lax.map(window, inputs) if one_by_one else jax.vmap(window)(inputs)
    rows, j_end, end, fine = out
    return Piece(rows, j_end[:-1], end[:-1] - states, first), jnp.all(fine) & rested


def _look(problem: Problem, cuts, x, states):
    """All experiments."""
    pieces, fine = [], []
    for block, windows, inner in zip(problem.blocks, cuts, states, strict=True):
        leaves, treedef = jax.tree.flatten(windows)
        one = lambda m, s, *w, t=treedef: _shoot(problem, m, jax.tree.unflatten(t, w), x, s)
        piece, ok = over(block, one, inner, *leaves)
        pieces.append(piece)
        fine.append(jnp.all(ok))
    return pieces, jnp.all(jnp.stack(fine))


class At(eqx.Module):
    """- `loss`: with the gaps and the priors. `data`: half the squares of the data alone."""

    x: Array
    states: list[Array]
    pieces: list[Piece]
    loss: Array
    data: Array


class _Going(eqx.Module):
    """- `predicted`: by how much the loss should fall at `trial`. `lam`, `nu`: damping, and by what it grows next.
    - `scale`: the longest that each column was so far.
    """

    here: At
    trial: tuple[Array, list[Array]]
    predicted: Array
    rows: Array
    lam: Array
    nu: Array
    scale: tuple[Array, list[Array]]
    count: Array
    failures: Array
    done: Array


@eqx.filter_jit
def descend(
    problem: Problem, cuts, x, states, pull, ftol, lam, max_steps
) -> tuple[At, Array, Array, Array]:
    """Levenberg-Marquardt on the parameters and all states, with gaps weighed by `pull` and `lam` as first damping.

    Also returns the triangle for the parameters at the last step, damped as it was.

    The damping follows H. B. Nielsen, *Damping parameter in Marquardt's method*, IMM-REP-1999-05 (1999).
    """
    box = Box(problem.lower, problem.upper, True)

    def view(x, states):
        pieces, fine = _look(problem, cuts, x, states)
        data, gaps = losses(pieces, pull)
        loss = data + gaps + prior_terms(problem, x)[0]
        return At(x, states, pieces, loss, data), fine & jnp.isfinite(loss)

    def step_from(here: At, lam, unit):
        damping = [jnp.sqrt(lam) * v for v in unit[1]]
        model, least, joints = reduced(problem, here.pieces, pull, damping, here.x)
        step = model.damped(jnp.sqrt(lam) * unit[0], here.x, box)
        change = []
        for block, p, j in zip(problem.blocks, here.pieces, joints, strict=True):
            columns = columns_of(problem.table(), block, here.x)
            change.append(jax.vmap(lambda p, j, c: substitute(p, j, step[c]))(p, j, columns))
        # What eliminating the states promises, and what the parameters do.
        data, gaps = losses(here.pieces, pull)
        squares = data + gaps
        predicted = squares - (least**2 + jnp.sum(model.c**2)) / 2 + model.reduction(step)
        trial = box.land(here.x, step), [a + b for a, b in zip(here.states, change, strict=True)]
        return trial, predicted, squares, all_finite((step, change)), model.r

    def body(s: _Going) -> _Going:
        first = s.count == 0
        there, fine = view(*s.trial)
        actual = s.here.loss - there.loss
        gain = actual / jnp.where(s.predicted > 0, s.predicted, 1)
        accept = fine & (first | (actual >= 0))
        here = jax.tree.map(lambda a, b: jnp.where(accept, a, b), there, s.here)
        shrink = jnp.maximum(1 / 3, 1 - (2 * jnp.clip(gain, 0, 2) - 1) ** 3)
        lam = jnp.where(accept, s.lam * shrink, s.lam * s.nu)
        lam = jnp.where(first, s.lam, jnp.maximum(lam, jnp.finfo(x.dtype).eps))
        nu = jnp.where(accept, 2, 2 * s.nu)
        scale = jax.tree.map(jnp.maximum, s.scale, lengths(problem, here.pieces, pull, here.x))
        unit = jax.tree.map(lambda v: jnp.where(v > 0, v, 1), scale)
        trial, predicted, squares, solved, r = step_from(here, lam, unit)
        still = accept | (jnp.abs(actual) <= ftol * jnp.abs(s.here.loss))
        small = (predicted <= ftol * squares) & still
        done = (first & ~fine) | small | (lam > 1e10) | ~solved
        failures = s.failures + jnp.where(fine, 0, 1)
        return _Going(here, trial, predicted, r, lam, nu, scale, s.count + 1, failures, done)

    shapes = jax.eval_shape(lambda: view(x, states)[0])
    blank = jax.tree.map(lambda v: jnp.full(v.shape, jnp.nan, v.dtype), shapes)
    zero = jnp.zeros((), x.dtype)
    count = jnp.zeros((), jnp.result_type(int))
    scale = jnp.zeros_like(x), [jnp.zeros_like(s) for s in states]
    no = jnp.asarray(False)
    rows = jnp.zeros((x.shape[0], x.shape[0]), x.dtype)
    start = _Going(blank, (x, states), zero, rows, lam, zero + 2, scale, count, count, no)
    end = jax.lax.while_loop(lambda s: ~s.done & (s.count <= max_steps), body, start)
    return end.here, end.rows, end.count, end.failures

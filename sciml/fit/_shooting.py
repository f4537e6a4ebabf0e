"""Multiple shooting: windows with states of their own, which are made to meet."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._checks import integer_at_least
from .._results import RESULTS
from ..solvers._checks import check_method
from ..solvers._core import solve_core
from ..solvers._nonlinear._loop import all_finite, Box
from ..solvers._nonlinear._quadratic import Quadratic
from ..solvers._nonlinear._triangle import back, triangle
from ._blocks import Member, over
from ._levels import laws_of, level_is_free, levelled
from ._likelihood import prior_terms
from ._parameters import informative
from ._problem import check_problem, Problem
from ._simulate import solve_tolerances
from ._windows import cut, flat_state, flatten, initial_state, refuse, window_states, Windows


# The first weights of gaps. Loose windows find their states first, which is best from afar; but noise may then lead
# the parameters astray, which ties prevent.
_FIRST = (1e-3, 1.0, 0.1, 10.0)


class _Piece(eqx.Module):
    """The linear part of one experiment; columns are the window's first state, the parameters, and the residuals.

    - `data`: a triangle with the same squares as the weighted residuals of the data.
    - `ends`: derivatives of the windows' last states. `gaps`: last states minus the next window's first.
    - `first`: derivative of the initial state by the parameters.
    """

    data: Float[Array, "window row column"]
    ends: Float[Array, "joint state input"]
    gaps: Float[Array, "joint state"]
    first: Float[Array, "state local"]


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
    return _Piece(rows, j_end[:-1], end[:-1] - states, first), jnp.all(fine) & rested


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


def _losses(pieces, pull) -> tuple[Array, Array]:
    """Half the sums of squares: of the data, and of the gaps."""
    data = [jnp.sum(p.data[..., -1] ** 2) for p in pieces]
    gaps = [jnp.sum((p.gaps * pull[None, None]) ** 2) for p in pieces]
    return jnp.sum(jnp.stack(data)) / 2, jnp.sum(jnp.stack(gaps)) / 2


def _lengths(problem, pieces, pull, x):
    """Of the columns of the whole Jacobian: for the parameters, and the states of each block."""
    total, each = jnp.zeros_like(x), []
    table = problem.table()
    for block, p in zip(problem.blocks, pieces, strict=True):
        d = pull.shape[0]
        squares = jnp.sum(p.data[..., :-1] ** 2, axis=2)
        joints = jnp.sum((p.ends * pull[None, None, :, None]) ** 2, axis=2)
        squares = squares.at[:, :-1].add(joints)
        each.append(jnp.sqrt(squares[:, 1:, :d] + pull[None, None] ** 2))
        local = jnp.sum(squares[:, :, d:], axis=1)
        columns = _columns(table, block, x)
        total = total.at[columns.reshape(-1)].add(local.reshape(-1))
    return jnp.sqrt(total), each


def _columns(table, block, x):
    """Which of the flat parameters each experiment uses."""
    if table is None:
        return jnp.broadcast_to(jnp.arange(x.shape[0])[None], (block.count, x.shape[0]))
    return jnp.asarray(table)[block.index]


def _eliminate(piece: _Piece, pull, damping):
    """The states are eliminated from the last window to the first, each by a triangle.

    **Returns:**

    Rows in the parameters and the residual, and for each joint what gives its state from the one before it and
    the parameters.
    """
    d, q = piece.first.shape

    def one(later, inputs):
        data, end, gap, damp = inputs
        zeros = lambda m, n: jnp.zeros((m, n), data.dtype)
        # The heavy rows come first, lest their rounding errors swamp the others.
        joint = jnp.concatenate([-jnp.eye(d, dtype=data.dtype), end, gap[:, None]], axis=1)
        held = jnp.concatenate([jnp.diag(damp), zeros(d, d + q + 1)], axis=1)
        m = later.shape[0]
        after = jnp.concatenate([later[:, :d], zeros(m, d), later[:, d:]], axis=1)
        here = jnp.concatenate([zeros(m, d), data], axis=1)
        t = triangle(jnp.concatenate([joint * pull[:, None], held, after, here]))
        return t[d:, d:], t[:d]

    backwards = lambda v: v[::-1]
    inputs = (piece.data[:-1], piece.ends, piece.gaps, damping)
    rows, joints = jax.lax.scan(one, piece.data[-1], jax.tree.map(backwards, inputs))
    rows = jnp.concatenate([rows[:, :d] @ piece.first + rows[:, d : d + q], rows[:, -1:]], axis=1)
    return rows, joints[::-1]


def _substitute(piece: _Piece, joints, step):
    """The change of the states, from the first window to the last."""
    d = piece.first.shape[0]

    def one(before, joint):
        right = joint[:, d:-1] @ jnp.concatenate([before, step]) + joint[:, -1]
        change = back(joint[:, :d], -right)
        return change, change

    return jax.lax.scan(one, piece.first @ step, joints)[1]


def _model(problem: Problem, pieces, pull, damping, x):
    """What is left for the parameters: a quadratic, and the smallest that it can be."""
    table = problem.table()
    n = x.shape[0]
    stack, all_joints = [], []
    for block, p, damp in zip(problem.blocks, pieces, damping, strict=True):
        rows, joints = jax.vmap(lambda p, damp: _eliminate(p, pull, damp))(p, damp)
        all_joints.append(joints)
        columns = _columns(table, block, x)
        wide = jax.vmap(lambda r, c: jnp.zeros((r.shape[0], n), r.dtype).at[:, c].add(r[:, :-1]))
        full = jnp.concatenate([wide(rows, columns), rows[..., -1:]], axis=2)
        stack.append(full.reshape(-1, n + 1))
    extra = None
    if any(informative(p) for p in problem.priors):
        _, slope, bend = prior_terms(problem, x)
        stack.append(jnp.concatenate([jnp.diag(jnp.sqrt(bend)), jnp.zeros((n, 1), x.dtype)], 1))
        extra = slope
    t = triangle(jnp.concatenate(stack))
    return Quadratic(t[:n, :n], t[:n, n], extra), t[n, n], all_joints


class _At(eqx.Module):
    """- `loss`: with the gaps and the priors. `data`: half the squares of the data alone."""

    x: Array
    states: list[Array]
    pieces: list[_Piece]
    loss: Array
    data: Array


class _Going(eqx.Module):
    """- `predicted`: by how much the loss should fall at `trial`. `lam`, `nu`: damping, and by what it grows next.
    - `scale`: the longest that each column was so far.
    """

    here: _At
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
def _descend(
    problem: Problem, cuts, x, states, pull, ftol, lam, max_steps
) -> tuple[_At, Array, Array, Array]:
    """Levenberg-Marquardt on the parameters and all states, with gaps weighed by `pull` and `lam` as first damping.

    Also returns the triangle for the parameters at the last step, damped as it was.

    The damping follows H. B. Nielsen, *Damping parameter in Marquardt's method*, IMM-REP-1999-05 (1999).
    """
    box = Box(problem.lower, problem.upper, True)

    def view(x, states):
        pieces, fine = _look(problem, cuts, x, states)
        data, gaps = _losses(pieces, pull)
        loss = data + gaps + prior_terms(problem, x)[0]
        return _At(x, states, pieces, loss, data), fine & jnp.isfinite(loss)

    def step_from(here: _At, lam, unit):
        damping = [jnp.sqrt(lam) * v for v in unit[1]]
        model, least, joints = _model(problem, here.pieces, pull, damping, here.x)
        step = model.damped(jnp.sqrt(lam) * unit[0], here.x, box)
        change = []
        for block, p, j in zip(problem.blocks, here.pieces, joints, strict=True):
            columns = _columns(problem.table(), block, here.x)
            change.append(jax.vmap(lambda p, j, c: _substitute(p, j, step[c]))(p, j, columns))
        # What eliminating the states promises, and what the parameters do.
        data, gaps = _losses(here.pieces, pull)
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
        scale = jax.tree.map(jnp.maximum, s.scale, _lengths(problem, here.pieces, pull, here.x))
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


@dataclasses.dataclass(frozen=True)
class Shot:
    """Where multiple shooting ended.

    **Attributes:**

    - `x`: flat parameters. `ok`, `message`: whether the windows meet, and what happened.
    - `gap`: the largest that is left between two windows, relative to how much that number of the state varies.
    - `loss`: of the data, half the sum of squared weighted residuals.
    - `unexplained`: its share of what a constant would leave over.
    - `rows`: `rows^T rows` is the curvature by the parameters, with gaps weighed as in the end. In a chaotic
      system this gives meaningful error bars, which derivatives of the whole trajectory do not.
    - `states`: of each experiment the times at which its windows begin, and the flat states there.
    - `steps`, `failures`: iterations, and how many of them looked at points where a solve failed.
    """

    x: Array
    ok: bool
    message: str
    gap: float
    loss: float
    unexplained: float
    rows: np.ndarray
    states: dict[str, tuple[np.ndarray, np.ndarray]]
    steps: int
    failures: int


class MultipleShooting(eqx.Module):
    """Brings parameters from far away to an optimum, by windows that begin in states of their own.

    Over a long time a solution can depend on its parameters so wildly that a least-squares fit has no chance from
    afar: it drops out of phase, or is chaotic. Over a short one it is almost linear. So each experiment is cut into
    windows at times of the data, and besides the parameters the state at the begin of each window is unknown. The
    data are fitted in all windows together, by Levenberg and Marquardt; gaps between windows cost little at first
    and more and more, until they vanish to the accuracy of the solver. What is left then is a solution of the whole
    problem, near which [`estimate`][sciml.fit.estimate] converges. For chaotic systems it can't, however near: there
    this is the answer.

    States begin with smoothed data where they are observed; the rest follow from the model while it is pulled
    towards the data. If the end explains the data badly, it is tried again with windows that are tied together more
    tightly at first.

    Noise levels keep their values meanwhile, robust laws count as normal and censored values not at all. There must
    be no doses.

    ```python
    import equinox as eqx
    import jax, jax.numpy as jnp
    from sciml import fit, solvers


    class Pendulum(eqx.Module):
        stiffness: jax.Array | float
        friction: jax.Array | float

        def __call__(self, t, y, args):
            x, v = y
            return jnp.stack([v, -self.stiffness * jnp.sin(x) - self.friction * v])


    ts = jnp.linspace(0.0, 20.0, 101)
    sol = solvers.solve(Pendulum(4.0, 0.1), jnp.array([1.0, 0.0]), ts)
    problem = fit.Problem(
        Pendulum(1.0, 1.0),
        fit.Data(ts, sol.ys[:, 0]),
        y0=jnp.array([1.0, 0.0]),
        free={"stiffness": fit.Free(0, 10), "friction": fit.Free(0, 10)},
        observe=lambda t, y, args: y[:1],
        solve=fit.Solve(method=solvers.Tsit5(), rtol=1e-4, atol=1e-5),
    )
    x = fit.MultipleShooting(windows=10).start(problem)
    assert jnp.allclose(x, jnp.array([4.0, 0.1]), rtol=1e-2)
    ```

    **Arguments:**

    - `windows`: how many for each experiment; by default such that there are two values for each number of the
      state in each, but no more than 100. Shorter windows forgive worse starts; each must see enough to tell its
      state.
    - `gap`: the largest gap that counts as none, relative to how much a number of the state varies; by default a
      hundred times the relative tolerance of the solver.
    - `max_steps`: iterations for each weight of the gaps.

    **Raises:**

    `ValueError` for more windows than the data allow, and for doses. `RuntimeError` if the windows can't be solved at
    the start.

    **References:** H. G. Bock, *Recent advances in parameter identification techniques for o.d.e.*, in Numerical
    Treatment of Inverse Problems in Differential and Integral Equations (1983), 95-121,
    doi 10.1007/978-1-4684-7324-7_7. The pull: H. D. I. Abarbanel, D. R. Creveling, R. Farsian, M. Kostuk, *Dynamical
    state and parameter estimation*, SIAM J. Appl. Dyn. Syst. 8 (2009), 1341-1381, doi 10.1137/090749761.
    """

    windows: int | None = eqx.field(static=True, default=None)
    gap: float | None = eqx.field(static=True, default=None)
    max_steps: int = eqx.field(static=True, default=50)

    def __check_init__(self):
        if self.windows is not None:
            integer_at_least("windows", self.windows)
        integer_at_least("max_steps", self.max_steps)
        if self.gap is not None and not 0 < self.gap < 1:
            raise ValueError(f"`gap` must lie between 0 and 1, but is {self.gap}.")

    def start(self, problem: Problem) -> Float[Array, " parameter"]:
        """Flat parameters from which [`estimate`][sciml.fit.estimate] can go on."""
        return self.shoot(problem).x

    def shoot(self, problem: Problem) -> Shot:
        """The parameters with all that is known of them."""
        check_problem(problem)
        refuse(problem, "MultipleShooting")
        cuts = cut(problem, self.windows)
        x = problem.initial()
        rtol = float(solve_tolerances(problem)[0])
        gap = 100 * rtol if self.gap is None else self.gap
        limit = 0.1 / float(jnp.finfo(x.dtype).eps) ** 0.5
        states, size = window_states(problem, x, cuts)
        total = _variation(cuts)
        joints = sum(int(np.prod(w.rows.shape[:2])) for w in cuts)
        best, steps, failures = None, 0, 0
        for first in _FIRST:
            shot = self._attempt(problem, cuts, x, states, size, total, joints, first, limit, gap)
            steps, failures = steps + shot.steps, failures + shot.failures
            if best is None or _rank(shot, gap) < _rank(best, gap):
                best = shot
            if shot.ok and _explains(problem, shot):
                break
        assert best is not None
        if not np.isfinite(best.loss):
            raise RuntimeError(
                "Multiple shooting could not begin: in some window the solve failed, or the prediction is not "
                "finite. Use more `windows`, or start closer."
            )
        return dataclasses.replace(best, steps=steps, failures=failures)

    def _attempt(self, problem, cuts, x, states, size, total, joints, first, limit, gap) -> Shot:
        factor, steps, failures = first, 0, 0
        first_size = size
        number = lambda v: jnp.asarray(v, x.dtype)
        while True:
            # With a factor of one, a gap as large as the state varies costs as much as all data of a window.
            pull = jnp.asarray(factor * (total / joints) ** 0.5, x.dtype) / size
            ftol = 1e-3 if factor < 10 else float(jnp.finfo(x.dtype).eps) ** 0.5
            descend = lambda x, states, lam, max_steps, pull=pull, ftol=ftol: _descend(
                problem, cuts, x, states, pull, number(ftol), number(lam), jnp.asarray(max_steps)
            )
            at, _, count, failed = descend(x, states, 1e-3, self.max_steps)
            x, states = at.x, at.states
            steps, failures = steps + int(count), failures + int(failed)
            gaps = [np.abs(p.gaps) / np.asarray(size) for p in at.pieces]
            left = float(np.max(np.concatenate([g.ravel() for g in gaps]), initial=0))
            factor *= 10
            if not left > gap or factor > limit:  # not a number, either
                break
            size = _size(states, first_size)
        rows = descend(x, states, 0.0, 0)[1]
        ok = left <= gap
        loss = float(at.data)
        return Shot(
            x=x,
            ok=ok,
            message="the windows meet" if ok else "gaps between windows are left",
            gap=left,
            loss=loss,
            unexplained=2 * loss / total if total > 0 else 0.0,
            rows=np.asarray(rows),
            states=_by_experiment(problem, cuts, states),
            steps=steps,
            failures=failures,
        )


def _rank(shot: Shot, gap: float) -> float:
    return shot.loss * max(1.0, shot.gap / gap) if np.isfinite(shot.loss) else np.inf


def _explains(problem: Problem, shot: Shot) -> bool:
    if levelled(problem) and not level_is_free(problem):
        return 2 * shot.loss < 1.5 * problem.size
    return shot.unexplained < 0.01


def _variation(cuts: tuple[Windows, ...]) -> float:
    """The weighted sum of squares around the means of the observables in each experiment."""
    total = 0.0
    for windows in cuts:
        w, z = np.asarray(windows.weight, float), np.asarray(windows.z, float)
        weights = np.sum(w**2, axis=1, keepdims=True)
        mean = np.sum(w**2 * z, axis=1, keepdims=True) / np.where(weights > 0, weights, 1)
        total += float(np.sum((w * (z - mean)) ** 2))
    return total


def _size(states: list[Array], first: Array) -> Array:
    """How much each number of the state varies; that of unobserved ones is learnt on the way."""
    every = jnp.concatenate([s.reshape(-1, s.shape[-1]) for s in states])
    if every.shape[0] < 2:
        return first
    size = jnp.std(every, axis=0)
    return jnp.maximum(jnp.where(jnp.isfinite(size), size, first), 1e-3 * first)


def _by_experiment(problem: Problem, cuts, states) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    out = {}
    for block, windows, inner in zip(problem.blocks, cuts, states, strict=True):
        for e in range(block.count):
            name = problem.experiments[int(block.index[e])]
            out[name] = np.asarray(windows.edges[e, 1:-1]), np.asarray(inner[e])
    return out

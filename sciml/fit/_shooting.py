"""Multiple shooting: windows with states of their own, which are made to meet."""

import dataclasses

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._checks import integer_at_least
from ._descent import descend
from ._levels import level_is_free, levelled
from ._problem import check_problem, Problem
from ._simulate import solve_tolerances
from ._windows import cut, refuse, window_states, Windows


# The first weights of gaps. Loose windows find their states first, which is best from afar; but noise may then lead
# the parameters astray, which ties prevent.
_FIRST = (1e-3, 1.0, 0.1, 10.0)


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
            walk = lambda x, states, lam, max_steps, pull=pull, ftol=ftol: descend(
                problem, cuts, x, states, pull, number(ftol), number(lam), jnp.asarray(max_steps)
            )
            at, _, count, failed = walk(x, states, 1e-3, self.max_steps)
            x, states = at.x, at.states
            steps, failures = steps + int(count), failures + int(failed)
            gaps = [np.abs(p.gaps) / np.asarray(size) for p in at.pieces]
            left = float(np.max(np.concatenate([g.ravel() for g in gaps]), initial=0))
            factor *= 10
            if not left > gap or factor > limit:  # not a number, either
                break
            size = _size(states, first_size)
        rows = walk(x, states, 0.0, 0)[1]
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

"""Integral matching: parameters from smoothed data, without solving anything."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._checks import integer_at_least
from ..solvers._nonlinear._levenberg_marquardt import LevenbergMarquardt
from ..solvers._nonlinear._loop import all_finite, Box, Look, run
from ..solvers._nonlinear._quadratic import Rows
from ._blocks import Member, member_of, over
from ._parameters import state_of
from ._problem import check_problem, Problem
from ._windows import curves, data_times, flat_state, flatten, numbers_seen, refuse


_NODES = 5  # of Gauss and Legendre in each interval


class _Along(eqx.Module):
    """What the smoothed data of the experiments of a block say; times, states and weights at the nodes.

    - `rise`: by how much the states change in each interval.
    - `first`: the state at the start, where the data begin there.
    """

    ts: Float[Array, "experiment interval node"]
    ys: Float[Array, "experiment interval node state"]
    weights: Float[Array, "experiment interval node"]
    rise: Float[Array, "experiment interval state"]
    first: Float[Array, "experiment state"]
    size: Float[Array, " state"]


class Matching(eqx.Module):
    """Finds a start for an estimate from the data alone, without solving anything.

    Each state is smoothed, by splines whose smoothness is chosen by cross-validation. In the equation

        y(b) - y(a) = integral of f(t, y(t), parameters) from a to b

    over many intervals there are then no unknowns but the parameters, in which it is often linear. So nothing can
    drop out of phase or blow up, and the start hardly matters; bounds are kept. It is biased where data are few or
    noisy: let [`estimate`][sciml.fit.estimate] go on from there.

    All states must be observed (`observe=None`); otherwise, use
    [`MultipleShooting`][sciml.fit.MultipleShooting]. There must be no doses. Priors and noise levels are not looked
    at.

    ```python
    import equinox as eqx
    import jax, jax.numpy as jnp
    from sciml import fit, solvers


    class LotkaVolterra(eqx.Module):
        a: jax.Array | float
        b: jax.Array | float

        def __call__(self, t, y, args):
            x, z = y
            return jnp.stack([self.a * x - self.b * x * z, x * z - 3 * z])


    ts, y0 = jnp.linspace(0.0, 10.0, 201), jnp.array([1.0, 1.0])
    sol = solvers.solve(LotkaVolterra(1.5, 1.0), y0, ts)
    problem = fit.Problem(
        LotkaVolterra(5.0, 5.0),
        fit.Data(ts, sol.ys),
        y0=y0,
        free={"a": fit.Free(0, 10), "b": fit.Free(0, 10)},
    )
    x = fit.Matching().start(problem)
    assert jnp.allclose(x, jnp.array([1.5, 1.0]), rtol=1e-2)
    ```

    **Arguments:**

    - `intervals`: over how many the equation is integrated; by default between all times of the data, but no more
      than 200.
    - `max_steps`: iterations.

    **Raises:**

    `ValueError` for states that are not observed, and for doses. `RuntimeError` if the model is not finite along
    the smoothed data.

    **References:** J. M. Varah, *A spline least squares method for numerical parameter estimation in differential
    equations*, SIAM J. Sci. Stat. Comput. 3 (1982), 28-46, doi 10.1137/0903003. I. Dattner, C. A. J. Klaassen,
    *Optimal rate of direct estimators in systems of ordinary differential equations linear in functions of the
    parameters*, Electron. J. Stat. 9 (2015), 1939-1973, doi 10.1214/15-EJS1053.
    """

    intervals: int | None = eqx.field(static=True, default=None)
    max_steps: int = eqx.field(static=True, default=200)

    def __check_init__(self):
        if self.intervals is not None:
            integer_at_least("intervals", self.intervals)
        integer_at_least("max_steps", self.max_steps)

    def start(self, problem: Problem) -> Float[Array, " parameter"]:
        """Flat parameters from which [`estimate`][sciml.fit.estimate] can go on."""
        check_problem(problem)
        refuse(problem, "Matching")
        along = tuple(self._along(problem, block) for block in problem.blocks)
        x, loss = _match(problem, along, self.max_steps)
        if not np.isfinite(float(loss)):
            raise RuntimeError(
                "Matching could not begin: along the smoothed data the model or its derivatives by the parameters "
                "are not finite at the start. Choose other starting values."
            )
        return x

    def _along(self, problem: Problem, block: Member) -> _Along:
        order = numbers_seen(problem, member_of(block, 0))
        if order is None:
            raise ValueError(
                "`Matching` needs data of every number of the state, and no `observe`. If some are not observed, use "
                "`fit.MultipleShooting()`."
            )
        for e in range(block.count):
            missing = ~np.any(np.asarray(block.data.seen[e]), axis=0)
            if missing.any():
                names = [n for n, m in zip(problem.observables, missing, strict=True) if m]
                name = problem.experiments[int(block.index[e])]
                where = f" in experiment {name!r}" if name else ""
                raise ValueError(
                    f"`Matching` needs data of every number of the state, but{where} there are none of "
                    f"{', '.join(names)}. Use `fit.MultipleShooting()`."
                )
        begins = [float(t[0]) for t in block.data.ts]
        times = [data_times(problem, int(i)) for i in block.index]
        times = [t[t >= begin] for t, begin in zip(times, begins, strict=True)]
        count = min(min(len(t) for t in times) - 1, 200)
        if count < 1:
            raise ValueError("`Matching` needs data at two times at least.")
        count = count if self.intervals is None else min(self.intervals, count)
        nodes, weights = np.polynomial.legendre.leggauss(_NODES)
        dtype = problem.lower.dtype
        back = np.argsort(order)
        out = []
        for t, curve, t0 in zip(times, curves(problem, block), block.t0, strict=True):
            at = t[np.round(np.linspace(0, len(t) - 1, count + 1)).astype(int)]
            half = np.diff(at) / 2
            ts = at[:-1, None] + half[:, None] * (1 + nodes)
            ys, edges = curve.table(ts)[..., back], curve.table(at)[:, back]
            first = edges[0] if float(t0) >= float(t[0]) else np.full_like(edges[0], np.nan)
            w = half[:, None] * weights
            out.append((ts, ys, w, np.diff(edges, axis=0), first, np.std(edges, axis=0)))
        ts, ys, w, rise, first, size = (
            jnp.asarray(np.stack(v), dtype) for v in zip(*out, strict=True)
        )
        size = jnp.max(size, axis=0)
        return _Along(ts, ys, w, rise, first, jnp.where(size > 0, size, 1))


@eqx.filter_jit
def _match(problem: Problem, along: tuple[_Along, ...], max_steps: int) -> tuple[Array, Array]:
    starts_free = callable(problem.y0) or any(s.root == "y0" for s in problem.slots)

    def residuals(x):
        out = []
        for block, a in zip(problem.blocks, along, strict=True):

            def one(member: Member, ts, ys, weights, rise, first, size=a.size):
                local = problem.local(x, member.index)
                parts = problem.parts_in(member.index, local)
                unravel = flat_state(problem, member)[1]
                slope = lambda t, y: flatten(parts[0](t, unravel(y), member.args)).astype(x.dtype)
                f = jax.vmap(jax.vmap(slope))(ts, ys)
                left = (rise - jnp.sum(weights[..., None] * f, axis=1)) / size[None]
                if not starts_free or member.rest is not None:
                    return left
                y0 = flatten(state_of(parts, member.args)).astype(x.dtype)
                return jnp.concatenate(
                    [left, jnp.where(jnp.isnan(first), 0, y0 - first)[None] / size[None]]
                )

            out.append(over(block, one, a.ts, a.ys, a.weights, a.rise, a.first).reshape(-1))
        return jnp.concatenate(out)

    def look(x):
        r = residuals(x)
        rows = jax.jacfwd(residuals)(x)
        loss = jnp.sum(r**2) / 2
        return Look(x, loss, r, loss, all_finite((r, rows))), Rows(rows, r)

    method = LevenbergMarquardt(geodesic=False)
    box = Box(problem.lower, problem.upper, True)
    end = run(method, look, problem.initial(), box, max_steps)
    return end.here.x, end.here.loss

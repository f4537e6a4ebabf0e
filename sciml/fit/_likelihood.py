"""Loss, gradient and curvature of a problem at flat parameters."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._results import RESULTS
from ..solvers._nonlinear._loop import all_finite, Look
from ..solvers._nonlinear._quadratic import Rows
from ._blocks import Member, over
from ._grow import in_sight
from ._laws import observed
from ._levels import laws_of, level_is_free, spread
from ._parameters import informative
from ._problem import Problem
from ._simulate import predict_at


def _per_value(problem: Problem, parts: tuple, m, s, z, member: Member):
    """The law's answers for each number of a table: loss, gradients, curvatures by location and level."""
    noise, data = parts[2], member.data
    free = level_is_free(problem)
    side = data.censored
    value, by_m, by_s = [], [], []
    kinds = []
    for law, place in laws_of(noise, problem.observables):
        pick = lambda v, place=place: v[:, place]
        mm, ss, zz = pick(m), pick(s), pick(z)
        sides = None if side is None else pick(side).astype(mm.dtype)

        def nll(m, s, z, law=law, sides=sides):
            plain = law.nll(m, s, z) if free else law.misfit(m, s, z)
            if sides is None:
                return plain
            return jnp.where(sides == 0, plain, law.tail(m, s, z, jnp.where(sides == 0, 1, sides)))

        total = lambda m, s, z=zz, nll=nll: jnp.sum(nll(m, s, z))
        value.append(nll(mm, ss, zz))
        gm, gs = jax.grad(total, argnums=(0, 1))(mm, ss)
        by_m.append(gm)
        by_s.append(gs)
        kinds.append((law, nll, mm, ss, zz, sides))
    join = lambda parts: jnp.concatenate(parts, axis=1)
    return join(value), join(by_m), join(by_s), kinds


def _curvatures(kinds, expected: bool):
    out = []
    for law, nll, m, s, z, sides in kinds:
        c = law.information(m, s, z) if expected else law.curvature(m, s, z)
        if sides is not None:
            cut = observed(nll, m, s, z)
            c = tuple(jnp.where(sides == 0, a, b) for a, b in zip(c, cut, strict=True))
        out.append(c)
    return tuple(jnp.concatenate(c, axis=1) for c in zip(*out, strict=True))


def look(
    problem: Problem, x: Float[Array, " parameter"], expected: bool = False
) -> tuple[Look, Rows]:
    """Loss, gradient and Fisher information at `x`, by forward sensitivities.

    With location m and logarithmic level s, each value adds its loss l(m, s), its gradient, and a curvature
    in m and s: the expected one (`expected`), which is what standard errors are made of, or one that the law
    prefers for the steps.
    """
    n = x.shape[0]
    free = level_is_free(problem)
    table = problem.table()

    def one(member: Member):
        def located(local):
            pred, _, parts = predict_at(problem, local, member, member.data.ts, "forward")
            m, s, z = spread(parts[2], problem.observables, member.data, pred)
            return (m, s), (m, s, z)

        local = problem.local(x, member.index)
        parts = problem.parts_in(member.index, local)
        (j_m, j_s), (m, s, z) = jax.jacfwd(located, has_aux=True)(local)
        seen = member.data.seen
        m, s, z = (jnp.where(seen, v, 1) for v in (m, s, z))
        value, by_m, by_s, kinds = _per_value(problem, parts, m, s, z, member)
        c_mm, c_ms, c_ss = _curvatures(kinds, expected)
        blank = lambda v: jnp.where(seen, v, 0).reshape(-1)
        value, by_m, by_s, c_mm, c_ms, c_ss = map(blank, (value, by_m, by_s, c_mm, c_ms, c_ss))
        flat = lambda j: jnp.where(seen[..., None], j, 0).reshape(-1, local.size)
        j_m, j_s = flat(j_m), flat(j_s)
        root = jnp.sqrt(c_mm)
        rows, target = j_m * root[:, None], _ratio(by_m, root)
        gradient = jnp.sum(j_m * jnp.where(root > 0, 0, by_m)[:, None], axis=0)
        if free:
            # The Cholesky factor of each number's two by two matrix.
            below = _ratio(c_ms, root)
            corner = jnp.sqrt(jnp.maximum(c_ss - below**2, 0))
            rows = rows + j_s * below[:, None]
            rest = by_s - below * target
            rows = jnp.concatenate([rows, j_s * corner[:, None]])
            target = jnp.concatenate([target, _ratio(rest, corner)])
            gradient += jnp.sum(j_s * jnp.where(corner > 0, 0, rest)[:, None], axis=0)
        misfit = _misfit(kinds, seen) if free else jnp.sum(value)
        if table is not None:
            columns = jnp.asarray(table)[member.index]
            rows = jnp.zeros((rows.shape[0], n), rows.dtype).at[:, columns].add(rows)
            gradient = jnp.zeros((n,), rows.dtype).at[columns].add(gradient)
        return jnp.sum(value), misfit, rows, target, gradient

    parts = [over(block, one) for block in problem.blocks]
    loss, misfit, extra = (
        jnp.sum(jnp.concatenate([p[k] for p in parts]), axis=0) for k in (0, 1, 4)
    )
    rows = jnp.concatenate([p[2].reshape(-1, n) for p in parts])
    target = jnp.concatenate([p[3].reshape(-1) for p in parts])
    if any(informative(p) for p in problem.priors):
        value, slope, bend = prior_terms(problem, x)
        loss, misfit, extra = loss + value, misfit + jnp.abs(value), extra + slope
        rows = jnp.concatenate([rows, jnp.diag(jnp.sqrt(bend))])
        target = jnp.concatenate([target, jnp.zeros_like(x)])
    fine = all_finite((loss, rows, target, extra))
    return Look(x, loss, target, misfit, fine), Rows(rows, target, extra)


def _ratio(a, b):
    some = b > 0
    return jnp.where(some, a / jnp.where(some, b, 1), 0)


def _misfit(kinds, seen):
    """The part of the loss that a perfect prediction would not have."""
    parts = []
    for law, nll, m, s, z, sides in kinds:
        part = law.misfit(m, s, z)
        parts.append(part if sides is None else jnp.where(sides == 0, part, nll(m, s, z)))
    return jnp.sum(jnp.where(seen, jnp.concatenate(parts, axis=1), 0))


def prior_terms(problem: Problem, x):
    """Minus the log prior up to a constant, its gradient and a curvature, in the flat parameters."""
    values, slopes, bends = [jnp.zeros((), x.dtype)], [], []
    for slot, prior, theta in zip(problem.slots, problem.priors, problem.naturals(x), strict=True):
        if prior is None:
            slopes.append(jnp.zeros((slot.size,), x.dtype))
            bends.append(jnp.zeros((slot.size,), x.dtype))
            continue
        penalty = lambda v, prior=prior: _penalty(prior, v).astype(x.dtype)
        log = slot.scale == "log"
        flat = lambda u, penalty=penalty, log=log: penalty(jnp.exp(u) if log else u)
        u = jnp.log(theta) if log else theta
        slope, bend = jax.jvp(jax.grad(flat), (u,), (jnp.ones_like(u),))
        if log:
            # It stands for a Hessian and must not be negative: if need be without the term with the second
            # derivative of the scale, as Gauss and Newton do for residuals.
            plain = jax.jvp(jax.grad(penalty), (theta,), (theta,))[1] * theta
            bend = jnp.where(bend > 0, bend, plain)
        values.append(penalty(theta))
        slopes.append(jnp.ravel(slope))
        bends.append(jnp.ravel(jnp.maximum(bend, 0)))
    none = [jnp.zeros((0,), x.dtype)]
    return jnp.sum(jnp.stack(values)), jnp.concatenate(none + slopes), jnp.concatenate(none + bends)


def _penalty(prior, value):
    own = getattr(prior, "penalty", None)
    return jnp.sum(own(value) if own is not None else -prior.log_prob(value))


def loss_at(
    problem: Problem,
    x: Float[Array, " parameter"],
    derivatives,
    share: Float[Array, ""] | None = None,
    chosen: list[Bool[Array, "experiment time"]] | None = None,
):
    """The loss at `x`.

    **Arguments:**

    - `share`: how much of the span of each experiment counts.
    - `chosen`: which rows of each block count.

    **Returns:**

    The loss of the data and that of the priors, whether the solves went well, and how many values counted.
    """

    def one(member: Member, rows: Array):
        ts = member.data.ts
        if share is not None:
            ts, near = in_sight(ts, member.t0, share)
            rows = rows & near
        local = problem.local(x, member.index)
        pred, result, parts = predict_at(problem, local, member, ts, derivatives)
        m, s, z = spread(parts[2], problem.observables, member.data, pred)
        seen = member.data.seen & rows[:, None]
        m, s, z = (jnp.where(seen, v, 1) for v in (m, s, z))
        value = jnp.where(seen, _per_value(problem, parts, m, s, z, member)[0], 0)
        return jnp.sum(value), result == RESULTS.successful, jnp.sum(seen)

    parts = []
    for k, block in enumerate(problem.blocks):
        rows = jnp.ones(block.data.ts.shape, bool) if chosen is None else chosen[k]
        # On fixed steps all take as many.
        together = problem.solve.steps is not None and block.rest is None
        parts.append(over(block, one, rows, together=together))
    total, fine, count = (jnp.concatenate(p) for p in zip(*parts, strict=True))
    return jnp.sum(total), prior_terms(problem, x)[0], jnp.all(fine), jnp.sum(count)

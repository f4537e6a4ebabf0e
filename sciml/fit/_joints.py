"""The linear part of multiple shooting: a triangle for each window, its states eliminated, the parameters left."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..solvers._nonlinear._quadratic import Quadratic
from ..solvers._nonlinear._triangle import back, triangle
from ._likelihood import prior_terms
from ._parameters import informative
from ._problem import Problem


class Piece(eqx.Module):
    """The linear part of one experiment; columns are the window's first state, the parameters, and the residuals.

    - `data`: a triangle with the same squares as the weighted residuals of the data.
    - `ends`: derivatives of the windows' last states. `gaps`: last states minus the next window's first.
    - `first`: derivative of the initial state by the parameters.
    """

    data: Float[Array, "window row column"]
    ends: Float[Array, "joint state input"]
    gaps: Float[Array, "joint state"]
    first: Float[Array, "state local"]


def losses(pieces, pull) -> tuple[Array, Array]:
    """Half the sums of squares: of the data, and of the gaps."""
    data = [jnp.sum(p.data[..., -1] ** 2) for p in pieces]
    gaps = [jnp.sum((p.gaps * pull[None, None]) ** 2) for p in pieces]
    return jnp.sum(jnp.stack(data)) / 2, jnp.sum(jnp.stack(gaps)) / 2


def lengths(problem, pieces, pull, x):
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
        columns = columns_of(table, block, x)
        total = total.at[columns.reshape(-1)].add(local.reshape(-1))
    return jnp.sqrt(total), each


def columns_of(table, block, x):
    """Which of the flat parameters each experiment uses."""
    if table is None:
        return jnp.broadcast_to(jnp.arange(x.shape[0])[None], (block.count, x.shape[0]))
    return jnp.asarray(table)[block.index]


def _eliminate(piece: Piece, pull, damping):
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


def substitute(piece: Piece, joints, step):
    """The change of the states, from the first window to the last."""
    d = piece.first.shape[0]

    def one(before, joint):
        right = joint[:, d:-1] @ jnp.concatenate([before, step]) + joint[:, -1]
        change = back(joint[:, :d], -right)
        return change, change

    return jax.lax.scan(one, piece.first @ step, joints)[1]


def reduced(problem: Problem, pieces, pull, damping, x):
    """What is left for the parameters: a quadratic, and the smallest that it can be."""
    table = problem.table()
    n = x.shape[0]
    stack, all_joints = [], []
    for block, p, damp in zip(problem.blocks, pieces, damping, strict=True):
        rows, joints = jax.vmap(lambda p, damp: _eliminate(p, pull, damp))(p, damp)
        all_joints.append(joints)
        columns = columns_of(table, block, x)
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

"""A root finder for the implicit solvers of Diffrax that goes on while it converges."""

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import optimistix as optx


class ChordUntilDiverged(diffrax.VeryChord):
    """Chord iterations that stop when they have converged or diverge, not after two.

    `diffrax.VeryChord` calls "not converged yet" a divergence, and Optimistix 0.1.0 ends an
    iteration at the first unsuccessful result. Together (Diffrax 0.7.2) they end each implicit
    stage after two iterations, so that the step is rejected: Robertson's problem at rtol 1e-8
    takes 1643 steps where 130 do. It also never ends at a rounding error that stays, so that `KenCarp4`
    does not get on at 1e-6. `solve` puts this class in the place of the default root
    finder of a Diffrax solver.
    """

    # Wider than the parent's types: Diffrax puts "as the step size controller has it" here.
    rtol: Any
    atol: Any
    norm: Any = optx.max_norm

    def terminate(self, fn, y, args, options, state, tags):
        terminate, result = super().terminate(fn, y, args, options, state, tags)
        rate = state.diffsize / state.diffsize_prev
        growing = ~jnp.isfinite(rate) | (rate > 2)
        diverged = result == optx.RESULTS.nonlinear_divergence
        # Rounding errors stay, or grow at random: far below the tolerance that is convergence.
        arrived = diverged & (state.diffsize < 1e-2 * self.kappa)
        waiting = diverged & ~growing & ~arrived
        keep = optx.RESULTS.where(waiting | arrived, optx.RESULTS.successful, result)
        return (terminate | arrived) & ~waiting, keep

    def postprocess(self, fn, y, aux, args, options, state, tags, result):
        # The implicit function theorem solves with the Jacobian here, and Lineax raises where that
        # is not finite. The step of a diverged stage is rejected: any finite point will do.
        finite = jnp.stack([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(y)]).all()
        ok = finite & (result == optx.RESULTS.successful)
        return jax.tree.map(lambda x: jnp.where(ok, x, jnp.zeros_like(x)), y), aux, {}


def repair(solver: diffrax.AbstractSolver) -> diffrax.AbstractSolver:
    """Replaces Diffrax's default root finder in `solver`; one chosen by the user stays."""
    finder = getattr(solver, "root_finder", None)
    if type(finder) is not diffrax.VeryChord:
        return solver
    repaired = ChordUntilDiverged(
        rtol=finder.rtol,
        atol=finder.atol,
        norm=finder.norm,
        kappa=finder.kappa,
        linear_solver=finder.linear_solver,
    )
    return eqx.tree_at(lambda s: s.root_finder, solver, repaired)

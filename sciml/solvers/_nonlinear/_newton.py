"""Newton's method for equations, with what keeps it from getting lost."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from ..._compat import varies
from .._jacobian import AbstractJacobian, Dense
from ._globalisation import (
    AbstractGlobalisation,
    Backtracking,
    Control,
    Damping,
    Dogleg,
    FullStep,
    Linear,
    PseudoTransient,
)
from ._loop import Answer, CONVERGED, Finish, GOING, SINGULAR, STALLED
from ._method import AbstractRootMethod
from ._triangle import null_direction, triangle


_PATIENCE = 400  # evaluations for each of several globalisations but the last


class _Memory(eqx.Module):
    """- `phase`: which globalisation is at work; `fresh`: whether the trial is its start.
    - `last`: whether the trial is the end of the last Newton step.
    - `since`: evaluations since the phase began. `size`: the largest each unknown was so far.
    """

    model: Linear
    control: Control
    start: Array
    size: Array
    phase: Int[Array, ""]
    fresh: Bool[Array, ""]
    last: Bool[Array, ""]
    since: Int[Array, ""]


class Newton(AbstractRootMethod):
    """Newton's method, kept on its way by one globalisation after the other until one succeeds.

    The default of [`root`][sciml.solvers.root]. It first shortens steps until the residuals fall; if that leads
    nowhere, as it does near points at which the Jacobian is singular, it starts again with a trust region (dogleg
    steps), and then with full steps. All of them share one evaluation of the function, so that the choice costs
    little to compile and nothing to run.

    Convergence is judged by Newton's step, which is an estimate of the error: not by the residuals, whose units
    nobody knows. The last step is taken as well, so that the error is about the square of `xtol`.

    ```python
    import jax.numpy as jnp
    from sciml import solvers

    sol = solvers.root(lambda y, _: jnp.arctan(y), 3.0)
    assert abs(sol.value) < 1e-6
    trust = solvers.Newton(globalisation=solvers.Dogleg())
    sol = solvers.root(lambda y, _: jnp.sqrt(y) - 0.01, 4.0, method=trust)
    assert jnp.allclose(sol.value, 1e-4, rtol=1e-3)
    ```

    **Arguments:**

    - `jac`: the structure of the Jacobian: [`Banded`][sciml.solvers.Banded], [`Sparse`][sciml.solvers.Sparse],
      [`BlockTridiagonal`][sciml.solvers.BlockTridiagonal], [`BlockDiagonal`][sciml.solvers.BlockDiagonal], or
      [`Krylov`][sciml.solvers.Krylov], which is Newton-Krylov. By default dense.
    - `globalisation`: one of `FullStep`, `Backtracking`, `Dogleg`, `Damping`, `PseudoTransient` of
      `sciml.solvers`, or several, tried one after the other.
    - `xtol`: the length of Newton's step, relative to each unknown, at which the iteration ends; by default the root
      of eps.
    - `ftol`: absolute size of the residuals that counts as zero; by default only what can't be told from rounding
      errors does.
    """

    jac: AbstractJacobian = Dense()
    globalisation: Any = eqx.field(static=True, default=None)
    ftol: Any = None
    xtol: Any = None

    def __check_init__(self):
        if not isinstance(self.jac, AbstractJacobian):
            raise TypeError(
                f"`jac` must be a structure such as `solvers.Banded(1, 1)`, but got {self.jac!r}."
            )
        if not self.phases:
            raise ValueError(
                "`globalisation` is empty: leave it out, or name one such as `solvers.Dogleg()`."
            )
        for g in self.phases:
            if not isinstance(g, AbstractGlobalisation):
                raise TypeError(
                    "`globalisation` must be one or several of `solvers.FullStep()`, `Backtracking()`, `Dogleg()`, "
                    f"`Damping()` and `PseudoTransient()`, but got {g!r}."
                )
            if isinstance(g, Damping) and not isinstance(self.jac, Dense):
                raise ValueError("`Damping` needs a dense Jacobian: leave out `jac`.")

    @property
    def phases(self) -> tuple:
        if self.globalisation is None:
            return (Backtracking(), Dogleg(), FullStep())
        several = isinstance(self.globalisation, tuple | list)
        return tuple(self.globalisation) if several else (self.globalisation,)

    def begin(self, x0, m):
        n, dtype = x0.shape[0], x0.dtype
        zero, none = jnp.zeros((), dtype), jnp.zeros_like(x0)
        matrix = jnp.zeros((n, n), dtype) if isinstance(self.jac, Dense) else None
        count, no = jnp.zeros((), jnp.result_type(int)), jnp.asarray(False)
        return _Memory(
            model=Linear(none, none, none, none, none, matrix),
            control=Control(zero, none, zero, zero),
            start=x0,
            size=jnp.abs(x0),
            phase=count,
            fresh=jnp.asarray(True),
            last=no,
            since=count,
        )

    def _switch(self, phase, name, *operands):
        branches = [getattr(g, name) for g in self.phases]
        if len(branches) == 1:
            return branches[0](*operands)
        return jax.lax.switch(phase, branches, *operands)

    def _linear(self, along, there, memory: _Memory, shift) -> Linear:
        x, value = there.x, there.value
        linearisation = self.jac.at(along, None, x, None)
        newton = linearisation.solver(shift)(value)
        matrix, unit = None, jnp.ones_like(x)
        if isinstance(self.jac, Dense):
            matrix = linearisation.matrix  # pyright: ignore[reportAttributeAccessIssue]
            gradient = matrix.T @ value
            unit = jnp.sqrt(jnp.sum(matrix**2, axis=0))
            before = jnp.where(memory.fresh, 0, memory.model.unit)
            unit = jnp.maximum(before, jnp.where(jnp.isfinite(unit), unit, 0))
            unit = jnp.where(unit > 0, unit, 1)
            slope = matrix @ (gradient / unit**2)
        else:
            (gradient,) = jax.linear_transpose(along, x)(value)
            slope = along(gradient)
        return Linear(newton, value, gradient, unit, slope, matrix)

    def respond(self, state, there, linear, box):
        s, dtype = state.memory, there.x.dtype
        ftol, xtol = self.tolerances(dtype)
        eps = jnp.finfo(dtype).eps
        here = state.here
        judged, control = self._switch(s.phase, "judge", s.control, here, there)
        settled = there.loss <= here.loss
        accept = there.fine & (s.fresh | jnp.where(s.last, settled, judged))
        x = jnp.where(accept, there.x, here.x)
        value = jnp.where(accept, there.value, here.value)

        shifts = [
            g.shift(control) if isinstance(g, PseudoTransient) else 0 * control.size
            for g in self.phases
        ]
        shift = jnp.stack(shifts)[s.phase]
        # After the last step nobody asks for the next one.
        build = accept & ~s.last
        new = lambda: self._linear(linear, there, s, shift)
        if varies(build) and not isinstance(self.jac, Dense):
            # In a `shard_map` the constants of a structure can't enter a branch that is batched.
            model = jax.tree.map(lambda a, b: jnp.where(build, a, b), new(), s.model)
        else:
            model = jax.lax.cond(build, new, lambda: s.model)
        control, lost = self._switch(s.phase, "proposal", model, x, control, s.fresh, box)

        # How far it is to the root, by Newton's step.
        size = jnp.maximum(jnp.where(s.fresh, 0, s.size), jnp.where(accept, jnp.abs(x), 0))
        near = jnp.abs(model.newton) <= xtol * jnp.abs(x) + eps * size
        near = accept & jnp.all(near) & (shift * xtol <= 1)
        solved = accept & (jnp.max(jnp.abs(value)) <= ftol)
        if model.matrix is not None:
            noise = 4 * eps * (jnp.abs(model.matrix) @ jnp.abs(x))
            solved = solved | (accept & jnp.all(jnp.abs(value) <= noise))
        converged = solved | s.last
        since = s.since + 1
        lost = (lost & ~near) | (~accept & s.fresh)
        more = s.phase < len(self.phases) - 1
        lost = lost | ((since > _PATIENCE) & more)
        change = lost & more & ~converged
        trial = box.land(x, jnp.where(near, model.newton, control.step))
        # The bounds, or rounding, hold it where it is.
        change = change | (jnp.all(trial == x) & more & ~converged & ~near)
        lost = lost | (jnp.all(trial == x) & ~near)
        memory = _Memory(
            model=model,
            control=control,
            start=s.start,
            size=size,
            phase=s.phase + jnp.where(change, 1, 0),
            fresh=change,
            last=near,
            since=jnp.where(change, 0, since),
        )
        code = jnp.where(lost & ~more, STALLED, GOING)
        code = jnp.where(converged, CONVERGED, code)
        return Answer(accept, jnp.where(change, s.start, trial), memory, code)

    def finish(self, state, box):
        here, model = state.here, state.memory.model
        null = jnp.zeros_like(here.x)
        singular = jnp.asarray(False)
        if model.matrix is not None:
            # Only where it matters; it costs a factorisation.
            failed = state.code != CONVERGED
            singular = failed & ~failed
            eps = jnp.finfo(here.x.dtype).eps
            lengths = jnp.sqrt(jnp.sum(model.matrix**2, axis=0))
            lengths = jnp.where(lengths > 0, lengths, 1)

            def direction():
                v, least = null_direction(triangle(model.matrix / lengths[None]))
                v = v / lengths
                v = v / jnp.sqrt(jnp.sum(v**2))
                # A singular matrix is rarely met exactly: half of the digits tell.
                found = least <= jnp.sqrt(eps)
                return jnp.where(found, v, 0), found

            null, singular = jax.lax.cond(failed & here.fine, direction, lambda: (null, singular))
        code = jnp.where(singular & (state.code != CONVERGED), SINGULAR, state.code)
        return Finish(code, jnp.max(jnp.abs(here.value)), null)

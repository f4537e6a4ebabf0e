"""A horizon that grows: first the begin of the data is fitted, then more of them."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._checks import integer_at_least
from ..solvers._nonlinear._levenberg_marquardt import LevenbergMarquardt
from ..solvers._nonlinear._loop import Box, run
from ._blocks import Member
from ._experiment import with_fields
from ._grow import in_sight
from ._likelihood import look
from ._problem import check_problem, Problem


class GrowingHorizon(eqx.Module):
    """Finds a start for an estimate by fitting the begin of each experiment first, and then more and more of it.

    Errors of the parameters grow with time: over a short one they leave a solution in phase, and what is learnt
    there is good enough for a somewhat longer one. It costs no more than a few fits, and works with whatever
    `estimate` can deal with, doses too. The begin must tell the parameters, at least roughly: if it can't, because
    states are not observed, or at rest before a stimulus, and for chaotic systems, use
    [`MultipleShooting`][sciml.fit.MultipleShooting].

    ```python
    import equinox as eqx
    import jax, jax.numpy as jnp
    from sciml import fit


    class Oscillator(eqx.Module):
        stiffness: jax.Array | float

        def __call__(self, t, y, args):
            return jnp.stack([y[1], -self.stiffness * y[0]])


    ts = jnp.linspace(0.0, 20.0, 101)
    problem = fit.Problem(
        Oscillator(1.0),
        fit.Data(ts, jnp.cos(2 * ts)),
        y0=jnp.array([1.0, 0.0]),
        free={"stiffness": fit.Free(0, 20)},
        observe=lambda t, y, args: y[:1],
    )
    x = fit.GrowingHorizon(first=0.05).start(problem)
    assert jnp.allclose(x, 4.0, rtol=1e-2)
    ```

    **Arguments:**

    - `first`: the share of the time from `t0` to the last data that is fitted first.
    - `stages`: how many shares, growing by the same factor each, before all of the data.
    - `max_steps`: iterations for each.
    """

    first: float = 0.1
    stages: int = eqx.field(static=True, default=8)
    max_steps: int = eqx.field(static=True, default=50)

    def __check_init__(self):
        integer_at_least("stages", self.stages)
        integer_at_least("max_steps", self.max_steps)
        if not 0 < self.first < 1:
            raise ValueError(f"`first` must lie between 0 and 1, but is {self.first}.")

    def start(self, problem: Problem) -> Float[Array, " parameter"]:
        """Flat parameters from which [`estimate`][sciml.fit.estimate] can go on."""
        check_problem(problem)
        x = problem.initial()
        for k in range(self.stages):
            share = jnp.asarray(self.first ** (1 - k / self.stages), x.dtype)
            x = _fit(_begin(problem, share), x, self.max_steps)
        return x


def _begin(problem: Problem, share: Array) -> Problem:
    """The problem without the data behind a share of the time."""

    def cut(block: Member) -> Member:
        ts, near = jax.vmap(in_sight, in_axes=(0, 0, None))(block.data.ts, block.t0, share)
        data = with_fields(block.data, ts=ts, seen=block.data.seen & near[..., None])
        return with_fields(block, data=data)

    return with_fields(problem, blocks=tuple(cut(block) for block in problem.blocks))


@eqx.filter_jit
def _fit(problem: Problem, x: Array, max_steps: int) -> Array:
    method = LevenbergMarquardt(1e-8, 1e-6, geodesic=False, extra=True)
    box = Box(problem.lower, problem.upper, True)
    end = run(method, lambda x: look(problem, x), x, box, max_steps)
    # Where the start itself can't be solved, later stages can't, either; `estimate` says why.
    return jax.tree.map(
        lambda new, old: jnp.where(jnp.isfinite(end.here.loss), new, old), end.here.x, x
    )

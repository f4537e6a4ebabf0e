"""One equation in one unknown, between two points at which the signs differ."""

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from ._loop import Answer, CONVERGED, GOING, NO_SIGN_CHANGE, STALLED
from ._method import AbstractRootMethod


class _Memory(eqx.Module):
    """- `a`, `b`, `c`: points with their values: the newest, the one on the other side of the root, the one before.
    - `stage`: 0 the start, 1 the lower bound, 2 the upper one, then the search. `height`: the smaller value of the
      two ends when it began.
    """

    a: Array
    b: Array
    c: Array
    start: Array
    stage: Array
    height: Array


class Bracket(AbstractRootMethod):
    """Chandrupatla's method: inverse quadratic interpolation where that is safe, and bisection elsewhere.

    For one equation in one unknown, with `bounds` at which the function has different signs; it needs no derivatives
    and can't fail then. The bracket always encloses a root.

    ```python
    import jax.numpy as jnp
    from sciml import solvers

    fn = lambda y, _: jnp.exp(y) - 5.0
    sol = solvers.root(fn, 1.0, bounds=(0.0, 10.0), method=solvers.Bracket())
    assert jnp.allclose(sol.value, jnp.log(5.0))
    ```

    **Arguments:** `xtol`: width of the bracket, relative to the root; by default 4 eps. `ftol`: absolute size of the
    function that counts as zero.

    **Reference:** T. R. Chandrupatla, *A new hybrid quadratic/bisection algorithm for finding the zero of a nonlinear
    function without using derivatives*, Adv. Eng. Software 28 (1997), 145-149, doi 10.1016/S0965-9978(96)00051-8.
    """

    ftol: Any = None
    xtol: Any = None
    derivatives: ClassVar[bool] = False

    def begin(self, x0, m):
        if x0.shape[0] != 1:
            raise ValueError(f"`Bracket` is for one unknown, but there are {x0.shape[0]}.")
        none = jnp.zeros((2,), x0.dtype)
        stage = jnp.zeros((), jnp.result_type(int))
        return _Memory(none, none, none, none, stage, jnp.zeros((), x0.dtype))

    def respond(self, state, there, linear, box):
        if not box.real:
            raise ValueError(
                "`Bracket` needs `bounds=(lower, upper)` between which the sign changes."
            )
        s = state.memory
        dtype = there.x.dtype
        ftol, xtol = self.tolerances(dtype)
        new = jnp.concatenate([there.x, there.value])
        searching = s.stage >= 3
        differs = lambda p, q: (jnp.sign(p[1]) != jnp.sign(q[1])) & jnp.isfinite(p[1] + q[1])

        # The search: which side the new point replaces.
        same = jnp.sign(new[1]) == jnp.sign(s.a[1])
        c = jnp.where(same, s.a, s.b)
        b = jnp.where(same, s.b, s.a)
        # At its beginning, of the start and the bounds, the pair that encloses a root.
        left = differs(s.start, s.a)
        begun_b = jnp.where(left, s.a, new)
        start = jnp.where(s.stage == 0, new, s.start)
        a = jnp.where(searching, new, jnp.where(s.stage == 1, new, start))
        b = jnp.where(searching, b, begun_b)
        c = jnp.where(searching, c, jnp.where(left, new, s.a))

        xi = (a[0] - b[0]) / jnp.where(c[0] == b[0], 1, c[0] - b[0])
        phi = (a[1] - b[1]) / jnp.where(c[1] == b[1], 1, c[1] - b[1])
        quadratic = (phi**2 < xi) & ((1 - phi) ** 2 < 1 - xi)
        safe = lambda v: jnp.where(v == 0, 1, v)
        t = a[1] / safe(b[1] - a[1]) * c[1] / safe(b[1] - c[1])
        t = t + (c[0] - a[0]) / safe(b[0] - a[0]) * a[1] / safe(c[1] - a[1]) * b[1] / safe(
            c[1] - b[1]
        )
        width = jnp.abs(b[0] - a[0])
        best = jnp.where(jnp.abs(a[1]) < jnp.abs(b[1]), a, b)
        least = (2 * xtol * jnp.abs(best[0]) + jnp.finfo(dtype).tiny) / jnp.where(
            width > 0, width, 1
        )
        t = jnp.where(quadratic & jnp.isfinite(t), t, 0.5)
        t = jnp.clip(t, jnp.minimum(least / 2, 0.5), jnp.maximum(1 - least / 2, 0.5))
        inner = a[0] + t * (b[0] - a[0])
        trial = jnp.where(s.stage == 0, box.lower, jnp.where(s.stage == 1, box.upper, inner[None]))

        # The better end of the bracket, and not the smallest value seen: that may be a bound.
        held = state.here.x[0]
        outside = searching & ((held < jnp.minimum(a[0], b[0])) | (held > jnp.maximum(a[0], b[0])))
        better = there.fine & (state.first | outside | (there.loss <= state.here.loss))
        # At a pole the sign changes as well, but the function grows.
        height = jnp.where(s.stage == 2, jnp.minimum(jnp.abs(a[1]), jnp.abs(b[1])), s.height)
        pole = jnp.abs(best[1]) > height
        zero = jnp.abs(there.value[0]) <= ftol
        tight = (s.stage >= 2) & (width <= 2 * xtol * jnp.abs(best[0]) + jnp.finfo(dtype).tiny)
        missing = (s.stage == 2) & ~differs(a, b) & ~zero
        code = jnp.where(missing, NO_SIGN_CHANGE, GOING)
        end = jnp.where(pole, STALLED, CONVERGED)
        code = jnp.where(tight & ~missing, end, code)
        code = jnp.where(searching & ~there.fine, STALLED, code)
        code = jnp.where(zero & there.fine, CONVERGED, code)
        memory = _Memory(a, b, c, start, jnp.minimum(s.stage + 1, 3), height)
        return Answer(better, trial, memory, code)

    def default_tolerances(self, eps):
        return 0.0, 2 * eps

"""Quasi-Newton methods: curvature from the gradients on the way."""

import abc
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._indexing import put, take
from .._norms import norm
from . import _wolfe as wolfe
from ._conjugate_gradients import conjugate_gradients
from ._loop import Answer, CONVERGED, Finish, GOING, STALLED, UNBOUNDED
from ._method import AbstractMinimiser


_FAR = 1e30  # times the first step: what still falls there falls for ever


class _Memory(eqx.Module):
    """- `pairs`: what the method knows of the curvature. `direction`, `search`: of the line search.
    - `promise`: by how much a full step would lower the function. `forced`: whether the trial is the best point of
      a search that did not end well.
    """

    pairs: Any
    direction: Array
    search: wolfe.Search
    promise: Array
    forced: Array
    fresh: Array


class _AbstractQuasiNewton(AbstractMinimiser):
    """Line searches along directions that `times` computes of what `learn` has gathered."""

    order: ClassVar[int] = 1

    @abc.abstractmethod
    def empty(self, x0: Float[Array, " n"]) -> Any:
        """Nothing known."""

    @abc.abstractmethod
    def learn(self, pairs, s: Float[Array, " n"], y: Float[Array, " n"]) -> Any:
        """After a step `s` that changed the gradient by `y`, with s.y > 0."""

    @abc.abstractmethod
    def times(self, pairs, v: Float[Array, " n"]) -> Float[Array, " n"]:
        """The inverse Hessian times `v`."""

    def begin(self, x0, m):
        zero, none, no = jnp.zeros((), x0.dtype), jnp.zeros_like(x0), jnp.asarray(False)
        search = wolfe.begin(zero, zero, zero, zero)
        return _Memory(self.empty(x0), none, search, zero, no, jnp.asarray(True))

    def respond(self, state, there, linear, box):
        s, here, first = state.memory, state.here, state.first
        dtype = there.x.dtype
        eps = jnp.finfo(dtype).eps
        ftol, xtol = self.tolerances(dtype)
        slope = jnp.sum(there.value * s.direction)
        good, over, search = wolfe.advance(s.search, here.loss, there.loss, slope, there.fine)
        accept = there.fine & (first | good | (s.forced & (there.loss <= here.loss)))
        # The best point of a search that found no good one, if there is any, is looked at once more.
        back = over & (search.low[0] > 0) & ~s.forced & ~accept
        lost = ((over & (search.low[0] <= 0)) | s.forced) & ~accept

        moved, turn = there.x - here.x, there.value - here.value
        curved = jnp.sum(moved * turn) > eps * norm(moved) * norm(turn)
        update = accept & ~first & curved
        pairs = jax.lax.cond(update, lambda: self.learn(s.pairs, moved, turn), lambda: s.pairs)
        # Lost with what was learnt: once more without it.
        restart = lost & ~s.fresh
        pairs = jax.tree.map(
            lambda a, b: jnp.where(restart | first, a, b), self.empty(there.x), pairs
        )
        fresh = first | restart | (s.fresh & ~update)

        x = jnp.where(accept, there.x, here.x)
        g = jnp.where(accept, there.value, here.value)
        loss = jnp.where(accept, there.loss, here.loss)
        anew = accept | restart

        def new_direction():
            blocked = box.blocked(x, g)
            free = ~blocked
            if box.real:
                d = self._towards_inside(pairs, x, g, free, box)
                free = jnp.ones_like(free)
            else:
                d = -self.times(pairs, g)
            d = jnp.where(jnp.all(jnp.isfinite(d)) & free, d, 0)
            d = jnp.where(jnp.sum(d * g) < 0, d, jnp.where(free, -g, 0))
            # Before anything was learnt nobody knows the scale: what a restart promises is what was last known.
            promise = jnp.where(fresh, jnp.where(first, jnp.inf, s.promise), -jnp.sum(d * g) / 2)
            # Nothing is known of the scale at first, but that the unknowns may change by about as much as they are.
            size, large = jnp.sum(jnp.abs(g)), jnp.max(jnp.abs(x))
            stride = jnp.where(large > 0, jnp.minimum(large, 1), 1)
            t = jnp.where(fresh, stride / jnp.where(size > 0, size, 1), 1.0)
            longest = _FAR + 0 * size
            if box.real:
                t, d = jnp.ones_like(t), self._inside(x, t * d, g, box)
                # As far as the first bound, which is at least the end of the direction.
                room = jnp.where(d > 0, box.upper - x, x - box.lower) / jnp.where(
                    d == 0, 1, jnp.abs(d)
                )
                longest = jnp.maximum(1, jnp.min(jnp.where(d == 0, longest, room)))
            return d, promise, wolfe.begin(t.astype(dtype), longest, loss, jnp.sum(d * g))

        keep = lambda: (s.direction, s.promise, search)
        direction, promise, search = jax.lax.cond(anew, new_direction, keep)
        t = jnp.where(back, search.low[0], search.t)

        noise = 4 * eps * (jnp.abs(loss) + jnp.sum(jnp.abs(g * x)))
        small = anew & ~fresh & (promise <= jnp.maximum(ftol, eps) * noise / (4 * eps))
        unmoved = accept & ~first & jnp.all(jnp.abs(moved) <= xtol * jnp.abs(x))
        still = anew & (search.slope >= 0)
        fine = promise <= 1e4 * noise
        code = jnp.where(lost & s.fresh, jnp.where(fine, CONVERGED, STALLED), GOING)
        code = jnp.where(small | unmoved | still, CONVERGED, code)
        # A whole search that only ever led further down, and not by rounding.
        endless = (over | (s.search.t >= _FAR)) & ~search.closed & there.fine & ~first
        endless &= there.loss < -2 * jnp.abs(here.loss)
        code = jnp.where((there.loss == -jnp.inf) | endless, UNBOUNDED, code)
        memory = _Memory(pairs, direction, search, promise, back, fresh)
        return Answer(accept, box.land(x, t * direction), memory, code)

    def _towards_inside(self, pairs, x, g, free, box):
        """The minimum of the quadratic model in the box: what would leave it goes to its bound, and the rest is
        computed anew."""
        low, high = box.lower - x, box.upper - x
        newton = self.times(pairs, g)

        def go(free, held):
            # With multipliers of what is held: B d = -g + mu and d = held there, B being the inverse of `times`.
            within = lambda v: jnp.where(free, 0, self.times(pairs, jnp.where(free, 0, v)))
            right = jnp.where(free, 0, held + newton)
            mu = conjugate_gradients(within, right, 1e-10, 50)
            d = jnp.where(free, self.times(pairs, mu) - newton, held)
            return d, free & ((d < low) | (d > high))

        def body(carry):
            free, held, d, out, k = carry
            held = jnp.where(out, jnp.clip(d, low, high), held)
            free = free & ~out
            return free, held, *go(free, held), k + 1

        # The first pass holds nothing new.
        none, count = jnp.zeros_like(g), (0 * jnp.sum(g)).astype(jnp.result_type(int))
        going = lambda c: (jnp.any(c[3]) | (c[4] == 0)) & (c[4] < 10)
        return jax.lax.while_loop(going, body, (free, none, none, free & False, count))[2]

    def _inside(self, x, d, g, box):
        """A direction whose end lies in the box: the projection of `d`, or of steepest descent if that leads up."""
        end = jnp.clip(x + d, box.lower, box.upper) - x
        scale = jnp.sqrt(jnp.sum(d**2) / jnp.maximum(jnp.sum(g**2), jnp.finfo(x.dtype).tiny))
        plain = jnp.clip(x - scale * g, box.lower, box.upper) - x
        descends = jnp.sum(end * g) <= 1e-3 * jnp.sum(plain * g)
        return jnp.where(descends, end, plain)

    def default_tolerances(self, eps):
        return eps, eps**0.75

    def finish(self, state, box):
        tiny = jnp.finfo(state.here.x.dtype).tiny
        promise = state.memory.promise / (jnp.abs(state.here.loss) + tiny)
        return Finish(state.code, promise, jnp.zeros_like(state.here.x))


class _Pairs(eqx.Module):
    """Ring buffers; an empty place has `rho` 0. `last`: the newest place. `scale`: of the inverse Hessian."""

    s: Float[Array, "pair n"]
    y: Float[Array, "pair n"]
    rho: Float[Array, " pair"]
    last: Array
    scale: Array


class LBFGS(_AbstractQuasiNewton):
    """L-BFGS with a strong Wolfe line search; with bounds along projected directions.

    The default of [`minimise`][sciml.solvers.minimise] for more than 64 unknowns. Needs gradients only: a few
    vectors of memory, and about one evaluation an iteration.

    ```python
    import jax.numpy as jnp
    from sciml import solvers

    rosenbrock = lambda y, _: jnp.sum(100 * (y[1:] - y[:-1] ** 2) ** 2 + (1 - y[:-1]) ** 2)
    sol = solvers.minimise(rosenbrock, jnp.full(100, 0.5), method=solvers.LBFGS(memory=10))
    assert jnp.allclose(sol.value, 1.0, atol=1e-2)
    ```

    **Arguments:**

    - `memory`: how many steps are remembered.
    - `ftol`: promised reduction relative to the function's value; by default eps. `xtol`: relative length of a step
      of each unknown; by default eps^(3/4).

    **References:** D. C. Liu, J. Nocedal, *On the limited memory BFGS method for large scale optimization*, Math.
    Programming 45 (1989), 503-528, doi 10.1007/BF01589116. D. P. Bertsekas, *Projected Newton methods for optimization
    problems with simple constraints*, SIAM J. Control Optim. 20 (1982), 221-246, doi 10.1137/0320018.
    """

    memory: int = eqx.field(static=True, default=10)
    ftol: Any = None
    xtol: Any = None

    def __check_init__(self):
        if self.memory < 1:
            raise ValueError(f"`memory` must be at least 1, but got {self.memory}.")

    def empty(self, x0):
        m, n, dtype = self.memory, x0.shape[0], x0.dtype
        last = jnp.zeros((), jnp.result_type(int))
        square = jnp.zeros((m, n), dtype)
        return _Pairs(square, square, jnp.zeros((m,), dtype), last, jnp.ones((), dtype))

    def learn(self, pairs, s, y):
        k = (pairs.last + 1) % self.memory
        product = jnp.sum(s * y)
        rho = put(pairs.rho, k, 1 / product)
        return _Pairs(put(pairs.s, k, s), put(pairs.y, k, y), rho, k, product / jnp.sum(y**2))

    def times(self, pairs, v):
        m = self.memory

        def back(j, carry):
            q, alphas = carry
            k = (pairs.last - j) % m
            a = take(pairs.rho, k) * jnp.sum(take(pairs.s, k) * q)
            return q - a * take(pairs.y, k), put(alphas, k, a)

        q, alphas = jax.lax.fori_loop(0, m, back, (v, 0 * pairs.rho))
        q = pairs.scale * q

        def forth(j, q):
            k = (pairs.last + 1 + j) % m
            b = take(pairs.rho, k) * jnp.sum(take(pairs.y, k) * q)
            return q + (take(alphas, k) - b) * take(pairs.s, k)

        return jax.lax.fori_loop(0, m, forth, q)


class _Inverse(eqx.Module):
    matrix: Float[Array, "n n"]
    first: Array


class BFGS(_AbstractQuasiNewton):
    """BFGS: L-BFGS that forgets nothing, with an `n` by `n` matrix.

    For functions of up to some hundred unknowns without second derivatives, or whose second derivatives are dear.

    ```python
    import jax.numpy as jnp
    from sciml import solvers

    rosenbrock = lambda y, _: jnp.sum(100 * (y[1:] - y[:-1] ** 2) ** 2 + (1 - y[:-1]) ** 2)
    sol = solvers.minimise(rosenbrock, jnp.full(5, 0.5), method=solvers.BFGS())
    assert jnp.allclose(sol.value, 1.0, atol=1e-2)
    ```

    **Arguments:** `ftol`, `xtol` as for [`LBFGS`][sciml.solvers.LBFGS].

    **Reference:** J. Nocedal, S. J. Wright, *Numerical optimization*, 2nd ed., Springer (2006), section 6.1.
    """

    ftol: Any = None
    xtol: Any = None

    def empty(self, x0):
        return _Inverse(jnp.eye(x0.shape[0], dtype=x0.dtype), jnp.asarray(True))

    def learn(self, pairs, s, y):
        product = jnp.sum(s * y)
        h = jnp.where(pairs.first, product / jnp.sum(y**2), 1) * pairs.matrix
        hy = h @ y
        outer = s[:, None] * hy[None]
        h = h - (outer + outer.T) / product
        h = h + (1 + jnp.sum(y * hy) / product) / product * (s[:, None] * s[None])
        return _Inverse(h, jnp.zeros_like(pairs.first))

    def times(self, pairs, v):
        return pairs.matrix @ v

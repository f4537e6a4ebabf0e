"""Methods that keep the structure of Hamiltonian systems, on fixed steps.

The state is a pair `(q, p)` of positions and momenta, and the system is separable: `dq/dt` depends
on `p` (and time) only and `dp/dt` on `q` (and time) only. A step is made of *kicks*, which move `p`,
and *drifts*, which move `q`. The energy then stays near its first value, however long the solve.
"""

from collections.abc import Callable
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from .._compat import depends
from .._custom_types import VectorField
from ._method import AbstractOneStepMethod


class AbstractSymplecticMethod(AbstractOneStepMethod):
    """A composition of leapfrog steps.

    - `fractions`: their sizes, as fractions of a step.
    """

    fractions: eqx.AbstractClassVar[tuple[float, ...]]
    stage_count: ClassVar[int] = 0
    adaptive: ClassVar[bool] = False
    stiff: ClassVar[bool] = False
    shares_last_stage: ClassVar[bool] = False

    def advance(self, field, s, y, h):
        half = y.shape[0] // 2
        h_y = h.astype(y.dtype)
        for fraction in self.fractions:
            y = _kick(field, s, y, fraction * h_y / 2, half)
            # In the middle, so that the step is symmetric where the field depends on time, too.
            y = _drift(field, s + fraction * h / 2, y, fraction * h_y, half)
            s = s + fraction * h
            y = _kick(field, s, y, fraction * h_y / 2, half)
        return y

    def step(self, field, s, y, h, f):
        raise NotImplementedError(_FIXED)

    def replay(self, field, s, y, h):
        raise NotImplementedError(_FIXED)

    def error(self, stages):
        raise NotImplementedError(_FIXED)

    def weights(self, theta):
        raise NotImplementedError(_FIXED)

    def evaluations(self, steps):
        return 3 * len(self.fractions) * steps


_FIXED = "Symplectic methods run on fixed steps only."


def _kick(field, s, y, h, half: int) -> Array:
    return y.at[half:].add(h * field(s, y)[half:])


def _drift(field, s, y, h, half: int) -> Array:
    return y.at[:half].add(h * field(s, y)[:half])


class Leapfrog(AbstractSymplecticMethod):
    """The leapfrog or velocity Verlet method, for separable Hamiltonian systems (`steps=`).

    Order 2, symplectic and time-reversible. The state is a pair `(q, p)`; the field comes from
    [`hamiltonian`][sciml.solvers.hamiltonian] or is any function of your own whose `dq/dt` depends
    on `p` (and time) only and `dp/dt` on `q` (and time) only. A step evaluates `dq/dt` once and
    `dp/dt` twice. For many periods; over short spans or for tight tolerances prefer `Tsit5` or
    `Dopri8`.

    **Reference:** E. Hairer, Ch. Lubich, G. Wanner, *Geometric numerical integration illustrated by
    the Störmer-Verlet method*, Acta Numer. 12 (2003), 399-450, doi 10.1017/S0962492902000144.
    """

    fractions: ClassVar[tuple[float, ...]] = (1.0,)
    order: ClassVar[int] = 2
    error_order: ClassVar[int] = 2


# the outer weight; the inner one is 1 - 2 w_1
_W1 = 1 / (2 - 2 ** (1 / 3))


class Yoshida4(AbstractSymplecticMethod):
    """Yoshida's method of order 4, for separable Hamiltonian systems (`steps=`).

    Three leapfrog steps, one of them backwards, at three times the cost; symplectic and
    time-reversible. See [`Leapfrog`][sciml.solvers.Leapfrog] for the state and the field.

    **Reference:** H. Yoshida, *Construction of higher order symplectic integrators*, Phys. Lett. A
    150 (1990), 262-268, doi 10.1016/0375-9601(90)90092-3.
    """

    fractions: ClassVar[tuple[float, ...]] = (_W1, 1 - 2 * _W1, _W1)
    order: ClassVar[int] = 4
    error_order: ClassVar[int] = 4


def hamiltonian(energy: Callable[[PyTree, PyTree, PyTree], Array]) -> VectorField:
    """The vector field of a Hamiltonian system, `dq/dt = dH/dp`, `dp/dt = -dH/dq`.

    ```python
    import jax.numpy as jnp
    from sciml import solvers


    def energy(q, p, k):
        return jnp.sum(p**2) / 2 + k * jnp.sum(q**2) / 2


    sol = solvers.solve(
        solvers.hamiltonian(energy),
        (jnp.ones(3), jnp.zeros(3)),
        jnp.linspace(0.0, 100.0, 11),
        2.0,
        method=solvers.Leapfrog(),
        steps=500,
    )
    q, p = sol.ys
    assert jnp.allclose(energy(q[-1], p[-1], 2.0), energy(q[0], p[0], 2.0), rtol=1e-3)
    ```

    **Arguments:**

    - `energy`: `H(q, p, args)`, a number. `q` and `p` are pytrees of one structure. For a method
      of this module it must be separable, H = T(p) + V(q).

    **Returns:**

    A field `fn(t, (q, p), args)` for `solve`. Make it once, outside of loops: a new one is
    compiled anew.
    """

    def field(t, y, args):
        q, p = y
        by_q, by_p = jax.grad(energy, argnums=(0, 1))(q, p, args)
        return by_p, jax.tree.map(jnp.negative, by_q)

    return field


def check_separable(fn, t0, y0, args) -> None:
    """Refuses a state or a field that a symplectic method can't take, by `ValueError`."""
    pair = isinstance(y0, tuple | list) and len(y0) == 2
    shapes = lambda tree: [(jnp.shape(x), jnp.result_type(x)) for x in jax.tree.leaves(tree)]
    if not pair or shapes(y0[0]) != shapes(y0[1]):
        raise ValueError(
            "A symplectic method needs the state as a pair `(q, p)` of positions and momenta of the "
            f"same shapes and dtypes, but `y0` is {jax.tree.map(jax.typeof, y0)}."
        )
    q, p = y0
    state = type(y0) if type(y0) in (tuple, list) else lambda pair: type(y0)(*pair)
    rate_of_q = lambda q: fn(t0, state((q, p)), args)[0]
    rate_of_p = lambda p: fn(t0, state((q, p)), args)[1]
    for what, rate, x in (("dq/dt", rate_of_q, q), ("dp/dt", rate_of_p, p)):
        if depends(rate, x):
            raise ValueError(
                f"A symplectic method needs a separable system, but {what} depends on "
                f"{what[1]} itself. Take `solvers.Tsit5()` with tight tolerances, or `solvers.RK4()`."
            )

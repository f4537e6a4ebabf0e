"""What a stiff method knows of its Jacobian: how to get it, and how to solve with it.

For a state of n numbers a dense Jacobian costs n derivatives, n^2 numbers and n^3 operations a step.
Declared structure makes that O(n): few directions give all entries (columns that share no row
are found together, by colouring), and the linear systems are block-tridiagonal.
"""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._compat import is_traced, varying_like
from . import _block_tridiagonal as blocks
from ._gmres import gmres
from ._linear import factorise, inverse
from ._mass import Mass
from ._pattern import banded, block_diagonal, Layout, of_pattern, Pattern


class AbstractLinearisation(eqx.Module):
    """The linear part of a field at a point, and a mass matrix, as a Rosenbrock step uses them."""

    mass: eqx.AbstractVar[Mass | None]

    def times_mass(self, x: Float[Array, " n"]) -> Float[Array, " n"]:
        """M x."""
        return x if self.mass is None else self.mass.times(x)

    @abc.abstractmethod
    def solver(self, shift: Array) -> Callable[[Array], Array]:
        """The function that solves (shift M - J) x = b."""

    @abc.abstractmethod
    def times(self, x: Float[Array, " n"]) -> Float[Array, " n"]:
        """J x."""

    @abc.abstractmethod
    def bound(self, scale: Float[Array, " n"]) -> Float[Array, ""]:
        """A bound of the spectral radius of J, for vectors of about the size `scale`."""


class AbstractJacobian(eqx.Module):
    """The structure of a Jacobian."""

    @abc.abstractmethod
    def at(
        self, along: Callable, user: Array | None, y: Array, mass: Mass | None
    ) -> AbstractLinearisation:
        """The Jacobian at a point.

        **Arguments:**

        - `along`: the field's derivative in a direction.
        - `user`: what the user's own function gave for the Jacobian, if there is one.
        - `y`: the point.
        - `mass`: the mass matrix; `None` for the identity.
        """


def spectral_bound(times: Callable[[Array], Array], v: Array) -> Array:
    """A bound of the spectral radius of a matrix without negative entries.

    For any v > 0 it is max (A v)_i / v_i (Collatz and Wielandt), whatever the units of the state;
    v comes nearer to the best one by power iteration.
    """
    v = v / jnp.max(v)
    v = jnp.maximum(v, jnp.finfo(v.dtype).eps)
    for _ in range(3):
        product = times(v)
        b = jnp.max(product / v)
        v = v + product / jnp.where(b > 0, b, jnp.ones_like(b))
        v = v / jnp.max(v)
    return jnp.max(times(v) / v)


class _DenseLinearisation(AbstractLinearisation):
    matrix: Float[Array, "n n"]
    mass: Mass | None = eqx.field(static=True)

    def solver(self, shift):
        n, dtype = self.matrix.shape[0], self.matrix.dtype
        mass = jnp.eye(n, dtype=dtype) if self.mass is None else self.mass.dense(dtype)
        return factorise(mass * shift - self.matrix)

    def times(self, x):
        return self.matrix @ x

    def bound(self, scale):
        return spectral_bound(lambda v: jnp.abs(self.matrix) @ v, scale)


class Dense(AbstractJacobian):
    """A Jacobian without known structure, by automatic differentiation or the user's function.

    **Arguments:**

    - `jac`: a function `jac(t, y, args)` that returns the matrix of df_i/dy_j, of shape `(n, n)`; by
      default automatic differentiation.
    """

    jac: Callable | None = None

    def at(self, along, user, y, mass):
        if user is None:
            identity = varying_like(jnp.eye(y.shape[0], dtype=y.dtype), y)
            user = jax.vmap(along, out_axes=1)(identity)
        return _DenseLinearisation(matrix=user, mass=mass)


def as_jacobian(jac: Any) -> AbstractJacobian:
    """A structure as it is, and a function as that of a dense Jacobian."""
    if isinstance(jac, AbstractJacobian):
        return jac
    if not callable(jac):
        raise TypeError(
            "`jac` must be a function `jac(t, y, args)`, or a structure such as `solvers.Banded(1, 1)`, but got "
            f"{jac!r}."
        )
    return Dense(jac)


class _BlockLinearisation(AbstractLinearisation):
    """Block-tridiagonal, after a change of the order; or block-diagonal."""

    matrix: blocks.BlockTridiagonalMatrix
    layout: Layout = eqx.field(static=True)
    mass: Mass | None = eqx.field(static=True)

    def _mass_blocks(self):
        layout, dtype = self.layout, self.matrix.diag.dtype
        if self.mass is None:
            return layout.identity(dtype)
        return layout.place_constants(self.mass.rows, self.mass.cols, self.mass.values, dtype)

    def solver(self, shift):
        layout = self.layout
        mass = self._mass_blocks()
        matrix = blocks.BlockTridiagonalMatrix(
            *(shift * m - j for m, j in zip(mass, self.matrix, strict=True))
        )
        # What pads the last block is the identity.
        padding = layout.padding(matrix.diag.dtype)
        matrix = matrix._replace(diag=matrix.diag + padding)
        frozen = jax.lax.stop_gradient(matrix)
        if layout.is_diagonal:
            inv = inverse(frozen.diag)
            solve = lambda d: blocks.product(inv, d)
            multiply = lambda x: blocks.product(matrix.diag, x)
        else:
            solve = _checked(frozen, blocks.factorise(frozen))
            multiply = lambda x: blocks.matrix_vector(matrix, x)

        def transposed(d):
            (out,) = jax.linear_transpose(solve, d)(d)
            return out

        def solved(b):
            d = layout.to_blocks(b)
            x = jax.lax.custom_linear_solve(
                multiply, d, lambda _, d: solve(d), lambda _, d: transposed(d)
            )
            return layout.from_blocks(x)

        return solved

    def times(self, x):
        layout = self.layout
        return layout.from_blocks(blocks.matrix_vector(self.matrix, layout.to_blocks(x)))

    def bound(self, scale):
        matrix = jax.tree.map(jnp.abs, self.matrix)
        layout = self.layout

        def times(v):
            return layout.from_blocks(blocks.matrix_vector(matrix, layout.to_blocks(v)))

        return spectral_bound(times, scale)


def _checked(matrix: blocks.BlockTridiagonalMatrix, solve: Callable) -> Callable:
    """`solve`, or nan where elimination without pivoting between blocks lost half of the digits: the step is
    then rejected."""
    probe = varying_like(jnp.ones_like(matrix.diag[0]), matrix.diag)
    error = jnp.max(jnp.abs(solve(blocks.matrix_vector(matrix, probe)) - probe))
    fine = error < jnp.sqrt(jnp.finfo(probe.dtype).eps)
    factor = jnp.where(fine, 1.0, jnp.nan).astype(probe.dtype)
    return lambda d: factor * solve(d)


class AbstractPattern(AbstractJacobian):
    """A Jacobian whose entries lie in a known pattern."""

    @abc.abstractmethod
    def layout(self, n: int) -> Layout:
        """Where its entries lie, for n numbers."""

    def at(self, along, user, y, mass):
        layout = self.layout(y.shape[0])
        if user is None:
            seeds = varying_like(layout.seeds(y.dtype), y)
            values, index = jax.vmap(along)(seeds), layout.by_colour
        else:
            values, index = user, layout.by_user
            assert index is not None
        if layout.size is None:
            return _DenseLinearisation(matrix=layout.gather(values, index), mass=mass)
        lower, diag, upper = layout.gather(values, index)
        matrix = blocks.BlockTridiagonalMatrix(lower, diag, upper)
        return _BlockLinearisation(matrix=matrix, layout=layout, mass=mass)


class Banded(AbstractPattern):
    """A banded Jacobian: df_i/dy_j is zero but for -lower <= j - i <= upper.

    Rows are not exchanged between the blocks in which it is solved, so that each block on the diagonal of
    M/(h gamma) - df/dy must be regular; where accuracy is lost the step is rejected.

    Lines-discretised equations in one dimension are of this kind: with k fields, in one vector field by
    field at each point, `Banded(2 * k - 1, 2 * k - 1)`.

    **Arguments:**

    - `lower`, `upper`: how many diagonals lie below and above the main one.
    - `jac`: a function `jac(t, y, args)` that returns the diagonals as SciPy keeps them, an array `ab` of
      shape `(lower + upper + 1, n)` with `ab[upper + i - j, j]` = df_i/dy_j; by default automatic
      differentiation in `lower + upper + 1` directions.
    """

    lower: int = eqx.field(static=True)
    upper: int = eqx.field(static=True)
    jac: Callable | None = None

    def __check_init__(self):
        for name in ("lower", "upper"):
            _check_natural(f"{name} of Banded", getattr(self, name), 0)

    def layout(self, n):
        return banded(n, self.lower, self.upper)


class _AbstractBlocks(AbstractPattern):
    size: int = eqx.field(static=True)

    def __check_init__(self):
        _check_natural(f"size of {type(self).__name__}", self.size, 1)


class BlockTridiagonal(_AbstractBlocks):
    """A block-tridiagonal Jacobian: with blocks of `size` numbers, each depends on its neighbours.

    **Arguments:**

    - `size`: of the blocks; must divide the size of the state.
    """

    def layout(self, n):
        _check_divides(self.size, n)
        return banded(n, 2 * self.size - 1, 2 * self.size - 1, self.size)


class BlockDiagonal(_AbstractBlocks):
    """A block-diagonal Jacobian: independent systems in one state, such as cells of a grid without transport.

    **Arguments:**

    - `size`: of the blocks; must divide the size of the state.
    """

    def layout(self, n):
        _check_divides(self.size, n)
        return block_diagonal(n, self.size)


class Sparse(AbstractPattern):
    """A sparse Jacobian, by its pattern.

    Columns that share no row are differentiated together, and rows and columns are put into an order of
    small bandwidth (reverse Cuthill-McKee). Good where such an order exists: lines, rings, networks, narrow
    grids. If it does not, the linear systems are solved as dense ones.

    **Arguments:**

    - `pattern`: a matrix of shape `(n, n)`, dense or of `scipy.sparse`, not zero where df_i/dy_j may be
      different from zero. See [`sparsity`][sciml.solvers.sparsity].
    """

    pattern: Any = eqx.field(static=True)

    def __init__(self, pattern):
        self.pattern = Pattern.of(pattern)

    def layout(self, n):
        if self.pattern.size != n:
            raise ValueError(
                f"`Sparse` holds a pattern of shape {(self.pattern.size,) * 2}, but the state has {n} "
                "real numbers."
            )
        return of_pattern(self.pattern)


class _KrylovLinearisation(AbstractLinearisation):
    along: Callable
    y: Array
    rtol: Any
    mass: Mass | None = eqx.field(static=True)
    options: tuple = eqx.field(static=True)
    precondition: Callable | None = None

    def solver(self, shift):
        restart, max_steps = self.options
        y = self.y
        rtol = jnp.maximum(jnp.asarray(self.rtol, y.dtype), 100 * jnp.finfo(y.dtype).eps)
        rtol = varying_like(rtol, y)
        # Of `shift M - J`.
        about = self.precondition
        precondition = None if about is None else lambda v: -about(v)

        def multiply(x):
            return shift * self.times_mass(x) - self.along(varying_like(x, y))

        def attempt(product, b, about):
            size = jnp.max(jnp.abs(b))
            size = jnp.where(size > 0, size, jnp.ones_like(size))
            x, ok, _ = gmres(product, b / size, rtol, restart, max_steps, about)
            # Not solved is a step to be rejected: a smaller one has an easier system.
            return jnp.where(ok, size * x, jnp.nan)

        def transposed(product, b):
            if precondition is None:
                return attempt(product, b, None)
            across = jax.linear_transpose(precondition, b)
            return attempt(product, b, lambda v: across(v)[0])

        def solve(b):
            forward = lambda product, b: attempt(product, b, precondition)
            return jax.lax.custom_linear_solve(multiply, b, forward, transposed)

        return solve

    def times(self, x):
        return self.along(x)

    def bound(self, scale):
        # No entries, no bound: the explicit method does not come back.
        return jnp.full((), jnp.inf, self.y.dtype)


class Krylov(AbstractJacobian):
    """A Jacobian that is never formed: its systems are solved by GMRES, with products alone.

    For large states without a structure that is worth declaring. Each step solves several systems, each to
    the tolerance `rtol`, which should be well below that of the solve; the stiffer the problem, the more
    iterations.

    **Arguments:**

    - `rtol`: of the linear systems; in single precision at least 1e-5.
    - `restart`: how many directions are kept.
    - `max_steps`: iterations at most; a step whose systems are not solved by then is rejected.
    - `preconditioner`: for [`root`][sciml.solvers.root] only: a function `preconditioner(y, args)` that returns a
      linear function `v -> p`, about the solution of `J p = v`, the better the fewer iterations. `v` and `p` are
      structured as `y`.
    """

    rtol: Any = 1e-8
    restart: int = eqx.field(static=True, default=40)
    max_steps: int = eqx.field(static=True, default=400)
    preconditioner: Any = None

    def __check_init__(self):
        _check_natural("restart of Krylov", self.restart, 1)
        _check_natural("max_steps of Krylov", self.max_steps, 1)
        if isinstance(self.rtol, str) or not (is_traced(self.rtol) or 0 < self.rtol < 1):
            raise ValueError(f"`rtol of Krylov` must lie between 0 and 1, but is {self.rtol!r}.")
        if not (self.preconditioner is None or callable(self.preconditioner)):
            raise TypeError(
                "`preconditioner` of Krylov must be a function `(y, args) -> (v -> p)`, but is "
                f"{self.preconditioner!r}."
            )

    def at(self, along, user, y, mass):
        options = (self.restart, self.max_steps)
        precondition = None
        if self.preconditioner is not None:
            if not isinstance(self.preconditioner, FlatPreconditioner):
                raise ValueError(
                    "The `preconditioner` of Krylov is for `root`: the systems of other solvers change with the "
                    "step. Leave it out."
                )
            precondition = self.preconditioner(y)
        return _KrylovLinearisation(
            along=along,
            y=y,
            rtol=self.rtol,
            mass=mass,
            options=options,
            precondition=precondition,
        )


class FlatPreconditioner(eqx.Module):
    """A preconditioner of flat vectors at flat points."""

    fn: Callable[[Array], Callable[[Array], Array]]

    def __call__(self, y: Array) -> Callable[[Array], Array]:
        return self.fn(y)


def _check_natural(name: str, value, least: int):
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
        raise ValueError(f"`{name}` must be an integer of at least {least}, but is {value!r}.")


def _check_divides(size: int, n: int):
    if n % size:
        raise ValueError(f"Blocks of {size} do not divide a state of {n} real numbers.")

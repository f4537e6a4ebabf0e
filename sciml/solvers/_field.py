"""A vector field made flat and pure, so that the engine can differentiate all it depends on.

Users write `fn(t, y, args)` with pytrees, and `fn` may use arrays from around it: a module's
leaves, a closure, a value that is being differentiated further out. The engine's derivative
rules see only what is passed to them. So the field is traced here (inside `shard_map` twice), and *every* array that
it uses is taken out of the trace and becomes an operand: floating-point ones, which may have
derivatives, apart from integers, booleans and random keys, which have none.

Time is normalised: the solve runs over `s` in [0, 1] with `dy/ds = span * f(t0 + s * span, y)`.
The boundaries are then parameters like any other and have true derivatives, backward time is a
negative span, and float32 far from zero keeps its resolution.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from .._compat import count_operations, eval_jaxpr, varies, varying_like
from ._input import in_a_field


_LARGE = 150  # operations: twenty equations or so, if they are written number by number


class Traced(eqx.Module):
    """What is static of a `FlatField`.

    - `fn(consts, t, y)`: the traced field; `is_theta`: which of the operands are in `theta`.
    - `jac(consts, t, y)`: the user's function for the Jacobian, if there is one.
    - `watch(consts, t, y)`: the values of the event functions, if there are any; `directions`: of the
      crossings that count.
    - `is_piece`: whether the solve is a piece of a longer one, whose end is saved as the last row.
    - `fused`: whether XLA may fuse the field into what uses it.
    - `size`: of the field's trace, in operations.
    """

    fn: Callable = eqx.field(static=True)
    is_theta: tuple[bool, ...] = eqx.field(static=True)
    jac: Callable | None = eqx.field(static=True, default=None)
    fused: bool = eqx.field(static=True, default=True)
    size: int = eqx.field(static=True, default=0)
    watch: Callable | None = eqx.field(static=True, default=None)
    directions: tuple[int, ...] = eqx.field(static=True, default=())
    is_piece: bool = eqx.field(static=True, default=False)


class Between(eqx.Module):
    """A vector field that is not evaluated outside of two times, not even by rounding."""

    fn: Callable
    low: Array
    high: Array

    def __call__(self, t, y, args):
        return self.fn(t + jax.lax.stop_gradient(jnp.clip(t, self.low, self.high) - t), y, args)


class FlatField(eqx.Module):
    """`dy/ds` for a flat real state on normalised time.

    - `traced`: the functions.
    - `theta`: floating-point operands; `rest`: all others.
    """

    traced: Traced
    theta: list[Array]
    rest: list[Array]
    t0: Array
    span: Array

    def __call__(self, s: Array, y: Array) -> Array:
        dy = self._scaled(self.traced.fn, s, y)
        return dy if self.traced.fused else jax.lax.optimization_barrier(dy)

    @property
    def jacobian(self) -> Callable | None:
        """The user's function for the Jacobian of `self`, in its own layout."""
        jac = self.traced.jac
        return None if jac is None else lambda s, y: self._scaled(jac, s, y)

    @property
    def watch(self) -> Callable | None:
        """The values of the event functions."""
        watch = self.traced.watch
        return None if watch is None else lambda s, y: self._evaluate(watch, s, y)

    @property
    def large(self) -> bool:
        """Whether it is worth a loop to compile the field only once."""
        return self.traced.size > _LARGE

    def unfused(self) -> "FlatField":
        """The same, not fused into what uses it: XLA computes a fused stage anew for each that does, which
        for eight equations took 70 seconds to compile."""
        return eqx.tree_at(lambda f: f.traced, self, dataclasses.replace(self.traced, fused=False))

    def _evaluate(self, fn: Callable, s: Array, y: Array) -> Array:
        theta, rest = iter(self.theta), iter(self.rest)
        consts = [next(theta) if inexact else next(rest) for inexact in self.traced.is_theta]
        t = varying_like(self.t0 + s * self.span, y)  # as it was when the field was traced
        (out,) = fn(consts, t, y)
        return out

    def _scaled(self, fn: Callable, s: Array, y: Array) -> Array:
        out = self._evaluate(fn, s, y)
        return self.span.astype(out.dtype) * out


def flatten_field(
    fn: Callable,
    y0: PyTree,
    args: PyTree,
    t0: Array,
    span: Array,
    jac: Callable | None = None,
    watch: Callable | None = None,
    **options: Any,
) -> tuple[FlatField, Array, Callable[[Array], PyTree]]:
    """Makes a user's field, the function for its Jacobian and the event functions flat and pure, on
    normalised time.

    **Arguments:**

    - `watch`: `watch(t, y, args) -> values`; `options`: of `Traced`.

    **Returns:**

    The field, the flat initial state, and the function that gives a state its structure back.
    """
    dtype = jax.tree.leaves(y0)[0].real.dtype
    flat, unravel = ravel(y0, dtype)

    def trace(flat, fns, args):
        fn, jac, watch = fns

        def field(t, y):
            return ravel(fn(t, unravel(y), args), dtype, like=y0)[0]

        def jacobian(t, y):
            return jnp.asarray(jac(t, unravel(y), args)).astype(dtype)

        times = varying_like(t0, flat)
        each: dict[str, Callable] = {"fn": field}
        if jac is not None:
            each["jac"] = jacobian
        if watch is not None:
            each["watch"] = lambda t, y: watch(t, unravel(y), args)
        with in_a_field():
            return {name: jax.make_jaxpr(f)(times, flat) for name, f in each.items()}

    fns = (fn, jac, watch)
    closed = trace(flat, fns, args)
    flat = varying_like(flat, [c.consts for c in closed.values()], t0, span)
    if varies(flat):
        # Inside `shard_map` the state varies like all that moves it. What all devices share varies
        # from here on, so that its derivative is summed over them here, once, not in a loop.
        arrays, static = eqx.partition((fns, args), eqx.is_inexact_array)
        fns, args = eqx.combine(varying_like(arrays, flat), static)
        closed = trace(flat, fns, args)
    consts, functions = [], {}
    for name, one in closed.items():
        mine = slice(len(consts), len(consts) + len(one.consts))
        functions[name] = _evaluator(one.jaxpr, mine)
        consts += one.consts
    is_theta = tuple(bool(jnp.issubdtype(jnp.result_type(c), jnp.inexact)) for c in consts)
    pairs = list(zip(consts, is_theta, strict=True))
    size = count_operations(closed["fn"].jaxpr)
    field = FlatField(
        traced=Traced(**functions, is_theta=is_theta, size=size, **options),
        theta=[jnp.asarray(c) for c, inexact in pairs if inexact],
        rest=[c for c, inexact in pairs if not inexact],
        t0=varying_like(t0, flat),
        span=varying_like(span, flat),
    )
    return field, flat, unravel


def _evaluator(jaxpr, mine: slice) -> Callable:
    """A trace, without its constants, which may be traced: they are some of the operands."""
    return jax.jit(lambda consts, t, y: eval_jaxpr(jaxpr, consts[mine], t, y))


def ravel(tree: PyTree, dtype, like: PyTree = None) -> tuple[Array, Callable[[Array], PyTree]]:
    """All numbers of a pytree as one real vector, complex ones as real and imaginary parts.

    **Arguments:**

    - `tree`: of inexact arrays.
    - `dtype`: real dtype of the vector.
    - `like`: take from here which leaves are complex.
    """
    leaves, treedef = jax.tree.flatten(tree)
    patterns = leaves if like is None else jax.tree.leaves(like)
    infos = [(jnp.shape(p), jnp.result_type(p), bool(jnp.iscomplexobj(p))) for p in patterns]

    def parts(x, is_complex):
        x = jnp.ravel(x)
        halves = [x.real, x.imag] if is_complex else [x]
        return [h.astype(dtype) for h in halves]

    pieces = [
        piece
        for leaf, (_, _, is_complex) in zip(leaves, infos, strict=True)
        for piece in parts(jnp.asarray(leaf), is_complex)
    ]
    flat = jnp.concatenate(pieces) if pieces else jnp.zeros((0,), dtype)

    def unravel(v: Array) -> PyTree:
        out, i = [], 0
        for shape, leaf_dtype, is_complex in infos:
            n = math.prod(shape)
            x = v[i : i + n]
            i += n
            if is_complex:
                x = jax.lax.complex(x, v[i : i + n])
                i += n
            out.append(x.reshape(shape).astype(leaf_dtype))
        return jax.tree.unflatten(treedef, out)

    return flat, unravel

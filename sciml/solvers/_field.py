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

import math
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from .._compat import eval_jaxpr, varies, varying_like


class FlatField(eqx.Module):
    """`dy/ds` for a flat real state on normalised time.

    - `fn(consts, t, y)`: the traced field; `is_theta`: which of its operands are in `theta`.
    - `theta`: floating-point operands; `rest`: all others.
    """

    fn: Callable = eqx.field(static=True)
    is_theta: tuple[bool, ...] = eqx.field(static=True)
    theta: list[Array]
    rest: list[Array]
    t0: Array
    span: Array

    def __call__(self, s: Array, y: Array) -> Array:
        theta, rest = iter(self.theta), iter(self.rest)
        consts = [next(theta) if inexact else next(rest) for inexact in self.is_theta]
        t = varying_like(self.t0 + s * self.span, y)  # as it was when the field was traced
        (dy,) = self.fn(consts, t, y)
        return self.span.astype(dy.dtype) * dy


def flatten_field(
    fn: Callable, y0: PyTree, args: PyTree, t0: Array, span: Array
) -> tuple[FlatField, Array, Callable[[Array], PyTree]]:
    """Makes a user's field flat and pure, on normalised time.

    **Returns:**

    The field, the flat initial state, and the function that gives a state its structure back.
    """
    dtype = jax.tree.leaves(y0)[0].real.dtype
    flat, unravel = ravel(y0, dtype)

    def traced(flat, fn, args):
        def field(t, y):
            return ravel(fn(t, unravel(y), args), dtype, like=y0)[0]

        return jax.make_jaxpr(field)(varying_like(t0, flat), flat)

    closed = traced(flat, fn, args)
    flat = varying_like(flat, closed.consts, t0, span)
    if varies(flat):
        # Inside `shard_map` the state varies like all that moves it. What all devices share varies
        # from here on, so that its derivative is summed over them here, once, not in a loop.
        arrays, static = eqx.partition((fn, args), eqx.is_inexact_array)
        fn, args = eqx.combine(varying_like(arrays, flat), static)
        closed = traced(flat, fn, args)
    jaxpr = closed.jaxpr  # without its constants, which may be traced
    is_theta = tuple(bool(jnp.issubdtype(jnp.result_type(c), jnp.inexact)) for c in closed.consts)
    pairs = list(zip(closed.consts, is_theta, strict=True))
    field = FlatField(
        fn=jax.jit(lambda consts, t, y: eval_jaxpr(jaxpr, consts, t, y)),
        is_theta=is_theta,
        theta=[jnp.asarray(c) for c, inexact in pairs if inexact],
        rest=[c for c, inexact in pairs if not inexact],
        t0=varying_like(t0, flat),
        span=varying_like(span, flat),
    )
    return field, flat, unravel


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

"""What a method is shown of a function at a point."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import ArrayLike

from ._loop import all_finite, Look
from ._quadratic import Rows
from ._robust import robust


def at_residuals(residuals: Callable, bend: bool, loss: str = "linear", f_scale: ArrayLike = 1.0):
    """Residuals and their Jacobian, as the loop sees them."""

    def look(x):
        both = lambda x: (r := residuals(x), r)
        rows, r = jax.jacfwd(both, has_aux=True)(x)
        total, rows, target, root = robust(loss, f_scale, rows, r)
        fine = all_finite((r, rows, total))
        directional = None
        if bend:
            along = lambda x, p: jax.jvp(residuals, (x,), (p,))[1]
            directional = lambda p: root * jax.jvp(lambda x: along(x, p), (x,), (p,))[1]
        return Look(x, total, target, total, fine), Rows(rows, target, None, directional)

    return look


def at_products(residuals: Callable, loss: str = "linear", f_scale: ArrayLike = 1.0):
    """The loss of residuals, its gradient, and the Gauss-Newton curvature along a direction, as the loop sees them."""

    def look(x):
        r, along = jax.linearize(residuals, x)
        total, root, target, _ = robust(loss, f_scale, jnp.ones_like(r)[:, None], r)
        across = jax.linear_transpose(along, x)
        gradient = across(root[:, 0] * target)[0]
        curvature = lambda v: across(root[:, 0] ** 2 * along(v))[0]
        return Look(x, total, gradient, total, all_finite((r, total, gradient))), curvature

    return look


def at_equations(fn: Callable, derivatives: bool):
    """Residuals and the derivative along a direction, as the loop sees them."""

    def look(x):
        value, along = jax.linearize(fn, x) if derivatives else (fn(x), None)
        loss = jnp.sum(value**2) / 2
        # A point with an infinite slope is none to go on from.
        slope = value if along is None else along(jnp.ones_like(x))
        return Look(x, loss, value, loss, all_finite((x, value, loss, slope))), along

    return look


def at_function(fn: Callable, order: int):
    """A function, its gradient and its Hessian along a direction, as the loop sees them."""
    both = jax.value_and_grad(fn)

    def look(x):
        if order == 2:
            (loss, gradient), along = jax.linearize(both, x)
            linear = lambda v: along(v)[1]
        else:
            (loss, gradient), linear = both(x), None
        fine = all_finite((loss, gradient))
        return Look(x, loss, gradient, jnp.abs(loss), fine), linear

    return look

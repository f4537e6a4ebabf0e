"""The front function `fixed_point`."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import ArrayLike, PyTree

from ..._dtypes import as_state
from ._anderson import Anderson
from ._front import NonlinearSolution, numbers, prepare
from ._newton import Newton
from ._root import find


_FEW = 64  # unknowns up to which Newton's method is the default


class _Difference(eqx.Module):
    """fn(y) - y: a class, so that the same function is not compiled twice."""

    fn: Callable

    def __call__(self, y, args):
        image = self.fn(y, args)
        if jax.tree.structure(image) != jax.tree.structure(y):
            raise ValueError(
                f"`fn` must return what it takes, {jax.tree.structure(y)}, but returned {jax.tree.structure(image)}."
            )
        return jax.tree.map(self._difference, image, y)

    @staticmethod
    def _difference(image, y):
        image = jnp.asarray(image)
        if jnp.iscomplexobj(image):
            raise TypeError(
                "`fn` returned complex numbers: write real and imaginary parts as two arrays."
            )
        if image.shape != y.shape:
            raise ValueError(
                f"`fn` must return what it takes, an array of shape {y.shape}, but returned shape {image.shape}."
            )
        return image.astype(y.dtype) - y


def fixed_point(
    fn: Callable[[PyTree, PyTree], PyTree],
    y0: PyTree[Any],
    args: PyTree[Any] = None,
    *,
    method: Any = None,
    bounds: Any = None,
    ftol: ArrayLike | None = None,
    xtol: ArrayLike | None = None,
    max_steps: Any = 1000,
    history: Any = False,
    throw: Any = True,
) -> NonlinearSolution:
    """Finds `y = fn(y, args)`.

    By Newton's method, which needs no contraction, for up to 64 unknowns, and by Anderson acceleration of
    the iteration, which needs no derivatives, for more. The point has derivatives in every mode, by `args` and
    closures (implicit differentiation).

    ```python
    import jax.numpy as jnp
    from sciml import solvers

    sol = solvers.fixed_point(lambda y, a: a * jnp.cos(y), 0.5, 1.0)
    assert jnp.allclose(sol.value, 0.7390851332151607)
    ```

    **Arguments:**

    - `fn`: `fn(y, args) -> y`, structured as `y0`.
    - `method`: one of [`root`][sciml.solvers.root] for `fn(y) - y`, such as [`Anderson`][sciml.solvers.Anderson].
    - The others as for [`root`][sciml.solvers.root].

    **Returns:**

    A [`NonlinearSolution`][sciml.solvers.NonlinearSolution].

    **Raises:**

    As [`root`][sciml.solvers.root].
    """
    y0, _ = as_state(y0)
    if method is None:
        few = sum(x.size for x in jax.tree.leaves(y0)) <= _FEW
        method = Newton() if few else Anderson()
    sizes = numbers(max_steps, history)
    task = prepare("fixed_point", _Difference(fn), y0, args, bounds)
    return find("fixed_point", task, method, {"ftol": ftol, "xtol": xtol}, sizes, throw)

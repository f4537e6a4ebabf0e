"""Vector fields in two parts, for implicit-explicit methods."""

import diffrax
import equinox as eqx
import jax

from .._custom_types import VectorField


class Split(eqx.Module):
    """A vector field as the sum of a non-stiff and a stiff part.

    Any method solves it as their sum. Diffrax's implicit-explicit (IMEX) methods, such as `diffrax.KenCarp4()`,
    take the first part explicitly and only the second implicitly: worth it where the stiff part is simple, such
    as diffusion, and the other costly.

    ```python
    import diffrax
    import jax
    import jax.numpy as jnp
    from sciml import solvers

    jax.config.update("jax_enable_x64", True)
    fn = solvers.Split(explicit=lambda t, y, k: jnp.sin(y), implicit=lambda t, y, k: -k * y)
    sol = solvers.solve(fn, 1.0, jnp.array([0.0, 1.0]), 1e3, method=diffrax.KenCarp4())
    assert sol.ok
    ```

    **Arguments:**

    - `explicit`, `implicit`: vector fields `fn(t, y, args)`, as for [`solve`][sciml.solvers.solve].
    """

    explicit: VectorField
    implicit: VectorField

    def __call__(self, t, y, args):
        return jax.tree.map(
            lambda a, b: a + b, self.explicit(t, y, args), self.implicit(t, y, args)
        )


def is_imex(method) -> bool:
    """Whether a solver of Diffrax treats two terms differently."""
    return isinstance(method, diffrax.KenCarp3 | diffrax.KenCarp4 | diffrax.KenCarp5 | diffrax.Sil3)


def check_split(fn, method):
    """An implicit-explicit method must be told what is stiff."""
    if is_imex(method) and not isinstance(fn, Split):
        name = type(method).__name__
        raise TypeError(
            f"`{name}` treats one part of the vector field explicitly and one implicitly: pass "
            "`fn=solvers.Split(explicit=…, implicit=…)`, or take `solvers.Rodas5P()` or `diffrax.Kvaerno5()`, which "
            "treat all of it alike."
        )

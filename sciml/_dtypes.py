"""How numbers given by users become arrays.

The rule, everywhere: floating and complex arrays keep their dtype; Python numbers, integers
and booleans in a *state* become the default floating dtype (float64 if x64 is on); Python
floats inside a *model* become arrays, because Equinox would treat them as compile-time
constants and recompile for each new value. Times take the precision of the state.
"""

import pathlib
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from ._compat import is_traced
from ._custom_types import Numbers


HERE = str(pathlib.Path(__file__).parent)


def default_float() -> np.dtype:
    return jnp.result_type(float)


def as_floating(x: Numbers) -> jax.Array:
    """Numbers as an array; integers and booleans become the default floating dtype."""
    x = jnp.asarray(x)
    return x if jnp.issubdtype(x.dtype, jnp.inexact) else x.astype(default_float())


def float_leaves_as_arrays(tree: PyTree) -> PyTree:
    """Turns Python `float` and `complex` leaves into (weakly typed) arrays."""
    return jax.tree.map(lambda x: jnp.asarray(x) if isinstance(x, float | complex) else x, tree)


def as_state(y0: PyTree) -> tuple[PyTree, np.dtype]:
    """Turns the leaves of an initial state into arrays of one precision.

    **Returns:**

    The state, and the real dtype in which time is measured.
    """
    if isinstance(y0, jax.Array) and y0.size and not y0.weak_type and y0.dtype.kind in "fc":
        # a short cut
        return y0, np.dtype(jnp.finfo(y0.dtype).dtype)
    leaves, treedef = jax.tree.flatten(y0)
    if not sum(np.size(x) for x in leaves):
        raise ValueError("`y0` has no arrays in it; a state needs at least one number.")
    arrays = []
    for leaf in leaves:
        if not eqx.is_array_like(leaf):
            raise TypeError(
                f"`y0` must be a number, an array or a pytree of them, but holds {leaf!r}."
            )
        dtype = jnp.result_type(leaf)
        inexact = jnp.issubdtype(dtype, jnp.inexact)
        strong = eqx.is_array(leaf) or isinstance(leaf, np.ndarray | np.generic)
        if inexact and strong:
            arrays.append((jnp.asarray(leaf), True))
        else:
            # `inexact` here: a Python float or complex, which takes the common precision.
            arrays.append((jnp.asarray(leaf, dtype if inexact else default_float()), False))
    strong_dtypes = [x.dtype for x, strong in arrays if strong] or [x.dtype for x, _ in arrays]
    with jax.numpy_dtype_promotion("standard"):  # a mixture is promoted on purpose
        common = jnp.result_type(*strong_dtypes)
        real = np.dtype(jnp.finfo(common).dtype)
        complex_ = jnp.result_type(real, jnp.complex64)
    out = [x.astype(complex_ if jnp.iscomplexobj(x) else real) for x, _ in arrays]
    return jax.tree.unflatten(treedef, out), real


def require_dtype(dtype, name: str) -> np.dtype:
    """Checks that an explicitly requested dtype can be had."""
    want = np.dtype(dtype)
    if want != jax.dtypes.canonicalize_dtype(want):
        raise ValueError(
            f"{name} asks for {want.name}, but JAX's 64-bit mode is off, so it would silently become "
            "32-bit. Put `jax.config.update('jax_enable_x64', True)` at the top of your script."
        )
    return want


def tolerances(rtol, atol, dtype: np.dtype, default: tuple[float, float]) -> tuple:
    """Fills in the tolerances for a precision, and warns of unreachable ones.

    **Arguments:**

    - `rtol`, `atol`: given by the user, or `None`.
    - `dtype`: the real dtype of the state.
    - `default`: used for double precision; single precision starts at `(1e-5, 1e-7)`.
    """
    if np.finfo(dtype).eps > 1e-10:
        default = (max(default[0], 1e-5), max(default[1], 1e-7))
    limit = 10 * float(np.finfo(dtype).eps)
    for name, value in (("rtol", rtol), ("atol", atol)):
        if value is None or is_traced(value):
            continue
        numbers = np.asarray(value)
        if not np.all(np.isfinite(numbers)) or np.any(numbers < 0):
            raise ValueError(f"`{name}` must be finite and not negative, but got {value}.")
        if name == "rtol" and np.any(numbers < limit):
            advice = "; enable x64" if np.finfo(dtype).eps > 1e-10 else ""
            warnings.warn(
                f"rtol {np.min(numbers):.3g} is below what {dtype.name} supports "
                f"(about {limit:.1e}){advice}.",
                skip_file_prefixes=(HERE,),  # point to the line that called us
            )
    rtol = default[0] if rtol is None else rtol
    atol = default[1] if atol is None else atol
    # Also drops a weak type, which would be a second compilation for the same tolerance.
    cast = lambda x: x.astype(dtype) if isinstance(x, jax.Array) else np.asarray(x, dtype)
    return cast(rtol), cast(atol)

"""A function as a sum of a few terms with names, and what the ways to find one have in common."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Real

from .._compat import is_traced
from ._library import Library


class SparseLaw(eqx.Module):
    """A sum of a few terms for each output, as [`stlsq`][sciml.fit.stlsq] or [`best_subset`][sciml.fit.best_subset]
    find it: a function of the inputs.

    It stands wherever the function stood that it was found from, a network in a model for one
    (`equinox.tree_at`). Its `coefficients` are then parameters, to be fitted with the rest. `str` shows the equations.

    **Attributes:**

    - `coefficients`: one for each term of each output, in the order of `str`.
    - `terms`: a dictionary for each output, from the text of a term to its coefficient.
    - `error`: for each output, the root mean square of what the terms leave unexplained, relative to that of the
        output. `ok`: for each, whether that is as little as was asked for.
    """

    coefficients: Float[Array, " kept"]
    library: Library
    kept: tuple[tuple[int, int], ...] = eqx.field(static=True)  # of each: output, term
    outputs: tuple[str, ...] = eqx.field(static=True)
    scalar: bool = eqx.field(static=True)  # the output has no axis
    error: tuple[float, ...] = eqx.field(static=True)
    ok: tuple[bool, ...] = eqx.field(static=True)

    def __call__(self, x: Real[Array, " input"]) -> Float[Array, "..."]:
        """The values at one input vector; `jax.vmap` for many."""
        x = jnp.asarray(x)
        if not jnp.issubdtype(x.dtype, jnp.inexact):  # powers of integers would overflow
            x = x.astype(self.coefficients.dtype)
        sums = [jnp.zeros((), jnp.result_type(x, self.coefficients))] * len(self.outputs)
        for c, (output, term) in zip(self.coefficients, self.kept, strict=True):
            sums[output] = sums[output] + c * self.library.functions[term](x)
        return sums[0] if self.scalar else jnp.stack(sums)

    @property
    def terms(self) -> dict[str, dict[str, float]]:
        found: dict[str, dict[str, float]] = {name: {} for name in self.outputs}
        for c, (output, term) in zip(self.coefficients, self.kept, strict=True):
            found[self.outputs[output]][self.library.texts[term]] = float(c)
        return found

    def __str__(self) -> str:
        lines = []
        for (name, terms), error, ok in zip(self.terms.items(), self.error, self.ok, strict=True):
            left = "" if ok else f"   (leaves {100 * error:.2g} % unexplained)"
            lines.append(f"{name} = {_sum(terms)}{left}")
        return "\n".join(lines)


class Samples(NamedTuple):
    """What a law is sought for. The columns of `table` and `values` have root mean square 1, or are zero."""

    library: Library
    table: Float[np.ndarray, "sample term"]
    values: Float[np.ndarray, "sample output"]
    term_scale: Float[np.ndarray, " term"]
    scale: Float[np.ndarray, " output"]
    outputs: tuple[str, ...]
    scalar: bool
    dtype: Any

    def law(self, supports: list[np.ndarray], tolerance: float = math.inf) -> SparseLaw:
        """The law with these terms for each output, fitted by least squares."""
        kept, coefficients, errors = [], [], []
        for output, support in enumerate(supports):
            value = self.values[:, output]
            c = least_squares(self.table[:, support], value)
            kept += [(output, int(term)) for term in support]
            coefficients += (c * self.scale[output] / self.term_scale[support]).tolist()
            errors.append(float(rms(value - self.table[:, support] @ c)))
        c = jnp.asarray(np.array(coefficients), self.dtype)
        ok = tuple(error <= tolerance for error in errors)
        return SparseLaw(c, self.library, tuple(kept), self.outputs, self.scalar, tuple(errors), ok)


def rms(values: np.ndarray) -> Any:
    return np.sqrt(np.mean(values**2, axis=0))


def least_squares(table: np.ndarray, value: np.ndarray) -> np.ndarray:
    return np.linalg.lstsq(table, value, rcond=None)[0] if table.shape[1] else np.zeros(0)


def samples(library: Library, x: Any, y: Any, outputs: Sequence[str] | None) -> Samples:
    """Inputs and values of all trajectories below each other, checked."""
    if not isinstance(library, Library):
        raise TypeError(
            f"`library` must be a `fit.Library`, but got {library!r}. "
            "`fit.Library.polynomials(names, degree)` makes one."
        )
    xs, ys = (list(a) if isinstance(a, list | tuple) else [a] for a in (x, y))
    if any(is_traced(a) for a in (*xs, *ys)):
        raise TypeError(
            "Which terms to keep is decided by values, and can't be traced: call it outside of `jit`."
        )
    if len(xs) != len(ys):
        raise ValueError(f"`x` has {len(xs)} trajectories, but `y` has {len(ys)}.")
    xs, ys = [np.asarray(a) for a in xs], [np.asarray(a) for a in ys]
    dtype, scalar = jnp.result_type(*ys, 0.0), ys[0].ndim == 1
    ys = [a[:, None] if a.ndim == 1 else a for a in ys]
    for a, b in zip(xs, ys, strict=True):
        if a.ndim != 2 or a.shape[1] != len(library.names):
            raise ValueError(
                f"`x` must have shape (sample, {len(library.names)}), a column for each of "
                f"{library.names}, but has {a.shape}."
            )
        if b.ndim != 2 or len(a) != len(b) or b.shape[1] != ys[0].shape[1]:
            raise ValueError(
                f"`y` must have shape ({len(a)},) or ({len(a)}, output), a row for each of `x`, "
                f"but has {b.shape}."
            )
    inputs, values = np.concatenate(xs).astype(float), np.concatenate(ys).astype(float)
    if not (np.isfinite(inputs).all() and np.isfinite(values).all()):
        raise ValueError("`x` and `y` must be finite: leave out the samples that are not.")
    names = tuple(f"f{i}" for i in range(values.shape[1])) if outputs is None else tuple(outputs)
    if isinstance(outputs, str) or len(names) != values.shape[1]:
        raise ValueError(
            f"`outputs` must be a list of {values.shape[1]} names, but got {outputs!r}."
        )
    table = np.asarray(library.table(jnp.asarray(inputs)), float)
    if bad := [
        t for t, good in zip(library.texts, np.isfinite(table).all(0), strict=True) if not good
    ]:
        raise ValueError(f"The terms {bad} are not finite at all samples. Leave them out.")
    term_scale, scale = rms(table), rms(values)
    term_scale = np.where(term_scale > 0, term_scale, 1.0)
    scale = np.where(scale > 0, scale, 1.0)
    return Samples(
        library, table / term_scale, values / scale, term_scale, scale, names, scalar, dtype
    )


def _sum(terms: dict[str, float]) -> str:
    text = ""
    for term, c in terms.items():
        sign = (" - " if c < 0 else " + ") if text else ("-" if c < 0 else "")
        factor = f"{abs(c):.4g}"
        text += sign + (factor if term == "1" else f"{factor} {term}")
    return text or "0"

"""Candidate terms for the right-hand side of an equation, with their names."""

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._checks import integer_at_least


class Monomial(eqx.Module):
    """A product of whole powers of the inputs."""

    powers: tuple[int, ...] = eqx.field(static=True)

    def __call__(self, x: Float[Array, " input"]) -> Float[Array, ""]:
        factors = [x[i] ** power for i, power in enumerate(self.powers) if power]
        return math.prod(factors, start=jnp.ones((), x.dtype))


class Library(eqx.Module):
    """Candidate terms for [`stlsq`][sciml.fit.stlsq]: functions of one input vector, with the text to show for each.

    `Library.polynomials` makes the usual ones; libraries are joined by `+`, and `Library.sines` or terms of one's own
    put beside them.

    **Arguments:**

    - `names`: the names of the inputs, in their order.
    - `terms`: a dictionary from the text of a term to a function that takes the inputs, shape `(input,)`, and
        returns a scalar.

    **Raises:** `ValueError` or `TypeError` for names or terms that are missing, doubled or of another kind.

    !!! example

        ```python
        import jax.numpy as jnp
        from sciml import fit

        library = fit.Library.polynomials(["x", "v"], 2) + fit.Library(
            ["x", "v"], {"|v| v": lambda y: jnp.abs(y[1]) * y[1]}
        )
        print(library.texts)
        ```
    """

    names: tuple[str, ...] = eqx.field(static=True)
    texts: tuple[str, ...] = eqx.field(static=True)
    functions: tuple[Callable, ...] = eqx.field(static=True)

    def __init__(self, names: Any, terms: Mapping[str, Callable]):
        if isinstance(names, str) or not all(isinstance(name, str) for name in names):
            raise TypeError(f"`names` must be a list of the inputs' names, but got {names!r}.")
        if doubled := {name for name in names if list(names).count(name) > 1}:
            raise ValueError(f"Each input needs a name of its own, but got {doubled} twice.")
        if not isinstance(terms, Mapping) or not terms:
            raise TypeError(
                f"`terms` must be a dictionary from texts to functions of the inputs, but got {terms!r}. "
                "`Library.polynomials(names, degree)` makes the usual ones."
            )
        for text, function in terms.items():
            if not isinstance(text, str) or not callable(function):
                raise TypeError(
                    f"A term is a text and a function of the inputs, but got {text!r}: {function!r}."
                )
        self.names = tuple(names)
        self.texts = tuple(terms)
        self.functions = tuple(terms.values())

    @classmethod
    def polynomials(cls, names: Any, degree: int, *, constant: bool = True) -> "Library":
        """All products of powers of the inputs up to `degree`, the constant 1 among them."""
        names = [names] if isinstance(names, str) else list(names)
        terms = {}
        for total in range(0 if constant else 1, integer_at_least("degree", degree) + 1):
            for chosen in itertools.combinations_with_replacement(range(len(names)), total):
                powers = tuple(chosen.count(i) for i in range(len(names)))
                shown = zip(names, powers, strict=True)
                text = " ".join(n if p == 1 else f"{n}^{p}" for n, p in shown if p)
                terms[text or "1"] = Monomial(powers)
        return cls(names, terms)

    @classmethod
    def sines(cls, names: Any) -> "Library":
        """The sine and the cosine of each input, an angle in radians."""
        names = [names] if isinstance(names, str) else list(names)
        terms = {}
        for i, name in enumerate(names):
            terms[f"sin({name})"] = lambda x, i=i: jnp.sin(x[i])
            terms[f"cos({name})"] = lambda x, i=i: jnp.cos(x[i])
        return cls(names, terms)

    def __add__(self, other: "Library") -> "Library":
        if not isinstance(other, Library):
            return NotImplemented
        if self.names != other.names:
            raise ValueError(
                "Libraries that are joined must have the same inputs, but these have "
                f"{self.names} and {other.names}."
            )
        if doubled := set(self.texts) & set(other.texts):
            raise ValueError(f"Both libraries have the terms {sorted(doubled)}.")
        pairs = zip(self.texts + other.texts, self.functions + other.functions, strict=True)
        return Library(self.names, dict(pairs))

    def __call__(self, x: Float[Array, " input"]) -> Float[Array, " term"]:
        """The values of all terms."""
        values = [jnp.asarray(function(x)) for function in self.functions]
        for text, value in zip(self.texts, values, strict=True):
            if value.shape != ():
                raise ValueError(
                    f"The term {text!r} must return a scalar, but has shape {value.shape}."
                )
        return jnp.stack(values)

    def table(self, x: Float[Array, "sample input"]) -> Float[Array, "sample term"]:
        """The values of all terms at many inputs."""
        return jax.vmap(self)(x)

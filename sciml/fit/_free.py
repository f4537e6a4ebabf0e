"""What is unknown about a parameter."""

import math
from typing import Any, Literal

import equinox as eqx


class Free(eqx.Module):
    """Frees a parameter, within bounds, on a scale, with a prior.

    **Arguments:**

    - `lower`, `upper`: bounds in natural units.
    - `scale`: `"log"` for positive parameters whose magnitude is unknown: starts are drawn and
      steps are taken in the logarithm. Estimates stay in natural units.
    - `prior`: a density of the natural value, from `fit.priors` or anything with `log_prob`.
    - `init`: the value to start from, instead of the one that is there.
    """

    lower: float
    upper: float
    scale: Literal["linear", "log"] = eqx.field(static=True)
    prior: Any
    init: Any

    def __init__(
        self,
        lower: Any = -math.inf,
        upper: Any = math.inf,
        *,
        scale: str = "linear",
        prior: Any = None,
        init: Any = None,
    ):
        if scale not in ("linear", "log"):
            raise ValueError(f"`scale` must be 'linear' or 'log', but got {scale!r}.")
        try:
            lower, upper = float(lower), float(upper)
        except TypeError:
            raise TypeError(
                f"Bounds must be numbers, but got {lower!r} and {upper!r}. Free the elements of an "
                "array one by one to give each its own."
            ) from None
        if not lower < upper:
            raise ValueError(f"`lower` must lie below `upper`, but got {lower:g} and {upper:g}.")
        if scale == "log" and upper <= 0:
            raise ValueError(f"`scale='log'` needs positive values, but `upper` is {upper:g}.")
        if scale == "log" and -math.inf < lower < 0:
            raise ValueError(
                f"`scale='log'` keeps a parameter positive, but `lower` is {lower:g}. Leave it out, or "
                "use the linear scale."
            )
        if prior is not None and not hasattr(prior, "log_prob"):
            raise TypeError(
                f"`prior` must have a method `log_prob(value)`, as those in `fit.priors`, but got "
                f"{prior!r}."
            )
        self.lower, self.upper, self.scale = lower, upper, scale  # pyright: ignore
        self.prior, self.init = prior, init

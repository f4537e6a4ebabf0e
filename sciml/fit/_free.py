"""What is unknown about a parameter."""

import math
from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx


class Free(eqx.Module):
    """Frees a parameter, within bounds, on a scale, with a prior.

    **Arguments:**

    - `lower`, `upper`: bounds in natural units.
    - `scale`: `"log"` (or `"log10"`, which means the same) for positive parameters whose magnitude is unknown:
      starts are drawn and steps are taken in the logarithm. Estimates stay in natural units.
    - `prior`: a density of the natural value, from `fit.priors` or anything with `log_prob`.
    - `init`: the value to start from, instead of the one that is there.
    - `per`: by default all experiments share one value. `"experiment"` gives each its own; a dict of their
      names to labels, or a function of the name, gives one to each label. They are called
      `name@label` in reports, and are one array, in the order of the labels, in `result.values`.
    """

    lower: float
    upper: float
    scale: Literal["linear", "log"] = eqx.field(static=True)
    prior: Any
    init: Any
    per: Any = eqx.field(static=True)

    def __init__(
        self,
        lower: Any = -math.inf,
        upper: Any = math.inf,
        *,
        scale: str = "linear",
        prior: Any = None,
        init: Any = None,
        per: Any = None,
    ):
        if scale not in ("linear", "log", "log10"):
            raise ValueError(f"`scale` must be 'linear', 'log' or 'log10', but got {scale!r}.")
        scale = "log" if scale == "log10" else scale  # the same but for a factor
        if not (per is None or per == "experiment" or isinstance(per, dict) or callable(per)):
            raise ValueError(
                f'`per` must be "experiment", a dict of experiments to labels or a function, but got {per!r}.'
            )
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
        self.prior, self.init, self.per = prior, init, per


class Tied(eqx.Module):
    """Makes a parameter follow others, instead of freeing it.

    ```python
    from sciml import fit

    free = {
        "k1": fit.Free(0, 10),
        "k2": fit.Tied("k1"),
        "k3": fit.Tied(("k1", "k2"), lambda k1, k2: k1 * k2),
    }
    ```

    **Arguments:**

    - `of`: the name of what it follows, free or not, or several.
    - `fn`: a function of their values, by default the value of the only one.
    """

    of: tuple[str, ...] = eqx.field(static=True)
    fn: Callable | None

    def __init__(self, of: Any, fn: Callable | None = None):
        names = (of,) if isinstance(of, str) else tuple(of)
        if not names or not all(isinstance(name, str) for name in names):
            raise TypeError(f"`Tied` takes the name of a parameter, or several, but got {of!r}.")
        if fn is None and len(names) > 1:
            raise ValueError(
                f"A parameter tied to several, {', '.join(names)}, needs a function of them."
            )
        self.of, self.fn = names, fn

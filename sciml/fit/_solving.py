"""How the equations of a problem are solved."""

from typing import Any

import equinox as eqx

from ..solvers._checks import check_method
from ._experiment import as_arrays


class Solve(eqx.Module):
    """How a problem's differential equation is solved.

    **Arguments:**

    - `method`, `rtol`, `atol`, `steps`, `max_steps`: as in
      [`solve`][sciml.solvers.solve]. The tolerances are tighter by default, 1e-8 and 1e-10 in
      double precision, because optimisers need a smooth objective. `Tsit5()` compiles
      faster than the default, which holds a stiff method as well.
    """

    method: Any = None
    rtol: Any = None
    atol: Any = None
    steps: int | None = eqx.field(static=True, default=None)
    max_steps: int = eqx.field(static=True, default=16384)

    def __check_init__(self):
        check_method(self.method, self.steps, self.max_steps)


def traced_tolerances(options: Solve) -> Solve:
    """Tolerances as arrays, so that another one compiles nothing new."""
    rtol, atol = as_arrays((options.rtol, options.atol))
    return Solve(options.method, rtol, atol, options.steps, options.max_steps)

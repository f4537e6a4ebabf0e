"""Solve, fit and learn differential equations written as plain Equinox modules.

- `sciml.solvers`: `solve` for differential equations, `solve_ensemble` for many of them,
  `least_squares` with bounds.
- `sciml.fit`: measurements, problems, estimates with error bars, training, saving.
- `sciml.nets`: neural networks for vector fields.
- `sciml.plot`: figures from results (needs the extra `plot`).

Importing `sciml` touches no device and changes no configuration. Double precision is switched
on by you: `jax.config.update("jax_enable_x64", True)`.
"""

import importlib.metadata

from . import fit as fit, nets as nets, plot as plot, solvers as solvers
from ._results import RESULTS as RESULTS


try:
    __version__ = importlib.metadata.version("sciml-jax")
except importlib.metadata.PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0.0.0"

"""Laws of the measurement noise.

A law is an Equinox module like any other, so its level can be freed by name: `"noise.sigma"`. A dict of laws by the
names of the data's columns gives each observable its own: `"noise['count'].size"`.
"""

from ._count_laws import (
    Binomial as Binomial,
    NegativeBinomial as NegativeBinomial,
    Poisson as Poisson,
)
from ._laws import (
    AbstractNoise as AbstractNoise,
    Combined as Combined,
    LogNormal as LogNormal,
    Normal as Normal,
)
from ._robust_laws import Laplace as Laplace, StudentT as StudentT

"""Neural networks for vector fields, as plain Equinox modules."""

from ._mlp import MLP as MLP
from ._neural_ode import NeuralODE as NeuralODE

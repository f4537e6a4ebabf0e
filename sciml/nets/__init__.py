"""Neural networks for vector fields, as plain Equinox modules."""

from ._activations import rbf as rbf
from ._augmented_ode import AugmentedODE as AugmentedODE
from ._fourier_features import FourierFeatures as FourierFeatures
from ._hamiltonian_nn import HamiltonianNN as HamiltonianNN
from ._lagrangian_nn import LagrangianNN as LagrangianNN
from ._latent_ode import LatentODE as LatentODE
from ._mlp import MLP as MLP
from ._neural_cde import NeuralCDE as NeuralCDE
from ._neural_ode import NeuralODE as NeuralODE
from ._neural_sde import NeuralSDE as NeuralSDE
from ._scaled import Scaled as Scaled
from ._siren import SIREN as SIREN

"""Fit models to measurements: data, problems, estimates, intervals, training, files."""

from . import noise as noise, priors as priors
from ._best_subset import best_subset as best_subset
from ._data import Data as Data
from ._densities import (
    gradient_and_hessian as gradient_and_hessian,
    log_density as log_density,
    loss as loss,
    residuals as residuals,
)
from ._describe import describe as describe
from ._estimate import estimate as estimate
from ._experiment import Equilibrium as Equilibrium, Experiment as Experiment
from ._free import Free as Free, Tied as Tied
from ._grow import Grow as Grow
from ._horizon import GrowingHorizon as GrowingHorizon
from ._intervals import intervals as intervals
from ._io import load as load, save as save
from ._library import Library as Library
from ._matching import Matching as Matching
from ._orbax import Orbax as Orbax
from ._phases import Phase as Phase
from ._predict import predict as predict, Prediction as Prediction
from ._problem import Problem as Problem
from ._result import Result as Result, Starts as Starts
from ._shooting import MultipleShooting as MultipleShooting, Shot as Shot
from ._solving import Solve as Solve
from ._sparse_law import SparseLaw as SparseLaw
from ._stlsq import stlsq as stlsq
from ._train import train as train
from ._trained import Progress as Progress, Trained as Trained

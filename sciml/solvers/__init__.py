"""Differential equations, ensembles of them, and Newton-type solvers."""

from .._results import RESULTS as RESULTS
from ._auto_switch import AutoSwitch as AutoSwitch
from ._bosh3 import Bosh3 as Bosh3
from ._dense import Steps as Steps
from ._dopri8 import Dopri8 as Dopri8
from ._doses import Doses as Doses
from ._ensemble import solve_ensemble as solve_ensemble
from ._euler import Euler as Euler
from ._event import Event as Event, Events as Events, LastEvent as LastEvent
from ._for_diffrax import RosenbrockSolver as RosenbrockSolver
from ._heun import Heun as Heun
from ._input import Input as Input
from ._jacobian import (
    Banded as Banded,
    BlockDiagonal as BlockDiagonal,
    BlockTridiagonal as BlockTridiagonal,
    Dense as Dense,
    Krylov as Krylov,
    Sparse as Sparse,
)
from ._mass import Mass as Mass
from ._method import (
    AbstractMethod as AbstractMethod,
    AbstractOneStepMethod as AbstractOneStepMethod,
)
from ._nonlinear._anderson import Anderson as Anderson
from ._nonlinear._bracket import Bracket as Bracket
from ._nonlinear._broyden import Broyden as Broyden
from ._nonlinear._fixed_point import fixed_point as fixed_point
from ._nonlinear._front import NonlinearSolution as NonlinearSolution
from ._nonlinear._gauss_newton_cg import GaussNewtonCG as GaussNewtonCG
from ._nonlinear._globalisation import (
    Backtracking as Backtracking,
    Damping as Damping,
    Dogleg as Dogleg,
    FullStep as FullStep,
    PseudoTransient as PseudoTransient,
)
from ._nonlinear._lbfgs import BFGS as BFGS, LBFGS as LBFGS
from ._nonlinear._least_squares import least_squares as least_squares
from ._nonlinear._levenberg_marquardt import LevenbergMarquardt as LevenbergMarquardt
from ._nonlinear._minimise import minimise as minimise
from ._nonlinear._newton import Newton as Newton
from ._nonlinear._newton_cg import NewtonCG as NewtonCG
from ._nonlinear._root import root as root
from ._nonlinear._trust_region_newton import TrustRegionNewton as TrustRegionNewton
from ._rk4 import RK4 as RK4
from ._rodas4 import Rodas4 as Rodas4
from ._rodas5p import Rodas5P as Rodas5P
from ._root_finder import ChordUntilDiverged as ChordUntilDiverged
from ._rosenbrock23 import Rosenbrock23 as Rosenbrock23
from ._solution import Solution as Solution
from ._solve import solve as solve
from ._sparsity import sparsity as sparsity
from ._split import Split as Split
from ._steady_cycle import steady_cycle as steady_cycle
from ._steady_state import steady_state as steady_state, SteadyState as SteadyState
from ._symplectic import hamiltonian as hamiltonian, Leapfrog as Leapfrog, Yoshida4 as Yoshida4
from ._tsit5 import Tsit5 as Tsit5

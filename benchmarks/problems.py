"""Problems of `work_precision.py`, each written once for every solver that is compared.

A field is a list of Python expressions in `t` and `y`, which JAX, NumPy and CasADi evaluate and
`diffsl` translates for diffsol. References are the published values of the *Test Set for IVP
Solvers* (Mazzia, Magherini, Univ. of Bari) and of Hairer and Wanner, or SciPy at 1e-13.
"""

import dataclasses
import re

import numpy as np


@dataclasses.dataclass(frozen=True)
class Problem:
    field: list[str]
    y0: list[float]
    t1: float
    stiff: bool
    reference: list[float] | None = None
    atol: float = 1e-4  # times the relative tolerance

    def __post_init__(self):
        code = compile("[" + ",".join(self.field) + "]", "field", "eval")
        object.__setattr__(self, "_code", code)

    def evaluate(self, t, y):
        """The derivatives as a list, for any `y` that can be indexed."""
        return eval(self._code, {"t": t, "y": y})

    def diffsl(self) -> str:
        name = lambda text: re.sub(r"y\[(\d+)\]", r"x\1", text)
        states = ", ".join(f"x{i} = {v!r}" for i, v in enumerate(self.y0))
        return f"u_i {{ {states} }} F_i {{ {', '.join(name(f) for f in self.field)} }}"


def _robertson(t1, reference):
    a, b, c = "0.04*y[0]", "1e4*y[1]*y[2]", "3e7*y[1]*y[1]"
    field = [f"-{a}+{b}", f"{a}-{b}-{c}", c]
    return Problem(field, [1.0, 0.0, 0.0], t1, True, reference, 1e-6)


def _van_der_pol(mu, t1):
    # y'' = mu (1 - y^2) y' - y, time not scaled
    return Problem(["y[1]", f"{mu!r}*((1-y[0]*y[0])*y[1])-y[0]"], [2.0, 0.0], t1, True)


PROBLEMS = {
    "Robertson to 1e5": _robertson(1e5, None),
    "Robertson to 1e11": _robertson(
        1e11, [2.083340149701255e-8, 8.333360770334713e-14, 0.9999999791665050]
    ),
    "HIRES": Problem(
        [
            "-1.71*y[0]+0.43*y[1]+8.32*y[2]+0.0007",
            "1.71*y[0]-8.75*y[1]",
            "-10.03*y[2]+0.43*y[3]+0.035*y[4]",
            "8.32*y[1]+1.71*y[2]-1.12*y[3]",
            "-1.745*y[4]+0.43*(y[5]+y[6])",
            "-280*y[5]*y[7]+0.69*y[3]+1.71*y[4]-0.43*y[5]+0.69*y[6]",
            "280*y[5]*y[7]-1.81*y[6]",
            "-280*y[5]*y[7]+1.81*y[6]",
        ],
        [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0057],
        321.8122,
        True,
        [
            0.0007371312573325668,
            0.0001442485726316185,
            0.00005888729740967575,
            0.001175651343283149,
            0.002386356198831331,
            0.006238968252742796,
            0.002849998395185769,
            0.002850001604814231,
        ],
    ),
    "OREGO": Problem(
        [
            "77.27*(y[1]+y[0]*(1-8.375e-6*y[0]-y[1]))",
            "(y[2]-(1+y[0])*y[1])/77.27",
            "0.161*(y[0]-y[2])",
        ],
        [1.0, 2.0, 3.0],
        360.0,
        True,
        [1.000814870318523, 1228.178521549917, 132.0554942846706],
    ),
    "Van der Pol, mu = 1000": _van_der_pol(1000.0, 2000.0),
    "Lotka-Volterra": Problem(
        ["0.55*y[0]-0.028*y[0]*y[1]", "0.026*y[0]*y[1]-0.84*y[1]"], [30.0, 4.0], 20.0, False
    ),
    "FitzHugh-Nagumo": Problem(
        ["y[0]-y[0]*y[0]*y[0]/3-y[1]+0.5", "(y[0]+0.7-0.8*y[1])/12.5"], [1.0, 1.0], 100.0, False
    ),
    "Lorenz": Problem(
        ["10*(y[1]-y[0])", "y[0]*(28-y[2])-y[1]", "y[0]*y[1]-8/3*y[2]"],
        [1.0, 0.0, 0.0],
        10.0,
        False,
    ),
}


def reference(problem: Problem) -> np.ndarray:
    if problem.reference is not None:
        return np.array(problem.reference)
    from scipy.integrate import solve_ivp

    method = "Radau" if problem.stiff else "DOP853"
    fn = lambda t, y: problem.evaluate(t, y)
    tols = {"rtol": 3e-13, "atol": 1e-15 if problem.stiff else 1e-13}
    return solve_ivp(fn, (0.0, problem.t1), problem.y0, method, **tols).y[:, -1]

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
        return eval(self._code, {"t": t, "y": y, "sqrt": lambda x: x**0.5})

    def diffsl(self) -> str:
        name = lambda text: re.sub(r"y\[(\d+)\]", r"x\1", text)
        states = ", ".join(f"x{i} = {v!r}" for i, v in enumerate(self.y0))
        return f"u_i {{ {states} }} F_i {{ {', '.join(name(f) for f in self.field)} }}"


def _robertson(t1, reference):
    a, b, c = "0.04*y[0]", "1e4*y[1]*y[2]", "3e7*y[1]*y[1]"
    field = [f"-{a}+{b}", f"{a}-{b}-{c}", c]
    return Problem(field, [1.0, 0.0, 0.0], t1, True, reference, 1e-6)


def _pollu():
    """Air pollution: 25 reactions of 20 species, the rates and the species that they multiply."""
    rates = [
        0.35, 26.6, 1.23e4, 8.6e-4, 8.2e-4, 1.5e4, 1.3e-4, 2.4e4, 1.65e4, 9e3, 0.022, 1.2e4, 1.88, 1.63e4, 4.8e6,
        3.5e-4, 0.0175, 1e8, 4.44e11, 1240.0, 2.1, 5.78, 0.0474, 1780.0, 3.12,
    ]  # fmt: skip
    species = [
        (0,), (1, 3), (4, 1), (6,), (6,), (6, 5), (8,), (8, 5), (10, 1), (10, 0), (12,), (9, 1), (13,), (0, 5),
        (2,), (3,), (3,), (15,), (15,), (16, 5), (18,), (18,), (0, 3), (18, 0), (19,),
    ]  # fmt: skip
    # for each species the reactions that make it, and those that use it up
    made = [
        (1, 2, 8, 10, 11, 21, 24), (0, 20), (0, 16, 18, 21), (14,), (3, 3, 5, 6, 12, 19), (2, 17, 17), (12,),
        (3, 4, 5, 6), (), (6, 8), (7, 10), (8,), (9,), (11,), (13,), (15,), (), (19,), (22, 24), (23,),
    ]  # fmt: skip
    used = [
        (0, 9, 13, 22, 23), (1, 2, 8, 11), (14,), (1, 15, 16, 22), (2,), (5, 7, 13, 19), (3, 4, 5), (), (6, 7),
        (11,), (8, 9), (), (10,), (12,), (), (17, 18), (19,), (), (20, 21, 23), (24,),
    ]  # fmt: skip
    rate = lambda i: "*".join([repr(rates[i]), *(f"y[{j}]" for j in species[i])])
    term = lambda plus, minus: (
        "".join(f"+{rate(i)}" for i in plus) + "".join(f"-{rate(i)}" for i in minus)
    )
    y0 = [0.0] * 20
    for i, x in {1: 0.2, 3: 0.04, 6: 0.1, 7: 0.3, 8: 0.01, 16: 0.007}.items():
        y0[i] = x
    return Problem([term(m, u) for m, u in zip(made, used, strict=True)], y0, 60.0, True, _POLLU)


# fmt: off
_POLLU = [
    0.05646255480022769, 0.1342484130422339, 4.139734331099427e-09, 0.005523140207484359, 2.018977262302196e-07,
    1.464541863493966e-07, 0.07784249118997964, 0.3245075353396018, 0.007494013383880406, 1.622293157301561e-08,
    1.135863833257075e-08, 0.002230505975721359, 0.000208716288279863, 1.396921016840158e-05,
    0.008964884856898295, 4.352846369330103e-18, 0.006899219696263405, 0.0001007803037365946,
    1.772146513969984e-06, 5.682943292316392e-05,
]
# fmt: on


def _akzo_nobel():
    """Chemical Akzo Nobel with its equilibrium eliminated."""
    r1, r2, r3 = "18.7*y[0]*y[0]*y[0]*y[0]*sqrt(y[1])", "0.58*y[2]*y[3]", "0.58/34.4*y[0]*y[4]"
    r4, y6 = "0.09*y[0]*y[3]*y[3]", "115.83*y[0]*y[3]"
    r5 = f"0.42*{y6}*{y6}*sqrt(y[1])"
    field = [
        f"-2*{r1}+{r2}-{r3}-{r4}", f"-0.5*{r1}-{r4}-0.5*{r5}+3.3*(0.9/737-y[1])", f"{r1}-{r2}+{r3}",
        f"-{r2}+{r3}-2*{r4}", f"{r2}-{r3}+{r5}",
    ]  # fmt: skip
    want = [
        0.1150794920661702, 0.001203831471567715, 0.1611562887407974, 0.0003656156421249283, 0.01708010885264404
    ]  # fmt: skip
    return Problem(field, [0.444, 0.00123, 0.0, 0.007, 0.0], 180.0, True, want)


def _pleiades():
    """Seven stars in a plane: positions, then velocities."""
    stars = range(7)

    def pull(i, offset):
        parts = []
        for j in stars:
            if j != i:
                dx, dy = f"(y[{j}]-y[{i}])", f"(y[{j + 7}]-y[{i + 7}])"
                r2 = f"({dx}*{dx}+{dy}*{dy})"
                parts.append(f"{j + 1}*(y[{j + offset}]-y[{i + offset}])/({r2}*sqrt({r2}))")
        return "+".join(parts)

    field = [f"y[{14 + i}]" for i in range(14)] + [pull(i, k) for k in (0, 7) for i in stars]
    y0 = [
        3,
        3,
        -1,
        -3,
        2,
        -2,
        2,
        3,
        -3,
        2,
        0,
        0,
        -4,
        4,
        0,
        0,
        0,
        0,
        0,
        1.75,
        -1.5,
        0,
        0,
        0,
        -1.25,
        1,
        0,
        0,
    ]
    return Problem(field, [float(x) for x in y0], 3.0, False)


def _linear(n):
    at = lambda i: f"y[{i}]" if 0 <= i < n else "0"
    field = [f"{at(i - 1)}-2*{at(i)}+{at(i + 1)}" for i in range(n)]
    return Problem(field, [float(i == n // 2) for i in range(n)], 20.0, False)


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
    # y'' = ((1 - y^2) y' - y) 1e6: time in units of mu
    "Van der Pol, eps = 1e-6": Problem(
        ["y[1]", "1e6*((1-y[0]*y[0])*y[1]-y[0])"], [2.0, 0.0], 2.0, True
    ),
    "POLLU": _pollu(),
    "Akzo Nobel": _akzo_nobel(),
    "Pleiades": _pleiades(),
    "linear, 100": _linear(100),
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

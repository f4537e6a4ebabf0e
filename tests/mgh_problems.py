"""The test problems of Moré, Garbow and Hillstrom, and 23 square systems made of them.

Formulas, starts and minima: ACM TOMS 7 (1981), 17-41. See `tests/data/mgh.json`.
"""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np


_FILE = json.loads((pathlib.Path(__file__).parent / "data" / "mgh.json").read_text())


class Problem:
    """`residuals(y, args)`, the start, and the known minima of the sum of squares."""

    def __init__(self, entry):
        self.name = entry["name"]
        self.start = jnp.array(entry["x0"], float)
        self.minima = [m["f"] for m in entry.get("minima", [])]
        self.scipy = entry.get("scipy_runs", [])
        self._code = compile(entry["residuals"], self.name, "eval")
        self._constants = {
            k: np.asarray(v, float) if np.ndim(v) else v for k, v in entry["pre"].items()
        }

    def __str__(self):
        return f"{self.name}"

    def residuals(self, x, args=None):
        with jax.numpy_rank_promotion("allow"):
            return eval(self._code, {"np": jnp, "x": x, **self._constants})  # text from the file

    def sum_of_squares(self, x, args=None):
        return jnp.sum(self.residuals(x) ** 2)

    def solved(self, value) -> bool:
        """Whether a sum of squares is that of one of the minima."""
        return bool(
            np.isfinite(value) and any(value <= f * (1 + 1e-5) + 1e-10 for f in self.minima)
        )


LEAST_SQUARES = [Problem(e) for e in _FILE["least_squares"]]
SYSTEMS = [Problem(e) for e in _FILE["square_systems"]]

"""Certified nonlinear regressions of NIST, to nine digits from both published starts.

The files in `tests/data/nist` state their sources: the Statistical Reference Datasets, a public-domain work of the US
government. `certified` carries eleven digits.
"""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sciml import solvers


FILES = sorted((pathlib.Path(__file__).parents[1] / "data" / "nist").glob("*.json"))
NAMESPACE = {
    "exp": jnp.exp, "log": jnp.log, "cos": jnp.cos, "sin": jnp.sin, "arctan": jnp.arctan, "pi": jnp.pi,
    "__builtins__": {},
}  # fmt: skip


def _problem(name: str):
    file = json.loads(next(f for f in FILES if f.stem == name).read_text())
    data = {k: jnp.array(v) for k, v in file["data"].items()}
    y = jnp.log(data["y"]) if file["response_transform"] == "log" else data["y"]
    formula = compile(file["formula"], name, "eval")

    def residuals(b, args):
        values = dict(zip(file["params"], b, strict=True)) | {
            k: data[k] for k in file["predictors"]
        }
        return eval(formula, NAMESPACE, values) - y  # the formula is text from the file

    return file, residuals


def digits(got, want) -> float:
    """The number of right digits of the worst parameter."""
    got, want = np.asarray(got), np.asarray(want)
    with np.errstate(divide="ignore"):
        return float(np.min(-np.log10(np.abs(got - want) / np.abs(want))))


STARTS = [(f.stem, start) for f in FILES for start in ("start1", "start2")]


@pytest.fixture(scope="module")
def problems():
    """Each problem once: both starts then share one compilation."""
    known = {}

    def get(name):
        if name not in known:
            known[name] = _problem(name)
        return known[name]

    return get


def test_all_files_are_there():
    assert len(FILES) == 18


@pytest.mark.parametrize(("name", "start"), STARTS)
def test_certified_values(name, start, problems):
    file, residuals = problems(name)
    sol = solvers.least_squares(residuals, jnp.array(file[start]))
    assert bool(sol.ok)
    assert digits(sol.value, file["certified"]) > 9
    # Lanczos1 has residuals of 1e-13: its sum of squares is rounding.
    rtol = 1e-9 if file["rss"] > 1e-20 else 1e-2
    np.testing.assert_allclose(2 * sol.loss, file["rss"], rtol=rtol)
    if start == "start1":
        rows = np.asarray(jax.jit(jax.jacfwd(residuals))(sol.value, None))
        length = np.linalg.norm(rows, axis=0)
        inverse = np.linalg.inv(np.linalg.qr(rows / length, mode="r")) / length[:, None]
        sd = np.linalg.norm(inverse, axis=1) * np.sqrt(2 * sol.loss / file["dof"])
        assert digits(sd, file["certified_sd"]) > (6 if file["rss"] > 1e-20 else 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Misra1a", "MGH09", "Roszman1"])
def test_without_geodesic_acceleration(name, problems):
    file, residuals = problems(name)
    plain = solvers.LevenbergMarquardt(geodesic=False)
    sol = solvers.least_squares(residuals, jnp.array(file["start1"]), method=plain)
    assert digits(sol.value, file["certified"]) > 8


# The parameters that are just factors.
LINEAR = {"Lanczos1": [0, 2, 4], "MGH17": [0, 1, 2], "Misra1a": [0], "Gauss1": [0, 2, 5]}


@pytest.mark.parametrize("name", LINEAR)
def test_unknowns_eliminated_by_variable_projection(name, problems):
    file, residuals = problems(name)
    start = "start2" if name == "MGH17" else "start1"
    mask = np.isin(np.arange(len(file["params"])), LINEAR[name])
    sol = solvers.least_squares(residuals, jnp.array(file[start]), linear=mask)
    assert bool(sol.ok) and digits(sol.value, file["certified"]) > 9
    if start == "start1":
        whole = solvers.least_squares(residuals, jnp.array(file[start]))
        assert sol.stats["evaluations"] <= whole.stats["evaluations"]

"""Problems of the *Test Set for IVP Solvers*, DETEST and textbooks, to their published solutions."""

import json
import pathlib

import helpers
import jax.numpy as jnp
import numpy as np
import pytest

from sciml import solvers


PROBLEMS = json.loads(
    (pathlib.Path(__file__).parents[1] / "data" / "ivp.json").read_text(encoding="utf-8")
)["problems"]
QUICK = {"HIRES", "POLLU", "OREGO", "Pleiades", "DETEST B5"}


def field_of(problem):
    rhs, params = problem["rhs"], problem["params"]
    block = isinstance(rhs, str)
    text = rhs if block else "out = [" + ",".join(rhs) + "]"
    code = compile(text, problem["name"], "exec")

    def field(t, y, args):
        names = {"np": jnp, "t": t, "y": y, **params}
        exec(code, names)
        return jnp.stack([jnp.asarray(x, y.dtype) for x in names["out"]])

    return field


def cases():
    for p in PROBLEMS:
        methods = (
            [solvers.Rodas5P(), solvers.Rodas4()]
            if p["stiff"]
            else [solvers.Tsit5(), solvers.Dopri8()]
        )
        for k, method in enumerate([*methods, None]):
            slow = [] if p["name"] in QUICK and k == 0 else [pytest.mark.slow]
            ident = f"{p['name']}-{helpers.name(method) if method else 'default'}"
            yield pytest.param(p, method, id=ident, marks=slow)


@pytest.mark.parametrize(("p", "method"), list(cases()))
def test_reference(p, method):
    rtol = 1e-8 if isinstance(method, solvers.Rodas4) else 1e-10
    y0, ts = jnp.array(p["y0"], float), jnp.array([p["t0"], p["t1"]], float)
    sol = solvers.solve(
        field_of(p), y0, ts, method=method, rtol=rtol, atol=rtol * 1e-4, max_steps=400_000
    )
    got, want = np.asarray(sol.ys[-1]), np.array(p["reference"])
    if len(got) != len(want):
        got = got[p["published_index"]]
    # What accumulates over the span costs up to four digits.
    np.testing.assert_allclose(got, want, rtol=1e4 * rtol, atol=rtol)

import json
import re
import subprocess
import sys
from pathlib import Path


_ROOT = Path(__file__).parents[1]

_PROBE = """
import json, sys
import jax

names = ("jax_enable_x64", "jax_numpy_dtype_promotion", "jax_numpy_rank_promotion",
         "jax_default_matmul_precision", "jax_debug_nans", "jax_platforms", "jax_threefry_partitionable")
before = {name: str(getattr(jax.config, name)) for name in names}
import diffrax, optimistix, optax
with_diffrax = set(sys.modules)
import sciml
import jax._src.xla_bridge as bridge
backend = bridge.backends_are_initialized()
dtype = str(jax.numpy.result_type(float))
modules = sorted({m.partition(".")[0] for m in set(sys.modules) - with_diffrax})
after = {name: str(getattr(jax.config, name)) for name in names}

import warnings
with warnings.catch_warnings(record=True) as seen:
    sciml.solvers.solve(lambda t, y, args: -y, 1.0, jax.numpy.arange(2.0), rtol=1e-9, steps=1)
    here = sys._getframe().f_lineno - 1
print(json.dumps({
    "before": before, "after": after, "modules": modules, "backend": backend, "dtype": dtype,
    "warned": [(str(w.message), w.filename, w.lineno - here) for w in seen],
}))
"""


def _import_sciml() -> dict:
    run = subprocess.run(
        [sys.executable, "-c", _PROBE], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_importing_has_no_side_effects_and_warnings_point_to_the_caller():
    seen = _import_sciml()
    # Extras are imported when they are used, and nothing else is paid for beside Diffrax.
    extras = {
        "matplotlib",
        "pandas",
        "polars",
        "narwhals",
        "tqdm",
        "scipy",
        "blackjax",
        "flax",
        "IPython",
    }
    assert not extras & set(seen["modules"])
    third_party = {
        m for m in seen["modules"] if m not in sys.stdlib_module_names and not m.startswith("_")
    }
    assert third_party == {"sciml"}
    assert seen["after"] == seen["before"]
    assert seen["dtype"] == "float32"
    assert not seen["backend"], "importing sciml started a JAX backend"
    # A warning points to the user's line (not so under the type checker's wrappers, hence here).
    [(text, file, line)] = seen["warned"]
    assert "enable x64" in text and (file, line) == ("<string>", 0)


def test_the_public_names_are_there():
    import sciml

    for package, names in {
        sciml: ["RESULTS", "__version__", "fit", "nets", "plot", "solvers"],
        sciml.solvers: [
            "RESULTS", "RK4", "Solution", "Tsit5", "least_squares", "solve", "solve_ensemble",
            "AbstractMethod", "ChordUntilDiverged", "NonlinearSolution", "fixed_point", "minimise", "root",
            "Anderson", "BFGS", "Bracket", "Broyden", "LBFGS", "LevenbergMarquardt", "Newton", "NewtonCG",
            "TrustRegionNewton", "Backtracking", "Damping", "Dogleg", "FullStep", "PseudoTransient",
        ],
    }.items():  # fmt: skip
        for name in names:
            assert hasattr(package, name), f"{package.__name__}.{name}"


def _files(*patterns: str) -> list[Path]:
    return [file for pattern in patterns for file in sorted(_ROOT.glob(pattern))]


def test_references_lead_to_an_entry_of_the_api():
    pages = "".join(file.read_text(encoding="utf-8") for file in _files("docs/api/*.md"))
    entries = set(re.findall(r"^:::\s+([\w.]+)", pages, re.M))
    dangling = {
        (str(file.relative_to(_ROOT)), name)
        for file in _files("docs/**/*.md", "sciml/**/*.py", "README.md")
        for name in re.findall(r"\]\[(sciml(?:\.\w+)*)\]", file.read_text(encoding="utf-8"))
        # an entry, or something in one: a method of a class
        if not {name, name.rpartition(".")[0]} & entries
    }
    assert not dangling


def test_every_public_name_has_an_entry_in_the_api():
    import sciml

    pages = "".join(file.read_text(encoding="utf-8") for file in _files("docs/api/*.md"))
    entries = set(re.findall(r"^:::\s+([\w.]+)", pages, re.M))
    packages = (sciml.fit, sciml.fit.noise, sciml.fit.priors, sciml.nets, sciml.plot, sciml.solvers)
    for package in packages:
        public = {
            f"{package.__name__}.{name}"
            for name, value in vars(package).items()
            if not name.startswith("_") and callable(value) and "sciml" in value.__module__
        }
        assert public
        assert not public - entries

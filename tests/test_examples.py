"""The examples run as scripts, in a short setting, and say what they promise."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest


ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"


def run(name: str, cwd: Path) -> str:
    # As a user's: one device, JAX's own defaults, warnings as warnings.
    env = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_ENABLE_X64")}
    path = os.pathsep.join(filter(None, [str(ROOT), env.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), "--quick"],
        cwd=cwd, env=env | {"PYTHONPATH": path, "MPLBACKEND": "agg"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def numbers(text: str) -> list[float]:
    return [float(v) for v in re.findall(r"[-+]?\d+\.?\d*(?:e[-+]?\d+)?", text)]


def test_first_fit(tmp_path):
    out = run("first_fit.py", tmp_path)
    assert re.search(r"^  k +0\.40(19|20)\d* +0\.0048", out, re.M)
    assert "95% interval" in out and "!" not in out


def test_hare_lynx(tmp_path):
    out = run("hare_lynx.py", tmp_path)
    assert "Fit of LotkaVolterra   converged" in out and "starts agree" in out
    published = [line for line in out.splitlines() if "published" in line]
    assert [line.split()[0] for line in published] == [
        "birth", "predation", "death", "growth", "noise.sigma",
    ]  # fmt: skip
    assert all(line.endswith("  inside") for line in published), out
    figure = tmp_path / "hare_lynx.png"
    assert figure.read_bytes().startswith(b"\x89PNG") and figure.stat().st_size > 20_000


def test_neural_ode(tmp_path):
    out = run("neural_ode.py", tmp_path)
    assert re.findall(r"10 steps on (\d+)% of the time: loss", out) == ["25", "100"]
    assert numbers(out.split("to t = 18:")[1])[0] < 5  # hardly trained, but no blow-up


def test_ude(tmp_path):
    out = run("ude.py", tmp_path)
    assert "best of 50 steps" in out and "largest error of the learnt term" in out


def test_every_example_is_tested():
    tested = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    for script in EXAMPLES.glob("*.py"):
        assert script.stem in tested


def code_of(source: str) -> str:
    """The code without comments, blank lines, docstring and the order in which imports stand."""
    tree = ast.parse(source)
    if ast.get_docstring(tree) is not None:
        del tree.body[0]
    return ast.unparse(tree)


def test_the_readme_shows_the_first_fit():
    readme = (ROOT / "README.md").read_text()
    snippet = re.search(r"^```python\n(.*?)^```", readme, re.M | re.S)
    assert snippet
    source = (EXAMPLES / "first_fit.py").read_text()
    assert code_of(snippet[1]) == code_of(source)
    lines = [
        row for row in snippet[1].splitlines() if row.strip() and not row.strip().startswith("#")
    ]
    assert len(lines) <= 25


@pytest.mark.parametrize("name", ["hare_lynx", "ude", "neural_ode"])
def test_examples_explain_themselves(name):
    tree = ast.parse((EXAMPLES / f"{name}.py").read_text())
    assert (ast.get_docstring(tree) or "").startswith("# ")

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


@pytest.mark.slow
def test_neural_ode(tmp_path):
    out = run("neural_ode.py", tmp_path)
    assert re.findall(r"10 steps on (\d+)% of the time: loss", out) == ["25", "100"]
    assert numbers(out.split("to t = 18:")[1])[0] < 5  # hardly trained, but no blow-up


@pytest.mark.slow
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


@pytest.mark.slow
def test_theophylline(tmp_path):
    """The sum of squares and estimates that R finds for subject 1 (fits of the data set)."""
    out = run("theophylline.py", tmp_path)
    assert "RSS 4.28601" in out
    values = {name: float(re.search(rf"^  {name} +(\S+)", out, re.M)[1]) for name in RATES}
    assert abs(values["elimination"] / 0.053955 - 1) < 1e-3
    assert abs(values["absorption"] / 1.77741 - 1) < 1e-3
    trough, peak = numbers(out.split("trough")[1])
    assert 20 < trough < 22 < 28 < peak < 30


RATES = ("absorption", "elimination", "clearance")


@pytest.mark.slow  # the documentation runs it, too
def test_bouncing_ball(tmp_path):
    out = run("bouncing_ball.py", tmp_path)
    assert "4 bounces, at [1.4278 3.7124 5.54   7.0021]" in out
    assert "-0.64482357" in out and "22.02142311" in out
    gravity, _, restitution = numbers(out.split("gravity")[-1])
    assert abs(gravity - 9.81) < 0.02 and abs(restitution - 0.8) < 1e-3


@pytest.mark.slow  # the documentation runs it, too
def test_driven_oscillator(tmp_path):
    out = run("driven_oscillator.py", tmp_path)
    assert "Fit of Oscillator   converged" in out
    stiffness = float(re.search(r"^  stiffness +(\S+)", out, re.M)[1])
    assert abs(stiffness - 2) < 0.06

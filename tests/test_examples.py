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
    assert re.findall(r"10 steps on (\d+)% of the time: loss", out) == ["10", "100", "10"]
    assert numbers(out.split("to t = 30:")[1])[0] < 5  # hardly trained, but no blow-up


@pytest.mark.slow
def test_ude(tmp_path):
    out = run("ude.py", tmp_path)
    assert re.search(r"^d prey = -0.8\d* prey predators$", out, re.M)
    found = re.findall(r"^  meeting.coefficients\[\d\] +(\S+)", out, re.M)
    assert abs(float(found[0]) + 0.9) < 0.003 and abs(float(found[1]) - 0.8) < 0.015


@pytest.mark.slow
def test_hamiltonian_nn(tmp_path):
    out = run("hamiltonian_nn.py", tmp_path)
    rows = re.findall(
        r"^(spring|pendulum|two bodies), (plain|Hamiltonian) +(\S+) +(\S+) ", out, re.M
    )
    assert len(rows) == 6  # hardly trained: the errors say nothing
    assert [paper for _, kind, _, paper in rows if kind == "Hamiltonian"] == [
        "3.84e-04", "2.49e-02", "3.88e-05",
    ]  # fmt: skip


@pytest.mark.slow
def test_robertson_net(tmp_path):
    out = run("robertson_net.py", tmp_path)
    assert re.search(r"^17 times: ", out, re.M) and "mean absolute errors" in out


@pytest.mark.slow
def test_neural_cde(tmp_path):
    out = run("neural_cde.py", tmp_path)
    loss, accuracy = re.search(
        r"20 steps: loss (\S+), accuracy on other spirals (\S+)", out
    ).groups()
    assert float(loss) < 1 and 0.4 < float(accuracy) <= 1
    assert "with three in ten points lost" in out


@pytest.mark.slow
def test_latent_ode(tmp_path):
    out = run("latent_ode.py", tmp_path)
    first, last = numbers(out.split("loss")[1])[:2]
    assert last < first  # after five steps
    assert "root mean square error up to t = 3" in out


@pytest.mark.slow
def test_lagrangian_nn(tmp_path):
    out = run("lagrangian_nn.py", tmp_path)
    assert "solved: 4 of 4" in out and "energy error at the end: mean" in out


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


NARRATED = (
    "hare_lynx", "ude", "neural_ode", "influenza", "alpha_pinene", "methanol", "hiv", "theophylline",
    "hamiltonian_nn", "neural_cde", "latent_ode", "lagrangian_nn",
    "robertson_net",
)  # fmt: skip


@pytest.mark.parametrize("name", NARRATED)
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
    trough, peak = numbers(out.split("trough")[1])[:2]
    assert 20 < trough < 22 < 28 < peak < 30
    aic = {own: float(a) for own, a in re.findall(r"^(\w[\w, ]*?) +\d+ .* (\S+) +\S+$", out, re.M)}
    assert min(aic, key=aic.__getitem__) == "absorption, clearance" and len(aic) == 3


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


@pytest.mark.slow  # the documentation runs it, too
def test_influenza(tmp_path):
    out = run("influenza.py", tmp_path)
    aic = {law: float(v) for law, v in re.findall(r"^(\w[\w ]*?) +(\d+\.\d) ", out, re.M)}
    assert aic == {"normal": 125.4, "Poisson": 141.1, "negative binomial": 126.7}
    assert out.count("infects") == 3 and "noise: normal" in out


@pytest.mark.slow  # the documentation runs it, too
def test_alpha_pinene(tmp_path):
    out = run("alpha_pinene.py", tmp_path)
    assert "RSS 19.8722" in out
    for line in (line for line in out.splitlines() if "published" in line):
        mine, _, published = numbers(line)
        assert abs(mine / published - 1) < 2e-3
    before, after = (float(v) for v in re.findall(r"^  to_pyronene +(\S+)", out, re.M))
    assert after > 5 * before


@pytest.mark.slow  # the documentation runs it, too
def test_methanol(tmp_path):
    out = run("methanol.py", tmp_path)
    assert "! k5 sits at its lower bound: no error bar" in out
    assert out.count("RSS 0.00902229") == 2
    assert "k5 < 0.93, with 95% confidence" in out


@pytest.mark.slow  # the documentation runs it, too
def test_hiv(tmp_path):
    out = run("hiv.py", tmp_path)
    levels, decades, informed = out.split("Fit of Virus")[1:]
    assert "clearance, death -1.000" in levels or "not identifiable" in levels
    assert "RSS 0.251276" in decades and "clearance, death -0.959" in decades
    error = float(re.search(r"^  death +\S+ +(\S+)", informed, re.M)[1])
    assert error < 0.1

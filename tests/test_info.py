import platform
import subprocess
import sys
from importlib import metadata

import jax
import pytest

from sciml.__main__ import main
from sciml._info import info, version


def _rows(text: str) -> dict[str, str]:
    return dict(line.split(maxsplit=1) for line in text.splitlines() if line)


def test_info_tells_versions_devices_and_precision():
    rows = _rows(info())
    for name in ("jax", "jaxlib", "equinox", "diffrax", "optimistix", "lineax", "optax", "numpy"):
        assert rows[name] == metadata.version(name)
    assert rows["sciml"] == metadata.version("sciml-jax")
    assert rows["python"].startswith(platform.python_version())
    assert rows["devices"] == f"{jax.device_count()} x cpu" or jax.default_backend() != "cpu"
    assert rows["x64"] == "on"


def test_info_names_what_is_not_installed():
    assert version("no-such-distribution") == "not installed"


def test_info_shows_a_backend_that_does_not_start(monkeypatch):
    def fail():
        raise RuntimeError("Unable to initialize backend 'cuda'")

    monkeypatch.setattr(jax, "devices", fail)
    assert _rows(info())["devices"] == "none: Unable to initialize backend 'cuda'"


def test_command_prints_info(capsys):
    assert main(["info"]) == 0
    assert capsys.readouterr().out == info() + "\n"


@pytest.mark.parametrize("argv", [[], ["inform"], ["info", "--verbose"]])
def test_misuse_prints_the_usage(argv, capsys):
    with pytest.raises(SystemExit) as stop:
        main(argv)
    assert stop.value.code == 2
    assert "usage: python -m sciml" in capsys.readouterr().err


def test_runs_as_a_module():
    run = subprocess.run([sys.executable, "-m", "sciml", "info"], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    # A fresh process: importing `sciml` must not switch it on.
    assert _rows(run.stdout)["x64"] == "off"

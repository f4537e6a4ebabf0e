"""Set-up for everything that pytest runs here. What only `tests/` needs is in `tests/conftest.py`.

The Python snippets in README.md, in `docs/` and in the docstrings of `sciml/` are tests too: sybil runs them, page by
page (docstrings: file by file), in JAX's default configuration, as a reader would, and in an empty directory.
"""

import gc
import os
import sys
import tempfile
from pathlib import Path


# Before JAX, NumPy and matplotlib are imported, hence before all else; the workers of pytest-xdist inherit them.
# Eight CPU devices, so that sharding is tested everywhere.
_DEVICES = "--xla_force_host_platform_device_count=8"
if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_DEVICES}".strip()
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "agg")

import jax  # noqa: E402
from sybil import Document, Sybil  # noqa: E402
from sybil.document import PythonDocStringDocument  # noqa: E402
from sybil.integration.pytest import SybilItem  # noqa: E402
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser  # noqa: E402
from sybil.sybil import SybilCollection  # noqa: E402


_AS_A_READER = {
    "jax_enable_x64": False,
    "jax_numpy_dtype_promotion": "standard",
    "jax_numpy_rank_promotion": "allow",
}


# An error beside a snippet, such as a file that it left open, has no traceback through the snippet. Sybil 10.1 looks
# for one all the same, and its IndexError ends the whole session.
_sybils_filter = SybilItem._traceback_filter


_MANY_MAPS = 25_000  # of the 65,530 that Linux allows a process; each compiled program takes some


def pytest_runtest_teardown(item, nextitem):
    """Forgets compiled programs between files: with too many of them XLA crashes for want of memory maps."""
    if nextitem is not None and nextitem.path == item.path:
        return
    maps = Path("/proc/self/maps")
    if maps.exists() and len(maps.read_bytes().splitlines()) > _MANY_MAPS:
        jax.clear_caches()
        gc.collect()


def _traceback_filter(item: SybilItem, excinfo):
    try:
        return _sybils_filter(item, excinfo)
    except IndexError:
        return excinfo.traceback


SybilItem._traceback_filter = _traceback_filter


class _Docstrings(PythonDocStringDocument):
    """Docstrings whose examples must be complete: the module's own names are not put into their namespace."""

    def __init__(self, text: str, path: str) -> None:
        Document.__init__(self, text, path)


def _setup(namespace: dict) -> None:
    directory = tempfile.TemporaryDirectory()
    config = {name: getattr(jax.config, name) for name in _AS_A_READER}
    namespace["__sybil__"] = directory, os.getcwd(), config
    os.chdir(directory.name)
    for name, value in _AS_A_READER.items():
        jax.config.update(name, value)


def _teardown(namespace: dict) -> None:
    directory, before, config = namespace.pop("__sybil__")
    for name, value in config.items():
        jax.config.update(name, value)
    os.chdir(before)
    directory.cleanup()
    if pyplot := sys.modules.get("matplotlib.pyplot"):
        pyplot.close("all")


def _sybil(**where) -> Sybil:
    parsers = [PythonCodeBlockParser(), SkipParser()]
    return Sybil(parsers, setup=_setup, teardown=_teardown, **where)


pytest_collect_file = SybilCollection(
    [
        _sybil(path=".", filenames=["README.md"]),
        # The tutorials are made from examples/*.py, which are tests by themselves.
        _sybil(path="docs", pattern="*.md", exclude="tutorials/*"),
        _sybil(path="sciml", pattern="*.py", document_types={".py": _Docstrings}),
    ]
).pytest()

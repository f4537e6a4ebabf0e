import zlib
from pathlib import Path

import jax
import jax.random as jr
import pytest


jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


class _GetKey:
    def __init__(self, seed: int):
        self._key = jr.key(seed)

    def __call__(self):
        self._key, key = jr.split(self._key)
        return key


@pytest.fixture
def getkey(request):
    """A function that gives a fresh random key at every call, the same ones in every run of the same test."""
    return _GetKey(zlib.crc32(request.node.nodeid.encode()))


_SLOW = Path(__file__).with_name("slow.txt")


def pytest_collection_modifyitems(config, items):
    """Marks the tests that `slow.txt` lists. One that is no longer there is an error, where its file was collected."""
    listed = {line for line in _SLOW.read_text().splitlines() if line and not line.startswith("#")}
    for item in items:
        if item.nodeid in listed:
            item.add_marker(pytest.mark.slow)
    if any("::" in argument for argument in config.args):
        return
    collected = {item.nodeid for item in items}
    files = {name.split("::")[0] for name in collected}
    if gone := sorted(name for name in listed - collected if name.split("::")[0] in files):
        raise pytest.UsageError(f"tests/slow.txt lists tests that do not exist: {', '.join(gone)}")

import zlib

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

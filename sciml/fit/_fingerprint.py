"""Whether two things are the same, told without keeping either: across processes too."""

import dataclasses
import functools
import hashlib
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def fingerprint(thing: Any) -> str:
    """A digest of values, dtypes, settings and code; nothing in it depends on addresses in memory.

    Functions count by name, bytecode, defaults and what they close over, such as the learning rate inside an Optax
    optimiser.
    """
    digest = hashlib.sha256()
    _feed(thing, digest, set())
    return digest.hexdigest()[:16]


def _feed(x: Any, digest: Any, above: set[int]) -> None:
    say = lambda *words: digest.update(repr(words).encode())
    if x is None or isinstance(x, bool | int | float | complex | str | bytes | np.dtype):
        return say(type(x).__name__, str(x))
    if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        say(str(jax.random.key_impl(x)))
        x = jax.random.key_data(x)
    if isinstance(x, jax.Array | np.ndarray | np.generic):
        x = np.asarray(x)
        say(x.shape, str(x.dtype))
        return digest.update(x.tobytes())
    if isinstance(x, type):
        return say(x.__module__, x.__qualname__)
    if id(x) in above:
        return say("itself")
    above = above | {id(x)}
    for name, part in _parts(x):
        say(name)
        _feed(part, digest, above)


def _parts(x: Any) -> list[tuple[str, Any]]:
    """What something is made of, by name."""
    kind = ("kind", type(x))
    if isinstance(x, dict):
        return [kind, *((str(k), v) for k, v in x.items())]
    if isinstance(x, tuple | list):
        return [kind, *((str(i), v) for i, v in enumerate(x))]
    if isinstance(x, set | frozenset):
        return [kind, ("items", sorted(map(str, x)))]
    if isinstance(x, types.ModuleType):
        return [("module", x.__name__)]
    if isinstance(x, functools.partial):
        return [kind, ("func", x.func), ("args", x.args), ("keywords", x.keywords)]
    if isinstance(x, types.MethodType):
        return [("func", x.__func__), ("self", x.__self__)]
    if isinstance(x, types.FunctionType):
        closure = [_content(cell) for cell in x.__closure__ or ()]
        name = f"{x.__module__}.{x.__qualname__}"
        return [
            ("name", name),
            ("code", x.__code__),
            ("defaults", (x.__defaults__, x.__kwdefaults__)),
            ("closure", closure),
        ]
    if isinstance(x, types.CodeType):
        return [("code", x.co_code), ("names", x.co_names), ("constants", x.co_consts)]
    if dataclasses.is_dataclass(x):  # and so every Equinox module
        return [kind, *((f.name, getattr(x, f.name, None)) for f in dataclasses.fields(x))]
    if callable(x) and hasattr(x, "__name__"):  # compiled or built in
        inner = getattr(x, "__wrapped__", None)
        return [("name", f"{getattr(x, '__module__', '')}.{x.__name__}"), ("inner", inner)]
    return [kind, *sorted(getattr(x, "__dict__", {}).items())]


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not set yet
        return None

"""Saving and loading results: one zip of plain parts, nothing executable.

manifest.json   format, versions, names, bounds, settings, statistics, texts
leaves.eqx      the arrays of the fitted problem's parts, by Equinox
result.npz      the arrays of the result
report.txt      the report, for people
"""

import hashlib
import io
import json
import math
import sys
import warnings
import zipfile
from importlib import metadata
from os import PathLike
from typing import Any

import equinox as eqx
import jax
import numpy as np

from .._dtypes import require_dtype
from ._experiment import with_fields
from ._fingerprint import fingerprint
from ._parameters import Varied
from ._problem import Problem
from ._result import Result, Starts
from ._trained import Trained
from ._uncertainty import Uncertainty


_FORMAT = 1
_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


def save(path: str | PathLike, result: Result) -> None:
    """Writes a result to a file, by convention `….sciml`.

    **Arguments:**

    - `path`: where to; an existing file is replaced.
    - `result`: of `fit.estimate` or `fit.train`.
    """
    if not isinstance(result, Result):
        hint = ""
        if isinstance(result, Trained):
            hint = " Of what was trained on a loss, save the model: `eqx.tree_serialise_leaves(path, trained.model)`."
        raise TypeError(f"`save` takes a `Result` of a fit, but got {type(result).__name__}.{hint}")
    u = result.uncertainty
    arrays = {
        "starts_loss": result.starts.loss,
        "starts_ok": result.starts.ok,
        "starts_values": result.starts.values,
        "history": result.history,
        "active": result.active,
    } | {f"initial_{i}": np.asarray(v) for i, v in enumerate(result.initial.values())}
    if u is not None:
        arrays |= {"covariance": u.covariance, "null": u.null, "length": u.length, "known": u.known}
    manifest = {
        "format": _FORMAT,
        "versions": {p: _version(p) for p in ("sciml-jax", "jax", "equinox", "diffrax")},
        "names": list(result.names),
        "bounds": [[_plain(float(b)) for b in pair] for pair in result.problem.bounds],
        "scales": [slot.scale for slot in result.problem.slots],
        "shapes": [list(slot.shape) for slot in result.problem.slots],
        "dtype": np.dtype(result.problem.lower.dtype).name,
        "data": _hash(result.problem),
        "settings": _settings(result.problem),
        "python": _PYTHON,
        "verb": result.verb,
        "ok": result.ok,
        "message": result.message,
        "loss": _plain(result.loss),
        "statistics": {k: _plain(v) for k, v in result.statistics.items()},
        "reasons": list(result.starts.reason),
        "groups": [list(g) for g in u.groups] if u is not None else None,
    }
    leaves, packed = io.BytesIO(), io.BytesIO()
    eqx.tree_serialise_leaves(leaves, _parts_arrays(result.problem))
    np.savez(packed, **arrays)  # pyright: ignore[reportArgumentType]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("manifest.json", json.dumps(manifest, indent=1, allow_nan=False))
        file.writestr("leaves.eqx", leaves.getvalue())
        file.writestr("result.npz", packed.getvalue())
        file.writestr("report.txt", str(result) + "\n")


def load(path: str | PathLike, like: Problem | Result) -> Result:
    """Reads a result that `save` wrote.

    **Arguments:**

    - `path`: the file.
    - `like`: the problem that was fitted, or one built alike, or a result of it: the file holds
      numbers, the code of the model comes from here.

    **Raises:**

    `ValueError` if the file is not such a file, was written for another problem or other data, or
    holds double precision while JAX's 64-bit mode is off.
    """
    if isinstance(like, Result):
        like = like.problem
    if not isinstance(like, Problem):
        raise TypeError(f"`like` must be a `fit.Problem`, but is a {type(like).__name__}.")
    try:
        with zipfile.ZipFile(path) as file:
            manifest = json.loads(file.read("manifest.json"))
            leaves = io.BytesIO(file.read("leaves.eqx"))
            packed = np.load(io.BytesIO(file.read("result.npz")), allow_pickle=False)
            arrays = {k: packed[k] for k in packed.files}
    except (zipfile.BadZipFile, KeyError, json.JSONDecodeError) as e:
        raise ValueError(f"{path} is not a result written by `fit.save`: {e}.") from e
    if not isinstance(manifest.get("format"), int):
        raise ValueError(f"{path} is not a result written by `fit.save`: it names no format.")
    if manifest["format"] > _FORMAT:
        raise ValueError(f"{path} was written by a newer sciml (format {manifest['format']}).")
    require_dtype(manifest["dtype"], f"{path}")
    _check_same(manifest, like, path)
    try:
        parts, values = eqx.tree_deserialise_leaves(leaves, _parts_arrays(like))
    except (RuntimeError, ValueError, EOFError) as e:
        raise ValueError(f"{path} holds arrays of other shapes than the problem `like`: {e}") from e
    # Bytecode, by which functions are told apart, differs between versions of Python.
    known = manifest.get("python") == _PYTHON
    if known and manifest["settings"] != _settings(like):
        warnings.warn(
            f"{path} was fitted with other settings than those of `like`: another activation, `observe`, noise law or "
            "`solve`, say. The numbers are those of the file, but predictions will differ.",
            stacklevel=2,
        )
    model, y0, noise, observe = eqx.combine(parts, like.parts())
    own = tuple(Varied(v.slot, value) for v, value in zip(like.own, values, strict=True))
    problem = with_fields(like, model=model, y0=y0, noise=noise, observe=observe, own=own)
    u = None
    if manifest["groups"] is not None:
        groups = tuple(tuple(g) for g in manifest["groups"])
        u = Uncertainty(
            arrays["covariance"], arrays["null"], arrays["length"], arrays["known"], groups
        )
    initial = [arrays[f"initial_{i}"] for i in range(len(manifest["names"]))]
    return Result(
        ok=manifest["ok"],
        message=manifest["message"],
        problem=problem,
        loss=_number(manifest["loss"]),
        starts=Starts(
            arrays["starts_loss"], arrays["starts_ok"], tuple(manifest["reasons"]),
            arrays["starts_values"],
        ),
        history=arrays["history"],
        statistics={k: _number(v) for k, v in manifest["statistics"].items()},
        initial={
            n: float(v) if v.ndim == 0 else v
            for n, v in zip(manifest["names"], initial, strict=True)
        },
        active=arrays["active"],
        verb=manifest["verb"],
        uncertainty=u,
    )  # fmt: skip


def _check_same(manifest, like: Problem, path) -> None:
    names = [slot.name for slot in like.slots]
    if manifest["names"] != names:
        raise ValueError(
            f"{path} holds a fit of {', '.join(manifest['names'])}, but in the problem `like` "
            f"{', '.join(names) or 'nothing'} is free."
        )
    shapes = [list(slot.shape) for slot in like.slots]
    scales = [slot.scale for slot in like.slots]
    if manifest["shapes"] != shapes or manifest["scales"] != scales:
        raise ValueError(f"{path} holds parameters of other shapes or scales than `like`.")
    if manifest["data"] != _hash(like):
        raise ValueError(f"{path} holds a fit to other data than those of the problem `like`.")


def _parts_arrays(problem: Problem):
    return eqx.filter(problem.parts(), eqx.is_array), [v.value for v in problem.own]


def _hash(problem: Problem) -> str:
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(problem.data):
        digest.update(np.asarray(leaf, np.float64).tobytes())
    return digest.hexdigest()


def _settings(problem: Problem) -> str:
    """What a problem is made of beside its arrays; of functions the code, but not of methods."""
    arrays = lambda x: eqx.is_array(x) or isinstance(x, float)
    return fingerprint((eqx.filter(problem.parts(), arrays, inverse=True), problem.solve))


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _plain(value: Any) -> Any:
    """JSON knows no infinities: they become texts."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _number(value: Any) -> Any:
    return float(value) if value in ("nan", "inf", "-inf") else value

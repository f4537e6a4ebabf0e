"""What a bug report needs to know about an installation: versions, devices, precision."""

import platform
from importlib import metadata


# Distribution names, as the package index spells them.
_CORE = (
    "jax",
    "jaxlib",
    "equinox",
    "diffrax",
    "optimistix",
    "lineax",
    "optax",
    "jaxtyping",
    "numpy",
)
_EXTRA = (
    "matplotlib",
    "narwhals",
    "tqdm",
    "pandas",
    "polars",
    "scipy",
    "blackjax",
    "arviz",
    "asdex",
    "flax",
    "dm-haiku",
    "orbax-checkpoint",
)


def version(distribution: str) -> str:
    """The installed version of a distribution, or `"not installed"`. Imports nothing."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "not installed"


def _devices() -> str:
    import jax

    try:
        devices = jax.devices()
    except RuntimeError as e:  # a driver that does not start is just what the report must show
        return f"none: {e}"
    kinds: dict[str, int] = {}
    for device in devices:
        kind = device.platform
        if device.device_kind != kind:
            kind = f"{kind} ({device.device_kind})"
        kinds[kind] = kinds.get(kind, 0) + 1
    return ", ".join(f"{count} x {kind}" for kind, count in kinds.items())


def info() -> str:
    """Versions of `sciml` and of what it stands on, the platform, the devices that JAX sees and whether it
    computes in 64 bits: the text that belongs into every bug report.

    Printed by `python -m sciml info`. Asking for the devices starts JAX's backends, if nothing has done so yet.

    **Returns:**

    Some lines of text.
    """
    import jax.numpy as jnp

    python = f"{platform.python_version()} ({platform.python_implementation()})"
    rows = [("sciml", version("sciml-jax")), ("python", python)]
    rows += [(name, version(name)) for name in _CORE]
    rows += [("", "")]
    rows += [(name, version(name)) for name in _EXTRA]
    rows += [("", "")]
    rows += [
        ("platform", platform.platform()),
        ("devices", _devices()),
        ("x64", "on" if jnp.result_type(float) == jnp.float64 else "off"),
    ]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}".rstrip() for name, value in rows)

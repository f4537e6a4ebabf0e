"""The devices that work is spread over."""

from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh


def as_mesh(mesh: Any) -> Mesh | None:
    """A mesh of JAX as it is; of so many devices; of `"all"`."""
    if mesh is None or isinstance(mesh, Mesh):
        return mesh
    devices = jax.devices()
    if mesh == "all":
        return _row(devices)
    if isinstance(mesh, bool) or not isinstance(mesh, int | np.integer) or mesh < 1:
        raise TypeError(
            f'`mesh` must be a `jax.sharding.Mesh`, a number of devices or "all", but got {mesh!r}.'
        )
    if mesh > len(devices):
        raise ValueError(
            f"`mesh={mesh}` asks for more devices than the {len(devices)} there are. A CPU shows as several after "
            f'`jax.config.update("jax_num_cpu_devices", {mesh})`, before JAX is used.'
        )
    return _row(devices[:mesh])


def automatic(mesh: Mesh) -> Mesh:
    """The same devices on axes of the type Auto, over which arrays of any library can be spread."""
    return Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * len(mesh.axis_names))


def _row(devices: list) -> Mesh:
    return Mesh(np.array(devices), ("device",), axis_types=(AxisType.Auto,))

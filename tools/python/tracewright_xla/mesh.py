"""The devices of a program, and which of them holds what."""

from __future__ import annotations

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from .errors import MeshError
from .manifest import Manifest, Split


def device_mesh(manifest: Manifest) -> Mesh:
    """The devices in the order of the mesh; raises `MeshError` if there are none, or not as many as it has.

    Without a mesh it is the first device.
    """
    try:
        devices = jax.devices()
    except (RuntimeError, AssertionError) as error:
        # The latter says nothing: jax lacks the platform's plugin.
        found = str(error) or "its plugin is not installed"
        raise MeshError(f"jax has no devices of the platform `{jax.config.jax_platforms}`: {found}") from error
    if not manifest.axes:
        if jax.process_count() > 1:
            raise MeshError(
                f"the program is for one device and {jax.process_count()} processes were started; "
                "export it with `--mesh`"
            )
        return Mesh(np.array(devices[:1]), ("device",))
    if len(devices) != manifest.devices:
        raise MeshError(
            f"the mesh `{manifest.mesh}` has {manifest.devices} devices and there are {len(devices)}: "
            f"{jax.process_count()} process(es), {jax.local_device_count()} {devices[0].platform} device(s) in this one; "
            "start as many processes as it takes, or export with another `--mesh`"
        )
    names, sizes = zip(*manifest.axes)
    return Mesh(np.array(devices).reshape(sizes), names)


def sharding(mesh: Mesh, split: Split) -> NamedSharding:
    """How a tensor lies on the devices."""
    return NamedSharding(mesh, PartitionSpec(*(axes or None for axes in split)))

"""Elements on accelerators: put there ahead of the step that needs them, and random keys that belong to them."""

from bushel._src.device.to_device import Keys, LoaderOnDevice, for_pmap, keys

__all__ = [
    "Keys",
    "LoaderOnDevice",
    "for_pmap",
    "keys",
]

"""Elements on accelerators: put there ahead of the step that needs them, and random keys that belong to them."""

from bushel.device.element_keys import Keys, keys
from bushel.device.loader_on_device import LoaderOnDevice
from bushel.device.pmap import for_pmap

__all__ = [
    "Keys",
    "LoaderOnDevice",
    "for_pmap",
    "keys",
]

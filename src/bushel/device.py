"""Elements on accelerators: put there ahead of the step that needs them, and random keys that belong to them."""

from bushel._src.device.element_keys import Keys, keys
from bushel._src.device.to_device import LoaderOnDevice, for_pmap

__all__ = [
    "Keys",
    "LoaderOnDevice",
    "for_pmap",
    "keys",
]

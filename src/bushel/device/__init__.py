"""Elements on accelerators: put there ahead of the step that needs them."""

from bushel.device.loader_on_device import device_put

__all__ = ["device_put"]

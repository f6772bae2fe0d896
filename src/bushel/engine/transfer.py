"""From the host to a device: a thread puts elements there ahead of the step that uses them, and times are taken."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import Any

from bushel.base import blocks, trees
from bushel.base.blocks import Block
from bushel.engine.dma import DmaMapper
from bushel.engine.native_calls import NativeCalls
from bushel.engine.report import Transfer
from bushel.graph.cursors import Cursor, Same

Put = Callable[[Any], Any]
"""Starts to copy an element to a device, and returns it there. It does not wait for the copy."""

_SAMPLED = 32
"""One in so many transfers is timed. To time a transfer, the thread must wait for it, and so begins the next one late."""

_NOT_IN_JAX = "OSUTMm"  # kinds of dtypes: objects, texts and times


class TransferTimes:
    """Figures of one stream's transfers. The thread and the consumer each write their own."""

    def __init__(self, place: str, mapper: DmaMapper | None):
        self._place, self._mapper = place, mapper
        self.elements = 0
        self.size_bytes = 0
        self.input_s = 0.0
        self.sampled_s = 0.0
        self.sampled_bytes = 0
        self.first: float | None = None
        self.last = 0.0
        self.waited_s = 0.0

    def report(self) -> Transfer:
        """The figures as they are now."""
        return Transfer(
            place=self._place,
            elements=self.elements,
            size_bytes=self.size_bytes,
            elapsed_s=0.0 if self.first is None else self.last - self.first,
            waited_s=self.waited_s,
            input_s=self.input_s,
            bytes_per_s=self.sampled_bytes / self.sampled_s if self.sampled_s else 0.0,
            mapped_bytes=0 if self._mapper is None else self._mapper.count_mapped_bytes(),
        )


class PutCursor(Same):
    """The elements of a cursor, each put on its way to a device when it is pulled."""

    def __init__(self, parent: Cursor, put: Put, times: TransferTimes):
        super().__init__(parent)
        self._put, self._times = put, times
        self._calls = NativeCalls()

    def pull(self, count: int) -> Block:
        begun = time.perf_counter()
        rows = blocks.rows_of(self.parent.pull(1))
        times, there = self._times, time.perf_counter()
        times.input_s += there - begun
        if not rows:
            return []
        size_bytes = sum(getattr(leaf, "nbytes", 0) for leaf in trees.leaves(rows[0]))
        with self._calls:
            element = self._put(rows[0])
            if times.elements % _SAMPLED == 4:  # not the first ones: they also start the device
                wait_until_there(element)
                times.sampled_s += time.perf_counter() - there
                times.sampled_bytes += size_bytes
        times.elements += 1
        times.size_bytes += size_bytes
        return [element]


class ArrivedCursor(Same):
    """The elements that a `PutCursor` has sent, handed out when they are on the device."""

    def __init__(self, parent: Cursor, times: TransferTimes, mapper: DmaMapper | None):
        super().__init__(parent)
        self._times = times
        if mapper is not None:
            weakref.finalize(self, mapper.stop).atexit = False

    def pull(self, count: int) -> Block:
        times, begun = self._times, time.perf_counter()
        if times.first is None:
            times.first = begun
        try:
            block = self.parent.pull(count)
            for element in blocks.rows_of(block):
                wait_until_there(element)
            return block
        finally:
            times.last = time.perf_counter()
            times.waited_s += times.last - begun


def wait_until_there(element: Any) -> None:
    """Waits until all arrays of an element are on their device."""
    for leaf in trees.leaves(element):
        wait = getattr(leaf, "block_until_ready", None)
        if wait is not None:
            wait()


def make_put(where: Any, unsupported: str) -> Put:
    """A function that puts an element on a device.

    Args:
      where: a device, a sharding, or a tree of these as `jax.device_put` takes it.
      unsupported: what to do with leaves that JAX cannot hold: "keep" leaves them on the host, "refuse" raises.
    """
    import jax

    def put(element: Any) -> Any:
        leaves = jax.tree.leaves(element)
        if all(map(fits_in_jax, leaves)):
            return jax.device_put(element, where)
        if unsupported == "refuse":
            raise TypeError(_describe_misfits(element))
        # None is no leaf, so that `where` may still be a tree of shardings.
        moved = jax.device_put(jax.tree.map(lambda leaf: leaf if fits_in_jax(leaf) else None, element), where)
        return jax.tree.map(
            lambda there, leaf: leaf if there is None else there, moved, element, is_leaf=lambda part: part is None
        )

    return put


def fits_in_jax(leaf: Any) -> bool:
    """Whether JAX can hold a leaf: numbers, and arrays of them."""
    dtype = getattr(leaf, "dtype", None)
    if dtype is None:
        return isinstance(leaf, bool | int | float | complex) or hasattr(leaf, "__jax_array__")
    return getattr(dtype, "kind", "") not in _NOT_IN_JAX and getattr(dtype, "names", None) is None


def _describe_misfits(element: Any) -> str:
    import jax

    paths = jax.tree_util.tree_flatten_with_path(element)[0]
    names = [
        f"{jax.tree_util.keystr(path) or 'the element'} ({trees.describe(leaf)})"
        for path, leaf in paths
        if not fits_in_jax(leaf)
    ]
    return (
        f"to_device cannot put {', '.join(names)} on a device: JAX has no arrays of that kind. Remove it with a map "
        'before to_device, or pass unsupported="keep" to leave it on the host beside the arrays.'
    )


def find_devices(where: Any) -> list[Any]:
    """The devices that a device, a sharding or a tree of them names; JAX's default device for None."""
    import jax

    devices: dict[Any, None] = {}
    for part in jax.tree.leaves(where, is_leaf=lambda part: part is None):
        if part is None:
            # What `jax.device_put` takes: the device of `jax.default_device`, or else the first one.
            default = jax.config.jax_default_device
            found = [jax.devices(default)[0] if isinstance(default, str) else default or jax.local_devices()[0]]
        elif isinstance(part, jax.Device):
            found = [part]
        elif hasattr(part, "device_set"):
            found = sorted(part.device_set, key=lambda device: device.id)
        else:
            raise TypeError(
                f"to_device takes a device, a Sharding, or a tree of them that has the structure of an element; got "
                f"{part!r}. For one device write jax.devices()[0]."
            )
        devices.update(dict.fromkeys(found))
    return list(devices)


def name_devices(devices: list[Any]) -> str:
    """Devices as they read in a report."""
    kinds = {getattr(device, "device_kind", device.platform) for device in devices}
    return f"{len(devices)} x {', '.join(sorted(kinds))}"


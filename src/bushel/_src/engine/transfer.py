"""Copies elements from the host to a device, ahead of the step that uses them, and measures how long that takes.

Also the memory on the host in which the consumer makes such elements, used again and mapped for DMA.
"""

from __future__ import annotations

import collections
import contextlib
import statistics
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from bushel._src.base import blocks, memory, trees
from bushel._src.base.blocks import Block
from bushel._src.engine.measurements import Transfer
from bushel._src.engine.program import get_user_error
from bushel._src.engine.shared_memory import DmaMapper, Slab, Slot
from bushel._src.graph.cursors import Cursor, Mark, Same, SkipNote, Skips, State, collect_skips, count_collected

_WORTH_A_SLOT = 4 << 20
"""In bytes. Smaller elements are made in ordinary memory, which costs them nothing."""


class HostMemory:
    """Slots for the elements of one stream. An element holds its slot until its last array is gone.

    Args:
      budget_bytes: how large all slots may be together.
      slots: how many elements may hold a slot at a time. Further elements get ordinary memory.
      mapper: maps the slots for a GPU.
    """

    def __init__(self, budget_bytes: int, slots: int, mapper: DmaMapper | None = None):
        self._budget_bytes = budget_bytes
        self._slots = slots
        self._mapper = mapper
        self._arena: Slab | None = None
        self._closed = False

    @contextlib.contextmanager
    def for_element(self) -> Iterator[None]:
        """Return a context in which batches that this thread makes are in a slot, if one is free and they fit."""
        arena, number = self._arena, None
        if arena is not None:
            number = arena.grant()
        # The slot and the arrays in it hold the lease. If an element has no arrays in it, the lease ends at once.
        slot = Slot(memoryview(b"") if arena is None or number is None else arena.lease(number))
        with memory.allocating(slot.make_array):
            yield
        used = slot.used
        if arena is not None and number is not None and used <= arena.slot_bytes:
            if used and self._mapper is not None:
                self._mapper.map(arena, number)
        elif used >= _WORTH_A_SLOT and (arena is None or used > arena.slot_bytes):
            self._make_arena(int(1.25 * used))

    def _make_arena(self, slot_bytes: int) -> None:
        self._drop_arena()
        count = min(self._slots, self._budget_bytes // slot_bytes)
        if count and not self._closed:
            with contextlib.suppress(OSError):  # no shared memory: elements are then made in ordinary memory
                self._arena = Slab(slot_bytes, count)

    def close(self) -> None:
        """Close the arena. Its memory stays as long as arrays use it."""
        self._closed = True
        self._drop_arena()

    def _drop_arena(self) -> None:
        arena, self._arena = self._arena, None
        if arena is not None:
            arena.close()
            if self._mapper is not None:
                self._mapper.close(arena)


class InHostMemory(Same):
    """The elements of a cursor, one by one, each made in a slot."""

    def __init__(self, parent: Cursor, host_memory: HostMemory):
        super().__init__(parent)
        self._memory = host_memory

    def pull(self, count: int) -> Block:
        with self._memory.for_element():
            return self.parent.pull(1)

    def close(self) -> None:
        self.parent.close()
        self._memory.close()


Put = Callable[[Any], Any]
"""A function that starts to copy an element to a device, and returns the copy. It does not wait for the copy."""

_SAMPLED = 32
"""One transfer in so many is timed: the sender must wait for a timed transfer, so the next one begins late."""

_TIMED_TURN = 4  # not the first transfers: they also start the device

HEAVY_S, HEAVY_BYTES = 0.5e-3, 4 << 20
"""If three elements in a row take the consumer longer than this, or are larger, a thread sends the next ones."""

_NOT_IN_JAX = "OSUTMm"  # kinds of dtypes: objects, texts and times


class TransferTimes:
    """Figures of one stream's transfers."""

    def __init__(self, place: str, mapper: DmaMapper | None):
        self._place, self._mapper = place, mapper
        self.elements = 0
        self.size_bytes = 0
        self.input_s = 0.0
        self.speeds: collections.deque[float] = collections.deque(maxlen=101)
        """The speeds of the transfers that were timed, in bytes per second."""
        self.first: float | None = None
        self.last = 0.0
        self.waited_s = 0.0

    def report(self) -> Transfer:
        """Return the figures as they are now."""
        return Transfer(
            place=self._place,
            elements=self.elements,
            size_bytes=self.size_bytes,
            elapsed_s=0.0 if self.first is None else self.last - self.first,
            waited_s=self.waited_s,
            input_s=self.input_s,
            bytes_per_s=statistics.median(self.speeds) if self.speeds else 0.0,
            mapped_bytes=0 if self._mapper is None else self._mapper.count_mapped_bytes(),
        )


class Sender:
    """Starts the copies of elements, one after the other, and times one in 32 of them.

    Args:
      put: starts a copy.
      times: gets the figures.
    """

    def __init__(self, put: Put, times: TransferTimes):
        self._put, self._times = put, times
        self._before: Any = None
        """The element before the one that is timed. The timed copy begins when this copy has ended."""

    def send(self, element: Any) -> Any:
        """Start the copy of an element, and return the element on the device."""
        times = self._times
        turn = times.elements % _SAMPLED
        times.elements += 1
        times.size_bytes += size_of(element)
        if turn != _TIMED_TURN:
            there = self._put(element)
            self._before = there if turn == _TIMED_TURN - 1 else None
            return there
        wait_until_there(self._before)
        self._before = None
        begun = time.perf_counter()
        there = self._put(element)
        wait_until_there(there)
        times.speeds.append(size_of(element) / max(time.perf_counter() - begun, 1e-9))
        return there


class SendingCursor(Same):
    """The elements of a cursor, one by one, each sent when it is pulled."""

    def __init__(self, parent: Cursor, sender: Sender):
        super().__init__(parent)
        self._sender = sender

    def pull(self, count: int) -> Block:
        return [self._sender.send(row) for row in blocks.rows_of(self.parent.pull(1))]


class TransferCursor(Cursor):
    """The elements of a cursor on a device. Up to `buffer` elements are copied before the consumer needs them.

    The consumer's own thread starts the copies of small elements: getting them from another thread would take longer.
    If elements are large, or take long to compute, another thread sends them while the consumer's step runs.

    Args:
      parent: elements on the host.
      put: starts a copy.
      buffer: how many elements to keep ahead.
      times: gets the figures.
      in_thread: a cursor -> the same cursor, with `buffer` elements pulled ahead by a thread.
      skips: counts the elements that failed and were skipped.
      mapper: maps the memory of elements. It stops when this cursor is collected.
    """

    def __init__(
        self,
        parent: Cursor,
        put: Put,
        buffer: int,
        times: TransferTimes,
        in_thread: Callable[[Cursor], Cursor],
        skips: Skips | None,
        mapper: DmaMapper | None,
    ):
        self.parents = (parent,)
        self._parent, self._times, self._skips = parent, times, skips
        self._sender: Sender | None = Sender(put, times)
        """None once a thread sends the elements."""
        self._in_thread = in_thread
        self._ahead = buffer
        """How many elements this cursor keeps ahead. A thread keeps its own."""
        self._mark = parent.mark()
        self._flying: collections.deque[tuple[Any, Mark, list[SkipNote]]] = collections.deque()
        """Elements whose copies have begun, each with the position after it and the skips before it."""
        self._error: tuple[BaseException, list[SkipNote]] | None = None
        """The error of the element after those, which is raised after them, and the skips before it."""
        self._end: tuple[Mark, list[SkipNote]] | None = None
        """The position at the end of the stream, once it is reached, and the skips before it."""
        self._heavy = 0
        """How many elements in a row were large or took long."""
        if mapper is not None:
            weakref.finalize(self, mapper.stop).atexit = False

    def pull(self, count: int) -> Block:
        times, begun = self._times, time.perf_counter()
        if times.first is None:
            times.first = begun
        try:
            while len(self._flying) <= self._ahead and self._end is None and self._error is None:
                is_ready = self._parent.is_ready()
                if self._flying and not is_ready:
                    break
                self._pull_one(is_ready)
            if not self._flying:
                return self._finish()
            element, self._mark, skipped = self._flying.popleft()
            count_collected(self._skips, skipped)
            wait_until_there(element)
            return [element]
        finally:
            times.last = time.perf_counter()
            times.waited_s += times.last - begun

    def _finish(self) -> Block:
        """Return no element at the end of the stream, or raise the error that comes after the last element."""
        if self._end is not None:
            self._mark, skipped = self._end
            self._end = self._mark, []
            count_collected(self._skips, skipped)
            return []
        assert self._error is not None
        (error, skipped), self._error = self._error, None
        count_collected(self._skips, skipped)
        self._parent.rewind(self._mark)
        raise error

    def _pull_one(self, is_ready: bool) -> None:
        """Pull one element, and start its copy if no thread has done so."""
        sender, times, begun = self._sender, self._times, time.perf_counter()
        with collect_skips(self._skips) as skipped:
            try:
                rows = blocks.rows_of(self._parent.pull(1))
                took_s = time.perf_counter() - begun
                element = rows[0] if rows else None
                if sender is not None and rows:
                    self._heavy = self._heavy + 1 if _is_heavy(element, took_s if is_ready else 0.0) else 0
                    element = sender.send(element)
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                self._error = get_user_error(error), skipped
                return
        times.input_s += took_s
        if not rows:
            self._end = self._parent.mark(), skipped
            return
        self._flying.append((element, self._parent.mark(), skipped))
        if sender is not None and self._ahead and self._heavy == 3:
            self._parent = self._in_thread(SendingCursor(self._parent, sender))
            self.parents, self._sender, self._ahead = (self._parent,), None, 0

    def mark(self) -> Mark:
        return self._mark

    def rewind(self, mark: Mark) -> None:
        self._flying.clear()
        self._error = self._end = None
        self._parent.rewind(mark)
        self._mark = mark

    def state_of(self, mark: Mark) -> State:
        return self._parent.state_of(mark)

    def mark_of(self, state: State) -> Mark:
        return self._parent.mark_of(state)

    def catch_up(self) -> None:
        if not self._flying:  # otherwise the parent is past this position already
            super().catch_up()

    def get_next_index(self) -> int:
        self.rewind(self._mark)
        return self._parent.get_next_index()

    def set_next_index(self, index: int) -> None:
        self.rewind(self._mark)
        self._parent.set_next_index(index)
        self._mark = self._parent.mark()

    def close(self) -> None:
        self._parent.close()
        self._flying.clear()


def _is_heavy(element: Any, seconds: float) -> bool:
    return seconds > HEAVY_S or size_of(element) > HEAVY_BYTES


def size_of(element: Any) -> int:
    """Return the bytes of the arrays of an element."""
    return sum(getattr(leaf, "nbytes", 0) for leaf in trees.leaves(element))


def wait_until_there(element: Any) -> None:
    """Wait until all arrays of an element are on their device."""
    for leaf in trees.leaves(element):
        wait = getattr(leaf, "block_until_ready", None)
        if wait is not None:
            wait()


def make_put(where: Any, unsupported: str) -> Put:
    """Return a function that puts an element on a device.

    Args:
      where: a device, a sharding, or a tree of these as `jax.device_put` takes it.
      unsupported: what to do with leaves that JAX cannot hold: "keep" leaves them on the host, "raise" raises.
    """
    import jax

    array_put = _make_array_put(where)

    def put(element: Any) -> Any:
        leaves, rebuild = trees.flatten(element)
        if array_put is not None and all(type(leaf) is np.ndarray and leaf.dtype.kind in "biufc" for leaf in leaves):
            return rebuild([array_put(leaf) for leaf in leaves])
        if all(map(fits_in_jax, leaves)):
            return jax.device_put(element, where)
        if unsupported == "raise":
            raise TypeError(_describe_misfits(element))
        # A None is not a leaf for JAX, so `where` may still be a tree of shardings.
        moved = jax.device_put(jax.tree.map(lambda leaf: leaf if fits_in_jax(leaf) else None, element), where)
        return jax.tree.map(
            lambda there, leaf: leaf if there is None else there, moved, element, is_leaf=lambda part: part is None
        )

    return put


def _make_array_put(where: Any) -> Callable[[np.ndarray], Any] | None:
    """Return a function like `jax.device_put` for one array, in a fifth of the time; None if JAX cannot do it.

    A small batch spends most of its time in the Python code of `jax.device_put`. The function calls the one below it,
    which is not a public part of JAX. If that is missing or fails, it calls `jax.device_put`.
    """
    import jax

    if isinstance(where, jax.Device):
        sharding: Any = jax.sharding.SingleDeviceSharding(where)
    elif isinstance(where, jax.sharding.Sharding) and where.is_fully_addressable:
        sharding = where
    else:
        return None
    try:
        from jax._src.core import ShapedArray
        from jax._src.lib import xla_client  # pyright: ignore[reportPrivateImportUsage]

        batched_device_put: Any = xla_client.batched_device_put
    except (ImportError, AttributeError):
        return None
    plans: dict[tuple[Any, ...], tuple[Any, list[Any], list[Any]] | None] = {}

    def plan(shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[Any, list[Any], list[Any]] | None:
        if jax.dtypes.canonicalize_dtype(dtype) != dtype or not dtype.isnative:
            return None  # JAX converts it first, such as 64 bits to 32
        parts = sharding.addressable_devices_indices_map(shape)
        return ShapedArray(shape, dtype), list(parts.values()), list(parts)

    def put(array: np.ndarray) -> Any:
        key = array.shape, array.dtype
        if key not in plans:
            plans[key] = plan(*key)
        known = plans[key]
        if known is not None:
            aval, indices, devices = known
            try:
                return batched_device_put(aval, sharding, [array[index] for index in indices], devices)
            except TypeError:  # another version of JAX, with other arguments
                plans[key] = None
        return jax.device_put(array, where)

    return put


def fits_in_jax(leaf: Any) -> bool:
    """Return whether JAX can hold a leaf: numbers, and arrays of them."""
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
    """Return the devices that a device, a sharding or a tree of them names; JAX's default device for None."""
    import jax

    devices: dict[Any, None] = {}
    for part in jax.tree.leaves(where, is_leaf=lambda part: part is None):
        if part is None:
            # As `jax.device_put` does: the device of `jax.default_device`, or else the first one.
            default: Any = getattr(jax.config, "jax_default_device", None)
            named = [jax.devices(default)[0] if isinstance(default, str) else default or jax.local_devices()[0]]
        elif isinstance(part, jax.Device):
            named = [part]
        elif hasattr(part, "device_set"):
            named = sorted(part.device_set, key=lambda device: device.id)
        else:
            raise TypeError(
                f"to_device takes a device, a Sharding, or a tree of them that has the structure of an element; got "
                f"{part!r}. For one device write jax.devices()[0]."
            )
        devices.update(dict.fromkeys(named))
    return list(devices)


def name_devices(devices: list[Any]) -> str:
    """Return devices as they read in a report."""
    kinds = {getattr(device, "device_kind", device.platform) for device in devices}
    return f"{len(devices)} x {', '.join(sorted(kinds))}"

"""A list of plain values in shared memory. All processes that know its name use the same copy."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from bushel.base.state_names import in_states


@in_states("SharedMemoryDataSource")
class SharedMemoryDataSource:
    """A list of plain values in shared memory: int, float, bool, None, str and bytes.

    A str or bytes must not end with a zero byte. Each process calls `close` at the end, and the process that made the
    list calls `unlink`. For arrays use an ordinary source: worker processes share the arrays of a pipeline anyway.

    Args:
      elements: the values; None attaches to the shared memory `name`, which exists already.
      name: the name of the shared memory. By default the system chooses one.

    >>> source = SharedMemoryDataSource([1, "two", None])
    >>> source[1], len(source)
    ('two', 3)
    >>> source.close(), source.unlink()
    (None, None)
    """

    in_memory = True

    def __init__(self, elements: Sequence[Any] | None = None, *, name: str | None = None):
        # Imported here, because few programs use it.
        from multiprocessing import shared_memory

        if elements is None and name is None:
            raise ValueError("SharedMemoryDataSource needs elements, or the name of shared memory to attach to.")
        values = None if elements is None else list(elements)
        for number, value in enumerate(values or ()):
            if isinstance(value, (str, bytes)) and value[-1:] in ("\0", b"\0"):
                raise ValueError(
                    f"Element {number} ends with a zero byte, which Python's ShareableList would cut off: "
                    f"{value[-20:]!r}. Append another byte, or pass the values as a list to `MapDataset.source`."
                )
        with _without_tracking() if values is None else contextlib.nullcontext():
            self._list = shared_memory.ShareableList(values, name=name)

    @property
    def shm(self) -> Any:
        """The `multiprocessing.shared_memory.SharedMemory` that holds the values."""
        return self._list.shm

    def __len__(self) -> int:
        return len(self._list)

    def __getitem__(self, index: int) -> Any:
        return self._list[index]

    def close(self) -> None:
        """Closes the shared memory in this process."""
        self._list.shm.close()

    def unlink(self) -> None:
        """Removes the shared memory, for all processes."""
        self._list.shm.unlink()

    def fingerprint(self) -> Any:
        """The values. The name of the memory does not identify the data."""
        return [self._list[number] for number in range(len(self))]

    def __reduce__(self) -> Any:
        return (_attach, (self._list.shm.name,))

    def __repr__(self) -> str:
        return f"InMemoryDataSource(name={self._list.shm.name}, len={len(self)})"

    def _repr_in_grain(self) -> str:
        """The repr of Grain's source of these values, which Grain's DataLoader compares in states."""
        if type(self).__repr__ is not SharedMemoryDataSource.__repr__:
            return repr(self)  # a subclass has a repr of its own, in Grain too
        return f"{type(self).__name__}({self.fingerprint()}, name={self._list.shm.name!r})"


def _attach(name: str) -> SharedMemoryDataSource:
    return SharedMemoryDataSource(name=name)


@contextlib.contextmanager
def _without_tracking() -> Iterator[None]:
    """In the block, shared memory is not tracked. Otherwise Python would remove it when this process ends."""
    from multiprocessing import resource_tracker

    register = resource_tracker.register
    resource_tracker.register = lambda name, rtype: None
    try:
        yield
    finally:
        resource_tracker.register = register

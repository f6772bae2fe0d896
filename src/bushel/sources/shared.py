"""A list of plain values in shared memory: one copy for all processes that know its name."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any


class SharedMemoryDataSource:
    """Integers, floats, bools, None, and strings and bytes that do not end with a zero byte, in shared memory.

    Whoever made it calls `unlink` at the end, and everybody `close`. For arrays, an ordinary source will do: worker
    processes share those that a pipeline holds.

    Args:
      elements: the values; None attaches to what is there under `name`.
      name: of the shared memory; chosen by the system by default.

    >>> source = SharedMemoryDataSource([1, "two", None])
    >>> source[1], len(source)
    ('two', 3)
    >>> source.close(), source.unlink()
    (None, None)
    """

    in_memory = True

    def __init__(self, elements: Sequence[Any] | None = None, *, name: str | None = None):
        # Loaded when it is needed: few programs need it.
        from multiprocessing import shared_memory

        if elements is None and name is None:
            raise ValueError("SharedMemoryDataSource needs elements, or the name of shared memory to attach to.")
        values = None if elements is None else list(elements)
        for number, value in enumerate(values or ()):
            if isinstance(value, (str, bytes)) and value[-1:] in ("\0", b"\0"):
                raise ValueError(
                    f"Element {number} ends with a zero byte, which Python's shared lists would cut off: "
                    f"{value[-20:]!r}. Put another byte behind it, or pass the values as a list to `MapDataset.source`."
                )
        with _untracked() if values is None else contextlib.nullcontext():
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
        """Lets go of the memory in this process."""
        self._list.shm.close()

    def unlink(self) -> None:
        """Removes the memory, for all processes."""
        self._list.shm.unlink()

    def fingerprint(self) -> Any:
        """The values: the name of the memory says nothing."""
        return [self._list[number] for number in range(len(self))]

    def __reduce__(self) -> Any:
        return (_attached, (self._list.shm.name,))

    def __repr__(self) -> str:
        return f"InMemoryDataSource(name={self._list.shm.name}, len={len(self)})"


def _attached(name: str) -> SharedMemoryDataSource:
    return SharedMemoryDataSource(name=name)


@contextlib.contextmanager
def _untracked() -> Iterator[None]:
    """Attaching makes this process no owner: else Python would remove the memory for all when this process ends."""
    from multiprocessing import resource_tracker

    register = resource_tracker.register
    resource_tracker.register = lambda name, rtype: None
    try:
        yield
    finally:
        resource_tracker.register = register

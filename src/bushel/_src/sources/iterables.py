"""Any iterable as a stream with a state: the iterable's own state, or the number of elements that were read."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sized
from typing import Any

import numpy as np

from bushel._src.base.errors import StateMismatch
from bushel._src.base.ownership import own
from bushel._src.base.state_names import in_states
from bushel._src.base.transforms import show_value
from bushel._src.sources.protocol import SequentialReader


@in_states("iterable")
@dataclasses.dataclass(frozen=True)
class IterableStream:
    """The elements of an iterable, or of the iterable that a function without arguments returns."""

    iterable: Iterable[Any] | Callable[[], Iterable[Any]]

    def __post_init__(self) -> None:
        # A dataset has a `__next__` that only explains, so `isinstance` takes it for an iterator; `hasattr` does not.
        if isinstance(self.iterable, (Generator, Iterator)) and hasattr(self.iterable, "__next__"):
            raise TypeError(
                f"{type(self.iterable).__name__} can be read only once, but a stream may be read again. Pass the "
                "iterable that it reads, or a function that makes it: lambda: my_generator()."
            )
        if not callable(self.iterable) and not hasattr(self.iterable, "__iter__"):
            raise TypeError(f"Pass an iterable, or a function that returns one; got {self.iterable!r}.")
        if not callable(self.iterable):
            _check_resumable(self.iterable)

    def open(self) -> IterableReader | StatefulReader:
        made = self._make_iterable()
        if hasattr(made, "state_dict") and hasattr(made, "load_state_dict"):
            _check_resumable(made)
            return StatefulReader(made)
        return IterableReader(made, self._make_iterable)

    def _make_iterable(self) -> Iterable[Any]:
        return self.iterable() if callable(self.iterable) else self.iterable

    @property
    def name(self) -> str:
        """The name of the function, or of the iterable's class."""
        named = self.iterable if callable(self.iterable) else type(self.iterable)
        return getattr(named, "__qualname__", type(named).__qualname__)

    def fingerprint(self) -> Any:
        """The name, and the values of a sequence, or the repr of an object whose class defines one."""
        if isinstance(self.iterable, (list, tuple, dict, str, bytes, range, np.ndarray)):
            return [self.name, self.iterable]
        if callable(self.iterable) or type(self.iterable).__repr__ is object.__repr__:
            return self.name
        return [self.name, show_value(self.iterable)]


def _check_resumable(stream: Any) -> None:
    """Raises an error for a Hugging Face stream that shuffles in a buffer: its state does not contain the buffer."""
    left: list[Any] = [getattr(stream, "_ex_iterable", None)]
    while left:
        part = left.pop()
        if type(part).__name__ == "BufferShuffledExamplesIterable" and part.buffer_size > 1:
            raise ValueError(
                f"This stream shuffles in a buffer of {part.buffer_size} records, which its state does not contain: "
                "after a restore these records would be missing. Let Bushel shuffle instead: "
                f"IterDataset.source(stream).window_shuffle({part.buffer_size}, seed=0). "
                "stream.shuffle(buffer_size=1), which shuffles only the shards, may stay."
            )
        left += filter(None, [getattr(part, "ex_iterable", None), *getattr(part, "ex_iterables", ())])


def _read_private(iterator: Iterator[Any], count: int) -> list[Any]:
    """Reads up to `count` elements one by one, and copies those to which the iterable keeps a reference.

    One by one, because the iterable may write the next element into the same buffer.
    """
    rows: list[Any] = []
    while len(rows) < count:
        element = list(itertools.islice(iterator, 1))
        if not element:
            break
        rows += own(element)
    return rows


class IterableReader(SequentialReader):
    """Reads an iterable. Its position is the number of elements read; a restore reads them all again."""

    def __init__(self, iterable: Iterable[Any], again: Callable[[], Iterable[Any]]):
        self._iterable, self._again = iterable, again
        self._skip_to(0)

    def _skip_to(self, count: int) -> None:
        self._iterator = iter(self._iterable)
        self._count = sum(1 for _ in itertools.islice(self._iterator, count))
        if self._count < count:
            raise StateMismatch(
                f"The state is after {count} elements, but {type(self._iterable).__name__} has only {self._count}.",
                "elements_read",
            )

    def read(self, count: int) -> list[Any]:
        rows = _read_private(self._iterator, count)
        self._count += len(rows)
        return rows

    def get_state(self) -> dict[str, Any]:
        return {"elements_read": self._count}

    def set_state(self, state: dict[str, Any]) -> None:
        count = state["elements_read"]
        iterable = self._again()  # made anew, because it may be readable only once
        most = len(iterable) if isinstance(iterable, Sized) else sys.maxsize
        if not 0 <= count <= most:
            raise StateMismatch(f"The state is after {count} elements, but there are only {most}.", "elements_read")
        self._iterable = iterable
        self._skip_to(count)

    def close(self) -> None:
        getattr(self._iterator, "close", lambda: None)()


class StatefulReader(SequentialReader):
    """Reads an iterable that has `state_dict` and `load_state_dict`: Hugging Face streams, torchdata's loaders."""

    def __init__(self, iterable: Any):
        self._first = iterable
        self._start(None)

    def _start(self, state: Any) -> None:
        self._iterable = copy.deepcopy(self._first)  # the iterable holds its position, so two readers must not share it
        self._set = state  # before the first read, `state_dict` may not return it yet
        if state is not None:
            self._iterable.load_state_dict(copy.deepcopy(state))
        self._iterator = iter(self._iterable)

    def read(self, count: int) -> list[Any]:
        rows = _read_private(self._iterator, count)
        if rows:
            self._set = None
        return rows

    def get_state(self) -> dict[str, Any]:
        return {"state_dict": copy.deepcopy(self._iterable.state_dict() if self._set is None else self._set)}

    def set_state(self, state: dict[str, Any]) -> None:
        self._start(copy.deepcopy(state["state_dict"]))

    def close(self) -> None:
        pass

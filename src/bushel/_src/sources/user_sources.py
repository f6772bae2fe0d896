"""What users pass as a source: objects with records by position are checked, tables and iterables become sources.

`table[i]` is a column, although `len(table)` counts rows, so a table is not a source by itself. No table package is
imported here: the module name of an object's class says what the object is. An iterable becomes a stream with a state:
the iterable's own state, or the number of elements that were read.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import sys
import types
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sized
from typing import Any

import numpy as np

from bushel._src.base import redact
from bushel._src.base.errors import StateMismatch
from bushel._src.base.late_imports import import_package
from bushel._src.base.private_elements import make_private
from bushel._src.base.state_names import in_states
from bushel._src.base.transforms import show_value
from bushel._src.sources.protocol import SequentialReader


def check_source(source: Any, what: str) -> None:
    """Raise an error for an object without records by position. `what` begins the message, such as "A source"."""
    name = type(source).__name__
    if _get_package(source) == "pyarrow" and hasattr(source, "to_table") and not hasattr(source, "__getitem__"):
        raise TypeError(
            f"{what} is read by position, and pyarrow's {name} has no positions. Pass `dataset.to_table()` if it fits "
            "into memory, or its files to bushel.sources.ParquetDataSource."
        )
    if not hasattr(source, "__getitem__") or not hasattr(source, "__len__"):
        raise TypeError(f"{what} needs `__len__` and `__getitem__`, got {name}. {_make_source(source)}")
    if isinstance(source, str):
        raise TypeError(
            f"{what} holds records, but {redact.clean(repr(source))} is a str. If it names files, open them: "
            "`bushel.MapDataset.source(bushel.sources.open(path))`. If its characters are the records, pass list(text)."
        )
    if isinstance(source, Mapping) and isinstance(next(iter(source), 0), str):
        names = ", ".join(map(repr, list(source)[:8]))
        raise TypeError(
            f"{what} is read by position from 0 on, but this {name} has the keys {names}. "
            "Pass one of its values, or, for columns of arrays, bushel.sources.ArrayDataSource(...)."
        )


def _make_source(value: Any) -> str:
    """Return what to write so that a value without records by position can be read."""
    if isinstance(value, (types.GeneratorType, types.FunctionType)):
        return (
            "Write `bushel.IterDataset.source(function)` for a function that returns a generator, or "
            "`list(...)` of it if the records fit into memory."
        )
    if isinstance(value, (set, frozenset)):
        return "A set has no order: pass `sorted(...)` of it."
    if hasattr(value, "_node"):
        return "It is a dataset already: use it without `source`."
    if isinstance(value, Iterable):
        return (
            "Pass `list(...)` of it if the records fit into memory. For data that can only be read in order, write an "
            "IterDataset, or `bushel.IterDataset.source(iterable)`."
        )
    return "Pass a list, an array, or a source of bushel.sources. For data that is read in order, write an IterDataset."


def as_source(source: Any) -> Any:
    """Return the rows of a table in memory as a source. Any other source is returned unchanged."""
    family, kind = _get_package(source), type(source).__name__
    if family not in ("pyarrow", "pandas", "polars"):
        return source
    from bushel._src.sources import table_rows

    if family == "pyarrow" and kind in ("Table", "RecordBatch"):
        return table_rows.ArrowTableSource(source)
    if family == "polars" and kind == "DataFrame":
        return table_rows.ArrowTableSource(import_package("pyarrow", "parquet", "Rows of a polars frame").table(source))
    if family == "polars" and kind == "LazyFrame":
        raise TypeError("A source holds records, but a LazyFrame of polars is only a plan. Pass `frame.collect()`.")
    if family == "pandas" and hasattr(source, "iloc"):
        if hasattr(source, "columns"):
            return table_rows.PandasSource(source)
        _check_labels(source)
    return source


def _get_package(value: Any) -> str:
    return type(value).__module__.partition(".")[0]


def _check_labels(series: Any) -> None:
    """Raise an error for a pandas Series whose labels are not its positions: `series[i]` looks up labels."""
    index = series.index
    if not np.array_equal(np.asarray(index), np.arange(len(index))):
        shown = ", ".join(map(repr, index[:4].tolist()))
        raise ValueError(
            f"A source is read by position, but this Series is read by labels ({shown}, ...), not 0, 1, 2, ... "
            "Pass `series.to_numpy()`, or `series.reset_index(drop=True)`."
        )


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
        """Return the name, and the values of a sequence, or the repr of an object whose class defines one."""
        if isinstance(self.iterable, (list, tuple, dict, str, bytes, range, np.ndarray)):
            return [self.name, self.iterable]
        if callable(self.iterable) or type(self.iterable).__repr__ is object.__repr__:
            return self.name
        return [self.name, show_value(self.iterable)]


def _check_resumable(stream: Any) -> None:
    """Raise an error for a Hugging Face stream that shuffles in a buffer: its state does not contain the buffer."""
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
    """Read up to `count` elements one by one, and copy those to which the iterable keeps a reference.

    One by one, because the iterable may write the next element into the same buffer.
    """
    rows: list[Any] = []
    while len(rows) < count:
        element = list(itertools.islice(iterator, 1))
        if not element:
            break
        rows += make_private(element)
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

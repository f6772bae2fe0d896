"""What a source is, and what users pass as one: objects with records by position, tables and iterables.

Formats are in modules of their own.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import os
import sys
import types
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sized
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np

from bushel._src.base import redact
from bushel._src.base.errors import StateMismatch
from bushel._src.base.late_imports import import_package
from bushel._src.base.private_elements import make_private
from bushel._src.base.public import public
from bushel._src.base.state_names import in_states, overridable
from bushel._src.base.transforms import show_value

T_co = TypeVar("T_co", covariant=True)


@public("bushel")
@runtime_checkable
class RandomAccessDataSource(Protocol[T_co]):
    """Records by position. A list is a source, and so is any object with these two methods.

    A source may have three more methods:

    - `__getitems__(indices)` gets a list of Python ints and reads these records together. It returns a sequence of
      records, or `bushel.sources.Columns` (a tree of arrays with a leading axis) that the caller may keep and change.
    - `fingerprint()` returns a small, plain value (strings, numbers, lists) that changes when the data change. It
      becomes a part of the identity in checkpoints. For files, return `file_fingerprint(paths)`.
    - `__repr__` is shown in messages.

    `gives_new_records = True` in the class promises that each read returns new objects, which share no memory with
    anything else. The pipeline then neither checks nor copies records. `bushel.testing.check_gives_new_records(source)`
    finds out whether a class keeps this promise.

    >>> class Squares:
    ...     def __len__(self): return 10
    ...     def __getitem__(self, index): return index ** 2
    >>> isinstance(Squares(), RandomAccessDataSource)
    True
    """

    def __len__(self) -> int:
        """Return the number of records."""
        ...

    def __getitem__(self, index: int, /) -> T_co:
        """Return the record at `index`, from 0 to len - 1. Must be thread-safe and deterministic.

        A source may return objects that it keeps: the pipeline copies them before a function can write into them.
        """
        ...


def get_batch_reader(source: Any) -> Callable[[Any], Any] | None:
    """Return a function that reads many records at once, given an int64 array; None if the source can only read one by
    one.

    Sources outside this library get a list of Python ints, as PyTorch passes it. TFDS tests `if not indices`, which
    fails for an array; other sources look indices up in a dict, or test `isinstance(index, int)`.

    A Hugging Face dataset with a format (NumPy, JAX, pandas) converts whole columns of the records that are read
    together. A record would then depend on its neighbours, so such a dataset is read one record at a time.
    """
    form = getattr(source, "format", None)
    if isinstance(form, dict) and form.get("type") not in (None, "python", "custom"):
        return None
    read = getattr(source, "__getitems__", None) or getattr(source, "_getitems", None)
    if read is None or str(getattr(read, "__module__", "")).partition(".")[0] == "bushel":  # the module that defines it
        return read
    return lambda positions: read(positions.tolist())


def gives_new_records(source: Any) -> bool:
    """Return whether the class of a source says that each read returns new objects, which share no memory with anything
    else.

    The class itself must say so: a subclass may read in another way.
    """
    return vars(type(source)).get("gives_new_records", False) is True


@public("bushel.sources")
def file_fingerprint(paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[Any]:
    """A fingerprint of files: name, size and modification time of each. It is the same in another folder.

    A path that does not name a local file (a URL, a pattern) counts as text, without user, password and signature. A
    URL that is signed again therefore has the same fingerprint.

    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "train.txt")
    >>> with open(path, "w") as file:
    ...     _ = file.write("one\\ntwo\\n")
    >>> file_fingerprint(path) == file_fingerprint(path)
    True
    """
    if isinstance(paths, (str, os.PathLike)):
        paths = [paths]
    facts: list[Any] = []
    for path in paths:
        text = os.fspath(path)
        try:
            stat = os.stat(text)
        except OSError:
            facts.append(redact.identify_path(text))
        else:
            facts.append([os.path.basename(text), stat.st_size, stat.st_mtime_ns])
    return facts


class SequentialReader(Protocol):
    """A reader of records that can only be read in order. It has a position, which can be saved and restored."""

    at_hand: Iterator[Any] = iter(())
    """The next records, if the reader has already read and checked them. Taking one is the same as `read(1)`."""

    def read(self, count: int) -> Any:
        """Return up to `count` records as a block (a list, or `Columns`). An empty block means the end."""
        ...

    @overridable
    def skip(self) -> int:
        """Skip the record at which the last `read` failed, or everything up to the next place where a record begins.

        Returns the number of skipped records if it is known, and otherwise 1. Returns 0 if the reader cannot go on.
        """
        return 0

    def get_state(self) -> dict[str, Any]:
        """Return the position as plain JSON data."""
        ...

    def set_state(self, state: dict[str, Any]) -> None:
        """Move to a position that `get_state` has returned."""
        ...

    def close(self) -> None:
        """Close what is open."""
        ...


class SequentialSource(Protocol):
    """Records that can only be read in order. The source describes them; `open` opens the file."""

    def open(self) -> SequentialReader:
        """Return a reader at the first record."""
        ...

    def fingerprint(self) -> Any:
        """Return a small, plain value that changes when the records change."""
        ...


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

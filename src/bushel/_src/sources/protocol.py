"""What a source is: the protocols of sources, and fingerprints of files. Formats are in modules of their own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeVar, runtime_checkable

from bushel._src.base import redact
from bushel._src.base.public import public
from bushel._src.base.state_names import overridable

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

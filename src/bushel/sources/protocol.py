"""What a source is, and what may be said of its identity without reading it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeVar, runtime_checkable

from bushel.base import redact
from bushel.base.contract import optional

T_co = TypeVar("T_co", covariant=True)


@runtime_checkable
class RandomAccessDataSource(Protocol[T_co]):
    """Records by position. A list is one; so is any object with these two methods.

    A source may have three more methods:

    - `__getitems__(indices)` gets a list of Python ints, reads these records at once and returns a sequence of them,
      or `bushel.sources.Columns` (a tree of arrays with a leading axis) that the caller may keep and change;
    - `fingerprint()` returns something small and plain (strings, numbers, lists) that changes when the data
      do, for the identity in checkpoints; `file_fingerprint(paths)` is a good answer for files;
    - `__repr__` is how the source reads in messages.

    >>> class Squares:
    ...     def __len__(self): return 10
    ...     def __getitem__(self, index): return index ** 2
    >>> isinstance(Squares(), RandomAccessDataSource)
    True
    """

    def __len__(self) -> int:
        """Returns the number of records."""
        ...

    def __getitem__(self, index: int, /) -> T_co:
        """Returns the record at `index`, which lies in [0, len). Must be thread-safe and deterministic.

        A source may return objects that it keeps: they are copied before a function can write into them.
        """
        ...


def many_reads(source: Any) -> Callable[[Any], Any] | None:
    """A function of an int64 array that reads many records at once; None where a source has to be read one by one.

    Sources outside of this library get a list of Python ints, as from PyTorch: TFDS asks `if not indices`, which fails
    for an array, and other sources look indices up in a dict or ask `isinstance(index, int)`.

    A Hugging Face dataset with a format (NumPy, JAX, pandas) converts whole columns of what is read together, so that a
    record would depend on its neighbours: such a dataset is read one by one.
    """
    form = getattr(source, "format", None)
    if isinstance(form, dict) and form.get("type") not in (None, "python", "custom"):
        return None
    read = getattr(source, "__getitems__", None) or getattr(source, "_getitems", None)
    if read is None or str(getattr(read, "__module__", "")).startswith("bushel."):  # where the method was written
        return read
    return lambda positions: read(positions.tolist())


def gives_new_records(source: Any) -> bool:
    """Whether a source is known to make a new object for each read, which nobody else holds.

    So do the sources of this library, and Hugging Face datasets unless a function of the user's makes their records.
    """
    package = type(source).__module__.partition(".")[0]
    if package == "datasets":
        form = getattr(source, "format", None)
        return isinstance(form, dict) and form.get("type") in (None, "python")
    return package == "bushel"


def file_fingerprint(paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[Any]:
    """Name, size and modification time of files: a fingerprint that survives a move to another folder.

    A path that does not name a local file (a URL, a pattern) counts by its text, without user and password and without
    what signs it: a URL that is signed again counts as the same.
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
    """A position in records that can only be read in order."""

    at_hand: Iterator[Any] = iter(())
    """The records that come next, as far as they are there already: taking one is a read of one that cannot fail."""

    def read(self, count: int) -> Any:
        """Up to `count` records as a block (a list, or `Columns`); none at all only at the end."""
        ...

    @optional
    def skip(self) -> int:
        """Goes past what the last `read` failed at: a record, or all up to where records can be told apart again.

        Returns how many records that were, as far as it is known, at least 1; 0 where it cannot be gone past.
        """
        return 0

    def get_state(self) -> dict[str, Any]:
        """The position as plain JSON data."""
        ...

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes to a position that `get_state` returned."""
        ...

    def close(self) -> None:
        """Lets go of what is open."""
        ...


class SequentialSource(Protocol):
    """Records that can only be read in order: describes them, opens nothing until it is asked to."""

    def open(self) -> SequentialReader:
        """A reader at the first record."""
        ...

    def fingerprint(self) -> Any:
        """What tells these records from others, small and plain."""
        ...

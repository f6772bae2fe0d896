"""Several files or stores that are read as one: which of them holds a record, and what sources over them share.

How one file is read is left to the formats.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np

from bushel._src.base import blocks, redact
from bushel._src.base.blocks import Block, Columns
from bushel._src.sources.shard_journals import final_name


class Reopened(abc.ABC):
    """An object that opens files when it needs them. A pickle leaves the open files out; the copy opens its own."""

    _not_pickled: ClassVar[tuple[str, ...]]
    """The attributes that `_forget_open` sets."""

    @abc.abstractmethod
    def _forget_open(self) -> None:
        """Begins without open files: for a new object, or for one that comes out of a pickle."""

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in self._not_pickled}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._forget_open()


class JoinedFiles(Reopened):
    """The records of one or many files, one file after the other. Base of the sources for each format."""

    _paths: list[str]
    _length: int

    @property
    def paths(self) -> list[str]:
        """The files or folders, in the order of their records."""
        return list(self._paths)

    @abc.abstractmethod
    def locate(self, index: int) -> tuple[int, int]:
        """The number of the file that holds a record, and the record's position among those of the file."""

    def __len__(self) -> int:
        return self._length

    def __repr__(self) -> str:
        return f"{type(self).__name__}({name_files(self._paths)}: {self._length} records)"


def name_files(paths: list[str]) -> str:
    """A short text for several files: the name of the first one, and how many more there are.

    >>> name_files(["/data/a.bagz", "/data/b.bagz"])
    'a.bagz and 1 more'
    """
    more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    return f"{redact.base_name(final_name(paths[0]))}{more}"


def find_part(position: int, ends: np.ndarray) -> tuple[int, int]:
    """The part that holds a record, and the record's position in that part.

    Args:
      position: of the record among those of all parts.
      ends: for each part, how many records it and the parts before it have.

    >>> find_part(3, np.array([2, 2, 5]))
    (2, 1)
    """
    number = int(ends.searchsorted(position, "right"))
    return number, position - (int(ends[number - 1]) if number else 0)


def split_by_part(positions: np.ndarray, ends: np.ndarray) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """For each part that holds some of the records: its number, the positions in it, and their rows in `positions`.

    >>> [(number, within.tolist(), rows.tolist()) for number, within, rows in split_by_part(
    ...     np.array([4, 0, 3]), np.array([2, 5]))]
    [(0, [0], [1]), (1, [2, 1], [0, 2])]
    """
    if not len(positions):
        return
    numbers = ends.searchsorted(positions, "right")
    within = positions - np.concatenate(([0], ends))[numbers]
    order = np.argsort(numbers, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1):
        yield int(numbers[rows[0]]), within[rows], rows


def gather_from_parts(
    positions: np.ndarray, ends: np.ndarray, read: Callable[[int, np.ndarray], Block]
) -> list[Any] | Columns:
    """The records at `positions` as one block. `read` gets the number of a part and positions in it, once per part."""
    numbers, within, rows = zip(*split_by_part(positions, ends))
    block = blocks.join([read(number, places) for number, places in zip(numbers, within)])
    back = np.argsort(np.concatenate(rows))
    if isinstance(block, Columns):
        return Columns({name: column[back] for name, column in block.tree.items()}, len(positions))
    return [block[place] for place in back.tolist()]

"""`Target`: what a format to convert to must be able to do. The work itself is split and resumed by others."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from bushel._src.sources.output_folders import Folder
from bushel._src.trajectory.episodes import Episodes


@dataclasses.dataclass(frozen=True)
class Shard:
    """Consecutive episodes of one split that one process writes.

    Args:
      split: the split.
      number, of: which of how many shards of its split it is.
      index: its number among all shards.
      low, high: the episodes of the table, from `low` up to but without `high`.
      sources: each of these episodes and its file, for messages.
    """

    split: str
    number: int
    of: int
    index: int
    low: int
    high: int
    sources: tuple[str, ...] = ()

    def describe(self, episode: int) -> str:
        """An episode of the table, and the file that it comes from, for messages."""
        return self.sources[episode - self.low] if self.sources else f"episode {episode}"


class Target(abc.ABC):
    """A data set that is written shard by shard. The file `last_file` makes it one, and is written last."""

    last_file: ClassVar[str]

    @abc.abstractmethod
    def settings(self) -> Any:
        """Plain data on which the files depend. A run with other settings does not continue this one."""

    @abc.abstractmethod
    def prepare(self, table: Episodes) -> Episodes:
        """The table that is written. Raises ValueError, with names of entries, if the format cannot hold it."""

    @abc.abstractmethod
    def belongs(self, name: str) -> bool:
        """Whether a file with this name is one of the format's. `overwrite` removes such files and no others."""

    @abc.abstractmethod
    def write_shard(self, table: Episodes, shard: Shard, folder: Folder, verify: bool) -> Iterator[tuple[int, Any]]:
        """Writes the files of a shard. Yields pairs (frames that are done, None), and at the end (0, facts).

        The facts are plain data for `finish`. The files get their names when they are complete.
        """

    @abc.abstractmethod
    def finish(self, table: Episodes, shards: Sequence[Shard], facts: Sequence[Any], folder: Folder) -> None:
        """Writes the files that describe all shards, `last_file` last."""

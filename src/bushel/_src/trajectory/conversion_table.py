"""What a conversion works on: the episodes of a data set as one table, and `Target`, which writes shards of it.

The table is read once: numbers, texts, and the places of images.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from bushel._src.base.options import MultiprocessingOptions
from bushel._src.base.state_names import in_states
from bushel._src.datasets.dataset import MapDataset
from bushel._src.sources.folders import Folder
from bushel._src.trajectory.data_utils import BadTrajectory, flatten_tree, nest_leaves, to_numpy
from bushel._src.trajectory.dataset_parts import count_steps
from bushel._src.trajectory.episode_builder import EpisodeBuilder, EpisodeSource
from bushel._src.trajectory.episodes import Episodes, replace_handles
from bushel._src.trajectory.single_pass import iterate_once


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
        """Return an episode of the table, and the file that it comes from, for messages."""
        return self.sources[episode - self.low] if self.sources else f"episode {episode}"


class Target(abc.ABC):
    """A data set that is written shard by shard. The file `last_file` makes it one, and is written last."""

    last_file: ClassVar[str]

    @abc.abstractmethod
    def settings(self) -> Any:
        """Return plain data on which the files depend. A run with other settings does not continue this one."""

    @abc.abstractmethod
    def prepare(self, table: Episodes) -> Episodes:
        """Return the table that is written. Raise ValueError, with names of entries, if the format cannot hold it."""

    @abc.abstractmethod
    def belongs(self, name: str) -> bool:
        """Return whether a file with this name is one of the format's. `overwrite` removes such files and no others."""

    @abc.abstractmethod
    def write_shard(self, table: Episodes, shard: Shard, folder: Folder, verify: bool) -> Iterator[tuple[int, Any]]:
        """Write the files of a shard. Yield pairs (frames that are done, None), and at the end (0, facts).

        The facts are plain data for `finish`. The files get their names when they are complete.
        """

    @abc.abstractmethod
    def finish(self, table: Episodes, shards: Sequence[Shard], facts: Sequence[Any], folder: Folder) -> None:
        """Write the files that describe all shards, `last_file` last."""


Tree = dict[str, Any]


def choose_splits(builder: EpisodeBuilder, split: str | None) -> dict[str, np.ndarray]:
    """Return the positions of the episodes of each split that is written.

    By default these are the splits of the source. If they overlap, or leave out episodes, all episodes are one split,
    "train". If the user names a split or a part of one, this is the split "train".
    """
    if split is not None:
        return {"train": builder.positions(split)}
    everything = builder.positions("all")
    parts = {name: builder.positions(name) for name, count in builder.splits.items() if count}
    joined = np.concatenate(list(parts.values())) if parts else everything
    is_partition = len(joined) == len(everything) and len(np.unique(joined)) == len(joined)
    return parts if is_partition else {"train": everything}


@in_states("chosen_episodes")
@dataclasses.dataclass(frozen=True)
class _Chosen:
    """Some episodes of a source, in a given order."""

    source: EpisodeSource
    positions: np.ndarray

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, index: int) -> Tree:
        return self.source[int(self.positions[index])]

    def fingerprint(self) -> Any:
        return [self.source.fingerprint(), self.positions.tolist()]


@in_states("converted_episode")
@dataclasses.dataclass(frozen=True)
class _PrepareForTable:
    """A raw trajectory as it goes into the table, with the number of its place."""

    standardize: Callable[[Tree], Tree] | None
    drop: tuple[str, ...]
    source: EpisodeSource
    positions: np.ndarray

    def __call__(self, number: int, trajectory: Tree) -> Tree:
        try:
            changed = trajectory if self.standardize is None else self.standardize(trajectory)
            if not isinstance(changed, Mapping):
                raise ValueError(
                    f"the standardize function must return the trajectory, a dict; it returned {changed!r}."
                )
            leaves = {path: to_numpy(leaf) for path, leaf in flatten_tree(changed).items()}
            metadata = {path[1:]: np.asarray(leaf)[:1] for path, leaf in leaves.items() if path[0] == "traj_metadata"}
            steps = {
                path: leaf
                for path, leaf in leaves.items()
                if path[0] != "traj_metadata" and not path[0].startswith("_") and not self._is_dropped(path)
            }
            if not steps:
                raise ValueError("no entry is left.")
            return {"number": number, "steps": replace_handles(nest_leaves(steps)), "metadata": nest_leaves(metadata)}
        except (ValueError, TypeError, LookupError) as error:
            where = self.source.describe(int(self.positions[number]))
            raise error if where in str(error) else ValueError(f"{where}: {error}") from error

    def _is_dropped(self, path: tuple[str, ...]) -> bool:
        return any("/".join(path[:size]) in self.drop for size in range(1, len(path) + 1))


def build_table(
    builder: EpisodeBuilder,
    splits: Mapping[str, np.ndarray],
    standardize: Callable[[Tree], Tree] | None,
    drop: Sequence[str],
    workers: int,
) -> tuple[Episodes, dict[str, int]]:
    """Return the table of the episodes of all splits, one split after another; and how many episodes each split has.

    Episodes without steps are left out: no format that is written has them.
    """
    source = builder.episodes("all")
    positions = np.concatenate(list(splits.values()))
    prepare = _PrepareForTable(standardize, tuple(drop), source, positions)
    entries = iterate_once(
        MapDataset.source(_Chosen(source, positions)).map_with_index(prepare),
        f"episodes of {builder.name}",
        None if workers > 1 else MultiprocessingOptions(0),
    )
    numbers: list[int] = []
    metadata: list[Tree] = []

    def present() -> Iterator[Tree]:
        for entry in entries:
            if count_steps(entry["steps"]):
                numbers.append(entry["number"])
                metadata.append(entry["metadata"])
                yield entry["steps"]

    try:
        table = Episodes.of(present(), fingerprint=_Chosen(source, positions).fingerprint(), parts=source.parts)
    except BadTrajectory as error:
        raise ValueError(f"{source.describe(int(positions[numbers[-1]]))}: {error}") from error
    if not numbers:
        raise ValueError(f"{builder.name} has no episode with at least one step.")
    known = Episodes.of(metadata).columns if metadata[0] else {}
    ends = np.cumsum([len(part) for part in splits.values()])
    counts = np.bincount(np.searchsorted(ends, numbers, side="right"), minlength=len(splits))
    table = dataclasses.replace(table, numbers=positions[numbers], metadata=known)
    return table, {split: int(count) for split, count in zip(splits, counts.tolist()) if count}


def concatenate_state(table: Episodes, state_keys: Sequence[str]) -> Episodes:
    """Return the table with `observation/state`: these entries of the observation, one after another, instead of
    them.
    """
    if not state_keys:
        return table
    columns = flatten_tree(table.columns)
    if ("observation", "state") in columns and "state" not in state_keys:
        raise ValueError("The observations have a 'state' already. Add it to state_keys, or leave it out (drop).")
    parts = []
    for key in state_keys:
        path = ("observation", *key.split("/"))
        column = columns.pop(path, None)
        if column is None or not column.is_numeric:
            known = [
                "/".join(path[1:]) for path, column in columns.items() if path[0] == "observation" and column.is_numeric
            ]
            raise ValueError(f"The observations have no numbers {key!r} for the state; they have {sorted(known)}.")
        values = column.take(np.arange(table.frames))
        parts.append(values.reshape(table.frames, -1))
    state = np.concatenate(parts, axis=1)
    made = Episodes.of_arrays({"observation": {"state": state}}, table.lengths).columns
    return dataclasses.replace(table, columns=nest_leaves(columns | flatten_tree(made)), folder=None)

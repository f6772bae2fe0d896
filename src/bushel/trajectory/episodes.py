"""Episodes as a table: the frames of all of them one after another, a column for each leaf, and how long each is."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bushel.base import sealed
from bushel.trajectory.collecting import Collector, column_of, portable
from bushel.trajectory.columns import (
    Column,
    Columns,
    Constant,
    Images,
    Joined,
    Numbers,
    Texts,
    flat,
    joined_column,
    nested,
    object_array,
)
from bushel.trajectory.encoded import RecordParts

LANGUAGES = "language_instructions"
"""Where the task of a table holds several instructions, by key: one of them is drawn for each trajectory."""

FORMAT = 2
"""Of a folder with a table: a folder of another format is not read."""


@dataclasses.dataclass(frozen=True, eq=False)
class Episodes:
    """A table of frames and the lengths of the episodes that they make up.

    >>> table = Episodes.of([{"action": np.zeros((3, 2))}, {"action": np.ones((5, 2))}])
    >>> len(table), table.frames, table.lengths.tolist()
    (2, 8, [3, 5])

    Args:
      columns: a tree of dicts of columns, as long as all episodes together.
      lengths: how many frames each episode has.
      fingerprint: what tells this table from others, small and plain.
      numbers: which episode of its data set each one is, where some were left out.
      metadata: a tree of columns with one entry per episode, as the data set has them.
      folder: where it lies on disk, if it does.
    """

    columns: Columns
    lengths: np.ndarray
    fingerprint: Any = None
    numbers: np.ndarray | None = None
    metadata: Columns = dataclasses.field(default_factory=dict)
    folder: str | None = None

    def __post_init__(self) -> None:
        for path, column in flat(self.columns).items():
            if len(column) != self.frames:
                raise ValueError(
                    f"The episodes have {self.frames} frames together, but {'/'.join(path)} has {len(column)} entries."
                )

    @staticmethod
    def of(
        trajectories: Iterable[Mapping[str, Any]], *, fingerprint: Any = None, parts: RecordParts | None = None
    ) -> Episodes:
        """The table of trajectories: trees of arrays with a leading axis of time. Empty ones are left out.

        Where `portable` has replaced handles of images by their places, `parts` are the records they are in.
        """
        collector = Collector(parts)
        for trajectory in trajectories:
            collector.add(portable(trajectory))
        return Episodes(collector.columns(), collector.lengths(), fingerprint)

    @staticmethod
    def of_arrays(arrays: Mapping[str, Any], lengths: Sequence[int] | np.ndarray) -> Episodes:
        """The table of arrays that hold the frames of all episodes one after another. Nothing is copied.

        >>> table = Episodes.of_arrays({"action": np.zeros((8, 2), np.float32)}, [3, 5])
        """
        sizes = np.asarray(lengths, dtype=np.int64)
        if sizes.ndim != 1 or np.any(sizes <= 0):
            raise ValueError(f"Lengths of episodes must be a list of positive whole numbers, got {lengths!r}.")
        leaves = {path: column_of(values) for path, values in flat(arrays).items()}
        return Episodes(nested(leaves), sizes)

    def __len__(self) -> int:
        return len(self.lengths)

    @functools.cached_property
    def frames(self) -> int:
        """How many frames all episodes have together."""
        return int(self.lengths.sum())

    @functools.cached_property
    def starts(self) -> np.ndarray:
        """The first frame of each episode."""
        return np.cumsum(self.lengths) - self.lengths

    @staticmethod
    def joined(tables: Sequence[Episodes]) -> Episodes:
        """Tables with the same columns as one table: their episodes one after another."""
        leaves = [flat(table.columns) for table in tables]
        columns = {path: joined_column([leaf[path] for leaf in leaves]) for path in leaves[0]}
        fingerprint = [table.fingerprint for table in tables]
        return Episodes(nested(columns), np.concatenate([table.lengths for table in tables]), fingerprint)

    @functools.cached_property
    def image_columns(self) -> list[Images]:
        """The columns with images that are still in files."""
        found = list(flat(self.columns).values())
        for column in found:  # the list grows while it is read
            found += column.columns if isinstance(column, Joined) else ()
        return [column for column in found if isinstance(column, Images)]

    def all_of(self, column: Column) -> np.ndarray:
        """For each episode, whether no frame has padding in this column of the table."""
        return np.logical_and.reduceat(column.there(np.arange(self.frames)), self.starts)

    def any_of(self, column: Column) -> np.ndarray:
        """For each episode, whether some frame has no padding in this column of the table."""
        return np.logical_or.reduceat(column.there(np.arange(self.frames)), self.starts)

    def with_columns(self, more: Columns) -> Episodes:
        """The table with more columns, constant ones for example."""
        return dataclasses.replace(self, columns=nested(flat(self.columns) | flat(more)), folder=None)

    def padded_like(self, other: Episodes) -> Episodes:
        """The table with padding where `other` has it and nothing has taken its place: zeros alone do not tell."""
        now = flat(self.columns)
        padding: dict[tuple[str, ...], Any] = {}
        for path, was in flat(other.columns).items():
            column = now.get(path)
            if not isinstance(was, Constant) or was.present or not isinstance(column, Numbers):
                continue
            if column.entry_shape == was.entry_shape and bool((column.values == was.entry).all()):
                padding[path] = Constant(was.entry, self.frames, present=False)
        return self.with_columns(nested(padding))

    def __reduce__(self) -> Any:
        # Worker processes map the files themselves.
        if self.folder is not None:
            return _load_again, (self.folder, parts_of(self))
        return Episodes, (self.columns, self.lengths, self.fingerprint, self.numbers, self.metadata)

    def __repr__(self) -> str:
        return (
            f"Episodes({len(self):,} episodes, {self.frames:,} frames: {', '.join(map('/'.join, flat(self.columns)))})"
        )


def save(episodes: Episodes, folder: str, *, replace: bool = False) -> Episodes:
    """Writes a table to a folder, which appears at once or not at all, and returns it mapped from there.

    `replace` removes one that is there already; who has it mapped keeps it.
    """
    os.makedirs(os.path.dirname(folder) or ".", exist_ok=True)
    temporary = tempfile.mkdtemp(dir=os.path.dirname(folder) or ".", prefix="writing-")
    try:
        described = []
        trees = {"columns": episodes.columns, "metadata": episodes.metadata}
        for number, (path, column) in enumerate(flat(trees).items()):
            described.append({"path": path, **_written(column, os.path.join(temporary, str(number)))})
        numbers = np.arange(len(episodes)) if episodes.numbers is None else episodes.numbers
        sealed.write_array(os.path.join(temporary, "episodes.npy"), np.stack([episodes.lengths, numbers]))
        content = {"format": FORMAT, "columns": described, "fingerprint": episodes.fingerprint}
        sealed.write_json(os.path.join(temporary, "table.json"), content)
        if replace:
            with contextlib.suppress(FileNotFoundError):
                os.rename(folder, f"{temporary}-old")
                shutil.rmtree(f"{temporary}-old", ignore_errors=True)
        with contextlib.suppress(OSError):  # another process was faster: its table is the same
            os.rename(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return load(folder, parts_of(episodes))


def parts_of(episodes: Episodes) -> RecordParts | None:
    """The records that the images of a table from one data set are in."""
    return episodes.image_columns[0].parts if episodes.image_columns else None


def _written(column: Column, path: str) -> dict[str, Any]:
    match column:
        case Numbers(values):
            sealed.write_array(f"{path}.npy", values)
            return {"kind": "numbers"}
        case Texts(codes, values):
            sealed.write_array(f"{path}.npy", codes)
            sizes = np.array([len(value) for value in values], dtype=np.int64)
            sealed.write_array(f"{path}-sizes.npy", sizes)
            sealed.write_array(f"{path}-bytes.npy", np.frombuffer(b"".join(values), np.uint8))
            return {"kind": "texts"}
        case Images(_, places):
            sealed.write_array(f"{path}.npy", places)
            return {"kind": "images"}
        case Constant(entry, count, present):
            sealed.write_array(
                f"{path}.npy", np.frombuffer(entry, np.uint8) if isinstance(entry, bytes) else np.asarray(entry)
            )
            return {"kind": "constant", "count": count, "present": present, "text": isinstance(entry, bytes)}
        case Joined():
            raise ValueError("A table of several data sets is not saved: save each of them.")


def load(folder: str, parts: RecordParts | None, *, verify: bool = True) -> Episodes:
    """A table that `save` wrote, its columns mapped. A file of it that is damaged raises DamagedFile.

    Args:
      folder: where it lies.
      parts: the records that its images are in.
      verify: False leaves checksums out, for a table that this run has compared before.
    """
    table = sealed.read_json(os.path.join(folder, "table.json"))
    if table["format"] != FORMAT:
        raise ValueError(f"{folder} holds a table of format {table['format']}; this version reads {FORMAT}. Remove it.")
    leaves = {
        tuple(entry["path"]): _read(entry, os.path.join(folder, str(number)), parts, verify)
        for number, entry in enumerate(table["columns"])
    }
    lengths, numbers = sealed.read_array(os.path.join(folder, "episodes.npy"), mapped=False, verify=verify)
    trees = nested(leaves)
    return Episodes(trees["columns"], lengths, table["fingerprint"], numbers, trees.get("metadata", {}), folder)


def _load_again(folder: str, parts: RecordParts | None) -> Episodes:
    """A table in a worker process. Its files were compared with their checksums where the table was made."""
    return load(folder, parts, verify=False)


def _read(entry: dict[str, Any], path: str, parts: RecordParts | None, verify: bool) -> Column:
    if entry["kind"] == "constant":
        value = sealed.read_array(f"{path}.npy", mapped=False, verify=verify)
        return Constant(value.tobytes() if entry["text"] else value, entry["count"], entry["present"])
    values = sealed.read_array(f"{path}.npy", verify=verify)
    if entry["kind"] == "numbers":
        return Numbers(values)
    if entry["kind"] == "images":
        assert parts is not None
        return Images(parts, values)
    ends = np.cumsum(sealed.read_array(f"{path}-sizes.npy", mapped=False, verify=verify)).tolist()
    content = sealed.read_array(f"{path}-bytes.npy", mapped=False, verify=verify).tobytes()
    return Texts(values, object_array([content[low:high] for low, high in zip([0, *ends], ends)]))

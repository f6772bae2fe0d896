"""`Episodes`: a table with the frames of all episodes one after another, and the length of each episode.

A table is in memory, or mapped from a folder that `save` has written. The kinds of columns are in `frame_columns.py`.
"""

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
from bushel.base.state_names import in_states
from bushel.trajectory.data_utils import flatten_tree, nest_leaves
from bushel.trajectory.encoded_images import ImageParts
from bushel.trajectory.frame_columns import Column, Columns, Constant, Images, Joined, Numbers, Texts, join_columns
from bushel.trajectory.numpy_or_jax import to_objects
from bushel.trajectory.table_builder import TableBuilder, make_column, replace_handles

LANGUAGES = "language_instructions"
"""The entry of the task that holds several instructions by key, of which each trajectory draws one."""

FORMAT = 2
"""The version of the files of a table. A folder with another version is not read."""


@in_states("Episodes")
@dataclasses.dataclass(frozen=True, eq=False)
class Episodes:
    """A table of frames and the lengths of the episodes that they make up.

    >>> table = Episodes.of([{"action": np.zeros((3, 2))}, {"action": np.ones((5, 2))}])
    >>> len(table), table.frames, table.lengths.tolist()
    (2, 8, [3, 5])

    Args:
      columns: a tree of dicts of columns, each with one entry per frame.
      lengths: how many frames each episode has.
      fingerprint: small plain data that differ for tables that differ.
      numbers: the number of each episode in its data set, where filters have removed some. None: 0, 1, 2, ...
      metadata: a tree of columns with one entry per episode, from the data set.
      folder: the folder of its files, if it is mapped from disk.
    """

    columns: Columns
    lengths: np.ndarray
    fingerprint: Any = None
    numbers: np.ndarray | None = None
    metadata: Columns = dataclasses.field(default_factory=dict)
    folder: str | None = None

    def __post_init__(self) -> None:
        for path, column in flatten_tree(self.columns).items():
            if len(column) != self.frames:
                raise ValueError(
                    f"The episodes have {self.frames} frames together, but {'/'.join(path)} has {len(column)} entries."
                )

    @staticmethod
    def of(
        trajectories: Iterable[Mapping[str, Any]], *, fingerprint: Any = None, parts: ImageParts | None = None
    ) -> Episodes:
        """The table of some trajectories: trees of arrays with a leading axis of time. Empty ones are left out.

        Where `replace_handles` has put places instead of images, `parts` are the records that hold the images.
        """
        builder = TableBuilder(parts)
        for trajectory in trajectories:
            builder.add(replace_handles(trajectory))
        return Episodes(builder.columns(), builder.lengths(), fingerprint)

    @staticmethod
    def of_arrays(arrays: Mapping[str, Any], lengths: Sequence[int] | np.ndarray) -> Episodes:
        """The table of arrays that hold the frames of all episodes, one episode after another. Nothing is copied.

        >>> table = Episodes.of_arrays({"action": np.zeros((8, 2), np.float32)}, [3, 5])
        """
        sizes = np.asarray(lengths, dtype=np.int64)
        if sizes.ndim != 1 or np.any(sizes <= 0):
            raise ValueError(f"Lengths of episodes must be a list of positive whole numbers, got {lengths!r}.")
        leaves = {path: make_column(values) for path, values in flatten_tree(arrays).items()}
        return Episodes(nest_leaves(leaves), sizes)

    def __len__(self) -> int:
        return len(self.lengths)

    @functools.cached_property
    def frames(self) -> int:
        """The number of frames of all episodes together."""
        return int(self.lengths.sum())

    @functools.cached_property
    def starts(self) -> np.ndarray:
        """The number of the first frame of each episode."""
        return np.cumsum(self.lengths) - self.lengths

    @staticmethod
    def join(tables: Sequence[Episodes]) -> Episodes:
        """Several tables with the same columns as one table: their episodes one after another."""
        leaves = [flatten_tree(table.columns) for table in tables]
        columns = {path: join_columns([leaf[path] for leaf in leaves]) for path in leaves[0]}
        fingerprint = [table.fingerprint for table in tables]
        return Episodes(nest_leaves(columns), np.concatenate([table.lengths for table in tables]), fingerprint)

    @functools.cached_property
    def _image_columns(self) -> list[Images]:
        """The columns of images that are still in files."""
        columns = list(flatten_tree(self.columns).values())
        for column in columns:  # the loop also visits what is appended here: a joined column may hold others
            columns += column.columns if isinstance(column, Joined) else ()
        return [column for column in columns if isinstance(column, Images)]

    def _all_of(self, column: Column) -> np.ndarray:
        """One bool per episode: whether this column of the table has no padding in any frame."""
        return np.logical_and.reduceat(column.is_present(np.arange(self.frames)), self.starts)

    def _any_of(self, column: Column) -> np.ndarray:
        """One bool per episode: whether this column of the table has data in at least one frame."""
        return np.logical_or.reduceat(column.is_present(np.arange(self.frames)), self.starts)

    def with_columns(self, more: Columns) -> Episodes:
        """The table with more columns."""
        leaves = flatten_tree(self.columns) | flatten_tree(more)
        return dataclasses.replace(self, columns=nest_leaves(leaves), folder=None)

    def _padded_like(self, other: Episodes) -> Episodes:
        """The table, with those columns declared padding that are padding in `other` and still have the same values.

        A user's function returns padding as plain zeros, which look like data.
        """
        now = flatten_tree(self.columns)
        padding: dict[tuple[str, ...], Any] = {}
        for path, was in flatten_tree(other.columns).items():
            column = now.get(path)
            if not isinstance(was, Constant) or was.present or not isinstance(column, Numbers):
                continue
            if column.entry_shape == was.entry_shape and bool((column.values == was.entry).all()):
                padding[path] = Constant(was.entry, self.frames, present=False)
        return self.with_columns(nest_leaves(padding))

    def _for_other_machines(self) -> Episodes:
        """The table with its columns in memory: a pickle of it names no files of this machine but those of images."""
        parts = find_parts(self)
        other = None if parts is None else parts.for_other_machines()
        leaves = {
            path: Images(other, column.places) if isinstance(column, Images) and other is not None else column
            for path, column in flatten_tree(self.columns).items()
        }
        return dataclasses.replace(self, columns=nest_leaves(leaves), folder=None)

    def __reduce__(self) -> Any:
        # A worker process maps the files itself: the columns need not be sent.
        if self.folder is not None:
            return _load_unchecked, (self.folder, find_parts(self))
        return Episodes, (self.columns, self.lengths, self.fingerprint, self.numbers, self.metadata)

    def __repr__(self) -> str:
        paths = ", ".join(map("/".join, flatten_tree(self.columns)))
        return f"Episodes({len(self):,} episodes, {self.frames:,} frames: {paths})"


def save(episodes: Episodes, folder: str, *, replace: bool = False) -> Episodes:
    """Writes a table to a folder, completely or not at all, and returns the table mapped from there.

    `replace` replaces an older folder. A process that has the older files mapped can still read them.
    """
    os.makedirs(os.path.dirname(folder) or ".", exist_ok=True)
    temporary = tempfile.mkdtemp(dir=os.path.dirname(folder) or ".", prefix="writing-")
    try:
        described = []
        trees = {"columns": episodes.columns, "metadata": episodes.metadata}
        for number, (path, column) in enumerate(flatten_tree(trees).items()):
            described.append({"path": path, **_write_column(column, os.path.join(temporary, str(number)))})
        numbers = np.arange(len(episodes)) if episodes.numbers is None else episodes.numbers
        sealed.write_array(os.path.join(temporary, "episodes.npy"), np.stack([episodes.lengths, numbers]))
        content = {"format": FORMAT, "columns": described, "fingerprint": episodes.fingerprint}
        sealed.write_json(os.path.join(temporary, "table.json"), content)
        if replace:
            with contextlib.suppress(FileNotFoundError):
                os.rename(folder, f"{temporary}-old")
                shutil.rmtree(f"{temporary}-old", ignore_errors=True)
        with contextlib.suppress(OSError):  # another process has written the same table meanwhile
            os.rename(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return load(folder, find_parts(episodes))


def find_parts(episodes: Episodes) -> ImageParts | None:
    """The records that hold the images of a table. The table must be of one data set."""
    return episodes._image_columns[0].parts if episodes._image_columns else None


def _write_column(column: Column, path: str) -> dict[str, Any]:
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
            raise ValueError("A table of several data sets cannot be saved. Save the table of each data set.")


def load(folder: str, parts: ImageParts | None, *, verify: bool = True) -> Episodes:
    """A table that `save` wrote, with its columns mapped. A damaged file raises DamagedFile.

    Args:
      folder: the folder of the table.
      parts: the records that hold its images.
      verify: False does not compare checksums, for a table that this run has verified before.
    """
    table = sealed.read_json(os.path.join(folder, "table.json"))
    if table["format"] != FORMAT:
        raise ValueError(f"{folder} holds a table of format {table['format']}; this version reads {FORMAT}. Remove it.")
    leaves = {
        tuple(entry["path"]): _read_column(entry, os.path.join(folder, str(number)), parts, verify)
        for number, entry in enumerate(table["columns"])
    }
    lengths, numbers = sealed.read_array(os.path.join(folder, "episodes.npy"), mapped=False, verify=verify)
    trees = nest_leaves(leaves)
    return Episodes(trees["columns"], lengths, table["fingerprint"], numbers, trees.get("metadata", {}), folder)


def _load_unchecked(folder: str, parts: ImageParts | None) -> Episodes:
    """The table in a worker process. The process that built the pipeline has verified the checksums."""
    return load(folder, parts, verify=False)


def _read_column(entry: dict[str, Any], path: str, parts: ImageParts | None, verify: bool) -> Column:
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
    return Texts(values, to_objects([content[low:high] for low, high in zip([0, *ends], ends)]))

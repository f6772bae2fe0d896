"""`Episodes`: a table with the frames of all episodes one after another, and the length of each episode.

Its columns return the entries of any frames, and say which of them are data. A table is collected from trajectories,
one after another.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bushel._src.base import checked_files
from bushel._src.base.public import public
from bushel._src.base.state_names import in_states
from bushel._src.index import epochs
from bushel._src.trajectory.data_utils import BadTrajectory, flatten_tree, is_text, nest_leaves, to_numpy, to_objects
from bushel._src.trajectory.encoded_images import Encoded, ImageFiles

_COPIED_BYTES = 256 << 20


def make_true(shape: tuple[int, ...]) -> np.ndarray:
    """Return an array of bools that are all true.

    It takes a third of the time of `np.ones`, which counts for small masks.
    """
    mask = np.empty(shape, dtype=bool)
    mask.fill(True)
    return mask


@in_states("numbers_of_frames")
@dataclasses.dataclass(frozen=True, eq=False)
class Numbers:
    """A column of numbers."""

    values: np.ndarray
    is_numeric = True

    def __len__(self) -> int:
        return len(self.values)

    @property
    def entry_shape(self) -> tuple[int, ...]:
        """The shape of one entry."""
        return self.values.shape[1:]

    def take(self, frames: np.ndarray) -> np.ndarray:
        """Return the entries of these frames. The result has the axes of `frames`, then those of an entry."""
        return np.asarray(self.values.take(frames, axis=0))  # of a mapped file `take` returns a `memmap`

    def is_present(self, frames: np.ndarray) -> np.ndarray:
        """Return one bool per frame: True for data, False for padding."""
        return make_true(frames.shape)


@in_states("texts_of_frames")
@dataclasses.dataclass(frozen=True, eq=False)
class Texts:
    """A column of bytes, of which few are distinct."""

    codes: np.ndarray
    values: np.ndarray
    is_numeric = False

    def __len__(self) -> int:
        return len(self.codes)

    def take(self, frames: np.ndarray) -> np.ndarray:
        """Return the texts of these frames, in an array of bytes objects."""
        return self.values[np.take(self.codes, frames)]

    def is_present(self, frames: np.ndarray) -> np.ndarray:
        """Return one bool per frame: whether the text is not empty."""
        return self._filled[np.take(self.codes, frames)]

    @functools.cached_property
    def _filled(self) -> np.ndarray:
        return np.array([len(value) != 0 for value in self.values], dtype=bool)


@in_states("images_of_frames", {"addresses": "places"})
@dataclasses.dataclass(frozen=True, eq=False)
class Images:
    """A column of encoded images, each as (record, start, size in bytes). A size of 0 is padding."""

    parts: ImageFiles
    addresses: np.ndarray
    is_numeric = False

    def __len__(self) -> int:
        return len(self.addresses)

    def take(self, frames: np.ndarray) -> np.ndarray:
        """Handle of the images of these frames. Nothing is read yet."""
        # One handle per distinct frame: `over_window` decodes an image once only where its steps share the handle.
        distinct, back = epochs.find_distinct(frames)
        addresses = self.addresses[distinct].tolist()
        handles = to_objects([Encoded(self.parts, *address) if address[2] else b"" for address in addresses])
        return handles[back].reshape(frames.shape)

    def is_present(self, frames: np.ndarray) -> np.ndarray:
        """Return one bool per frame: whether it has an image."""
        return np.take(self.addresses[:, 2], frames) != 0


@in_states("constant_of_frames")
@dataclasses.dataclass(frozen=True, eq=False)
class Constant:
    """A column with the same entry in all frames: a name, or padding for what a data set does not have."""

    entry: Any
    count: int
    present: bool = True

    def __len__(self) -> int:
        return self.count

    def take(self, frames: np.ndarray) -> np.ndarray:
        """Return the entry, once for each of these frames."""
        if isinstance(self.entry, bytes):
            return np.full(frames.shape, self.entry, dtype=object)
        return np.broadcast_to(self.entry, (*frames.shape, *np.shape(self.entry))).copy()

    def is_present(self, frames: np.ndarray) -> np.ndarray:
        """Return one bool per frame: True for data, False for padding."""
        return np.full(frames.shape, self.present)

    @property
    def is_numeric(self) -> bool:
        """Whether the entry is numbers."""
        return not isinstance(self.entry, bytes)

    @property
    def entry_shape(self) -> tuple[int, ...]:
        """The shape of one entry."""
        return np.shape(self.entry)


@in_states("joined_columns")
@dataclasses.dataclass(frozen=True, eq=False)
class Joined:
    """Several columns, one after another, as one. All frames of one row of `take` must lie in the same column."""

    columns: tuple[Any, ...]

    def __len__(self) -> int:
        return int(self._ends[-1])

    @property
    def is_numeric(self) -> bool:
        """Whether the entries are numbers."""
        return self.columns[0].is_numeric

    @property
    def entry_shape(self) -> tuple[int, ...]:
        """The shape of one entry."""
        return self.columns[0].entry_shape

    @functools.cached_property
    def _ends(self) -> np.ndarray:
        return np.cumsum([len(column) for column in self.columns])

    def take(self, frames: np.ndarray) -> np.ndarray:
        """Return the entries of these frames. The result has the axes of `frames`, then those of an entry."""
        if self._large is not None:
            return self._copy_entries(frames, self._large)
        return self._read_columns(frames, lambda column, some: column.take(some))

    @functools.cached_property
    def _large(self) -> list[np.ndarray] | None:
        """The arrays of numbers, if copying one entry takes longer than one step of a Python loop. Else None."""
        arrays = [column.values for column in self.columns if isinstance(column, Numbers)]
        large = len(arrays) == len(self.columns) and arrays[0][:1].nbytes >= 2048
        return arrays if large else None

    def _copy_entries(self, frames: np.ndarray, arrays: list[np.ndarray]) -> np.ndarray:
        """Copy entry by entry into the result. A gather per column would copy each entry twice."""
        which = self._find_columns(frames)
        begins = (self._ends - [len(array) for array in arrays])[which]
        places = (frames.reshape(len(frames), -1) - begins[:, None]).tolist()
        out = np.empty((*frames.shape, *self.entry_shape), arrays[0].dtype)
        entries = iter(out.reshape(-1, *self.entry_shape))
        for number, row in zip(which.tolist(), places):
            array = arrays[number]
            for place in row:
                next(entries)[...] = array[place]
        return out

    def is_present(self, frames: np.ndarray) -> np.ndarray:
        """Return one bool per frame: True for data, False for padding."""
        if all(isinstance(column, Numbers) for column in self.columns):
            return make_true(frames.shape)
        return self._read_columns(frames, lambda column, some: column.is_present(some))

    def _read_columns(self, frames: np.ndarray, read: Callable[[Any, np.ndarray], np.ndarray]) -> np.ndarray:
        """`read` of each column with its own frames, put together in the order of `frames`."""
        which = self._find_columns(frames)
        out: np.ndarray | None = None
        for number, column in enumerate(self.columns):
            rows = np.flatnonzero(which == number)
            if len(rows):
                values = read(column, frames[rows] - (self._ends[number] - len(column)))
                if out is None:
                    out = np.empty((*frames.shape, *values.shape[frames.ndim :]), values.dtype)
                out[rows] = values
        return read(self.columns[0], frames) if out is None else out

    def _find_columns(self, frames: np.ndarray) -> np.ndarray:
        """Return the column of each row of `frames`.

        The first frame decides: all frames of a row are of one episode.
        """
        first = frames if frames.ndim == 1 else frames.reshape(len(frames), -1)[:, 0]
        return np.searchsorted(self._ends, first, side="right")


Column = Numbers | Texts | Images | Constant | Joined


def join_columns(columns: Sequence[Column]) -> Column:
    """Return several columns, one after another, as one.

    Few numbers are copied into one array, which is read faster.
    """
    numbers = [column.values for column in columns if isinstance(column, Numbers)]
    if len(numbers) == len(columns) and sum(values.nbytes for values in numbers) <= _COPIED_BYTES:
        return Numbers(np.concatenate(numbers))
    return Joined(tuple(columns))


Columns = dict[str, Any]
"""A tree of dicts with a column at each leaf."""


def take_entries(column: Any, frames: np.ndarray) -> Any:
    """Return the entries of a column, or of each column of a tree."""
    if isinstance(column, dict):
        return {name: take_entries(entry, frames) for name, entry in column.items()}
    return column.take(frames)


_ADDRESSES = "@places"


def replace_handles(trajectory: Mapping[str, Any]) -> dict[str, Any]:
    """Return a trajectory with the addresses of its images instead of handles: integers, which are cheap to send to a
    process.
    """
    replaced: dict[str, Any] = {}
    for name, leaf in trajectory.items():
        if isinstance(leaf, Mapping):
            replaced[name] = replace_handles(leaf)
        elif (
            isinstance(leaf, np.ndarray) and leaf.dtype == object and any(isinstance(v, Encoded) for v in leaf.tolist())
        ):
            replaced[name] = {_ADDRESSES: _locate_images(leaf)}
        else:
            replaced[name] = leaf
    return replaced


def _locate_images(leaf: np.ndarray) -> np.ndarray:
    if not all(isinstance(value, Encoded) or not len(value) for value in leaf.tolist()):
        raise ValueError("Some entries are images in files and others are bytes: read all of them, or none.")
    return np.array([v.address if isinstance(v, Encoded) else (0, 0, 0) for v in leaf.tolist()], dtype=np.int64)


class TableBuilder:
    """The columns and the lengths of the trajectories that were added so far."""

    def __init__(self, parts: ImageFiles | None) -> None:
        self._parts = parts
        self._leaves: dict[tuple[str, ...], _ColumnBuilder] = {}
        self._lengths: list[int] = []

    def add(self, trajectory: Mapping[str, Any]) -> None:
        """Add the frames of one trajectory after `replace_handles`. A trajectory without frames is left out.

        Raises:
          BadTrajectory: it does not fit to those before. Its number is the number of those that were added.
        """
        number = len(self._lengths)
        leaves = {path: to_numpy(leaf) for path, leaf in flatten_tree(trajectory).items()}
        for path, leaf in leaves.items():
            if isinstance(leaf, (str, bytes)) or getattr(leaf, "ndim", None) == 0 or not hasattr(leaf, "__len__"):
                raise BadTrajectory(
                    f"{'/'.join(path)} of trajectory {number} is {leaf!r}; leaves of a trajectory have an entry for "
                    "each step. Repeat it: np.full(length, value).",
                    number,
                )
        sizes = {len(leaf) for leaf in leaves.values()}
        if len(sizes) != 1:
            lengths = ", ".join(f"{'/'.join(path)}: {len(leaf)}" for path, leaf in leaves.items())
            raise BadTrajectory(
                f"The leaves of trajectory {number} differ in length: {lengths or 'it has none'}.", number
            )
        (size,) = sizes
        if not size:
            return
        if not self._lengths:
            self._leaves = {path: _ColumnBuilder() for path in leaves}
        if leaves.keys() != self._leaves.keys():
            other = sorted("/".join(path) for path in leaves.keys() ^ self._leaves.keys())
            raise BadTrajectory(f"Trajectory {number} does not have the same entries as those before: {other}.", number)
        for path, leaf in leaves.items():
            # A view may lie in the shared memory of a worker's result, which is needed for the next results.
            array = np.asarray(leaf)
            try:
                self._leaves[path].add(array if array.base is None else array.copy())
            except ValueError as error:
                raise BadTrajectory(f"{'/'.join(path)} of trajectory {number}: {error}", number) from None
        self._lengths.append(size)

    def columns(self) -> Columns:
        """Return the columns of all frames so far."""
        columns: dict[tuple[str, ...], Column] = {}
        for path, leaf in self._leaves.items():
            column = leaf.column()
            if path[-1] == _ADDRESSES:
                assert isinstance(column, Numbers) and self._parts is not None
                path, column = path[:-1], Images(self._parts, column.values)
            columns[path] = column
        return nest_leaves(columns)

    def lengths(self) -> np.ndarray:
        """Return the number of frames of each trajectory."""
        return np.array(self._lengths, dtype=np.int64)


class _ColumnBuilder:
    """One column so far: arrays of numbers, or of codes of texts, one for each trajectory."""

    def __init__(self) -> None:
        self._chunks: list[np.ndarray] = []
        self._texts: dict[bytes, int] = {}
        self._is_text = False

    def add(self, values: np.ndarray) -> None:
        textual = is_text(values)
        if self._chunks and textual != self._is_text:
            kinds = ("texts", "numbers") if textual else ("numbers", "texts")
            raise ValueError(f"it has {kinds[0]} ({values.dtype}) here, and {kinds[1]} in the trajectories before.")
        self._is_text = textual
        chunk = self._encode_texts(values) if textual else values
        before = self._chunks[0] if self._chunks else chunk
        if (before.dtype, before.shape[1:]) != (chunk.dtype, chunk.shape[1:]):
            raise ValueError(
                f"it has {chunk.dtype}{list(chunk.shape[1:])} per frame here and "
                f"{before.dtype}{list(before.shape[1:])} before."
            )
        self._chunks.append(chunk)

    def _encode_texts(self, values: np.ndarray) -> np.ndarray:
        texts = (value.encode() if isinstance(value, str) else bytes(value) for value in values.ravel().tolist())
        codes = [self._texts.setdefault(text, len(self._texts)) for text in texts]
        return np.array(codes, dtype=np.int32).reshape(values.shape)

    def column(self) -> Column:
        joined = self._chunks[0] if len(self._chunks) == 1 else np.concatenate(self._chunks)
        return Texts(joined, to_objects(list(self._texts))) if self._is_text else Numbers(joined)


def make_column(values: Any) -> Column:
    """Return an array as a column. Numbers are not copied."""
    builder = _ColumnBuilder()
    builder.add(values if isinstance(values, np.ndarray) else np.asarray(values))
    return builder.column()


LANGUAGES = "language_instructions"
"""The entry of the task that holds several instructions by key, of which each trajectory draws one."""

FORMAT = 2
"""The version of the files of a table. A folder with another version is not read."""


@public("bushel.trajectory")
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
        trajectories: Iterable[Mapping[str, Any]], *, fingerprint: Any = None, parts: ImageFiles | None = None
    ) -> Episodes:
        """Return the table of some trajectories: trees of arrays with a leading axis of time. Empty ones are left out.

        Where `replace_handles` has put addresses instead of images, `parts` are the files that hold the images.
        """
        builder = TableBuilder(parts)
        for trajectory in trajectories:
            builder.add(replace_handles(trajectory))
        return Episodes(builder.columns(), builder.lengths(), fingerprint)

    @staticmethod
    def of_arrays(arrays: Mapping[str, Any], lengths: Sequence[int] | np.ndarray) -> Episodes:
        """Return the table of arrays that hold the frames of all episodes, one episode after another.

        Nothing is copied.

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
        """Return several tables with the same columns as one table: their episodes one after another."""
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
        """Return one bool per episode: whether this column of the table has no padding in any frame."""
        return np.logical_and.reduceat(column.is_present(np.arange(self.frames)), self.starts)

    def _any_of(self, column: Column) -> np.ndarray:
        """Return one bool per episode: whether this column of the table has data in at least one frame."""
        return np.logical_or.reduceat(column.is_present(np.arange(self.frames)), self.starts)

    def with_columns(self, more: Columns) -> Episodes:
        """Return the table with more columns."""
        leaves = flatten_tree(self.columns) | flatten_tree(more)
        return dataclasses.replace(self, columns=nest_leaves(leaves), folder=None)

    def _padded_like(self, other: Episodes) -> Episodes:
        """Return the table, with those columns declared padding that are padding in `other` and still have the same
        values.

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
        """Return the table with its columns in memory: a pickle of it names no files of this machine but those of
        images.
        """
        parts = find_image_files(self)
        other = None if parts is None else parts.for_other_machines()
        leaves = {
            path: Images(other, column.addresses) if isinstance(column, Images) and other is not None else column
            for path, column in flatten_tree(self.columns).items()
        }
        return dataclasses.replace(self, columns=nest_leaves(leaves), folder=None)

    def __reduce__(self) -> Any:
        # A worker process maps the files itself: the columns need not be sent.
        if self.folder is not None:
            return _load_unchecked, (self.folder, find_image_files(self))
        return Episodes, (self.columns, self.lengths, self.fingerprint, self.numbers, self.metadata)

    def __repr__(self) -> str:
        paths = ", ".join(map("/".join, flatten_tree(self.columns)))
        return f"Episodes({len(self):,} episodes, {self.frames:,} frames: {paths})"


def save(episodes: Episodes, folder: str, *, replace: bool = False) -> Episodes:
    """Write a table to a folder, completely or not at all, and return the table mapped from there.

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
        checked_files.write_array(os.path.join(temporary, "episodes.npy"), np.stack([episodes.lengths, numbers]))
        content = {"format": FORMAT, "columns": described, "fingerprint": episodes.fingerprint}
        checked_files.write_json(os.path.join(temporary, "table.json"), content)
        if replace:
            with contextlib.suppress(FileNotFoundError):
                os.rename(folder, f"{temporary}-old")
                shutil.rmtree(f"{temporary}-old", ignore_errors=True)
        with contextlib.suppress(OSError):  # another process has written the same table meanwhile
            os.rename(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return load(folder, find_image_files(episodes))


def find_image_files(episodes: Episodes) -> ImageFiles | None:
    """Return the records that hold the images of a table. The table must be of one data set."""
    return episodes._image_columns[0].parts if episodes._image_columns else None


def _write_column(column: Column, path: str) -> dict[str, Any]:
    match column:
        case Numbers(values):
            checked_files.write_array(f"{path}.npy", values)
            return {"kind": "numbers"}
        case Texts(codes, values):
            checked_files.write_array(f"{path}.npy", codes)
            sizes = np.array([len(value) for value in values], dtype=np.int64)
            checked_files.write_array(f"{path}-sizes.npy", sizes)
            checked_files.write_array(f"{path}-bytes.npy", np.frombuffer(b"".join(values), np.uint8))
            return {"kind": "texts"}
        case Images(_, places):
            checked_files.write_array(f"{path}.npy", places)
            return {"kind": "images"}
        case Constant(entry, count, present):
            checked_files.write_array(
                f"{path}.npy", np.frombuffer(entry, np.uint8) if isinstance(entry, bytes) else np.asarray(entry)
            )
            return {"kind": "constant", "count": count, "present": present, "text": isinstance(entry, bytes)}
        case Joined():
            raise ValueError("A table of several data sets cannot be saved. Save the table of each data set.")


def load(folder: str, parts: ImageFiles | None, *, verify: bool = True) -> Episodes:
    """Return a table that `save` wrote, with its columns mapped. A damaged file raises DamagedFile.

    Args:
      folder: the folder of the table.
      parts: the records that hold its images.
      verify: False does not compare checksums, for a table that this run has verified before.
    """
    table = checked_files.read_json(os.path.join(folder, "table.json"))
    if table["format"] != FORMAT:
        raise ValueError(f"{folder} holds a table of format {table['format']}; this version reads {FORMAT}. Remove it.")
    leaves = {
        tuple(entry["path"]): _read_column(entry, os.path.join(folder, str(number)), parts, verify)
        for number, entry in enumerate(table["columns"])
    }
    lengths, numbers = checked_files.read_array(os.path.join(folder, "episodes.npy"), mapped=False, verify=verify)
    trees = nest_leaves(leaves)
    return Episodes(trees["columns"], lengths, table["fingerprint"], numbers, trees.get("metadata", {}), folder)


def _load_unchecked(folder: str, parts: ImageFiles | None) -> Episodes:
    """Return the table in a worker process. The process that built the pipeline has verified the checksums."""
    return load(folder, parts, verify=False)


def _read_column(entry: dict[str, Any], path: str, parts: ImageFiles | None, verify: bool) -> Column:
    if entry["kind"] == "constant":
        value = checked_files.read_array(f"{path}.npy", mapped=False, verify=verify)
        return Constant(value.tobytes() if entry["text"] else value, entry["count"], entry["present"])
    values = checked_files.read_array(f"{path}.npy", verify=verify)
    if entry["kind"] == "numbers":
        return Numbers(values)
    if entry["kind"] == "images":
        assert parts is not None
        return Images(parts, values)
    ends = np.cumsum(checked_files.read_array(f"{path}-sizes.npy", mapped=False, verify=verify)).tolist()
    content = checked_files.read_array(f"{path}-bytes.npy", mapped=False, verify=verify).tobytes()
    return Texts(values, to_objects([content[low:high] for low, high in zip([0, *ends], ends)]))

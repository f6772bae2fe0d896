"""Episodes as a table: the frames of all of them one after another, a column for each leaf, and how long each is.

Numbers are arrays, in memory or mapped from a file. Texts are codes into a list of the different ones. Encoded images
are places in the files they came from: a table of a million frames holds no image.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bushel.trajectory.encoded import Encoded, RecordParts

LANGUAGES = "language_instructions"
"""Where the task of a table holds several instructions, by key: one of them is drawn for each trajectory."""

_FORMAT = 1
_PLACES = "@places"


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
        """Entries of these frames; as many axes as `frames` has come first."""
        return np.take(self.values, frames, axis=0)

    def there(self, frames: np.ndarray) -> np.ndarray:
        """One bool per frame: whether the entry is data and no padding."""
        return np.ones(frames.shape, dtype=bool)


@dataclasses.dataclass(frozen=True, eq=False)
class Texts:
    """A column of bytes, few of them different."""

    codes: np.ndarray
    values: np.ndarray
    is_numeric = False

    def __len__(self) -> int:
        return len(self.codes)

    def take(self, frames: np.ndarray) -> np.ndarray:
        """Entries of these frames, in an array of bytes objects."""
        return self.values[np.take(self.codes, frames)]

    def there(self, frames: np.ndarray) -> np.ndarray:
        """One bool per frame: whether the text is not empty."""
        return self._filled[np.take(self.codes, frames)]

    @functools.cached_property
    def _filled(self) -> np.ndarray:
        return np.array([len(value) != 0 for value in self.values], dtype=bool)


@dataclasses.dataclass(frozen=True, eq=False)
class Images:
    """A column of encoded images: which record, where in it, how many bytes. No bytes: padding."""

    parts: RecordParts
    places: np.ndarray
    is_numeric = False

    def __len__(self) -> int:
        return len(self.places)

    def take(self, frames: np.ndarray) -> np.ndarray:
        """Handles of these frames' images, not read yet; one object for all entries of the same frame."""
        different, back = np.unique(frames, return_inverse=True)
        places = self.places[different].tolist()
        handles = object_array([Encoded(self.parts, *place) if place[2] else b"" for place in places])
        return handles[back].reshape(frames.shape)

    def there(self, frames: np.ndarray) -> np.ndarray:
        """One bool per frame: whether there is an image."""
        return np.take(self.places[:, 2], frames) != 0


@dataclasses.dataclass(frozen=True, eq=False)
class Constant:
    """A column with the same entry everywhere: a name, or the padding for what a data set does not have."""

    entry: Any
    count: int
    present: bool = True

    def __len__(self) -> int:
        return self.count

    def take(self, frames: np.ndarray) -> np.ndarray:
        """The entry for each of these frames."""
        if isinstance(self.entry, bytes):
            return np.full(frames.shape, self.entry, dtype=object)
        return np.broadcast_to(self.entry, (*frames.shape, *np.shape(self.entry))).copy()

    def there(self, frames: np.ndarray) -> np.ndarray:
        """Whether the entry is data and no padding, for each frame."""
        return np.full(frames.shape, self.present)

    @property
    def is_numeric(self) -> bool:
        """Whether it stands for numbers."""
        return not isinstance(self.entry, bytes)

    @property
    def entry_shape(self) -> tuple[int, ...]:
        """The shape of one entry."""
        return np.shape(self.entry)


@dataclasses.dataclass(frozen=True, eq=False)
class Joined:
    """Columns one after another, as one. The frames of one row, whatever their number, are of one of them."""

    columns: tuple[Any, ...]

    def __len__(self) -> int:
        return int(self._ends[-1])

    @property
    def is_numeric(self) -> bool:
        """Whether it has numbers."""
        return self.columns[0].is_numeric

    @property
    def entry_shape(self) -> tuple[int, ...]:
        """The shape of one entry."""
        return self.columns[0].entry_shape

    @functools.cached_property
    def _ends(self) -> np.ndarray:
        return np.cumsum([len(column) for column in self.columns])

    def take(self, frames: np.ndarray) -> np.ndarray:
        """Entries of these frames; as many axes as `frames` has come first."""
        if self._large is not None:
            return self._copied(frames, self._large)
        return self._each(frames, lambda column, some: column.take(some))

    @functools.cached_property
    def _large(self) -> list[np.ndarray] | None:
        """The arrays of numbers, if an entry is so large that copying it outweighs a step of a loop."""
        arrays = [column.values for column in self.columns if isinstance(column, Numbers)]
        large = len(arrays) == len(self.columns) and arrays[0][:1].nbytes >= 2048
        return arrays if large else None

    def _copied(self, frames: np.ndarray, arrays: list[np.ndarray]) -> np.ndarray:
        which = self._which(frames)
        begins = (self._ends - [len(array) for array in arrays])[which]
        places = (frames.reshape(len(frames), -1) - begins[:, None]).tolist()
        out = np.empty((*frames.shape, *self.entry_shape), arrays[0].dtype)
        entries = iter(out.reshape(-1, *self.entry_shape))
        for number, row in zip(which.tolist(), places):
            array = arrays[number]
            for place in row:
                next(entries)[...] = array[place]
        return out

    def there(self, frames: np.ndarray) -> np.ndarray:
        """One bool per frame: whether the entry is data and no padding."""
        return self._each(frames, lambda column, some: column.there(some))

    def _each(self, frames: np.ndarray, read: Callable[[Any, np.ndarray], np.ndarray]) -> np.ndarray:
        which = self._which(frames)
        out: np.ndarray | None = None
        for number, column in enumerate(self.columns):
            rows = np.flatnonzero(which == number)
            if len(rows):
                found = read(column, frames[rows] - (self._ends[number] - len(column)))
                if out is None:
                    out = np.empty((*frames.shape, *found.shape[frames.ndim :]), found.dtype)
                out[rows] = found
        return read(self.columns[0], frames) if out is None else out

    def _which(self, frames: np.ndarray) -> np.ndarray:
        """For each row of `frames` the column that it is in: all frames of a row are of one episode."""
        first = frames if frames.ndim == 1 else frames.reshape(len(frames), -1)[:, 0]
        return np.searchsorted(self._ends, first, side="right")


Column = Numbers | Texts | Images | Constant | Joined
Columns = dict[str, Any]
"""A tree of dicts with a column at each leaf."""


def taken(column: Any, frames: np.ndarray) -> Any:
    """Entries of a column, or of a tree of columns."""
    if isinstance(column, dict):
        return {name: taken(entry, frames) for name, entry in column.items()}
    return column.take(frames)


def object_array(values: Sequence[Any]) -> np.ndarray:
    """A one-dimensional array of just these objects."""
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


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
      folder: where it lies on disk, if it does.
    """

    columns: Columns
    lengths: np.ndarray
    fingerprint: Any = None
    numbers: np.ndarray | None = None
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
        growing = _Growing(parts)
        for trajectory in trajectories:
            growing.add(portable(trajectory))
        return growing.episodes(fingerprint)

    @staticmethod
    def of_arrays(arrays: Mapping[str, Any], lengths: Sequence[int] | np.ndarray) -> Episodes:
        """The table of arrays that hold the frames of all episodes one after another. Nothing is copied.

        >>> table = Episodes.of_arrays({"action": np.zeros((8, 2), np.float32)}, [3, 5])
        """
        sizes = np.asarray(lengths, dtype=np.int64)
        if sizes.ndim != 1 or np.any(sizes <= 0):
            raise ValueError(f"Lengths of episodes must be a list of positive whole numbers, got {lengths!r}.")
        leaves = {path: _column_of(values) for path, values in flat(arrays).items()}
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
        columns = {path: Joined(tuple(leaf[path] for leaf in leaves)) for path in leaves[0]}
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

    def __reduce__(self) -> Any:
        # Worker processes map the files themselves.
        if self.folder is not None:
            return load, (self.folder, parts_of(self))
        return Episodes, (self.columns, self.lengths, self.fingerprint, self.numbers)

    def __repr__(self) -> str:
        return (
            f"Episodes({len(self):,} episodes, {self.frames:,} frames: {', '.join(map('/'.join, flat(self.columns)))})"
        )


def _column_of(values: Any) -> Column:
    growing = _Leaf()
    growing.add(values if isinstance(values, np.ndarray) else np.asarray(values))
    return growing.column()


def flat(tree: Mapping[str, Any], above: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """The leaves of a tree of dicts by their paths."""
    found: dict[tuple[str, ...], Any] = {}
    for name, value in tree.items():
        found |= flat(value, (*above, name)) if isinstance(value, Mapping) else {(*above, name): value}
    return found


def nested(leaves: Mapping[tuple[str, ...], Any]) -> dict[str, Any]:
    """The tree of dicts with these leaves."""
    tree: dict[str, Any] = {}
    for (*above, name), value in leaves.items():
        inner = tree
        for key in above:
            inner = inner.setdefault(key, {})
        inner[name] = value
    return tree


def portable(trajectory: Mapping[str, Any]) -> dict[str, Any]:
    """A trajectory with the places of its images in place of handles: arrays, which travel between processes fast."""
    found: dict[str, Any] = {}
    for name, leaf in trajectory.items():
        if isinstance(leaf, Mapping):
            found[name] = portable(leaf)
        elif (
            isinstance(leaf, np.ndarray) and leaf.dtype == object and any(isinstance(v, Encoded) for v in leaf.tolist())
        ):
            found[name] = {_PLACES: _places(leaf)}
        else:
            found[name] = leaf
    return found


def _places(leaf: np.ndarray) -> np.ndarray:
    if not all(isinstance(value, Encoded) or not len(value) for value in leaf.tolist()):
        raise ValueError("Some entries are images in files and others are bytes: read them all, or none.")
    return np.array([v.place if isinstance(v, Encoded) else (0, 0, 0) for v in leaf.tolist()], dtype=np.int64)


class _Growing:
    """A table in the making."""

    def __init__(self, parts: RecordParts | None) -> None:
        self._parts = parts
        self._leaves: dict[tuple[str, ...], _Leaf] = {}
        self._lengths: list[int] = []

    def add(self, trajectory: Mapping[str, Any]) -> None:
        leaves = flat(trajectory)
        sizes = {len(leaf) for leaf in leaves.values()}
        if len(sizes) != 1:
            told = ", ".join(f"{'/'.join(path)}: {len(leaf)}" for path, leaf in leaves.items())
            raise ValueError(
                f"The leaves of trajectory {len(self._lengths)} differ in length: {told or 'it has none'}."
            )
        (size,) = sizes
        if not size:
            return
        if not self._lengths:
            self._leaves = {path: _Leaf() for path in leaves}
        if leaves.keys() != self._leaves.keys():
            other = sorted("/".join(path) for path in leaves.keys() ^ self._leaves.keys())
            raise ValueError(
                f"Trajectory {len(self._lengths)} does not have the same entries as those before: {other}."
            )
        for path, leaf in leaves.items():
            try:
                self._leaves[path].add(np.asarray(leaf))
            except ValueError as error:
                raise ValueError(f"{'/'.join(path)} of trajectory {len(self._lengths)}: {error}") from None
        self._lengths.append(size)

    def episodes(self, fingerprint: Any) -> Episodes:
        columns = {path: leaf.column() for path, leaf in self._leaves.items()}
        for path, column in list(columns.items()):
            if path[-1] == _PLACES:
                assert isinstance(column, Numbers) and self._parts is not None
                columns[path[:-1]] = Images(self._parts, columns.pop(path).values)
        return Episodes(nested(columns), np.array(self._lengths, dtype=np.int64), fingerprint)


class _Leaf:
    """A column in the making: pieces of numbers, or of codes of texts."""

    def __init__(self) -> None:
        self._pieces: list[np.ndarray] = []
        self._texts: dict[bytes, int] = {}
        self._is_text = False

    def add(self, values: np.ndarray) -> None:
        textual = values.dtype.kind in "OSU"
        if self._pieces and textual != self._is_text:
            raise ValueError(f"it is {values.dtype} here and not so before.")
        self._is_text = textual
        piece = self._codes(values) if textual else values
        before = self._pieces[0] if self._pieces else piece
        if (before.dtype, before.shape[1:]) != (piece.dtype, piece.shape[1:]):
            raise ValueError(
                f"it has {piece.dtype}{list(piece.shape[1:])} per frame here and "
                f"{before.dtype}{list(before.shape[1:])} before."
            )
        self._pieces.append(piece)

    def _codes(self, values: np.ndarray) -> np.ndarray:
        texts = (value.encode() if isinstance(value, str) else bytes(value) for value in values.ravel().tolist())
        codes = [self._texts.setdefault(text, len(self._texts)) for text in texts]
        return np.array(codes, dtype=np.int32).reshape(values.shape)

    def column(self) -> Column:
        joined = self._pieces[0] if len(self._pieces) == 1 else np.concatenate(self._pieces)
        return Texts(joined, object_array(list(self._texts))) if self._is_text else Numbers(joined)


def save(episodes: Episodes, folder: str) -> Episodes:
    """Writes a table to a folder, which appears at once or not at all, and returns it mapped from there."""
    os.makedirs(os.path.dirname(folder) or ".", exist_ok=True)
    temporary = tempfile.mkdtemp(dir=os.path.dirname(folder) or ".", prefix="writing-")
    try:
        described = []
        for number, (path, column) in enumerate(flat(episodes.columns).items()):
            described.append({"path": path, **_written(column, os.path.join(temporary, str(number)))})
        numbers = np.arange(len(episodes)) if episodes.numbers is None else episodes.numbers
        np.save(os.path.join(temporary, "episodes.npy"), np.stack([episodes.lengths, numbers]))
        with open(os.path.join(temporary, "table.json"), "w", encoding="utf-8") as file:
            json.dump({"format": _FORMAT, "columns": described, "fingerprint": episodes.fingerprint}, file)
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
            np.save(f"{path}.npy", values)
            return {"kind": "numbers"}
        case Texts(codes, values):
            np.save(f"{path}.npy", codes)
            sizes = np.array([len(value) for value in values], dtype=np.int64)
            np.save(f"{path}-sizes.npy", sizes)
            np.save(f"{path}-bytes.npy", np.frombuffer(b"".join(values), np.uint8))
            return {"kind": "texts"}
        case Images(_, places):
            np.save(f"{path}.npy", places)
            return {"kind": "images"}
        case Constant(entry, count, present):
            np.save(f"{path}.npy", np.frombuffer(entry, np.uint8) if isinstance(entry, bytes) else entry)
            return {"kind": "constant", "count": count, "present": present, "text": isinstance(entry, bytes)}


def load(folder: str, parts: RecordParts | None) -> Episodes:
    """A table that `save` wrote, its columns mapped; `parts` are the records that its images are in."""
    with open(os.path.join(folder, "table.json"), encoding="utf-8") as file:
        table = json.load(file)
    if table["format"] != _FORMAT:
        raise ValueError(
            f"{folder} holds a table of format {table['format']}; this version reads {_FORMAT}. Remove it."
        )
    leaves = {
        tuple(entry["path"]): _read(entry, os.path.join(folder, str(number)), parts)
        for number, entry in enumerate(table["columns"])
    }
    lengths, numbers = np.load(os.path.join(folder, "episodes.npy"))
    return Episodes(nested(leaves), lengths, table["fingerprint"], numbers, folder)


def _read(entry: dict[str, Any], path: str, parts: RecordParts | None) -> Column:
    if entry["kind"] == "constant":
        value = np.load(f"{path}.npy")
        return Constant(value.tobytes() if entry["text"] else value, entry["count"], entry["present"])
    values = np.load(f"{path}.npy", mmap_mode="r")
    if entry["kind"] == "numbers":
        return Numbers(values)
    if entry["kind"] == "images":
        assert parts is not None
        return Images(parts, values)
    ends = np.cumsum(np.load(f"{path}-sizes.npy")).tolist()
    content = np.load(f"{path}-bytes.npy").tobytes()
    return Texts(values, object_array([content[low:high] for low, high in zip([0, *ends], ends)]))

"""Columns of a table of frames. Each gives the entries of any frames, and says which of them are data.

Numbers are arrays, in memory or mapped from a file. Texts are codes into a list of the different ones. Encoded images
are places in the files they came from: a table of a million frames holds no image.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bushel.trajectory.encoded import Encoded, RecordParts

_COPIED_BYTES = 256 << 20


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
        if all(isinstance(column, Numbers) for column in self.columns):
            return np.ones(frames.shape, dtype=bool)
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


def joined_column(columns: Sequence[Column]) -> Column:
    """Columns one after another, as one: numbers are copied together where that is cheap, to be read faster."""
    numbers = [column.values for column in columns if isinstance(column, Numbers)]
    if len(numbers) == len(columns) and sum(values.nbytes for values in numbers) <= _COPIED_BYTES:
        return Numbers(np.concatenate(numbers))
    return Joined(tuple(columns))


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

"""The columns of a table of frames. A column returns the entries of any frames, and says which of them are data.

Numbers are arrays, in memory or mapped from a file. Texts are codes into a list of the distinct texts. Encoded images
are places in the files that hold them, so a table of a million frames holds no image.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bushel._src.base.state_names import in_states
from bushel._src.index import words
from bushel._src.trajectory.encoded_images import Encoded, ImageParts
from bushel._src.trajectory.numpy_or_jax import to_objects

_COPIED_BYTES = 256 << 20


def make_true(shape: tuple[int, ...]) -> np.ndarray:
    """An array of bools that are all true. It takes a third of the time of `np.ones`, which counts for small masks."""
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
        """The entries of these frames. The result has the axes of `frames`, then those of an entry."""
        return np.asarray(self.values.take(frames, axis=0))  # of a mapped file `take` returns a `memmap`

    def is_present(self, frames: np.ndarray) -> np.ndarray:
        """One bool per frame: True for data, False for padding."""
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
        """The texts of these frames, in an array of bytes objects."""
        return self.values[np.take(self.codes, frames)]

    def is_present(self, frames: np.ndarray) -> np.ndarray:
        """One bool per frame: whether the text is not empty."""
        return self._filled[np.take(self.codes, frames)]

    @functools.cached_property
    def _filled(self) -> np.ndarray:
        return np.array([len(value) != 0 for value in self.values], dtype=bool)


@in_states("images_of_frames")
@dataclasses.dataclass(frozen=True, eq=False)
class Images:
    """A column of encoded images, each as (record, start, size in bytes). A size of 0 is padding."""

    parts: ImageParts
    places: np.ndarray
    is_numeric = False

    def __len__(self) -> int:
        return len(self.places)

    def take(self, frames: np.ndarray) -> np.ndarray:
        """Handles of the images of these frames. Nothing is read yet."""
        # One handle per distinct frame: `over_window` decodes an image once only where its steps share the handle.
        distinct, back = words.find_distinct(frames)
        places = self.places[distinct].tolist()
        handles = to_objects([Encoded(self.parts, *place) if place[2] else b"" for place in places])
        return handles[back].reshape(frames.shape)

    def is_present(self, frames: np.ndarray) -> np.ndarray:
        """One bool per frame: whether it has an image."""
        return np.take(self.places[:, 2], frames) != 0


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
        """The entry, once for each of these frames."""
        if isinstance(self.entry, bytes):
            return np.full(frames.shape, self.entry, dtype=object)
        return np.broadcast_to(self.entry, (*frames.shape, *np.shape(self.entry))).copy()

    def is_present(self, frames: np.ndarray) -> np.ndarray:
        """One bool per frame: True for data, False for padding."""
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
        """The entries of these frames. The result has the axes of `frames`, then those of an entry."""
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
        """Copies entry by entry into the result. A gather per column would copy each entry twice."""
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
        """One bool per frame: True for data, False for padding."""
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
        """The column of each row of `frames`. The first frame decides: all frames of a row are of one episode."""
        first = frames if frames.ndim == 1 else frames.reshape(len(frames), -1)[:, 0]
        return np.searchsorted(self._ends, first, side="right")


Column = Numbers | Texts | Images | Constant | Joined


def join_columns(columns: Sequence[Column]) -> Column:
    """Several columns, one after another, as one. Few numbers are copied into one array, which is read faster."""
    numbers = [column.values for column in columns if isinstance(column, Numbers)]
    if len(numbers) == len(columns) and sum(values.nbytes for values in numbers) <= _COPIED_BYTES:
        return Numbers(np.concatenate(numbers))
    return Joined(tuple(columns))


Columns = dict[str, Any]
"""A tree of dicts with a column at each leaf."""


def take_entries(column: Any, frames: np.ndarray) -> Any:
    """The entries of a column, or of each column of a tree."""
    if isinstance(column, dict):
        return {name: take_entries(entry, frames) for name, entry in column.items()}
    return column.take(frames)

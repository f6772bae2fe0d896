"""Data sets of time series: sunspots and temperatures; and windows over time series, with cyreal's function names.

A CSV file is read, split, and cut into windows with the steps that follow each.
"""

from __future__ import annotations

import csv
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from bushel._src.base import checks
from bushel._src.base.errors import DamagedFile
from bushel._src.base.public import public
from bushel._src.base.state_names import in_states
from bushel._src.jit.datasets import downloads
from bushel._src.jit.datasets.downloads import Remote
from bushel._src.jit.host_callbacks import DiskSource
from bushel._src.jit.record_order import Ordering

__all__ = [
    "load_time_series_from_csv",
    "load_value_column",
    "make_sequence_disk_source",
    "prepare_seq_to_seq_windows",
    "prepare_time_series_windows",
    "select_split",
    "sliding_window_many",
]

SeriesSplit = Literal["train", "val", "test"]


@public("bushel.jit.datasets.time_utils")
def load_value_column(path: str | os.PathLike[str], *, skip_header: int, value_column: int) -> np.ndarray:
    """Read one column of a CSV file as float32, without its first `skip_header` lines."""
    values = []
    with open(path, newline="", encoding="utf-8") as file:
        lines = csv.reader(file)
        try:
            for row in lines:
                if row and lines.line_num > skip_header:
                    values.append(float(row[value_column]))
        except (ValueError, IndexError, csv.Error) as error:
            raise DamagedFile(
                f"{path} has no number in column {value_column} of line {lines.line_num}: {error}."
            ) from error
    if not values:
        raise DamagedFile(f"{path} has no values after its first {skip_header} lines.")
    series = np.array(values, np.float32)
    if not np.isfinite(series).all():
        raise DamagedFile(f"{path} has the value {series[~np.isfinite(series)][0]}, which is not a finite number.")
    return series


@public("bushel.jit.datasets.time_utils")
def load_time_series_from_csv(
    *,
    cache_dir: Any,
    dataset_name: str,
    filename: str,
    url: str,
    data_path: Any,
    skip_header: int,
    value_column: int,
) -> np.ndarray:
    """Read a column of the file `data_path`, or of `filename` in the cache folder, which is downloaded if needed."""
    if data_path is not None:
        path = Path(data_path).expanduser()
        if not path.is_file():
            raise FileNotFoundError(
                f"data_path is {path}, but there is no such file. Without data_path, {url} is downloaded."
            )
        return load_value_column(path, skip_header=skip_header, value_column=value_column)
    path = downloads.fetch(Remote(filename, url), downloads.get_cache_folder(dataset_name, cache_dir))
    try:
        return load_value_column(path, skip_header=skip_header, value_column=value_column)
    except DamagedFile as error:
        raise DamagedFile(f"{error} Delete the file to download it again.") from error


@public("bushel.jit.datasets.time_utils")
def select_split(
    array: np.ndarray, split: SeriesSplit, train_fraction: float, context_length: int, val_fraction: float = 0.0
) -> np.ndarray:
    """Return the part of a series that belongs to a split. "val" and "test" begin with the context of their first step.

    >>> select_split(np.arange(10), "test", train_fraction=0.8, context_length=3)
    array([5, 6, 7, 8, 9])
    """
    checks.choice(split, SeriesSplit, "split")
    if not (0 < train_fraction < 1 and 0 <= val_fraction < 1 and train_fraction + val_fraction < 1):
        raise ValueError(
            "train_fraction must be above 0, val_fraction at least 0, and their sum below 1: "
            f"got {train_fraction} and {val_fraction}."
        )
    if split == "val" and val_fraction == 0:
        raise ValueError("The split 'val' is empty, because val_fraction is 0.")
    checks.not_negative(context_length, "context_length")
    length = _count_steps(array)
    train_end = max(int(length * train_fraction), 1)
    val_end = train_end
    if val_fraction > 0:
        val_end = min(max(int(length * (train_fraction + val_fraction)), train_end + 1), length)
    first, end = {"train": (0, train_end), "val": (train_end, val_end), "test": (val_end, length)}[split]
    if split != "train":
        first = max(first - context_length, 0)
    return array[first:end] if _find_time_axis(array) == 0 else array[:, first:end]


@public("bushel.jit.datasets.time_utils")
def sliding_window_many(array: np.ndarray, window_size: int, stride: int = 1, offset: int = 0) -> np.ndarray:
    """Return windows along time, as a view. The windows take the place of the time axis; their steps are the last axis.

    >>> sliding_window_many(np.arange(6), 3, stride=2, offset=1)
    array([[1, 2, 3],
           [3, 4, 5]])
    """
    checks.positive(window_size, "window_size")
    checks.positive(stride, "stride")
    checks.not_negative(offset, "offset")
    length, axis = _count_steps(array), _find_time_axis(array)
    if length < offset + window_size:
        raise ValueError(
            f"A window of {window_size} steps from step {offset} on does not fit into a series of {length} steps."
        )
    windows = np.lib.stride_tricks.sliding_window_view(array, window_size, axis=axis)
    return windows[offset::stride] if axis == 0 else windows[:, offset::stride]


@public("bushel.jit.datasets.time_utils")
def prepare_time_series_windows(
    series: np.ndarray,
    split: SeriesSplit,
    context_length: int,
    prediction_length: int,
    train_fraction: float,
    val_fraction: float = 0.0,
) -> tuple[np.ndarray, np.ndarray]:
    """Return windows of a series, and for each window the steps that follow it.

    >>> contexts, targets = prepare_time_series_windows(np.arange(10), "train", 3, 2, train_fraction=0.6)
    >>> contexts.tolist(), targets.tolist()
    ([[0, 1, 2], [1, 2, 3]], [[3, 4], [4, 5]])
    """
    part = select_split(series, split, train_fraction, context_length, val_fraction)
    contexts = sliding_window_many(part, context_length)
    targets = sliding_window_many(part, prediction_length, offset=context_length)
    return _pair_windows(contexts, targets, _find_time_axis(series))


@public("bushel.jit.datasets.time_utils")
def prepare_seq_to_seq_windows(
    input_sequence: np.ndarray,
    target_sequence: np.ndarray,
    split: SeriesSplit,
    input_window_len: int,
    target_window_len: int,
    train_fraction: float = 0.8,
    val_fraction: float = 0.0,
    sliding_window_stride: int = 1,
    target_offset: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """Return windows of one series, and windows of a second series that begin `target_offset` steps later.

    Both series cover the same time. If they are (batch, time, ...), the windows are (batch, window, step, ...).

    >>> contexts, targets = prepare_seq_to_seq_windows(np.arange(10), -np.arange(10), "train", 3, 2, 0.5)
    >>> contexts.tolist(), targets.tolist()
    ([[0, 1, 2], [1, 2, 3], [2, 3, 4]], [[0, -1], [-1, -2], [-2, -3]])
    """
    axis = _find_time_axis(input_sequence)
    if (
        axis != _find_time_axis(target_sequence)
        or input_sequence.shape[: axis + 1] != target_sequence.shape[: axis + 1]
    ):
        raise ValueError(
            "The two sequences must have the same number of steps and the same batch size; "
            f"their shapes are {input_sequence.shape} and {target_sequence.shape}."
        )
    inputs, targets = (
        select_split(each, split, train_fraction, input_window_len, val_fraction)
        for each in (input_sequence, target_sequence)
    )
    pair = _pair_windows(
        sliding_window_many(inputs, input_window_len, sliding_window_stride),
        sliding_window_many(targets, target_window_len, sliding_window_stride, target_offset),
        axis,
    )
    return (np.moveaxis(pair[0], -1, 2), np.moveaxis(pair[1], -1, 2)) if axis == 1 else pair


@public("bushel.jit.datasets.time_utils")
def make_sequence_disk_source(
    *, contexts: np.ndarray, targets: np.ndarray, ordering: Ordering = "shuffle", prefetch_size: int = 64
) -> DiskSource:
    """Return a source of pairs of windows, {"context": ..., "target": ...} in float32, copied when they are needed."""
    if contexts.ndim < 2 or targets.ndim < 2 or len(contexts) != len(targets):
        raise ValueError(
            "contexts and targets must be (windows, steps, ...), with one target for each context; "
            f"their shapes are {contexts.shape} and {targets.shape}."
        )

    def read(number: int) -> dict[str, np.ndarray]:
        return {"context": contexts[number].astype(np.float32), "target": targets[number].astype(np.float32)}

    return DiskSource(len(contexts), read, ordering=ordering, prefetch_size=prefetch_size)


def _pair_windows(contexts: np.ndarray, targets: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """Return equally many windows of both: the last windows of one of them may have no partner."""
    count = min(contexts.shape[axis], targets.shape[axis])
    return (contexts[:count], targets[:count]) if axis == 0 else (contexts[:, :count], targets[:, :count])


def _find_time_axis(array: np.ndarray) -> int:
    return 1 if array.ndim >= 3 else 0


def _count_steps(array: np.ndarray) -> int:
    if array.ndim == 0 or array.size == 0:
        raise ValueError(f"A time series needs at least one step, got an array of shape {array.shape}.")
    return array.shape[_find_time_axis(array)]


CSV_URL = "https://raw.githubusercontent.com/jbrownlee/Datasets/master/"


@in_states("SeriesDataset")
@dataclass
class SeriesDataset:
    """Windows of a time series: {"context": ..., "target": ...}.

    A context has `context_length` successive steps, and its target has the `prediction_length` steps that follow. The
    file is read from a cache folder, and downloaded if it is not there.

    Args:
      split: "train", "val" or "test". The splits follow each other in time.
      overlapping: has no effect, as in cyreal: a window begins at every step.
      train_fraction, val_fraction: which fractions of the steps these splits have; the rest is "test".
      cache_dir: the folder for the file; by default one in the user's cache.
      data_path: a CSV file to read instead, with a header line, and the values in the second column.
    """

    folder: ClassVar[str]
    filename: ClassVar[str]

    split: SeriesSplit = "train"
    overlapping: bool = False
    context_length: int = 24
    prediction_length: int = 1
    train_fraction: float = 0.8
    val_fraction: float = 0.0
    cache_dir: Any = None
    data_path: Any = None

    def __post_init__(self) -> None:
        checks.choice(self.split, SeriesSplit, "split")  # before anything is downloaded
        series = load_time_series_from_csv(
            cache_dir=self.cache_dir,
            dataset_name=self.folder,
            filename=self.filename,
            url=CSV_URL + self.filename,
            data_path=self.data_path,
            skip_header=1,
            value_column=1,
        )
        self._contexts, self._targets = prepare_time_series_windows(
            series, self.split, self.context_length, self.prediction_length, self.train_fraction, self.val_fraction
        )

    def __len__(self) -> int:
        return len(self._contexts)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        return {"context": self._contexts[index], "target": self._targets[index]}

    def arrays(self) -> dict[str, np.ndarray]:
        """Return all windows and targets, as views of the series and not as copies."""
        return {"context": self._contexts, "target": self._targets}

    def as_array_dict(self) -> dict[str, np.ndarray]:
        """Return all windows and targets, as views of the series and not as copies."""
        return self.arrays()

    @classmethod
    def make_disk_source(
        cls, *, ordering: Ordering = "shuffle", prefetch_size: int = 64, **arguments: Any
    ) -> DiskSource:
        """Return a source that copies windows when the loader needs them. It takes the data set's arguments too."""
        checks.choice(ordering, Ordering, "ordering")  # before anything is downloaded
        windows = cls(**arguments).arrays()
        return make_sequence_disk_source(
            contexts=windows["context"], targets=windows["target"], ordering=ordering, prefetch_size=prefetch_size
        )


@public("bushel.jit.datasets")
@dataclass
class SunspotsDataset(SeriesDataset):
    """The mean number of sunspots in each month from 1749 to 1983: 2,820 values."""

    folder = "sunspots"
    filename = "monthly-sunspots.csv"


@public("bushel.jit.datasets")
@dataclass
class DailyMinTemperaturesDataset(SeriesDataset):
    """The lowest temperature of each day in Melbourne from 1981 to 1990: 3,650 values."""

    folder = "daily-min-temperatures"
    filename = "daily-min-temperatures.csv"

    context_length: int = 30

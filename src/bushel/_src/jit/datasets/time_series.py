"""Data sets of time series: sunspots and temperatures, as windows with the steps that follow each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from bushel._src.base import checks
from bushel._src.base.public import public
from bushel._src.base.state_names import in_states
from bushel._src.jit.datasets.time_utils import (
    SeriesSplit,
    load_time_series_from_csv,
    make_sequence_disk_source,
    prepare_time_series_windows,
)
from bushel._src.jit.host_callbacks import DiskSource
from bushel._src.jit.record_order import Ordering

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

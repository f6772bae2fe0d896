"""Statistics of actions and proprioception: computed from a stream, merged, and kept in files.

Quantiles are exact within a budget of memory, with a known error beyond it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bushel._src.base import checked_files, checks, redact
from bushel._src.base.options import ReadOptions, WorkerOptions, find_job_options
from bushel._src.base.public import public
from bushel._src.base.shown_text import Progress, Shown
from bushel._src.base.state_names import in_states
from bushel._src.datasets.iter_dataset import IterDataset
from bushel._src.datasets.iterator import DatasetIterator
from bushel._src.datasets.map_dataset import MapDataset
from bushel._src.sources import file_access
from bushel._src.sources import folders as output_folders
from bushel._src.sources.checksums import check_checksums, write_checksums
from bushel._src.sources.folders import Folder
from bushel._src.sources.paths import Options, get_cache_folder
from bushel._src.state.digest import whole_digest
from bushel._src.state.identity import PYTHON
from bushel._src.trajectory.config_values import ModuleSpec
from bushel._src.trajectory.data_utils import BadTrajectory, Compat, get_entry, reproduces_faults
from bushel._src.trajectory.single_pass import is_endless, prefetch

_LEAST_ROWS = 1024


class Quantiles:
    """The quantiles of each column of rows of float32 numbers.

    Up to `budget_bytes` all rows are kept, and quantiles equal those of `np.quantile`. Beyond that rows are sorted and
    every second one is dropped. The others then count as two rows, later as four, and so on. `rank_error` bounds the
    error: the rank of a result among all rows differs from the exact rank by at most that many rows. With K rows kept
      of
    n it is below (n / K) * levels * (levels + 1), where levels is about log2(n / K) + 3: for a hundred times
    the budget of ten million rows, less than one in 90,000.

    >>> quantiles = Quantiles(1)
    >>> quantiles.add(np.arange(101, dtype=np.float32)[:, None])
    >>> quantiles.at(0.99).tolist(), quantiles.rank_error
    ([99.0], 0)
    """

    def __init__(self, width: int, budget_bytes: int = 1 << 28):
        self.width = width
        self.count = 0
        self.rank_error = 0
        self._most_rows = max(_LEAST_ROWS, budget_bytes // (4 * max(1, width)))
        self._levels: list[list[np.ndarray]] = []  # arrays of rows; a row of level h counts as 2**h rows
        self._sizes: list[int] = []  # number of rows of each level
        # Whether the next compaction of a level keeps the second row of each pair. This alternates.
        self._later: list[bool] = []
        self._add_level()

    @property
    def rows_kept(self) -> int:
        """The number of rows in memory."""
        return sum(self._sizes)

    @property
    def levels(self) -> int:
        """The number of levels; 1 as long as all rows are kept."""
        return len(self._levels)

    def add(self, rows: np.ndarray) -> None:
        """Add rows, float32[n, width]."""
        self._check(rows.shape[-1])
        # A copy, since `rows` may be a view that keeps a large array in memory.
        self._put(0, [np.array(rows, np.float32)])
        self.count += len(rows)
        self._compact()

    def absorb(self, other: Quantiles) -> None:
        """Add all rows of another object."""
        self._check(other.width)
        for level, samples in enumerate(other._levels):
            if level == len(self._levels):
                self._add_level()
            self._put(level, samples)
        self.count += other.count
        self.rank_error += other.rank_error
        self._compact()

    def joined(self) -> Quantiles:
        """Return the quantiles of all numbers together, as one column."""
        whole = Quantiles(1, 4 * self.width * self._most_rows)
        whole.rank_error = self.rank_error * self.width
        whole.count = self.count * self.width
        for level, samples in enumerate(self._levels):
            if level == len(whole._levels):
                whole._add_level()
            whole._put(level, [sample.reshape(-1, 1) for sample in samples])
        return whole

    def at(self, share: ArrayLike) -> np.ndarray:
        """Return the quantile of each column, float64[width]; for several shares, one row for each share."""
        if not self.count:
            raise ValueError("There are no rows to compute quantiles from.")
        shares = np.asarray(share, np.float64)
        values = np.concatenate([sample for samples in self._levels for sample in samples])
        if len(self._levels) == 1:
            columns = [np.quantile(column.astype(np.float64), shares) for column in values.T]
        else:
            weights = np.repeat(1 << np.arange(len(self._sizes)), self._sizes)
            columns = [_select_ranks(column, weights, shares * (self.count - 1)) for column in values.T]
        return np.stack(columns, axis=-1).astype(np.float64) if columns else np.empty((*shares.shape, 0))

    def _check(self, width: int) -> None:
        if width != self.width:
            raise ValueError(f"Rows of {width} numbers cannot be added to rows of {self.width}.")

    def _put(self, level: int, samples: list[np.ndarray]) -> None:
        self._levels[level].extend(samples)
        self._sizes[level] += sum(map(len, samples))

    def _add_level(self) -> None:
        self._levels.append([])
        self._sizes.append(0)
        self._later.append(False)

    def _compact(self) -> None:
        """Halve levels, the lowest large one first, until the rows fit."""
        while self.rows_kept > self._most_rows:
            # At least one level is larger than this, since the sum of all sizes is too large.
            large = self._most_rows // (len(self._levels) + 1)
            level = next(level for level in range(len(self._levels)) if self._sizes[level] > large)
            if level + 1 == len(self._levels):
                self._add_level()
            rows = np.sort(np.concatenate(self._levels[level]), axis=0)
            pairs = len(rows) // 2 * 2
            self._levels[level], self._sizes[level] = [], 0
            self._put(level, [rows[pairs:].copy()])
            self._put(level + 1, [rows[int(self._later[level]) : pairs : 2].copy()])
            self._later[level] = not self._later[level]
            # Half of the rows below any number stay, give or take half a row, and each counts double.
            # So a rank changes by at most one row of this level.
            self.rank_error += 1 << level


def _select_ranks(values: np.ndarray, weights: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """Return the values at these ranks, where each value counts as many times as its weight."""
    order = np.argsort(values)
    return values[order[np.searchsorted(np.cumsum(weights[order]), ranks, side="right")]]


logger = logging.getLogger(__name__)

_VERSION = "bushel 2"  # a part of the file's name, so that a new way to compute statistics uses new files

_NUMBERS = {"mean", "std", "max", "min", "p99", "p01", "mask"}


@public("bushel.trajectory")
class Statistics:
    """Mean, standard deviation, extremes and percentiles of a stream of rows of numbers.

    Rows are converted to float32; sums are computed in float64. `merge` returns the statistics of the rows of two
    objects. Percentiles are exact for up to `budget_bytes` of rows. Beyond that, the rank of a percentile is wrong by
    at most `rank_error` rows.

    >>> statistics = Statistics()
    >>> statistics.add([[1.0, 10.0], [3.0, 10.0]])
    >>> statistics.summary()["mean"], statistics.summary()["std"]
    ([2.0, 10.0], [1.0, 0.0])
    """

    def __init__(self, budget_bytes: int = 1 << 28):
        self.count = 0
        self._budget_bytes = budget_bytes
        self._shape: tuple[int, ...] | None = None
        self._quantiles = Quantiles(1, budget_bytes)

    @property
    def rank_error(self) -> int:
        """The most rows by which the rank of a percentile may be wrong; 0 as long as all rows are kept."""
        return self._quantiles.rank_error

    def add(self, values: ArrayLike) -> None:
        """Add rows: an array whose first axis counts the rows."""
        array = np.asarray(values, np.float32)
        if array.ndim == 0:
            raise ValueError(f"add needs an array of rows, got the number {array}.")
        self._accept(array.shape[1:])
        if not len(array):
            return
        rows = array.reshape(len(array), -1)
        if not np.isfinite(rows).all():
            where = np.flatnonzero(~np.isfinite(rows).all(axis=0)).tolist()
            raise ValueError(
                f"Some numbers are infinite or NaN, in the dimensions {where}. Remove such trajectories, for example "
                "with filter_functions, or pass your own statistics as dataset_statistics (with skip_norm=True, an "
                "empty dict is enough)."
            )
        exact = rows.astype(np.float64)
        mean = exact.mean(axis=0)
        squares = np.square(exact - mean).sum(axis=0)
        self._combine(len(rows), mean, squares, rows.min(axis=0), rows.max(axis=0))
        self._quantiles.add(rows)

    def absorb(self, other: Statistics) -> None:
        """Add all rows of another `Statistics` object."""
        if other._shape is None:
            return
        self._accept(other._shape)
        if other.count:
            self._combine(other.count, other._mean, other._squares, other._min, other._max)
            self._quantiles.absorb(other._quantiles)

    def summary(self) -> dict[str, Any]:
        """Return the statistics as plain lists: mean, std, max, min, p99, p01."""
        if not self.count:
            raise ValueError("Statistics cannot be computed: no rows were added.")
        low, high = self._quantiles.at([0.01, 0.99])
        summary = {
            "mean": self._mean,
            "std": np.sqrt(self._squares / self.count),
            "max": self._max,
            "min": self._min,
            "p99": high,
            "p01": low,
        }
        return {name: value.reshape(self._shape).tolist() for name, value in summary.items()}

    def _accept(self, shape: tuple[int, ...]) -> None:
        if self._shape is None:
            self._shape = shape
            self._quantiles = Quantiles(int(np.prod(shape)), self._budget_bytes)
        elif self._shape != shape:
            raise ValueError(f"Rows of shape {list(shape)} cannot be added to rows of shape {list(self._shape)}.")

    def _combine(self, count: int, mean: np.ndarray, squares: np.ndarray, low: np.ndarray, high: np.ndarray) -> None:
        if not self.count:
            self.count, self._mean, self._squares, self._min, self._max = count, mean, squares, low, high
            return
        whole = self.count + count
        difference = mean - self._mean
        self._squares = self._squares + squares + np.square(difference) * (self.count * count / whole)
        self._mean = self._mean + difference * (count / whole)
        self._min, self._max = np.minimum(self._min, low), np.maximum(self._max, high)
        self.count = whole


@in_states("merge_statistics")
def merge(a: Statistics, b: Statistics) -> Statistics:
    """Return the statistics of the rows of both objects.

    >>> a, b = Statistics(), Statistics()
    >>> a.add([[1.0]]), b.add([[3.0]])
    (None, None)
    >>> merge(a, b).summary()["mean"]
    [2.0]
    """
    whole = Statistics(a._budget_bytes)
    whole.absorb(a)
    whole.absorb(b)
    return whole


def code_of(function: Callable[..., Any] | Mapping[str, Any] | None) -> str:
    """Return a short text that changes when a function changes: its bytecode, its arguments, or what it reads in user
    modules.

    Pass it as one of `hash_dependencies`: statistics are then computed again when the function has changed. A
    `ModuleSpec` is treated as the function that it names.

    >>> code_of(lambda x: x + 1) == code_of(lambda x: x + 2)
    False
    """
    if function is None:
        return ""
    return f"{PYTHON} {whole_digest(ModuleSpec.instantiate(function) if isinstance(function, Mapping) else function)}"


@public("bushel.trajectory")
def get_dataset_statistics(
    dataset: Any,
    proprio_keys: Sequence[str],
    hash_dependencies: Sequence[str],
    save_dir: str | os.PathLike[str] | None = None,
    force_recompute: bool = False,
    *,
    compat: Compat | None = None,
    progress: Shown = True,
    workers: int | WorkerOptions | None = None,
    storage_options: Options | None = None,
) -> dict[str, Any]:
    """Return the statistics of a data set's actions and of some entries of its observations.

    Kept in a file for later calls.

    With `compat="crossformer"` the first trajectory counts twice for the observations, and files have the names that
    the original gives them.

    >>> import tempfile
    >>> trajectories = [{"observation": {}, "action": [[1.0], [3.0]]}]
    >>> found = get_dataset_statistics(trajectories, [], ["my data"], tempfile.mkdtemp())
    >>> found["action"]["mean"], found["num_transitions"], found["num_trajectories"]
    ([2.0], 2, 1)

    Args:
      dataset: a `MapDataset` or `IterDataset` of trajectories, any object with a length and `[i]`, or an iterable.
      proprio_keys: names of entries of `observation`.
      hash_dependencies: texts that describe the data and how they are made; see `code_of`.
      save_dir: the folder of the file, local or in a store ("s3://bucket/statistics"). Without it, or if it cannot be
        written (a web server cannot), the file is in Bushel's cache folder.
      force_recompute: whether to compute the statistics even if there is a file.
      progress: whether to show a progress bar on a terminal; or a function that is called with the number of
        trajectories done, and of all of them (None if that is not known).
      workers: the number of threads that read, or options of worker processes or actors. By default threads read
        unless the records are in memory. A plain iterable is read in this thread.
      storage_options: options of the store that holds save_dir.
    """
    if isinstance(proprio_keys, str) or isinstance(hash_dependencies, str):
        raise TypeError("proprio_keys and hash_dependencies must be lists of strings, got a string.")
    if save_dir is None:
        checks.unused({"storage_options": storage_options is not None}, "without save_dir", "Write save_dir=folder")
    folders, name = _find_folders(hash_dependencies, save_dir, compat, storage_options)
    for folder in folders if not force_recompute else ():
        if (known := _known(folder, name, proprio_keys, reproduces_faults(compat))) is not None:
            return known
    found = _compute(dataset, tuple(proprio_keys), reproduces_faults(compat), progress, workers)
    for folder in folders:
        try:
            _keep(folder, name, found, reproduces_faults(compat))
            break
        except (OSError, ValueError) as error:
            logger.warning("The statistics cannot be written to %s: %s", folder.shown(name), error)
    return found


def _find_folders(
    dependencies: Sequence[str],
    save_dir: str | os.PathLike[str] | None,
    compat: Compat | None,
    options: Options | None,
) -> tuple[list[Folder], str]:
    """Return the folders where the file may be (the user's, and the cache folder), and the name of the file."""
    if reproduces_faults(compat):
        text, folder_of_cache = "".join(dependencies), os.path.expanduser("~/.cache/crossformer")
    else:
        text, folder_of_cache = "\0".join([_VERSION, *dependencies]), os.path.join(get_cache_folder(), "statistics")
    folders = [output_folders.open_folder(folder_of_cache)]
    if save_dir is not None and not os.fspath(save_dir).startswith(("http://", "https://")):
        folders.insert(0, output_folders.open_folder(save_dir, options))
    return folders, f"dataset_statistics_{hashlib.sha256(text.encode(), usedforsecurity=False).hexdigest()}.json"


def _keep(folder: Folder, name: str, found: Mapping[str, Any], as_original: bool) -> None:
    """Write the file. If the original should read it too, its checksum is written to a separate file beside it."""
    if not as_original:
        folder.write(name, checked_files.json_bytes(_plain(found)))
        return
    folder.write(name, json.dumps(_plain(found)).encode())
    write_checksums(folder.path(name), storage_options=folder.options)


def _known(folder: Folder, name: str, keys: Sequence[str], as_original: bool) -> dict[str, Any] | None:
    """Return the statistics that an earlier run has kept; None if there are none, or if their file is damaged."""
    path = folder.path(name)
    try:
        found = _checked(path, folder.options, needs_checksum=not as_original)
        if as_original:
            with contextlib.suppress(FileNotFoundError):  # a file that the original wrote has no checksums
                check_checksums(path, storage_options=folder.options)
        for key in keys:
            get_entry(found, key, of=f"The file {folder.shown(name)}")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        logger.warning("%s The statistics are computed again.", error)
        return None
    return found


def _compute(
    trajectories: Any, keys: tuple[str, ...], twice: bool, progress: Shown, workers: int | WorkerOptions | None
) -> dict[str, Any]:
    names = ("action", *keys)
    collected = {name: Statistics() for name in names}
    stream, total = _open_stream(trajectories, keys, workers)
    bar = Progress("statistics", total, unit="trajectories", shown=progress)
    number = 0
    with bar, contextlib.ExitStack() as stack:
        if isinstance(stream, DatasetIterator):
            stack.enter_context(stream)  # closes its threads and processes, also after an error
        for number, picked in enumerate(stream, start=1):
            for name in names:
                try:
                    if name == "action" and picked[name].ndim < 2:
                        raise ValueError(f"actions must have the shape [T, A], but have {list(picked[name].shape)}.")
                    for _ in range(2 if twice and number == 1 and name != "action" else 1):
                        collected[name].add(picked[name])
                except ValueError as error:
                    raise BadTrajectory(f"Trajectory {number - 1}, {name}: {error}", number - 1) from error
            bar.show(number)
    for name, statistics in collected.items():
        if statistics.rank_error:
            logger.info(
                "The rank of the percentiles of %s may be wrong by up to %d of %d rows.",
                name,
                statistics.rank_error,
                statistics.count,
            )
    steps = collected["action"].count
    if not steps:
        raise ValueError(
            f"Statistics cannot be computed: the {number} trajectories have no steps. Check the split and the filters."
        )
    summaries = {name: collected[name].summary() for name in names}
    return {"action": summaries.pop("action"), "num_transitions": steps, "num_trajectories": number, **summaries}


def _open_stream(
    trajectories: Any, keys: tuple[str, ...], workers: int | WorkerOptions | None
) -> tuple[Iterator[dict[str, np.ndarray]], int | None]:
    """Return the entries of each trajectory that the statistics need, in order, and the number of trajectories if
    known.
    """
    pick = functools.partial(_pick, keys=keys)
    if isinstance(trajectories, Mapping):
        raise TypeError("Statistics need many trajectories, got a dict. For a single trajectory, pass a list with it.")
    options = find_job_options() if workers is None else None if isinstance(workers, int) else workers
    total = None
    if isinstance(trajectories, IterDataset):
        stream = trajectories.map(pick)
    elif hasattr(trajectories, "__getitem__") and hasattr(trajectories, "__len__"):
        dataset = trajectories if isinstance(trajectories, MapDataset) else MapDataset.source(trajectories)
        total = len(dataset)
        if is_endless(dataset):
            raise ValueError("Statistics of an endless data set cannot be computed. Compute them before repeat().")
        reading = ReadOptions(workers, 4 * workers) if isinstance(workers, int) else None
        stream = dataset.map(pick).to_iter_dataset(reading)
    else:
        return map(pick, trajectories), None
    return iter(prefetch(stream, options) if options else stream), total


@in_states("pick_for_statistics")
def _pick(traj: Mapping[str, Any], keys: tuple[str, ...]) -> dict[str, np.ndarray]:
    observation = get_entry(traj, "observation") if keys else {}
    leaves = {name: get_entry(observation, name, of="An observation") for name in keys}
    return {name: np.array(leaf, np.float32) for name, leaf in {"action": get_entry(traj, "action"), **leaves}.items()}


@public("bushel.trajectory")
def load_statistics(path: str | os.PathLike[str], *, storage_options: Options | None = None) -> dict[str, Any]:
    """Load statistics from a JSON file of Bushel or of the original, local or in a store.

    >>> import tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "statistics.json")
    >>> save_statistics(path, {"action": {"mean": [0.5], "std": [1.0]}, "num_transitions": 2, "num_trajectories": 1})
    >>> load_statistics(path)["action"]["mean"]
    [0.5]
    """
    return _checked(path, storage_options, needs_checksum=False)


def _checked(path: str | os.PathLike[str], options: Options | None, *, needs_checksum: bool) -> dict[str, Any]:
    with file_access.open_stream(path, options) as file:
        data = file.read()
    try:
        found = checked_files.parse_json(data, "The file", needs_checksum=needs_checksum)
    except ValueError as error:
        raise ValueError(f"The statistics in {redact.show(path)} cannot be read. {error} Remove the file.") from error
    wrong = _wrong(found)
    if wrong is not None:
        raise ValueError(f"The statistics in {redact.show(path)} cannot be used. {wrong} Remove the file.")
    return found


def _wrong(found: Mapping[str, Any]) -> str | None:
    """Return what is wrong with statistics; None if they have the form of `summary`. Other entries are allowed."""
    action = found.get("action")
    if not isinstance(action, Mapping) or not {"mean", "std"} <= set(action):
        return "They have no mean and std of the action."
    for name, entries in found.items():
        if isinstance(entries, str):  # no file has texts: it may be a checksum whose key is damaged
            return f"Their entry {name!r} is a text."
        numbers = _NUMBERS & set(entries) if isinstance(entries, Mapping) and "mean" in entries else ()
        for key in sorted(numbers):
            try:
                fits = np.asarray(entries[key]).dtype.kind in "biuf"
            except ValueError:  # lists of different lengths
                fits = False
            if not fits:
                return f"Their entry {name}/{key} must be numbers, but is {str(entries[key])[:80]!r}."
    return None


@public("bushel.trajectory")
def save_statistics(
    path: str | os.PathLike[str], stats: Mapping[str, Any], *, storage_options: Options | None = None
) -> None:
    """Write statistics to a JSON file with a checksum, local or in a store. Arrays become lists.

    After an error, the file has its old content.
    """
    folder, name = output_folders.open_parent(path, storage_options)
    folder.write(name, checked_files.json_bytes(_plain(stats)))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value

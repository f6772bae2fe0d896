"""Statistics of actions and proprioception: streamed, mergeable, and kept in files of the original's form.

`normalization.py` scales values with them.
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

from bushel.base import redact, sealed
from bushel.base.options import ReadOptions, WorkerOptions, find_job_options
from bushel.base.progress import Progress
from bushel.dataset import IterDataset, MapDataset
from bushel.iterator import DatasetIterator
from bushel.sources import stores, writing
from bushel.sources.checksums import check_checksums, write_checksums
from bushel.sources.stores import Options
from bushel.sources.tfrecord import cache_folder
from bushel.sources.writing import Folder
from bushel.state.digest import whole_digest
from bushel.state.identity import PYTHON
from bushel.trajectory.compat import is_faithful
from bushel.trajectory.data_utils import get_entry
from bushel.trajectory.module_spec import ModuleSpec
from bushel.trajectory.quantiles import Quantiles
from bushel.trajectory.single_pass import is_endless, prefetch

logger = logging.getLogger(__name__)

_VERSION = "bushel 2"  # part of the file's name: a change of what is computed makes new files

_NUMBERS = {"mean", "std", "max", "min", "p99", "p01", "mask"}


class Statistics:
    """Mean, standard deviation, extremes and percentiles of a stream of rows of numbers.

    Rows are converted to float32; sums are in float64. `merge` of two gives the statistics of all rows together.
    Percentiles are exact up to `budget_bytes` of rows; beyond that their rank is off by at most `rank_error` rows.

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
        """By how many rows the rank of a percentile may be off; 0 as long as all rows are kept."""
        return self._quantiles.rank_error

    def add(self, values: ArrayLike) -> None:
        """Adds rows: an array whose first axis counts the rows."""
        array = np.asarray(values, np.float32)
        if array.ndim == 0:
            raise ValueError(f"Statistics take arrays of rows, got the number {array}.")
        self._accept(array.shape[1:])
        if not len(array):
            return
        rows = array.reshape(len(array), -1)
        if not np.isfinite(rows).all():
            where = np.flatnonzero(~np.isfinite(rows).all(axis=0)).tolist()
            raise ValueError(
                f"Some numbers are infinite or NaN, in the dimensions {where}. Remove such trajectories, with "
                "filter_functions for example, or give statistics of your own as dataset_statistics (an empty dict is "
                "enough with skip_norm=True)."
            )
        exact = rows.astype(np.float64)
        mean = exact.mean(axis=0)
        squares = np.square(exact - mean).sum(axis=0)
        self._combine(len(rows), mean, squares, rows.min(axis=0), rows.max(axis=0))
        self._quantiles.add(rows)

    def absorb(self, other: Statistics) -> None:
        """Adds all rows of another object."""
        if other._shape is None:
            return
        self._accept(other._shape)
        if other.count:
            self._combine(other.count, other._mean, other._squares, other._min, other._max)
            self._quantiles.absorb(other._quantiles)

    def summary(self) -> dict[str, Any]:
        """The statistics as plain lists: mean, std, max, min, p99, p01."""
        if not self.count:
            raise ValueError("There are no rows to compute statistics from.")
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


def merge(a: Statistics, b: Statistics) -> Statistics:
    """The statistics of the rows of both.

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
    """A short text that changes with a function: with its bytecode, its arguments, and what it reads in user modules.

    Pass it as one of `hash_dependencies`: statistics are then computed again when the function has changed. A
    `ModuleSpec` is treated as the function that it names.

    >>> code_of(lambda x: x + 1) == code_of(lambda x: x + 2)
    False
    """
    if function is None:
        return ""
    return f"{PYTHON} {whole_digest(ModuleSpec.instantiate(function) if isinstance(function, Mapping) else function)}"


def get_dataset_statistics(
    dataset: Any,
    proprio_keys: Sequence[str],
    hash_dependencies: Sequence[str],
    save_dir: str | os.PathLike[str] | None = None,
    force_recompute: bool = False,
    *,
    compat: str | None = None,
    progress: bool = True,
    workers: int | WorkerOptions | None = None,
    storage_options: Options | None = None,
) -> dict[str, Any]:
    """The statistics of a data set's actions and of these entries of its observations; from a file if they are known.

    With `compat="crossformer"` the first trajectory counts twice for the observations, and files have the original's
    names.

    >>> import tempfile
    >>> trajectories = [{"observation": {}, "action": [[1.0], [3.0]]}]
    >>> found = get_dataset_statistics(trajectories, [], ["my data"], tempfile.mkdtemp())
    >>> found["action"]["mean"], found["num_transitions"], found["num_trajectories"]
    ([2.0], 2, 1)

    Args:
      dataset: a `MapDataset` or `IterDataset` of trajectories, anything with a length and `[i]`, or an iterable.
      proprio_keys: names of entries of `observation`.
      hash_dependencies: texts that say what the data are and how they are made; see `code_of`.
      save_dir: folder of the file, here or in a store ("s3://bucket/statistics"). Without one, or if it cannot be
        written, as a web server cannot: Bushel's cache folder.
      force_recompute: does not look for a file.
      progress: shows on a terminal how far it is.
      workers: threads that read, or options of worker processes or actors; by default threads where records are not
        in memory. An iterable that is no data set is read here.
      storage_options: of the store where save_dir lies.
    """
    if isinstance(proprio_keys, str) or isinstance(hash_dependencies, str):
        raise TypeError("proprio_keys and hash_dependencies are lists of strings, got a string.")
    folders, name = _places(hash_dependencies, save_dir, compat, storage_options)
    for folder in folders if not force_recompute else ():
        if (known := _known(folder, name, proprio_keys, is_faithful(compat))) is not None:
            return known
    found = _compute(dataset, tuple(proprio_keys), is_faithful(compat), progress, workers)
    for folder in folders:
        try:
            _keep(folder, name, found, is_faithful(compat))
            break
        except (OSError, ValueError) as error:
            logger.warning("The statistics cannot be written to %s: %s", folder.shown(name), error)
    return found


def _places(
    dependencies: Sequence[str],
    save_dir: str | os.PathLike[str] | None,
    compat: str | None,
    options: Options | None,
) -> tuple[list[Folder], str]:
    """The folders where the file may be, the one that was given and our own; and its name."""
    if is_faithful(compat):
        text, own = "".join(dependencies), os.path.expanduser("~/.cache/crossformer")
    else:
        text, own = "\0".join([_VERSION, *dependencies]), os.path.join(cache_folder(), "statistics")
    folders = [writing.folder(own)]
    if save_dir is not None and not os.fspath(save_dir).startswith(("http://", "https://")):
        folders.insert(0, writing.folder(save_dir, options))
    return folders, f"dataset_statistics_{hashlib.sha256(text.encode(), usedforsecurity=False).hexdigest()}.json"


def _keep(folder: Folder, name: str, found: Mapping[str, Any], as_original: bool) -> None:
    """Writes the file. One that the original reads too holds nothing else, and has its checksum in a file beside it."""
    if not as_original:
        folder.write(name, sealed.json_bytes(_plain(found)))
        return
    folder.write(name, json.dumps(_plain(found)).encode())
    write_checksums(folder.path(name), storage_options=folder.options)


def _known(folder: Folder, name: str, keys: Sequence[str], as_original: bool) -> dict[str, Any] | None:
    """The statistics that an earlier run has kept; None where there are none, or where their file is damaged."""
    path = folder.path(name)
    try:
        found = _checked(path, folder.options, needs_checksum=not as_original)
        if as_original:
            with contextlib.suppress(FileNotFoundError):  # the original wrote the file, and no checksums
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
    trajectories: Any, keys: tuple[str, ...], twice: bool, progress: bool, workers: int | WorkerOptions | None
) -> dict[str, Any]:
    names = ("action", *keys)
    collected = {name: Statistics() for name in names}
    stream, total = _open_stream(trajectories, keys, workers)
    shown = Progress("statistics", total)
    number = 0
    with contextlib.ExitStack() as stack:
        if isinstance(stream, DatasetIterator):
            stack.enter_context(stream)  # closes its threads and processes, also after an error
        for number, picked in enumerate(stream, start=1):
            for name in names:
                try:
                    if name == "action" and picked[name].ndim < 2:
                        raise ValueError(f"actions must have the shape [T, A], these have {list(picked[name].shape)}.")
                    for _ in range(2 if twice and number == 1 and name != "action" else 1):
                        collected[name].add(picked[name])
                except ValueError as error:
                    raise ValueError(f"Trajectory {number - 1}, {name}: {error}") from error
            if progress:
                shown.show(number)
    if progress:
        shown.end()
    for name, statistics in collected.items():
        if statistics.rank_error:
            logger.info("The percentiles of %s: rank within %d of %d.", name, statistics.rank_error, statistics.count)
    steps = collected["action"].count
    if not steps:
        raise ValueError(
            f"There are no statistics: {number} trajectories have no steps. Check the split and the filters."
        )
    summaries = {name: collected[name].summary() for name in names}
    return {"action": summaries.pop("action"), "num_transitions": steps, "num_trajectories": number, **summaries}


def _open_stream(
    trajectories: Any, keys: tuple[str, ...], workers: int | WorkerOptions | None
) -> tuple[Iterator[dict[str, np.ndarray]], int | None]:
    """The entries of each trajectory that statistics need, in order; and the number of trajectories, or None."""
    pick = functools.partial(_pick, keys=keys)
    if isinstance(trajectories, Mapping):
        raise TypeError("Statistics need many trajectories, got a dict. For a single trajectory give a list of one.")
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


def _pick(traj: Mapping[str, Any], keys: tuple[str, ...]) -> dict[str, np.ndarray]:
    observation = get_entry(traj, "observation") if keys else {}
    leaves = {name: get_entry(observation, name, of="An observation") for name in keys}
    return {name: np.array(leaf, np.float32) for name, leaf in {"action": get_entry(traj, "action"), **leaves}.items()}


def load_statistics(path: str | os.PathLike[str], *, storage_options: Options | None = None) -> dict[str, Any]:
    """Statistics from a JSON file, ours or the original's, here or in a store.

    >>> import tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "statistics.json")
    >>> save_statistics(path, {"action": {"mean": [0.5], "std": [1.0]}, "num_transitions": 2, "num_trajectories": 1})
    >>> load_statistics(path)["action"]["mean"]
    [0.5]
    """
    return _checked(path, storage_options, needs_checksum=False)


def _checked(path: str | os.PathLike[str], options: Options | None, *, needs_checksum: bool) -> dict[str, Any]:
    with stores.open_stream(path, options) as file:
        data = file.read()
    try:
        found = sealed.parse_json(data, redact.show(path), needs_checksum=needs_checksum)
        wrong = _wrong(found)
        if wrong is not None:
            raise ValueError(wrong)
    except ValueError as error:
        raise ValueError(f"The statistics in {redact.show(path)} cannot be read: {error}. Remove the file.") from error
    return found


def _wrong(found: Mapping[str, Any]) -> str | None:
    """What is missing of statistics; None where they are as `summary` makes them. A file may hold other entries too."""
    action = found.get("action")
    if not isinstance(action, Mapping) or not {"mean", "std"} <= set(action):
        return "it has no mean and std of the action"
    for name, entries in found.items():
        if isinstance(entries, str):  # nobody writes texts: it may be a checksum whose name is damaged
            return f"it has an entry {name!r} that is a text"
        numbers = _NUMBERS & set(entries) if isinstance(entries, Mapping) and "mean" in entries else ()
        for key in sorted(numbers):
            try:
                fits = np.asarray(entries[key]).dtype.kind in "biuf"
            except ValueError:  # lists of different lengths
                fits = False
            if not fits:
                return f"{name}/{key} is {str(entries[key])[:80]!r} where numbers should be"
    return None


def save_statistics(
    path: str | os.PathLike[str], stats: Mapping[str, Any], *, storage_options: Options | None = None
) -> None:
    """Writes statistics to a JSON file, here or in a store, with a checksum in it; arrays become lists.

    The file has all of them, or, after an error, is what it was before.
    """
    folder, name = writing.file(path, storage_options)
    folder.write(name, sealed.json_bytes(_plain(stats)))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value

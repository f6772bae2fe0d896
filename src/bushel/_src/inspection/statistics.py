"""Statistics of any data set, for `bushel stats`: of each entry the mean, the deviation, extremes and quantiles."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from bushel._src.base import checks, shown_text
from bushel._src.base.options import MultiprocessingOptions
from bushel._src.base.shown_text import Progress, Shown
from bushel._src.datasets.base_dataset import wrap
from bushel._src.datasets.iter_dataset import IterDataset
from bushel._src.datasets.map_dataset import MapDataset
from bushel._src.graph.limit_and_rebatch import Limit, RepeatStream
from bushel._src.sources.protocol_buffers import decode_example
from bushel._src.trajectory.config_values import ModuleSpec
from bushel._src.trajectory.dataset_statistics import Quantiles, code_of, get_dataset_statistics
from bushel._src.trajectory.episode_builder import EpisodeBuilder
from bushel._src.trajectory.single_pass import is_endless
from bushel._src.view.padding import PaddingCounter, list_leaves, watch_padding
from bushel._src.view.targets import as_dataset

SHARES = {"p01": 0.01, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p99": 0.99}
_MOST_COLUMNS = 1024
"""An entry with more numbers than this has one statistic for all of them, and not one for each."""
_CHANNELS = (1, 3, 4)
_BUFFER_ROWS = 512
_BUDGET_BYTES = 1 << 26


class EntryStatistics:
    """The statistics of one entry of all elements.

    Numbers: one statistic for each place of a vector, for each channel of an image, or for all numbers of a larger
    array. Texts and bytes: of their lengths. Numbers that are not finite are counted, and left out otherwise.
    """

    def __init__(self) -> None:
        self.count = 0
        self.not_finite = 0
        self.kind = ""
        self._rows: list[np.ndarray] = []
        self._mean = self._squares = self._low = self._high = np.zeros(0)
        self._quantiles = Quantiles(0)
        self._width = 0

    def add(self, value: Any) -> None:
        """Add the entry of one element."""
        kind, rows = _as_rows(value)
        if not self.kind:
            self.kind, self._width = kind, rows.shape[1]
        elif "length" in (kind, self.kind) and kind != self.kind:
            raise ValueError("it is a text in some elements, and numbers in others")
        elif (kind, rows.shape[1]) != (self.kind, self._width):
            self._join_columns()
            rows = rows.reshape(-1, 1)
        self._rows.append(rows)
        if len(self._rows) >= _BUFFER_ROWS:
            self._flush()

    def _join_columns(self) -> None:
        """Go on with one statistic for all numbers, since elements have different numbers of them."""
        self._flush()
        self.kind, self._width = "values", 1
        if not self.count or len(self._mean) == 1:
            return
        width, means = len(self._mean), self._mean
        self._mean = means.mean(keepdims=True)
        self._squares = (self._squares + self.count * np.square(means - self._mean)).sum(keepdims=True)
        self._low, self._high = self._low.min(keepdims=True), self._high.max(keepdims=True)
        self._quantiles = self._quantiles.joined()
        self.count *= width

    def _flush(self) -> None:
        if not self._rows:
            return
        rows = np.concatenate(self._rows)
        self._rows = []
        finite = np.isfinite(rows)
        if not finite.all():
            self.not_finite += int((~finite).sum())
            rows = rows[finite.all(axis=1)]
        if not len(rows):
            return
        mean = rows.mean(axis=0)
        squares = np.square(rows - mean).sum(axis=0)
        low, high, count = rows.min(axis=0), rows.max(axis=0), len(rows)
        if not self.count:
            self._mean, self._squares, self._low, self._high = mean, squares, low, high
            self._quantiles = Quantiles(rows.shape[1], _BUDGET_BYTES)
        else:
            whole = self.count + count
            difference = mean - self._mean
            self._squares = self._squares + squares + np.square(difference) * (self.count * count / whole)
            self._mean = self._mean + difference * (count / whole)
            self._low, self._high = np.minimum(self._low, low), np.maximum(self._high, high)
        self.count += count
        self._quantiles.add(rows.astype(np.float32))

    def summary(self) -> dict[str, Any]:
        """Return the statistics as plain data: lists, or single numbers for an entry of one number."""
        self._flush()
        found: dict[str, Any] = {"of": self.kind, "count": self.count}
        if self.not_finite:
            found["not finite"] = self.not_finite
        if self.count:
            parts = {
                "mean": self._mean,
                "std": np.sqrt(self._squares / self.count),
                "min": self._low,
                "max": self._high,
            } | dict(zip(SHARES, self._quantiles.at(list(SHARES.values()))))
            single = self.kind not in ("vector", "channels")
            found |= {name: value.tolist()[0] if single else value.tolist() for name, value in parts.items()}
        return found


def _as_rows(value: Any) -> tuple[str, np.ndarray]:
    """Return what is measured of an entry, and its numbers as rows."""
    if isinstance(value, (str, bytes)):
        return "length", np.array([[len(value)]], np.float64)
    array = np.asarray(value)
    if array.dtype.kind in "SU":
        return "length", np.char.str_len(array).reshape(-1, 1).astype(np.float64)
    is_number = array.dtype.kind in "biuf" or array.dtype.type.__module__ == "ml_dtypes"  # bfloat16, float8, int4
    if not is_number:
        raise TypeError(f"it is {array.dtype}, which has no statistics")
    numbers = array.astype(np.float64)
    if array.ndim >= 3 and array.shape[-1] in _CHANNELS:
        return "channels", numbers.reshape(-1, array.shape[-1])
    if array.ndim == 1 and 0 < len(array) <= _MOST_COLUMNS:
        return "vector", numbers.reshape(1, -1)
    return ("value" if array.ndim == 0 else "values"), numbers.reshape(-1, 1)


def measure_elements(
    dataset: Any, *, limit: int | None = None, workers: int = 0, progress: Shown = True
) -> dict[str, Any]:
    """Return the statistics of all entries of a data set.

    Args:
      dataset: a MapDataset or an IterDataset. Records that are a `tf.train.Example`, or JSON, are decoded.
      limit: only the first elements.
      workers: worker processes that compute the elements; 0 computes them here.
      progress: whether to show a bar, or a function of (done, total).
    """
    stream, total = _open_stream(dataset, limit, workers)
    entries: dict[str, EntryStatistics] = {}
    left_out: dict[str, str] = {}
    count, padding = 0, PaddingCounter()
    with Progress("statistics", total, unit="elements", shown=progress) as bar, iter(stream) as elements:
        for element in elements:
            count += 1
            for name, value in list_leaves(padding.add(_decode(element))):
                if name in left_out:
                    continue
                try:
                    entries.setdefault(name, EntryStatistics()).add(value)
                except (TypeError, ValueError) as error:
                    left_out[name] = str(error)
                    entries.pop(name, None)
            bar.show(count)
    summaries = {name: entry.summary() for name, entry in entries.items()}
    for name, cells in padding.leaves.items():
        if name in summaries:
            summaries[name] |= {"cells": cells.total, "real": cells.share}
    found: dict[str, Any] = {"num_elements": count, "entries": summaries}
    return found | ({"left out": left_out} if left_out else {})


def _has_no_end(node: Any) -> bool:
    """Return whether a pipeline never ends, also where its length is not known since a step drops elements."""
    if isinstance(node, Limit):
        return False
    if node.length is not None:
        return checks.is_endless(node.length)
    if isinstance(node, RepeatStream) and node.num_epochs is None:
        return True
    return bool(node.parents) and all(map(_has_no_end, node.parents))


_ENDLESS = (
    "Statistics of an endless data set cannot be computed. Look at its first elements: `--limit 1000` (in Python "
    "`limit=1000`), or leave out `repeat()`."
)


def _open_stream(dataset: Any, limit: int | None, workers: int) -> tuple[IterDataset[Any], int | None]:
    total: int | None = None
    if isinstance(dataset, MapDataset):
        if limit is None and is_endless(dataset):
            raise ValueError(_ENDLESS)
        dataset = dataset if limit is None else dataset[:limit]
        total = len(dataset)
        stream = dataset.to_iter_dataset()
    else:
        if limit is None and _has_no_end(dataset._node):
            raise ValueError(_ENDLESS)
        stream = dataset if limit is None else dataset.limit(limit)
        total = limit
    watched = watch_padding(stream._node)
    stream = stream if watched is None else wrap(watched)
    return (stream.mp_prefetch(MultiprocessingOptions(num_workers=workers)) if workers else stream), total


def _decode(element: Any) -> Any:
    """Return a record of bytes as what it holds: the features of a tf.train.Example, or JSON."""
    if not isinstance(element, bytes):
        return element
    try:
        if features := decode_example(element):
            return {name: value[0] if len(value) == 1 else value for name, value in features.items()}
    except (ValueError, LookupError, ArithmeticError):
        pass
    try:
        value = json.loads(element) if element[:1] == b"{" else None
    except ValueError:
        value = None
    return value if isinstance(value, dict) else element


def measure_episodes(
    builder: EpisodeBuilder,
    *,
    split: str | None = None,
    standardize_fn: str | None = None,
    keys: list[str] | None = None,
    workers: int | None = None,
    progress: Shown = True,
) -> dict[str, Any]:
    """Return the statistics of a robot data set, as training computes them: see
    `bushel.trajectory.get_dataset_statistics`.

    Args:
      builder: the data set.
      split: such as "train[:95%]"; by default the one for training.
      standardize_fn: a function of a raw trajectory, as "module:name".
      keys: the entries of the observation; by default all that are one vector of numbers per step.
      workers: processes that compute; by default the work begins in this process.
      progress: whether to show a bar, or a function of (done, total).
    """
    chosen = split or builder.default_splits()[0].partition("[")[0]
    source = builder.episodes(chosen)
    function: Callable[..., Any] | None = None
    if standardize_fn is not None:
        function = ModuleSpec.instantiate(ModuleSpec.create(standardize_fn))
    episodes: Any = MapDataset.source(source)
    if function is not None:
        episodes = episodes.map(function)
    names = keys if keys is not None else find_proprio_keys(episodes[0]) if len(episodes) else []
    describe = functools.partial(json.dumps, sort_keys=True, default=str)
    return get_dataset_statistics(
        episodes,
        names,
        ["bushel stats", describe(source.fingerprint()), code_of(function), *names],
        progress=progress,
        workers=MultiprocessingOptions(num_workers=workers) if workers else None,
    )


def find_proprio_keys(episode: Mapping[str, Any]) -> list[str]:
    """Return the entries of an observation that are one vector of numbers for each step."""
    found = []
    for name, value in dict(episode.get("observation") or {}).items():
        if isinstance(value, np.ndarray) and value.dtype.kind in "iuf" and value.ndim == 2:
            found.append(str(name))
    return found


def show_table(statistics: Mapping[str, Any]) -> str:
    """Return the statistics as a table, with ranges where an entry has several numbers."""
    head, rows = list_rows(statistics)
    notes = [f"{name} is left out: {why}." for name, why in statistics.get("left out", {}).items()]
    for name, entry in statistics.get("entries", {}).items():
        if count := entry.get("not finite"):
            whole = {"vector": ", with the vectors that hold them", "channels": ", with their pixels"}
            notes.append(f"{name}: {count:,} numbers are not finite, and are left out{whole.get(entry['of'], '')}.")
    if statistics.get("num_elements") == 0:
        return "There are no elements."
    return "\n".join([shown_text.as_text(head, rows, left=2), *notes])


def list_rows(statistics: Mapping[str, Any]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the head and the rows of a table of statistics."""
    entries: Mapping[str, Any] = (
        statistics["entries"]
        if "entries" in statistics
        else {name: value for name, value in statistics.items() if isinstance(value, Mapping)}
    )
    names = ("mean", "std", "min", "p01", "p50", "p99", "max")
    present = [name for name in names if any(name in entry for entry in entries.values())]
    is_padded = any("real" in entry for entry in entries.values())
    rows = [
        (
            key,
            str(entry.get("of", "vector")),
            *(_show_numbers(entry.get(name)) for name in present),
            *([f"{entry['real']:.2%}" if "real" in entry else ""] if is_padded else []),
        )
        for key, entry in entries.items()
    ]
    return ("entry", "of", *present, *(["real"] if is_padded else [])), rows


def _show_numbers(value: Any) -> str:
    if value is None:
        return ""
    numbers = np.asarray(value, np.float64).ravel()
    if not len(numbers) or not math.isfinite(float(numbers.sum())):
        return "nan"
    low, high = float(numbers.min()), float(numbers.max())
    return f"{low:.4g}" if low == high else f"{low:.4g}..{high:.4g}"


def measure_target(given: Any, **arguments: Any) -> dict[str, Any]:
    """Return the statistics of what a target names: episodes as training computes them, anything else entry by
    entry.
    """
    if isinstance(given, EpisodeBuilder):
        names = ("split", "standardize_fn", "keys", "workers", "progress")
        return measure_episodes(given, **{name: value for name, value in arguments.items() if name in names})
    if arguments.get("standardize_fn") or arguments.get("keys"):
        raise ValueError("--standardize-fn and --key are for robot data sets; this is none.")
    chosen = {name: value for name, value in arguments.items() if name in ("limit", "workers", "progress")}
    chosen["workers"] = chosen.get("workers") or 0
    return measure_elements(as_dataset(given, arguments.get("split")), **chosen)

"""`LeRobotFolder`: what the folder `meta` of a LeRobot data set says: features, names of files, codes of depth.

Rows and videos are read by other modules.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import glob
import hashlib
import io
import json
import math
import os
import re
import string
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np

from bushel._src.base import redact
from bushel._src.base.errors import BushelWarning, DamagedFile
from bushel._src.base.late_imports import import_package
from bushel._src.base.public import public
from bushel._src.base.state_names import in_states
from bushel._src.sources import file_access, local_files, paths
from bushel._src.sources.parquet import remember_footer
from bushel._src.sources.paths import Options, Path

_LARGEST_CODE = 4095
_LARGEST_MM = 65535
PIXEL_FORMAT = "gray12le"
"""The pixel format of frames that hold codes, as FFmpeg calls it."""


@in_states("depth_code")
@dataclasses.dataclass(frozen=True)
class DepthCode:
    """What the codes of a depth camera mean. The defaults are those of lerobot.

    Attributes:
      min_m, max_m: the depth of the first and of the last code, in metres.
      shift_m: what is added before the logarithm, in metres.
      use_log: whether codes are steps of the logarithm of the depth, and not of the depth itself.
    """

    min_m: float = 0.01
    max_m: float = 10.0
    shift_m: float = 3.5
    use_log: bool = True

    @functools.cached_property
    def millimetres(self) -> np.ndarray:
        """The depth of each code in millimetres, uint16: what lerobot's `dequantize_depth` computes, in float32."""
        low, high = self.min_m, self.max_m
        if self.use_log:
            low, high = float(np.log(low + self.shift_m)), float(np.log(high + self.shift_m))
        # Codes may be larger than the largest one only in damaged videos.
        codes = np.minimum(np.arange(1 << 16), _LARGEST_CODE)
        depth = np.multiply(codes, (high - low) / _LARGEST_CODE, dtype=np.float32)
        depth += np.float32(low)
        if self.use_log:
            # In float64, and then rounded: NumPy's exponential of float32 differs from PyTorch's for some codes.
            depth = np.exp(depth.astype(np.float64)).astype(np.float32) - np.float32(self.shift_m)
        depth = np.clip(depth, np.float32(self.min_m), np.float32(self.max_m)) * np.float32(1000)
        return np.clip(np.rint(depth), 0, _LARGEST_MM).astype(np.uint16)


def read_depth_code(info: Mapping[str, Any]) -> DepthCode | None:
    """Return the code that a feature's `info` describes; None if its videos do not hold 12 bits, and so no such
    code.
    """
    stored = info.get("video.pix_fmt", PIXEL_FORMAT)
    if "12" not in str(stored):
        return None
    names = {"depth_min": "min_m", "depth_max": "max_m", "shift": "shift_m"}
    given = {new: float(info[f"video.{old}"]) for old, new in names.items() if info.get(f"video.{old}") is not None}
    code = DepthCode(use_log=bool(info.get("video.use_log", True)), **given)
    if not code.min_m < code.max_m or (code.use_log and code.min_m + code.shift_m <= 0):
        raise ValueError(f"Its depth code cannot be right: {code}.")
    return code


def is_depth(entry: Mapping[str, Any]) -> bool:
    """Return whether a feature of `meta/info.json` is depth."""
    infos = [entry.get(name) for name in ("info", "video_info")]
    return any(
        info.get(key) for info in infos if isinstance(info, Mapping) for key in ("is_depth_map", "video.is_depth_map")
    )


_WIDTH = re.compile(r"0?([1-9][0-9]?)?d?")
_LONGEST = 4096
"""Characters of a path. No file system has longer ones."""


def fill_template(template: str, **values: int | str) -> str:
    """Return the name of a file. Raise ValueError if the template is not one of a data set.

    >>> fill_template("chunk-{chunk_index:03d}/{video_key}.mp4", chunk_index=2, video_key="front")
    'chunk-002/front.mp4'

    Args:
      template: text with fields in braces. A width has at most two digits.
      **values: what the fields may be.
    """
    try:
        parts = list(string.Formatter().parse(template))
    except (TypeError, ValueError) as error:
        raise ValueError(f"The template {_shorten(template)} cannot be read: {error}.") from None
    found = []
    for text, field, spec, conversion in parts:
        found.append(text)
        if field is None:
            continue
        if field not in values:
            raise ValueError(
                f"The template {_shorten(template)} has the field {_shorten(field)}; it may have "
                f"{', '.join(map(repr, values))}."
            )
        if conversion or not _WIDTH.fullmatch(spec or "") or (spec and isinstance(values[field], str)):
            raise ValueError(
                f"The template {_shorten(template)} formats {field!r} by {_shorten(spec or conversion or '')}; only "
                "a width of at most 99 digits, such as ':03d', is known."
            )
        found.append(format(values[field], spec or ""))
    name = "".join(found)
    if len(name) > _LONGEST:
        raise ValueError(f"The template {_shorten(template)} makes a path of {len(name)} characters.")
    if ".." in name.split("/"):
        raise ValueError(f"The template {_shorten(template)} leads out of the folder of the data set.")
    return name


def _shorten(text: object) -> str:
    shown = repr(text)
    return shown if len(shown) <= 120 else f"{shown[:100]}... ({len(shown)} characters)"


T = TypeVar("T")

DEFAULT_COLUMNS = ("timestamp", "frame_index", "episode_index", "index", "task_index")
_UNKNOWN = "unknown"
"""The dtype of features that are left out: those of later versions of the format."""
_EPISODES = "meta/episodes/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
_DATA = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"


@public("bushel.trajectory")
@in_states("lerobot_feature")
@dataclasses.dataclass(frozen=True)
class LeRobotFeature:
    """A column of the data set.

    Attributes:
      name: its name, such as "observation.state".
      dtype: the name of a NumPy dtype, or "string", "image", "video" or "language" (a list of messages in each row).
      shape: the shape of one entry. Of images it is (height, width, channels), also where the file says it otherwise.
      depth: for depth in videos, what the codes of its frames mean.
      names: of a row of numbers, what each of them is, such as the names of joints; empty if the file does not say it.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    depth: DepthCode | None = None
    names: tuple[str, ...] = ()

    @property
    def is_picture(self) -> bool:
        """Whether an entry is an image or a frame of a video."""
        return self.dtype in ("image", "video")

    @property
    def is_number(self) -> bool:
        """Whether an entry is an array of numbers."""
        return not self.is_picture and self.dtype not in ("string", "language")


def _list_names(names: Any, shape: tuple[int, ...]) -> tuple[str, ...]:
    """Return the names of the numbers of a row: from a list, or from lists by group as in {"motors": [...]}.

    Else none.
    """
    if isinstance(names, Mapping):
        names = [name for group in names.values() if isinstance(group, list) for name in group]
    fits = isinstance(names, list) and len(shape) == 1 and len(names) == shape[0]
    return tuple(names) if fits and all(isinstance(name, str) for name in names) else ()


@dataclasses.dataclass(frozen=True)
class VideoSpan:
    """Where the frames of one episode and camera are: a file, and the span of time in it, in seconds.

    Attributes:
      path: the name of the file in the folder of the data set.
      start_s: when the first frame is shown.
      stop_s: when the next episode begins, as `meta` says; None if it does not say.
    """

    path: str
    start_s: float
    stop_s: float | None = None


def _download(path: Any) -> str:
    """Return how to get a data set of the Hugging Face Hub, if a path looks like its name."""
    text = os.fspath(path)
    if not re.fullmatch(r"[\w-]+/[\w.-]+", text) or os.path.exists(text):
        return ""
    return (
        " To get a data set of the Hugging Face Hub, write "
        f'`huggingface_hub.snapshot_download("{text}", repo_type="dataset")`: it returns the folder.'
    )


@in_states("LeRobotFolder")
class LeRobotFolder:
    """The description of a LeRobot data set, on disk or in a store.

    >>> LeRobotFolder("nowhere")
    Traceback (most recent call last):
    FileNotFoundError: There is no LeRobot data set: nowhere holds no meta/info.json.

    Attributes:
      path: its folder.
      info: the content of `meta/info.json`.
      version: 2 or 3.
      fps: rows per second.
      features: its columns by name. Kinds of columns that are not known are left out.
    """

    def __init__(self, path: Path, *, storage_options: Options | None = None):
        self.path = paths.normalize_path(path).rstrip("/")
        self.options = redact.Options(storage_options or {})
        try:
            self.info: dict[str, Any] = self._json("meta/info.json")
        except (FileNotFoundError, NotADirectoryError):
            raise FileNotFoundError(
                f"There is no LeRobot data set: {redact.show(self.path)} holds no meta/info.json.{_download(path)}"
            ) from None
        text = str(self.info.get("codebase_version", ""))
        if not text.startswith(("v2.", "v3.")):
            raise ValueError(
                f"{self._show('meta/info.json')}: codebase_version is {text!r}; v2.0, v2.1 and v3.0 can be read. "
                "lerobot has scripts that convert older data sets."
            )
        self.version = int(text[1])
        self.fps = float(self._need("fps"))
        if not 0 < self.fps < math.inf:
            raise ValueError(f"{self._show('meta/info.json')}: fps must be above 0, it is {self.fps}.")
        features = self._need("features")
        if not isinstance(features, Mapping):
            raise ValueError(f"{self._show('meta/info.json')}: features must be a dict, it is {type(features)}.")
        self.features = {name: self._feature(name, entry) for name, entry in features.items()}
        self.features = {name: feature for name, feature in self.features.items() if feature.dtype != _UNKNOWN}
        self._check_templates()

    def _check_templates(self) -> None:
        """Raise DamagedFile if a template of names of files is not one of this version of the format."""
        fields = ("episode_chunk", "episode_index") if self.version == 2 else ("chunk_index", "file_index")
        numbers = dict.fromkeys(fields, 0)
        if self.info.get("data_path"):
            self._fill("data_path", self.info["data_path"], **numbers)
        for camera in self.cameras if self.info.get("video_path") else ():
            self._fill("video_path", self.info["video_path"], video_key=camera.name, **numbers)

    def _feature(self, name: str, entry: Any) -> LeRobotFeature:
        try:
            dtype, shape = str(entry["dtype"]), tuple(int(size) for size in entry["shape"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"{self._show('meta/info.json')}: the feature {name!r} has no dtype and shape: {entry!r}."
            ) from error
        depth = None
        if dtype == "video" and is_depth(entry):
            try:
                depth = read_depth_code(entry.get("info") or entry.get("video_info") or {})
            except (TypeError, ValueError) as error:
                raise ValueError(
                    f"{self._show('meta/info.json')}: the depth of the feature {name!r} cannot be decoded. {error}"
                ) from error
            if depth is None:
                warnings.warn(
                    f"{self._show('meta/info.json')}: the feature {name!r} is depth in a video of 8 bits. How it is "
                    "encoded is not known, so it is left out.",
                    BushelWarning,
                    stacklevel=4,
                )
                return LeRobotFeature(name, _UNKNOWN, shape)
        if dtype in ("image", "video"):
            names = entry.get("names") or ()
            first = next(iter(names), None) if isinstance(names, list) else None
            if len(shape) == 3 and (first in ("channels", "channel", "rgb") or (first is None and shape[0] in (1, 3))):
                shape = (*shape[1:], shape[0])
        elif dtype not in ("string", "language") and not _is_number(dtype):
            warnings.warn(
                f"{self._show('meta/info.json')}: the feature {name!r} has the dtype {dtype!r}, which is not known, so "
                "it is left out.",
                BushelWarning,
                stacklevel=4,
            )
            dtype = _UNKNOWN
        return LeRobotFeature(name, dtype, shape, depth, _list_names(entry.get("names"), shape))

    def _need(self, name: str) -> Any:
        if self.info.get(name) is None:
            raise ValueError(f"{self._show('meta/info.json')} has no {name!r}.")
        return self.info[name]

    @property
    def cameras(self) -> list[LeRobotFeature]:
        """The features whose frames are in videos."""
        return [feature for feature in self.features.values() if feature.dtype == "video"]

    # Files.

    def _show(self, name: str) -> str:
        return f"{redact.show(self.path)}/{name}"

    def address(self, name: str) -> str:
        """Return the path or URL of a file of the data set."""
        return f"{self.path}/{name}"

    def _read(self, name: str) -> bytes:
        file = file_access.open_file(self.address(name), self.options)
        return file.read(0, file.size)

    def _json(self, name: str) -> Any:
        return self._parse(name, json.loads, self._read(name))

    def _lines(self, name: str) -> list[Any]:
        text = self._parse(name, lambda data: data.decode("utf-8"), self._read(name))
        return [self._parse(name, json.loads, line) for line in text.splitlines() if line.strip()]

    def _parse(self, name: str, parse: Callable[[Any], T], data: Any) -> T:
        try:
            return parse(data)
        except ValueError as error:
            raise DamagedFile(f"{self._show(name)} cannot be read: {error}") from error

    def parquet(self, name: str) -> Any:
        """Return a Parquet file of the data set, opened by pyarrow. Errors name the file."""
        parquet: Any = import_package("pyarrow.parquet", "parquet", "LeRobot data sets")
        arrow: Any = import_package("pyarrow", "parquet", "LeRobot data sets")
        file = file_access.open_file(self.address(name), self.options)
        try:
            found = parquet.ParquetFile(io.BufferedReader(local_files.FileStream(file), 1 << 16))
        except (arrow.ArrowException, OSError) as error:
            raise DamagedFile(
                f"{self._show(name)} is not a complete Parquet file. A recording that was stopped before finalize() "
                f"leaves such files. pyarrow says: {error}"
            ) from error
        remember_footer(found, file)
        return found

    def _list(self, template: str, pattern: str) -> list[str]:
        """Return the names of the files that a pattern finds.

        Of a web server, which cannot list, files numbered in order.
        """
        if not paths.is_url(self.path):
            return sorted(glob.glob(pattern, root_dir=self.path))  # the folder's own name may hold signs of patterns
        if not self.path.startswith(("http://", "https://")):
            try:
                found = file_access.find_files(self.address(pattern), self.options)
            except FileNotFoundError:
                return []
            return [address.removeprefix(f"{self.path}/") for address in found]
        return list(self._probe(template))

    def _probe(self, template: str) -> Iterator[str]:
        chunk, number = 0, 0
        while True:
            name = self._fill("data_path", template, chunk_index=chunk, file_index=number)
            if self._exists(name):
                yield name
                number += 1
            elif number:
                chunk, number = chunk + 1, 0
            else:
                return

    def fingerprint(self) -> list[Any]:
        """Return the versions of the files of `meta`, and of local rows and videos.

        Of a store only `meta` is asked for.
        """
        versions = file_access.fingerprint_files([self.address(name) for name in self._meta_files()], self.options)
        if paths.is_url(self.path):
            return ["lerobot", versions]
        digest = hashlib.blake2b(digest_size=16)
        for name in dict.fromkeys([*self.data_files.values(), *self._video_names()]):
            try:
                facts = os.stat(self.address(name))
                digest.update(f"{name} {facts.st_size} {facts.st_mtime_ns}\n".encode())
            except OSError:
                digest.update(f"{name} is missing\n".encode())
        return ["lerobot", versions, digest.hexdigest()]

    def _video_names(self) -> Iterator[str]:
        for episode in self.episode_facts:
            for camera in self.cameras:
                with contextlib.suppress(ValueError, KeyError, IndexError):
                    yield self.find_video_span(episode, camera.name).path

    def _meta_files(self) -> list[str]:
        rest = self._episode_files if self.version == 3 else ["meta/episodes.jsonl"]
        tasks = "meta/tasks.parquet" if self.version == 3 else "meta/tasks.jsonl"
        return ["meta/info.json", *([tasks] if self._exists(tasks) else []), *rest]

    @functools.cached_property
    def _episode_files(self) -> list[str]:
        return self._list(_EPISODES, "meta/episodes/*/*.parquet")

    # Tasks and episodes.

    @functools.cached_property
    def tasks(self) -> dict[int, str]:
        """The texts of tasks by their `task_index`."""
        if self.version == 2:
            lines = self._lines("meta/tasks.jsonl")
            return self._check_tasks("meta/tasks.jsonl", [(line["task_index"], line["task"]) for line in lines])
        table = self.parquet("meta/tasks.parquet").read()
        names = [name for name in table.column_names if name != "task_index"]
        if "task_index" not in table.column_names or not names:
            raise DamagedFile(f"{self._show('meta/tasks.parquet')} has the columns {table.column_names}; it needs two.")
        text = "task" if "task" in names else names[-1]
        pairs = zip(table["task_index"].to_pylist(), table[text].to_pylist())
        return self._check_tasks("meta/tasks.parquet", list(pairs))

    def _check_tasks(self, name: str, pairs: list[tuple[Any, Any]]) -> dict[int, str]:
        """Return the texts by number. A number with two texts, or without one, raises DamagedFile."""
        tasks: dict[int, str] = {}
        for number, text in pairs:
            if not isinstance(number, int) or not isinstance(text, str) or tasks.get(number, text) != text:
                raise DamagedFile(
                    f"{self._show(name)}: the task with task_index {number!r} is {text!r}"
                    f"{f' and {tasks[number]!r}' if number in tasks else ''}; each number needs one text."
                )
            tasks[number] = text
        return tasks

    @functools.cached_property
    def episode_facts(self) -> dict[int, dict[str, Any]]:
        """What `meta` says of each episode, by `episode_index`, without statistics."""
        if self.version == 2:
            lines = self._lines("meta/episodes.jsonl")
            return {int(line["episode_index"]): line for line in lines}
        facts: dict[int, dict[str, Any]] = {}
        for name in self._episode_files:
            file = self.parquet(name)
            wanted = [column for column in file.schema_arrow.names if not column.startswith("stats/")]
            if "episode_index" not in wanted:
                raise DamagedFile(f"{self._show(name)} has no column episode_index; it has {wanted}.")
            facts |= {int(row["episode_index"]): row for row in file.read(columns=wanted).to_pylist()}
        return dict(sorted(facts.items()))

    @functools.cached_property
    def data_files(self) -> dict[int, str]:
        """The Parquet files with rows, in order: by episode in version 2, numbered in version 3."""
        template = self.info.get("data_path") or _DATA
        if self.version == 3:
            return dict(enumerate(self._list(template, "data/*/*.parquet")))
        chunks = int(self.info.get("chunks_size") or 1000)
        return {
            episode: self._fill("data_path", template, episode_chunk=episode // chunks, episode_index=episode)
            for episode in self.episode_facts
        }

    def find_video_span(self, episode: int, camera: str) -> VideoSpan:
        """Return where the frames of an episode and camera are. Raise ValueError where `meta` does not say it."""
        template = self.info.get("video_path")
        if not template:
            raise ValueError("meta/info.json has no video_path.")
        if self.version == 2:
            chunk = episode // int(self.info.get("chunks_size") or 1000)
            values_of_path = {"episode_chunk": chunk, "video_key": camera, "episode_index": episode}
            return VideoSpan(self._fill("video_path", template, **values_of_path), 0.0)
        facts = self.episode_facts.get(episode)
        if facts is None:
            raise ValueError("meta/episodes has no row for this episode.")
        values: list[float] = []
        for part in ("chunk_index", "file_index", "from_timestamp"):
            value = facts.get(f"videos/{camera}/{part}")
            if not isinstance(value, (int, float)) or not math.isfinite(value):
                raise ValueError(
                    f"meta/episodes has the value {value} for videos/{camera}/{part}, which is not a finite number."
                )
            values.append(value)
        values_of_path = {"video_key": camera, "chunk_index": int(values[0]), "file_index": int(values[1])}
        stop = facts.get(f"videos/{camera}/to_timestamp")
        stop_s = float(stop) if isinstance(stop, (int, float)) and math.isfinite(stop) else None
        return VideoSpan(self._fill("video_path", template, **values_of_path), float(values[2]), stop_s)

    def _fill(self, name: str, template: Any, **values: int | str) -> str:
        """Return the name of a file by a template of `meta/info.json`. An unusual template raises DamagedFile."""
        try:
            return fill_template(template, **values)
        except ValueError as error:
            raise DamagedFile(f"{self._show('meta/info.json')}, {name}: {error}") from None

    # Statistics and splits.

    def statistics(self) -> dict[str, dict[str, np.ndarray]]:
        """Return statistics by feature as the data set has them: min, max, mean, std, count and others.

        Version 2.1 has them by episode; they are put together here. An empty dict if the data set has none.
        """
        try:
            if self._exists("meta/stats.json"):
                found = self._json("meta/stats.json")
                return {name: {key: np.asarray(value) for key, value in one.items()} for name, one in found.items()}
            lines = self._lines("meta/episodes_stats.jsonl")
        except FileNotFoundError:
            return {}
        return aggregate_statistics([line["stats"] for line in lines])

    def _exists(self, name: str) -> bool:
        options = {key: value for key, value in self.options.items() if not key.startswith("cache_")}  # makes no copy
        try:
            file_access.open_file(self.address(name), options)
        except FileNotFoundError:
            return False
        return True

    @property
    def splits(self) -> dict[str, list[int]]:
        """The episodes of each split, as `meta/info.json` says, without those that `meta` does not have.

        A data set without splits, or whose only split is out of date, has the split "train" with all episodes.
        """
        known = list(self.episode_facts)
        splits = {}
        for name, text in dict(self.info.get("splits") or {}).items():
            low, _, high = str(text).partition(":")
            if low.strip().isdecimal() and high.strip().isdecimal():
                splits[str(name)] = [episode for episode in known if int(low) <= episode < int(high)]
        return {"train": known} if len(splits) < 2 else splits

    def forget(self) -> None:
        """Drop what was read of the episodes, which may be many. It is read again when it is needed."""
        for name in ("episode_facts", "data_files", "_episode_files"):
            vars(self).pop(name, None)

    def __getstate__(self) -> dict[str, Any]:
        dropped = ("episode_facts", "data_files", "_episode_files", "tasks")
        return {name: value for name, value in vars(self).items() if name not in dropped}

    def __repr__(self) -> str:
        return f"LeRobotFolder({redact.show(self.path)}: v{self.version}, {self.fps:g} fps)"


def _is_number(dtype: str) -> bool:
    """Return whether a dtype of `meta/info.json` is one of numbers."""
    try:
        return np.dtype(dtype).kind in "biuf"
    except TypeError:
        return False


def aggregate_statistics(parts: list[Mapping[str, Any]]) -> dict[str, dict[str, np.ndarray]]:
    """Return the statistics of all episodes together, from those of each: min, max, mean, std and count.

    >>> parts = [{"x": {"mean": [m], "std": [0.0], "min": [m], "max": [m], "count": [2]}} for m in (1.0, 3.0)]
    >>> aggregate_statistics(parts)["x"]["std"]
    array([1.])
    """
    totals: dict[str, dict[str, np.ndarray]] = {}
    for name in dict.fromkeys(name for part in parts for name in part):
        ones = [{key: np.asarray(value, np.float64) for key, value in p[name].items()} for p in parts if name in p]
        counts = np.array([float(one["count"].ravel()[0]) for one in ones])
        weights = (counts / counts.sum()).reshape(-1, *[1] * ones[0]["mean"].ndim)
        means = np.stack([one["mean"] for one in ones])
        mean = (weights * means).sum(axis=0)
        spread = np.stack([one["std"] for one in ones]) ** 2 + (means - mean) ** 2
        totals[name] = {
            "min": np.min([one["min"] for one in ones], axis=0),
            "max": np.max([one["max"] for one in ones], axis=0),
            "mean": mean,
            "std": np.sqrt((weights * spread).sum(axis=0)),
            "count": np.array([int(counts.sum())]),
        }
    return totals

"""Writes `meta/` of a LeRobot v3 data set: features, episodes, tasks and statistics.

It also makes the rows of the Parquet files. `dataset_folder.py` reads such a folder.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from bushel._src.base.errors import writing
from bushel._src.base.late_imports import import_package
from bushel._src.sources.folders import Folder
from bushel._src.trajectory.conversion_table import Shard
from bushel._src.trajectory.encoded_images import read_all
from bushel._src.trajectory.episodes import Episodes
from bushel._src.trajectory.pixels import MAGIC, unpack_pixels
from bushel._src.trajectory.rlds.writer import encode_image
from bushel._src.trajectory.video_encoding import Encoding, choose_pixel_format

QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}
_SAMPLED_PIXELS = 150


def summarize_numbers(values: np.ndarray) -> dict[str, Any]:
    """Return the statistics of rows of numbers, as lists."""
    rows = values.reshape(len(values), -1) if values.ndim < 2 else values
    exact = rows.astype(np.float64)
    found = {
        "min": rows.min(axis=0),
        "max": rows.max(axis=0),
        "mean": exact.mean(axis=0),
        "std": exact.std(axis=0),
    }
    quantiles = np.quantile(exact, list(QUANTILES.values()), axis=0)
    statistics = {name: value.tolist() for name, value in (found | dict(zip(QUANTILES, quantiles))).items()}
    return {**statistics, "count": [len(values)]}


def sample_frames(count: int) -> np.ndarray:
    """Return which frames of an episode count for the statistics of images: all up to 100, then fewer and fewer."""
    wanted = min(count, min(max(100, int(count**0.75)), 10_000))
    return np.round(np.linspace(0, count - 1, wanted)).astype(np.int64)


def count_pixels(pixels: np.ndarray) -> np.ndarray:
    """Return a histogram of each channel of an image, int64 (3, 256). Of large images only every n-th pixel counts."""
    stride = max(1, max(pixels.shape[:2]) // _SAMPLED_PIXELS)
    some = pixels[::stride, ::stride]
    return np.stack([np.bincount(some[..., channel].ravel(), minlength=256) for channel in range(3)])


def summarize_pixels(histogram: np.ndarray, frames: int) -> dict[str, Any]:
    """Return the statistics of images from their histogram, between 0 and 1, with the shape (3, 1, 1)."""
    values = np.arange(256) / 255.0
    counts = histogram.astype(np.float64)
    total = counts.sum(axis=1)
    mean = counts @ values / total
    deviation = np.sqrt(np.maximum(counts @ values**2 / total - mean**2, 0))
    below = np.cumsum(histogram, axis=1)
    found: dict[str, Any] = {
        "min": values[(histogram > 0).argmax(axis=1)],
        "max": values[255 - (histogram[:, ::-1] > 0).argmax(axis=1)],
        "mean": mean,
        "std": deviation,
    }
    for name, share in QUANTILES.items():
        found[name] = values[(below >= share * total[:, None]).argmax(axis=1)]
    return {name: value.reshape(3, 1, 1).tolist() for name, value in found.items()} | {"count": [frames]}


DATA_PATH = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEO_PATH = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
CHUNK = 1000
"""How many files a folder has at most."""
_DATA_MB, _VIDEO_MB = 100, 200


def make_paths(template: str, files: Iterable[int], camera: str = "") -> list[str]:
    """Return the names of files by their numbers."""
    return [
        template.format(video_key=camera, chunk_index=number // CHUNK, file_index=number % CHUNK) for number in files
    ]


@dataclasses.dataclass(frozen=True, eq=False)
class LeRobotColumns:
    """Which columns of a table are videos, images in the rows, numbers and texts, by the names of their features."""

    cameras: dict[str, Any]
    stills: dict[str, Any]
    numbers: dict[str, Any]
    texts: dict[str, Any]
    task: Any
    default_task: str

    def arrow_types(self) -> dict[str, Any]:
        """Return the type of each column of the rows."""
        pa: Any = import_package("pyarrow", "parquet", "LeRobot data sets")
        image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        types: dict[str, Any] = dict.fromkeys(self.stills, image)
        for name, column in self.numbers.items():
            dtype, shape = _describe_numbers(column)
            kind = pa.from_numpy_dtype(dtype)
            if len(shape) == 1 and shape[0] > 1:
                kind = pa.list_(kind, shape[0])
            else:
                for _ in shape if len(shape) > 1 else ():
                    kind = pa.list_(kind)
            types[name] = kind
        types |= dict.fromkeys(self.texts, pa.string())
        types["timestamp"] = pa.float32()
        return types | dict.fromkeys(("frame_index", "episode_index", "index", "task_index"), pa.int64())

    def schema(self) -> Any:
        """Return the schema of the rows."""
        return import_package("pyarrow", "parquet", "LeRobot data sets").schema(list(self.arrow_types().items()))

    def features(self, shapes: dict[str, list[int]], fps: float, encoding: Encoding | None) -> dict[str, Any]:
        """Return the features in `info.json`."""
        features: dict[str, Any] = {}
        for camera, (height, width, channels) in shapes.items():
            features[camera] = {
                "dtype": "image" if encoding is None else "video",
                "shape": [height, width, channels],
                "names": ["height", "width", "channels"],
            }
            if encoding is not None:
                features[camera]["info"] = {
                    "video.height": height,
                    "video.width": width,
                    "video.codec": encoding.codec,
                    "video.pix_fmt": choose_pixel_format(height, width),
                    "video.is_depth_map": False,
                    "video.fps": _plain(fps),
                    "video.channels": channels,
                    "has_audio": False,
                }
        for name, column in self.numbers.items():
            dtype, shape = _describe_numbers(column)
            features[name] = {"dtype": dtype.name, "shape": list(shape), "names": None}
        for name in self.texts:
            features[name] = {"dtype": "string", "shape": [1], "names": None}
        features["timestamp"] = {"dtype": "float32", "shape": [1], "names": None}
        for name in ("frame_index", "episode_index", "index", "task_index"):
            features[name] = {"dtype": "int64", "shape": [1], "names": None}
        return features

    def images(self, table: Episodes, episode: int) -> dict[str, list[dict[str, Any]]]:
        """Return the images in the rows of an episode. Pixels become PNG; encoded images stay as they are."""
        frames = table.starts[episode] + np.arange(int(table.lengths[episode]))
        found = {}
        for name, column in self.stills.items():
            contents = (_encode_still(content, name) for content in _read_contents(column, frames))
            found[name] = [{"bytes": content, "path": f"frame-{step:06d}.png"} for step, content in enumerate(contents)]
        return found

    def columns(self, table: Episodes, episode: int, fps: float) -> dict[str, np.ndarray]:
        """Return the numbers and texts of an episode, by the names of their columns."""
        length = int(table.lengths[episode])
        frames = table.starts[episode] + np.arange(length)
        found: dict[str, np.ndarray] = {}
        for name, column in self.numbers.items():
            dtype, shape = _describe_numbers(column)
            found[name] = column.take(frames).astype(dtype, copy=False).reshape(length, *shape)
        found |= {name: column.take(frames) for name, column in self.texts.items()}
        steps = np.arange(length)
        found["timestamp"] = (steps / fps).astype(np.float32)
        found["frame_index"], found["episode_index"], found["index"] = steps, np.full(length, episode), frames
        found["task_index"] = self.number_tasks(table)[frames]
        return found

    def rows(self, table: Episodes, episode: int, fps: float) -> Any:
        """Return the rows of an episode, as a table of Arrow."""
        pa: Any = import_package("pyarrow", "parquet", "LeRobot data sets")
        schema = self.schema()
        pictures = self.images(table, episode)
        arrays = [pa.array(rows, schema.field(name).type) for name, rows in pictures.items()]
        for name, values in self.columns(table, episode, fps).items():
            field = schema.field(name)
            if values.dtype == object:
                arrays.append(pa.array([value.decode(errors="replace") for value in values.tolist()], field.type))
            elif values.ndim == 1 or (values.ndim == 2 and values.shape[1] == 1):
                arrays.append(pa.array(values.reshape(-1), field.type))
            elif values.ndim == 2:
                arrays.append(pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1]))
            else:
                arrays.append(_nest(pa, values).cast(field.type))
        return pa.Table.from_arrays(arrays, schema=schema)

    @functools.cached_property
    def tasks(self) -> list[str]:
        """The instructions. Their places are their numbers."""
        if self.task is None:
            return [self.default_task]
        texts = [value.decode(errors="replace") or self.default_task for value in self.task.values.tolist()]
        return list(dict.fromkeys(texts))

    def number_tasks(self, table: Episodes) -> np.ndarray:
        """Return the number of the instruction of each frame."""
        if self.task is None:
            return np.zeros(table.frames, np.int64)
        numbers = {text: number for number, text in enumerate(self.tasks)}
        texts = [value.decode(errors="replace") or self.default_task for value in self.task.values.tolist()]
        return np.array([numbers[text] for text in texts], np.int64)[self.task.codes]


def _read_contents(column: Any, frames: np.ndarray) -> list[Any]:
    """Return images of a column: encoded, or pixels."""
    entries = column.take(frames)
    return read_all(entries.tolist()) if entries.dtype == object else list(entries)


def _encode_still(content: Any, name: str) -> bytes:
    """Return an encoded image as it is; pixels as PNG."""
    if isinstance(content, bytes) and not content.startswith(MAGIC):
        return content
    pixels = unpack_pixels(content) if isinstance(content, bytes) else content
    return encode_image(pixels[:, :, None] if pixels.ndim == 2 else pixels, "png", name)


def _describe_numbers(column: Any) -> tuple[np.dtype, tuple[int, ...]]:
    """Return the dtype and the shape of a feature. A number has the shape (1,), as everywhere in LeRobot."""
    dtype = column.take(np.zeros(1, np.int64)).dtype
    return (np.dtype(np.float32) if dtype == np.float16 else dtype), (tuple(column.entry_shape) or (1,))


def _nest(pa: Any, values: np.ndarray) -> Any:
    """Return an array of more than one dimension per row, as nested lists."""
    nested = pa.array(np.ascontiguousarray(values).reshape(-1))
    for axis in range(values.ndim - 1, 0, -1):
        count = int(np.prod(values.shape[:axis]))
        offsets = pa.array(np.arange(count + 1, dtype=np.int32) * values.shape[axis])
        nested = pa.ListArray.from_arrays(offsets, nested)
    return nested


def same_rows(found: Any, expected: Any) -> bool:
    """Return whether two tables of Arrow are equal. NaN equals NaN, which it does not for Arrow."""
    if found.schema != expected.schema or len(found) != len(expected):
        return False
    pairs = zip(found.itercolumns(), expected.itercolumns())
    return all(_same_values(a.combine_chunks(), b.combine_chunks()) for a, b in pairs)


def _same_values(found: Any, expected: Any) -> bool:
    types: Any = import_package("pyarrow.types", "parquet", "LeRobot data sets")
    if types.is_list(found.type) or types.is_fixed_size_list(found.type):
        if found.value_lengths().equals(expected.value_lengths()):
            return _same_values(found.flatten(), expected.flatten())
        return False
    if types.is_floating(found.type):
        return np.array_equal(found.to_numpy(False), expected.to_numpy(False), equal_nan=True)
    return found.equals(expected)


def _plain(fps: float) -> float | int:
    return int(fps) if float(fps).is_integer() else fps


def write_metadata(
    folder: Folder,
    table: Episodes,
    description: LeRobotColumns,
    shards: Sequence[Shard],
    facts: Sequence[Any],
    fps: float,
    encoding: Encoding | None,
    robot_type: str | None,
) -> None:
    """Write the files of `meta/`, `info.json` last."""
    shapes = _find_shapes(description, shards, facts)
    features = description.features(shapes, fps, encoding)
    codes = description.number_tasks(table)
    rows = []
    for shard, found in zip(shards, facts):
        for place, episode in enumerate(range(shard.low, shard.high)):
            rows.append(_describe_episode(table, description, shard, found, place, episode, codes, fps))
    _write_episodes(folder, rows)
    _write_tasks(folder, description.tasks)
    statistics = _summarize_all(table, description, facts, fps)
    folder.write("meta/stats.json", json.dumps(statistics, indent=4).encode())
    splits: dict[str, list[int]] = {}
    for shard in shards:
        splits.setdefault(shard.split, [shard.low, shard.high])[1] = shard.high
    info = {
        "codebase_version": "v3.0",
        "robot_type": robot_type,
        "total_episodes": len(table),
        "total_frames": table.frames,
        "total_tasks": len(description.tasks),
        "chunks_size": CHUNK,
        "data_files_size_in_mb": _DATA_MB,
        "video_files_size_in_mb": _VIDEO_MB,
        "fps": _plain(fps),
        "splits": {split: f"{low}:{high}" for split, (low, high) in splits.items()},
        "data_path": DATA_PATH,
        "video_path": VIDEO_PATH if description.cameras else None,
        "features": features,
    }
    folder.write("meta/info.json", json.dumps(info, indent=4).encode())


def _find_shapes(description: LeRobotColumns, shards: Sequence[Shard], facts: Sequence[Any]) -> dict[str, list[int]]:
    shapes: dict[str, list[int]] = {}
    for shard, found in zip(shards, facts):
        for camera in (*description.cameras, *description.stills):
            shape = found["cameras"][camera]["shape"]
            if shapes.setdefault(camera, shape) != shape:
                raise ValueError(
                    f"{camera} has frames of the size {shape[:2]} in the episodes from {shard.low} on, and "
                    f"{shapes[camera][:2]} before. All frames of a camera have one size: resize them first."
                )
    return shapes


def _describe_episode(
    table: Episodes,
    description: LeRobotColumns,
    shard: Shard,
    facts: Any,
    place: int,
    episode: int,
    codes: np.ndarray,
    fps: float,
) -> dict[str, Any]:
    """Return the row of an episode in `meta/episodes`."""
    length, start = int(table.lengths[episode]), int(table.starts[episode])
    chunk, file = divmod(shard.index, CHUNK)
    row: dict[str, Any] = {
        "episode_index": episode,
        "tasks": [description.tasks[code] for code in dict.fromkeys(codes[start : start + length].tolist())],
        "length": length,
        "data/chunk_index": chunk,
        "data/file_index": file,
        "dataset_from_index": start,
        "dataset_to_index": start + length,
    }
    statistics: dict[str, Any] = {}
    for camera in (*description.cameras, *description.stills):
        clip = facts["cameras"][camera]["episodes"][place]
        if camera in description.cameras:
            row |= {
                f"videos/{camera}/chunk_index": chunk,
                f"videos/{camera}/file_index": file,
                f"videos/{camera}/from_timestamp": clip["first"] / fps,
                f"videos/{camera}/to_timestamp": (clip["first"] + length) / fps,
            }
        statistics[camera] = summarize_pixels(np.array(clip["histogram"]), clip["sampled"])
    for name, values in description.columns(table, episode, fps).items():
        if values.dtype != object:
            statistics[name] = summarize_numbers(values)
    for name, known in statistics.items():
        row |= {f"stats/{name}/{kind}": value for kind, value in known.items()}
    return row | {"meta/episodes/chunk_index": 0, "meta/episodes/file_index": 0}


def _write_episodes(folder: Folder, rows: list[dict[str, Any]]) -> None:
    pa: Any = import_package("pyarrow", "parquet", "LeRobot data sets")
    name = "meta/episodes/chunk-000/file-000.parquet"
    with folder.new_file(name) as path, writing(folder.shown(name)):
        import_package("pyarrow.parquet", "parquet", "LeRobot data sets").write_table(pa.Table.from_pylist(rows), path)


def _write_tasks(folder: Folder, tasks: list[str]) -> None:
    """The tasks as pandas writes a frame whose index is the text: LeRobot reads it so."""
    pa: Any = import_package("pyarrow", "parquet", "LeRobot data sets")
    index = "__index_level_0__"
    table = pa.table({"task_index": pa.array(range(len(tasks)), pa.int64()), index: pa.array(tasks, pa.string())})
    columns = [
        {"name": "task_index", "field_name": "task_index", "pandas_type": "int64", "numpy_type": "int64"},
        {"name": None, "field_name": index, "pandas_type": "unicode", "numpy_type": "object"},
    ]
    described = {
        "index_columns": [index],
        "column_indexes": [
            {"name": None, "field_name": None, "pandas_type": "unicode", "numpy_type": "object", "metadata": None}
        ],
        "columns": [{**column, "metadata": None} for column in columns],
        "creator": {"library": "pyarrow", "version": pa.__version__},
        "pandas_version": "2.0.0",
    }
    table = table.replace_schema_metadata({"pandas": json.dumps(described)})
    name = "meta/tasks.parquet"
    with folder.new_file(name) as path, writing(folder.shown(name)):
        import_package("pyarrow.parquet", "parquet", "LeRobot data sets").write_table(table, path)


def _summarize_all(table: Episodes, description: LeRobotColumns, facts: Sequence[Any], fps: float) -> dict[str, Any]:
    """Return the statistics of all episodes together."""
    statistics: dict[str, Any] = {}
    for camera in (*description.cameras, *description.stills):
        episodes = [episode for found in facts for episode in found["cameras"][camera]["episodes"]]
        histogram = np.sum([np.array(episode["histogram"]) for episode in episodes], axis=0)
        statistics[camera] = summarize_pixels(histogram, sum(episode["sampled"] for episode in episodes))
    everything = np.arange(table.frames)
    for name, column in description.numbers.items():
        dtype, shape = _describe_numbers(column)
        values = column.take(everything).astype(dtype, copy=False).reshape(table.frames, *shape)
        statistics[name] = summarize_numbers(values)
    steps = everything - np.repeat(table.starts, table.lengths)
    made = {
        "timestamp": (steps / fps).astype(np.float32),
        "frame_index": steps,
        "episode_index": np.repeat(np.arange(len(table)), table.lengths),
        "index": everything,
        "task_index": description.number_tasks(table),
    }
    return statistics | {name: summarize_numbers(values) for name, values in made.items()}

"""The formats that episodes are converted to or saved in: shards of an RLDS or of a LeRobot v3 data set.

`convert_episodes` writes both, the second one with its videos; `ds.save(folder, format="rlds")` writes the first.
"""

from __future__ import annotations

import dataclasses
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bushel._src.base import checks, redact
from bushel._src.base.errors import DamagedFile, writing
from bushel._src.base.late_imports import import_package
from bushel._src.datasets.saving import Form, ShardFiles
from bushel._src.sources.array_record import ArrayRecordDataSource
from bushel._src.sources.folders import Folder
from bushel._src.sources.record_writers import ArrayRecordWriter, TFRecordWriter
from bushel._src.sources.tfrecord import TFRecordDataSource
from bushel._src.trajectory.conversion_table import Shard, Target
from bushel._src.trajectory.data_utils import flatten_tree
from bushel._src.trajectory.encoded_images import read_all
from bushel._src.trajectory.episodes import Episodes, Images, Texts, take_entries
from bushel._src.trajectory.lerobot import metadata_files
from bushel._src.trajectory.lerobot.metadata_files import DATA_PATH, VIDEO_PATH, LeRobotColumns, make_paths
from bushel._src.trajectory.pixels import decode_image, has_16_bits
from bushel._src.trajectory.rlds.dataset_folder import is_version
from bushel._src.trajectory.rlds.writer import FEATURES, INFO, EpisodeEncoder, split_entry, write_info
from bushel._src.trajectory.video_encoding import Encoding, as_rate, encode_frames, joining, verify_video

SAVED_SPLIT = "train"
_SAVED_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_INDEX}"
"""Without the number of files, which is unknown until the last element."""


def form(folder: str) -> Form:
    """Return the format for a folder. The path of the folder gives the name of the data set: "arm", or "arm/1.0.0"."""
    return _Episodes(*name_data_set(folder))


def name_data_set(folder: str) -> tuple[str, str]:
    """Return the name and the version of the data set in a folder, by the folder's name.

    >>> name_data_set("data/arm"), name_data_set("data/arm/2.0.0")
    (('arm', '1.0.0'), ('arm', '2.0.0'))
    """
    above, _, last = redact.remove_query(folder).rstrip("/").rpartition("/")
    version = last if is_version(last) else "1.0.0"
    name = re.sub(r"\W", "_", above.rpartition("/")[2] if is_version(last) else last, flags=re.ASCII)
    return (name if re.match(r"[A-Za-z_]", name) else f"_{name}"), version


class _Episodes(Form):
    def __init__(self, name: str, version: str):
        self._name, self._version = name, version
        self._columns = EpisodeEncoder("png")

    @property
    def layout(self) -> Any:
        return self._columns.facts()

    @layout.setter
    def layout(self, facts: Any) -> None:
        self._columns.restore(facts)

    def file_name(self, number: int) -> str:
        return f"{self._name}-{SAVED_SPLIT}.tfrecord-{number:05d}"

    def belongs(self, name: str) -> bool:
        return name in (FEATURES, INFO) or name.startswith(f"{self._name}-{SAVED_SPLIT}.tfrecord-")

    def open(self, path: str, first: Any) -> _EpisodeFile:
        return _EpisodeFile(TFRecordWriter(path, compress=False), self._columns)

    def finish(self, folder: Folder, files: ShardFiles, identity: str, skipped: int) -> None:
        if not files.names:
            raise ValueError("The pipeline has no episodes, but an RLDS data set needs at least one.")
        split = split_entry(SAVED_SPLIT, _SAVED_TEMPLATE, files.counts, sum(files.sizes))
        info = {"fileFormat": "tfrecord", "name": self._name, "splits": [split], "version": self._version}
        write_info(folder, self._columns, info)


class _EpisodeFile:
    """Encodes episodes as records and writes them to a TFRecord file."""

    def __init__(self, writer: TFRecordWriter, columns: EpisodeEncoder):
        self._writer, self._columns = writer, columns

    def write(self, element: Any) -> int:
        record = self._columns.encode(element, "the episode")
        self._writer.write(record)
        return len(record)

    def close(self) -> None:
        self._writer.close()


_WRITERS: dict[str, Any] = {"tfrecord": TFRecordWriter, "array_record": ArrayRecordWriter}
_SOURCES: dict[str, Any] = {"tfrecord": TFRecordDataSource, "array_record": ArrayRecordDataSource}
_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"


class RLDSTarget(Target):
    """An RLDS data set: records of episodes, `features.json`, and `dataset_info.json`, which is written last."""

    last_file = INFO

    def __init__(self, address: str, file_format: str, image_format: Any):
        checks.choice(file_format, _WRITERS, "file_format")
        EpisodeEncoder(image_format)  # which refuses unknown formats
        self._format, self._images = file_format, image_format
        self._name, self._version = name_data_set(address)

    def settings(self) -> Any:
        return ["rlds", self._format, self._images, self._name, self._version]

    def prepare(self, table: Episodes) -> Episodes:
        return table

    def belongs(self, name: str) -> bool:
        return name in (FEATURES, INFO) or bool(re.fullmatch(rf"{self._name}-\w+\.(tfrecord|array_record)-.*", name))

    def write_shard(self, table: Episodes, shard: Shard, folder: Folder, verify: bool) -> Iterator[tuple[int, Any]]:
        name = self._file_name(shard)
        encoder = EpisodeEncoder(self._images)
        digest, size, count = 0, 0, 0
        with folder.new_file(name) as path:
            with writing(folder.shown(name)):
                writer = _WRITERS[self._format](path, compress=False)
            try:
                for episode in range(shard.low, shard.high):
                    record = encoder.encode(make_episode(table, episode), shard.describe(episode))
                    with writing(folder.shown(name)):
                        writer.write(record)
                    digest, size, count = zlib.crc32(record, digest), size + len(record), count + 1
                    yield int(table.lengths[episode]), None
            finally:
                with writing(folder.shown(name)):
                    writer.close()
            if verify:
                self._verify(path, folder.shown(name), digest, count)
        yield 0, {"facts": encoder.facts(), "count": count, "size": size}

    def _file_name(self, shard: Shard) -> str:
        return f"{self._name}-{shard.split}.{self._format}-{shard.number:05d}-of-{shard.of:05d}"

    def _verify(self, path: str, shown: str, digest: int, count: int) -> None:
        options = {"verify": True} if self._format == "array_record" else {}
        source = _SOURCES[self._format](path, **options)
        found = 0
        for number in range(len(source)):
            found = zlib.crc32(source[number], found)
        if (len(source), found) != (count, digest):
            raise DamagedFile(f"{shown}: what was written is not what was read back. Is the disk full, or failing?")

    def finish(self, table: Episodes, shards: Sequence[Shard], facts: Sequence[Any], folder: Folder) -> None:
        encoder = EpisodeEncoder(self._images)
        encoder.restore(facts[0]["facts"])
        for entry in facts[1:]:
            encoder.merge(entry["facts"])
        splits = []
        for split in dict.fromkeys(shard.split for shard in shards):
            of_split = [entry for shard, entry in zip(shards, facts) if shard.split == split]
            size = sum(entry["size"] for entry in of_split)
            splits.append(split_entry(split, _TEMPLATE, [entry["count"] for entry in of_split], size))
        info = {"fileFormat": self._format, "name": self._name, "splits": splits, "version": self._version}
        write_info(folder, encoder, info)


def make_episode(table: Episodes, number: int) -> dict[str, Any]:
    """Return an episode of a table as RLDS has it: steps, with marks of the first and the last one, and metadata."""
    length = int(table.lengths[number])
    frames = table.starts[number] + np.arange(length)
    steps: dict[str, Any] = take_entries(table.columns, frames)
    steps.setdefault("is_first", np.arange(length) == 0)
    steps.setdefault("is_last", np.arange(length) == length - 1)
    metadata = take_entries(table.metadata, np.array([number]))
    once = _take_first(metadata)
    if once and "episode_metadata" not in once:
        once = {"episode_metadata": once}
    return {"steps": steps, **once}


def _take_first(tree: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _take_first(entry) if isinstance(entry, Mapping) else entry[0] for name, entry in tree.items()}


LEROBOT_INFO = "meta/info.json"
TASK = "language_instruction"
_FRAMES_AT_ONCE = 32
_FILES = re.compile(
    r"meta/(info|stats)\.json|meta/tasks\.parquet|(meta/episodes|data)/chunk-\d+/file-\d+\.parquet"
    r"|videos/[^/]+/chunk-\d+/file-\d+\.mp4"
)
"""The files of a LeRobot v3 data set. `overwrite` removes these, and no others."""
_MADE = ("timestamp", "frame_index", "episode_index", "index", "task_index", "task")
"""Columns that the writer makes itself, whatever the source has under these names."""


class LeRobotTarget(Target):
    """A LeRobot v3 folder. `meta/info.json` is written last.

    Args:
      fps: steps per second.
      encoding: how videos are encoded; None for images in the rows, without loss.
      task: the instruction of steps that have none.
      robot_type: the name of the robot, for `info.json`.
    """

    last_file = LEROBOT_INFO

    def __init__(self, fps: float, encoding: Encoding | None, task: str = "", robot_type: str | None = None):
        as_rate(fps)
        import_package("pyarrow", "parquet", "LeRobot data sets")
        if encoding is not None:
            import_package("av", "video", "Video files")
        self._fps, self._encoding, self._task, self._robot = fps, encoding, task, robot_type

    def settings(self) -> Any:
        encoding = None if self._encoding is None else dataclasses.astuple(self._encoding)
        return ["lerobot", self._fps, encoding, self._task, self._robot]

    def prepare(self, table: Episodes) -> Episodes:
        self._describe(table)
        return table

    def _describe(self, table: Episodes) -> LeRobotColumns:
        return describe_table(table, self._task, has_videos=self._encoding is not None)

    def belongs(self, name: str) -> bool:
        return _FILES.fullmatch(name) is not None

    def write_shard(self, table: Episodes, shard: Shard, folder: Folder, verify: bool) -> Iterator[tuple[int, Any]]:
        description = self._describe(table)
        cameras: dict[str, Any] = {}
        passes = len(description.cameras) + len(description.stills) + 1  # the rows count as one more camera
        done = 0
        for camera, column in {**description.cameras, **description.stills}.items():
            facts = cameras[camera] = {"episodes": []}
            if self._encoding is None:
                steps = _inspect_images(table, shard, camera, column, facts)
            else:
                steps = self._write_video(table, shard, folder, camera, column, self._encoding, verify, facts)
            for frames in steps:
                done += frames
                yield done // passes - (done - frames) // passes, None
        for frames in self._write_rows(table, shard, folder, description, verify):
            done += frames
            yield done // passes - (done - frames) // passes, None
        yield 0, {"cameras": cameras}

    # Rows.

    def _write_rows(
        self, table: Episodes, shard: Shard, folder: Folder, description: LeRobotColumns, verify: bool
    ) -> Iterator[int]:
        parquet = import_package("pyarrow.parquet", "parquet", "LeRobot data sets")
        (name,) = make_paths(DATA_PATH, [shard.index])
        schema = description.schema()
        with folder.new_file(name) as path:
            with writing(folder.shown(name)), parquet.ParquetWriter(path, schema, compression="snappy") as writer:
                for episode in range(shard.low, shard.high):  # one row group each, as LeRobot's recorder writes
                    writer.write_table(description.rows(table, episode, self._fps))
                    yield int(table.lengths[episode])
            if verify:
                with parquet.ParquetFile(path) as file:
                    for group, episode in enumerate(range(shard.low, shard.high)):
                        expected = description.rows(table, episode, self._fps)
                        if not metadata_files.same_rows(file.read_row_group(group), expected):
                            raise DamagedFile(
                                f"{folder.shown(name)}: the rows of episode {episode} are not what was written."
                            )

    # Videos.

    def _write_video(
        self,
        table: Episodes,
        shard: Shard,
        folder: Folder,
        camera: str,
        column: Any,
        encoding: Encoding,
        verify: bool,
        facts: dict[str, Any],
    ) -> Iterator[int]:
        """Write the video of one camera. Yield how many frames each step wrote, and fills `facts`."""
        (name,) = make_paths(VIDEO_PATH, [shard.index], camera)
        prints, starts, shape = [], [], None
        with folder.new_file(name) as path:
            with writing(folder.shown(name)), joining(path, self._fps) as video:
                for episode in range(shard.low, shard.high):
                    frames = _CameraFrames(table, column, shard, episode, camera, shape)
                    data, summary = encode_frames(frames, self._fps, encoding)
                    shape = frames.shape
                    starts.append(video.frames)
                    video.add(data, frames.count)
                    prints.append(summary)
                    facts["episodes"].append({**frames.facts(), "first": starts[-1]})
                    yield frames.count
            if verify:
                verify_video(path, folder.shown(name), self._fps, np.concatenate(prints), starts)
        facts["shape"] = list(shape or ())

    def finish(self, table: Episodes, shards: Sequence[Shard], facts: Sequence[Any], folder: Folder) -> None:
        description = self._describe(table)
        metadata_files.write_metadata(folder, table, description, shards, facts, self._fps, self._encoding, self._robot)


def _inspect_images(table: Episodes, shard: Shard, camera: str, column: Any, facts: dict[str, Any]) -> Iterator[int]:
    """Decode the images of one camera, which are stored in the rows, for their size and statistics."""
    shape = None
    for episode in range(shard.low, shard.high):
        frames = _CameraFrames(table, column, shard, episode, camera, shape, in_video=False)
        for _ in frames:
            pass
        shape = frames.shape
        facts["episodes"].append(frames.facts())
        yield frames.count
    facts["shape"] = list(shape or ())


class _CameraFrames:
    """The frames of one camera in one episode, decoded some at a time, and what they have in common."""

    def __init__(
        self,
        table: Episodes,
        column: Any,
        shard: Shard,
        episode: int,
        camera: str,
        shape: tuple[int, ...] | None,
        *,
        in_video: bool = True,
    ):
        self._in_video = in_video
        self.count, self.shape = int(table.lengths[episode]), shape
        self.histogram = np.zeros((3, 256), np.int64)
        sample = metadata_files.sample_frames(self.count)
        self.sampled, self._wanted = len(sample), set(sample.tolist())
        self._column, self._first = column, int(table.starts[episode])
        self._where = f"{shard.describe(episode)}, {camera}"

    def facts(self) -> dict[str, Any]:
        """Return the histogram of the sampled frames, and their number."""
        return {"histogram": self.histogram.tolist(), "sampled": self.sampled}

    def __iter__(self) -> Iterator[np.ndarray]:
        for low in range(0, self.count, _FRAMES_AT_ONCE):
            frames = self._first + np.arange(low, min(low + _FRAMES_AT_ONCE, self.count))
            for step, pixels in enumerate(self._decode(frames), low):
                if self.shape is None:
                    self.shape = pixels.shape
                if pixels.shape != self.shape:
                    raise ValueError(
                        f"{self._where}: frame {step} has the size {list(pixels.shape[:2])}, and frames before it have "
                        f"{list(self.shape[:2])}. All frames of a video have one size: resize them first."
                    )
                if step in self._wanted:
                    self.histogram += metadata_files.count_pixels(pixels)
                yield pixels

    def _decode(self, frames: np.ndarray) -> Iterator[np.ndarray]:
        entries = self._column.take(frames)
        contents: list[Any] = read_all(entries.tolist()) if entries.dtype == object else list(entries)
        for frame, content in zip(frames.tolist(), contents):
            step = frame - self._first
            if not isinstance(content, np.ndarray):
                if not len(content):
                    raise ValueError(f"{self._where}: step {step} has no image, but a video has a frame for each step.")
                way_out = "Leave the camera out (drop), or keep images in the rows (codec=None, --codec none)."
                if self._in_video and has_16_bits(content):
                    raise ValueError(
                        f"{self._where}: the image of step {step} has 16 bits, as depth has, and a video keeps 8 of "
                        f"them. {way_out}"
                    )
                try:
                    content = decode_image(content)
                except ValueError as error:
                    raise ValueError(
                        f"{self._where}: the image of step {step} cannot be decoded. {error} {way_out}"
                    ) from error
            if content.shape[2] == 1:
                content = np.repeat(content, 3, axis=2)
            yield content[:, :, :3]


def describe_table(table: Episodes, default_task: str, *, has_videos: bool) -> LeRobotColumns:
    """Return which column of a table becomes which feature. Raise ValueError for one that LeRobot cannot hold."""
    cameras: dict[str, Any] = {}
    numbers: dict[str, Any] = {}
    texts: dict[str, Any] = {}
    task = None
    for path, column in flatten_tree(table.columns).items():
        name = ".".join(path)
        if path == (TASK,) and isinstance(column, Texts):
            task = column
            continue
        if name in _MADE:
            continue
        is_camera = isinstance(column, Images) or _is_image(column)
        name = _name_camera(path) if is_camera else name
        if name in {**cameras, **numbers, **texts}:
            raise ValueError(f"Two entries would get the name {name!r} in the LeRobot data set. Leave one out (drop).")
        if is_camera:
            cameras[name] = column
        elif column.is_numeric:
            numbers[name] = _check_numbers(name, column)
        else:
            texts[name] = _check_texts(name, column)
    videos, stills = (cameras, {}) if has_videos else ({}, cameras)
    return LeRobotColumns(videos, stills, numbers, texts, task, default_task)


def _is_image(column: Any) -> bool:
    if not column.is_numeric or len(column.entry_shape) != 3 or column.entry_shape[-1] not in (1, 3, 4):
        return False
    return column.take(np.zeros(1, np.int64)).dtype == np.uint8


def _name_camera(path: tuple[str, ...]) -> str:
    rest = [part for part in (path[1:] if path[0] == "observation" else path) if part != "images"]
    return ".".join(["observation", "images", *rest]).replace("images.images.", "images.")


def _check_texts(name: str, column: Any) -> Any:
    if column.take(np.zeros(1, np.int64)).ndim > 1:
        raise ValueError(f"{name} has several texts per step, which LeRobot does not store. Leave it out (drop).")
    return column


def _check_numbers(name: str, column: Any) -> Any:
    dtype = column.take(np.zeros(1, np.int64)).dtype
    if dtype.kind not in "biuf" or dtype.itemsize > 8:
        raise ValueError(f"{name} is {dtype}, which LeRobot does not store. Leave it out (drop).")
    if 0 in column.entry_shape or len(column.entry_shape) > 5:
        raise ValueError(f"{name} has the shape {list(column.entry_shape)}, which LeRobot does not store (drop).")
    return column

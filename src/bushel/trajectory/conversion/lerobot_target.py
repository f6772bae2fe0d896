"""Shards of a LeRobot v3 data set, made of the rows of a table of episodes: a Parquet file, and a video per camera.

What the files of `meta/` hold is in `lerobot_metadata.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from bushel.base.errors import DamagedFile, writing
from bushel.sources.needs import package
from bushel.sources.writing import Folder
from bushel.trajectory.conversion import lerobot_metadata, lerobot_statistics
from bushel.trajectory.conversion.lerobot_metadata import DATA_PATH, VIDEO_PATH, Description, make_paths
from bushel.trajectory.conversion.targets import Shard, Target
from bushel.trajectory.conversion.video_encoding import (
    Encoding,
    as_rate,
    encode_frames,
    joining,
    verify_video,
)
from bushel.trajectory.data_utils import flatten_tree
from bushel.trajectory.encoded_images import read_all
from bushel.trajectory.episodes import Episodes
from bushel.trajectory.frame_columns import Images, Texts
from bushel.trajectory.pixels import decode_image

INFO = "meta/info.json"
TASK = "language_instruction"
_FRAMES_AT_ONCE = 32
_MADE = ("timestamp", "frame_index", "episode_index", "index", "task_index", "task")
"""Columns that the writer makes itself, whatever the source has under these names."""


class LeRobotTarget(Target):
    """A LeRobot v3 folder. `meta/info.json` is written last.

    Args:
      fps: steps per second.
      encoding: how videos are encoded.
      task: the instruction of steps that have none.
      robot_type: the name of the robot, for `info.json`.
    """

    last_file = INFO

    def __init__(self, fps: float, encoding: Encoding, task: str = "", robot_type: str | None = None):
        as_rate(fps)
        package("pyarrow", "parquet", "LeRobot data sets")
        package("av", "video", "Video files")
        self._fps, self._encoding, self._task, self._robot = fps, encoding, task, robot_type

    def settings(self) -> Any:
        return ["lerobot", self._fps, dataclasses.astuple(self._encoding), self._task, self._robot]

    def prepare(self, table: Episodes) -> Episodes:
        describe_table(table, self._task)
        return table

    def belongs(self, name: str) -> bool:
        return name.startswith(("meta/", "data/chunk-", "videos/"))

    def write_shard(self, table: Episodes, shard: Shard, folder: Folder, verify: bool) -> Iterator[tuple[int, Any]]:
        description = describe_table(table, self._task)
        cameras: dict[str, Any] = {}
        share = len(description.cameras) or 1
        done = 0
        for camera in description.cameras:
            facts: dict[str, Any] = {}
            for frames in self._write_video(table, shard, folder, description, camera, verify, facts):
                done += frames
                yield done // share - (done - frames) // share, None
            cameras[camera] = facts
        self._write_rows(table, shard, folder, description, verify)
        if not description.cameras:
            yield int(table.lengths[shard.low : shard.high].sum()), None
        yield 0, {"cameras": cameras}

    # Rows.

    def _write_rows(
        self, table: Episodes, shard: Shard, folder: Folder, description: Description, verify: bool
    ) -> None:
        parquet = package("pyarrow.parquet", "parquet", "LeRobot data sets")
        (name,) = make_paths(DATA_PATH, [shard.index])
        schema = description.schema()
        rows = [description.rows(table, episode, self._fps) for episode in range(shard.low, shard.high)]
        with folder.new_file(name) as path:
            with writing(folder.shown(name)), parquet.ParquetWriter(path, schema, compression="snappy") as writer:
                for batch in rows:  # one row group per episode, as LeRobot's recorder writes
                    writer.write_table(batch)
            if verify:
                found = parquet.read_table(path)
                expected = package("pyarrow", "parquet", "LeRobot data sets").concat_tables(rows)
                if not found.equals(expected):
                    raise DamagedFile(f"{folder.shown(name)}: what was written is not what was read back.")

    # Videos.

    def _write_video(
        self,
        table: Episodes,
        shard: Shard,
        folder: Folder,
        description: Description,
        camera: str,
        verify: bool,
        facts: dict[str, Any],
    ) -> Iterator[int]:
        """Writes the video of one camera. Yields how many frames each step wrote, and fills `facts`."""
        column = description.cameras[camera]
        (name,) = make_paths(VIDEO_PATH, [shard.index], camera)
        prints, starts, shape = [], [], None
        episodes = facts["episodes"] = []
        with folder.new_file(name) as path:
            with writing(folder.shown(name)), joining(path, self._fps) as video:
                for episode in range(shard.low, shard.high):
                    frames = _Frames(table, column, episode, camera, shape)
                    data, summary = encode_frames(frames, self._fps, self._encoding)
                    shape = frames.shape
                    starts.append(video.frames)
                    video.add(data, frames.count)
                    prints.append(summary)
                    episodes.append(
                        {"histogram": frames.histogram.tolist(), "sampled": frames.sampled, "first": starts[-1]}
                    )
                    yield frames.count
            if verify:
                verify_video(path, folder.shown(name), self._fps, np.concatenate(prints), starts)
        facts["shape"] = list(shape or ())

    def finish(self, table: Episodes, shards: Sequence[Shard], facts: Sequence[Any], folder: Folder) -> None:
        description = describe_table(table, self._task)
        lerobot_metadata.write_metadata(
            folder, table, description, shards, facts, self._fps, self._encoding, self._robot
        )


class _Frames:
    """The frames of one camera in one episode, decoded some at a time, and what they have in common."""

    def __init__(self, table: Episodes, column: Any, episode: int, camera: str, shape: tuple[int, ...] | None):
        self.count, self.shape = int(table.lengths[episode]), shape
        self.histogram = np.zeros((3, 256), np.int64)
        sample = lerobot_statistics.sample_frames(self.count)
        self.sampled, self._wanted = len(sample), set(sample.tolist())
        self._column, self._first = column, int(table.starts[episode])
        number = episode if table.numbers is None else int(table.numbers[episode])
        self._where = f"episode {number}, {camera}"

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
                    self.histogram += lerobot_statistics.count_pixels(pixels)
                yield pixels

    def _decode(self, frames: np.ndarray) -> Iterator[np.ndarray]:
        entries = self._column.take(frames)
        contents: list[Any] = read_all(entries.tolist()) if entries.dtype == object else list(entries)
        for frame, content in zip(frames.tolist(), contents):
            step = frame - self._first
            if not isinstance(content, np.ndarray):
                if not len(content):
                    raise ValueError(f"{self._where}: step {step} has no image, but a video has a frame for each step.")
                try:
                    content = decode_image(content)
                except ValueError as error:
                    raise ValueError(f"{self._where}: step {step}: {error}") from error
            if content.shape[2] == 1:
                content = np.repeat(content, 3, axis=2)
            yield content[:, :, :3]


def describe_table(table: Episodes, default_task: str) -> Description:
    """Which column of a table becomes which feature. Raises ValueError for one that LeRobot cannot hold."""
    cameras: dict[str, Any] = {}
    numbers: dict[str, Any] = {}
    texts: dict[str, Any] = {}
    task = None
    for path, column in flatten_tree(table.columns).items():
        name = ".".join(path)
        if path == (TASK,) and isinstance(column, Texts):
            task = column
        elif isinstance(column, Images) or _is_image(column):
            cameras[_name_camera(path)] = column
        elif name in _MADE:
            continue
        elif column.is_numeric:
            numbers[name] = _check_numbers(name, column)
        else:
            texts[name] = column
    names = [*cameras, *numbers, *texts]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ValueError(f"Two entries would get the same name in the LeRobot data set: {sorted(twice)}.")
    return Description(cameras, numbers, texts, task, default_task)


def _is_image(column: Any) -> bool:
    if not column.is_numeric or len(column.entry_shape) != 3 or column.entry_shape[-1] not in (1, 3, 4):
        return False
    return column.take(np.zeros(1, np.int64)).dtype == np.uint8


def _name_camera(path: tuple[str, ...]) -> str:
    rest = [part for part in (path[1:] if path[0] == "observation" else path) if part != "images"]
    return ".".join(["observation", "images", *rest]).replace("images.images.", "images.")


def _check_numbers(name: str, column: Any) -> Any:
    dtype = column.take(np.zeros(1, np.int64)).dtype
    if dtype.kind not in "biuf" or dtype.itemsize > 8:
        raise ValueError(f"{name} is {dtype}, which LeRobot does not store. Leave it out (drop).")
    if 0 in column.entry_shape or len(column.entry_shape) > 5:
        raise ValueError(f"{name} has the shape {list(column.entry_shape)}, which LeRobot does not store (drop).")
    return column

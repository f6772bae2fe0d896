"""Shards of a LeRobot v3 data set, made of the rows of a table of episodes: a Parquet file, and a video per camera.

What the files of `meta/` hold is in `lerobot_metadata.py`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from bushel._src.base.errors import DamagedFile, writing
from bushel._src.sources.optional_packages import import_package
from bushel._src.sources.output_folders import Folder
from bushel._src.trajectory.conversion import lerobot_metadata, lerobot_statistics
from bushel._src.trajectory.conversion.lerobot_metadata import DATA_PATH, VIDEO_PATH, Description, make_paths
from bushel._src.trajectory.conversion.targets import Shard, Target
from bushel._src.trajectory.conversion.video_encoding import Encoding, as_rate, encode_frames, joining, verify_video
from bushel._src.trajectory.data_utils import flatten_tree
from bushel._src.trajectory.encoded_images import read_all
from bushel._src.trajectory.episodes import Episodes
from bushel._src.trajectory.frame_columns import Images, Texts
from bushel._src.trajectory.pixels import decode_image, has_16_bits

INFO = "meta/info.json"
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

    last_file = INFO

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

    def _describe(self, table: Episodes) -> Description:
        return describe_table(table, self._task, has_videos=self._encoding is not None)

    def belongs(self, name: str) -> bool:
        return _FILES.fullmatch(name) is not None

    def write_shard(self, table: Episodes, shard: Shard, folder: Folder, verify: bool) -> Iterator[tuple[int, Any]]:
        description = self._describe(table)
        cameras: dict[str, Any] = {}
        share = len(description.cameras) + len(description.stills) + 1  # the rows count as one more camera
        done = 0
        for camera, column in {**description.cameras, **description.stills}.items():
            facts = cameras[camera] = {"episodes": []}
            if self._encoding is None:
                steps = _inspect_images(table, shard, camera, column, facts)
            else:
                steps = self._write_video(table, shard, folder, camera, column, self._encoding, verify, facts)
            for frames in steps:
                done += frames
                yield done // share - (done - frames) // share, None
        for frames in self._write_rows(table, shard, folder, description, verify):
            done += frames
            yield done // share - (done - frames) // share, None
        yield 0, {"cameras": cameras}

    # Rows.

    def _write_rows(
        self, table: Episodes, shard: Shard, folder: Folder, description: Description, verify: bool
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
                        if not lerobot_metadata.same_rows(file.read_row_group(group), expected):
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
        """Writes the video of one camera. Yields how many frames each step wrote, and fills `facts`."""
        (name,) = make_paths(VIDEO_PATH, [shard.index], camera)
        prints, starts, shape = [], [], None
        with folder.new_file(name) as path:
            with writing(folder.shown(name)), joining(path, self._fps) as video:
                for episode in range(shard.low, shard.high):
                    frames = _Frames(table, column, shard, episode, camera, shape)
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
        lerobot_metadata.write_metadata(
            folder, table, description, shards, facts, self._fps, self._encoding, self._robot
        )


def _inspect_images(table: Episodes, shard: Shard, camera: str, column: Any, facts: dict[str, Any]) -> Iterator[int]:
    """Decodes the images of one camera, which are stored in the rows, for their size and statistics."""
    shape = None
    for episode in range(shard.low, shard.high):
        frames = _Frames(table, column, shard, episode, camera, shape, in_video=False)
        for _ in frames:
            pass
        shape = frames.shape
        facts["episodes"].append(frames.facts())
        yield frames.count
    facts["shape"] = list(shape or ())


class _Frames:
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
        sample = lerobot_statistics.sample_frames(self.count)
        self.sampled, self._wanted = len(sample), set(sample.tolist())
        self._column, self._first = column, int(table.starts[episode])
        self._where = f"{shard.describe(episode)}, {camera}"

    def facts(self) -> dict[str, Any]:
        """The histogram of the sampled frames, and their number."""
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
                    if self._in_video and has_16_bits(content):
                        raise ValueError("It has 16 bits, as depth has, and a video keeps 8 of them.")
                    content = decode_image(content)
                except ValueError as error:
                    where = f"{self._where}: step {step}"
                    way = "Leave the camera out (drop), or keep images in the rows (codec=None, --codec none)."
                    raise ValueError(f"{where}: {error} {way}") from error
            if content.shape[2] == 1:
                content = np.repeat(content, 3, axis=2)
            yield content[:, :, :3]


def describe_table(table: Episodes, default_task: str, *, has_videos: bool) -> Description:
    """Which column of a table becomes which feature. Raises ValueError for one that LeRobot cannot hold."""
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
    return Description(videos, stills, numbers, texts, task, default_task)


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

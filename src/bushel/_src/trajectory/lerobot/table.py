"""A LeRobot data set as a table of frames (`Episodes`): made once, checked, kept in a cache folder, mapped from there.

A frame of a video belongs to the row at whose time it is shown, within a tolerance.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from bushel._src.base import checks, redact
from bushel._src.base.errors import BushelWarning, DamagedFile
from bushel._src.base.shown_text import Progress
from bushel._src.sources import file_access, paths
from bushel._src.sources.paths import get_cache_folder
from bushel._src.state.digest import whole_digest
from bushel._src.trajectory import episodes as tables
from bushel._src.trajectory.data_utils import to_objects
from bushel._src.trajectory.episodes import Episodes, Images, Numbers, Texts, make_column
from bushel._src.trajectory.lerobot.dataset_folder import DepthCode, LeRobotFeature, LeRobotFolder, VideoSpan
from bushel._src.trajectory.lerobot.image_parts import Catalog, LeRobotImages
from bushel._src.trajectory.lerobot.rows import LeRobotRows, read_rows
from bushel._src.trajectory.video_packets import PacketTable, PacketTables, read_packet_table

_DRIFT = 0.1  # of the time between two rows


@dataclasses.dataclass(frozen=True)
class Span:
    """The time that an episode has in a video file, in seconds.

    Attributes:
      episode: its `episode_index`.
      length: how many rows it has.
      start_s: when its first frame is shown.
      stop_s: when its frames end, as `meta` says; None if it does not say.
    """

    episode: int
    length: int
    start_s: float
    stop_s: float | None


def find_overlaps(spans: Sequence[Span], fps: float, tolerance_s: float = 1e-4) -> dict[int, str]:
    """Return what is wrong with the spans of the episodes of one video file, by episode. Empty if nothing is.

    The frames of an episode must lie within its span, and the spans of episodes must follow each other in the order of
    the episodes, as lerobot writes them. All of it holds within half the time between two rows plus `tolerance_s`:
    `from_timestamp` is a sum of rounded durations, and a span that is off by less than half a row leaves no doubt which
    frames are meant.

    >>> find_overlaps([Span(0, 10, 0.0, 1.0), Span(1, 10, 0.5, 1.5)], fps=10)[1]
    'Its span from 0.5 to 1.5 s begins before the end of episode 0, at 1 s.'
    """
    slack, wrong = 0.5 / fps + tolerance_s, {}
    before: Span | None = None
    end = -np.inf  # of the spans so far
    for span in sorted(spans, key=lambda one: one.episode):
        needed = span.start_s + span.length / fps
        stop = needed if span.stop_s is None else span.stop_s
        if span.start_s < -slack:
            wrong[span.episode] = f"Its span begins at {span.start_s:.6g} s, before the beginning of the video."
        elif stop < needed - slack:
            wrong[span.episode] = (
                f"Its span from {span.start_s:.6g} to {stop:.6g} s is too short for {span.length} rows at {fps:g} fps."
            )
        elif before is not None and span.start_s < end - slack:
            wrong[span.episode] = (
                f"Its span from {span.start_s:.6g} to {stop:.6g} s begins before the end of episode {before.episode}, "
                f"at {end:.6g} s."
            )
            # Which of the two is wrong cannot be seen.
            wrong.setdefault(
                before.episode, f"Its span ends at {end:.6g} s, after the beginning of episode {span.episode}."
            )
        if max(stop, needed) > end:
            before, end = span, max(stop, needed)
    return wrong


def align_frames(
    seconds: np.ndarray, numbers: np.ndarray, fps: float, start_s: float, times: np.ndarray, tolerance_s: float
) -> np.ndarray:
    """Return the number of the frame of each row of an episode. Raise ValueError, which says what does not fit.

    Args:
      seconds: the column `timestamp` of the rows.
      numbers: the column `frame_index` of the rows.
      fps: rows per second.
      start_s: the time of the episode's first frame in the video.
      times: when each frame of the video is shown, in seconds, ascending.
      tolerance_s: the largest distance between the time of a row and that of its frame.

    >>> times = np.arange(10) / 10
    >>> align_frames(np.array([0.0, 0.1, 0.2]), np.arange(3), 10, 0.5, times, 1e-4)
    array([5, 6, 7])
    """
    if not len(times):
        raise ValueError("The video has no frames.")
    # `timestamp` is float32, which is off by more than the tolerance after some minutes. `frame_index / fps` is exact.
    given, exact = seconds.astype(np.float64), numbers / fps
    rounding = 2 * np.spacing(np.abs(seconds).astype(np.float32)).astype(np.float64) + 1e-6
    wanted = start_s + np.where(np.abs(given - exact) <= rounding, exact, given)
    # The start of an episode in its file is a sum of durations that were rounded, so it drifts. A small difference to
    # the nearest frame does not leave open which frame is meant.
    first = times[_find_nearest(times, np.array([start_s]))[0]]
    if abs(start_s - first) <= _DRIFT / fps:
        wanted = wanted - (start_s - first)
    frames = _find_nearest(times, wanted)
    distance = np.abs(times[frames] - wanted)
    wrong = np.flatnonzero(~(distance <= tolerance_s))  # also where a time is NaN
    if len(wrong):
        row = int(wrong[0])
        rate = (len(times) - 1) / (times[-1] - times[0]) if len(times) > 1 and times[-1] > times[0] else 0.0
        if np.isfinite(wanted[row]) and wanted[row] > times[-1] + tolerance_s:
            raise ValueError(
                f"Frame {row} should be shown at {wanted[row]:.6g} s, but the video ends at {times[-1]:.6g} s "
                f"({len(times)} frames). {len(wrong)} of {len(wanted)} frames of the episode are missing."
            )
        raise ValueError(
            f"Frame {row} should be shown at {wanted[row]:.6g} s, and the nearest frame of the video is shown at "
            f"{times[frames[row]]:.6g} s, {distance[row]:.3g} s away; tolerance_s is {tolerance_s:g}. The video has "
            f"{rate:.4g} frames per second, the rows {fps:g}."
        )
    return frames


def _find_nearest(times: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return the number of the nearest time for each wanted one; the earlier of two that are equally near."""
    after = np.clip(np.searchsorted(times, np.nan_to_num(wanted)), 0, len(times) - 1)
    before = np.maximum(after - 1, 0)
    return np.where(np.abs(times[before] - wanted) <= np.abs(times[after] - wanted), before, after)


BadEpisodes = Literal["raise", "drop", "mask"]
TASK = "task"
_FORMAT = 3
_THREADS = 8


def open_table(
    folder: LeRobotFolder,
    *,
    tolerance_s: float = 1e-4,
    on_error: BadEpisodes = "raise",
    cache_dir: str | os.PathLike[str] | None = None,
) -> Episodes:
    """Return the table of a data set, from the cache folder if it is there. Its columns are named as the features.

    `task` has the text of each row. `numbers` of the table are the `episode_index` of its episodes.
    """
    checks.choice(on_error, BadEpisodes, "on_error")
    fingerprint = [*folder.fingerprint(), _FORMAT, tolerance_s, on_error]
    root = paths.expand_path(cache_dir) if cache_dir else get_cache_folder()
    key = whole_digest([tables.FORMAT, *fingerprint])
    path, pictures = os.path.join(root, "episodes", key), os.path.join(root, "videos", key)
    folder.forget()
    if os.path.exists(path):
        try:
            known = os.path.exists(pictures)
            return tables.load(path, LeRobotImages.load(pictures, folder.path, folder.options) if known else None)
        except (OSError, ValueError, LookupError, TypeError, EOFError) as error:
            warnings.warn(
                f"The table in {path} is damaged, so {redact.show(folder.path)} is read again "
                f"({type(error).__name__}: {error}).",
                BushelWarning,
                stacklevel=3,
            )
    table = dataclasses.replace(_build(folder, tolerance_s, on_error), fingerprint=fingerprint)
    folder.forget()
    try:
        parts = tables.find_image_files(table)
        if isinstance(parts, LeRobotImages):
            parts.save(pictures)
        tables.save(table, path, replace=True)
        mapped = LeRobotImages.load(pictures, folder.path, folder.options, verify=False) if parts else None
        return tables.load(path, mapped, verify=False)
    except OSError as error:
        warnings.warn(
            f"The table of {redact.show(folder.path)} cannot be written to {path} ({error}). It stays in memory, and "
            "the next run reads the data set again. Set cache_dir or $BUSHEL_CACHE_DIR to a folder that can be "
            "written.",
            BushelWarning,
            stacklevel=3,
        )
        return table


def _build(folder: LeRobotFolder, tolerance_s: float, on_error: BadEpisodes) -> Episodes:
    rows = read_rows(folder, tolerance_s)
    _report_lengths(rows, folder)
    _find_unknown_tasks(rows, folder)
    broken = [*rows.lost_files.values(), *rows.faults.values()]
    if broken and on_error == "raise":
        raise DamagedFile(f"{_show_first(broken)} Pass on_error='drop' to leave out such episodes.")
    videos = _Videos(folder, rows, tolerance_s)
    videos.find()
    if videos.overlaps and on_error == "raise":
        raise DamagedFile(
            f"{_show_first(videos.overlaps)} These episodes would get the frames of others. Correct from_timestamp and "
            "to_timestamp in meta/episodes, or pass on_error='drop' to leave out such episodes."
        )
    dropped = set(rows.faults)
    if on_error == "drop":
        dropped |= {episode for episode, _ in videos.faults}
    texts = broken + list(videos.faults.values())
    if texts:
        done = {
            "raise": "Reading their frames raises an error.",
            "drop": "They are left out.",
            "mask": "Their frames are black, and masked.",
        }[on_error]
        warnings.warn(
            f"{redact.show(folder.path)} has {len(texts)} faults in episodes. {done} The first fault: {texts[0]}",
            BushelWarning,
            stacklevel=4,
        )
    kept = ~np.isin(rows.episodes, list(dropped))
    if not kept.any():
        raise DamagedFile(f"{redact.show(folder.path)} has no episode that can be read. The first fault: {texts[0]}")
    return _make_table(folder, rows, videos, kept, masked=on_error == "mask")


def _show_first(sentences: Sequence[str]) -> str:
    """Return the first fault, and how many faults there are if it is not the only one."""
    return sentences[0] if len(sentences) == 1 else f"{sentences[0]} There are {len(sentences)} such faults."


def _report_lengths(rows: LeRobotRows, folder: LeRobotFolder) -> None:
    """Warn where `meta` says another length than the rows have. The rows count."""
    lengths = dict(zip(rows.episodes.tolist(), rows.lengths.tolist()))
    other = [
        (episode, facts.get("length"), lengths.get(episode, 0))
        for episode, facts in folder.episode_facts.items()
        if facts.get("length") is not None and facts.get("length") != lengths.get(episode, 0)
    ]
    if other and not rows.lost_files:
        episode, said, found = other[0]
        warnings.warn(
            f"{redact.show(folder.path)}: meta says that episode {episode} has {said} rows, but there are {found}. The "
            f"rows count. This is so for {len(other)} of {len(folder.episode_facts)} episodes.",
            BushelWarning,
            stacklevel=5,
        )


def _find_unknown_tasks(rows: LeRobotRows, folder: LeRobotFolder) -> None:
    """Note episodes with a `task_index` that has no text. A data set without a file of tasks has no texts at all."""
    try:
        known = folder.tasks
    except FileNotFoundError:
        return
    numbers = rows.columns["task_index"]
    missing = ~np.isin(numbers, list(known))
    owners = np.repeat(rows.episodes, rows.lengths)
    file = "meta/tasks.jsonl" if folder.version == 2 else "meta/tasks.parquet"
    for episode in np.unique(owners[missing]).tolist():
        number = int(numbers[missing & (owners == episode)][0])
        shown = f"{redact.show(folder.path)}/{file}"
        if known:
            fault = (
                f"Episode {episode} has the task_index {number}, but {shown} has only the tasks {min(known)} to "
                f"{max(known)}."
            )
        else:
            fault = f"Episode {episode} has the task_index {number}, but {shown} has no tasks."
        rows.faults.setdefault(episode, fault)


class _Videos:
    """Finds the frames of all episodes and cameras: the files, their packet tables, and what does not fit."""

    def __init__(self, folder: LeRobotFolder, rows: LeRobotRows, tolerance_s: float):
        self._folder, self._rows, self._tolerance_s = folder, rows, tolerance_s
        self.names: dict[str, int] = {}
        self.tables: list[PacketTable | None] = []
        self.sizes: list[int] = []
        self.depths: dict[str, DepthCode] = {}
        """What the codes mean, for files with depth."""
        self.shapes: dict[str, tuple[int, int, int]] = {}
        self.frames_of_videos: dict[str, np.ndarray] = {}
        """For each camera the file and the frame of each row; (-1, 0) where there is a fault."""
        self.faults: dict[tuple[int, str], str] = {}
        self.overlaps: list[str] = []
        """Of these faults those whose episodes would get frames of other episodes."""

    def find(self) -> None:
        cameras = self._folder.cameras
        if not cameras:
            return
        wanted: dict[tuple[int, str], VideoSpan] = {}
        for episode in self._rows.episodes.tolist():
            for camera in cameras:
                try:
                    wanted[episode, camera.name] = self._folder.find_video_span(episode, camera.name)
                except (ValueError, KeyError, IndexError) as error:
                    self._note(episode, camera.name, "", f"The place of its frames is not known. {error}")
        for key in self._check_spans(wanted):
            del wanted[key]
        errors = self._open({clip.path for clip in wanted.values()})
        starts = np.cumsum(self._rows.lengths) - self._rows.lengths
        for camera in cameras:
            self.shapes[camera.name] = self._find_shape(camera, wanted)
            self.frames_of_videos[camera.name] = np.tile(np.array([-1, 0], np.int64), (len(self._rows.file_rows), 1))
        for number, episode in enumerate(self._rows.episodes.tolist()):
            own_rows = slice(int(starts[number]), int(starts[number] + self._rows.lengths[number]))
            for camera in cameras:
                if (episode, camera.name) in wanted:
                    self._align(episode, camera.name, wanted[episode, camera.name], own_rows, errors)

    def _check_spans(self, wanted: Mapping[tuple[int, str], VideoSpan]) -> list[tuple[int, str]]:
        """Note the episodes and cameras whose spans in one file do not follow each other, and returns them."""
        lengths = dict(zip(self._rows.episodes.tolist(), self._rows.lengths.tolist()))
        files: dict[tuple[str, str], list[Span]] = {}
        for (episode, camera), clip in wanted.items():
            span = Span(episode, lengths[episode], clip.start_s, clip.stop_s)
            files.setdefault((clip.path, camera), []).append(span)
        found = []
        for (path, camera), spans in files.items():
            for episode, text in find_overlaps(spans, self._folder.fps, self._tolerance_s).items():
                self._note(episode, camera, path, text)
                self.overlaps.append(self.faults[episode, camera])
                found.append((episode, camera))
        return found

    def _open(self, paths: set[str]) -> dict[str, str]:
        """Read the packet tables of files. Return what is wrong with files that cannot be read."""
        errors: dict[str, str] = {}
        names = sorted(paths)
        progress = Progress("videos of the data set", len(names), unit="files")
        with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
            for name, (size, found) in zip(names, pool.map(self._read_table, names)):
                if isinstance(found, str):
                    errors[name] = found
                self.names[name] = len(self.tables)
                self.tables.append(None if isinstance(found, str) else found)
                self.sizes.append(size)
                progress.show(len(self.tables))
        progress.end()
        return errors

    def _read_table(self, name: str) -> tuple[int, PacketTable | str]:
        options = {key: value for key, value in self._folder.options.items() if not key.startswith("cache_")}
        try:
            file = file_access.open_file(self._folder.address(name), options)
        except (FileNotFoundError, NotADirectoryError):
            return 0, "The file is missing."
        try:
            return file.size, read_packet_table(file)
        except DamagedFile as error:
            return file.size, str(error)

    def _find_shape(self, camera: LeRobotFeature, wanted: Mapping[tuple[int, str], VideoSpan]) -> tuple[int, int, int]:
        """Return the size of a camera's frames: as `meta` says if a file has it, else that of the first file."""
        files = dict.fromkeys(clip.path for (_, name), clip in wanted.items() if name == camera.name)
        streams = [table.stream for table in (self.tables[self.names[file]] for file in files) if table is not None]
        sizes = [(stream.height, stream.width) for stream in streams]
        if camera.depth is not None:
            self.depths |= dict.fromkeys(files, camera.depth)
        channels = 3 if camera.depth is None else 1
        if camera.shape[:2] in sizes or not sizes:
            return (*camera.shape[:2], channels) if len(camera.shape) == 3 else (1, 1, channels)
        return (*sizes[0], channels)

    def _align(self, episode: int, camera: str, clip: VideoSpan, own_rows: slice, errors: Mapping[str, str]) -> None:
        number = self.names[clip.path]
        table = self.tables[number]
        if table is None:
            return self._note(episode, camera, clip.path, errors[clip.path])
        height, width, _ = self.shapes[camera]
        if (table.stream.height, table.stream.width) != (height, width):
            return self._note(
                episode,
                camera,
                clip.path,
                f"Its frames have {table.stream.height} x {table.stream.width} pixels, and those of other files of the "
                f"camera {height} x {width}",
            )
        columns = self._rows.columns
        seconds, numbers = columns["timestamp"][own_rows], columns["frame_index"][own_rows]
        try:
            frames = align_frames(seconds, numbers, self._folder.fps, clip.start_s, table.times, self._tolerance_s)
        except ValueError as error:
            return self._note(episode, camera, clip.path, str(error))
        self.frames_of_videos[camera][own_rows, 0] = number
        self.frames_of_videos[camera][own_rows, 1] = frames

    def _note(self, episode: int, camera: str, path: str, sentence: str) -> None:
        where = f" in {redact.show(self._folder.address(path))}" if path else ""
        self.faults[episode, camera] = f"Episode {episode}, {camera}{where}: {sentence}"


def _make_table(
    folder: LeRobotFolder, rows: LeRobotRows, videos: _Videos, kept: np.ndarray, *, masked: bool
) -> Episodes:
    chosen = np.repeat(kept, rows.lengths)
    lengths = rows.lengths[kept]
    faults = list(videos.faults.items())
    catalog = Catalog(
        list(videos.names),
        videos.sizes,
        [name for name in folder.data_files.values() if name not in rows.lost_files],
        [feature.name for feature in folder.features.values() if feature.dtype == "image"],
        [(text, videos.shapes[camera]) for (_, camera), text in faults],
        {name: dataclasses.astuple(code) for name, code in videos.depths.items()},
    )
    parts = LeRobotImages(folder.path, catalog, PacketTables.of(videos.tables), folder.options)
    owners = np.repeat(rows.episodes, rows.lengths)[chosen]
    columns: dict[str, Any] = {}
    for name, values in rows.columns.items():
        columns[name] = make_column(values[chosen])
    for feature in folder.features.values():
        addresses = np.zeros((int(chosen.sum()), 3), np.int64)
        if feature.dtype == "image":
            addresses[:] = np.stack(
                [
                    np.full(len(addresses), parts.image_record(feature.name)),
                    rows.file_rows[chosen],
                    np.ones(len(addresses), np.int64),
                ],
                axis=1,
            )
        elif feature.dtype == "video":
            shape = videos.shapes[feature.name]
            addresses[:, :2] = videos.frames_of_videos[feature.name][chosen]
            addresses[:, 2] = int(np.prod(shape))
            for number, ((episode, camera), _) in enumerate(faults):
                if camera == feature.name:
                    addresses[owners == episode] = (parts.fault_record(number), 0, 0 if masked else 1)
        else:
            continue
        columns[feature.name] = Images(parts, addresses)
    columns[TASK] = _make_tasks(folder, rows.columns["task_index"][chosen])
    return Episodes(columns, lengths, numbers=rows.episodes[kept])


def _make_tasks(folder: LeRobotFolder, numbers: np.ndarray) -> Texts | Numbers:
    """Return the text of each row's task. Without a file of tasks all texts are empty."""
    distinct, codes = np.unique(numbers, return_inverse=True)
    with contextlib.suppress(FileNotFoundError):
        known = folder.tasks
        return Texts(codes.astype(np.int32), to_objects([known[int(n)].encode() for n in distinct]))
    return Texts(np.zeros(len(numbers), np.int32), to_objects([b""]))

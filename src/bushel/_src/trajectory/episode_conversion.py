"""`convert_episodes` and `reencode_videos`: a data set into another format, or with other videos.

The work runs in parallel, is verified, and continues after it was interrupted. The formats are in `episode_targets.py`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import itertools
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from bushel._src.base import checked_files, checks, redact
from bushel._src.base.errors import DamagedFile
from bushel._src.base.hints import renamed_arguments
from bushel._src.base.options import RayOptions, find_job_options
from bushel._src.base.public import public
from bushel._src.base.shown_text import Progress, Shown, Written
from bushel._src.sources import conversion_workers, file_access, folders, paths
from bushel._src.sources.conversion import RunAll
from bushel._src.sources.folders import Folder
from bushel._src.sources.paths import Options, Path
from bushel._src.state.digest import whole_digest
from bushel._src.trajectory import episodes as tables
from bushel._src.trajectory.config_values import Function
from bushel._src.trajectory.conversion_table import Shard, Target, build_table, choose_splits, concatenate_state
from bushel._src.trajectory.encoded_images import ImageFiles
from bushel._src.trajectory.episode_builder import EpisodeBuilder, EpisodeFormat, EpisodeSource, detect_kind, open_path
from bushel._src.trajectory.episode_targets import LeRobotTarget, RLDSTarget
from bushel._src.trajectory.episodes import Episodes
from bushel._src.trajectory.lerobot.dataset_folder import is_depth
from bushel._src.trajectory.rlds.dataset_folder import is_version
from bushel._src.trajectory.rlds.writer import ImageFormat
from bushel._src.trajectory.standardization_steps import identify_standardization, load_standardization
from bushel._src.trajectory.video_encoding import Codec, Encoding, decode_all, encode_frames, verify_video

_WORK = ".converting/"
_PLAN = f"{_WORK}plan.json"
_FRAMES_PER_SHARD = 50_000
Format = Literal["rlds", "lerobot"]
"""What can be written."""


@public("bushel.trajectory")
@renamed_arguments(to="format", kind="source_format")
def convert_episodes(
    source: Path,
    target: Path,
    *,
    format: Format,
    source_format: EpisodeFormat | None = None,
    split: str | None = None,
    standardize_fn: Function | Sequence[Any] | None = None,
    drop: Sequence[str] = (),
    state_keys: Sequence[str] = (),
    fps: float | None = None,
    task: str = "",
    robot_type: str | None = None,
    codec: Codec | None = "h264",
    key_frame_interval: int = 2,
    crf: int = 30,
    file_format: Literal["tfrecord", "array_record"] = "tfrecord",
    image_format: ImageFormat | Mapping[str, ImageFormat] = "png",
    shards: int | None = None,
    workers: int | None = None,
    verify: bool = True,
    overwrite: bool = False,
    storage_options: Options | None = None,
    target_storage_options: Options | None = None,
    format_options: Mapping[str, Any] | None = None,
    progress: Shown = True,
) -> Written:
    """Convert a data set of episodes. A run after a kill, with the same arguments, continues it.

    `skipped` of the answer is the number of episodes without steps, which are left out.

    Inside a `bushel.ray.jobs_on_cluster` block actors of the cluster write the shards. The files are the same as those
    of one machine with as many shards. All machines must be able to read the source and to write the target.

    Args:
      source: the data set: a folder, or the file of robomimic; here or in a store.
      target: the folder of the new data set, here or in a store. For RLDS its name is the name of the data set, and
        the files lie in a folder for the version inside: data/arm means data/arm/1.0.0.
      format: the format to write: "rlds", or "lerobot" for LeRobot v3.
      source_format: the format to read, see `open_episodes`; by default it is found out from the files.
      split: only this split of the source, such as "train[:10]"; by default all, and splits are kept.
      standardize_fn: a function of a raw trajectory that returns a changed one, with entries renamed, added or left
        out: a callable, a ModuleSpec, or a list of statements (`docs/oxe.md`).
      drop: entries that are left out, such as "next_observation" or "observation/depth".
      state_keys: entries of the observation that become one, `observation/state`, one after another.
      fps: steps per second, for LeRobot; by default what the source says.
      task: for LeRobot, the instruction of steps that have none.
      robot_type: for LeRobot, the name of the robot.
      codec: for LeRobot, the codec of videos: "h264", "hevc" or "av1". None keeps images in the rows, without loss.
      key_frame_interval: for LeRobot, frames from one key frame to the next.
      crf: for LeRobot, the quality of videos; smaller numbers are better.
      file_format: for RLDS, "tfrecord" or "array_record".
      image_format: for RLDS, the format of images that are not encoded yet: "png" or "jpeg", or one for each entry.
      shards: how many files each split gets; by default one for each 50,000 frames. On a cluster it must be given: an
        actor writes one shard at a time, so make more shards than actors.
      workers: processes that read and write at the same time, each of them one file; by default one per core.
      verify: reads back and compares all that was written; videos are decoded.
      overwrite: removes a data set of the same format that is there, or a conversion that was interrupted.
      storage_options: the options of the store of the source.
      target_storage_options: the options of the store of the target; by default the same.
      format_options: the options of the source's format, see `open_episodes`.
      progress: whether to show a progress bar on a terminal; or a function that is called from time to time with
        the number of frames done, and the number of all frames.

    >>> folder = tempfile.mkdtemp()
    >>> os.mkdir(f"{folder}/mine")
    >>> np.savez(f"{folder}/mine/0.npz", state=np.zeros((5, 3)), action=np.zeros((5, 2)))
    >>> written = convert_episodes(f"{folder}/mine", f"{folder}/rlds/mine", format="rlds")
    >>> written.elements
    1
    """
    checks.choice(format, Format, "format")
    if codec is not None:
        checks.choice(codec, Codec, "codec")
    checks.choice(file_format, ("tfrecord", "array_record"), "file_format")
    for one in image_format.values() if isinstance(image_format, Mapping) else [image_format]:
        checks.choice(one, ImageFormat, "image_format")
    if format == "rlds":
        given = {
            "fps": fps is not None,
            "task": bool(task),
            "robot_type": robot_type is not None,
            "codec": codec != "h264",
            "key_frame_interval": key_frame_interval != 2,
            "crf": crf != 30,
        }
        checks.unused(given, 'with format="rlds": LeRobot data sets have it', "Leave it out")
    else:
        given = {"file_format": file_format != "tfrecord", "image_format": image_format != "png"}
        checks.unused(given, 'with format="lerobot": RLDS data sets have it', "Leave it out")
        video = {"key_frame_interval": key_frame_interval != 2, "crf": crf != 30}
        if codec is None:
            checks.unused(video, "with codec=None, since no video is written", "Write codec='h264'")
    if workers is None:
        private = any(map(paths.only_this_process_sees, (source, target)))
        workers = 1 if private else os.cpu_count() or 1
    workers = checks.positive(workers, "workers")
    cluster = _find_cluster()
    if cluster is not None:
        if shards is None:
            raise ValueError("On a cluster, pass shards (--shards): an actor writes one shard at a time.")
        workers = max(2, workers)  # the table is read by actors, too
        source, target = _make_absolute(source), _make_absolute(target)  # actors have other working directories
    builder = _open_source(source, source_format, storage_options, format_options)
    address = paths.normalize_path(target)
    if format == "rlds" and not is_version(address.rstrip("/").rpartition("/")[2]):
        address = folders.join_path(address, "1.0.0")
    folder = folders.open_folder(address, storage_options if target_storage_options is None else target_storage_options)
    refuse_same(paths.expand_path(source), folder)
    if format == "rlds":
        made: Target = RLDSTarget(folder.address, file_format, image_format)
    else:
        rate = fps or builder.fps
        if rate is None:
            raise ValueError(f"{builder.name} does not say how many steps a second has. Pass fps (--fps).")
        encoding = None if codec is None else Encoding(codec, key_frame_interval, crf)
        made = LeRobotTarget(rate, encoding, task, robot_type)
    function = None if standardize_fn is None else load_standardization(standardize_fn)
    splits = choose_splits(builder, split)
    code = "" if standardize_fn is None else identify_standardization(standardize_fn)
    positions = {name: part.tolist() for name, part in splits.items()}
    content = [builder.episodes("all").fingerprint(), positions, code, list(drop), list(state_keys)]
    identity = whole_digest([content, made.settings(), shards])
    _begin(folder, made, identity, overwrite)

    def build() -> tuple[Episodes, dict[str, int]]:
        table, counts = build_table(builder, splits, function, drop, workers)
        return made.prepare(concatenate_state(table, state_keys)), counts

    with _working_folder(folder) as work:
        table, counts = _load_or_build(work, builder.episodes("all").parts, build)
        planned = _plan_shards(table, counts, shards, builder.episodes("all"))
        title = f"converting to {redact.base_name(os.fspath(target))}"
        with Progress(title, table.frames, unit="frames", shown=progress) as bar:
            _run(table, planned, made, folder, workers, verify, bar, cluster)
        facts = [_read_facts(shard, folder) for shard in planned]
        made.finish(table, planned, facts, folder)
        left_out = sum(map(len, splits.values())) - len(table)
    _remove_work(folder)
    files = tuple(folder.path(name) for name in folder.names(deep=True) if made.belongs(name))
    return Written(folder.address, files, len(table), left_out)


def _find_cluster() -> RunAll | None:
    """Return what runs jobs on the cluster of a `jobs_on_cluster` block; None outside of one."""
    options = find_job_options()
    if not isinstance(options, RayOptions):
        return None
    from bushel._src.datasets import cluster_jobs as ray

    return functools.partial(ray.run_jobs, options)


def _make_absolute(path: Path) -> str:
    text = paths.expand_path(path)
    return text if paths.is_url(text) else os.path.abspath(text)


def _open_source(
    source: Path, kind: str | None, storage_options: Options | None, format_options: Mapping[str, Any] | None
) -> EpisodeBuilder:
    path = paths.expand_path(source)
    return open_path(path, kind or detect_kind(path, storage_options), storage_options, format_options)


def refuse_same(source: str, folder: Folder) -> None:
    """Raise ValueError if the target would be written over the source."""
    here, there = source.rstrip("/"), folder.address.rstrip("/")
    if folder.on_disk and not paths.is_url(here):
        here, there = os.path.realpath(here), os.path.realpath(there)
    if f"{here}/".startswith(f"{there}/") or f"{there}/".startswith(f"{here}/"):
        raise ValueError(f"The target {folder.name} lies in the source, or contains it. Choose another folder.")


def _begin(folder: Folder, target: Target, identity: str, overwrite: bool) -> None:
    """Look at what is in the folder: nothing, a part of this conversion, or something else."""
    has_plan = folder.exists(_PLAN)
    if overwrite:
        if has_plan or folder.exists(target.last_file):  # else the files that look like its own are someone else's
            _remove_data_set(folder, target)
    elif folder.exists(target.last_file) and not has_plan:
        raise FileExistsError(
            f"{folder.name} has a data set already ({target.last_file}). Pass overwrite=True (--overwrite) to replace "
            "it."
        )
    elif has_plan:
        plan = checked_files.parse_json(folder.read(_PLAN), folder.shown(_PLAN))
        if plan["identity"] == identity:
            remove_half_files(folder)
            return
        if any(map(target.belongs, folder.names(deep=True))):
            raise FileExistsError(
                f"{folder.name} has a part of another conversion, which was interrupted: of other data, or with other "
                "arguments. Pass overwrite=True (--overwrite) to begin anew."
            )
        _remove_data_set(folder, target)  # it ended before it had written a file of the data set
    folder.write(_PLAN, checked_files.json_bytes({"identity": identity}))


def remove_half_files(folder: Folder) -> None:
    """Remove the files that a killed run has not completed."""
    bases = {name: name.rpartition("/")[2] for name in folder.names(deep=True)}
    folder.remove(name for name, base in bases.items() if base.startswith(".") and base.endswith(checked_files.WRITING))


def _remove_data_set(folder: Folder, target: Target) -> None:
    """Remove the files of a data set of the same format, first the one that makes it a data set."""
    names = [name for name in folder.names(deep=True) if target.belongs(name) or name.startswith(_WORK)]
    folder.remove(sorted(names, key=lambda name: name != target.last_file))


def _remove_work(folder: Folder) -> None:
    names = [name for name in folder.names(deep=True) if name.startswith(_WORK)]
    folder.remove(sorted(names, key=lambda name: name == _PLAN))  # the plan last: without it the rest is not known
    if folder.on_disk:
        shutil.rmtree(folder.path(_WORK.rstrip("/")), ignore_errors=True)


@contextlib.contextmanager
def _working_folder(folder: Folder) -> Iterator[str]:
    """A local folder for the table: inside the target, where a later run finds it, or a temporary one for a store."""
    if folder.on_disk:
        yield folder.path(_WORK.rstrip("/"))
        return
    with tempfile.TemporaryDirectory(prefix="bushel-", ignore_cleanup_errors=True) as work, folder.drafting():
        yield work


def _load_or_build(
    work: str, files: ImageFiles, build: Callable[[], tuple[Episodes, dict[str, int]]]
) -> tuple[Episodes, dict[str, int]]:
    """Return the table of all episodes: from an earlier run of the same conversion, or from the source."""
    saved, counted = os.path.join(work, "table"), os.path.join(work, "splits.json")
    if os.path.exists(counted):
        with contextlib.suppress(DamagedFile, OSError, ValueError):
            return tables.load(saved, files), checked_files.read_json(counted)["counts"]
    table, counts = build()
    os.makedirs(work, exist_ok=True)
    table = tables.save(table, saved, replace=True)
    checked_files.write_json(counted, {"counts": counts})
    return table, counts


def _plan_shards(table: Episodes, counts: Mapping[str, int], shards: int | None, source: EpisodeSource) -> list[Shard]:
    """Return consecutive episodes of each split, with about the same number of frames in each shard."""
    assert table.numbers is not None
    planned: list[Shard] = []
    first = 0
    for split, count in counts.items():
        ends = np.cumsum(table.lengths[first : first + count])
        wanted = checks.positive(shards, "shards") if shards else max(1, -(-int(ends[-1]) // _FRAMES_PER_SHARD))
        wanted = min(wanted, count)
        cuts = np.searchsorted(ends, ends[-1] * np.arange(1, wanted) / wanted, side="left") + 1
        bounds = [0, *np.unique(np.clip(cuts, 1, count - 1)).tolist(), count] if count > 1 else [0, count]
        bounds = sorted(set(bounds))
        for number, (low, high) in enumerate(itertools.pairwise(bounds)):
            ends_at = first + low, first + high
            names = tuple(source.describe(int(place)) for place in table.numbers[slice(*ends_at)])
            planned.append(Shard(split, number, len(bounds) - 1, len(planned), *ends_at, names))
        first += count
    return planned


def _name_facts(shard: Shard) -> str:
    return f"{_WORK}shard-{shard.index:05d}.json"


def _read_facts(shard: Shard, folder: Folder) -> Any:
    try:
        data = folder.read(_name_facts(shard))
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{folder.shown(_name_facts(shard))} was written, but this process cannot see it. If other machines wrote "
            "it, the target must lie in a store, or on a disk that all machines share."
        ) from None
    return checked_files.parse_json(data, _name_facts(shard))["facts"]


@dataclasses.dataclass(frozen=True, repr=False)
class _ShardJob:
    """One shard, as a worker process writes it."""

    table: Episodes
    shard: Shard
    target: Target
    folder: Folder
    verify: bool

    def run(self) -> Iterator[int]:
        facts: Any = None
        for frames, found in self.target.write_shard(self.table, self.shard, self.folder, self.verify):
            facts = found if found is not None else facts
            if frames:
                yield frames
        self.folder.write(_name_facts(self.shard), checked_files.json_bytes({"facts": facts}))

    @property
    def shown(self) -> str:
        return f"the episodes {self.shard.low} to {self.shard.high - 1} of {self.folder.name}"


def _run(
    table: Episodes,
    planned: list[Shard],
    target: Target,
    folder: Folder,
    workers: int,
    verify: bool,
    bar: Progress,
    cluster: RunAll | None,
) -> None:
    jobs, done = [], 0
    if cluster is not None:
        table = table._for_other_machines()
    for shard in planned:
        if folder.exists(_name_facts(shard)):
            done += int(table.lengths[shard.low : shard.high].sum())
        else:
            jobs.append(_ShardJob(table, shard, target, folder, verify))
    bar.show(done)
    if cluster is not None:
        if jobs:
            cluster(jobs, workers, lambda more: bar.show(done + more))
            remove_half_files(folder)  # of actors that have died
        return
    if workers > 1 and len(jobs) > 1:
        conversion_workers.run_all(jobs, workers, lambda more: bar.show(done + more))
        return
    for job in jobs:
        for frames in job.run():
            done += frames
            bar.show(done)


_VIDEO_WORK = ".converting/"
_VIDEO_PLAN = f"{_VIDEO_WORK}plan.json"
INFO = "meta/info.json"


@public("bushel.trajectory")
def reencode_videos(
    source: Path,
    target: Path,
    *,
    codec: Codec = "h264",
    key_frame_interval: int = 2,
    crf: int = 30,
    workers: int | None = None,
    verify: bool = True,
    storage_options: Options | None = None,
    target_storage_options: Options | None = None,
    progress: Shown = True,
) -> Written:
    """Copy a LeRobot folder, v2.1 or v3.0, with videos encoded anew. `elements` of the answer are the videos.

    A file with few key frames is slow to read at random: each frame costs as much as all frames since the key frame
    before it. Rows, tasks and times of frames stay as they are. A run after a kill, with the same arguments, continues.

    Args:
      source: the folder of the data set, here or in a store.
      target: the new folder.
      codec: "h264", "hevc" or "av1".
      key_frame_interval: frames from one key frame to the next.
      crf: the quality; smaller numbers are better.
      workers: processes that encode at the same time; by default one per core.
      verify: decodes what was written and compares it.
      storage_options: the options of the store of the source.
      target_storage_options: the options of the store of the target; by default the same.
      progress: whether to show a progress bar on a terminal; or a function that is called with the number of videos
        that are done, and of all videos.
    """
    encoding = Encoding(codec, key_frame_interval, crf)
    here = folders.open_folder(source, storage_options)
    there = folders.open_folder(target, storage_options if target_storage_options is None else target_storage_options)
    refuse_same(paths.expand_path(source), there)
    try:
        info = json.loads(here.read(INFO))
    except FileNotFoundError:
        raise FileNotFoundError(f"{here.name} is no LeRobot data set: it has no {INFO}.") from None
    names = [name for name in here.names(deep=True) if not name.startswith(_VIDEO_WORK)]
    features = info.get("features", {})
    # Depth is a code of 12 bits: encoded again with loss it would be something else. These videos are copied.
    depths = {key for key, feature in features.items() if feature.get("dtype") == "video" and is_depth(feature)}
    videos = [name for name in names if name.endswith(".mp4") and depths.isdisjoint(name.split("/"))]
    versions = file_access.fingerprint_files([here.path(name) for name in videos], storage_options)
    identity = whole_digest([versions, names, dataclasses.astuple(encoding)])
    _begin_videos(there, identity)
    jobs = [
        _VideoJob(here, there, name, float(info["fps"]), encoding, verify)
        for name in videos
        if not there.exists(_name_done(name))
    ]
    done = len(videos) - len(jobs)
    with (
        Progress(f"encoding {redact.base_name(there.address)}", len(videos), unit="videos", shown=progress) as bar,
        there.drafting(),
    ):
        bar.show(done)
        if workers is None:
            private = any(map(paths.only_this_process_sees, (source, target)))
            workers = 1 if private else os.cpu_count() or 1
        workers = checks.positive(workers, "workers")
        if workers > 1 and len(jobs) > 1:
            conversion_workers.run_all(jobs, workers, lambda more: bar.show(done + more))
        else:
            for job in jobs:
                done += sum(job.run())
                bar.show(done)
    for name in names:
        if name != INFO and name not in videos:
            there.write(name, here.read(name))
    for key, feature in features.items():
        known = feature.get("info") or feature.get("video_info")
        if feature.get("dtype") == "video" and key not in depths and isinstance(known, dict):
            known["video.codec"] = codec
            if "video.g" in known:
                known["video.g"] = key_frame_interval
            if "video.crf" in known:
                known["video.crf"] = crf
    there.write(INFO, json.dumps(info, indent=4).encode())
    there.remove(
        sorted((name for name in there.names(deep=True) if name.startswith(_VIDEO_WORK)), key=_VIDEO_PLAN.__eq__)
    )
    return Written(there.address, tuple(map(there.path, names)), len(videos))


def _begin_videos(folder: Folder, identity: str) -> None:
    if folder.exists(_VIDEO_PLAN):
        if checked_files.parse_json(folder.read(_VIDEO_PLAN), folder.shown(_VIDEO_PLAN))["identity"] == identity:
            remove_half_files(folder)
            return
        raise FileExistsError(
            f"{folder.name} has a part of another conversion, which was interrupted. Remove it, or choose another "
            "folder."
        )
    if folder.exists(INFO):
        raise FileExistsError(f"{folder.name} has a data set already ({INFO}). Choose another folder.")
    folder.write(_VIDEO_PLAN, checked_files.json_bytes({"identity": identity}))


def _name_done(video: str) -> str:
    return f"{_VIDEO_WORK}{video.replace('/', '@')}.done"


@dataclasses.dataclass(frozen=True, repr=False)
class _VideoJob:
    """One video."""

    source: Folder
    target: Folder
    name: str
    fps: float
    encoding: Encoding
    verify: bool

    def run(self) -> Iterator[int]:
        shown = self.source.shown(self.name)
        content = self.source.read(self.name)
        data, prints = encode_frames(self._read_frames(content, shown), self.fps, self.encoding)
        with self.target.new_file(self.name) as path:
            with open(path, "wb") as file:
                file.write(data)
            if self.verify:
                verify_video(path, self.target.shown(self.name), self.fps, prints)
        self.target.write(_name_done(self.name), b"")
        yield 1

    def _read_frames(self, content: bytes, shown: str) -> Iterator[np.ndarray]:
        for number, (time, _, pixels) in enumerate(decode_all(io.BytesIO(content), shown)):
            if abs(time - number / self.fps) > 0.1 / self.fps:
                raise DamagedFile(
                    f"{shown}: frame {number} is shown at {time:.4f} s, and not at {number / self.fps:.4f} s, though "
                    f"info.json says {self.fps:g} frames per second. Only videos of a constant rate are encoded anew."
                )
            yield pixels

    @property
    def shown(self) -> str:
        return redact.show(self.name)

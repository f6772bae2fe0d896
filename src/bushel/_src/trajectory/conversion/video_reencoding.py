"""`reencode_videos`: the videos of a LeRobot folder with another codec or interval of key frames."""

from __future__ import annotations

import dataclasses
import io
import json
import os
from collections.abc import Iterator

import numpy as np

from bushel._src.base import checks, redact, sealed
from bushel._src.base.errors import DamagedFile
from bushel._src.base.progress import Progress, Shown
from bushel._src.base.public import public
from bushel._src.base.written import Written
from bushel._src.sources import conversion_workers, file_access, output_folders, paths
from bushel._src.sources.output_folders import Folder
from bushel._src.sources.paths import Options, Path
from bushel._src.state.digest import whole_digest
from bushel._src.trajectory.conversion.episode_conversion import refuse_same, remove_half_files
from bushel._src.trajectory.conversion.video_encoding import Codec, Encoding, decode_all, encode_frames, verify_video
from bushel._src.trajectory.lerobot.depth_code import is_depth

_WORK = ".converting/"
_PLAN = f"{_WORK}plan.json"
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
    """Copies a LeRobot folder, v2.1 or v3.0, with videos encoded anew. `elements` of the answer are the videos.

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
    here = output_folders.open_folder(source, storage_options)
    there = output_folders.open_folder(
        target, storage_options if target_storage_options is None else target_storage_options
    )
    refuse_same(paths.expand_path(source), there)
    try:
        info = json.loads(here.read(INFO))
    except FileNotFoundError:
        raise FileNotFoundError(f"{here.name} is no LeRobot data set: it has no {INFO}.") from None
    names = [name for name in here.names(deep=True) if not name.startswith(_WORK)]
    features = info.get("features", {})
    # Depth is a code of 12 bits: encoded again with loss it would be something else. These videos are copied.
    depths = {key for key, feature in features.items() if feature.get("dtype") == "video" and is_depth(feature)}
    videos = [name for name in names if name.endswith(".mp4") and depths.isdisjoint(name.split("/"))]
    versions = file_access.fingerprint_files([here.path(name) for name in videos], storage_options)
    identity = whole_digest([versions, names, dataclasses.astuple(encoding)])
    _begin(there, identity)
    jobs = [
        _Job(here, there, name, float(info["fps"]), encoding, verify)
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
    there.remove(sorted((name for name in there.names(deep=True) if name.startswith(_WORK)), key=_PLAN.__eq__))
    return Written(there.address, tuple(map(there.path, names)), len(videos))


def _begin(folder: Folder, identity: str) -> None:
    if folder.exists(_PLAN):
        if sealed.parse_json(folder.read(_PLAN), folder.shown(_PLAN))["identity"] == identity:
            remove_half_files(folder)
            return
        raise FileExistsError(
            f"{folder.name} has a part of another conversion, which was interrupted. Remove it, or choose another "
            "folder."
        )
    if folder.exists(INFO):
        raise FileExistsError(f"{folder.name} has a data set already ({INFO}). Choose another folder.")
    folder.write(_PLAN, sealed.json_bytes({"identity": identity}))


def _name_done(video: str) -> str:
    return f"{_WORK}{video.replace('/', '@')}.done"


@dataclasses.dataclass(frozen=True, repr=False)
class _Job:
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

    def describe(self) -> str:
        return f"encoded {redact.show(self.name)}"

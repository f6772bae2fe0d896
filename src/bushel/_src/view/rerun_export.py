"""Robot data as a file for the Rerun viewer (`.rrd`): whole episodes, or the samples that training sees.

What is in an element is found by `robot_elements.py`, and its episode by `episode_lookup.py`. Rerun draws it.
"""

from __future__ import annotations

import collections
import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bushel._src.base import checks
from bushel._src.base.late_imports import import_package
from bushel._src.base.public import public
from bushel._src.base.shown_text import Written
from bushel._src.display import pictures as media
from bushel._src.trajectory.encoded_images import Encoded, read_all
from bushel._src.view.episode_lookup import EpisodeStep, find_episode_step
from bushel._src.view.robot_elements import (
    Camera,
    RobotSample,
    count_rows,
    describe_episode,
    describe_sample,
    is_batched,
    take_row,
)
from bushel._src.view.session import ElementReading, Session
from bushel._src.view.targets import open_session

EPISODES = 10
SAMPLES = 100
"""How many elements are written if the user does not say it."""

_TOGETHER = 64  # images that are read and sent at once
_ENCODED = {b"\x89PNG": "image/png", b"\xff\xd8\xff": "image/jpeg"}


@public("bushel.view")
def to_rerun(
    target: Any,
    path: str | os.PathLike[str],
    *,
    elements: Iterable[int] | None = None,
    split: str | None = None,
    overwrite: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> Written:
    """Write robot data into a file for the Rerun viewer. This needs the extra `rerun`.

    Elements that are whole episodes are shown over their steps: cameras, actions, proprioception and instruction, each
    episode with views of its own. Elements that are samples are shown in their order: the window of each camera, the
    goals, the chunk of actions, and where it is padding. Images that are stored as PNG or JPEG are not encoded again;
    others become PNG, without loss.

    >>> bushel.view.to_rerun("data/arm", "arm.rrd", elements=range(3)).elements  # doctest: +SKIP
    3

    Args:
      target: what `bushel.view` takes: a dataset, a loader, a path.
      path: the file to write, such as "arm.rrd". `rerun arm.rrd` opens it.
      elements: the positions of elements; by default the first 10 episodes, or the first 100 samples. Of batches, all
        rows are written.
      split: the split of a robot data set, where the target is a path or a builder.
      overwrite: replaces an existing file.
      storage_options: options of the source, where the target is a path.
    """
    name = os.fspath(path)
    if not overwrite and os.path.exists(name):
        raise FileExistsError(f"{name} exists. Pass overwrite=True to replace it.")
    if not os.path.isdir(os.path.dirname(name) or "."):
        raise FileNotFoundError(f"There is no folder {os.path.dirname(name)} to write {os.path.basename(name)} into.")
    session = (
        target if isinstance(target, Session) else open_session(target, split=split, storage_options=storage_options)
    )
    try:
        return Written(name, (name,), export_session(session, name, elements))
    finally:
        if session is not target:
            session.close()


def export_session(session: Session, path: str, elements: Iterable[int] | None = None) -> int:
    """Write elements of the last step of a session: see `to_rerun`. The file appears when it is complete."""
    rerun: Any = import_package("rerun", "rerun", "Files for Rerun")
    node = session.last.node
    episode_step = find_episode_step(node, 0)
    whole = episode_step is not None and episode_step.is_episode
    if elements is None:
        end, length = session.start + (EPISODES if whole else SAMPLES), session.last.length
        elements = range(session.start, end if length is None else min(end, length))
    temporary = f"{path}.writing"
    recording = rerun.RecordingStream("bushel", send_properties=True)
    recording.save(temporary)
    try:
        recording.send_recording_name(session.target or os.path.basename(path))
        writer = _Writer(rerun, recording)
        count = _write_elements(session, writer, elements, whole)
        writer.send_blueprint()
        recording.flush()
        recording.disconnect()
        if not count:
            raise ValueError(
                "There is no robot data in these elements: no entry `action`, and no camera. Nothing was written."
            )
        os.replace(temporary, path)
    finally:
        recording.disconnect()
        if os.path.exists(temporary):
            os.remove(temporary)
    return count


def _write_elements(session: Session, writer: _Writer, elements: Iterable[int], whole: bool) -> int:
    node, count, length = session.last.node, 0, session.last.length
    for entry in elements:
        index = checks.integer(entry, "An entry of elements")
        if whole and length is not None and index >= length:
            break  # another epoch has the same episodes
        reading = _read(session, index)
        if reading.ended is not None:
            break
        if not reading.has_element:
            continue
        if whole:
            found = find_episode_step(node, reading.index)
            assert found is not None
            writer.write_episode(reading.element, found)
            count += 1
            continue
        element = reading.element
        rows = [take_row(element, row) for row in range(count_rows(element))] if is_batched(node) else [element]
        for row, sample in enumerate(rows):
            if not isinstance(sample, Mapping):
                continue
            found = find_episode_step(node, reading.index, row)
            described = describe_sample(
                sample, time=None if found is None else found.time, offsets=None if found is None else found.offsets
            )
            if described.actions or described.cameras:
                writer.write_sample(described, found)
                count += 1
    return count


def _read(session: Session, index: int) -> ElementReading:
    reading = session.read(-1, index)
    while reading.progress is not None:  # a stream is read forward for some seconds in each call
        reading = session.read(-1, index)
    if reading.error:
        raise ValueError(f"Element {index} cannot be read: {reading.error}")
    return reading


@dataclasses.dataclass
class _Views:
    """The entities of one tab of the Rerun viewer."""

    name: str
    cameras: dict[str, None] = dataclasses.field(default_factory=dict)
    curves: dict[str, None] = dataclasses.field(default_factory=dict)
    tensors: dict[str, None] = dataclasses.field(default_factory=dict)
    texts: dict[str, None] = dataclasses.field(default_factory=dict)


class _Writer:
    """Sends episodes and samples to a recording, and lays out the views."""

    def __init__(self, rerun: Any, recording: Any):
        self._rerun, self._recording = rerun, recording
        self._tabs: collections.OrderedDict[str, _Views] = collections.OrderedDict()
        self._named: set[str] = set()
        self._sample = 0

    def write_episode(self, tree: Mapping[str, Any], episode_step: EpisodeStep) -> None:
        """A whole episode: everything over its steps."""
        root = [*filter(None, episode_step.dataset.split("/")), f"episode_{episode_step.episode}"]
        length = count_rows(tree)
        if not length:
            return
        views = self._tabs.setdefault("/".join(root), _Views(" ".join(root)))
        for curve in describe_episode(tree):
            kind = "action" if curve.name.startswith("action") else "observation"
            self._send_curve([*root, kind, curve.name], curve.values[0], np.arange(length), episode_step.fps, views)
        samples = [describe_sample(take_row(tree, step), time=step) for step in range(length)]
        cameras: dict[str, dict[int, Camera]] = {}
        for step, sample in enumerate(samples):
            for camera in sample.cameras:
                cameras.setdefault(camera.name, {})[step] = camera
        for name, by_step in cameras.items():
            steps = np.array(list(by_step))
            self._send_images([*root, "camera", name], list(by_step.values()), steps, episode_step.fps, views)
        self._send_texts([*root, "instruction"], [sample.instruction for sample in samples], episode_step.fps, views)

    def write_sample(self, sample: RobotSample, episode_step: EpisodeStep | None) -> None:
        """One sample: its window, its chunk of actions, its goals."""
        views = self._tabs.setdefault("samples", _Views("samples"))
        recording, rerun = self._recording, self._rerun
        recording.set_time("sample", sequence=self._sample)
        self._sample += 1
        for kind, cameras in (("camera", sample.cameras), ("goal", sample.goals)):
            for camera in cameras:
                for slot in range(len(camera.frames)):
                    name = camera.name if len(camera.frames) == 1 else f"{camera.name}_slot_{slot}"
                    self._log_image(self._path(["samples", kind, name]), camera, slot, views)
        for chunks in sample.actions:
            entity = self._path(["samples", "action", chunks.name])
            now = np.where(chunks.real[-1, 0], chunks.values[-1, 0], np.nan)
            self._name_series(entity, chunks.values.shape[-1])
            recording.log(entity, rerun.Scalars(now))
            views.curves[entity] = None
            padded = np.where(chunks.real, chunks.values, np.nan)
            entity = self._path(["samples", "chunk", chunks.name])
            recording.log(entity, rerun.Tensor(padded, dim_names=("slot", "step", "dimension")))
            views.tensors[entity] = None
        for state in sample.states:
            entity = self._path(["samples", "observation", state.name])
            self._name_series(entity, state.values.shape[-1])
            recording.log(entity, rerun.Scalars(np.where(state.real[0, -1], state.values[0, -1], np.nan)))
            views.curves[entity] = None
        lines = [str(episode_step)] if episode_step is not None else [sample.dataset] if sample.dataset else []
        lines += [sample.instruction] if sample.instruction else []
        entity = self._path(["samples", "instruction"])
        recording.log(entity, rerun.TextDocument("\n\n".join(lines)))
        views.texts[entity] = None

    def _path(self, parts: Sequence[str]) -> str:
        return self._rerun.new_entity_path(list(parts))

    def _times(self, steps: np.ndarray, fps: float | None) -> list[Any]:
        columns = [self._rerun.TimeColumn("step", sequence=steps)]
        return columns if fps is None else [*columns, self._rerun.TimeColumn("time", duration=steps / fps)]

    def _name_series(self, entity: str, width: int) -> None:
        if entity not in self._named:
            self._named.add(entity)
            names = [str(dimension) for dimension in range(width)]
            self._recording.log(entity, self._rerun.SeriesLines(names=names), static=True)

    def _send_curve(
        self, parts: list[str], values: np.ndarray, steps: np.ndarray, fps: float | None, views: _Views
    ) -> None:
        entity = self._path(parts)
        self._name_series(entity, values.shape[1])
        columns = self._rerun.Scalars.columns(scalars=values.reshape(-1)).partition([values.shape[1]] * len(values))
        self._rerun.send_columns(entity, self._times(steps, fps), columns, recording=self._recording)
        views.curves[entity] = None

    def _send_texts(self, parts: list[str], texts: list[str | None], fps: float | None, views: _Views) -> None:
        steps = [step for step, text in enumerate(texts) if text and (step == 0 or text != texts[step - 1])]
        if not steps:
            return
        entity = self._path(parts)
        columns = self._rerun.TextDocument.columns(text=[texts[step] for step in steps])
        self._rerun.send_columns(entity, self._times(np.array(steps), fps), columns, recording=self._recording)
        views.texts[entity] = None

    def _send_images(
        self, parts: list[str], cameras: list[Camera], steps: np.ndarray, fps: float | None, views: _Views
    ) -> None:
        entity = self._path(parts)
        for low in range(0, len(cameras), _TOGETHER):
            some = cameras[low : low + _TOGETHER]
            files, kinds, at = [], [], []
            frames = [camera.frames[-1] for camera in some]
            if all(isinstance(frame, (bytes, Encoded)) for frame in frames):  # read together: a video has one decoder
                frames = read_all(frames)
            for step, camera, frame in zip(steps[low : low + _TOGETHER].tolist(), some, frames):
                if camera.is_depth:
                    self._log_depth(entity, step, camera, fps)
                elif isinstance(frame, np.ndarray) or len(frame):
                    content, kind = _encode(dataclasses.replace(camera, frames=[frame]), 0)
                    files.append(content)
                    kinds.append(kind)
                    at.append(step)
            if files:
                columns = self._rerun.EncodedImage.columns(blob=files, media_type=kinds)
                self._rerun.send_columns(entity, self._times(np.array(at), fps), columns, recording=self._recording)
        views.cameras[entity] = None

    def _log_depth(self, entity: str, step: int, camera: Camera, fps: float | None) -> None:
        pixels = camera.read(len(camera.frames) - 1)
        if pixels is None:
            return
        self._recording.set_time("step", sequence=step)
        if fps is not None:
            self._recording.set_time("time", duration=step / fps)
        self._recording.log(entity, self._rerun.DepthImage(_as_depth(pixels)))
        self._recording.reset_time()

    def _log_image(self, entity: str, camera: Camera, slot: int, views: _Views) -> None:
        rerun = self._rerun
        pixels = camera.read(slot) if camera.real[slot] else None
        if pixels is None:
            self._recording.log(entity, rerun.Clear(recursive=False))  # not the image of the sample before
        elif camera.is_depth:
            self._recording.log(entity, rerun.DepthImage(_as_depth(pixels)))
        else:
            content, kind = _encode(camera, slot)
            self._recording.log(entity, rerun.EncodedImage(contents=content, media_type=kind))
        views.cameras[entity] = None

    def send_blueprint(self) -> None:
        """The layout: for each episode a tab with its cameras in a row, and its curves below."""
        blueprint: Any = import_package("rerun.blueprint", "rerun", "Files for Rerun")
        tabs = []
        for views in self._tabs.values():
            pictures = [blueprint.Spatial2DView(origin=entity, name=_last(entity)) for entity in views.cameras]
            curves = [blueprint.TimeSeriesView(origin=entity, name=_last(entity)) for entity in views.curves]
            tensors = [blueprint.TensorView(origin=entity, name=f"chunk: {_last(entity)}") for entity in views.tensors]
            texts = [blueprint.TextDocumentView(origin=entity, name=_last(entity)) for entity in views.texts]
            rows = [blueprint.Horizontal(*row) for row in (pictures, curves, [*tensors, *texts]) if row]
            tabs.append(blueprint.Vertical(*rows, name=views.name))
        self._recording.send_blueprint(blueprint.Blueprint(blueprint.Tabs(*tabs)))


def _encode(camera: Camera, slot: int) -> tuple[bytes, str]:
    """Return a frame as a file, and the type of the file. PNG and JPEG files stay as they are."""
    frame = camera.frames[slot]
    frame = frame.item() if isinstance(frame, np.ndarray) and frame.dtype == object else frame
    if not isinstance(frame, np.ndarray):
        content = bytes(frame)
        for start, kind in _ENCODED.items():
            if content.startswith(start):
                return content, kind
        frame = dataclasses.replace(camera, frames=[content]).read(0)
        assert frame is not None  # empty frames are padding, which the callers leave out
    pixels, _ = media.to_pixels(frame)
    return media.png(pixels, edge=max(pixels.shape[:2])), "image/png"


def _as_depth(pixels: np.ndarray) -> np.ndarray:
    depth = pixels[..., 0] if pixels.ndim == 3 else pixels
    return depth if depth.dtype in (np.uint8, np.uint16, np.float32) else depth.astype(np.float32)


def _last(entity: str) -> str:
    return entity.rsplit("/", 1)[-1].replace("\\", "")

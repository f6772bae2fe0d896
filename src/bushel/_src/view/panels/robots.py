"""The panel "Robots": the cameras, actions, proprioception and task of a sample, and the episode it comes from."""

from __future__ import annotations

import collections
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bushel._src.display import pictures
from bushel._src.view.episode_lookup import EpisodeLists, EpisodeStep, comes_from_episodes, find_episode_step
from bushel._src.view.robot_elements import (
    Camera,
    JointNames,
    RobotSample,
    SampleCurves,
    choose_names,
    count_rows,
    describe_episode,
    describe_sample,
    flatten,
    is_batched,
    take_row,
)
from bushel._src.view.session import BadQuery, ElementReading, Query, Routes, Session

POINTS = 500
"""A curve over a whole episode has at most so many points."""
DIMENSIONS = 32
"""At most so many curves are drawn in one plot."""
FRAMES = 32
"""At most so many frames of a window are sent for each camera."""

_KEPT = 4


def about(session: Session) -> dict[str, Any]:
    """Return whether the pipeline comes from robot episodes, or has elements with the names of robot data."""
    return {"applies": bool(session.steps) and (comes_from_episodes(session.last.node) or _has_actions(session))}


def _has_actions(session: Session) -> bool:
    """Return whether the shapes of elements are known, and have the names of robot data."""
    if any(step.node.users_class is not None for step in session.steps):
        return False  # a user's own dataset may read an element to say its shapes
    try:
        names = list(flatten(session.last.node.element_spec()))
    except Exception:  # shapes are not known, or a user's class raises anything
        return False
    return any(name.startswith("action") for name in names) and any(name.startswith("observation") for name in names)


def routes(session: Session) -> Routes:
    """`show`: what a sample shows. `episode`: curves over its whole episode. `episodes`: a list of all episodes."""
    reader, names, lists = _ElementReader(session), JointNames(session), EpisodeLists(session)

    def show(query: Query) -> dict[str, Any]:
        step, index, row = _read_place(session, query)
        reading = reader.read(step, index)
        answer = _describe_reading(reading) | {"call": session.step(step).node.call()}
        if not reading.has_element:
            return answer
        node, element = session.step(step).node, reading.element
        if is_batched(node):
            answer["rows"] = count_rows(element)
            answer["row"] = row = min(row, max(0, answer["rows"] - 1))
            element = take_row(element, row)
        if not isinstance(element, Mapping):
            return answer
        episode_step, time = find_episode_step(node, index, row), query.integer("time", -1)
        if episode_step is not None and episode_step.is_episode:
            steps = count_rows(element)
            time = min(max(0, time), max(0, steps - 1))
            element = take_row(element, time)
            answer["place"] = _describe_step(episode_step, time, range(steps))
        elif episode_step is not None:
            assert episode_step.time is not None
            if time not in (-1, episode_step.time):
                element = _read_step(episode_step, time)
            time = episode_step.time if time == -1 else time
            answer["place"] = _describe_step(episode_step, time, episode_step.times.tolist())
        sample = describe_sample(
            element,
            time=None if episode_step is None else time,
            offsets=None if episode_step is None else episode_step.offsets,
        )
        return answer | {"robot": bool(sample.actions or sample.cameras)} | _describe_sample(sample, names)

    def episode(query: Query) -> dict[str, Any]:
        step, index, row = _read_place(session, query)
        episode_step = find_episode_step(session.step(step).node, index, row)
        if episode_step is None:
            return {"curves": []}
        curves = describe_episode(episode_step.read_episode())
        return {"curves": [_thin_out(curve, names) for curve in curves], "fps": episode_step.fps}

    def episodes(query: Query) -> dict[str, Any]:
        return lists.list(query.integer("first", 0, low=0), query.integer("count", 50, low=1, high=500))

    return {"show": show, "episode": episode, "episodes": episodes}


class _ElementReader:
    """Reads elements and keeps the last ones: a page asks for several rows of a batch, and for steps of an episode."""

    def __init__(self, session: Session):
        self._session = session
        self._kept: collections.OrderedDict[tuple[int, int], ElementReading] = collections.OrderedDict()
        self._lock = threading.Lock()

    def read(self, step: int, index: int) -> ElementReading:
        with self._lock:
            if (step, index) in self._kept:
                self._kept.move_to_end((step, index))
                return self._kept[step, index]
        reading = self._session.read(step, index)
        if reading.has_element:
            with self._lock:
                self._kept[step, index] = reading
                while len(self._kept) > _KEPT:
                    self._kept.popitem(last=False)
        return reading


def _read_place(session: Session, query: Query) -> tuple[int, int, int]:
    step = query.integer("step", -1)
    return session.step(step).number, query.integer("index", 0, low=0), query.integer("row", 0, low=0)


def _describe_reading(reading: ElementReading) -> dict[str, Any]:
    failure = {"message": reading.error, "trace": reading.trace} if reading.error else None
    progress = reading.progress
    return {
        "index": reading.index,
        "row": None,
        "rows": 0,
        "place": None,
        "robot": False,
        "failure": failure,
        "missing": reading.missing,
        "ended": reading.ended,
        "progress": None if progress is None else {"at": progress.at, "wanted": progress.wanted},
    }


def _read_step(episode_step: EpisodeStep, time: int) -> Any:
    found = np.flatnonzero(episode_step.times == time)
    if not len(found):
        raise BadQuery(f"{episode_step} has no element for step {time}.")
    return episode_step.read_step(int(found[0]))


def _describe_step(episode_step: EpisodeStep, time: int, times: Sequence[int]) -> dict[str, Any]:
    return {
        "dataset": episode_step.dataset,
        "episode": episode_step.episode,
        "time": time,
        "own_time": episode_step.time,
        "is_episode": episode_step.is_episode,
        "times": list(times),
        "describe": episode_step.describe,
        "fps": episode_step.fps,
        "draws_anew": episode_step.draws_anew,
    }


def _describe_sample(sample: RobotSample, names: JointNames) -> dict[str, Any]:
    return {
        "dataset": sample.dataset,
        "instruction": sample.instruction,
        "cameras": [_describe_camera(camera) for camera in sample.cameras],
        "goals": [_describe_camera(camera) for camera in sample.goals],
        "actions": [_describe_chunks(chunks, names) for chunks in sample.actions],
        "states": [_describe_chunks(chunks, names) for chunks in sample.states],
    }


def _describe_camera(camera: Camera) -> dict[str, Any]:
    frames = []
    for number in range(max(0, len(camera.frames) - FRAMES), len(camera.frames)):
        frame: dict[str, Any] = {
            "real": camera.real[number],
            "time": None if camera.times is None else camera.times[number],
            "url": None,
            "note": "",
            "error": "",
        }
        try:
            pixels = camera.read(number)
            if pixels is not None:
                shown, frame["note"] = pictures.to_pixels(pixels)
                frame["url"] = pictures.png_url(shown)
                frame["size"] = list(pixels.shape[:2])
        except Exception as error:  # one damaged image must not hide the others
            frame["error"] = f"{type(error).__name__}: {error}"
        frames.append(frame)
    return {"name": camera.name, "frames": frames, "left_out": max(0, len(camera.frames) - FRAMES)}


def _describe_chunks(chunks: SampleCurves, names: JointNames) -> dict[str, Any]:
    slots, steps, width = chunks.values.shape
    # Dimensions that this robot does not have are padding in each step.
    there = np.flatnonzero(chunks.real.any(axis=(0, 1)))
    drawn = (there if len(there) else np.arange(width))[:DIMENSIONS]
    real = chunks.real[:, :, drawn]
    return {
        "name": chunks.name,
        "width": width,
        "padded_dimensions": width - len(there) if len(there) else 0,
        "left_out": max(0, len(there) - DIMENSIONS),
        "dimensions": drawn.tolist(),
        "names": choose_names(names.find(chunks.name, width), drawn.tolist()),
        "x": [[*range(steps)]] * slots if chunks.times is None else chunks.times.tolist(),
        "has_times": chunks.times is not None,
        "y": np.moveaxis(chunks.values[:, :, drawn], -1, 1).tolist(),
        "real": real.any(axis=-1).tolist(),
    }


def _thin_out(curve: SampleCurves, names: JointNames) -> dict[str, Any]:
    values = curve.values[0]
    width = values.shape[1]
    step = -(-len(values) // POINTS)
    return {
        "name": curve.name,
        "x": list(range(0, len(values), step)),
        "y": values[::step, :DIMENSIONS].T.tolist(),
        "names": choose_names(names.find(curve.name, width), list(range(min(width, DIMENSIONS)))),
        "left_out": max(0, width - DIMENSIONS),
    }

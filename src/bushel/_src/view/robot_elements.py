"""What a robot sample shows: cameras, actions with the names of joints, proprioception, goals, the instruction.

With masks and times. The layouts are those of `bushel.trajectory`, of LeRobot rows, and of raw episodes of any format.
Entries are found by their names and shapes. What each number is, such as a joint, is known where the data set says it.
`episode_lookup.py` says which episode an element belongs to.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from bushel._src.graph.batch import Batches
from bushel._src.graph.map_ops import FlatMapElements
from bushel._src.graph.node import Node
from bushel._src.graph.source_nodes import SourceNode
from bushel._src.graph.stream_ops import BatchStream, FlatMapStream
from bushel._src.trajectory.data_utils import flatten_tree, is_jax, to_numpy
from bushel._src.trajectory.encoded_images import Encoded
from bushel._src.trajectory.episodes import Episodes
from bushel._src.trajectory.lerobot.dataset_folder import LeRobotFolder
from bushel._src.trajectory.lerobot.image_parts import LeRobotImages
from bushel._src.trajectory.lerobot.reader import LeRobotEpisodes, LeRobotSource
from bushel._src.trajectory.pixels import MAGIC, decode_depth, decode_image
from bushel._src.trajectory.samples import SampleIndex, SampleOrigins
from bushel._src.view.session import Session

Names = dict[str, tuple[str, ...]]
"""The names of the numbers of an entry, by the path of the entry without "observation"."""

_COMPARED = 8
"""How many rows of a table are compared with the rows of the data set."""


class JointNames:
    """The names in the data sets of a session. They are looked for when the first sample is shown."""

    def __init__(self, session: Session):
        self._session = session

    def find(self, path: str, width: int) -> tuple[str, ...]:
        """Return the names of the numbers of an entry of this width, such as "action"; empty if they are not known."""
        fitting = {table[path] for table in self._tables if len(table.get(path, ())) == width}
        return fitting.pop() if len(fitting) == 1 else ()  # two robots may name the same entry differently

    @functools.cached_property
    def _tables(self) -> list[Names]:
        tables = []
        for step in self._session.steps:
            with contextlib.suppress(Exception):  # files may be damaged or gone, and names are no must
                tables.append(_list_names(step.node))
        return tables


def _list_names(node: Any) -> Names:
    if isinstance(node, SourceNode) and isinstance(node.source, LeRobotSource):
        return _by_path(node.source.folder)
    if isinstance(node, SourceNode) and isinstance(node.source, LeRobotEpisodes):
        return _by_path(node.source._folder)
    origins = node.describe_sample if isinstance(node, SampleIndex) else None
    return _compare(origins.samples.episodes) if isinstance(origins, SampleOrigins) else {}


def _by_path(folder: LeRobotFolder) -> Names:
    """Return the names of the features, by the paths that their entries have in rows and in raw episodes."""
    found = {shorten(name): feature.names for name, feature in folder.features.items() if feature.names}
    return found | ({"action": found["actions"]} if "actions" in found and "action" not in found else {})


def shorten(path: str) -> str:
    """Return a path without the part that all observations have:

    "state" for "observation.state" and "observation/state".
    """
    return path.removeprefix("observation").lstrip("./")


def _compare(table: Episodes) -> Names:
    """Return the names of the columns of a table that have the numbers of a feature, whatever a column is called
    there.
    """
    parts = [column.parts for column in table._image_columns if isinstance(column.parts, LeRobotImages)]
    if not parts:
        return {}
    folder = LeRobotFolder(parts[0]._folder, storage_options=parts[0]._options)
    named = {name: feature for name, feature in folder.features.items() if feature.names}
    if not named or not folder.data_files:
        return {}
    first = folder.parquet(next(iter(folder.data_files.values())))
    rows = first.read_row_group(0, columns=["episode_index", *named]).slice(0, _COMPARED).to_pydict()
    episode = rows.pop("episode_index")[0]
    numbers = np.arange(len(table)) if table.numbers is None else table.numbers
    (positions,) = np.nonzero(numbers == episode)
    if not len(positions):
        return {}
    frames = table.starts[positions[0]] + np.arange(min(_COMPARED, int(table.lengths[positions[0]])))
    stored = {name: np.asarray(values)[: len(frames)] for name, values in rows.items()}
    found: Names = {}
    for path, column in flatten_tree(table.columns).items():
        if not column.is_numeric:
            continue
        values = np.asarray(column.take(frames))
        equal = [name for name in named if _is_equal(values, stored[name])]
        if len(equal) == 1:
            found[shorten("/".join(path))] = named[equal[0]].names
    return found


def _is_equal(values: np.ndarray, stored: np.ndarray) -> bool:
    return values.shape == stored.shape and bool(np.allclose(values, stored.astype(values.dtype), equal_nan=True))


def choose_names(names: tuple[str, ...], dimensions: list[int]) -> list[str]:
    """Return what the page calls some dimensions: by their names, or by their numbers where there are none.

    >>> choose_names(("shoulder", "elbow"), [1]), choose_names((), [0, 3])
    (['elbow'], ['0', '3'])
    """
    return [names[dimension] if names else str(dimension) for dimension in dimensions]


Tree = Mapping[str, Any]

_IMAGE_STARTS = (b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"RIFF", b"BM", MAGIC)
_MASKS = re.compile(r"(_is_pad|_pad_mask|_mask|_masks)$|^(pad_mask_dict|action_head_masks)$")
_NOT_STATE = {"timestep", "task_completed", "timestamp", "frame_index", "episode_index", "index", "task_index"}
_WIDEST = 256
"""Entries of the observation with more numbers per step than this are not drawn as curves."""


@dataclasses.dataclass(frozen=True, eq=False)
class Camera:
    """The frames of one camera in a window, or a goal image."""

    name: str
    frames: list[Any]
    """Arrays of pixels, or encoded images that are not read yet."""
    real: list[bool]
    """For each frame whether it is data. Else it is padding."""
    times: list[int] | None
    """The step of each frame; None if it is not known."""

    @property
    def is_depth(self) -> bool:
        """Whether the frames are depth images."""
        return "depth" in self.name

    def read(self, number: int) -> np.ndarray | None:
        """Return the pixels of a frame as they are stored; None for an empty frame."""
        frame = self.frames[number]
        if isinstance(frame, np.ndarray) and frame.dtype != object:
            return frame
        frame = frame.item() if isinstance(frame, np.ndarray) else frame
        if not len(frame):
            return None
        return decode_depth(frame) if self.is_depth else decode_image(frame)


@dataclasses.dataclass(frozen=True, eq=False)
class SampleCurves:
    """Curves: the actions of each slot of a window, or an entry of the observation."""

    name: str
    values: np.ndarray
    """[slots, steps, width]"""
    real: np.ndarray
    """Bools [slots, steps, width]: whether a number is data. Else it is padding."""
    times: np.ndarray | None
    """[slots, steps]: the step of each number; None if it is not known."""


@dataclasses.dataclass(frozen=True, eq=False)
class RobotSample:
    """What is drawn of a sample."""

    cameras: list[Camera]
    goals: list[Camera]
    actions: list[SampleCurves]
    states: list[SampleCurves]
    instruction: str | None
    """None if there is none; "" if it is padding."""
    dataset: str | None

    @property
    def is_robot(self) -> bool:
        """Whether this looks like data of a robot."""
        return bool(self.actions and (self.cameras or self.states))


def describe_sample(
    tree: Tree, *, time: int | None = None, offsets: Mapping[str, np.ndarray] | None = None
) -> RobotSample:
    """Find what is to draw in one sample: a frame, or a window of frames with chunks of actions.

    >>> sample = describe_sample({"observation": {"state": np.zeros((2, 3)), "timestep": np.array([3, 4])},
    ...     "action": np.zeros((2, 4, 7)), "action_pad_mask": np.ones((2, 4, 7), bool)})
    >>> sample.actions[0].times.tolist(), sample.states[0].times.tolist()
    ([[3, 4, 5, 6], [4, 5, 6, 7]], [[3, 4]])

    Args:
      tree: the sample.
      time: the step of the sample in its episode, if it is known.
      offsets: for entries that are windows by offsets, the steps from `time`.
    """
    return _SampleFinder(tree, time, offsets or {}).find()


def take_row(tree: Any, row: int) -> Any:
    """Return one row of a batch, or one step of a whole episode: entry `row` of each leaf that has so many.

    >>> take_row({"x": np.array([[1, 2], [3, 4]]), "name": "arm"}, 1)
    {'x': array([3, 4]), 'name': 'arm'}
    """
    if isinstance(tree, Mapping):
        return {name: take_row(part, row) for name, part in tree.items()}
    has_rows = isinstance(tree, list) or (not isinstance(tree, (str, bytes)) and np.ndim(tree) > 0)
    return _as_numpy(tree)[row] if has_rows and len(tree) > row else tree


def count_rows(tree: Any) -> int:
    """Return how many rows a batch has, or how many steps a whole episode: the length of its first leaf with an
    axis.
    """
    for leaf in flatten(tree).values():
        if isinstance(leaf, list) or (not isinstance(leaf, (str, bytes)) and np.ndim(leaf) > 0):
            return len(leaf)
    return 0


def is_batched(node: Node) -> bool:
    """Return whether the elements of a node are batches: a step before it makes them, and none takes them apart."""
    while not isinstance(node, (Batches, BatchStream)):
        if not node.parents or isinstance(node, (FlatMapElements, FlatMapStream)):
            return False
        node = node.parents[0]
    return True


def flatten(tree: Any, path: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the leaves of nested dicts by path: {"observation/state": ...}."""
    if not isinstance(tree, Mapping):
        return {"/".join(path): tree}
    return {name: leaf for key, part in tree.items() for name, leaf in flatten(part, (*path, str(key))).items()}


def _as_numpy(leaf: Any) -> Any:
    return np.asarray(leaf) if is_jax(leaf) else to_numpy(leaf)


class _SampleFinder:
    def __init__(self, tree: Tree, time: int | None, offsets: Mapping[str, np.ndarray]):
        self.leaves = {path: _as_numpy(leaf) for path, leaf in flatten(tree).items()}
        self.offsets = offsets
        timestep = self._array("observation/timestep")
        self.slots = timestep.tolist() if timestep is not None and timestep.ndim == 1 else None
        """The steps of the slots of a window, in the layout of `bushel.trajectory`; None if there is no window."""
        given_time = self._array("frame_index") if time is None else np.array(time)
        if given_time is None and timestep is not None and timestep.ndim == 0:
            given_time = timestep
        self.time = int(given_time) if given_time is not None and given_time.ndim == 0 else None

    def find(self) -> RobotSample:
        cameras, goals, actions, states = [], [], [], []
        instruction = dataset = None
        for path, leaf in self.leaves.items():
            names = re.split(r"[/.]", path)
            if any(_MASKS.search(name) for name in names):
                continue
            is_task = names[0] in ("task", "goal") and len(names) > 1
            text = _as_text(leaf)
            if path == "dataset_name":
                dataset = text
            elif text is not None and _is_instruction(names):
                instruction = text if instruction is None else instruction
            elif (frames := _as_frames(leaf, path)) is not None:
                (goals if is_task else cameras).append(self._camera(path, frames, is_task))
            elif names[0] == "action" or path == "actions":
                actions += self._chunks(path, leaf)
            elif (names[0] == "observation" and names[-1] not in _NOT_STATE) or path == "state":
                states += self._states(path, leaf)
        return RobotSample(cameras, goals, actions, states, instruction, dataset)

    def _array(self, path: str) -> np.ndarray | None:
        leaf = self.leaves.get(path)
        return None if leaf is None else np.asarray(leaf)

    def _steps_of(self, path: str, count: int) -> np.ndarray | None:
        """Return the steps of the rows of an entry that is a window by offsets; None if they are not known."""
        steps = self.offsets.get(path)
        return None if steps is None or self.time is None or len(steps) != count else self.time + np.asarray(steps)

    def _camera(self, path: str, frames: list[Any], is_goal: bool) -> Camera:
        parts = path.split("/")
        mask = self._array("/".join([*parts[:-1], "pad_mask_dict", parts[-1]]))
        away = self._array(f"{path}_is_pad")
        real = np.ones(len(frames), dtype=bool)
        if mask is not None and mask.size == len(frames):
            real &= mask.reshape(-1).astype(bool)
        if away is not None and away.size == len(frames):
            real &= ~away.reshape(-1).astype(bool)
        slots = self._array("observation/timestep_pad_mask")
        if not is_goal and slots is not None and slots.size == len(frames):
            real &= slots.reshape(-1)
        real &= np.array([not _is_empty(frame) for frame in frames], dtype=bool)
        times: list[int] | None = None
        if is_goal:
            goal = self._array("task/timestep")
            times = [int(goal)] if goal is not None and goal.ndim == 0 else None
        elif self.slots is not None and len(self.slots) == len(frames):
            times = self.slots
        elif (steps := self._steps_of(path, len(frames))) is not None:
            times = steps.tolist()
        elif len(frames) == 1 and self.time is not None:
            times = [self.time]
        return Camera(_short(path), frames, real.tolist(), times)

    def _chunks(self, path: str, leaf: Any) -> list[SampleCurves]:
        values = _as_numbers(leaf)
        if values is None or values.ndim > 3:
            return []
        mask = self._array(f"{path}_pad_mask")
        away = self._array(f"{path}_is_pad")
        real = np.ones(values.shape, dtype=bool)
        if mask is not None and mask.shape == values.shape:
            real = mask.astype(bool)
        elif away is not None and away.shape == values.shape[: away.ndim]:
            real &= ~away.astype(bool).reshape(away.shape + (1,) * (values.ndim - away.ndim))
        while values.ndim < 3:  # a frame, or a chunk without slots
            values, real = values[None], real[None]
        slots, steps, _ = values.shape
        times = None
        if self.slots is not None and len(self.slots) == slots:
            times = np.array(self.slots)[:, None] + np.arange(steps)
        elif slots == 1 and (steps_here := self._steps_of(path, steps)) is not None:
            times = steps_here[None]
        elif slots == 1 and self.time is not None:
            times = self.time + np.arange(steps)[None]
        return [SampleCurves(_short(path), values, real, times)]

    def _states(self, path: str, leaf: Any) -> list[SampleCurves]:
        values = _as_numbers(leaf)
        if values is None:
            return []
        count = None if self.slots is None else len(self.slots)
        away = self._array(f"{path}_is_pad")
        steps: np.ndarray | None = None
        if self.slots is not None and count is not None and values.ndim >= 1 and values.shape[0] == count:
            # A slot before the episode repeats its first frame, whose step says nothing of the slot's own time.
            steps = self.slots[-1] - count + 1 + np.arange(count)
        elif away is not None and away.ndim == 1 and values.shape[:1] == away.shape:
            count, steps = len(away), self._steps_of(path, len(away))
        else:
            count, steps = 1, None if self.time is None else np.array([self.time])
            values = values[None]
        values = values.reshape(count, -1)
        if values.shape[1] > _WIDEST:
            return []
        parts = path.split("/")
        mask = self._array("/".join([*parts[:-1], "pad_mask_dict", parts[-1]]))
        slots = self._array("observation/timestep_pad_mask")
        real = np.ones(count, dtype=bool)
        for part in (mask, slots, None if away is None else ~away.astype(bool)):
            if part is not None and part.size == count:
                real &= part.reshape(-1).astype(bool)
        wide = np.repeat(real[:, None], values.shape[1], axis=1)
        return [SampleCurves(_short(path), values[None], wide[None], None if steps is None else steps[None])]


def _short(path: str) -> str:
    """Return the name of an entry as people say it: without the part that all observations have."""
    return re.sub(r"^(observation|task)[/.](images[/.])?", "", path)


def _is_instruction(names: list[str]) -> bool:
    return any("language" in name or "instruction" in name for name in names) or names == ["task"]


def _as_text(leaf: Any) -> str | None:
    """Return a leaf that is one text; None for all other leaves."""
    if isinstance(leaf, np.ndarray) and leaf.ndim == 0 and leaf.dtype.kind in "OSU":
        leaf = leaf.item()
    if isinstance(leaf, bytes) and not leaf.startswith(_IMAGE_STARTS):
        return leaf.decode(errors="replace")
    return leaf if isinstance(leaf, str) else None


def _as_numbers(leaf: Any) -> np.ndarray | None:
    """Return a leaf that is numbers, as floats, with at least one axis; None for all other leaves."""
    if not isinstance(leaf, (np.ndarray, np.generic, int, float)):
        return None
    array = np.asarray(leaf)
    if array.dtype.kind not in "iufb" or not array.size:
        return None
    return np.atleast_1d(array.astype(np.float64))


def _is_image_name(path: str) -> bool:
    return any(word in path.lower() for word in ("image", "rgb", "depth", "camera"))


def _as_frames(leaf: Any, path: str) -> list[Any] | None:
    """Return the frames of a leaf that is one image, or several; None for all other leaves."""
    if isinstance(leaf, np.ndarray) and leaf.dtype == object:
        entries = list(leaf.flat)
        if leaf.ndim > 1 or not entries or not all(isinstance(entry, (bytes, Encoded)) for entry in entries):
            return None
        return entries if any(_is_encoded(entry, path) for entry in entries) else None
    if isinstance(leaf, (bytes, Encoded)):
        return [leaf] if _is_encoded(leaf, path) else None
    if not isinstance(leaf, np.ndarray) or not leaf.size:
        return None
    if leaf.dtype == np.uint8 and leaf.ndim >= 3 and leaf.shape[-1] in (1, 3, 4) and min(leaf.shape[-3:-1]) > 1:
        return list(leaf.reshape(-1, *leaf.shape[-3:]))
    if not _is_image_name(path) or leaf.dtype.kind not in "uf":
        return None
    if leaf.ndim >= 3 and leaf.shape[-1] in (1, 3, 4):
        return list(leaf.reshape(-1, *leaf.shape[-3:]))
    if leaf.ndim >= 3 and leaf.shape[-3] in (1, 3) and leaf.dtype.kind == "f" and "depth" not in path:
        return list(np.moveaxis(leaf, -3, -1).reshape(-1, *leaf.shape[-2:], leaf.shape[-3]))
    if leaf.ndim in (2, 3) and "depth" in path:
        return list(leaf.reshape(-1, *leaf.shape[-2:]))
    return None


def _is_empty(frame: Any) -> bool:
    return isinstance(frame, (bytes, Encoded)) and not len(frame)


def _is_encoded(entry: bytes | Encoded, path: str) -> bool:
    if isinstance(entry, Encoded):
        return True
    return entry.startswith(_IMAGE_STARTS) or (not entry and _is_image_name(path))


def describe_episode(tree: Tree) -> list[SampleCurves]:
    """Return the curves of a whole episode: actions, then numbers of the observation. Each has one slot with all steps.

    >>> episode = {"action": np.zeros((5, 2)), "observation": {"x": np.ones(5)}}
    >>> [(curve.name, curve.values.shape) for curve in describe_episode(episode)]
    [('action', (1, 5, 2)), ('x', (1, 5, 1))]
    """
    actions, states = [], []
    for path, leaf in flatten(tree).items():
        names = re.split(r"[/.]", path)
        if any(_MASKS.search(name) for name in names) or not isinstance(leaf, np.ndarray) or not leaf.ndim:
            continue
        values = None if _as_frames(leaf[:1], path) is not None else _as_numbers(leaf)
        if values is None:
            continue
        values = values.reshape(len(values), -1)
        if values.shape[1] > _WIDEST:
            continue
        curve = SampleCurves(
            _short(path), values[None], np.ones((1, *values.shape), bool), np.arange(len(values))[None]
        )
        if names[0] == "action" or path == "actions":
            actions.append(curve)
        elif (names[0] == "observation" and names[-1] not in _NOT_STATE) or path == "state":
            states.append(curve)
    return actions + states

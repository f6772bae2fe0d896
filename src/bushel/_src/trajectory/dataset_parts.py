"""The parts of a `TrajectoryDataset`, alone or joined, and the functions that are applied to them.

`trajectory_dataset.py` puts them together.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bushel._src.base import trees
from bushel._src.base.state_names import in_states
from bushel._src.datasets.map_dataset import MapDataset
from bushel._src.trajectory.data_utils import flatten_tree, to_numpy, to_objects
from bushel._src.trajectory.episodes import Episodes
from bushel._src.trajectory.samples import SampleOrigins, Samples, index_samples
from bushel._src.trajectory.single_pass import evaluate_once

Normalization = Callable[[np.ndarray, str, np.ndarray], np.ndarray]


@in_states("normalize_each")
@dataclasses.dataclass(frozen=True, eq=False)
class NormalizeEach:
    """Normalises each row with the statistics of its data set. `ends` are the ends of the data sets, in episodes."""

    parts: tuple[Normalization | None, ...]
    ends: np.ndarray

    def __call__(self, values: np.ndarray, name: str, episode: np.ndarray) -> np.ndarray:
        """Normalise `values` of the entry `name` in place. Row i belongs to `episode[i]`."""
        which = np.searchsorted(self.ends, episode, side="right")
        for number, part in enumerate(self.parts):
            here = which == number
            if part is not None and here.any():
                values[here] = part(values[here], name, episode[here])
        return values


def join_samples(parts: Sequence[Samples]) -> Samples | None:
    """Return the samples of all data sets, one data set after another, or None if transforms or layouts of tables
    differ.

    All draws use the seed of the first data set.
    """
    first = parts[0]
    if len(parts) == 1:
        return first
    for part in parts[1:]:
        same = (part.transforms, part.row_functions, part.compat, part.labelled_only)
        if same != (first.transforms, first.row_functions, first.compat, first.labelled_only):
            return None
        if _describe_layout(part.episodes) != _describe_layout(first.episodes):
            return None
    tables = [part.episodes for part in parts]
    ends = np.cumsum([len(table) for table in tables])
    chosen = np.concatenate([part.chosen + end - len(part.episodes) for part, end in zip(parts, ends)])
    kept = None
    if any(part.kept is not None for part in parts):
        all_of = [np.ones(table.frames, dtype=bool) for table in tables]
        kept = np.concatenate([every if part.kept is None else part.kept for part, every in zip(parts, all_of)])
    normalize = None
    if any(part.normalize is not None for part in parts):
        normalize = NormalizeEach(tuple(part.normalize for part in parts), ends)
    return dataclasses.replace(first, episodes=Episodes.join(tables), chosen=chosen, kept=kept, normalize=normalize)


def _describe_layout(table: Episodes) -> list[Any]:
    """Return what must be equal in tables that are joined: the leaves, their dtypes, and the shapes of numbers."""
    return sorted(
        (path, str(column.take(np.zeros(1, np.int64)).dtype), column.entry_shape if column.is_numeric else None)
        for path, column in flatten_tree(table.columns).items()
    )


_KEPT_TRAJECTORIES = 8

Move = Callable[[MapDataset[Any]], MapDataset[Any]]
"""A shuffle or a filter: it changes the order or the choice of elements, and no element."""


@dataclasses.dataclass(frozen=True, eq=False)
class TablePart:
    """Episodes of a table. Frames are computed from the numbers of samples, in any order."""

    samples: Samples
    moves: tuple[Move, ...] = ()
    """Shuffles and filters of frames, applied to the numbers of samples."""
    epochs: int | None = 1
    """How many epochs of this part a mixture has; None for no end."""

    def trajectories(self) -> MapDataset[Any]:
        """Return whole trajectories."""
        return MapDataset.range(len(self.samples.chosen)).map_with_index(self.samples.trajectory)

    def indices(self, first: int, total: int, joined: Samples | None = None) -> MapDataset[Any]:
        """Return the numbers of the samples, from `first` on, of the `total` samples of all parts, which are
        `joined`.
        """
        origins = SampleOrigins(self.samples, joined, first)
        numbers = index_samples(len(self.samples), first, total, origins)
        for move in self.moves:
            numbers = move(numbers)
        return numbers

    def frames(self) -> MapDataset[Any]:
        """Return single frames."""
        return self.indices(0, len(self.samples)).map(self.samples, vectorized=True)

    def move(self, move: Move) -> TablePart:
        """Return the same part after a shuffle or a filter of its frames."""
        return dataclasses.replace(self, moves=(*self.moves, move))


@dataclasses.dataclass(frozen=True, eq=False)
class OpaquePart:
    """Trajectories, or frames, that are computed by functions which the library cannot look into."""

    ds: MapDataset[Any]
    epochs: int | None = 1
    """How many epochs of this part a mixture has; None for no end."""

    def trajectories(self) -> MapDataset[Any]:
        """Return whole trajectories, if the part holds those."""
        return self.ds

    def frames(self) -> MapDataset[Any]:
        """Return single frames, if the part holds those."""
        return self.ds

    def move(self, move: Move) -> OpaquePart:
        """Return the same part after a shuffle or a filter of its elements."""
        return dataclasses.replace(self, ds=move(self.ds))


Part = TablePart | OpaquePart


@in_states(
    "frames_of_trajectories",
    {
        "_trajectories": "frames_of_trajectories.trajectories",
        "_lengths": "frames_of_trajectories.lengths",
        "_ends": None,
        "_made": None,
        "_lock": None,
    },
)
class _OpaqueFrames:
    """The frames of opaque trajectories: each frame needs its whole trajectory, so the last eight are kept."""

    # The identity in saved states holds the name of this class and of its attributes: with other names the states of
    # older runs would be refused.

    def __init__(self, trajectories: MapDataset[Any], lengths: np.ndarray):
        self._trajectories, self._lengths = trajectories, lengths
        self._ends = np.cumsum(lengths)
        self._made: collections.OrderedDict[int, Any] = collections.OrderedDict()
        self._lock = threading.Lock()

    def __reduce__(self) -> Any:
        return _OpaqueFrames, (self._trajectories, self._lengths)

    def __call__(self, index: int, number: int) -> Any:
        place = int(np.searchsorted(self._ends, number, side="right"))
        time = int(number - (self._ends[place] - self._lengths[place]))
        trajectory = self._compute(int(index) // int(self._ends[-1]) * len(self._lengths) + place)
        return trees.map_leaves(lambda leaf: np.array(leaf[time]) if leaf.dtype != object else leaf[time], trajectory)

    def _compute(self, index: int) -> Any:
        with self._lock:
            trajectory = self._made.pop(index, None)
        if trajectory is None:  # outside the lock: two threads may compute the same trajectory, but none waits
            trajectory = trees.map_leaves(to_numpy, self._trajectories[index])
        with self._lock:
            self._made[index] = trajectory
            while len(self._made) > _KEPT_TRAJECTORIES:
                self._made.popitem(last=False)
        return trajectory


def flatten_opaque(trajectories: MapDataset[Any]) -> OpaquePart:
    """Return the frames of trajectories that the library cannot look into.

    Computes all of them once, to count the frames.
    """
    counts = dict(evaluate_once(trajectories, count_steps, "lengths of trajectories"))
    lengths = np.array([counts.get(number, 0) for number in range(len(trajectories))], dtype=np.int64)
    if len(lengths) and not lengths.any():
        raise ValueError(
            f"None of the {len(lengths)} trajectories has a frame: the functions that were applied to them returned "
            "None or no frame for each of them. Did you forget a return?"
        )
    return OpaquePart(MapDataset.range(int(lengths.sum())).map_with_index(_OpaqueFrames(trajectories, lengths)))


@in_states("count_steps")
def count_steps(trajectory: Mapping[str, Any]) -> int:
    """Return the number of steps of a trajectory."""
    return len(trees.leaves(trajectory)[0])


@dataclasses.dataclass(frozen=True, eq=False)
class OnTrajectories:
    """A function of trajectories."""

    function: Callable[..., Any]

    def apply(self, ds: MapDataset[Any], flattened: bool) -> MapDataset[Any]:
        """Return the dataset after the function."""
        return ds.map(self.function)


@dataclasses.dataclass(frozen=True, eq=False)
class OnFrames:
    """A function of frames; with a seed, of a frame and a generator."""

    function: Callable[..., Any]
    seed: int | None = None

    def apply(self, ds: MapDataset[Any], flattened: bool) -> MapDataset[Any]:
        """Return the dataset after the function. For trajectories the function is called frame by frame."""
        if self.seed is None:
            return ds.map(self.function if flattened else functools.partial(_map_frames, self.function))
        changed = self.function if flattened else functools.partial(_map_frames_randomly, self.function)
        return ds.random_map(changed, seed=self.seed)


@in_states("map_frames")
def _map_frames(function: Callable[[Any], Any], trajectory: Any) -> Any:
    return _stack_frames([function(frame) for frame in _split_frames(trajectory)])


@in_states("map_frames_randomly")
def _map_frames_randomly(
    function: Callable[[Any, np.random.Generator], Any], trajectory: Any, rng: np.random.Generator
) -> Any:
    return _stack_frames([function(frame, rng) for frame in _split_frames(trajectory)])


def _split_frames(trajectory: Any) -> Iterator[Any]:
    for time in range(count_steps(trajectory)):
        yield trees.map_leaves(lambda leaf, time=time: leaf[time], trajectory)


def _stack_frames(frames: list[Any]) -> Any:
    def stack(*values: Any) -> np.ndarray:
        leaves = list(map(to_numpy, values))
        if isinstance(leaves[0], (bytes, str)) or not hasattr(leaves[0], "dtype"):
            return to_objects(leaves)
        return np.stack(leaves)

    return trees.map_leaves(stack, *frames)

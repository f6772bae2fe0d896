"""Which step of which robot episode an element shows, and the other elements of the same episode.

`find_place` follows an element through the pipeline, by arithmetic, to the step that knows episodes: the samples of
`bushel.trajectory`, windows by offsets, rows of a LeRobot data set, or the episodes of files.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from bushel._src.base import redact
from bushel._src.datasets.base_dataset import wrap
from bushel._src.graph.batch import Batches
from bushel._src.graph.elementwise import Elementwise
from bushel._src.graph.leaves import Range, Source
from bushel._src.graph.node import MapNode, Node, OneParentMap
from bushel._src.graph.operation import WithOperation
from bushel._src.graph.ordered import BatchStream
from bushel._src.graph.streams import Elements, SeedStream
from bushel._src.trajectory.array_episodes.builder import ArrayEpisodes
from bushel._src.trajectory.data_utils import flatten_tree, nest_leaves
from bushel._src.trajectory.dataset_parts import _Frames
from bushel._src.trajectory.episodes import Episodes
from bushel._src.trajectory.indexed_draws import Draws
from bushel._src.trajectory.lerobot.builder import LeRobotEpisodes
from bushel._src.trajectory.lerobot.source import LeRobotSource
from bushel._src.trajectory.offset_windows import _OffsetWindows
from bushel._src.trajectory.rlds.reader import RLDSEpisodes
from bushel._src.trajectory.sample_index import SampleIndex, index_samples
from bushel._src.trajectory.samples import SampleOrigins, Samples

Tree = dict[str, Any]

EPISODES = (RLDSEpisodes, LeRobotEpisodes, ArrayEpisodes)
"""The sources whose records are whole episodes."""


def _refuse_step(number: int) -> Any:
    raise ValueError("The element is a whole episode: take its steps from it.")


@dataclasses.dataclass(frozen=True, eq=False)
class Place:
    """A step of an episode, or a whole episode."""

    dataset: str
    """The name of the data set; "" if it has none."""
    episode: int
    """The number of the episode in its data set."""
    time: int | None
    """Which step; None if the element is the whole episode."""
    times: np.ndarray
    """The steps of the episode that have elements, in order; empty if the element is the whole episode of a file."""
    read_episode: Callable[[], Tree]
    """The whole episode as it is stored: arrays with an axis of time. Images are not read."""
    row: int | None = None
    """Which row of a batch the element is; None if the pipeline makes no batches."""
    rows: int = 0
    """How many rows the batch has."""
    describe: str = ""
    """The episode and its file, where the format of the files says it."""
    fps: float | None = None
    offsets: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    """For entries that are windows by offsets, the steps from the element's own step."""
    read_step: Callable[[int], Any] = _refuse_step
    """Reads the element of step `times[n]`, after the same functions. A whole episode has no such elements."""
    draws_anew: bool = False
    """Whether `read_step` makes random changes other than those in the stream."""

    @property
    def is_episode(self) -> bool:
        """Whether the element is a whole episode."""
        return self.time is None

    def __str__(self) -> str:
        of = f" of {self.dataset}" if self.dataset else ""
        return f"episode {self.episode}{of}" + ("" if self.time is None else f", step {self.time}")


def find_place(node: Node, index: int, row: int = 0) -> Place | None:
    """The episode and the step of an element; None if the pipeline does not come from episodes, or packs them.

    >>> from bushel.trajectory import TrajectoryDataset
    >>> episodes = [{"observation": {"x": np.zeros(n)}, "action": np.zeros((n, 2))} for n in (3, 5)]
    >>> frames = TrajectoryDataset.from_trajectories(episodes).flatten()
    >>> str(find_place(frames.dataset._node, 4)), str(find_place(frames.batch(4).dataset._node, 1, row=3))
    ('episode 1, step 1', 'episode 1, step 4')

    Args:
      node: the last node of a pipeline.
      index: the position of the element.
      row: if elements are batches, the row.
    """
    functions: list[OneParentMap] = []  # what is applied to single elements after the step that knows episodes
    batch: tuple[int, int] | None = None
    while True:
        if isinstance(node, MapNode):
            place = _recognize(node, index, functions)
            if place is not None:
                return place if batch is None else dataclasses.replace(place, row=batch[0], rows=batch[1])
            made, which, positions = node.made_of(np.array([index]))
            if not len(made):
                return None
            at = 0
            if isinstance(node, Batches):
                if batch is not None:
                    return None
                at = min(row, len(made) - 1)
                batch = at, len(made)
                functions.clear()  # they take batches
            elif len(made) > 1:
                return None
            elif isinstance(node, OneParentMap) and not node.moves and not node.drops:
                functions.append(node)
            node, index = node.parents[int(which[at])], int(positions[at])
        elif isinstance(node, BatchStream):
            if batch is not None or (row >= node.batch_size):
                return None
            batch, index, node = (row, node.batch_size), index * node.batch_size + row, node.parent
        elif isinstance(node, Elements):
            if (node.parent.sparse and not node.allow_nones) or index >= node.parent.length:
                return None
            node = node.parent
        elif node.transparent or isinstance(node, SeedStream) or (isinstance(node, Elementwise) and not node.drops):
            (node,) = node.parents
        else:
            return None


def comes_from_episodes(last: Node) -> bool:
    """Whether a pipeline has a step that knows episodes. This looks at the kinds of its steps only."""
    seen: set[int] = set()
    todo = [last]
    while todo:
        node = todo.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        function: Any = node.operation.transform if isinstance(node, WithOperation) else None
        if isinstance(getattr(function, "__self__", function), (Samples, _Frames, _OffsetWindows)):
            return True
        if isinstance(node, Source) and isinstance(node.source, (LeRobotSource, *EPISODES)):
            return True
        todo += node.parents
    return False


def _recognize(node: MapNode, index: int, functions: list[OneParentMap]) -> Place | None:
    """The place of an element of a node that knows episodes; None for all other nodes."""
    if isinstance(node, Source):
        return _recognize_source(node.source, index, functions)
    if not isinstance(node, WithOperation) or not isinstance(node, OneParentMap):
        return None
    function: Any = node.operation.transform
    if isinstance(function, Samples):
        return _place_of_sample(node, index, functions)
    if isinstance(getattr(function, "__self__", None), Samples) and function.__name__ == "trajectory":
        return _place_of_trajectory(function.__self__, index)
    if isinstance(function, _Frames):
        return _place_of_frame(node, function, index, functions)
    if isinstance(function, _OffsetWindows):
        return _place_of_window(node, function, index, functions)
    return None


def _rebuild(anchor: OneParentMap, leaf: MapNode, functions: list[OneParentMap], positions: np.ndarray) -> Any:
    """A function that reads step number `n` of an episode: element `positions[n]` of the pipeline without its order."""
    node: MapNode = dataclasses.replace(anchor, parent=leaf)
    for function in reversed(functions):
        node = dataclasses.replace(function, parent=node)
    dataset = wrap(node)
    return lambda number: dataset[int(positions[number])]


def _place_of_sample(node: OneParentMap, index: int, functions: list[OneParentMap]) -> Place | None:
    leaf, at = _find_leaf(node.parent, index)
    if not isinstance(leaf, SampleIndex):
        return None
    origins = leaf.describe_sample
    if not isinstance(origins, SampleOrigins):
        return None
    epoch, number = divmod(at, leaf.count)
    own, (episode, time) = origins.samples, origins.locate(number, epoch)
    numbers, times = origins.list_steps(number, epoch)
    positions = epoch * leaf.total + leaf.first + numbers
    every = np.arange(int(own.episodes.lengths[episode]))
    return Place(
        dataset=own.name if "dataset_name" in own.episodes.columns else "",
        episode=_number(own.episodes, episode),
        time=time,
        times=times,
        read_step=_rebuild(node, index_samples(leaf.total)._node, functions, positions),
        read_episode=lambda: _read_plain(own, np.full(len(every), episode), every),
        draws_anew=any(not function.pure for function in functions),
    )


def _place_of_trajectory(samples: Samples, index: int) -> Place:
    episode = int(samples.chosen[index % len(samples.chosen)])
    times = samples.space.times(episode, index // len(samples.chosen))
    every = np.arange(int(samples.episodes.lengths[episode]))
    return Place(
        dataset=samples.name if "dataset_name" in samples.episodes.columns else "",
        episode=_number(samples.episodes, episode),
        time=None,
        times=times,
        read_episode=lambda: _read_plain(samples, np.full(len(every), episode), every),
    )


def _read_plain(samples: Samples, episode: np.ndarray, times: np.ndarray) -> Tree:
    """The steps of an episode without windows and chunks, normalised as the samples are."""
    plain = dataclasses.replace(samples, transforms=None, row_functions=())
    return plain.rows(episode, times, Draws(samples.seed, times, episode))


def _place_of_frame(node: OneParentMap, frames: _Frames, index: int, functions: list[OneParentMap]) -> Place | None:
    leaf, at = _find_leaf(node.parent, index)
    if not isinstance(leaf, Range):
        return None
    epoch, number = divmod(at, leaf.length)
    ends = np.cumsum(frames._lengths)
    episode = int(np.searchsorted(ends, number, side="right"))
    length = int(frames._lengths[episode])
    first = int(ends[episode]) - length
    positions = epoch * leaf.length + first + np.arange(length)
    whole = epoch * len(frames._lengths) + episode
    return Place(
        dataset="",
        episode=episode,
        time=number - first,
        times=np.arange(length),
        read_step=_rebuild(node, leaf, functions, positions),
        read_episode=lambda: frames._compute(whole),
        draws_anew=any(not function.pure for function in functions),
    )


def _place_of_window(
    node: OneParentMap, windows: _OffsetWindows, index: int, functions: list[OneParentMap]
) -> Place | None:
    leaf, at = _find_leaf(node.parent, index)
    if not isinstance(leaf, Range):
        return None
    table = windows.episodes
    frame = at % leaf.length
    episode = int(np.searchsorted(table.starts, frame, side="right")) - 1
    length, first = int(table.lengths[episode]), int(table.starts[episode])
    name = read_name(table, first)
    return Place(
        dataset=name,
        episode=_number(table, episode),
        time=frame - first,
        times=np.arange(length),
        offsets={path: np.array(steps) for path, steps in windows.offsets.items()},
        read_step=_rebuild(node, leaf, functions, first + np.arange(length)),
        read_episode=functools.partial(_take_frames, table, first + np.arange(length)),
        draws_anew=any(not function.pure for function in functions),
    )


def _recognize_source(source: Any, index: int, functions: list[OneParentMap]) -> Place | None:
    if isinstance(source, LeRobotSource):
        number = index % len(source)
        ends = np.cumsum(source.lengths)
        place = int(np.searchsorted(ends, number, side="right"))
        length = int(source.lengths[place])
        first = int(ends[place]) - length
        row = int(source._table.starts[source._chosen[place]])
        steps = first + np.arange(length)
        return Place(
            dataset=redact.base_name(source.folder.path),
            episode=source.episodes[place],
            time=number - first,
            times=np.arange(length),
            fps=source.fps,
            offsets=source._steps,
            read_step=_rebuild_source(source, functions, steps),
            read_episode=functools.partial(_take_frames, source._table, row + np.arange(length)),
            draws_anew=any(not function.pure for function in functions),
        )
    if isinstance(source, EPISODES):
        episode = index % len(source)
        tree = functools.lru_cache(maxsize=1)(lambda: source[episode])
        return Place(
            dataset=name_episodes(source),
            episode=number_episode(source, episode),
            time=None,
            times=np.arange(0),
            describe=source.describe(episode),
            fps=source._folder.fps if isinstance(source, LeRobotEpisodes) else None,
            read_episode=tree,
        )
    return None


def _rebuild_source(source: Any, functions: list[OneParentMap], positions: np.ndarray) -> Any:
    node: MapNode = Source(source)
    for function in reversed(functions):
        node = dataclasses.replace(function, parent=node)
    dataset = wrap(node)
    return lambda number: dataset[int(positions[number])]


def name_episodes(source: RLDSEpisodes | LeRobotEpisodes | ArrayEpisodes) -> str:
    """The name of the data set of whole episodes."""
    return redact.base_name(source._folder.path) if isinstance(source, LeRobotEpisodes) else source._name


def number_episode(source: RLDSEpisodes | LeRobotEpisodes | ArrayEpisodes, place: int) -> int:
    """The number of an episode in its data set, where `source` may be a split of it. RLDS numbers each split."""
    if isinstance(source, LeRobotEpisodes):
        return source._number(int(source._positions[place]))
    return int(source._numbers[place]) if isinstance(source, ArrayEpisodes) else place


def _find_leaf(node: MapNode, index: int) -> tuple[MapNode, int]:
    """The source of an element, and its index there. The nodes between have one part each."""
    while True:
        made, which, positions = node.made_of(np.array([index]))
        if len(made) != 1:
            return node, index
        node, index = node.parents[int(which[0])], int(positions[0])


def _number(table: Episodes, episode: int) -> int:
    return episode if table.numbers is None else int(table.numbers[episode])


def read_name(table: Episodes, frame: int) -> str:
    """The name of the data set of a frame of a table; "" if it has none."""
    column = table.columns.get("dataset_name")
    return "" if column is None else column.take(np.array([frame]))[0].decode()


def _take_frames(table: Episodes, frames: np.ndarray) -> Tree:
    leaves = {path: column.take(frames) for path, column in flatten_tree(table.columns).items()}
    return nest_leaves(leaves)

"""Robot episodes: which step of which episode an element shows, and the episodes that a pipeline reads.

`find_episode_step` follows an element through the pipeline, by arithmetic, to the step that knows episodes: the samples
of `bushel.trajectory`, windows by offsets, rows of a LeRobot data set, or the episodes of files. The element where each
episode begins follows from arithmetic too. Lengths and texts come from tables; only the formats that do not keep them
are read, and no picture is.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from bushel._src.base import redact
from bushel._src.datasets.base_dataset import wrap
from bushel._src.graph.batch import Batches
from bushel._src.graph.node import MapNode, Node, OneParentMap
from bushel._src.graph.operation import WithOperation
from bushel._src.graph.source_nodes import Range, SourceNode
from bushel._src.graph.stream_ops import BatchStream, Elementwise
from bushel._src.graph.streams import Elements, SeedStream
from bushel._src.trajectory.array_episodes import ArrayEpisodes
from bushel._src.trajectory.data_utils import flatten_tree, nest_leaves
from bushel._src.trajectory.dataset_parts import _OpaqueFrames
from bushel._src.trajectory.episodes import Episodes, Texts
from bushel._src.trajectory.lerobot.reader import LeRobotEpisodes, LeRobotSource
from bushel._src.trajectory.rlds.reader import RLDSEpisodes
from bushel._src.trajectory.samples import Draws, SampleIndex, SampleOrigins, Samples, _OffsetWindows, index_samples
from bushel._src.view import output_records
from bushel._src.view.robot_elements import count_rows, flatten, is_batched
from bushel._src.view.session import PipelineStep, Session

Tree = dict[str, Any]

EPISODES = (RLDSEpisodes, LeRobotEpisodes, ArrayEpisodes)
"""The sources whose records are whole episodes."""


def _refuse_step(number: int) -> Any:
    raise ValueError("The element is a whole episode: take its steps from it.")


@dataclasses.dataclass(frozen=True, eq=False)
class EpisodeStep:
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


def find_episode_step(node: Node, index: int, row: int = 0) -> EpisodeStep | None:
    """Return the episode and the step of an element; None if the pipeline does not come from episodes, or packs them.

    >>> from bushel.trajectory import TrajectoryDataset
    >>> episodes = [{"observation": {"x": np.zeros(n)}, "action": np.zeros((n, 2))} for n in (3, 5)]
    >>> frames = TrajectoryDataset.from_trajectories(episodes).flatten()
    >>> str(find_episode_step(frames.dataset._node, 4)), str(find_episode_step(frames.batch(4).dataset._node, 1, row=3))
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
    """Return whether a pipeline has a step that knows episodes. This looks at the kinds of its steps only."""
    seen: set[int] = set()
    todo = [last]
    while todo:
        node = todo.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        function: Any = node.operation.transform if isinstance(node, WithOperation) else None
        if isinstance(getattr(function, "__self__", function), (Samples, _OpaqueFrames, _OffsetWindows)):
            return True
        if isinstance(node, SourceNode) and isinstance(node.source, (LeRobotSource, *EPISODES)):
            return True
        todo += node.parents
    return False


def _recognize(node: MapNode, index: int, functions: list[OneParentMap]) -> EpisodeStep | None:
    """Return the place of an element of a node that knows episodes; None for all other nodes."""
    if isinstance(node, SourceNode):
        return _recognize_source(node.source, index, functions)
    if not isinstance(node, WithOperation) or not isinstance(node, OneParentMap):
        return None
    function: Any = node.operation.transform
    if isinstance(function, Samples):
        return _step_of_sample(node, index, functions)
    if isinstance(getattr(function, "__self__", None), Samples) and function.__name__ == "trajectory":
        return _step_of_trajectory(function.__self__, index)
    if isinstance(function, _OpaqueFrames):
        return _step_of_frame(node, function, index, functions)
    if isinstance(function, _OffsetWindows):
        return _step_of_window(node, function, index, functions)
    return None


def _rebuild(anchor: OneParentMap, leaf: MapNode, functions: list[OneParentMap], positions: np.ndarray) -> Any:
    """Return a function that reads step number `n` of an episode: element `positions[n]` of the pipeline without its
    order.
    """
    node: MapNode = dataclasses.replace(anchor, parent=leaf)
    for function in reversed(functions):
        node = dataclasses.replace(function, parent=node)
    dataset = wrap(node)
    return lambda number: dataset[int(positions[number])]


def _step_of_sample(node: OneParentMap, index: int, functions: list[OneParentMap]) -> EpisodeStep | None:
    leaf, at = _find_leaf(node.parent, index)
    if not isinstance(leaf, SampleIndex):
        return None
    origins = leaf.describe_sample
    if not isinstance(origins, SampleOrigins):
        return None
    epoch, number = divmod(at, leaf.count)
    samples, (episode, time) = origins.samples, origins.locate(number, epoch)
    numbers, times = origins.list_steps(number, epoch)
    positions = epoch * leaf.total + leaf.first + numbers
    every = np.arange(int(samples.episodes.lengths[episode]))
    return EpisodeStep(
        dataset=samples.name if "dataset_name" in samples.episodes.columns else "",
        episode=_number(samples.episodes, episode),
        time=time,
        times=times,
        read_step=_rebuild(node, index_samples(leaf.total)._node, functions, positions),
        read_episode=lambda: _read_plain(samples, np.full(len(every), episode), every),
        draws_anew=any(not function.pure for function in functions),
    )


def _step_of_trajectory(samples: Samples, index: int) -> EpisodeStep:
    episode = int(samples.chosen[index % len(samples.chosen)])
    times = samples.space.times(episode, index // len(samples.chosen))
    every = np.arange(int(samples.episodes.lengths[episode]))
    return EpisodeStep(
        dataset=samples.name if "dataset_name" in samples.episodes.columns else "",
        episode=_number(samples.episodes, episode),
        time=None,
        times=times,
        read_episode=lambda: _read_plain(samples, np.full(len(every), episode), every),
    )


def _read_plain(samples: Samples, episode: np.ndarray, times: np.ndarray) -> Tree:
    """Return the steps of an episode without windows and chunks, normalised as the samples are."""
    plain = dataclasses.replace(samples, transforms=None, row_functions=())
    return plain.rows(episode, times, Draws(samples.seed, times, episode))


def _step_of_frame(
    node: OneParentMap, frames: _OpaqueFrames, index: int, functions: list[OneParentMap]
) -> EpisodeStep | None:
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
    return EpisodeStep(
        dataset="",
        episode=episode,
        time=number - first,
        times=np.arange(length),
        read_step=_rebuild(node, leaf, functions, positions),
        read_episode=lambda: frames._compute(whole),
        draws_anew=any(not function.pure for function in functions),
    )


def _step_of_window(
    node: OneParentMap, windows: _OffsetWindows, index: int, functions: list[OneParentMap]
) -> EpisodeStep | None:
    leaf, at = _find_leaf(node.parent, index)
    if not isinstance(leaf, Range):
        return None
    table = windows.episodes
    frame = at % leaf.length
    episode = int(np.searchsorted(table.starts, frame, side="right")) - 1
    length, first = int(table.lengths[episode]), int(table.starts[episode])
    name = read_name(table, first)
    return EpisodeStep(
        dataset=name,
        episode=_number(table, episode),
        time=frame - first,
        times=np.arange(length),
        offsets={path: np.array(steps) for path, steps in windows.offsets.items()},
        read_step=_rebuild(node, leaf, functions, first + np.arange(length)),
        read_episode=functools.partial(_take_frames, table, first + np.arange(length)),
        draws_anew=any(not function.pure for function in functions),
    )


def _recognize_source(source: Any, index: int, functions: list[OneParentMap]) -> EpisodeStep | None:
    if isinstance(source, LeRobotSource):
        number = index % len(source)
        ends = np.cumsum(source.lengths)
        place = int(np.searchsorted(ends, number, side="right"))
        length = int(source.lengths[place])
        first = int(ends[place]) - length
        row = int(source._table.starts[source._chosen[place]])
        steps = first + np.arange(length)
        return EpisodeStep(
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
        return EpisodeStep(
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
    node: MapNode = SourceNode(source)
    for function in reversed(functions):
        node = dataclasses.replace(function, parent=node)
    dataset = wrap(node)
    return lambda number: dataset[int(positions[number])]


def name_episodes(source: RLDSEpisodes | LeRobotEpisodes | ArrayEpisodes) -> str:
    """Return the name of the data set of whole episodes."""
    return redact.base_name(source._folder.path) if isinstance(source, LeRobotEpisodes) else source._name


def number_episode(source: RLDSEpisodes | LeRobotEpisodes | ArrayEpisodes, place: int) -> int:
    """Return the number of an episode in its data set, where `source` may be a split of it. RLDS numbers each split."""
    if isinstance(source, LeRobotEpisodes):
        return source._number(int(source._positions[place]))
    return int(source._numbers[place]) if isinstance(source, ArrayEpisodes) else place


def _find_leaf(node: MapNode, index: int) -> tuple[MapNode, int]:
    """Return the source of an element, and its index there. The nodes between have one part each."""
    while True:
        made, which, positions = node.made_of(np.array([index]))
        if len(made) != 1:
            return node, index
        node, index = node.parents[int(which[0])], int(positions[0])


def _number(table: Episodes, episode: int) -> int:
    return episode if table.numbers is None else int(table.numbers[episode])


def read_name(table: Episodes, frame: int) -> str:
    """Return the name of the data set of a frame of a table; "" if it has none."""
    column = table.columns.get("dataset_name")
    return "" if column is None else column.take(np.array([frame]))[0].decode()


def _take_frames(table: Episodes, frames: np.ndarray) -> Tree:
    leaves = {path: column.take(frames) for path, column in flatten_tree(table.columns).items()}
    return nest_leaves(leaves)


TRACED = 100_000
"""How many elements are looked through for the beginnings of episodes."""
BUDGET_S = 1.5
"""How long one request may read episodes. The page then asks for the rest."""
TEXT = 300
"""How many characters of an instruction are listed."""

Head = tuple[int | None, str | None]
"""The length of an episode and its instruction; None for what it does not have."""


@dataclasses.dataclass(frozen=True, eq=False)
class EpisodeTable:
    """The episodes of one source of a pipeline.

    Attributes:
      dataset: the name of the data set; "" if it has none.
      numbers: the number of each episode in its data set.
      locate: from indices of the source to positions in `numbers`, and steps.
      read: reads length and instruction of the episode at a position.
    """

    dataset: str
    numbers: np.ndarray
    locate: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
    read: Callable[[int], Head]


class EpisodeLists:
    """The episodes of a session, found when the page asks for them."""

    def __init__(self, session: Session):
        self._session = session
        self._heads: dict[tuple[int, int], Head] = {}
        self._lock = threading.Lock()

    def list(self, first: int, count: int) -> dict[str, Any]:
        """Return some episodes: how many there are, and a row for each that could be read in the time of one
        request.
        """
        total = sum(len(table.numbers) for table in self._tables.values())
        step, starts = self._starts
        end, rows = time.monotonic() + BUDGET_S, []
        for leaf, place in self._places(first, count):
            table = self._tables[leaf]
            length, text = self._read(leaf, place)
            index = int(starts[leaf][place]) if leaf in starts else -1
            rows.append(
                {
                    "dataset": table.dataset,
                    "episode": int(table.numbers[place]),
                    "length": length,
                    "text": text,
                    "step": step,
                    "index": index if index >= 0 else None,
                }
            )
            if time.monotonic() > end:
                break
        return {"total": total, "first": first, "episodes": rows}

    def _places(self, first: int, count: int) -> Iterator[tuple[int, int]]:
        for leaf, table in self._tables.items():
            yield from ((leaf, place) for place in range(first, min(first + count, len(table.numbers))))
            count -= max(0, min(count, len(table.numbers) - first))
            first = max(0, first - len(table.numbers))

    def _read(self, leaf: int, place: int) -> Head:
        with self._lock:
            known = self._heads.get((leaf, place))
        if known is None:
            try:
                known = self._tables[leaf].read(place)
            except Exception:  # a damaged episode is shown when the user goes to it
                known = None, None
            with self._lock:
                self._heads[leaf, place] = known
        return known

    @functools.cached_property
    def _tables(self) -> dict[int, EpisodeTable]:
        """The tables of the sources, by the numbers of their steps."""
        found = {step.number: _find_table(step, self._session) for step in self._session.steps if not step.parents}
        return {number: table for number, table in found.items() if table is not None}

    @functools.cached_property
    def _starts(self) -> tuple[int, dict[int, np.ndarray]]:
        """A step, and for each source the element of the step where each episode begins; -1 where that is not known."""
        step = self._session.last
        while is_batched(step.node) and len(step.parents) == 1:  # a row of a batch has no index
            step = self._session.steps[step.parents[0]]
        length = step.length if step.length is not None else TRACED
        indices = output_records.first_outputs(min(length, TRACED))
        starts: dict[int, np.ndarray] = {}
        try:
            found = output_records.trace_outputs(step.node, indices)
        except Exception:  # it depends on what was read before, or a user's function fails
            return step.number, starts
        numbers = {id(one.node): one.number for one in self._session.steps}
        for records in found.records:
            leaf = numbers.get(id(records.leaf), -1)
            if leaf in self._tables:
                begins = _find_starts(self._tables[leaf], records.rows, records.indices)
                kept = starts.get(leaf)
                starts[leaf] = begins if kept is None else np.where(kept >= 0, kept, begins)
        return step.number, starts


def _find_starts(table: EpisodeTable, rows: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """For each episode the output with its earliest step; -1 for an episode that no output is made of."""
    places, times = table.locate(indices)
    order = np.lexsort((rows, times, places))
    first, at = np.unique(places[order], return_index=True)
    starts = np.full(len(table.numbers), -1, np.int64)
    starts[first] = rows[order][at]
    return starts


def _find_table(step: PipelineStep, session: Session) -> EpisodeTable | None:
    """Return the episodes of a source, whatever its kind; None for a source that knows none."""
    node = step.node
    if isinstance(node, SourceNode) and isinstance(node.source, LeRobotSource):
        return _table_of_rows(node.source)
    if isinstance(node, SourceNode) and isinstance(node.source, EPISODES):
        return _table_of_episodes(node.source)
    if isinstance(node, SampleIndex) and isinstance(node.describe_sample, SampleOrigins):
        return _table_of_samples(node, node.describe_sample)
    if isinstance(node, Range):
        for function in _find_functions(session):
            if isinstance(function, _OffsetWindows) and function.episodes.frames == node.length:
                return _table_of_frames(
                    read_name(function.episodes, 0), function.episodes, np.arange(len(function.episodes))
                )
            if isinstance(function, _OpaqueFrames) and int(function._lengths.sum()) == node.length:
                return _table_of_trajectories(function)
    return None


def _find_functions(session: Session) -> Iterator[Any]:
    for step in session.steps:
        if isinstance(step.node, WithOperation):
            function: Any = step.node.operation.transform
            yield getattr(function, "__self__", function)


def _locate_in(lengths: np.ndarray) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    ends = np.cumsum(lengths)

    def locate(indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        numbers = indices % ends[-1]
        places = np.searchsorted(ends, numbers, side="right")
        return places, numbers - (ends - lengths)[places]

    return locate


def _table_of_rows(source: LeRobotSource) -> EpisodeTable:
    table = source._table
    read = _read_columns(table)
    return EpisodeTable(
        redact.base_name(source.folder.path),
        np.array(source.episodes),
        _locate_in(source.lengths),
        lambda place: read(int(source._chosen[place])),
    )


def _table_of_frames(name: str, table: Episodes, chosen: np.ndarray) -> EpisodeTable:
    read = _read_columns(table)
    numbers = np.arange(len(table)) if table.numbers is None else np.asarray(table.numbers)
    return EpisodeTable(
        name, numbers[chosen], _locate_in(table.lengths[chosen]), lambda place: read(int(chosen[place]))
    )


def _table_of_samples(leaf: SampleIndex, origins: SampleOrigins) -> EpisodeTable:
    samples = origins.samples
    plain = _table_of_frames("", samples.episodes, samples.chosen)
    places = np.full(len(samples.episodes), -1, np.int64)
    places[samples.chosen] = np.arange(len(samples.chosen))

    def locate(indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        epochs, numbers = np.divmod(indices, leaf.count)
        episodes, times = samples.space.locate(numbers, epochs)
        return places[episodes], times

    name = samples.name if "dataset_name" in samples.episodes.columns else ""
    return dataclasses.replace(plain, dataset=name, locate=locate)


def _table_of_trajectories(frames: _OpaqueFrames) -> EpisodeTable:
    lengths = np.asarray(frames._lengths)

    def read(place: int) -> Head:
        return int(lengths[place]), find_text(frames._compute(place))

    return EpisodeTable("", np.arange(len(lengths)), _locate_in(lengths), read)


def _table_of_episodes(source: Any) -> EpisodeTable:
    count = len(source)
    numbers = np.array([number_episode(source, place) for place in range(count)])

    def locate(indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return indices % count, np.zeros(len(indices), np.int64)

    if isinstance(source, LeRobotEpisodes):
        columns = _read_columns(source._table)
        return EpisodeTable(
            name_episodes(source), numbers, locate, lambda place: columns(int(source._positions[place]))
        )

    def read(place: int) -> Head:
        tree = source[place]
        return count_rows(tree), find_text(tree)

    return EpisodeTable(name_episodes(source), numbers, locate, read)


def _read_columns(table: Episodes) -> Callable[[int], Head]:
    """Return a function that reads length and instruction of an episode of a table."""
    columns = {path: column for path, column in flatten_tree(table.columns).items() if isinstance(column, Texts)}
    chosen = [column for path, column in columns.items() if _is_instruction("/".join(path))]

    def read(episode: int) -> Head:
        texts = [column.take(table.starts[[episode]])[0].decode(errors="replace") for column in chosen]
        return int(table.lengths[episode]), _choose_text(texts)

    return read


def _is_instruction(path: str) -> bool:
    name = path.rpartition("/")[2]
    return "language" in name or "instruction" in name or path == "task"


def _choose_text(texts: list[str]) -> str | None:
    """Return the first text that is not empty; "" if all are empty, None if there are none."""
    return None if not texts else next((text for text in texts if text), "")[:TEXT]


def find_text(tree: Mapping[str, Any]) -> str | None:
    """Return the instruction of an episode: arrays with a text for each step. None if it has none.

    >>> find_text({"language_instruction": np.array([b"push", b"push"], object)}), find_text({"action": np.zeros(3)})
    ('push', None)
    """
    texts = []
    for path, leaf in flatten(tree).items():
        if _is_instruction(path) and np.ndim(leaf) == 1 and len(leaf):
            first = leaf[0]
            if isinstance(first, (bytes, str)):
                texts.append(first.decode(errors="replace") if isinstance(first, bytes) else str(first))
    return _choose_text(texts)

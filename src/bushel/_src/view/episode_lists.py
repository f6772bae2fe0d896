"""The episodes that a pipeline reads: their numbers, lengths and instructions, and the element where each begins.

Which element it is follows from arithmetic. Lengths and texts come from tables; only the formats that do not keep them
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
from bushel._src.graph.leaves import Range, Source
from bushel._src.graph.operation import WithOperation
from bushel._src.trajectory.data_utils import flatten_tree
from bushel._src.trajectory.dataset_parts import _Frames
from bushel._src.trajectory.episodes import Episodes
from bushel._src.trajectory.frame_columns import Texts
from bushel._src.trajectory.lerobot.builder import LeRobotEpisodes
from bushel._src.trajectory.lerobot.source import LeRobotSource
from bushel._src.trajectory.offset_windows import _OffsetWindows
from bushel._src.trajectory.sample_index import SampleIndex
from bushel._src.trajectory.samples import SampleOrigins
from bushel._src.view import output_records
from bushel._src.view.places import EPISODES, name_episodes, number_episode, read_name
from bushel._src.view.robot_elements import count_rows, flatten, is_batched
from bushel._src.view.session import Session, Step

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
        """Some episodes: how many there are, and a row for each that could be read in the time of one request."""
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


def _find_table(step: Step, session: Session) -> EpisodeTable | None:
    """The episodes of a source, whatever its kind; None for a source that knows none."""
    node = step.node
    if isinstance(node, Source) and isinstance(node.source, LeRobotSource):
        return _table_of_rows(node.source)
    if isinstance(node, Source) and isinstance(node.source, EPISODES):
        return _table_of_episodes(node.source)
    if isinstance(node, SampleIndex) and isinstance(node.describe_sample, SampleOrigins):
        return _table_of_samples(node, node.describe_sample)
    if isinstance(node, Range):
        for function in _find_functions(session):
            if isinstance(function, _OffsetWindows) and function.episodes.frames == node.length:
                return _table_of_frames(
                    read_name(function.episodes, 0), function.episodes, np.arange(len(function.episodes))
                )
            if isinstance(function, _Frames) and int(function._lengths.sum()) == node.length:
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


def _table_of_trajectories(frames: _Frames) -> EpisodeTable:
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
    """A function that reads length and instruction of an episode of a table."""
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
    """The first text that is not empty; "" if all are empty, None if there are none."""
    return None if not texts else next((text for text in texts if text), "")[:TEXT]


def find_text(tree: Mapping[str, Any]) -> str | None:
    """The instruction of an episode: arrays with a text for each step. None if it has none.

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

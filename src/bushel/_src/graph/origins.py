"""Which source records an element is made of, and which epoch it is in. By arithmetic: nothing is read."""

from __future__ import annotations

import collections
import dataclasses
import math
import textwrap
from collections.abc import Callable
from typing import Any

import numpy as np

from bushel._src.base import checks, shown_text
from bushel._src.base.public import public
from bushel._src.graph.cursors import State
from bushel._src.graph.node import MapNode, Node
from bushel._src.graph.reindex import Repeat
from bushel._src.graph.stream_ops import BatchStream, Elementwise
from bushel._src.graph.streams import Elements, SeedStream, StreamNode
from bushel._src.index import epochs

_MOST_LINES = 8
"""An element of more records than this prints them in groups."""


@public("bushel")
@dataclasses.dataclass(frozen=True)
class SourceRecord:
    """A record of a source, as part of an element."""

    source: str
    """The source as it reads in a pipeline."""
    record: int
    """Which record of it."""
    epoch: int
    """How many times all records of the source come before this one, in the order of this pipeline."""
    component: tuple[int, ...] = ()
    """Which dataset of a mixture, concatenation or zip it comes through; several numbers where these are nested."""

    def __str__(self) -> str:
        through = f", component {'.'.join(map(str, self.component))}" if self.component else ""
        return f"record {self.record} of {self.source}, epoch {self.epoch}{through}"


@public("bushel")
@dataclasses.dataclass(frozen=True, repr=False)
class ElementOrigin:
    """What one element of a dataset is made of.

    >>> from bushel import MapDataset
    >>> origin = MapDataset.range(10).shuffle(seed=1).batch(2).origin(0)
    >>> [record.record for record in origin.records]
    [5, 7]
    """

    index: int
    records: tuple[SourceRecord, ...]

    def __repr__(self) -> str:
        counted = self._count()
        if len(counted) > _MOST_LINES:
            lines = self._list_groups()
        else:
            lines = [f"  {record}{_show_times(times)}" for record, times in counted.items()]
        return "\n".join([f"element {self.index} is made of", *lines])

    def _list_groups(self) -> list[str]:
        """Return the lines of an element of many records: those of one epoch of one source together."""
        groups: dict[SourceRecord, list[str]] = {}
        for record, times in self._count().items():
            group = dataclasses.replace(record, record=-1)
            groups.setdefault(group, []).append(f"{record.record}{_show_times(times)}")
        lines = []
        for group, numbers in groups.items():
            named = f"{len(numbers):,} records" if len(numbers) > 1 else "1 record"
            place = str(group).partition(" of ")[2]
            lines += textwrap.wrap(
                f"{named} of {place}: {', '.join(numbers)}",
                shown_text.find_width(),
                initial_indent="  ",
                subsequent_indent="    ",
                break_on_hyphens=False,
            )
        return lines

    def _repr_html_(self) -> str:
        counted = self._count()
        rows = [
            (record.source, str(record.record), str(record.epoch), ".".join(map(str, record.component)), str(times))
            for record, times in counted.items()
        ]
        head = ("source", "record", "epoch", "component", "times")
        width = len(head) if len(counted) < len(self.records) else -1
        table = shown_text.as_html(head[:width], [row[:width] for row in rows])
        return shown_text.paragraph(f"element {self.index} is made of") + table

    def _count(self) -> collections.Counter[SourceRecord]:
        """Return how many times each record is in the element, in the order in which they come first."""
        return collections.Counter(self.records)


def _show_times(times: int) -> str:
    return f" ({times} times)" if times > 1 else ""


_PlacedRecord = tuple[tuple[int, ...], SourceRecord]
"""A record, and its place among the parts of an element: a path of numbers."""


def find_origins(node: MapNode, indices: np.ndarray) -> list[ElementOrigin]:
    """Return what the elements at `indices` are made of."""
    records_of: list[list[_PlacedRecord]] = [[] for _ in indices]
    _walk(node, np.arange(len(indices)), indices, [()] * len(indices), (), records_of)
    return [
        # Parts were collected source by source. Sorting puts them back in the order in which the element has them.
        ElementOrigin(index, tuple(record for _, record in sorted(records, key=lambda entry: entry[0])))
        for index, records in zip(indices.tolist(), records_of, strict=True)
    ]


def _walk(
    node: MapNode,
    rows: np.ndarray,
    indices: np.ndarray,
    places: list[tuple[int, ...]],
    component: tuple[int, ...],
    records_of: list[list[_PlacedRecord]],
) -> None:
    """Follow elements of `node` up to the source records.

    Args:
      node: the node.
      rows: for each element, the output that it is a part of.
      indices: its index in `node`.
      places: its place among the parts of that output.
      component: the path of the node through mixtures, concatenations and zips.
      records_of: for each output, the records that were found so far. The function adds to them.
    """
    made, which, positions = node.made_of(indices)
    if not len(made):
        for row, index, place in zip(rows.tolist(), indices.tolist(), places, strict=True):
            origin = node.origin(index)
            record = SourceRecord(origin.source, origin.indices[0], index // node.length, component)
            records_of[row].append((place, record))
        return
    if not node.one_to_one:
        places = [(*places[row], number) for number, row in enumerate(made.tolist())]
    for number, parent in enumerate(node.parents):
        here = np.flatnonzero(which == number)
        if len(here):
            path = (*component, number) if node.joins else component
            _walk(parent, rows[made[here]], positions[here], [places[n] for n in here.tolist()], path, records_of)


def find_next_origins(stream: StreamNode, next_index: Callable[[], int], steps: int) -> list[ElementOrigin]:
    """Return what the next steps of a stream are made of. Raise where they do not follow from its position alone."""
    batches: list[BatchStream] = []
    node: Node = stream
    while not isinstance(node, Elements):
        if isinstance(node, BatchStream):
            batches.append(node)
        elif not (node.transparent or isinstance(node, SeedStream) or _keeps_all(node)):
            raise ValueError(
                f"What comes after {node.call()} depends on what was read before, so its next steps are not known "
                "without reading. Use `where` for a filter, and `pack` or `batch` on the MapDataset."
            )
        (node,) = node.parents
    if node.parent.sparse and not node.allow_nones:
        raise ValueError("Elements may be missing, so the next steps are not known without reading. Filter by `where`.")
    unit = math.prod(batch.batch_size for batch in batches)
    origins = []
    first = next_index()
    for step in range(first, first + steps):
        elements = range(step * unit, min(node.parent.length, (step + 1) * unit))
        rows = len(elements)
        for batch in reversed(batches):
            rows = batch.count_batches(rows)
        if not rows:
            break
        records = find_origins(node.parent, epochs.ranging(elements.start, elements.stop))
        origins.append(ElementOrigin(step, tuple(record for element in records for record in element.records)))
    return origins


def _keeps_all(node: Node) -> bool:
    return isinstance(node, Elementwise) and not node.drops


_INNER = ("parent", "parent_window_start_state")
"""Where a state has the state of the step before."""


def find_epoch(stream: StreamNode, state: State) -> int:
    """Return how many epochs are over at a position of a stream. Raise where epochs have no number.

    Args:
      stream: the last node of the pipeline.
      state: the position, as its cursor describes it.
    """
    inner: Any = state
    while isinstance(inner, dict):
        if "epoch" in inner:  # the state of a `repeat` of the stream
            return inner["epoch"]
        if "next_index" in inner:
            return _find_epoch_of_element(_find_map_node(stream), inner["next_index"])
        inner = next((inner[key] for key in _INNER if key in inner), None)
    raise _has_no_number(stream)


def drops_elements(stream: StreamNode) -> bool:
    """Return whether a stream leaves out missing elements, so that the number of an element is not its index."""
    nodes: list[Node] = [stream]
    for node in nodes:  # the list grows while it is read
        if isinstance(node, Elements):
            if node.parent.sparse and not node.allow_nones:
                return True
        else:
            nodes.extend(node.parents)
    return False


def _find_map_node(stream: StreamNode) -> MapNode:
    node: Node = stream
    while not isinstance(node, Elements):
        if len(node.parents) != 1:
            raise _has_no_number(node)
        (node,) = node.parents
    return node.parent


def _find_epoch_of_element(node: MapNode, index: int) -> int:
    """Return the epoch of the last `repeat` before `node`, for the element of `node` at `index`."""
    first = node
    while not isinstance(node, Repeat):
        known = node.length and len(node.parents) == 1
        positions = node.made_of(epochs.array([index]))[2].tolist() if known else []
        if not positions:
            if checks.is_endless(node.length):
                raise _has_no_number(node)
            return index // first.length if first.length and not checks.is_endless(first.length) else 0
        node, index = node.parents[0], positions[0]
    return index // node.parent.length if node.parent.length else 0


def _has_no_number(node: Node) -> NotImplementedError:
    return NotImplementedError(
        f"The epochs after {node.call()} have no number: its parts have epochs of their own, or the epoch does not "
        "follow from the position. `it.origins()[0].records` has the epoch of each record, where that is known."
    )

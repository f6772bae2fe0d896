"""Which records of which sources make up some outputs of a pipeline, for whole arrays. By arithmetic: nothing is read.

`graph/origins.py` answers the same question for one element, as objects. Here the answer is arrays, so that many
thousands of batches can be counted.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from bushel._src.base.checks import INFINITE
from bushel._src.base.errors import RowFailed
from bushel._src.graph.elementwise import Elementwise
from bushel._src.graph.node import MapNode, Node
from bushel._src.graph.ordered import BatchStream, MixStream
from bushel._src.graph.reindex import Select
from bushel._src.graph.streams import Elements, SeedStream, StreamNode
from bushel._src.index import mix, words


class NotTraceable(ValueError):
    """The records of an output depend on what was read before it, so arithmetic alone does not give them."""


@dataclasses.dataclass(frozen=True, eq=False)
class Records:
    """The records of one source in some outputs, in the order in which they are delivered."""

    leaf: MapNode
    component: tuple[int, ...]
    """Which dataset of each mixture, concatenation or zip the records come through."""
    rows: np.ndarray
    """For each record, which of the outputs it is a part of."""
    indices: np.ndarray
    """For each record its index in the source. From the second epoch on, it is the number + epoch * length."""


@dataclasses.dataclass(frozen=True, eq=False)
class Choices:
    """The elements that a mixture or a concatenation contributes to some outputs."""

    node: Select | MixStream
    component: tuple[int, ...]
    rows: np.ndarray
    """For each element, which of the outputs it is a part of."""
    positions: np.ndarray
    """For each element its position in the mixture."""
    which: np.ndarray
    """For each element, which dataset of the mixture it comes from."""


@dataclasses.dataclass(eq=False)
class Trace:
    """What some outputs of a pipeline are made of."""

    outputs: int
    """How many outputs there are. Fewer than were asked for where the pipeline ends."""
    records: list[Records] = dataclasses.field(default_factory=list)
    choices: list[Choices] = dataclasses.field(default_factory=list)
    before_filter: str | None = None
    """The first filter that may still remove elements. The counts are those before it."""


def count_outputs(node: Node) -> int | None:
    """How many elements a pipeline has; INFINITE for no end; None where that is not known without reading."""
    if isinstance(node, MapNode):
        return node.length
    if isinstance(node, MixStream):
        return _count_mixed(node)
    if isinstance(node, BatchStream):
        count = count_outputs(node.parent)
        if count is None or count >= INFINITE:
            return count
        return count // node.batch_size if node.drop_remainder else -(-count // node.batch_size)
    if _keeps_order(node):
        return count_outputs(node.parents[0])
    return node.length if isinstance(node, StreamNode) else None


def _keeps_order(node: Node) -> bool:
    """Whether a node of a stream has one element for each of its parent's, in their order."""
    return node.transparent or isinstance(node, SeedStream) or (isinstance(node, Elementwise) and not node.drops)


def _count_mixed(node: MixStream) -> int | None:
    """The length of a mixture of streams. It ends where it needs an element of a stream that has ended."""
    total = sum(node.weights)
    which, within = mix.mixed(words.ranging(0, total), node.weights)  # one period of the pattern
    ends = [INFINITE]
    for number, (part, weight) in enumerate(zip(node.parts, node.weights, strict=True)):
        length = count_outputs(part)
        if length is None:
            return None
        if length < INFINITE:
            periods, rest = divmod(length, weight)
            place = int(np.flatnonzero((which == number) & (within == rest))[0])
            ends.append(periods * total + place)
    return min(ends)


def trace_outputs(node: Node, indices: np.ndarray) -> Trace:
    """Traces the outputs at `indices` of a pipeline to the records of its sources.

    Raises NotTraceable for a stream whose elements depend on what was read before.

    >>> from bushel import MapDataset
    >>> ds = MapDataset.mix([MapDataset.range(9), MapDataset.range(3)], [3, 1]).batch(4)
    >>> found = trace_outputs(ds._node, np.arange(2))
    >>> [(one.component, one.indices.tolist()) for one in found.records]
    [((0,), [0, 1, 2, 3, 4, 5]), ((1,), [0, 1])]

    Args:
      node: the last node of the pipeline.
      indices: positions of outputs, in growing order. Positions after the end are left out.
    """
    indices = np.asarray(indices, dtype=np.int64)
    inside = indices < _length(node)
    indices = indices[inside]
    found = Trace(len(indices))
    try:
        _walk(node, np.arange(len(indices)), indices, (), found)
    except RowFailed as failed:  # a user's function that selects datasets
        raise failed.error from None
    return found


def _length(node: Node) -> int:
    length = count_outputs(node)
    return INFINITE if length is None else length  # where it is not known, `_walk` says why


def _walk(node: Node, rows: np.ndarray, indices: np.ndarray, component: tuple[int, ...], found: Trace) -> None:
    if isinstance(node, MapNode):
        _walk_map(node, rows, indices, component, found)
        return
    inside = indices < _length(node)  # a last batch may be smaller
    rows, indices = rows[inside], indices[inside]
    if isinstance(node, Elements):
        if node.parent.sparse and not node.allow_nones:
            raise NotTraceable(
                "A filter removes elements, so the position of an element is not known without reading those before "
                "it. Filter with `where`, which computes the filter once."
            )
        _walk(node.parent, rows, indices, component, found)
    elif isinstance(node, BatchStream):
        size = node.batch_size
        parts = (indices[:, None] * size + np.arange(size)).reshape(-1)
        _walk(node.parent, np.repeat(rows, size), parts, component, found)
    elif isinstance(node, MixStream):
        if count_outputs(node) is None:
            raise NotTraceable(
                f"{node.call()} ends with its first part that ends, and how long a part is is not known without "
                "reading. Filter with `where`, which computes the filter once."
            )
        which, positions = mix.mixed(indices, node.weights)
        found.choices.append(Choices(node, component, rows, indices, which))
        for number, part in enumerate(node.parts):
            here = which == number
            _walk(part, rows[here], positions[here], (*component, number), found)
    elif _keeps_order(node):
        _walk(node.parents[0], rows, indices, component, found)
    else:
        raise NotTraceable(f"What comes after {node.call()} depends on what was read before, so it is not known ahead.")


def _walk_map(node: MapNode, rows: np.ndarray, indices: np.ndarray, component: tuple[int, ...], found: Trace) -> None:
    if node.drops and found.before_filter is None:
        found.before_filter = node.call()
    if not len(indices):
        return
    made, which, positions = node.made_of(indices)
    if not len(made):  # a source, or a user's own dataset: only its author knows what it reads
        found.records.append(Records(node, component, rows, indices))
        return
    rows = rows[made]
    if isinstance(node, Select):
        found.choices.append(Choices(node, component, rows, indices, which))
    for number, parent in enumerate(node.parents):
        here = slice(None) if len(node.parents) == 1 else which == number
        path = (*component, number) if node.joins else component
        _walk(parent, rows[here], positions[here], path, found)


def first_outputs(count: int) -> np.ndarray:
    """The positions of the first `count` outputs."""
    return words.ranging(0, count)


def count_records(node: Node) -> int:
    """How many records one output of a pipeline is made of, roughly: to limit how many outputs are traced."""
    if isinstance(node, MapNode):
        return max(1, node.fan_in)
    own = node.batch_size if isinstance(node, BatchStream) else 1
    return own * max(map(count_records, node.parents), default=1)

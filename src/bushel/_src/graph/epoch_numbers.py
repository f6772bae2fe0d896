"""Which epoch a position of a stream is in, from its state and by arithmetic: nothing is read."""

from __future__ import annotations

from typing import Any

from bushel._src.base import checks
from bushel._src.graph.node import MapNode, Node
from bushel._src.graph.reindex import Repeat
from bushel._src.graph.state_fields import State
from bushel._src.graph.streams import Elements, StreamNode
from bushel._src.index import words

_INNER = ("parent", "parent_window_start_state")
"""Where a state has the state of the step before."""


def find_epoch(stream: StreamNode, state: State) -> int:
    """How many epochs are over at a position of a stream. Raises where epochs have no number.

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
    """Whether a stream leaves out missing elements, so that the number of an element is not its index."""
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
    """The epoch of the last `repeat` before `node`, for the element of `node` at `index`."""
    first = node
    while not isinstance(node, Repeat):
        known = node.length and len(node.parents) == 1
        positions = node.made_of(words.array([index]))[2].tolist() if known else []
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

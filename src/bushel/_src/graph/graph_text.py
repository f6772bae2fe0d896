"""A graph as text: the code that builds it, and a table of its steps for notebooks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from bushel._src.base import checks, shown_text, trees
from bushel._src.base.errors import describe_error
from bushel._src.base.public import public
from bushel._src.graph.node import MapNode, Node
from bushel._src.graph.streams import StreamNode

_WIDTH = 100
_LONG = 80
"""The shapes of an element in a table are not written again if they are longer than this."""


def text(node: Node) -> str:
    """Return the pipeline as it was written, one call per line unless it fits one line."""
    steps = [node]
    while steps[0].parents and not steps[0].joins:
        steps.insert(0, steps[0].parents[0])
    first, calls = steps[0], [step.call() for step in steps]
    head = f"{'MapDataset' if isinstance(first, MapNode) else 'IterDataset'}.{calls[0]}"
    if first.parents:
        inner = ",\n".join(_indent(text(part), 8) for part in first.parents)
        head = f"{head.partition('(')[0]}([\n{inner},\n    ]{_get_arguments(calls[0])})"
    one_line = ".".join([head, *calls[1:]])
    if len(one_line) <= _WIDTH and "\n" not in one_line:
        return one_line
    return "\n".join([head, *(f"    .{call}" for call in calls[1:])])


@public("bushel")
@dataclasses.dataclass(frozen=True, repr=False)
class Description:
    """The steps of a pipeline. Print it, or let a notebook show it."""

    steps: tuple[tuple[str, str, str], ...]
    """For each step: the call, the number of elements, and the shapes of an element; "" where one is not known."""

    def __repr__(self) -> str:
        return self.as_text(shown_text.find_width())

    def as_text(self, width: int) -> str:
        """Return the table, with long cells broken where it is wider than `width`."""
        return shown_text.as_text(_HEAD, self._shorten(), left=3, width=width)

    def _shorten(self) -> list[tuple[str, str, str]]:
        """Return the rows, without the shapes of an element where they are long and those of the row before."""
        before = [None, *(element for *_, element in self.steps)]
        return [
            (call, length, "(the same)" if element == last and len(element) > _LONG else element)
            for (call, length, element), last in zip(self.steps, before)
        ]

    def _repr_html_(self) -> str:
        return shown_text.as_html(_HEAD, self.steps)


_HEAD = ("step", "length", "element")


def describe(node: Node, read_one: Callable[[Node], Any] | None = None) -> Description:
    """Return each step of the pipeline with its length and the shapes of its elements.

    Args:
      node: the last step.
      read_one: returns one element after a step. It is called where shapes are not known otherwise.
    """
    steps = _list_steps(node)
    return Description(tuple((step.call(), _format_length(step), _format_shapes(step, read_one)) for step in steps))


def _format_length(step: Node) -> str:
    length = step.length if isinstance(step, (MapNode, StreamNode)) else None
    return "" if length is None else checks.show_length(length)


def _format_shapes(step: Node, read_one: Callable[[Node], Any] | None) -> str:
    try:
        return trees.describe(step.element_spec())
    except (NotImplementedError, ValueError):
        if read_one is None:
            return ""
    try:
        return trees.describe(read_one(step))
    except (Exception, SystemExit) as error:  # the table still shows the steps before it, and says which step failed
        return f"fails: {describe_error(error).splitlines()[0]}"


def _list_steps(node: Node) -> list[Node]:
    return [step for parent in node.parents for step in _list_steps(parent)] + [node]


def _get_arguments(call: str) -> str:
    inside = call.partition("(")[2].rpartition(")")[0]
    return f", {inside}" if inside else ""


def _indent(block: str, by: int) -> str:
    return "\n".join(" " * by + line for line in block.splitlines())

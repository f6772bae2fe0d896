"""A graph as people read it: as the code that builds it, and as a table for notebooks."""

from __future__ import annotations

import html

from bushel.base import trees
from bushel.base.checks import INFINITE
from bushel.graph.node import MapNode, Node

_WIDTH = 100


def text(node: Node) -> str:
    """The pipeline as it was written, one call per line unless it fits one line."""
    calls, parts = _chain(node)
    head = f"{'MapDataset' if isinstance(node, MapNode) or _starts_as_map(node) else 'IterDataset'}.{calls[0]}"
    if parts:
        inner = ",\n".join(_indented(text(part), 8) for part in parts)
        head = f"{head.partition('(')[0]}([\n{inner},\n    ]{_arguments(calls[0])})"
    one_line = ".".join([head, *calls[1:]])
    if len(one_line) <= _WIDTH and "\n" not in one_line:
        return one_line
    return "\n".join([head, *(f"    .{call}" for call in calls[1:])])


def table(node: Node) -> str:
    """The pipeline as an HTML table: each step with its length and the shapes of its elements."""
    rows = []
    for step in _steps(node):
        length = "" if not isinstance(step, MapNode) else "endless" if step.length >= INFINITE else f"{step.length:,}"
        try:
            shapes = trees.describe(step.element_spec())
        except (NotImplementedError, ValueError):
            shapes = ""
        cells = "".join(f"<td><code>{html.escape(cell)}</code></td>" for cell in (step.call(), length, shapes))
        rows.append(f"<tr>{cells}</tr>")
    head = "<tr><th>step</th><th>length</th><th>element</th></tr>"
    return f"<table>{head}{''.join(rows)}</table>"


def _chain(node: Node) -> tuple[list[str], tuple[Node, ...]]:
    steps = [node]
    while steps[-1].parents and not steps[-1].joins:
        steps.append(steps[-1].parents[0])
    return [step.call() for step in reversed(steps)], steps[-1].parents


def _steps(node: Node) -> list[Node]:
    return [step for parent in node.parents for step in _steps(parent)] + [node]


def _starts_as_map(node: Node) -> bool:
    while node.parents and not node.joins:
        node = node.parents[0]
    return isinstance(node, MapNode)


def _arguments(call: str) -> str:
    inside = call.partition("(")[2].rpartition(")")[0]
    return f", {inside}" if inside else ""


def _indented(block: str, by: int) -> str:
    return "\n".join(" " * by + line for line in block.splitlines())

"""Tables as text and as HTML, for terminals and notebooks."""

from __future__ import annotations

import html
import itertools
import re
import shutil
import textwrap
from collections.abc import Sequence


def as_text(head: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1, width: int | None = None) -> str:
    """Return a table in columns, the first `left` of them aligned to the left and the others to the right.

    With a `width`, cells of the first and the last column are broken into several lines where the table is wider.

    >>> print(as_text(["step", "length"], [["range(10)", "10"]]))
    step       length
    range(10)      10
    >>> print(as_text(["step", "element"], [["batch(2)", "{'x': int64[2], 'y': int64[2]}"]], left=2, width=30))
    step      element
    batch(2)  {'x': int64[2],
               'y': int64[2]}
    """
    if width is not None:
        rows = _break_cells(head, rows, width)
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = []
    for row in (head, *rows):
        cells = [
            cell.ljust(width) if place < left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def as_html(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return the same as an HTML table. Texts are escaped.

    >>> as_html(["a"], [["<b>"]])
    '<table><tr><th>a</th></tr><tr><td><code>&lt;b&gt;</code></td></tr></table>'
    """
    lines = [f"<tr>{''.join(f'<th>{html.escape(cell)}</th>' for cell in head)}</tr>"]
    for row in rows:
        lines.append(f"<tr>{''.join(f'<td><code>{html.escape(cell)}</code></td>' for cell in row)}</tr>")
    return f"<table>{''.join(lines)}</table>"


def paragraph(text: str) -> str:
    """Return a text as an HTML paragraph, with its line breaks.

    >>> paragraph("a < b")
    '<p>a &lt; b</p>'
    """
    return f"<p>{html.escape(text).replace(chr(10), '<br>')}</p>"


def find_width() -> int:
    """Return how wide a printed table may be: as the terminal, or 120 where there is none."""
    return max(60, shutil.get_terminal_size((120, 24)).columns)


def _break_cells(head: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[Sequence[str]]:
    """Return the rows with long cells of the first and the last column broken, each into further rows."""
    if not rows or (max(len("  ".join(row)) for row in (head, *rows)) <= width and _measure(head, rows) <= width):
        return list(rows)
    between = _measure([""] * (len(head) - 2), [row[1:-1] for row in (head, *rows)]) + 4 if len(head) > 2 else 2
    longest = max(len(row[0]) for row in (head, *rows))
    first = min(longest, max(width // 3, width - between - max(len(row[-1]) for row in (head, *rows))))
    last = max(20, width - first - between)
    broken: list[Sequence[str]] = []
    for row in rows:
        starts, ends = _break(row[0], first), _break(row[-1], last)
        for place, (start, end) in enumerate(itertools.zip_longest(starts, ends, fillvalue="")):
            broken.append((start, *(row[1:-1] if place == 0 else [""] * (len(row) - 2)), end))
    return broken


def _measure(head: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """Return how wide a table is."""
    columns = list(zip(head, *rows, strict=True))
    return sum(max(map(len, column)) for column in columns) + 2 * (len(columns) - 1)


def _break(text: str, width: int) -> list[str]:
    """Return the lines of a cell, broken after commas where that is possible.

    Lines after the first are indented by one.
    """
    if len(text) <= width:
        return [text]
    lines: list[str] = []
    for part in re.split(r", (?![^\[]*\])", text):  # the commas of a shape stay
        if lines and len(lines[-1]) + len(part) + 3 <= width:
            lines[-1] += f", {part}"
            continue
        if lines:
            lines[-1] += ","
        indent = " " if lines else ""
        lines += textwrap.wrap(part, width - 1, initial_indent=indent, subsequent_indent=" ", break_on_hyphens=False)
    return lines or [""]

"""Tables as text and as HTML, for terminals and notebooks."""

from __future__ import annotations

import html
from collections.abc import Sequence


def as_text(head: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """A table in columns, the first `left` of them aligned to the left and the others to the right.

    >>> print(as_text(["step", "length"], [["range(10)", "10"]]))
    step       length
    range(10)      10
    """
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
    """The same as an HTML table. Texts are escaped.

    >>> as_html(["a"], [["<b>"]])
    '<table><tr><th>a</th></tr><tr><td><code>&lt;b&gt;</code></td></tr></table>'
    """
    lines = [f"<tr>{''.join(f'<th>{html.escape(cell)}</th>' for cell in head)}</tr>"]
    for row in rows:
        lines.append(f"<tr>{''.join(f'<td><code>{html.escape(cell)}</code></td>' for cell in row)}</tr>")
    return f"<table>{''.join(lines)}</table>"


def paragraph(text: str) -> str:
    """A text as an HTML paragraph, with its line breaks.

    >>> paragraph("a < b")
    '<p>a &lt; b</p>'
    """
    return f"<p>{html.escape(text).replace(chr(10), '<br>')}</p>"

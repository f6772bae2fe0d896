"""`ds.show(i)`: an element as a notebook draws it, with HTML that stands alone, or as a terminal prints it.

All texts in the HTML are escaped. Reports use it too.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from bushel._src.base import shown_text
from bushel._src.base.public import public
from bushel._src.display.describe import describe_element, walk

_COLORS = ("#9fc2ee", "#eeb999", "#9fd6b3", "#d3abe4", "#dfcc7f", "#95d3da", "#ea9fbb", "#c3cc84")
_QUIET = "opacity:.65;font-size:.9em"
_MONO = "font-family:monospace;white-space:pre-wrap;overflow-wrap:anywhere"


def draw(entry: dict[str, Any]) -> str:
    """Return the HTML of a description that `describe_element` made.

    >>> draw({"kind": "text", "type": "str", "text": "<b>"})
    '<div style="font-family:monospace;white-space:pre-wrap;overflow-wrap:anywhere">&lt;b&gt;</div>'
    """
    function = _DRAW.get(entry["kind"], _draw_text)
    return function(entry)


def _draw_container(entry: dict[str, Any]) -> str:
    rows = [
        f'<div style="margin:.4em 0 .4em .8em"><div><b>{_text(item["key"])}</b> '
        f'<span style="{_QUIET}">{_text(item["value"]["type"])}</span></div>{draw(item["value"])}</div>'
        for item in entry["items"]
    ]
    return "".join(rows) + _left_out(entry, "entries")


def _draw_text(entry: dict[str, Any]) -> str:
    return f'<div style="{_MONO}">{_text(entry.get("text", ""))}</div>{_left_out(entry, "characters")}'


def _draw_texts(entry: dict[str, Any]) -> str:
    lines = []
    for one in entry["texts"]:
        times = f" ({one['times']} times in a row)" if one["times"] > 1 else ""
        lines.append(f"<li>{_text(one['text'])}{times}</li>")
    return f'<ol start="0">{"".join(lines)}</ol>{_left_out(entry, "texts")}'


def _draw_image(entry: dict[str, Any]) -> str:
    scale = max(1, min(8, 160 // max(entry["width"], entry["height"], 1)))
    width = min(entry["width"], 512) * scale
    style = "image-rendering:pixelated;max-width:100%" if scale > 1 else "max-width:100%"
    caption = f"<div>{_text(entry['caption'])}</div>" if entry.get("caption") else ""
    return f'<img src="{_text(entry["url"])}" style="width:{width}px;{style}">{caption}{_note(entry.get("note"))}'


def _draw_frames(entry: dict[str, Any]) -> str:
    note = _note(f"{entry['total']} images")
    return f'<img src="{_text(entry["sprite"]["url"])}" style="max-width:100%">{note}'


def _draw_audio(entry: dict[str, Any]) -> str:
    return f'<audio controls src="{_text(entry["url"])}"></audio>'


def _draw_tokens(entry: dict[str, Any]) -> str:
    rows = []
    for row in entry["rows"]:
        segments: Sequence[int | None] = row.get("segments") or [None] * len(row["ids"])
        colors = {segment: n for n, segment in enumerate(dict.fromkeys(one for one in segments if one))}
        cells = []
        for place, (token, segment) in enumerate(zip(row["ids"], segments, strict=True)):
            color = f"background:{_COLORS[colors[segment] % len(_COLORS)]};color:#000" if segment else "opacity:.6"
            shown = row["pieces"][place] if "pieces" in row else str(token)
            cells.append(f'<span style="{color};border-radius:3px;padding:0 3px">{_text(shown)}</span>')
        rows.append(f'<div style="font-family:monospace;line-height:1.7">{" ".join(cells)}</div>')
    return "".join(rows) + _left_out(entry, "tokens of each row")


def _draw_array(entry: dict[str, Any]) -> str:
    summary = entry.get("summary") or {}
    facts = ", ".join(f"{name} {summary[name]:.4g}" for name in ("min", "max", "mean", "std") if name in summary)
    pictures = [entry["heat"]] if "heat" in entry else entry.get("slices", [])
    images = [
        f'<img src="{_text(one["url"])}" style="width:{max(one["width"], 160)}px;height:{max(one["height"], 60)}px;'
        'image-rendering:pixelated;margin-right:8px">'
        for one in pictures
    ]
    curve = draw_curve(entry["curve"]["y"]) if "curve" in entry else ""
    bars = draw_bars(entry["histogram"]["counts"]) if entry.get("histogram") else ""
    values = "" if images or curve else f'<div style="{_MONO}">{_text(entry.get("values", ""))}</div>'
    return f"{_note(facts)}{''.join(images)}{curve}{bars}{values}"


def draw_curve(values: Sequence[Any], width: int = 320, height: int = 60) -> str:
    """Return a curve as SVG. Values that are not finite leave gaps."""
    numbers = [float(value) for value in values]
    finite = [value for value in numbers if abs(value) != float("inf") and value == value]
    if len(finite) < 2:
        return ""
    low, high = min(finite), max(finite)
    across, up = width / max(1, len(numbers) - 1), (height - 4) / ((high - low) or 1)
    pieces, pen = [], "M"
    for place, value in enumerate(numbers):
        if value != value or abs(value) == float("inf"):
            pen = "M"
            continue
        pieces.append(f"{pen}{place * across:.1f} {height - 2 - (value - low) * up:.1f}")
        pen = "L"
    return _svg(width, height, f'<path d="{"".join(pieces)}" fill="none" stroke="#3b7dd8" stroke-width="1.3"/>')


def draw_bars(counts: Sequence[int], width: int = 240, height: int = 60) -> str:
    """Return a histogram as SVG."""
    across, up = width / max(1, len(counts)), height / (max(counts, default=0) or 1)
    bars = [
        f'<rect x="{place * across:.1f}" y="{height - count * up:.1f}" width="{max(across - 0.5, 0.5):.1f}" '
        f'height="{count * up:.1f}" fill="#3b7dd8" fill-opacity=".6"/>'
        for place, count in enumerate(counts)
    ]
    return _svg(width, height, "".join(bars))


def _svg(width: int, height: int, inside: str) -> str:
    return f'<svg width="{width}" height="{height}" style="margin-right:8px">{inside}</svg>'


def _draw_rows(entry: dict[str, Any]) -> str:
    return "".join(draw(item["value"]) for item in entry["items"]) + _left_out(entry, "rows")


def _note(text: str | None) -> str:
    return f'<div style="{_QUIET}">{_text(text)}</div>' if text else ""


def _left_out(entry: dict[str, Any], what: str) -> str:
    return _note(f"… and {entry['left_out']:,} more {what}") if entry.get("left_out") else ""


def _text(value: Any) -> str:
    return html.escape(str(value), quote=True)


_DRAW = {
    "dict": _draw_container,
    "list": _draw_container,
    "texts": _draw_texts,
    "image": _draw_image,
    "frames": _draw_frames,
    "rows": _draw_rows,
    "audio": _draw_audio,
    "tokens": _draw_tokens,
    "array": _draw_array,
}


@public("bushel")
class ShownElement:
    """An element to look at. A notebook draws it: images, curves, texts, rows of tokens. `print` lists its parts.

    >>> import numpy as np
    >>> print(ShownElement({"x": np.arange(3), "label": "cat"}, 5))
    element 5
    part   type      value
    x      int64[3]  [0 1 2]
    label  str       cat

    Args:
      element: any tree.
      index: its index, for the title.
      tokenizer: an object with `decode(ids)`, for rows of tokens.
    """

    def __init__(self, element: Any, index: int, tokenizer: Any = None):
        self.element, self.index = element, index
        self._tokenizer = tokenizer

    def __repr__(self) -> str:
        description = describe_element(self.element, tokenizer=self._tokenizer, draws=False)
        rows = [("/".join(path) or "-", entry["type"], summarize_entry(entry)) for path, entry in walk(description)]
        return f"element {self.index}\n" + shown_text.as_text(("part", "type", "value"), rows, left=3)

    def _repr_html_(self) -> str:
        described = describe_element(self.element, tokenizer=self._tokenizer)
        return shown_text.paragraph(f"element {self.index}") + draw(described)


def summarize_entry(entry: Any, width: int = 70) -> str:
    """Return an entry of an element in one line.

    >>> summarize_entry({"kind": "text", "text": "two\\nlines"})
    'two\\\\nlines'
    """
    summary = entry.get("summary") or {}
    if entry["kind"] == "array" and ("histogram" in entry or "heat" in entry) and "min" in summary:
        text = ", ".join(f"{name} {summary[name]:.4g}" for name in ("min", "max", "mean", "std"))
    elif entry["kind"] == "array":
        text = " ".join(str(entry.get("values", "")).split())
    elif entry["kind"] == "tokens":
        text = " ".join(map(str, entry["rows"][0]["ids"]))
    elif entry["kind"] == "texts":
        text = ", ".join(repr(one["text"]) for one in entry["texts"])
    else:
        text = str(entry.get("text", ""))
    text = text.replace("\n", "\\n").replace("\r", "\\r")
    text = "".join(letter if letter.isprintable() else "?" for letter in text)  # no control codes for the terminal
    return text if len(text) <= width else text[: width - 1] + "…"

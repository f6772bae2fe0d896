"""`ds.show(i)`: an element as a notebook draws it, or as a terminal prints it."""

from __future__ import annotations

from typing import Any

from bushel._src.base import tables
from bushel._src.base.public import public
from bushel._src.display.describe import describe_element, walk
from bushel._src.display.notebook_html import draw


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
        rows = [("/".join(path) or "-", part["type"], summarize_part(part)) for path, part in walk(description)]
        return f"element {self.index}\n" + tables.as_text(("part", "type", "value"), rows, left=3)

    def _repr_html_(self) -> str:
        described = describe_element(self.element, tokenizer=self._tokenizer)
        return tables.paragraph(f"element {self.index}") + draw(described)


def summarize_part(part: Any, width: int = 70) -> str:
    """A part of an element in one line.

    >>> summarize_part({"kind": "text", "text": "two\\nlines"})
    'two\\\\nlines'
    """
    summary = part.get("summary") or {}
    if part["kind"] == "array" and ("histogram" in part or "heat" in part) and "min" in summary:
        text = ", ".join(f"{name} {summary[name]:.4g}" for name in ("min", "max", "mean", "std"))
    elif part["kind"] == "array":
        text = " ".join(str(part.get("values", "")).split())
    elif part["kind"] == "tokens":
        text = " ".join(map(str, part["rows"][0]["ids"]))
    elif part["kind"] == "texts":
        text = ", ".join(repr(one["text"]) for one in part["texts"])
    else:
        text = str(part.get("text", ""))
    text = text.replace("\n", "\\n").replace("\r", "\\r")
    text = "".join(letter if letter.isprintable() else "?" for letter in text)  # no control codes for the terminal
    return text if len(text) <= width else text[: width - 1] + "…"

"""An element as data that the page draws: a tree of parts, each with its kind. README of the viewer lists the kinds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from bushel.base import trees
from bushel.display import media

ENTRIES = 100
"""How many entries of a container are shown."""
TEXT = 4_000
"""How many characters of a text are shown."""


def describe_element(element: Any, *, tokenizer: Any = None) -> dict[str, Any]:
    """What the page draws for an element.

    >>> describe_element({"label": 3})["items"][0]["value"]
    {'kind': 'scalar', 'type': 'int', 'text': '3'}
    """
    return _describe(element)


def _describe(value: Any) -> dict[str, Any]:
    kind = trees.describe(value) if not isinstance(value, (Mapping, list, tuple)) else type(value).__name__
    if isinstance(value, Mapping):
        items = [{"key": str(key), "value": _describe(part)} for key, part in list(value.items())[:ENTRIES]]
        return {"kind": "dict", "type": kind, "items": items, "left_out": max(0, len(value) - ENTRIES)}
    if isinstance(value, (list, tuple)):
        items = [{"key": str(number), "value": _describe(part)} for number, part in enumerate(value[:ENTRIES])]
        return {"kind": "list", "type": kind, "items": items, "left_out": max(0, len(value) - ENTRIES)}
    if isinstance(value, str):
        return {"kind": "text", "type": kind, "text": value[:TEXT], "left_out": max(0, len(value) - TEXT)}
    if isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.ndim == 3 and value.shape[-1] in (1, 3, 4):
        return {"kind": "image", "type": kind, "url": media.png_url(value)}
    return {"kind": "scalar", "type": kind, "text": repr(value)[:TEXT]}

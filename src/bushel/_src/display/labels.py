"""Labels of pictures: the numbers and names of classes that lie beside the pictures of an element, as short texts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

_LABEL_NAME = re.compile(
    r"(^|_)(labels?|class(es)?|class_(id|name|label)s?|categor(y|ies)|targets?|y|species|digits?)$", re.IGNORECASE
)
LONGEST = 40
"""How many characters of a label are written below a picture."""


def find_labels(entries: Mapping[str, Any], names: Mapping[str, Sequence[str]]) -> list[tuple[str, list[str]]]:
    """The labels among the entries of a container, each with its texts: one, or one for each row of a batch.

    >>> find_labels({"image": None, "label": np.array([1, 0])}, {"label": ["cat", "dog"]})
    [('label', ['1 · dog', '0 · cat'])]

    Args:
      entries: the entries by name.
      names: the names of the classes of some entries.
    """
    found = []
    for name, value in entries.items():
        if name in names or _LABEL_NAME.search(name):
            texts = _write_labels(value, names.get(name))
            if texts is not None:
                found.append((name, texts))
    return found


def _write_labels(value: Any, names: Sequence[str] | None) -> list[str] | None:
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "iubSUO" and value.size:
        texts = [_write_label(one, names) for one in value.tolist()]
        return None if None in texts else [text for text in texts if text is not None]
    text = _write_label(
        value.item() if isinstance(value, (np.ndarray, np.generic)) and not value.ndim else value, names
    )
    return None if text is None else [text]


def _write_label(value: Any, names: Sequence[str] | None) -> str | None:
    """A label as a text: its number with the name of its class, or the text that it is; None for anything else."""
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    if isinstance(value, str):
        return value if len(value) <= LONGEST else f"{value[: LONGEST - 1]}…"
    if not isinstance(value, int):
        return None
    return str(value) if names is None or not 0 <= value < len(names) else f"{value} · {names[value][:LONGEST]}"


def join_captions(labels: Sequence[tuple[str, list[str]]], count: int) -> list[str] | None:
    """What is written below each of `count` pictures; None if no entry has a label for each of them.

    >>> join_captions([("label", ["3", "1"])], 2), join_captions([("a_label", ["3"]), ("b_label", ["x"])], 1)
    (['label 3', 'label 1'], ['a_label 3, b_label x'])
    """
    fitting = [(name, texts) for name, texts in labels if len(texts) == count]
    if not fitting:
        return None
    rows = zip(*(texts for _, texts in fitting), strict=True)
    names = [name for name, _ in fitting]
    return [
        ", ".join(_write_pair(name, text, len(names)) for name, text in zip(names, row, strict=True)) for row in rows
    ]


def _write_pair(name: str, text: str, count: int) -> str:
    return f"{name} {text}" if count > 1 or text.lstrip("-").isdecimal() else text

"""`ds.show(i)`: an element as a notebook or a terminal shows it."""

from __future__ import annotations

from typing import Any

from bushel.base import trees


class ShownElement:
    """An element to look at. A notebook draws it; `print` describes it."""

    def __init__(self, element: Any, index: int):
        self.element, self.index = element, index

    def __repr__(self) -> str:
        return f"element {self.index}: {trees.describe(self.element)}"

"""The arguments of a request, checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


class BadQuery(ValueError):
    """A request whose arguments are missing or make no sense."""


class Query:
    """The arguments of a request.

    >>> Query({"index": "12"}).integer("index")
    12
    """

    def __init__(self, arguments: Mapping[str, str]):
        self._arguments = arguments

    def text(self, name: str, default: str | None = None) -> str:
        """An argument as it is. It must be there if it has no default."""
        value = self._arguments.get(name, default)
        if value is None:
            raise BadQuery(f"The argument {name} is missing.")
        return value

    def integer(self, name: str, default: int | None = None, *, low: int | None = None, high: int | None = None) -> int:
        """A whole number, from `low` to `high`."""
        text = self.text(name, None if default is None else str(default))
        try:
            if len(text) > 30:
                raise ValueError
            number = int(text)
        except ValueError:
            raise BadQuery(f"{name} must be a whole number, got {text[:40]!r}.") from None
        if (low is not None and number < low) or (high is not None and number > high):
            allowed = f"at least {low}" if high is None else f"at most {high}" if low is None else f"{low} to {high}"
            raise BadQuery(f"{name} must be {allowed}, got {number}.")
        return number


Routes = dict[str, Callable[[Query], Any]]
"""For each name, the function that answers /api/PANEL/NAME with JSON data."""

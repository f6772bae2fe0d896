"""Reads entries out of the states that users restore. Each wrong entry gets an error that says where it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from bushel._src.base.errors import StateMismatch

State = dict[str, Any]
"""The position of a stream as plain JSON data, in Grain's form."""

MOST_COUNTED = 1 << 62
"""No stream has given more elements, and sums with this number still fit into 64 bits."""


def read_field(state: Any, name: str, kind: type) -> Any:
    """Entry `name` of a state; StateMismatch if it is missing or of another type than `kind`."""
    if not isinstance(state, Mapping) or name not in state:
        if isinstance(state, Mapping) and "iterators_in_use_states" in state:
            raise StateMismatch(
                "This state was written by Grain with worker processes: it holds one position per worker and "
                "describes no position in the one sequence that this pipeline gives. Save it in Grain without workers.",
                name,
            )
        has = f"has the keys {sorted(map(str, state))}" if isinstance(state, Mapping) else f"is {state!r}"
        raise StateMismatch(
            f"This iterator's state needs an entry {name!r}; the given one {has}. Was it saved by another pipeline?",
            name,
        )
    return check_type(state[name], kind, name)


def check_type(value: Any, kind: type, *place: str | int) -> Any:
    """A value of a state, if it is of type `kind`. Numbers of NumPy become Python's."""
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        value = value.item()
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        shown = repr(value) if len(repr(value)) <= 200 else f"{repr(value)[:200]}..."
        raise StateMismatch(
            f"Entry {place[-1]!r} of an iterator's state must be of type {kind.__name__}, got {shown}.", *place
        )
    return value


def read_count(state: Any, name: str, most: int = MOST_COUNTED) -> int:
    """Entry `name` of a state, which is a number of elements: between 0 and `most`."""
    number = read_field(state, name, int)
    if not 0 <= number <= most:
        limit = "" if most == MOST_COUNTED else f" There are {most} at most."
        raise StateMismatch(
            f"Entry {name!r} of an iterator's state counts elements; {number} is no such number.{limit}", name
        )
    return number


def as_number(key: Any) -> Any:
    """A key of a state that was a number before JSON turned it into a text; any other key as it is."""
    return int(key) if isinstance(key, str) and key.isdecimal() and len(key) < 20 else key

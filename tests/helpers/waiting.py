"""Waiting for an event, with a limit that only a hang reaches, also on a machine with ten times as much to do."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

SOON_S = 150.0
"""What takes longer hangs."""


def wait_until(true: Callable[[], Any], timeout_s: float = SOON_S) -> Any:
    """Waits until something is true, and returns it; fails if it is not in time."""
    deadline = time.monotonic() + timeout_s
    while not (found := true()):
        assert time.monotonic() < deadline, f"not within {timeout_s} s"
        time.sleep(0.002)
    return found


def read_in_time(elements: Iterable[Any], timeout_s: float = SOON_S) -> list[Any]:
    """All elements that are left, read by a thread that may hang."""
    found: list[Any] = []

    def read() -> None:
        try:
            found.append(list(elements))
        except Exception as error:
            found.append(error)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(timeout_s)
    assert found, f"nothing within {timeout_s} s"
    if isinstance(found[0], Exception):
        raise found[0]
    return found[0]

"""What the requests of a page are doing now: for how long, and which step of the pipeline computes for them.

Nothing is measured. When the page asks, this looks at which functions the threads of its requests are in.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
import threading
import time
import types
from collections.abc import Iterator
from typing import Any

from bushel._src.base.following import is_own_frame
from bushel._src.base.public import find_module
from bushel._src.graph.node import Node
from bushel._src.graph.operation import Operation
from bushel._src.view.session import Session

_FRONT = (
    "bushel._src.datasets.map_dataset",
    "bushel._src.datasets.iter_dataset",
    "bushel._src.datasets.base_dataset",
    "typing",
    "abc",
    "collections.abc",
)
"""Modules of classes that users derive from. Their methods are on the stack of every read."""


class Activity:
    """The requests that a server is answering.

    Args:
      session: what the page looks at.
    """

    def __init__(self, session: Session):
        self._session = session
        self._requests: dict[str, tuple[int, float]] = {}

    @contextlib.contextmanager
    def watch(self, name: str) -> Iterator[None]:
        """A block that answers the request of this name, in this thread. Without a name nothing is kept."""
        if not name:
            yield
            return
        self._requests[name] = threading.get_ident(), time.monotonic()
        try:
            yield
        finally:
            self._requests.pop(name, None)

    def describe(self) -> dict[str, dict[str, Any]]:
        """For each request how many seconds it takes so far, and the step that computes for it, as far as is known."""
        frames, now = sys._current_frames(), time.monotonic()
        return {
            name: {"seconds": now - begun} | self._find_step(frames.get(thread))
            for name, (thread, begun) in list(self._requests.items())
        }

    def _find_step(self, frame: types.FrameType | None) -> dict[str, Any]:
        """The step whose function is the innermost one of a stack, and the line of the user's code there."""
        while frame is not None:
            number = self._codes.get(frame.f_code)
            if number is not None:
                call = self._session.steps[number].node.call()
                where = ""
                if is_own_frame(frame):
                    where = f"line {frame.f_lineno} of {os.path.basename(frame.f_code.co_filename)}"
                return {"step": number, "call": call, "where": where}
            frame = frame.f_back
        return {"step": None, "call": "", "where": ""}

    @functools.cached_property
    def _codes(self) -> dict[types.CodeType, int]:
        """The code of the functions and sources of the steps, and the numbers of the steps."""
        found: dict[types.CodeType, int] = {}
        for step in self._session.steps:
            for code in list_codes(step.node):
                found.setdefault(code, step.number)
        return found


def list_codes(node: Node) -> Iterator[types.CodeType]:
    """The code that a node calls: of the user's functions and objects, and of its source.

    >>> import bushel
    >>> square = lambda x: x * x
    >>> list(list_codes(bushel.MapDataset.range(3).map(square)._node)) == [square.__code__]
    True
    """
    for value in list(vars(node).values()):
        parts = (value.function, value.transform) if isinstance(value, Operation) else (value,)
        for part in parts:
            yield from dict.fromkeys(_codes_of(part))


def _codes_of(value: Any) -> Iterator[types.CodeType]:
    if isinstance(value, functools.partial):
        yield from _codes_of(value.func)
    elif isinstance(value, types.MethodType):
        yield from _codes_of(value.__func__)
        yield from _codes_of(value.__self__)
    elif isinstance(value, types.FunctionType):
        yield inspect.unwrap(value).__code__
        yield value.__code__
    elif not isinstance(value, (Node, type, str, bytes, int, float, tuple, list, dict, types.NoneType)):
        for one in type(value).__mro__[:-1]:
            if find_module(one) not in _FRONT and one.__module__.partition(".")[0] not in ("numpy", "builtins"):
                yield from (part.__code__ for part in vars(one).values() if isinstance(part, types.FunctionType))

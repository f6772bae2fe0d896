"""The report of a run beside the data: of an iterator of this process, of another program, or from a profile.

Another program is found by the address of its `bushel.serve_report`. For an iterator of this process no server is
needed.
"""

from __future__ import annotations

import json
import os
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
import weakref
from collections.abc import Callable
from typing import Any

from bushel._src.base import redact
from bushel._src.datasets import iterator as iterators
from bushel._src.datasets.iterator import PipelineIterator
from bushel._src.engine.report import Report
from bushel._src.graph.node import Node
from bushel._src.graph.streams import StreamNode
from bushel._src.reporting.report_server import PATH, TOKEN_HEADER, History, load_snapshot

_TIMEOUT_S = 5.0
_MOST_BYTES = 16 << 20


class Attachment:
    """A running program, or the file of a profile that `bushel bench` has written.

    Args:
      place: the URL that `bushel.serve_report(it).url` is, or the path of a file.
    """

    has_begun = True
    comes_first = False

    def __init__(self, place: str | os.PathLike[str]):
        text = os.fspath(place)
        self.is_live = text.startswith(("http://", "https://"))
        self._path = None if self.is_live else text
        if not self.is_live:
            self.name = redact.base_name(text)
            self.read()  # a file that is no profile is an error at once
            return
        parts = urllib.parse.urlsplit(text)
        token = urllib.parse.parse_qs(parts.fragment).get("token", [""])[0]
        if parts.scheme != "http" or not parts.hostname or not token or parts.username is not None:
            raise ValueError(
                "--attach takes the URL that bushel.serve_report(it).url is, with its token: "
                "http://127.0.0.1:8765/#token=..."
            )
        self.name = f"the program at {parts.netloc}"
        self._token = token
        self._url = urllib.parse.urlunsplit(("http", parts.netloc, PATH, "", ""))
        # A proxy would get the token, and could not reach this machine anyway.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects())

    def read(self) -> dict[str, Any]:
        """Return the report as it is now: see `bushel._src.reporting.report_server.History.describe`."""
        if self._path is not None:
            with open(self._path, "rb") as file:
                return load_snapshot(file.read(_MOST_BYTES), redact.show(self._path))
        request = urllib.request.Request(self._url, headers={TOKEN_HEADER: self._token})
        try:
            with self._opener.open(request, timeout=_TIMEOUT_S) as answer:
                return load_snapshot(answer.read(_MOST_BYTES), self.name)
        except urllib.error.HTTPError as error:
            raise ConnectionError(f"{self.name} refuses: {_read_refusal(error)}") from error
        except OSError as error:
            why = error.reason if isinstance(error, urllib.error.URLError) else error
            raise ConnectionError(f"{self.name} does not answer ({why}). It may have ended.") from error


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: the token is for one address alone."""

    def redirect_request(self, *arguments: Any, **options: Any) -> None:
        return None


def _read_refusal(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.loads(error.read(1000))["error"])
    except (ValueError, KeyError, TypeError, OSError):
        return f"status {error.code}"


_INTERVAL_S = 1.0
_iterators_of_viewer: weakref.WeakSet[PipelineIterator[Any]] = weakref.WeakSet()


class NothingRuns(OSError):
    """There is no iterator to look at."""


class RunningHere:
    """The iterator that runs now, with its report over time. A sample is taken when the page asks, once per second.

    The iterator is not held. When it is gone, the last report stays.

    Args:
      name: what the page calls it.
      find: returns the iterator to look at; None if there is none.
      comes_first: whether the page opens with it.
    """

    is_live = True

    def __init__(self, name: str, find: Callable[[], Any], *, comes_first: bool = False):
        self.name, self.comes_first = name, comes_first
        self._find = find
        self._lock = threading.Lock()
        self._shown: weakref.ref[Any] | None = None
        self._history: History | None = None
        self._sampled = 0.0
        self._last: dict[str, Any] | None = None

    @property
    def has_begun(self) -> bool:
        """Whether there is, or was, an iterator to look at."""
        return self._last is not None or self._find() is not None

    def read(self) -> dict[str, Any]:
        """Return the report as it is now: see `History.describe`. Raise NothingRuns if there is none."""
        with self._lock:
            found = self._find()
            if found is not None and (self._shown is None or self._shown() is not found):
                self._watch(found)
            shown = None if self._shown is None else self._shown()
            if shown is not None and self._history is not None:
                if time.monotonic() - self._sampled >= self._history.interval_s:
                    self._history.sample()
                    self._sampled = time.monotonic()
                self._last = self._history.describe(finished=_is_closed(shown))
            elif self._last is not None:
                self._last["finished"] = True  # the iterator was collected
            if self._last is None:
                raise NothingRuns("No iterator of this data set runs in this process.")
            return self._last

    def _watch(self, iterator: Any) -> None:
        reference = weakref.ref(iterator)

        def report() -> Report:
            watched = reference()
            assert watched is not None  # `read` holds it meanwhile
            return watched.report()

        self._shown, self._sampled = reference, time.monotonic()
        self._history = History(self.name, report, _INTERVAL_S)
        self._history.sample()


def _is_closed(iterator: Any) -> bool:
    return bool(getattr(iterator, "_closed", False))


def watch_iterator(iterator: Any, name: str) -> RunningHere:
    """Return the report of one iterator."""
    reference = weakref.ref(iterator)
    return RunningHere(name, reference, comes_first=True)


def watch_dataset(node: Node, name: str) -> RunningHere:
    """Return the report of the last iterator that reads a dataset, or another dataset that was made from it."""
    return RunningHere(name, lambda: find_iterator(node))


def find_iterator(node: Node) -> PipelineIterator[Any] | None:
    """Return the last opened iterator whose pipeline contains a node, and that is not closed.

    >>> import bushel
    >>> ds = bushel.MapDataset.range(3)
    >>> find_iterator(ds._node) is None
    True
    >>> it = iter(ds.batch(2))
    >>> find_iterator(ds._node) is it
    True
    """
    for reference in reversed(iterators.opened.valuerefs()):
        found = reference()
        if found is None or found in _iterators_of_viewer or _is_closed(found):
            continue
        if _contains(found._node, node):
            return found
    return None


def _contains(last: Node, node: Node) -> bool:
    todo, seen = [last], {id(last)}
    while todo:
        one = todo.pop()
        if one is node:
            return True
        for parent in one.parents:
            if id(parent) not in seen:
                seen.add(id(parent))
                todo.append(parent)
    return False


def open_unlisted(stream: StreamNode) -> PipelineIterator[Any]:
    """Return an iterator of the viewer itself, which must not be shown as one that runs."""
    iterator: PipelineIterator[Any] = PipelineIterator(stream)
    _iterators_of_viewer.add(iterator)
    return iterator

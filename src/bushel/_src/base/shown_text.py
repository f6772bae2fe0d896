"""What people read of long work: progress bars, tables, and `Written`, what a job says that has written files."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import html
import itertools
import logging
import os
import re
import shutil
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from bushel._src.base import redact
from bushel._src.base.public import public


def as_text(head: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1, width: int | None = None) -> str:
    """Return a table in columns, the first `left` of them aligned to the left and the others to the right.

    With a `width`, cells of the first and the last column are broken into several lines where the table is wider.

    >>> print(as_text(["step", "length"], [["range(10)", "10"]]))
    step       length
    range(10)      10
    >>> print(as_text(["step", "element"], [["batch(2)", "{'x': int64[2], 'y': int64[2]}"]], left=2, width=30))
    step      element
    batch(2)  {'x': int64[2],
               'y': int64[2]}
    """
    if width is not None:
        rows = _break_cells(head, rows, width)
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = []
    for row in (head, *rows):
        cells = [
            cell.ljust(width) if place < left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def as_html(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return the same as an HTML table. Texts are escaped.

    >>> as_html(["a"], [["<b>"]])
    '<table><tr><th>a</th></tr><tr><td><code>&lt;b&gt;</code></td></tr></table>'
    """
    lines = [f"<tr>{''.join(f'<th>{html.escape(cell)}</th>' for cell in head)}</tr>"]
    for row in rows:
        lines.append(f"<tr>{''.join(f'<td><code>{html.escape(cell)}</code></td>' for cell in row)}</tr>")
    return f"<table>{''.join(lines)}</table>"


def paragraph(text: str) -> str:
    """Return a text as an HTML paragraph, with its line breaks.

    >>> paragraph("a < b")
    '<p>a &lt; b</p>'
    """
    return f"<p>{html.escape(text).replace(chr(10), '<br>')}</p>"


def find_width() -> int:
    """Return how wide a printed table may be: as the terminal, or 120 where there is none."""
    return max(60, shutil.get_terminal_size((120, 24)).columns)


def _break_cells(head: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[Sequence[str]]:
    """Return the rows with long cells of the first and the last column broken, each into further rows."""
    if not rows or (max(len("  ".join(row)) for row in (head, *rows)) <= width and _measure(head, rows) <= width):
        return list(rows)
    between = _measure([""] * (len(head) - 2), [row[1:-1] for row in (head, *rows)]) + 4 if len(head) > 2 else 2
    longest = max(len(row[0]) for row in (head, *rows))
    first = min(longest, max(width // 3, width - between - max(len(row[-1]) for row in (head, *rows))))
    last = max(20, width - first - between)
    broken: list[Sequence[str]] = []
    for row in rows:
        starts, ends = _break(row[0], first), _break(row[-1], last)
        for place, (start, end) in enumerate(itertools.zip_longest(starts, ends, fillvalue="")):
            broken.append((start, *(row[1:-1] if place == 0 else [""] * (len(row) - 2)), end))
    return broken


def _measure(head: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """Return how wide a table is."""
    columns = list(zip(head, *rows, strict=True))
    return sum(max(map(len, column)) for column in columns) + 2 * (len(columns) - 1)


def _break(text: str, width: int) -> list[str]:
    """Return the lines of a cell, broken after commas where that is possible.

    Lines after the first are indented by one.
    """
    if len(text) <= width:
        return [text]
    lines: list[str] = []
    for part in re.split(r", (?![^\[]*\])", text):  # the commas of a shape stay
        if lines and len(lines[-1]) + len(part) + 3 <= width:
            lines[-1] += f", {part}"
            continue
        if lines:
            lines[-1] += ","
        indent = " " if lines else ""
        lines += textwrap.wrap(part, width - 1, initial_indent=indent, subsequent_indent=" ", break_on_hyphens=False)
    return lines or [""]


T = TypeVar("T")

logger = logging.getLogger("bushel")

BAR_AFTER_S = 1.0
"""Work that takes less time draws no bar."""
_FIRST_LOG_S = 5.0
"""Work that takes less time writes no log line."""
_LOG_EVERY_S = 30.0

Callback = Callable[[str, int, int | None], None]
"""Called with the name of the work, how many parts are done, and of how many; None if their number is not known."""

Shown = bool | Callable[[int, int | None], None]
"""How one operation shows its progress: True as usual, False not at all, or a function of (done, total)."""

_RECEIVER: contextvars.ContextVar[Callback | bool | None] = contextvars.ContextVar("progress", default=True)


_in_main_process = True


def silence_worker() -> None:
    """Show no progress in this process from now on: it is a worker, and its parent owns the terminal."""
    global _in_main_process
    _in_main_process = False


@public("bushel")
@contextlib.contextmanager
def on_progress(callback: Callback | None) -> Iterator[None]:
    """Inside this block, long operations call a function instead of drawing a bar; with None they show nothing.

    The function gets the name of the operation, how many parts are done, and how many there are (None if that is not
    known). It holds for everything that draws a bar: columns, saved data sets, statistics, tables of trajectories,
    indices, conversions and downloads. An error that it raises stops the operation. It holds for this thread alone.

    >>> import bushel
    >>> seen = []
    >>> with bushel.on_progress(lambda name, done, total: seen.append((name, done, total))):
    ...     lengths = bushel.MapDataset.source(["a", "bcd"]).column(len)
    >>> seen
    [('column len', 0, 2), ('column len', 2, 2)]
    """
    token = _RECEIVER.set(callback)
    try:
        yield
    finally:
        _RECEIVER.reset(token)


def without_progress(function: Callable[..., T]) -> Callable[..., T]:
    """Return the function, without bars of its own: for parts of some work that has a bar already."""

    @functools.wraps(function)
    def call(*arguments: Any) -> T:
        with on_progress(None):
            return function(*arguments)

    return call


class Progress:
    """Shows how much of some work is done, and of how much if that is known.

    On a terminal and in a notebook tqdm draws a bar, once the work has taken a second. Elsewhere the logger "bushel"
    gets a line at level INFO every half minute. Inside a block of `on_progress` its function is called instead.

    >>> with Progress("column length", 1000) as progress:
    ...     progress.show(250)

    Args:
      name: the name of the work.
      total: the number of its parts, if that is known.
      unit: what is counted.
      shown: whether to show it at all; or a function of (done, total) that is called instead.
      delay_s: the bar appears after so many seconds; by default after `BAR_AFTER_S`.
    """

    def __init__(
        self, name: str, total: int | None, *, unit: str = "", shown: Shown = True, delay_s: float | None = None
    ):
        self.name, self.total, self._unit = name, total, unit
        self._delay_s = BAR_AFTER_S if delay_s is None else delay_s
        self._text = ""
        receiver = _RECEIVER.get() if _in_main_process else None
        self._callback: Callable[[int, int | None], None] | None = None
        if callable(shown):
            self._callback = shown
        elif callable(receiver) and shown:
            self._callback = functools.partial(receiver, name)
        self._quiet = not shown or receiver is None
        self._bar: Any = None
        self._begun: float | None = None
        self._next_log = 0.0
        self._first = 0

    def show(self, done: int, total: int | None = None) -> None:
        """Show that `done` parts are done. Most calls draw nothing: it may be called for every part.

        Args:
          done: the number of parts that are done, from the beginning.
          total: the number of all parts, where it is known only now, or has changed.
        """
        if total is not None and total != self.total:
            self.total = total
            if self._bar is not None:
                self._bar.total = total
        if self._callback is not None:
            self._callback(done, self.total)
        elif self._bar is not None:
            self._bar.update(done - self._bar.n)
        elif not self._quiet:
            self._begin(done)

    def _begin(self, done: int) -> None:
        """Draw the bar for the first time; or, where none can be drawn, writes a log line if it is time for one."""
        now = time.monotonic()
        if self._begun is None:
            self._begun, self._first, self._next_log = now, done, now + _FIRST_LOG_S
        if _is_drawn():
            if now - self._begun >= self._delay_s:
                self._draw(done, now - self._begun)
        elif now >= self._next_log:
            self._next_log = now + _LOG_EVERY_S
            logger.info("%s: %s", self.name, self._describe(done, now - self._begun))

    def _draw(self, done: int, spent_s: float) -> None:
        scaled = {"unit_scale": True, "unit_divisor": 1000} if self._unit == "B" else {}
        unit = self._unit if self._unit == "B" else f" {self._unit}".rstrip() or "it"
        self._bar = _bar_class()(
            desc=self.name,
            total=self.total,
            initial=self._first,
            unit=unit,
            ncols=shutil.get_terminal_size().columns if _has_no_size() else None,
            dynamic_ncols=not _has_no_size(),
            **scaled,
        )
        if self._bar.disable:  # by tqdm's own environment variable
            return
        self._bar.start_t -= spent_s
        self._bar.set_postfix_str(self._text, refresh=False)
        self._bar.n = done
        self._bar.refresh()

    def _describe(self, done: int, spent_s: float) -> str:
        if self.total is None:
            return f"{done:,}"
        fresh = done - self._first
        left = f", {spent_s * (self.total - done) / fresh:.0f} s left" if fresh and spent_s > 1 else ""
        return f"{done:,} of {self.total:,} ({done / max(1, self.total):.0%}){left}"

    def say(self, text: str) -> None:
        """Show a text after the bar, or logs it."""
        if self._quiet or self._callback is not None:
            return
        if not _is_drawn():
            logger.info("%s: %s", self.name, text)
            return
        self._text = text
        if self._bar is None:
            self._begin(0)
        else:
            self._bar.set_postfix_str(text)

    def end(self) -> None:
        """End the line of the bar, so that other output begins on a new one. Calling it again does nothing."""
        bar, self._bar = self._bar, None
        if bar is not None:
            bar.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()


@functools.cache
def _bar_class() -> Any:
    """Return tqdm's bar for a terminal or a notebook. tqdm is imported at the first bar, since importing it takes a
    while.
    """
    with warnings.catch_warnings():
        # In a notebook without ipywidgets tqdm warns, and draws the bar as text. That is good enough.
        warnings.simplefilter("ignore")
        import tqdm.auto

    class Bar(tqdm.auto.tqdm):
        """tqdm's bar without its helper thread, and with a lock that belongs to this process alone."""

        monitor_interval = 0

    # tqdm's own lock is one between processes, which can start a further process to look after it.
    Bar.set_lock(threading.RLock())
    return Bar


def _has_no_size() -> bool:
    """Return whether the terminal says that it has no columns, as that of a container may. tqdm would draw an empty
    line.
    """
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns == 0
    except (OSError, ValueError):
        return False


def _is_drawn() -> bool:
    """Return whether a line can be drawn again in its place: on a terminal, or in a notebook."""
    shell = sys.modules.get("IPython")
    if shell is not None and type(shell.get_ipython()).__name__ == "ZMQInteractiveShell":
        return True
    return sys.stderr is not None and sys.stderr.isatty()


@public("bushel")
@dataclasses.dataclass(frozen=True, repr=False)
class Written:
    """What has been written: by `ds.save`, `convert`, `convert_episodes`, `reencode_videos`, `write_rlds`, `to_rerun`.

    Attributes:
      path: the folder or file, as a path or URL. Of a conversion into several files it is the target that was given.
      files: the paths or URLs of the files, in order.
      elements: how many elements are in them: records, episodes, or videos.
      skipped: how many elements were left out.

    >>> written = Written("data", ("data/part-00000.bag",), 10)
    >>> written
    Written(data: 10 elements in 1 file)
    >>> written.to_dict()
    {'path': 'data', 'files': ['data/part-00000.bag'], 'elements': 10, 'skipped': 0}
    """

    path: str
    files: tuple[str, ...]
    elements: int
    skipped: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the same as plain data, for JSON."""
        return {"path": self.path, "files": list(self.files), "elements": self.elements, "skipped": self.skipped}

    def __repr__(self) -> str:
        files = f"{len(self.files):,} {'file' if len(self.files) == 1 else 'files'}"
        more = f", {self.skipped:,} skipped" if self.skipped else ""
        return f"Written({redact.show(self.path)}: {self.elements:,} elements in {files}{more})"

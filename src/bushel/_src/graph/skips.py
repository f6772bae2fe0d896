"""Elements that failed and were skipped: their count, and the limit on it (`DatasetOptions(on_error="skip")`)."""

from __future__ import annotations

import collections
import contextlib
import logging
import threading
from collections.abc import Iterator

from bushel._src.base.errors import TooManySkipped

logger = logging.getLogger("bushel")

SkipNote = tuple[str, str, int]
"""Elements that failed together: which ones, their error as text, and how many they are."""


_LATEST = 50


class Skips:
    """Counts the elements of one stream that failed and were skipped.

    The count is part of the state, so it belongs to the elements that were delivered. A cursor that reads ahead of
    the consumer therefore collects its skips (`collect_skips`), and counts them when it delivers the next element.
    A cursor that reads elements again, after a restore, collects their skips and drops them.
    """

    def __init__(self, limit: int | None):
        self.limit = limit
        self.count = 0
        self._lock = threading.Lock()
        self.collected: dict[int, list[SkipNote]] = {}
        """By thread: the list into which that thread's skips go instead of the count."""
        self.latest: collections.deque[SkipNote] = collections.deque(maxlen=_LATEST)
        """The skips that were counted last, for reports. They are not part of the state."""

    def add(self, which: str, error: str, number: int = 1) -> None:
        """Counts elements that failed, or collects them. Logs the first, the tenth, the hundredth skip.

        Raises TooManySkipped if there are more than the limit.
        """
        collected = self.collected.get(threading.get_ident())
        if collected is not None:
            before = sum(note[2] for note in collected) if self.limit is not None else 0
            collected.append((which, error, number))
            # Collected skips are checked against the limit, too: a stream of nothing but failures would never end.
            self._check_limit(which, error, before, number)
            return
        with self._lock:  # two threads could otherwise add to the same count
            before, count = self.count, self.count + number
            self._check_limit(which, error, before, number)
            self.count = count
            self.latest.append((which, error, number))
        if not before or len(str(count)) > len(str(before)):
            logger.warning("Skipped %s (%d skipped so far): %s", which, count, error)

    def _check_limit(self, which: str, error: str, before: int, number: int) -> None:
        if self.limit is not None and before + number > self.limit:
            allowed = "as many as skip_limit allows" if before == self.limit else f"and skip_limit is {self.limit}"
            raise TooManySkipped(
                f"{which} failed, and {before} elements were skipped already, {allowed}. It failed with\n{error}"
            )


@contextlib.contextmanager
def collect_skips(skips: Skips | None) -> Iterator[list[SkipNote]]:
    """While this is open, skips of this thread go into the list that it yields, and are not counted."""
    collected: list[SkipNote] = []
    if skips is None:
        yield collected
        return
    thread = threading.get_ident()
    outer = skips.collected.get(thread)
    try:
        skips.collected[thread] = collected
        yield collected
    finally:
        if outer is None:
            skips.collected.pop(thread, None)
        else:
            skips.collected[thread] = outer


def count_collected(skips: Skips | None, collected: list[SkipNote]) -> None:
    """Counts skips that were collected before."""
    for note in collected:
        assert skips is not None
        skips.add(*note)


@contextlib.contextmanager
def collect_then_count(skips: Skips | None) -> Iterator[list[SkipNote]]:
    """Collects the skips of this thread, and counts them at the end."""
    too_many: TooManySkipped | None = None
    with collect_skips(skips) as collected:
        try:
            yield collected
        except TooManySkipped as error:
            too_many = error
    count_collected(skips, collected)  # raises by itself if there are too many, with the right number
    if too_many is not None:
        raise too_many

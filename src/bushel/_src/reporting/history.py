"""The reports of an iterator over time, in bounded memory, and the JSON data that a page is drawn from."""

from __future__ import annotations

import collections
import dataclasses
import json
import os
import platform
import socket
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from bushel._src.base import redact
from bushel._src.engine.figures import count_cores
from bushel._src.engine.report import Report, judge
from bushel._src.reporting.memory import measure_memory

FORMAT = "bushel report"
VERSION = 1
_SAMPLES = 600
_RECENT_S = 60.0
"""How much of the past the verdict of a running iterator is about."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Sample:
    """Figures at one moment. Elements and times are counted from the beginning."""

    at_s: float
    elements: int
    waited_s: float
    busy_s: float
    workers: int
    ready: int
    skipped: int
    own_bytes: int
    worker_bytes: int


class History:
    """Samples of an iterator's report. If there are too many, every second one goes, and the next come half as often.

    Args:
      name: what the iterator is called.
      read: returns the report as it is now.
      interval_s: the time between two samples at the beginning.
    """

    def __init__(self, name: str, read: Callable[[], Report], interval_s: float = 1.0):
        self._name, self._read = name, read
        self._begun, self._begun_at = time.monotonic(), time.time()
        self._samples: list[_Sample] = []
        self._recent: collections.deque[tuple[float, Report]] = collections.deque()
        self.interval_s = interval_s

    def sample(self) -> Report:
        """Takes a sample. Returns the report that it is made of."""
        report = self._read()
        now = time.monotonic() - self._begun
        elements, waited_s = _count_elements(report)
        own_bytes, worker_bytes = measure_memory()
        self._samples.append(
            _Sample(
                at_s=now,
                elements=elements,
                waited_s=waited_s,
                busy_s=sum(pool.busy_s for pool in report.pools),
                workers=sum(pool.size for pool in report.pools),
                ready=sum(pool.ready_now for pool in report.pools),
                skipped=report.skipped,
                own_bytes=own_bytes,
                worker_bytes=worker_bytes,
            )
        )
        if len(self._samples) > _SAMPLES:
            self._samples = self._samples[::2]
            self.interval_s *= 2
        if not self._recent or now - self._recent[-1][0] >= _RECENT_S / 12:
            self._recent.append((now, report))
        while len(self._recent) > 2 and now - self._recent[1][0] > _RECENT_S:
            self._recent.popleft()
        return report

    def describe(self, *, finished: bool = False) -> dict[str, Any]:
        """All of it as JSON data: the report as it is now, and the samples so far."""
        report = self._read() if self._samples else self.sample()
        begun_at, earlier = self._recent[0]
        recent = report.since(earlier) if report.elements > earlier.elements else report
        verdict = judge(recent)
        return {
            "format": FORMAT,
            "version": VERSION,
            "name": self._name,
            "machine": socket.gethostname(),
            "process": os.getpid(),
            "program": redact.base_name(sys.argv[0] if sys.argv else ""),
            "python": platform.python_version(),
            "cores": count_cores(),
            "began_at": self._begun_at,
            "age_s": time.monotonic() - self._begun,
            "interval_s": self.interval_s,
            "finished": finished,
            "verdict": {
                "sentence": verdict.sentence,
                "bound": verdict.bound,
                "more_workers": verdict.more_workers,
                "seconds": self._samples[-1].at_s - (begun_at if recent is not report else 0.0),
            },
            "report": describe_report(report),
            "series": self._describe_series(),
        }

    def _describe_series(self) -> dict[str, list[Any]]:
        pairs = list(zip(self._samples, self._samples[1:]))
        return {
            "at_s": [round(after.at_s, 3) for _, after in pairs],
            "elements_per_s": [_rate(a.elements, b.elements, a, b) for a, b in pairs],
            "waiting": [min(1.0, _rate(a.waited_s, b.waited_s, a, b)) for a, b in pairs],
            "busy_workers": [_rate(a.busy_s, b.busy_s, a, b) for a, b in pairs],
            "workers": [b.workers for _, b in pairs],
            "ready": [b.ready for _, b in pairs],
            "skipped": [b.skipped for _, b in pairs],
            "own_bytes": [b.own_bytes for _, b in pairs],
            "worker_bytes": [b.worker_bytes for _, b in pairs],
        }


def describe_report(report: Report) -> dict[str, Any]:
    """A report as JSON data, with its verdict and its text."""
    data = dataclasses.asdict(report)
    elements, waited_s = _count_elements(report)
    return data | {"elements": elements, "waited_s": waited_s, "verdict": report.verdict, "text": str(report)}


def _count_elements(report: Report) -> tuple[int, float]:
    """Elements delivered, and the seconds that the step waited for them. Transfers are counted without timing, too."""
    if report.timed or not report.transfers:
        return report.elements, report.waited_s
    last = report.transfers[-1]
    return last.elements, last.waited_s


def _rate(before: float, after: float, first: _Sample, second: _Sample) -> float:
    return round(max(0.0, after - before) / max(second.at_s - first.at_s, 1e-6), 4)


def load_snapshot(data: bytes | str, where: str) -> dict[str, Any]:
    """Reads what `History.describe` has made, from a server or from a file.

    Args:
      data: the JSON text.
      where: where it comes from, for errors.
    """
    try:
        found = json.loads(data)
    except ValueError:
        found = None
    if not isinstance(found, Mapping) or found.get("format") != FORMAT:
        raise ValueError(f"{where} does not hold the report of a Bushel iterator.")
    if found.get("version") != VERSION:
        raise ValueError(
            f"{where} was written by another version of Bushel (version {found.get('version')!r} of the format, and "
            f"this one reads {VERSION}). Use the same version for both."
        )
    return dict(found)

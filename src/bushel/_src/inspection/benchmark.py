"""Measured runs of a pipeline, for `bushel bench`: elements per second, where the time goes, how many workers."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence
from typing import Any

from bushel._src.base import checks, shown_text
from bushel._src.base.options import MultiprocessingOptions
from bushel._src.base.shown_text import Progress, Shown
from bushel._src.datasets.base_dataset import wrap
from bushel._src.datasets.grain_classes import measure_bytes
from bushel._src.datasets.iter_dataset import IterDataset
from bushel._src.datasets.map_dataset import MapDataset
from bushel._src.engine.measurements import count_cores, format_size
from bushel._src.engine.report import Report
from bushel._src.graph.node import Node, replace_parents
from bushel._src.graph.streams import Ahead
from bushel._src.reporting.report_server import History

ENOUGH = 0.95
RULE = f"the smallest number of workers with at least {ENOUGH:.0%} of the highest rate"
_WARM_SHARE = 0.25
"""The part of a run that is not counted: workers start, and caches fill."""


@dataclasses.dataclass(frozen=True)
class Run:
    """One measured run."""

    workers: int
    elements: int
    seconds: float
    elements_per_s: float
    bytes_per_s: float
    first_element_s: float
    """From opening the iterator to its first element."""
    ended: bool
    """Whether the data set ended before the time was over."""


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """The runs of a pipeline with several numbers of workers, and a run of the best one whose stages are timed."""

    target: str
    cores: int
    runs: tuple[Run, ...]
    best: Run
    verdict: str
    report: Report
    profile: dict[str, Any]

    def as_json(self) -> dict[str, Any]:
        """Return all of it as JSON data."""
        return {
            "target": self.target,
            "cores": self.cores,
            "runs": [dataclasses.asdict(run) for run in self.runs],
            "best": {"workers": self.best.workers, "elements_per_s": self.best.elements_per_s, "rule": RULE},
            "verdict": self.verdict,
            "profile": self.profile,
        }

    def __str__(self) -> str:
        rows = [
            (
                str(run.workers) if run.workers else "0 (in the consumer)",
                f"{run.elements_per_s:,.1f}",
                f"{format_size(run.bytes_per_s)}/s",
                f"{run.first_element_s:.2f} s",
                f"{run.elements:,}" + (" (all)" if run.ended else ""),
                "<- best" if run is self.best else "",
            )
            for run in self.runs
        ]
        head = ("workers", "elements/s", "bytes", "first element", "measured", "")
        workers = name_workers(self.best.workers)
        return "\n\n".join(
            [
                f"{self.target} on {self.cores} cores",
                shown_text.as_text(head, rows),
                f"Best: {workers}, {self.best.elements_per_s:,.1f} elements/s ({RULE}).",
                f"Where the time goes with {workers}:",
                # Not the verdict of the report: it knows one number of workers, and we have measured several.
                *str(self.report).split("\n\n")[:2],
                self.verdict,
            ]
        )


def measure_pipeline(
    dataset: Any,
    target: str,
    *,
    seconds: float = 3.0,
    workers: Sequence[int] | None = None,
    progress: Shown = True,
) -> Benchmark:
    """Run a pipeline with several numbers of workers, for some seconds each, and find the best number.

    The loop does nothing with the elements, so this is the most that the pipeline can give. If the pipeline says where
    workers run (`mp_prefetch`), their number is changed there; otherwise workers compute all of it.

    Args:
      dataset: a MapDataset or an IterDataset.
      target: its name.
      seconds: the time of each run.
      workers: the numbers of workers; by default 0, 1, 2, 4 and so on up to one per core.
      progress: whether to show a bar, or a function of (runs done, all runs).
    """
    if not checks.number(seconds, "seconds") > 0:
        raise ValueError(f"seconds must be positive, got {seconds}.")
    numbers = [checks.not_negative(number, "workers") for number in workers or choose_numbers(count_cores())]
    stream = dataset.to_iter_dataset() if isinstance(dataset, MapDataset) else dataset
    with Progress("measuring", len(numbers) + 2, unit="runs", shown=progress) as bar:
        bar.show(0)
        _run(_with_workers(stream, numbers[0]), numbers[0], seconds * _WARM_SHARE)  # so that files are in memory
        bar.show(1)
        runs = []
        for number in numbers:
            runs.append(_run(_with_workers(stream, number), number, seconds))
            bar.show(len(runs) + 1)
        best = choose_best(runs)
        report, profile = _profile(_with_workers(stream, best.workers), target, seconds)
        bar.show(len(numbers) + 2)
    verdict = judge_runs(runs, best, report)
    profile["verdict"] |= {"sentence": verdict, "more_workers": None}
    return Benchmark(target, count_cores(), tuple(runs), best, verdict, report, profile)


def name_workers(number: int) -> str:
    """Return how many workers, in words."""
    return {0: "no workers", 1: "1 worker"}.get(number, f"{number} workers")


def judge_runs(runs: Sequence[Run], best: Run, report: Report) -> str:
    """Return what takes the largest share of the time, as the table of the report says, and what workers gain."""
    stage = report.largest
    name = "" if stage is None else stage.call if len(stage.call) <= 60 else f"{stage.call[:57]}..."
    takes = "" if stage is None else f"{name} takes {100 * report.get_share(stage):.0f} % of the time; "
    alone = next((run for run in runs if run.workers == 0), None)
    if len(runs) == 1 and alone is not None:
        return f"{takes}{best.elements_per_s:,.1f} elements/s without workers."
    if best.workers == 0:
        return f"{takes}workers did not make it faster on {count_cores()} cores."
    give = (
        f"{name_workers(best.workers)} {'gives' if best.workers == 1 else 'give'} {best.elements_per_s:,.1f} elements/s"
    )
    if alone is None:
        return f"{takes}{give}."
    return f"{takes}{give}, {best.elements_per_s / alone.elements_per_s:.1f} times as many as the consumer alone."


def choose_numbers(most: int) -> list[int]:
    """Return the numbers of workers that are tried: 0, 1, 2, 4, 8 ... and `most`.

    >>> choose_numbers(6)
    [0, 1, 2, 4, 6]
    """
    numbers, number = [0], 1
    while number < most:
        numbers.append(number)
        number *= 2
    return [*numbers, most]


def choose_best(runs: Sequence[Run]) -> Run:
    """Return the best run: the one with the fewest workers among those that are nearly as fast as the fastest."""
    fastest = max(run.elements_per_s for run in runs)
    return min((run for run in runs if run.elements_per_s >= ENOUGH * fastest), key=lambda run: run.workers)


def _with_workers(stream: IterDataset[Any], number: int) -> IterDataset[Any]:
    """Return the stream with another number of workers, where it has some; otherwise all of it is computed by
    workers.
    """
    found = False

    def change(node: Any) -> Any:
        nonlocal found
        parent = replace_parents(node, change)
        if not isinstance(node, Ahead):
            return parent
        found = True
        known = node.options if isinstance(node.options, MultiprocessingOptions) else MultiprocessingOptions()
        options = (
            dataclasses.replace(known, timeout_s=None, budget_bytes=None) if number == 0 else known
        )  # else a warning
        return dataclasses.replace(parent, options=dataclasses.replace(options, num_workers=number))

    node: Node = change(stream._node)
    changed: IterDataset[Any] = wrap(node)
    return changed if found else changed.mp_prefetch(MultiprocessingOptions(num_workers=number))


def _run(stream: IterDataset[Any], workers: int, seconds: float) -> Run:
    begun = time.perf_counter()
    count, each_bytes, first_s, ended = 0, 0, 0.0, False
    warm: tuple[float, int] | None = None
    with iter(stream) as elements:
        while True:
            try:
                element = next(elements)
            except StopIteration:
                ended = True
                break
            now = time.perf_counter() - begun
            count += 1
            # Elements are usually alike, and walking over all their parts would take time that is not the pipeline's.
            if count == 1:
                first_s, each_bytes = now, measure_bytes(element)
            if warm is None and now - first_s >= _WARM_SHARE * seconds:
                warm = (now, count)
            if now - first_s >= seconds:
                break
    spent = time.perf_counter() - begun
    if not count:
        raise ValueError("The pipeline has no elements, so there is nothing to measure.")
    measured = count
    # Of a data set that ends early, what workers have computed ahead would count as if it took no time.
    if warm is not None and count > warm[1] and not ended:
        spent, measured = spent - warm[0], count - warm[1]
    rate = measured / max(spent, 1e-9)
    return Run(workers, measured, spent, rate, each_bytes * rate, first_s, ended)


def _profile(stream: IterDataset[Any], target: str, seconds: float) -> tuple[Report, dict[str, Any]]:
    """Return the report of a run whose stages are timed, and its course over time."""
    with iter(stream.with_options(execution_tracking_mode="stage_timing")) as elements:
        history = History(target, elements.report, interval_s=min(0.1, seconds / 20))
        next_sample, end = time.perf_counter(), math.inf
        history.sample()
        for _ in elements:
            now = time.perf_counter()
            # As in `_run`: the start of workers, which may take longer than `seconds`, says nothing about the stages.
            end = min(end, now + seconds)
            if now >= next_sample:
                history.sample()
                next_sample = now + history.interval_s
            if now >= end:
                break
        history.sample()
        return elements.report(), history.describe(finished=True)

"""Where the time of a running pipeline goes: a report as a table, and a verdict that says what limits the run."""

from __future__ import annotations

import dataclasses
import math
from typing import TypeVar

from bushel._src.base import shown_text
from bushel._src.base.public import public
from bushel._src.engine.measurements import (
    BUSY_SHARE,
    DELIVERY,
    SMALL_WAIT_SHARE,
    THREAD,
    Pool,
    SkippedElements,
    Stage,
    Transfer,
    count_cores,
    format_size,
)

_HEAD = ("stage", "where", "elements", "self time", "share", "bytes")

HEADROOM = 1.1
"""The verdict recommends this many times the workers that keep up exactly: those would be late half of the time."""

_TIME_THE_STAGES = 'iterate over ds.with_options(execution_tracking_mode="stage_timing"), where ds is the IterDataset.'


@public("bushel")
@dataclasses.dataclass(frozen=True, repr=False)
class Report:
    """Where the time of an iterator went. Print it to see all of it; `verdict` has only the last lines.

    `iterator.report()` returns it. Stages are timed only if the options of the pipeline ask for it.

    >>> from bushel import MapDataset
    >>> ds = MapDataset.range(100).map(str).to_iter_dataset()
    >>> with iter(ds.with_options(execution_tracking_mode="stage_timing")) as it:
    ...     elements = [next(it) for _ in range(100)]
    ...     report = it.report()
    >>> report.elements, [stage.call for stage in report.stages]
    (100, ['range(100)', 'map(str)', 'to_iter_dataset()'])

    `elapsed_s` is the time from the first `next` to the end of the last one. `waited_s` is the part of it that was
    spent in `next`.
    """

    timed: bool
    stages: tuple[Stage, ...]
    pools: tuple[Pool, ...]
    elements: int
    elapsed_s: float
    waited_s: float
    transfers: tuple[Transfer, ...] = ()
    skipped: int = 0
    """How many elements failed and were skipped, with `on_error="skip"`."""
    skips: tuple[SkippedElements, ...] = ()
    """The latest of them, with their errors."""

    def since(self, earlier: Report) -> Report:
        """Return the figures of the time between an earlier report of the same iterator and this one."""
        stages = {(stage.number, stage.where): stage for stage in earlier.stages}
        return dataclasses.replace(
            self,
            stages=tuple(_subtract(stage, stages.get((stage.number, stage.where))) for stage in self.stages),
            pools=tuple(map(_subtract, self.pools, _pad(earlier.pools, self.pools))),
            transfers=tuple(map(_subtract, self.transfers, _pad(earlier.transfers, self.transfers))),
            elements=self.elements - earlier.elements,
            elapsed_s=self.elapsed_s - earlier.elapsed_s,
            waited_s=self.waited_s - earlier.waited_s,
            skipped=self.skipped - earlier.skipped,
        )

    def __repr__(self) -> str:
        parts = [shown_text.as_text(_HEAD, self._make_rows(), left=2), self._summarize()] if self.elements else []
        return "\n\n".join([*parts, self._conclude()])

    def _repr_html_(self) -> str:
        parts = (
            [shown_text.as_html(_HEAD, self._make_rows()), shown_text.paragraph(self._summarize())]
            if self.elements
            else []
        )
        return "".join([*parts, shown_text.paragraph(self._conclude())])

    def _conclude(self) -> str:
        lines = [f"{pool}, chosen by Bushel: {pool.why}." for pool in self.pools if pool.why]
        lines += [line for pool in self.pools for line in pool.nodes]
        lines += [
            f"{pool.deaths} of the {pool.kind} {'has' if pool.deaths == 1 else 'have'} died and been replaced."
            for pool in self.pools
            if pool.deaths
        ]
        return "\n".join([*lines, *map(str, self.transfers), self.verdict])

    def _make_rows(self) -> list[tuple[str, ...]]:
        return [
            (
                _shorten(stage.call),
                stage.where,
                f"{stage.elements:,}",
                f"{stage.self_s:.3f} s",
                _percent(self.get_share(stage)),
                format_size(stage.size_bytes),
            )
            for stage in self.stages
        ]

    def _summarize(self) -> str:
        pools = [
            f"{pool}: busy {_percent(self.get_busy_share(pool))} of the time, waited for {pool.wait_s:.2f} s, "
            f"{pool.ready_blocks:.1f} blocks ready when the next was needed."
            for pool in self.pools
        ]
        time = f"{self.elements:,} elements in {self.elapsed_s:.2f} s; {self.waited_s:.2f} s of it in next()"
        return "\n".join([f"{time} ({_percent(self.waiting)}).", *pools])

    @property
    def waiting(self) -> float:
        """The share of its time that the consumer spent in `next`."""
        return self.waited_s / self.elapsed_s if self.elapsed_s else 0.0

    def get_share(self, stage: Stage) -> float:
        """Return the share of a stage in the time of all stages, as in the table."""
        total = sum(each.self_s for each in self.stages)
        return stage.self_s / total if total else 0.0

    @property
    def largest(self) -> Stage | None:
        """The stage with the largest share, wherever it runs; None if no stage was timed."""
        return max(self.stages, key=self.get_share, default=None)

    @property
    def slowest(self) -> Stage | None:
        """The bottleneck: the stage with the most time of its own, among those that the consumer waits for."""
        pool = self._find_awaited_pool()
        stages = [stage for stage in self.stages if stage.where == (pool.kind if pool else "consumer")]
        return max(stages, key=lambda stage: stage.self_s, default=None)

    def _find_awaited_pool(self) -> Pool | None:
        """Return the pool that the consumer mostly waited for; None if the consumer itself was computing.

        If several pools wait for one another, it is the busiest.
        """
        consumer_computes = any(stage.where == "consumer" for stage in self.stages)
        awaited = [pool for pool in self.pools if pool.wait_s >= self.waited_s / 2 or not consumer_computes]
        return max(awaited, key=self.get_busy_share, default=None)

    def get_busy_share(self, pool: Pool) -> float:
        """Return the share of the time that the members of a pool computed."""
        return min(1.0, pool.busy_s / (self.elapsed_s * max(1, pool.size))) if self.elapsed_s else 0.0

    @property
    def verdict(self) -> str:
        """Return a sentence that says what limits the run, and what would help: see `judge`."""
        return judge(self).sentence


_COUNTED = ("elements", "self_s", "size_bytes", "busy_s", "wait_s", "deaths", "elapsed_s", "waited_s", "input_s")
"""The figures that grow while a pipeline runs."""

_T = TypeVar("_T", Stage, Pool, Transfer)


def _subtract(later: _T, earlier: _T | None) -> _T:
    if earlier is None:
        return later
    names = {field.name for field in dataclasses.fields(later)} & set(_COUNTED)
    return dataclasses.replace(later, **{name: getattr(later, name) - getattr(earlier, name) for name in names})


def _pad(earlier: tuple[_T, ...], later: tuple[_T, ...]) -> list[_T | None]:
    """Return the earlier figures, with None for those that were not there yet."""
    return [*earlier, *[None] * (len(later) - len(earlier))]


def _shorten(call: str) -> str:
    return call if len(call) <= 60 else f"{call[:57]}..."


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What limits a run."""

    bound: str
    """"input", "transfer", "compute", or "" if it is not known."""
    sentence: str
    more_workers: int | None = None
    """How many more workers would keep up with the step; None if that is not known, or if it is not what helps."""


def judge(report: Report, available_cores: int | None = None) -> Verdict:
    """Return which of the step, the input and the transfer is the slowest, and what would help.

    The number of workers follows from two measured times: the worker time of an element, and the time that the training
    loop takes for it without waiting. Their quotient is the number of workers that keep up with the step.

    Args:
      report: of a running iterator, or of a part of its time: see `Report.since`.
      available_cores: how many cores workers may use; by default those of this process.
    """
    transfer = max((each for each in report.transfers if each.elements), key=lambda each: each.waited_s, default=None)
    if transfer is not None and (transfer.limit == "transfer" or not report.timed):
        return _judge_transfer(transfer)
    if not report.timed:
        return Verdict("", f"Stages are not timed. To time them, {_TIME_THE_STAGES}")
    if report.elements <= 0 or report.elapsed_s <= 0:
        return Verdict("", "No element has been delivered in this time.")
    waiting = min(1.0, report.waiting)
    if waiting < SMALL_WAIT_SHARE:
        return _judge_step(waiting)
    cores = count_cores() if available_cores is None else available_cores
    stage, pool = report.slowest, _find_pool(report)
    if stage is None:  # a dataset of the user's own may use a pool although no stage of it is known
        name = "the consumer" if pool is None else f"the {pool.kind}"
        return Verdict("input", f"input-bound: the step waits for {name} {_percent(waiting)} of its time.")
    spent_s = sum(each.self_s for each in report.stages if each.where == stage.where)
    takes = f"input-bound: {_shorten(stage.call)} takes {_percent(stage.self_s / (spent_s or 1.0))}"
    if pool is None or pool.kind == THREAD:
        return _judge_consumer(stage, takes, _count_needed(spent_s, report), cores)
    return _judge_pool(report, pool, f"{takes} of {pool.kind.removesuffix('s')} time", cores)


def _judge_step(waiting: float) -> Verdict:
    waits = f"the step waits for data {_percent(waiting)} of its time"
    return Verdict("compute", f"compute-bound: {waits}, so faster data would gain no more than that.")


def _judge_transfer(transfer: Transfer) -> Verdict:
    waits = f"the step waits for data {_percent(transfer.waiting)} of its time"
    if transfer.limit == "step":
        return _judge_step(transfer.waiting)
    if transfer.limit == "input":
        limit = "reading and computing limit, not the transfer. To see which stage limits"
        return Verdict("input", f"input-bound: {waits}, and {limit}, {_TIME_THE_STAGES}")
    if transfer.mapped_bytes:
        limit = "the link to the device limits"
        advice = "Send less: uint8 instead of float32, and convert on the device."
    else:
        limit = f"copying to {transfer.place} limits, because the copies start in memory that is not mapped for it"
        advice = "Let Bushel make the batches, as the last step before to_device, and send uint8 instead of float32."
    return Verdict("transfer", f"transfer-bound: {waits}, and {limit}. {advice}")


def _judge_pool(report: Report, pool: Pool, takes: str, available_cores: int) -> Verdict:
    """Return the verdict if the slowest stage runs in workers, in threads or in actors."""
    busy = report.get_busy_share(pool)
    if busy < BUSY_SHARE:
        return Verdict(
            "input",
            f"{takes}, but the {pool.kind} are busy only {_percent(busy)} of the time: let them work further ahead "
            "(per_worker_buffer_size, budget_bytes). In a short run, most of the time is their start.",
        )
    needed = _count_needed(pool.busy_s, report)
    if needed is None:
        return Verdict("input", f"{takes}, and the step takes no time of its own: every further worker helps.")
    more = max(1, needed - pool.size)
    # The consumer needs a core, too, but it sleeps while it waits: workers may use all cores.
    if pool.nodes or pool.size + more <= available_cores:
        members = pool.kind.removesuffix("s") if more == 1 else pool.kind
        return Verdict("input", f"{takes}; {more} more {members} would do.", more)
    return Verdict(
        "input",
        f"{takes}; to keep up with the step would take {pool.size + more} {pool.kind}, and there are {available_cores} "
        "cores: make it cheaper, or store its output.",
        more,
    )


def _judge_consumer(stage: Stage, takes: str, needed: int | None, available_cores: int) -> Verdict:
    """Return the verdict if the slowest stage runs in the consumer, or in the one thread that reads ahead for it."""
    takes += " of the time of one thread" if stage.where == THREAD else " of consumer time"
    if stage.call == DELIVERY:
        return Verdict("input", f"{takes}: let the workers make larger batches of arrays.")
    if stage.marked:
        advice = "make it cheaper, or move its work on single elements into a map before or after it."
        return Verdict("input", f"{takes}, and it needs its elements in order: {advice}")
    place = "before the ThreadPrefetchIterDataset" if stage.where == THREAD else "after it"
    if needed is None or needed > available_cores:
        return Verdict("input", f"{takes}: put .mp_prefetch() {place}, so that workers compute it.", needed)
    workers = "1 worker" if needed == 1 else f"{needed} workers"
    return Verdict("input", f"{takes}; {workers} would do: put .mp_prefetch() {place}.", needed)


def _find_pool(report: Report) -> Pool | None:
    """Return the pool that runs the slowest stage; None if the consumer runs it."""
    stage = report.slowest
    if stage is None:
        return report.pools[0] if report.pools else None
    return max((pool for pool in report.pools if pool.kind == stage.where), key=lambda pool: pool.busy_s, default=None)


def _count_needed(spent_s: float, report: Report) -> int | None:
    """Return how many workers compute as fast as the training loop asks; None if the loop itself takes no time."""
    step_s = report.elapsed_s - report.waited_s
    return None if step_s < 0.01 * report.elapsed_s else math.ceil(HEADROOM * spent_s / step_s)

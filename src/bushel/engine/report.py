"""What a running pipeline costs, and what to try: plain data, as a table and in a sentence or two."""

from __future__ import annotations

import dataclasses

from bushel.base import tables
from bushel.engine.tasks import cores

_HEAD = ("stage", "where", "elements", "self time", "share", "bytes")

DELIVERY = "delivery"
"""The stage that takes results apart and puts them in order, in the consumer."""

THREAD = "thread"
"""What pulls a stream ahead where a ThreadPrefetchIterDataset stands. There is never more than one for each."""

HARDLY = 0.1
"""A consumer that waits less than this share of its time hardly gains by faster data."""

BUSY = 0.7
"""Workers that are at work for this share of the time, or more, are what limits."""


@dataclasses.dataclass(frozen=True)
class Stage:
    """One operation of a pipeline and where it ran: what it gave, and the time that it took itself.

    `number` is its place in the pipeline, from the sources on; it tells operations apart that read alike.
    """

    number: int
    call: str
    where: str
    elements: int
    self_s: float
    size_bytes: int
    marked: bool = False
    """Whether it could be computed ahead, by a prefetch after it, and is not: it takes its elements in order."""


@dataclasses.dataclass(frozen=True)
class Pool:
    """Workers or threads that compute ahead. Figures of time are zero where stages are not timed."""

    kind: str
    size: int
    why: str
    """Why so many, where Bushel has chosen their number."""
    busy_s: float = 0.0
    """Seconds that its members worked, added up."""
    wait_s: float = 0.0
    """Seconds that it was waited for: by the consumer, or by a thread that pulls for the consumer."""
    ready_blocks: float = 0.0
    """How many blocks were ready when the next was asked for, on average."""
    ready_now: int = 0
    deaths: int = 0
    """How many of its members have died and were replaced; also counted where stages are not timed."""

    def __str__(self) -> str:
        return f"{self.size} {self.kind}" if self.size != 1 else f"1 {self.kind.removesuffix('s')}"


@dataclasses.dataclass(frozen=True)
class Report:
    """Where the time of an iterator went. Print it; `verdict` is the last lines alone.

    `elapsed_s` is from the first `next` to the end of the last, `waited_s` the part of it that was spent in `next`.
    """

    timed: bool
    stages: tuple[Stage, ...]
    pools: tuple[Pool, ...]
    elements: int
    elapsed_s: float
    waited_s: float

    def __str__(self) -> str:
        parts = [tables.as_text(_HEAD, self._rows(), left=2), self._summary()] if self.elements else []
        return "\n\n".join([*parts, self._conclusion()])

    def _repr_html_(self) -> str:
        parts = [tables.as_html(_HEAD, self._rows()), tables.paragraph(self._summary())] if self.elements else []
        return "".join([*parts, tables.paragraph(self._conclusion())])

    def _conclusion(self) -> str:
        return "\n".join(filter(None, [*self._chosen(), *self._died(), self.verdict]))

    def _rows(self) -> list[tuple[str, ...]]:
        total = sum(stage.self_s for stage in self.stages) or 1.0
        return [
            (
                stage.call if len(stage.call) <= 60 else stage.call[:57] + "...",
                stage.where,
                f"{stage.elements:,}",
                f"{stage.self_s:.3f} s",
                f"{100 * stage.self_s / total:.0f} %",
                _size(stage.size_bytes),
            )
            for stage in self.stages
        ]

    def _summary(self) -> str:
        lines = [
            f"{self.elements:,} elements in {self.elapsed_s:.2f} s; {self.waited_s:.2f} s of it in next() "
            f"({100 * self.waiting:.0f} %)."
        ]
        for pool in self.pools:
            busy = 100 * self._busy(pool)
            lines.append(
                f"{pool}: busy {busy:.0f} % of the time, waited for {pool.wait_s:.2f} s, "
                f"{pool.ready_blocks:.1f} blocks ready when the next was asked for."
            )
        return "\n".join(lines)

    def _chosen(self) -> list[str]:
        return [f"{pool}, chosen by Bushel: {pool.why}." for pool in self.pools if pool.why]

    def _died(self) -> list[str]:
        return [
            f"{pool.deaths} of the {pool.kind} {'has' if pool.deaths == 1 else 'have'} died and been replaced."
            for pool in self.pools
            if pool.deaths
        ]

    @property
    def waiting(self) -> float:
        """The share of its time that the consumer spent in `next`."""
        return self.waited_s / self.elapsed_s if self.elapsed_s else 0.0

    @property
    def slowest(self) -> Stage | None:
        """The stage that limits: of those where the waiting is, the one with the most time of its own."""
        ahead = self._awaited()
        there = [stage for stage in self.stages if stage.where == (ahead.kind if ahead else "consumer")]
        return max(there, key=lambda stage: stage.self_s, default=None)

    def _awaited(self) -> Pool | None:
        """The pool for which most of the waiting was; None where the consumer itself was at work.

        Of several that wait for one another it is the busiest.
        """
        at_work = any(stage.where == "consumer" for stage in self.stages)
        awaited = [pool for pool in self.pools if pool.wait_s >= self.waited_s / 2 or not at_work]
        return max(awaited, key=self._busy, default=None)

    def _busy(self, pool: Pool) -> float:
        return min(1.0, pool.busy_s / (self.elapsed_s * pool.size)) if self.elapsed_s else 0.0

    @property
    def verdict(self) -> str:
        """Which stage limits, who waits for whom, and what to try."""
        if not self.timed:
            return (
                'Stages are not timed. Iterate over ds.with_options(execution_tracking_mode="stage_timing") to time '
                "them, where ds is the IterDataset."
            )
        if not self.elements:
            return "No element has been delivered yet."
        if self.waiting < HARDLY:
            return (
                f"The data waits for the consumer, which spent {100 * self.waiting:.0f} % of its time in next(): "
                "faster data would gain no more than that."
            )
        stage, pool = self.slowest, self._awaited()
        # What is computed ahead for a dataset of the user's belongs to no stage.
        limits = f"the work of {pool} limits" if stage is None else f"{stage.call} limits"
        waits = f"The consumer waits for data {100 * self.waiting:.0f} % of its time; {limits}."
        return f"{waits} {self._advice(stage, pool)}"

    def _advice(self, stage: Stage | None, pool: Pool | None) -> str:
        if pool is None:
            if stage is None or not self.pools:
                return "Nothing is computed ahead: add .mp_prefetch() at the end of the pipeline."
            if stage.call == DELIVERY:
                return "Taking results apart costs the most: let the workers make larger batches of arrays."
            if stage.marked:
                return (
                    "It runs in the consumer, a prefetch after it or not: it takes its elements in order. Make it "
                    "cheaper, or do what it does to single elements in a map before or after it."
                )
            return f"It runs in the consumer: prefetch after it, so that {self.pools[0].kind} do it."
        if pool.kind == THREAD:
            return "One thread computes all of it: put .mp_prefetch() before the ThreadPrefetchIterDataset."
        if self._busy(pool) < BUSY:
            return (
                f"Yet the {pool.kind} were busy only {100 * self._busy(pool):.0f} % of the time: a short run is mostly "
                "start; in a long one give them more room with per_worker_buffer_size or budget_bytes."
            )
        if pool.size < cores():
            return f"{pool} at work all the time, and there are {cores()} cores: try more."
        return f"{pool} at work all the time, and no more cores: make it cheaper, or store what it makes."


def _size(count: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"

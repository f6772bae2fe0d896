"""Where the time of a running pipeline goes, and what to try: plain data, a table, and a sentence or two."""

from __future__ import annotations

import dataclasses
from typing import TypeVar

from bushel.base import tables
from bushel.engine.tasks import cores

_HEAD = ("stage", "where", "elements", "self time", "share", "bytes")

DELIVERY = "delivery"
"""The stage in the consumer that unpacks results and puts them in order."""

THREAD = "thread"
"""The thread of a ThreadPrefetchIterDataset, which reads a stream ahead. There is one for each."""

SMALL_WAIT_SHARE = 0.1
"""A consumer that waits for less than this share of its time would gain little from faster data."""

BUSY_SHARE = 0.7
"""If workers compute for this share of the time or more, they are the bottleneck."""


@dataclasses.dataclass(frozen=True)
class Stage:
    """One operation of a pipeline, where it ran, how much it gave, and the time of its own work.

    `number` is its place in the pipeline, counted from the sources. Two operations may print alike, but their numbers
    differ.
    """

    number: int
    call: str
    where: str
    elements: int
    self_s: float
    size_bytes: int
    marked: bool = False
    """Whether a prefetch follows it, and it runs in the consumer all the same, since it needs its elements in order."""


@dataclasses.dataclass(frozen=True)
class Pool:
    """Workers or threads that compute ahead. Figures of time are zero if stages are not timed."""

    kind: str
    size: int
    why: str
    """Why there are so many, if Bushel has chosen their number."""
    busy_s: float = 0.0
    """Seconds that its members computed, added up."""
    wait_s: float = 0.0
    """Seconds that the consumer waited for it, or a thread that reads ahead for the consumer."""
    ready_blocks: float = 0.0
    """How many blocks were ready when the next one was needed, on average."""
    ready_now: int = 0
    deaths: int = 0
    """How many of its members have died and were replaced. Also counted if stages are not timed."""
    nodes: tuple[str, ...] = ()
    """A line for each machine of a cluster: how many members it has, and what they have done."""

    def __str__(self) -> str:
        return f"{self.size} {self.kind}" if self.size != 1 else f"1 {self.kind.removesuffix('s')}"


@dataclasses.dataclass(frozen=True)
class Transfer:
    """Elements that `to_device` has put on devices. These figures are always taken."""

    place: str
    """The devices: how many, and their kind."""
    elements: int
    size_bytes: int
    elapsed_s: float
    """From the first `next` to the end of the last one."""
    waited_s: float
    """The part of it in which `next` waited for an element to be on the device."""
    input_s: float
    """How long the thread that feeds the device waited for elements, or computed them."""
    bytes_per_s: float
    """The speed of one transfer by itself: the median of those that were timed, which is one in 32."""
    mapped_bytes: int
    """How much memory is mapped for the GPU."""

    @property
    def waiting(self) -> float:
        """The share of its time that the step waited for data."""
        return self.waited_s / self.elapsed_s if self.elapsed_s else 0.0

    @property
    def transfer_s(self) -> float:
        """How long all transfers took, at the speed of those that were timed."""
        return self.size_bytes / self.bytes_per_s if self.bytes_per_s else 0.0

    @property
    def limit(self) -> str:
        """What the step waits for: "step" if for nothing, else "transfer", or "input" for reading and computing."""
        if self.waiting < SMALL_WAIT_SHARE:
            return "step"
        return "transfer" if self.transfer_s >= BUSY_SHARE * self.elapsed_s else "input"

    def __str__(self) -> str:
        each = self.size_bytes / max(1, self.elements)
        speed = ""
        if self.bytes_per_s:
            mapped = "mapped" if self.mapped_bytes else "ordinary"
            speed = (
                f" A transfer takes {1e3 * each / self.bytes_per_s:.2f} ms ({self.bytes_per_s / 1e9:.1f} GB/s, from "
                f"{mapped} memory)."
            )
        return (
            f"To {self.place}: {self.elements:,} elements of {format_size(each)} in {self.elapsed_s:.2f} s; the step "
            f"waited {self.waited_s:.2f} s for data ({100 * self.waiting:.0f} %).{speed}"
        )


@dataclasses.dataclass(frozen=True)
class Skip:
    """An element that failed and was skipped, or several that failed together."""

    which: str
    error: str
    count: int


@dataclasses.dataclass(frozen=True)
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
    skips: tuple[Skip, ...] = ()
    """The latest of them, with their errors."""

    def since(self, earlier: Report) -> Report:
        """The figures of the time between an earlier report of the same iterator and this one."""
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

    def __str__(self) -> str:
        parts = [tables.as_text(_HEAD, self._make_rows(), left=2), self._summarize()] if self.elements else []
        return "\n\n".join([*parts, self._conclude()])

    def _repr_html_(self) -> str:
        parts = [tables.as_html(_HEAD, self._make_rows()), tables.paragraph(self._summarize())] if self.elements else []
        return "".join([*parts, tables.paragraph(self._conclude())])

    def _conclude(self) -> str:
        nodes = [line for pool in self.pools for line in pool.nodes]
        transfers = map(str, self.transfers)
        lines = [*self._explain_sizes(), *nodes, *self._count_deaths(), *transfers, self.verdict]
        return "\n".join(filter(None, lines))

    def _make_rows(self) -> list[tuple[str, ...]]:
        total = sum(stage.self_s for stage in self.stages) or 1.0
        return [
            (
                stage.call if len(stage.call) <= 60 else stage.call[:57] + "...",
                stage.where,
                f"{stage.elements:,}",
                f"{stage.self_s:.3f} s",
                f"{100 * stage.self_s / total:.0f} %",
                format_size(stage.size_bytes),
            )
            for stage in self.stages
        ]

    def _summarize(self) -> str:
        pools = [
            f"{pool}: busy {100 * self._get_busy_share(pool):.0f} % of the time, waited for {pool.wait_s:.2f} s, "
            f"{pool.ready_blocks:.1f} blocks ready when the next was needed."
            for pool in self.pools
        ]
        time = f"{self.elements:,} elements in {self.elapsed_s:.2f} s; {self.waited_s:.2f} s of it in next()"
        return "\n".join([f"{time} ({100 * self.waiting:.0f} %).", *pools])

    def _explain_sizes(self) -> list[str]:
        return [f"{pool}, chosen by Bushel: {pool.why}." for pool in self.pools if pool.why]

    def _count_deaths(self) -> list[str]:
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
        """The bottleneck: the stage with the most time of its own, among those that the consumer waits for."""
        pool = self._find_awaited_pool()
        stages = [stage for stage in self.stages if stage.where == (pool.kind if pool else "consumer")]
        return max(stages, key=lambda stage: stage.self_s, default=None)

    def _find_awaited_pool(self) -> Pool | None:
        """The pool that the consumer mostly waited for; None if the consumer itself was computing.

        If several pools wait for one another, it is the busiest.
        """
        consumer_computes = any(stage.where == "consumer" for stage in self.stages)
        awaited = [pool for pool in self.pools if pool.wait_s >= self.waited_s / 2 or not consumer_computes]
        return max(awaited, key=self._get_busy_share, default=None)

    def _get_busy_share(self, pool: Pool) -> float:
        return min(1.0, pool.busy_s / (self.elapsed_s * pool.size)) if self.elapsed_s else 0.0

    @property
    def verdict(self) -> str:
        """Which stage is the bottleneck, who waits for whom, and what to try."""
        transfer = max((each for each in self.transfers if each.elements), key=lambda each: each.waited_s, default=None)
        if transfer is not None and (transfer.limit == "transfer" or not self.timed):
            return _judge_transfer(transfer)
        if not self.timed:
            return (
                "Stages are not timed. To time them, iterate over "
                'ds.with_options(execution_tracking_mode="stage_timing"), where ds is the IterDataset.'
            )
        if not self.elements:
            return "No element has been delivered yet."
        if self.waiting < SMALL_WAIT_SHARE:
            return (
                f"The data waits for the consumer, which spent {100 * self.waiting:.0f} % of its time in next(): "
                "faster data would gain no more than that."
            )
        stage, pool = self.slowest, self._find_awaited_pool()
        # A dataset of the user's own may use a pool although no stage of it is known.
        limits = f"the work of {pool} limits" if stage is None else f"{stage.call} limits"
        waits = f"The consumer waits for data {100 * self.waiting:.0f} % of its time; {limits}."
        return f"{waits} {self._advise(stage, pool)}"

    def _advise(self, stage: Stage | None, pool: Pool | None) -> str:
        if pool is None:
            if stage is None or not self.pools:
                return "Nothing is computed ahead: add .mp_prefetch() at the end of the pipeline."
            if stage.call == DELIVERY:
                return "Unpacking results takes the most time: let the workers make larger batches of arrays."
            if stage.marked:
                return (
                    "It needs its elements in order, so it runs in the consumer, also with a prefetch after it. Make "
                    "it cheaper, or move its work on single elements into a map before or after it."
                )
            return f"It runs in the consumer: put a prefetch after it, so that {self.pools[0].kind} run it."
        if pool.kind == THREAD:
            return "One thread computes all of it: put .mp_prefetch() before the ThreadPrefetchIterDataset."
        busy = self._get_busy_share(pool)
        if busy < BUSY_SHARE:
            return (
                f"But the {pool.kind} were busy only {100 * busy:.0f} % of the time. In a short run "
                f"most of the time is their start. In a long run let the {pool.kind} work further ahead: raise "
                "per_worker_buffer_size or budget_bytes."
            )
        if pool.nodes:
            return f"{pool} busy nearly all the time: try more {pool.kind}, if the cluster has room for them."
        if pool.size < cores():
            return f"{pool} busy nearly all the time, and there are {cores()} cores: try more {pool.kind}."
        return f"{pool} busy nearly all the time, and there are no more cores: make it cheaper, or store its output."


def _judge_transfer(transfer: Transfer) -> str:
    if transfer.limit == "step":
        return (
            f"The data waits for the step, which waits for data {100 * transfer.waiting:.0f} % of its time: faster "
            "data would gain no more than that."
        )
    waits = f"The step waits for data {100 * transfer.waiting:.0f} % of its time;"
    if transfer.limit == "input":
        return (
            f"{waits} reading and computing limit, not the transfer. To see which stage, iterate over "
            'ds.with_options(execution_tracking_mode="stage_timing"), where ds is the IterDataset.'
        )
    if transfer.mapped_bytes:
        return f"{waits} the link to the device limits. Send less: uint8 instead of float32, and convert on the device."
    return (
        f"{waits} the transfer limits, because it copies from memory that is not mapped for the device. Let Bushel "
        "make the batches, as the last step before to_device, and send uint8 instead of float32."
    )


_COUNTED = ("elements", "self_s", "size_bytes", "busy_s", "wait_s", "deaths", "elapsed_s", "waited_s", "input_s")
"""The figures that grow while a pipeline runs."""

_T = TypeVar("_T", Stage, Pool, Transfer)


def _subtract(later: _T, earlier: _T | None) -> _T:
    if earlier is None:
        return later
    names = {field.name for field in dataclasses.fields(later)} & set(_COUNTED)
    return dataclasses.replace(later, **{name: getattr(later, name) - getattr(earlier, name) for name in names})


def _pad(earlier: tuple[_T, ...], later: tuple[_T, ...]) -> list[_T | None]:
    """The earlier figures, with None for those that were not there yet."""
    return [*earlier, *[None] * (len(later) - len(earlier))]


def format_size(count: float) -> str:
    """A number of bytes with a unit: 1.5 MB."""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"

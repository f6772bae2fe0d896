"""Figures of a running pipeline as plain data: its stages, pools, transfers to devices, and skipped elements."""

from __future__ import annotations

import dataclasses
import os

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


def format_size(count: float) -> str:
    """A number of bytes with a unit: 1.5 MB."""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def count_cores() -> int:
    """Return how many processor cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

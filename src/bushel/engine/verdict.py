"""What a run is bound by, in one sentence, from its report. See `Report.verdict` for the longer form."""

from __future__ import annotations

import dataclasses
import math

from bushel.engine.report import (
    BUSY_SHARE,
    DELIVERY,
    SMALL_WAIT_SHARE,
    THREAD,
    Pool,
    Report,
    Stage,
    Transfer,
)
from bushel.engine.tasks import cores

HEADROOM = 1.1
"""Workers that need exactly as long as the step would be late half of the time: some more are recommended."""


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What limits a run."""

    bound: str
    """"input", "transfer", "compute", or "" if it is not known."""
    sentence: str
    more_workers: int | None = None
    """How many more workers would keep up with the step; None if that is not known, or if it is not what helps."""

    def __str__(self) -> str:
        return self.sentence


def judge(report: Report, available_cores: int | None = None) -> Verdict:
    """Which of the step, the input and the transfer is the slowest, and what would help.

    The number of workers follows from two measured times: the worker time of an element, and the time that the training
    loop takes for it without waiting. Their quotient is the number of workers that keep up with the step.

    Args:
      report: of a running iterator, or of a part of its time: see `Report.since`.
      available_cores: how many cores workers may use; by default those of this process.
    """
    count = cores() if available_cores is None else available_cores
    transfer = max((each for each in report.transfers if each.elements), key=lambda each: each.waited_s, default=None)
    if transfer is not None and (transfer.limit == "transfer" or not report.timed):
        return _judge_transfer(transfer)
    if not report.timed:
        return Verdict(
            "",
            "The stages are not timed, so it is not known where the time goes: iterate over "
            'ds.with_options(execution_tracking_mode="stage_timing").',
        )
    if report.elements <= 0 or report.elapsed_s <= 0:
        return Verdict("", "No element has been delivered in this time.")
    waiting = min(1.0, report.waiting)
    if waiting < SMALL_WAIT_SHARE:
        return Verdict(
            "compute",
            f"compute-bound: the step waits for data {_percent(waiting)} of its time, so faster data would gain no "
            "more than that.",
        )
    return _judge_input(report, waiting, count)


def _judge_transfer(transfer: Transfer) -> Verdict:
    waits = f"the step waits for data {_percent(transfer.waiting)} of its time"
    if transfer.limit == "step":
        return Verdict("compute", f"compute-bound: {waits}, so faster data would gain no more than that.")
    if transfer.limit == "transfer":
        return Verdict(
            "transfer", f"transfer-bound: {waits}, and copying to {transfer.place} limits: send fewer bytes."
        )
    return Verdict("input", f"input-bound: {waits}, and reading and computing limit, not the transfer.")


def _judge_input(report: Report, waiting: float, available_cores: int) -> Verdict:
    stage, pool = report.slowest, _find_pool(report)
    if stage is None:
        name = f"the {pool.kind}" if pool is not None else "the consumer"
        return Verdict("input", f"input-bound: the step waits for {name} {_percent(waiting)} of its time.")
    alike = [each.self_s for each in report.stages if each.where == stage.where]
    share = stage.self_s / (sum(alike) or 1.0)
    name = stage.call if len(stage.call) <= 60 else f"{stage.call[:57]}..."
    if pool is None or pool.kind == THREAD:
        return _judge_consumer(report, stage, f"input-bound: {name} takes {_percent(share)}", available_cores)
    takes = f"input-bound: {name} takes {_percent(share)} of {pool.kind.removesuffix('s')} time"
    busy = min(1.0, pool.busy_s / (report.elapsed_s * max(1, pool.size)))
    if busy < BUSY_SHARE:
        return Verdict(
            "input",
            f"{takes}, but the {pool.kind} are busy only {_percent(busy)} of the time: let them work further ahead "
            "(per_worker_buffer_size, budget_bytes).",
        )
    needed = _count_needed(pool.busy_s, report)
    more = max(1, needed - pool.size) if needed is not None else None
    members = pool.kind.removesuffix("s") if more == 1 else pool.kind
    if more is None:
        return Verdict("input", f"{takes}, and the step takes no time of its own: every further worker helps.")
    # The consumer needs a core, too, but it sleeps while it waits: workers may use all cores.
    if pool.nodes or pool.size + more <= available_cores:
        return Verdict("input", f"{takes}; {more} more {members} would do.", more)
    return Verdict(
        "input",
        f"{takes}; to keep up with the step would take {pool.size + more} {pool.kind}, and there are {available_cores} "
        "cores: make it cheaper, or store its output.",
        more,
    )


def _judge_consumer(report: Report, stage: Stage, takes: str, available_cores: int) -> Verdict:
    """The verdict where the slowest stage runs in the consumer, or in the one thread that reads ahead for it."""
    takes += " of the time of one thread" if stage.where == THREAD else " of consumer time"
    if stage.call == DELIVERY:
        return Verdict("input", f"{takes}: let the workers make larger batches of arrays.")
    if stage.marked:
        return Verdict("input", f"{takes}, and it needs its elements in order: make it cheaper.")
    spent = sum(each.self_s for each in report.stages if each.where == stage.where)
    needed = _count_needed(spent, report)
    if needed is None or needed > available_cores:
        return Verdict("input", f"{takes}: put .mp_prefetch() after it, so that workers compute it.", needed)
    workers = "1 worker" if needed == 1 else f"{needed} workers"
    return Verdict("input", f"{takes}; {workers} would do: put .mp_prefetch() after it.", needed)


def _find_pool(report: Report) -> Pool | None:
    stage = report.slowest
    if stage is None:
        return report.pools[0] if report.pools else None
    return max((pool for pool in report.pools if pool.kind == stage.where), key=lambda pool: pool.busy_s, default=None)


def _count_needed(spent_s: float, report: Report) -> int | None:
    """How many workers compute as fast as the training loop asks; None if the loop takes hardly any time itself."""
    step_s = report.elapsed_s - report.waited_s
    if step_s < 0.01 * report.elapsed_s:
        return None
    return math.ceil(HEADROOM * spent_s / step_s)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"

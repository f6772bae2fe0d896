"""Which jobs know of which deaths: those with the same positions of the same program, and no others."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from bushel.engine.pool.blame import Blame
from bushel.engine.pool.jobs import Job


def job(low: int, high: int, *, program: int = 1, announced: tuple[int, int] | None = None) -> Job:
    task: Any = SimpleNamespace(low=low, high=high)
    return Job(task, Future(), 0, program, high, announced=announced)


@pytest.mark.parametrize(
    ("other", "deaths"),
    [
        (job(0, 10), 1),
        (job(5, 20), 1),
        (job(9, 10), 1),
        (job(10, 20), 0),
        (job(0, 10, program=2), 0),
    ],
)
def test_a_death_counts_for_jobs_that_have_its_positions(other, deaths):
    blame = Blame(None)
    blame.record_death(job(0, 10))
    blame.add_known_deaths(other)
    assert (other.deaths, other.killed_at) == (deaths, [])


def test_announced_positions_are_known_to_the_next_job():
    blame = Blame(None)
    blame.record_death(job(0, 10, announced=(7, 8)))
    before, after = job(0, 7), job(7, 30)
    for one in (before, after):
        blame.add_known_deaths(one)
    assert (before.deaths, before.killed_at) == (0, [])
    assert (after.deaths, after.killed_at) == (1, [(7, 8)])


def test_a_death_of_an_idle_worker_belongs_to_no_job():
    blame, one = Blame(None), job(0, 10)
    blame.record_death(None)
    blame.add_known_deaths(one)
    assert one.deaths == 0

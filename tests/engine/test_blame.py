"""When deaths of workers prove that an element kills, and when they do not: simulated storms, and the rules one by one.

The clock is a number here, so that ten thousand kills take no time.
"""

from __future__ import annotations

import random
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from bushel._src.engine.pool.jobs import Job
from bushel._src.engine.pool.scheduling import (
    CHANCE,
    FEWEST_DEATHS,
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    RECENT_S,
    Blame,
    Suspicion,
)

ELEMENT_S = 0.002
START_S = 0.03
"""How long a new worker takes to start in these simulations."""


def job(low: int, high: int, *, program: int = 1) -> Job:
    task: Any = SimpleNamespace(low=low, high=high)
    return Job(task, Future(), 0, program, high)


def kill_alone(blame: Blame, now: float, row: int = 7, run_s: float = ELEMENT_S, program: int = 1) -> Suspicion:
    """A worker dies while it runs the element `row` alone, `run_s` after it began."""
    place = row, row + 1
    return blame.record_death_alone(program, place, place, (now - run_s, now - run_s), now)


def try_again_and_again(blame: Blame, run_s: float, *, others_per_s: float = 0.0) -> tuple[int, float]:
    """An element that always kills is tried until it is blamed. Returns how often it died, and the seconds it took."""
    now, noise = 100.0, random.Random(0)
    begun = now
    for deaths in range(1, 100):
        now += run_s
        suspicion = kill_alone(blame, now, run_s=run_s)
        if suspicion.find_killer() is not None:
            return deaths, now - begun
        wait = max(suspicion.not_before - now, 0.0) + START_S
        for _ in range(round(others_per_s * wait + noise.random() - 0.5)):
            blame.record_other_death()
        now += wait
    raise AssertionError("never blamed")


@pytest.mark.parametrize("run_s", [0.0, 0.001, 0.01, 0.1, 1.0])
def test_an_element_that_always_kills_is_blamed_within_seconds(run_s):
    deaths, seconds = try_again_and_again(Blame(), run_s)
    assert FEWEST_DEATHS <= deaths <= 30
    assert seconds < 5 + 60 * run_s


def test_an_element_is_blamed_after_more_deaths_while_somebody_kills_other_workers():
    quiet, _ = try_again_and_again(Blame(), ELEMENT_S)
    stormy, seconds = try_again_and_again(Blame(), ELEMENT_S, others_per_s=20)
    assert quiet < stormy <= 40 and seconds < 30


@pytest.mark.parametrize("kills_per_s", [1.0, 10.0, 100.0])
@pytest.mark.parametrize("element_s", [0.0005, ELEMENT_S, 0.05])
def test_a_storm_of_ten_thousand_kills_blames_nobody(kills_per_s, element_s):
    """One worker runs one element after the other alone. It is killed at random moments, whatever it does."""
    noise, blame, now, row = random.Random(1), Blame(), 1000.0, 0
    next_kill = now + noise.expovariate(kills_per_s)
    for _ in range(10_000):
        finished = int((next_kill - now) / element_s)
        if finished:
            blame.acquit(1, row, row + finished)
        row += finished
        begun = now + finished * element_s
        suspicion = blame.record_death_alone(1, (row, row + 1), (row, row + 1), (begun, begun), next_kill)
        assert suspicion.find_killer() is None
        now, next_kill = next_kill + START_S, next_kill + noise.expovariate(kills_per_s)
        while next_kill < max(now, suspicion.not_before):  # killed while it starts, or waits for the next attempt
            blame.record_other_death()
            now, next_kill = next_kill + START_S, next_kill + noise.expovariate(kills_per_s)
        now = max(now, suspicion.not_before)


@given(st.lists(st.floats(0.0, 2.0), min_size=1, max_size=FEWEST_DEATHS - 1))
def test_few_deaths_prove_nothing(runs_s):
    blame, now = Blame(), 0.0
    for run_s in runs_s:
        now += run_s + 10
        assert kill_alone(blame, now, run_s=run_s).find_killer() is None


@given(deaths=st.integers(2, 40), run_s=st.floats(1e-4, 1.0), others=st.integers(0, 500), quiet_s=st.floats(0.01, 100))
def test_proof_means_that_chance_is_small(deaths, run_s, others, quiet_s):
    suspicion = Suspicion(1, 7, 8, None, others=others, quiet_s=quiet_s)
    if suspicion._is_proven([run_s] * deaths):
        assert deaths >= FEWEST_DEATHS
        # Kills from outside as often as was seen elsewhere: the mean number of hits in all attempts but the first.
        hits = others / quiet_s * run_s * (deaths - 1)
        assert scipy.stats.poisson.sf(deaths - 2, hits) <= CHANCE


def test_one_attempt_that_succeeds_forgets_the_deaths():
    blame = Blame()
    for now in (1.0, 2.0, 3.0):
        suspicion = kill_alone(blame, now)
    assert len(suspicion.deaths) == 3 and blame.is_suspect(1, 7, 8, 3.0)
    blame.acquit(1, 0, 10)
    assert not blame.is_suspect(1, 7, 8, 3.0)
    assert len(kill_alone(blame, 4.0).deaths) == 1


def test_pauses_grow_to_a_limit_and_no_death_within_one_counts():
    blame, now, pauses = Blame(), 0.0, []
    for _ in range(10):
        now += ELEMENT_S
        suspicion = kill_alone(blame, now)
        pauses.append(suspicion.not_before - now)
        assert len(kill_alone(blame, now + 0.9 * pauses[-1]).deaths) == len(pauses)  # it began too early
        now = suspicion.not_before + ELEMENT_S
    assert FIRST_PAUSE_S <= pauses[0] <= 1.5 * FIRST_PAUSE_S
    assert pauses[3] > 2 * pauses[0]
    assert LONGEST_PAUSE_S <= pauses[-1] <= 1.5 * LONGEST_PAUSE_S


@pytest.mark.parametrize(
    ("low", "high", "program", "known"),
    [(0, 10, 1, True), (5, 20, 1, True), (9, 10, 1, True), (10, 20, 1, False), (0, 10, 2, False)],
)
def test_a_block_over_which_a_worker_died_is_suspect_also_in_other_cuts(low, high, program, known):
    blame = Blame()
    blame.record_block_death(1, 0, 10, now=1.0)
    assert blame.is_suspect(program, low, high, 2.0) is known
    assert not blame.is_suspect(program, low, high, 2.0 + RECENT_S)
    assert blame.find_attempts([job(0, 10)]) == {}  # no element is suspected yet


def test_what_was_computed_of_a_block_is_no_longer_suspect():
    blame = Blame()
    blame.record_block_death(1, 0, 10, now=1.0)
    blame.acquit(1, 0, 6)
    assert not blame.is_suspect(1, 0, 6, 2.0)
    assert blame.is_suspect(1, 6, 10, 2.0)


def test_a_job_with_a_suspected_row_waits_for_its_pause():
    blame = Blame()
    suspicion = kill_alone(blame, 1.0, row=7)
    with_it, before, elsewhere = job(0, 10), job(0, 7), job(0, 10, program=2)
    assert blame.find_attempts([with_it, before, elsewhere]) == {with_it: suspicion}


def test_a_row_is_blamed_as_a_whole_if_workers_die_at_several_of_its_elements():
    blame, now = Blame(), 0.0
    for attempt in range(40):
        now += 2.0
        row, place = (8, 16), (8 + attempt % 8, 9 + attempt % 8)
        suspicion = blame.record_death_alone(1, row, place, (now - 0.002, now - 0.001), now)
        killer = suspicion.find_killer()
        if killer is not None:
            assert killer == (8, 16, len(suspicion.deaths))
            return
    raise AssertionError("never blamed")

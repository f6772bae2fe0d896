"""When deaths of workers prove that an element kills, and when they do not. Here time is simulated.

`tests/engine/test_storm.py` kills real workers.
"""

from __future__ import annotations

import itertools
import random

import pytest

from bushel.engine.pool.blame import FEWEST_DEATHS, LONGEST_PAUSE_S, RECENT_S, Blame, Suspicion

ROW = (7, 8)


def attempt_until_decided(rng: random.Random, run_s: float, kills_per_s: float, *, is_killer: bool) -> Suspicion | None:
    """An element is tried again and again. Somebody kills each of four workers so often.

    Returns the suspicion that has become proof, or None: the element was computed. An element that kills dies after
    `run_s`, one that does not is computed then.
    """
    blame, now = Blame(), 100.0
    begun = now
    while True:
        hit_s = rng.expovariate(kills_per_s) if kills_per_s else float("inf")
        if hit_s > run_s and not is_killer:
            blame.acquit(1, *ROW)
            return None
        now = begun + min(hit_s, run_s)
        suspicion = blame.record_death_alone(1, ROW, ROW, (begun, begun), now)
        if suspicion.find_killer() is not None:
            return suspicion
        begun = suspicion.not_before
        while kills_per_s and (now := now + rng.expovariate(4 * kills_per_s)) < begun:
            blame.record_other_death()


@pytest.mark.parametrize("run_s", [0.0001, 0.002, 0.05, 0.5])
@pytest.mark.parametrize("kills_per_s", [0.3, 2.5, 10.0])
def test_no_storm_proves_anything_against_a_harmless_element(run_s, kills_per_s):
    rng = random.Random(1)
    for _ in range(500 if run_s < 0.1 else 50):
        assert attempt_until_decided(rng, run_s, kills_per_s, is_killer=False) is None


@pytest.mark.parametrize("run_s", [0.0001, 0.002, 0.01])
@pytest.mark.parametrize("kills_per_s", [0.0, 0.3, 2.5])
def test_an_element_that_kills_is_proven_within_seconds(run_s, kills_per_s):
    rng = random.Random(2)
    for _ in range(100):
        suspicion = attempt_until_decided(rng, run_s, kills_per_s, is_killer=True)
        assert suspicion is not None
        killer = suspicion.find_killer()
        assert killer is not None and killer[:2] == ROW and FEWEST_DEATHS <= killer[2] <= 30
        assert suspicion.deaths[-1].when - suspicion.deaths[0].when < 30
        assert kills_per_s or suspicion.deaths[-1].when - suspicion.deaths[0].when < 5


def test_pauses_grow():
    blame, begun, pauses = Blame(), 100.0, []
    for _ in range(9):
        suspicion = blame.record_death_alone(1, ROW, ROW, (begun, begun), begun + 0.001)
        pauses.append(suspicion.not_before - begun - 0.001)
        begun = suspicion.not_before
    assert all(later > 1.3 * earlier for earlier, later in itertools.pairwise(pauses[:5]))
    assert max(pauses) <= 1.5 * LONGEST_PAUSE_S + 1e-6


def test_deaths_of_workers_that_did_nothing_alone_suspect_no_row():
    blame = Blame()
    for n in range(50):
        blame.record_other_death()
        blame.record_block_death(1, 0, 10, 100.0 + n)
    assert not blame._suspicions
    assert blame.is_suspect(1, 9, 12, 150.0)  # its block is computed row by row
    assert not blame.is_suspect(1, 10, 12, 150.0) and not blame.is_suspect(2, 0, 10, 150.0)
    assert not blame.is_suspect(1, 0, 10, 150.0 + RECENT_S)


def test_an_attempt_that_began_before_the_end_of_the_pause_proves_nothing():
    blame = Blame()
    suspicion = blame.record_death_alone(1, ROW, ROW, (100.0, 100.0), 100.001)
    for n in range(20):
        begun = 100.001 + n * 1e-4
        assert blame.record_death_alone(1, ROW, ROW, (begun, begun), begun + 1e-4) is suspicion
    assert len(suspicion.deaths) == 1 and suspicion.find_killer() is None


def test_an_element_that_was_computed_once_is_acquitted():
    blame, begun = Blame(), 100.0
    for _ in range(20):
        suspicion = blame.record_death_alone(1, ROW, ROW, (begun, begun), begun + 0.001)
        assert suspicion.find_killer() is None and len(suspicion.deaths) == 1
        blame.acquit(1, 0, 10)
        begun = suspicion.not_before
    assert not blame.is_suspect(1, *ROW, begun)


def test_deaths_at_several_elements_of_a_row_name_the_row():
    blame, begun = Blame(), 100.0
    for n in range(40):
        place = (70 + n % 2, 71 + n % 2)
        suspicion = blame.record_death_alone(1, (70, 80), place, (begun, begun), begun + 0.001)
        if (killer := suspicion.find_killer()) is not None:
            assert killer[:2] == (70, 80)
            return
        begun = suspicion.not_before
    raise AssertionError("nothing was proven")


def test_the_error_says_how_it_was_proven():
    suspicion = attempt_until_decided(random.Random(3), 0.002, 0.0, is_killer=True)
    assert suspicion is not None
    killer = suspicion.find_killer()
    assert killer is not None
    says = suspicion.describe(killer[2], "worker processes")
    assert says.startswith(f"killed {killer[2]} worker processes one after the other. Each of them died while it did")
    assert "no other worker died meanwhile, so no kill from outside is likely to be the cause" in says

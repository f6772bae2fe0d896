"""How a run of the benchmarks is judged: missed targets, and rows that have become slower."""

from __future__ import annotations

import pytest

from benchmarks.measure import Row, Settings
from benchmarks.run import exit_code, slower_than_kept


def row(ratio, *, target=None, contender="bushel", workload="W1a"):
    return Row(workload, contender, 1.0, 1.0 / ratio, ratio, ratio, ratio, ratio, target)


@pytest.mark.parametrize(("ratio", "code"), [(30.0, 0), (29.9, 1)])
def test_a_missed_target_ends_with_1(ratio, code):
    assert exit_code([row(50.0), row(ratio, target=30)], [], Settings()) == code
    assert exit_code([row(ratio, target=30)], [], Settings(quick=True)) == 0


def test_a_row_that_became_slower_is_named():
    kept = {("W1a", "bushel"): 40.0, ("W1a", "floor: plain numpy"): 60.0}
    rows = [row(31.0), row(10.0, contender="floor: plain numpy"), row(1.0, workload="new")]
    assert slower_than_kept(rows, kept, 0.25) == []
    (sentence,) = slower_than_kept(rows, kept, 0.2)
    assert sentence == "W1a, bushel: 31.00 x Grain, and 40.00 x in the kept table; the band is 20%."
    assert exit_code(rows, [sentence], Settings()) == 1

"""How a run of the benchmarks is judged: missed targets, failures, rows that have become slower; README's table."""

from __future__ import annotations

import json

import pytest

from benchmarks.measure import OutputsDiffer, Row, Settings
from benchmarks.readme_table import END, KEPT, README, START, make_table
from benchmarks.run import exit_code, report, run_workloads, slower_than_kept


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


def fail(settings):
    raise OSError("The disk is full.")


def differ(settings):
    raise OutputsDiffer("W2, element 3: other values.")


def test_a_workload_that_fails_does_not_hide_the_others():
    workloads = {"w1a": fail, "w1b": lambda settings: [row(7.0)], "w2": differ, "ra": lambda settings: [row(2.0)]}
    rows, failures, seconds = run_workloads(workloads, Settings(quick=True))
    assert [each.ratio for each in rows] == [7.0, 2.0]
    assert failures == [
        "w1a: OSError: The disk is full.",
        "w2: Grain and Bushel do not give the same output, so no times are shown. W2, element 3: other values.",
    ]
    assert list(seconds) == list(workloads)
    assert exit_code(rows, [], Settings(quick=True), failures) == 1
    assert "FAILED: w1a: OSError: The disk is full." in report(rows, Settings(), {}, failures).splitlines()


def test_the_table_of_the_readme_is_that_of_the_kept_results():
    table = make_table(json.loads(KEPT.read_text(encoding="utf-8"))["rows"])
    assert START + table + END in README.read_text(encoding="utf-8")
    assert not [line for line in table.splitlines()[2:] if line.endswith("| - |")]

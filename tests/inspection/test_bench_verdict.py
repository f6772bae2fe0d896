"""The verdict of `bushel bench` names the row with the largest share of its own table, wherever the bottleneck is."""

import re
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import bushel
from bushel._src.engine.measurements import DELIVERY, Stage
from bushel._src.engine.report import Report
from bushel._src.inspection.benchmark import Run, judge_runs, measure_pipeline


class SlowSource:
    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, index: int) -> int:
        time.sleep(0.002)
        return index


def slow(x: Any) -> Any:
    time.sleep(0.002)
    return x


def quick(x: Any) -> Any:
    return x


def read_table(text: str) -> dict[str, int]:
    """The share of each row of the table that says where the time goes."""
    rows = re.findall(r"^(\S.*?)  +(?:consumer|workers|threads|thread)  .* s +(\d+) %", text, re.MULTILINE)
    return {call: int(share) for call, share in rows}


PLANTED = {
    "a slow source": (lambda: bushel.MapDataset.source(SlowSource()).map(quick), "SlowSource"),
    "a slow map": (lambda: bushel.MapDataset.range(10_000).map(quick).map(slow), "map(slow)"),
    "a slow stage of the consumer": (
        lambda: bushel.MapDataset.range(10_000).map(quick).to_iter_dataset().batch(4).map(slow),
        "map(slow)",
    ),
    "small work": (lambda: bushel.MapDataset.range(10**7).map(quick).batch(16), ""),
}


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("planted", PLANTED)
def test_the_verdict_names_the_row_with_the_largest_share(planted, workers):
    make, name = PLANTED[planted]
    text = str(measure_pipeline(make(), planted, seconds=0.2, workers=[workers], progress=False))
    table, verdict = read_table(text), text.splitlines()[-1]
    assert table, text
    named, share = re.fullmatch(r"(.*?) takes (\d+) % of the time; .*", verdict).groups()  # type: ignore[union-attr]
    assert name in named, text
    assert table[named] == int(share) == max(table.values()), text


stages = st.lists(
    st.tuples(st.sampled_from(["consumer", "workers", "threads"]), st.floats(0, 100)), min_size=1, max_size=6
)


@given(stages=stages, workers=st.integers(0, 3), wait=st.floats(0, 10))
def test_one_computation_feeds_the_table_and_the_verdict(stages, workers, wait):
    made = tuple(
        Stage(number, DELIVERY if number == 3 else f"map(f{number})", where, 10, seconds, 0)
        for number, (where, seconds) in enumerate(stages)
    )
    report = Report(True, made, (), 10, 10.0, wait)
    run = Run(workers, 10, 1.0, 10.0, 1.0, 0.1, False)
    named, share = re.fullmatch(r"(.*?) takes (\d+) % .*", judge_runs([run], run, report)).groups()  # type: ignore[union-attr]
    rows = {row[0]: row[4] for row in report._make_rows()}
    assert rows[named] == f"{share} %"
    assert int(share) == max(int(row.removesuffix(" %")) for row in rows.values())


def start_slowly(worker, workers):
    time.sleep(0.5)


def test_the_start_of_workers_does_not_use_up_the_measured_time():
    """A verdict of one element would say which worker starts, and not which stage is slow."""
    options = bushel.MultiprocessingOptions(num_workers=1)
    stream = bushel.MapDataset.range(10**6).map(quick).to_iter_dataset().mp_prefetch(options, start_slowly)
    text = str(measure_pipeline(stream, "a slow start", seconds=0.05, workers=[1], progress=False))
    counted = re.search(r"^([\d,]+) elements in ", text, re.MULTILINE)
    assert counted is not None and int(counted[1].replace(",", "")) > 1, text

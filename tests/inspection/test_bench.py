"""`bushel bench`: what is measured, the rule for the number of workers, and the profile that the viewer opens."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import bushel
from bushel._src import cli
from bushel._src.inspection.benchmark import ENOUGH, Run, _with_workers, choose_best, choose_numbers, measure_pipeline
from bushel._src.view.attachment import Attachment

PIPELINE = """
import bushel, numpy as np
def decode(x):
    return {"x": np.full(100, x), "sum": sum(range(1000))}
ds = bushel.MapDataset.range(10**6).map(decode).batch(4)
few = bushel.MapDataset.range(5)
none = bushel.MapDataset.range(0)
"""


@pytest.fixture
def pipeline(tmp_path, monkeypatch):
    (tmp_path / "to_measure.py").write_text(PIPELINE)
    monkeypatch.chdir(tmp_path)
    return "to_measure.py"


def run(workers, rate):
    return Run(workers, 1, 1.0, rate, 0.0, 0.0, False)


@given(st.dictionaries(st.integers(0, 64), st.floats(0.1, 1e6), min_size=1))
def test_the_best_number_of_workers_is_the_smallest_that_is_nearly_the_fastest(rates):
    best = choose_best([run(workers, rate) for workers, rate in rates.items()])
    fastest = max(rates.values())
    assert best.elements_per_s >= ENOUGH * fastest
    assert all(rate < ENOUGH * fastest for workers, rate in rates.items() if workers < best.workers)


@given(st.integers(1, 300))
def test_the_numbers_that_are_tried(most):
    numbers = choose_numbers(most)
    assert numbers[0] == 0 and numbers[-1] == most and numbers == sorted(set(numbers))


def test_the_command_bench_prints_rates_and_writes_a_profile(pipeline, tmp_path, capsys):
    words = ["bench", f"{pipeline}:ds", "--seconds", "0.2", "--workers", "0,1", "--profile", "profile.json"]
    assert cli.main(words) == 0
    text = capsys.readouterr().out
    assert "0 (in the consumer)" in text and "at least 95% of the highest rate" in text and "map(decode)" in text
    assert "takes" in text.splitlines()[-1]
    profile = Attachment(tmp_path / "profile.json").read()
    assert profile["finished"] and profile["report"]["elements"] > 0 and profile["report"]["timed"]
    assert profile["verdict"]["sentence"] == text.splitlines()[-1]
    assert len(profile["series"]["at_s"]) >= 2
    assert cli.main([*words[:-2], "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["workers"] for each in found["runs"]] == [0, 1]
    assert all(each["elements_per_s"] > 0 and each["bytes_per_s"] > 0 for each in found["runs"])
    assert found["best"]["workers"] in (0, 1) and "smallest number of workers" in found["best"]["rule"]


def test_the_number_of_workers_is_changed_where_the_pipeline_has_them():
    options = bushel.MultiprocessingOptions(num_workers=7, per_worker_buffer_size=3)
    ds = bushel.MapDataset.range(9).to_iter_dataset().mp_prefetch(options).batch(2)
    changed = repr(_with_workers(ds, 2))
    assert "mp_prefetch(num_workers=2)" in changed and changed.count("mp_prefetch") == 1
    assert changed.index("mp_prefetch") < changed.index("batch")
    assert repr(_with_workers(bushel.MapDataset.range(9).to_iter_dataset(), 2)).endswith("mp_prefetch(num_workers=2)")


def test_what_workers_computed_ahead_does_not_count_as_quick():
    """The last elements of a short data set are there at once: the rate is of the whole run."""
    (measured,) = measure_pipeline(bushel.MapDataset.range(500), "x", seconds=5, workers=[1], progress=False).runs
    assert measured.ended and measured.elements == 500 and measured.seconds >= measured.first_element_s > 0


def test_short_and_empty_pipelines(pipeline, capsys):
    assert cli.main(["bench", f"{pipeline}:few", "--seconds", "0.1", "--workers", "0"]) == 0
    assert "5 (all)" in capsys.readouterr().out
    assert cli.main(["bench", f"{pipeline}:none", "--seconds", "0.1", "--workers", "0"]) == 1
    assert "has no elements" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--workers", "a"], "--workers takes numbers"),
        (["--workers=-1"], "workers"),
        (["--seconds", "0"], "seconds must be positive"),
    ],
)
def test_wrong_options_of_bench_are_an_error_that_names_them(words, sentence, pipeline, capsys):
    assert cli.main(["bench", f"{pipeline}:ds", *words]) == 1
    assert sentence in capsys.readouterr().err


def test_progress_is_reported():
    seen = []
    measure_pipeline(bushel.MapDataset.range(5), "x", seconds=0.01, workers=[0], progress=lambda *f: seen.append(f))
    assert seen == [(0, 3), (1, 3), (2, 3), (3, 3)]

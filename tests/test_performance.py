"""Settings from a few samples: Grain's numbers where the two agree, and what Bushel knows besides."""

from __future__ import annotations

import logging
import sys
import time
from typing import Any

import cloudpickle
import grain
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bushel
from bushel._src.engine.processes import executor as processes
from bushel.experimental import PerformanceConfig, pick_performance_config

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers need not import the tests


class Files:
    """Records that are not in memory, and take their time."""

    def __init__(self, sizes: list[int]):
        self._sizes = sizes

    def __len__(self) -> int:
        return len(self._sizes)

    def __getitem__(self, index: int) -> dict[str, Any]:
        time.sleep(50e-6)
        return {"image": np.zeros(self._sizes[index], np.uint8), "label": (1, "one"), "name": b"abc"}


def stream(library: Any, sizes: list[int], batch: int | None, parts: int) -> Any:
    def one() -> Any:
        return library.MapDataset.source(Files(sizes)).to_iter_dataset()

    ds = one() if parts == 1 else library.IterDataset.mix([one() for _ in range(parts)])
    return ds if batch is None else ds.batch(batch, batch_fn=list)


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 200_000), min_size=20, max_size=20),
    batch=st.none() | st.integers(1, 3),
    parts=st.integers(1, 2),
    budget=st.integers(1, 4),
    most_workers=st.none() | st.integers(1, 30),
    most_ahead=st.none() | st.integers(16, 50),
    samples=st.integers(1, 6),
)
def test_the_numbers_are_grains(sizes, batch, parts, budget, most_workers, most_ahead, samples):
    def picked(library: Any) -> tuple[int, int, int]:
        config = library.experimental.pick_performance_config(
            stream(library, sizes, batch, parts),
            ram_budget_mb=budget,
            max_workers=most_workers,
            max_buffer_size=most_ahead,
            samples_to_check=samples,
        )
        read = config.read_options
        return config.multiprocessing_options.num_workers, read.prefetch_buffer_size, read.num_threads

    ours, theirs = picked(bushel), picked(grain)
    assert ours[:2] == theirs[:2]
    assert ours[2] == min(theirs[2], ours[1])  # no more threads than elements they may hold


def picked(ds: Any, **changes: Any) -> PerformanceConfig:
    arguments = {"ram_budget_mb": 64, "max_workers": 4, "max_buffer_size": None} | changes
    return pick_performance_config(ds, **arguments)


def test_elements_that_cost_nothing_get_no_workers():
    quick = bushel.MapDataset.range(1000).to_iter_dataset()
    assert picked(quick).multiprocessing_options.num_workers == 0
    slow = quick.map(lambda x: time.sleep(0.001) or x)
    assert picked(slow).multiprocessing_options.num_workers == 4


def test_the_budget_bounds_the_shared_memory():
    ds = stream(bushel, [10] * 20, None, 1)
    assert picked(ds).multiprocessing_options == bushel.MultiprocessingOptions(num_workers=4, budget_bytes=64 << 20)
    unbounded = picked(ds, ram_budget_mb=None)
    assert unbounded.multiprocessing_options == bushel.MultiprocessingOptions(num_workers=4)
    assert unbounded.read_options == bushel.ReadOptions(16, 1000)


def test_threads_read_only_where_records_are_not_in_memory():
    assert picked(bushel.MapDataset.source([1, 2, 3]).to_iter_dataset()).read_options.num_threads == 0
    assert picked(stream(bushel, [10] * 20, None, 1)).read_options.num_threads == 16


def test_no_more_workers_than_elements_fit_the_budget():
    ds = bushel.MapDataset.source(Files([1 << 20] * 8)).to_iter_dataset()
    assert picked(ds, ram_budget_mb=3.5).multiprocessing_options.num_workers == 3
    assert picked(ds, ram_budget_mb=0.5).multiprocessing_options.num_workers == 0
    assert picked(ds, ram_budget_mb=0.5).read_options == bushel.ReadOptions(0, 0)


def test_a_few_samples_will_do_and_none_is_warned_of(caplog):
    ds = bushel.MapDataset.source(Files([1 << 20] * 2)).to_iter_dataset()
    assert picked(ds, ram_budget_mb=3.5).multiprocessing_options.num_workers == 3
    with caplog.at_level(logging.WARNING):
        nothing = picked(bushel.MapDataset.range(3).filter(lambda x: False).to_iter_dataset())
    assert nothing.multiprocessing_options.num_workers == 4
    assert "There is no element to measure" in caplog.text


def test_samples_are_computed_without_workers(monkeypatch):
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a pool was started")

    ds = stream(bushel, [10] * 20, None, 1).mp_prefetch()
    monkeypatch.setattr(processes.ProcessSupervisor, "__init__", refuse)
    assert picked(ds.map(lambda x: x)).multiprocessing_options.num_workers == 4
    with pytest.raises(AssertionError, match="a pool was started"):
        next(iter(ds))


def test_what_is_picked_runs_and_changes_nothing():
    ds = bushel.MapDataset.source(Files([5] * 20)).map(lambda x: len(x["image"]))
    config = picked(ds.to_iter_dataset())
    stream = ds.to_iter_dataset(config.read_options).mp_prefetch(config.multiprocessing_options)
    with iter(stream) as it:
        assert list(it) == [5] * 20


BAD = [
    ({"ram_budget_mb": 0}, "ram_budget_mb must be positive, or None for no limit; got 0."),
    ({"ram_budget_mb": float("nan")}, "ram_budget_mb must be positive"),
    ({"max_workers": -1}, "max_workers must be non-negative, got -1."),
    ({"max_buffer_size": -2}, "max_buffer_size must be non-negative, got -2."),
    ({"samples_to_check": 0}, "samples_to_check must be positive, but got 0."),
]


@pytest.mark.parametrize(("changes", "sentence"), BAD)
def test_bad_arguments_are_refused_in_a_sentence(changes, sentence):
    with pytest.raises(ValueError) as raised:
        picked(bushel.MapDataset.range(10).to_iter_dataset(), **changes)
    assert sentence in str(raised.value)
    with pytest.raises(TypeError, match="ram_budget_mb must be a number, got 'x' of type str"):
        picked(bushel.MapDataset.range(10).to_iter_dataset(), ram_budget_mb="x")
    with pytest.raises(TypeError, match=r"takes an IterDataset, got .*: use to_iter_dataset"):
        picked(bushel.MapDataset.range(10))

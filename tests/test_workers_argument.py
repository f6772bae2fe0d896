"""How workers are asked for: a number, options, or nothing, in the same words everywhere."""

from __future__ import annotations

import dataclasses
from typing import get_type_hints

import numpy as np
import pytest

import bushel
from bushel import DatasetOptions, MapDataset, MultiprocessingOptions, RayOptions
from bushel._src.base.options import OptionValues, read_workers
from bushel.trajectory import TrajectoryDataset


def stream():
    return MapDataset.range(20).map(lambda x: x * x).to_iter_dataset()


SQUARES = [x * x for x in range(20)]
WAYS = {
    "a number": lambda ds: ds.mp_prefetch(2),
    "a number of NumPy": lambda ds: ds.mp_prefetch(np.int64(2)),
    "num_workers": lambda ds: ds.mp_prefetch(num_workers=2),
    "Grain's options": lambda ds: ds.mp_prefetch(MultiprocessingOptions(num_workers=2)),
}


@pytest.mark.parametrize("way", WAYS)
def test_workers_are_asked_for_in_each_way(way):
    with iter(WAYS[way](stream())) as it:
        found = [next(it)]
        (pool,) = it.report().pools
        found += it
    assert pool.size == 2 and found == SQUARES


def test_zero_workers_compute_in_the_consumer():
    for ds in (stream().mp_prefetch(0), stream().mp_prefetch(num_workers=0)):
        with iter(ds) as it:
            assert list(it) == SQUARES
            assert not it.report().pools


def test_two_answers_are_refused():
    with pytest.raises(TypeError, match=r"mp_prefetch takes options or num_workers, not both; got 2 and 3\."):
        stream().mp_prefetch(2, num_workers=3)


def test_the_argument_workers_takes_numbers_and_options():
    options, actors = MultiprocessingOptions(3), RayOptions(2)
    assert read_workers(None) is None
    assert read_workers(3) == options and read_workers(np.int32(3)) == options
    assert read_workers(options) is options and read_workers(actors) is actors
    for wrong in (True, "4", 1.5):
        with pytest.raises(TypeError, match=r"workers must be a number of worker processes, bushel\.Multiprocessing"):
            read_workers(wrong)  # type: ignore[arg-type]
    assert set(bushel.WorkerOptions.__args__) == {MultiprocessingOptions, RayOptions}


def test_columns_and_saved_elements_are_computed_by_workers(tmp_path):
    ds = MapDataset.range(20)
    assert ds.column(lambda x: x * x, workers=2).values.tolist() == SQUARES
    files = ds.map(lambda x: {"x": x}).save(tmp_path / "two", format="parquet", workers=2)
    here = ds.map(lambda x: {"x": x}).save(tmp_path / "here", format="parquet", workers=MultiprocessingOptions(0))
    assert len(files.files) == len(here.files) == 1


def test_without_workers_an_iterator_of_trajectories_runs_here():
    frames = TrajectoryDataset.from_trajectories([{"action": np.zeros((3, 2))}]).flatten()
    with frames.iterator() as it:
        next(it)
        assert not it.report().pools
    with frames.iterator(workers=1) as it:
        next(it)
        assert len(it.report().pools) == 1


def test_with_options_has_the_fields_of_dataset_options():
    fields = {field.name for field in dataclasses.fields(DatasetOptions) if field.init}
    assert set(get_type_hints(OptionValues)) == fields

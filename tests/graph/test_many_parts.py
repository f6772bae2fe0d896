"""Mixtures of many data sets: the parts are planned and read together, and give what each part gives alone."""

from __future__ import annotations

import functools
import json
from typing import Any

import cloudpickle
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bushel
from bushel import MapDataset
from bushel._src.base import blocks
from bushel._src.graph import many_plans
from bushel.sources import ArrayDataSource
from bushel.testing import same


def double(record):
    return {"x": record["x"] * 2}


def drop_odd(record):
    return bool(record["x"][0] % 2 == 0)


def arrays(count: int, dtype: Any = np.int64) -> list[MapDataset]:
    sizes = [3 + 7 * number % 50 for number in range(count)]
    return [
        MapDataset.source(ArrayDataSource({"x": np.arange(2 * n, dtype=dtype).reshape(n, 2) + 1000 * k}))
        for k, n in enumerate(sizes)
    ]


def build_parts(kind: str) -> list[MapDataset]:
    parts = arrays(40)
    if kind == "shuffled":
        return [part.seed(k).shuffle().repeat() for k, part in enumerate(parts)]
    if kind == "mapped":
        return [part.shuffle(k).map(double).filter(drop_odd) for k, part in enumerate(parts)]
    if kind == "of two kinds":
        return [part.shuffle(k) if k % 2 else part.map(double) for k, part in enumerate(parts)]
    if kind == "of two dtypes":
        return [part.shuffle(k) for k, part in enumerate(arrays(20) + arrays(20, np.float32))]
    if kind == "functions of their own":
        return [part.map(lambda record, k=k: {"x": record["x"] + k}) for k, part in enumerate(parts)]
    if kind == "vectorized":
        return [part.shuffle(k).map(double, vectorized=True) for k, part in enumerate(parts)]
    if kind == "random":
        return [part.random_map(lambda x, rng: {"x": x["x"] + rng.integers(5)}, seed=k) for k, part in enumerate(parts)]
    return parts


@pytest.mark.parametrize(
    "kind",
    ["plain", "shuffled", "mapped", "of two kinds", "of two dtypes", "functions of their own", "vectorized", "random"],
)
def test_elements_of_many_parts_read_together_are_those_read_alone(kind):
    parts = build_parts(kind)
    weights = [1 + number % 5 for number in range(len(parts))]
    for mixture in (MapDataset.mix(parts, weights), MapDataset.mix(parts, weights, exact=True)):
        positions = np.random.default_rng(0).permutation(400)
        together = mixture.get(positions)
        alone = [mixture[int(position)] for position in positions]
        assert same(together, alone)
        sent = cloudpickle.loads(cloudpickle.dumps(mixture))
        assert same(sent.get(positions), alone)


def test_an_error_among_many_parts_names_the_part_and_its_element():
    def fail(record):
        if record["x"][0] == 3004:
            raise ValueError("this one")
        return record

    parts = [part.shuffle(k).map(fail) for k, part in enumerate(arrays(40))]
    mixture = MapDataset.concatenate(parts)
    with pytest.raises(ValueError, match="this one") as caught:
        mixture.get(np.arange(len(mixture)))
    (note,) = [note for note in caught.value.__notes__ if "failed at" in note]
    number = next(int(k) for k in range(len(parts[3])) if parts[3].parents[0][k]["x"][0] == 3004)
    assert f"failed at its element {number}, made of record 2 of ArrayDataSource" in note


# ---------------------------------------------------------------------------------------------------------------------
# The law: whatever the parts do, elements that are read together are those that each part gives alone.


class OneByOne:
    """A source that gives one record at a time, and keeps what it gives."""

    def __init__(self, records: list[Any]):
        self.records = records

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> Any:
        return self.records[index]


def write_into(record):
    record["x"] += 1
    return record


def add(record, k):
    return {"x": record["x"] + k}


def add_index(index, record):
    return {"x": record["x"] + index}


def add_random(record, rng):
    return {"x": record["x"] + rng.integers(100)}


OPERATIONS = {
    "double": lambda ds, k: ds.map(double),
    "write": lambda ds, k: ds.map(write_into),
    "add": lambda ds, k: ds.map(functools.partial(add, k=k)),
    "drop": lambda ds, k: ds.filter(drop_odd),
    "index": lambda ds, k: ds.map_with_index(add_index),
    "random": lambda ds, k: ds.random_map(add_random, seed=k % 3),
    "vectorized": lambda ds, k: ds.map(double, vectorized=True),
    "vectorized of its own": lambda ds, k: ds.map(functools.partial(add, k=k), vectorized=True),
    "shuffle": lambda ds, k: ds.shuffle(k),
    "slice": lambda ds, k: ds[k % 2 :: 1 + k % 3] if len(ds) > 3 else ds,
    "window": lambda ds, k: ds.window_shuffle(2, seed=k),
    "repeat": lambda ds, k: ds.repeat(2, reseed_each_epoch=bool(k % 2)),
}
SOURCES = {
    "arrays": lambda array: ArrayDataSource({"x": array}),
    "list": lambda array: [{"x": row} for row in array],
    "one by one": lambda array: OneByOne([{"x": row} for row in array]),
}


def make_part(number: int, source: str, operations: list[str], dtype: type) -> MapDataset:
    count = 4 + 7 * number % 11
    array = np.arange(2 * count, dtype=dtype).reshape(count, 2) + 1000 * number
    ds = MapDataset.source(SOURCES[source](array))
    for operation in operations:
        ds = OPERATIONS[operation](ds, number)
    return ds


chains = st.lists(st.sampled_from(sorted(OPERATIONS)), max_size=4)
kinds = st.tuples(st.sampled_from(sorted(SOURCES)), chains, st.sampled_from([np.int64, np.float32]))


@settings(max_examples=60, deadline=None)
@given(alike=st.lists(kinds, min_size=1, max_size=3), pattern=st.integers(0, 1 << 30), seed=st.integers(0, 1000))
def test_many_parts_of_any_kind_give_what_each_gives_alone(alike, pattern, seed):
    rng = np.random.default_rng(pattern)
    parts = [make_part(number, *alike[rng.integers(len(alike))]) for number in range(24)]
    mixture = MapDataset.mix(parts, [1 + number % 3 for number in range(24)])
    positions = np.random.default_rng(seed).integers(0, 3 * len(mixture), 60)
    which, indices = mixture._node.choose(positions)
    alone = [parts[part][index] for part, index in zip(which.tolist(), indices.tolist())]
    assert same(mixture.get(positions), alone)
    # No function has written into what a source keeps, also where nobody else would write into the elements.
    for _ in range(2):
        assert same(list(blocks.rows_of(mixture._node.plan(positions).look(0, 60))), alone)


@settings(max_examples=15, deadline=None)
@given(alike=st.lists(kinds, min_size=1, max_size=2), stop=st.integers(0, 30))
def test_a_stream_of_many_parts_goes_on_where_it_stopped(alike, stop):
    parts = [make_part(number, *alike[number % len(alike)]) for number in range(20)]
    stream = MapDataset.mix(parts).to_iter_dataset(bushel.ReadOptions(num_threads=0, prefetch_buffer_size=0))
    whole = list(stream)
    iterator = iter(stream)
    begun = [next(iterator) for _ in range(min(stop, len(whole)))]
    state = json.loads(json.dumps(iterator.get_state()))
    fresh = iter(stream)
    fresh.set_state(state)
    assert same(begun + list(fresh), whole)


def test_parts_with_one_function_are_read_and_called_together():
    called = []

    def note(record):
        called.append(record["x"][0] // 1000)
        return record

    mixture = MapDataset.mix([part.shuffle(k).map(note) for k, part in enumerate(arrays(40))])
    mixture.get(np.arange(40))
    assert called == list(range(40))  # in the order of the rows
    plan = many_plans.plan_many(mixture._node.parents)(np.arange(40), np.zeros(40, dtype=np.int64))
    assert plan.joined.operation_of.tolist() == [0] * 40


def test_an_error_of_a_vectorized_function_names_the_elements_of_all_parts_that_it_was_given():
    def fail(columns):
        if (columns["x"][:, 0] == 3004).any():
            raise ValueError("this one")
        return columns

    parts = [part.map(fail, vectorized=True) for part in arrays(40)]
    mixture = MapDataset.concatenate(parts)
    starts = np.cumsum([0, *map(len, parts[:-1])])
    with pytest.raises(ValueError, match="this one") as caught:
        mixture.get(starts + [2 * (part == 3) for part in range(40)])
    (note,) = [note for note in caught.value.__notes__ if "failed at" in note]
    assert "failed at one of its elements 0, 0, 0, 2, 0, 0, 0, 0, ..." in note
    assert "record 2 of ArrayDataSource" in note


def test_an_error_of_a_source_among_many_names_its_record():
    class Broken(OneByOne):
        def __getitem__(self, index):
            if index == 2:
                raise OSError("damaged")
            return super().__getitem__(index)

        def __repr__(self):
            return "Broken()"

    sources = [OneByOne([k, k, k]) for k in range(30)]
    sources[20] = Broken([20, 20, 20])
    mixture = MapDataset.concatenate([MapDataset.source(source) for source in sources])
    with pytest.raises(OSError, match="damaged") as caught:
        mixture.get(np.arange(90))
    assert any("reading record 2 of Broken() failed" in note for note in caught.value.__notes__)


def test_positions_past_64_bits_are_planned_part_by_part():
    parts = [MapDataset.range(1 << 40).shuffle(k)[k : k + 2].map(lambda x: x + 1) for k in range(20)]
    mixture = MapDataset.mix(parts)
    positions = 20 * (1 << 30) + np.arange(40)  # epochs of 2 elements: there the parents are past 2**64
    assert mixture.get(positions) == [mixture[int(position)] for position in positions]

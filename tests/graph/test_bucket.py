"""Batches of like lengths: every element once per epoch, one shape per bucket."""

from __future__ import annotations

import sys

import cloudpickle
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bushel
from bushel import MapDataset

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers need not import the tests


def sequences(lengths):
    return [{"id": n, "tokens": np.full(length, n + 1)} for n, length in enumerate(lengths)]


def size_of(x):
    return len(x["tokens"])


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 16), min_size=1, max_size=40),
    sizes=st.tuples(*[st.integers(1, 5)] * 3),
    seed=st.integers(0, 2**32 - 1),
    number=st.integers(-1, 5),
    drop=st.booleans(),
    shuffled=st.booleans(),
)
def test_every_element_once_in_a_batch_of_its_bucket(lengths, sizes, seed, number, drop, shuffled):
    bounds = [4, 9, 16]
    ds = MapDataset.source(sequences(lengths))
    column = ds.column(size_of)
    ordered = ds.shuffle(3) if shuffled else ds
    batches = ordered.bucket(column, bounds, sizes, seed=seed, drop_remainder=drop)
    counts = np.bincount(np.searchsorted(bounds, lengths), minlength=3).tolist()
    assert len(batches) == sum(n // s if drop else -(-n // s) for n, s in zip(counts, sizes, strict=True))
    found = [batches[i] for i in range(number * len(batches), (number + 1) * len(batches))]
    ids = [int(n) for batch in found for n in batch["id"]]
    assert len(set(ids)) == len(ids) and (drop or sorted(ids) == list(range(len(lengths))))
    for batch in found:
        bucket = bounds.index(batch["tokens"].shape[1])
        assert len(batch["id"]) <= sizes[bucket] and (not drop or len(batch["id"]) == sizes[bucket])
        for n, row in zip(batch["id"].tolist(), batch["tokens"], strict=True):
            assert row.tolist() == [n + 1] * lengths[n] + [0] * (bounds[bucket] - lengths[n])
            assert bucket == np.searchsorted(bounds, lengths[n])


def test_batches_and_their_order_differ_from_epoch_to_epoch():
    ds = MapDataset.source(sequences([3] * 60)).shuffle(1)
    batches = ds.bucket(ds.column(size_of), [4], 4, seed=2)
    first, second = ([batches[i]["id"].tolist() for i in range(15 * e, 15 * (e + 1))] for e in (0, 1))
    assert sorted(map(sorted, first)) != sorted(map(sorted, second))


def test_buckets_resume_anywhere_and_are_the_same_on_any_executor():
    ds = MapDataset.source(sequences((np.arange(50) * 7 % 13).tolist())).seed(4).shuffle()
    pipeline = ds.bucket(ds.column(size_of), [6, 12], [4, 2]).repeat(2)
    bushel.testing.check_resumes_anywhere(pipeline, max_elements=12)
    bushel.testing.check_same_for_any_executor(pipeline)
    with iter(pipeline.to_iter_dataset().mp_prefetch(bushel.MultiprocessingOptions(num_workers=2))) as it:
        assert bushel.testing.same(list(it), list(pipeline))
    assert {record.record for record in pipeline.origin(0).records} == set(pipeline[0]["id"].tolist())


def test_a_batch_fn_that_writes_does_not_reach_the_source():
    data = [np.arange(length) for length in (1, 3, 2, 5)]

    def write(rows):
        for row in rows:
            row += 100
        return [row.tolist() for row in rows]

    ds = MapDataset.source(data)
    batches = list(ds.bucket(ds.column(len), [3, 6], 2, seed=1, batch_fn=write))
    assert sorted(len(row) for batch in batches for row in batch) == [1, 2, 3, 5]
    assert [row.tolist() for row in data] == [[0], [0, 1, 2], [0, 1], [0, 1, 2, 3, 4]]


def test_what_is_filled_and_with_what():
    ds = MapDataset.source([{"tokens": np.ones(n, int), "pair": np.array([n, n])} for n in (1, 2)])
    (batch,) = ds.bucket([1, 2], [3], 2, seed=0, features=["tokens"], padding=-1)
    assert batch["tokens"].tolist() == [[1, -1, -1], [1, 1, -1]] and batch["pair"].shape == (2, 2)
    (listed,) = ds.bucket([1, 2], [3], 2, seed=0, batch_fn=len)
    assert listed == 2


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (lambda ds: ds.bucket([3, 9], [4, 8], 2, seed=0), "has length 9, above the last boundary 8"),
        (lambda ds: ds.bucket([3, 9], [8, 4], 2, seed=0), r"must grow, and there must be one, got \[8, 4\]"),
        (lambda ds: ds.bucket([3, 9], [], 2, seed=0), "there must be one"),
        (lambda ds: ds.bucket([3, 9], [9], [1, 2], seed=0), "1 buckets need 1 batch sizes, got 2"),
        (lambda ds: ds.bucket([3, 9], [9], 0, seed=0), "A batch size must be positive"),
        (lambda ds: ds.bucket([3, 9], [9], 2), "`bucket` requires a seed"),
        (lambda ds: ds.bucket([3.5, 9], [9], 2, seed=0), "`bucket` takes one whole number per element"),
        (lambda ds: ds.shuffle(1)[:1].bucket(ds.column(size_of), [9], 2, seed=0), "another number of batches"),
        (
            lambda ds: ds.bucket([1, 1], [2], 2, seed=0)[0],
            "An array with 9 entries is in the bucket of lengths up to 2",
        ),
    ],
)
def test_what_is_wrong_is_told(wrong, sentence):
    with pytest.raises((TypeError, ValueError), match=sentence):
        wrong(MapDataset.source(sequences([3, 9])))


def test_rows_of_several_dtypes_keep_their_values_or_are_refused():
    ds = MapDataset.source([np.array([1, 2]), np.array([0.5])])
    assert ds.bucket(ds.column(len), [4], 2, seed=0)[0].tolist() in (
        [[1, 2, 0, 0], [0.5, 0, 0, 0]],
        [[0.5, 0, 0, 0], [1, 2, 0, 0]],
    )
    ds = MapDataset.source([np.array([1, 2]), np.array([2**63 + 1], np.uint64)])
    with pytest.raises(ValueError, match="become float64 in one batch, which changes values of element 1 of the batch"):
        ds.bucket(ds.column(len), [4], 2, seed=0)[0]

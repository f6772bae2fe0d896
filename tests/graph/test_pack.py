"""Packed rows by random access: equal to Grain's packers, no token lost or doubled, the same on every executor."""

from __future__ import annotations

import grain
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bushel
from bushel import MapDataset
from bushel.sources import RaggedDataSource


def sequences(lengths, dtype=np.int32):
    """Sequences in which every token is unlike all others, and none is zero."""
    ends = np.cumsum(lengths)
    return [np.arange(end - n + 1, end + 1, dtype=dtype) for n, end in zip(lengths, ends, strict=True)]


def ragged(lengths):
    values = np.arange(1, sum(lengths) + 1, dtype=np.int32)
    return RaggedDataSource({"tokens": values}, np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]))


def elements(lengths, *, two=False):
    if not two:
        return [{"tokens": tokens} for tokens in sequences(lengths)]
    return [{"a": tokens, "b": tokens[: n // 2 + 1] * 2} for n, tokens in zip(lengths, sequences(lengths), strict=True)]


lengths_of = st.lists(st.integers(1, 12), min_size=1, max_size=40)


def theirs(records, length, strategy, window, **options):
    ds = grain.MapDataset.source(records).to_iter_dataset(grain.ReadOptions(0, 0))
    if strategy == "concat_split":
        return list(grain.experimental.ConcatThenSplitIterDataset(ds, length_struct=length))
    kind = {"first_fit": "FirstFitPackIterDataset", "best_fit": "BestFitPackIterDataset"}[strategy]
    packer = getattr(grain.experimental, kind)
    return list(packer(ds, length_struct=length, num_packing_bins=window, shuffle_bins=False, **options))


def choose_window(strategy, window):
    """The arguments for a window. A strategy that fills one row at a time refuses it."""
    return {} if strategy == "concat_split" else {"window": window}


@settings(max_examples=60, deadline=None)
@given(
    lengths=lengths_of,
    strategy=st.sampled_from(["first_fit", "best_fit", "concat_split"]),
    window=st.integers(1, 6),
    most=st.none() | st.integers(1, 3),
)
def test_rows_are_those_of_grains_packers(lengths, strategy, window, most):
    if strategy == "concat_split":
        most = None
    records = elements(lengths)
    ds = MapDataset.source(records)
    column, options = ds.column(lambda x: len(x["tokens"])), choose_window(strategy, window)
    ours = ds.pack(column, {"tokens": 12}, strategy=strategy, max_sequences=most, **options)
    expected = theirs(records, {"tokens": 12}, strategy, window, **({"max_sequences_per_bin": most} if most else {}))
    assert bushel.testing.same(list(ours), expected)
    columnar = MapDataset.source(ragged(lengths))
    again = columnar.pack(ragged(lengths).lengths, {"tokens": 12}, strategy=strategy, max_sequences=most, **options)
    assert bushel.testing.same(list(again), expected)


@settings(max_examples=40, deadline=None)
@given(
    lengths=lengths_of, strategy=st.sampled_from(["first_fit", "best_fit", "concat_split"]), window=st.integers(1, 6)
)
def test_rows_with_several_features_are_grains(lengths, strategy, window):
    records = elements(lengths, two=True)
    ds = MapDataset.source(records)
    column = ds.column(lambda x: {"a": len(x["a"]), "b": len(x["b"])})
    length = {"a": 14, "b": 9}
    ours = ds.pack(column, length, strategy=strategy, **choose_window(strategy, window))
    assert bushel.testing.same(list(ours), theirs(records, length, strategy, window))
    by_name = ds.pack(
        {"a": column["a"], "b": column["b"]}, length, strategy=strategy, **choose_window(strategy, window)
    )
    assert bushel.testing.same(list(by_name), list(ours))


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 12), min_size=1, max_size=40),
    strategy=st.sampled_from(["first_fit", "best_fit", "concat_split"]),
    seed=st.none() | st.integers(0, 2**32 - 1),
    epoch=st.integers(-1, 4),
)
def test_no_token_is_lost_or_doubled(lengths, strategy, seed, epoch):
    ds = MapDataset.source(sequences(lengths))
    packed = ds.pack(ds.column(len), 12, strategy=strategy, seed=seed, **choose_window(strategy, 4))
    rows = [packed[index] for index in range(epoch * len(packed), (epoch + 1) * len(packed))]
    tokens = np.concatenate([row["tokens"] for row in rows])
    assert sorted(tokens[tokens > 0].tolist()) == list(range(1, sum(lengths) + 1))
    for row in rows:
        ids, positions, values = row["tokens_segment_ids"], row["tokens_positions"], row["tokens"]
        assert ((ids > 0) == (values > 0)).all() and not positions[ids == 0].any()
        for number in set(ids[ids > 0].tolist()):
            here = np.flatnonzero(ids == number)
            assert (np.diff(here) == 1).all() and positions[here].tolist() == list(range(len(here)))
            assert (np.diff(values[here]) == 1).all()
            if strategy != "concat_split":
                whole = next(s for s in sequences(lengths) if len(s) and s[0] == values[here][0])
                assert values[here].tolist() == whole.tolist()
    assert packed.efficiency["tokens"] == pytest.approx(sum(lengths) / (12 * len(packed)))


@pytest.mark.parametrize("strategy", ["first_fit", "best_fit", "concat_split"])
@pytest.mark.parametrize("make", [lambda n: MapDataset.source(elements(n)), lambda n: MapDataset.source(ragged(n))])
def test_rows_are_the_same_by_index_by_iteration_on_any_executor_and_after_resume(strategy, make):
    lengths = (np.arange(100) * 7 % 29 + 1).tolist()
    ds = make(lengths)
    packed = ds.pack(lengths, {"tokens": 32}, strategy=strategy, seed=3)
    pipeline = packed.shuffle(1).batch(4).repeat(2)
    assert bushel.testing.same(list(packed), [packed[i] for i in range(len(packed))])
    assert bushel.testing.same(packed.get([5, 1, 5]), [packed[5], packed[1], packed[5]])
    bushel.testing.check_resumes_anywhere(pipeline, max_elements=12)
    bushel.testing.check_same_for_any_executor(pipeline, max_elements=20)
    with iter(pipeline.to_iter_dataset().mp_prefetch(bushel.MultiprocessingOptions(num_workers=2))) as it:
        assert bushel.testing.same(list(it), list(pipeline))


def test_what_is_packed_may_be_filtered_mapped_and_concatenated():
    ds = MapDataset.source(sequences([5, 40, 3, 8, 2]))
    lengths = ds.column(len)
    short = ds.where(lengths <= 10)
    packed = short.map(lambda x: x + 100).pack(lengths, 10)
    assert len(packed) == 2 and np.count_nonzero(np.stack([row["tokens"] for row in packed])) == 18
    both = MapDataset.concatenate([short, short]).pack(lengths, 10)
    assert sum(np.count_nonzero(row["tokens"]) for row in both) == 36


def test_a_row_is_explained():
    ds = MapDataset.source(sequences([3, 3, 3, 3]))
    packed = ds.pack(ds.column(len), 7)
    assert [record.record for record in packed.origin(1).records] == [2, 3]
    assert [record.epoch for record in packed.origin(3).records] == [1, 1]


def test_rows_of_several_kinds_do_not_depend_on_their_neighbours():
    records = [np.arange(1, 5, dtype=kind) for kind in (np.int32, np.int64, np.int32, np.float32)]
    ds = MapDataset.source(records)
    packed = ds.pack(ds.column(len), 4)
    assert [row["tokens"].dtype for row in list(packed.get([0, 1, 2, 3]))] == [r.dtype for r in records]
    assert all(packed[i]["tokens"].dtype == r.dtype for i, r in enumerate(records))


def test_rows_may_be_changed_in_place():
    source = ragged([4, 4])
    packed = MapDataset.source(source).pack(source.lengths, {"tokens": 8})
    packed[0]["tokens"][:] = 0
    assert packed[0]["tokens"].tolist() == list(range(1, 9))


def test_an_endless_dataset_is_packed_epoch_by_epoch():
    ds = MapDataset.source(sequences([3, 2, 4]))
    packed = ds.repeat().pack(ds.column(len), 5)
    assert bushel.testing.same(packed[2], packed[0]) and packed.efficiency["tokens"] == 0.9


def test_the_shapes_are_known_and_the_text_tells_how_full_rows_are():
    packed = MapDataset.source(ragged([3, 2])).pack([3, 2], {"tokens": 8})
    spec = bushel.experimental.get_element_spec(packed.batch(2, drop_remainder=True))
    assert spec["tokens"].shape == (2, 8) and spec["tokens_positions"].dtype == np.int32
    assert "pack({'tokens': 8}, first_fit: 1 rows, 62.5% full)" in repr(packed)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (
            lambda ds: ds.pack([9, 1], 4),
            r"1 of 2 sequences are longer than their row of 4, the first is element 0 with 9",
        ),
        (lambda ds: ds.shuffle(1).pack(ds.column(len), 9), "Pack first, then shuffle the rows"),
        (lambda ds: ds.pack([3, 1], 0), "The length of a row must be positive"),
        (lambda ds: ds.pack([3, 1], {}), "at least one feature"),
        (
            lambda ds: ds.pack([3, 1], 9, strategy="worst"),
            'strategy must be "first_fit", "best_fit" or',
        ),
        (lambda ds: ds.pack([3, 1], 9, window=0), "window must be positive"),
        (lambda ds: ds.pack([3, 1], 9, strategy="concat_split", max_sequences=2), "max_sequences does not go with"),
        (lambda ds: ds.pack([3.0, 1.0], 9), "one whole number per element as its length; got values of float64"),
        (lambda ds: ds.pack([3, -1], 9), "`pack` got a negative length, -1"),
        (lambda ds: ds.pack({"a": [3, 1]}, {"b": 4}), r"needs lengths of 'b'; it got lengths of \['a'\]"),
        (lambda ds: ds.pack([2, 1], 9)[0], "tokens has 3 entries, and rows were planned for 2"),
    ],
)
def test_what_is_wrong_is_told(wrong, sentence):
    with pytest.raises((TypeError, ValueError), match=sentence):
        wrong(MapDataset.source(sequences([3, 1])))


def test_a_failing_record_is_named():
    def fails(x):
        if x[0] == 5:
            raise OSError("gone")
        return x

    ds = MapDataset.source(sequences([2, 2, 2, 2])).map(fails)
    with pytest.raises(OSError, match="gone") as raised:
        ds.pack([2, 2, 2, 2], 4)[1]
    assert any("record 2 of list of 4" in note for note in raised.value.__notes__)


def test_other_lengths_are_another_pipeline():
    ds = MapDataset.source(sequences([3, 2, 1]))
    state = iter(ds.pack(ds.column(len), 6)).get_state()
    with pytest.raises(bushel.StateMismatch, match="pack"):
        iter(ds.pack(ds.column(len), 6, window=1)).set_state(state)

"""A batch holds Grain's values, or says which value would not survive; whatever executor and block size stacked it."""

from __future__ import annotations

import sys
import warnings

import cloudpickle
import grain
import numpy as np
import pytest
from helpers.beside_grain import is_kept
from hypothesis import example, given, settings
from hypothesis import strategies as st

import bushel
from bushel import MapDataset, MultiprocessingOptions

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers need not import the tests

TWO = MultiprocessingOptions(num_workers=2)

LEAVES = st.one_of(
    st.sampled_from([0, 1, -1, 2**53, 2**53 + 1, 2**63 - 1, -(2**63), 2**63, 2**63 + 1, 2**64 - 1, 2**64]),
    st.sampled_from([0.0, 0.5, -1.5, float("nan"), 1e300]),
    st.booleans(),
    st.sampled_from(["", "a", "bc", "a\0", "a\0b", "\0"]),
    st.sampled_from([b"", b"a", b"bc", b"a\0", b"a\0b", b"\0"]),
    st.sampled_from(
        [np.int8(-3), np.uint8(200), np.uint64(2**64 - 1), np.int64(2**53 + 1), np.float32(0.1), np.float16(1)]
    ),
    st.sampled_from(
        [np.datetime64("2020"), np.datetime64("2020-01-01T00:00:00.5"), np.datetime64("9999"), np.complex64(1j)]
    ),
    st.sampled_from(
        [np.array([1, 2]), np.array([0.5, 1]), np.array([2**53 + 1, 0]), np.array([2**63 + 1, 0], np.uint64)]
    ),
    st.sampled_from([np.array(["a", "b"]), np.array([b"a", b"b"]), np.array([1, 2], ">i4"), np.array([True, False])]),
)


@st.composite
def some_rows(draw) -> list:
    """Rows that mostly repeat a few values: of one kind, or of several."""
    values = draw(st.lists(LEAVES, min_size=1, max_size=3))
    rows = draw(st.lists(st.sampled_from(values), min_size=1, max_size=6))
    return [{"x": row, "y": (n, row)} for n, row in enumerate(rows)] if draw(st.booleans()) else rows


def leaves_of(row) -> list:
    return [row["x"], *row["y"]] if isinstance(row, dict) else [row]


def outcome(make):
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            return make()
    except Exception as error:  # what Grain raises is Grain's affair
        return error


@settings(max_examples=250, deadline=None)
@given(rows=some_rows())
@example(rows=[1, 2**63 + 1])
@example(rows=[b"a\0", b"b"])
@example(rows=[b"a\0", b"bc"])
@example(rows=[2**53 + 1, 0.5])
@example(rows=[{"x": 1, "y": (0, 1)}, {"x": "a", "y": (1, "a")}])
def test_a_batch_holds_grains_values_or_refuses(rows):
    theirs = outcome(lambda: grain.MapDataset.source(rows).batch(len(rows))[0])
    ours = outcome(lambda: MapDataset.source(rows).batch(len(rows))[0])
    stream = outcome(lambda: next(iter(MapDataset.source(rows).to_iter_dataset().batch(len(rows)))))
    if isinstance(theirs, Exception):
        assert isinstance(ours, Exception) and isinstance(stream, Exception)
        return
    kept = all(
        is_kept(np.asarray(leaf)[n], value)
        for n, row in enumerate(rows)
        for leaf, value in zip(leaves_of(theirs), leaves_of(row), strict=True)
    )
    if not kept:
        assert isinstance(ours, ValueError) and isinstance(stream, ValueError)
        return
    for made in (ours, stream):
        assert not isinstance(made, Exception), made
        for found, expected in zip(leaves_of(made), leaves_of(theirs), strict=True):
            assert found.dtype == expected.dtype.newbyteorder("=")
            assert np.array_equal(found.astype(str), expected.astype(str))


def identity(row):
    return row


GOOD_ROWS = (
    [1, 2, 3, 0.5] * 6
    + [0.5, 1.5, 2, True] * 3
    + [b"ab", b"cd", b"e", b""] * 3
    + ["ab", "cd", "é", "a\0b"] * 3
    + [np.int8(1), np.uint8(2), 3, np.float32(0.5)] * 3
    + [2**63, 2**64 - 1, 2**63 + 1, 2**63 + 2] * 2
    + [2**63, 1, 2, 4] * 2
    + [2**64, 1, 2, 4] * 2
)


@pytest.mark.parametrize("rows", [GOOD_ROWS, [{"a": row, "b": [row]} for row in GOOD_ROWS]], ids=["leaves", "dicts"])
def test_no_executor_and_no_block_changes_a_batch(rows):
    ds = MapDataset.source(rows)
    expected = list(ds.batch(4))
    stream = ds.to_iter_dataset()
    pipelines = [
        stream.batch(4),
        stream.map(identity).mp_prefetch(TWO).batch(4),  # workers send rows
        stream.map(identity).batch(4).mp_prefetch(TWO),
        ds.map(identity).batch(4).to_iter_dataset().mp_prefetch(TWO),
    ]
    for pipeline in pipelines:
        assert bushel.testing.same(list(pipeline), expected)


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        (
            [1, 2**63 + 1],
            r"^Element 1 of the batch has 9223372036854775809, which would become 9.223372036854776e\+18: NumPy stacks "
            r"int64 and uint64 as float64\. Give all elements one dtype before `batch`, such as with `map\(np.uint64",
        ),
        ([2**53 + 1, 0.5], "Element 0 of the batch has 9007199254740993, which would become 9007199254740992.0"),
        ([b"ab", b"a\0"], r"Element 1 of the batch has b'a\\x00'\. NumPy's arrays of texts drop zeros at the end"),
        (
            ["ab", "a\0c\0"],
            r"Element 1 of the batch has 'a\\x00c\\x00'\. NumPy's arrays of texts drop zeros at the end",
        ),
        ([1, "a"], "Element 0 of the batch has 1, which would become '1'"),
        (["a", b"a"], "Element 1 of the batch has b'a', which would become 'a'"),
        (
            [np.ma.array([1, 2], mask=[0, 1])] * 2,
            "Element 0 of the batch is a masked array, and a batch would drop its mask",
        ),
    ],
)
def test_we_differ_a_value_that_would_not_survive_is_named(rows, sentence):
    ds = MapDataset.source(rows * 4)
    stream = ds.to_iter_dataset().map(identity)
    for pipeline in (ds.batch(8), stream.mp_prefetch(TWO).batch(8), stream.batch(8).mp_prefetch(TWO)):
        with pytest.raises(ValueError, match=sentence):
            list(pipeline)
    assert len(grain.MapDataset.source(rows).batch(2)[0]) == 2  # Grain converts them without a word


def test_a_vectorized_function_sees_no_shortened_text():
    ds = MapDataset.source([b"ab", b"a\0", b"cd"])
    with pytest.raises(ValueError, match="drop zeros at the end"):
        list(ds.map(lambda column: column, vectorized=True))
    assert list(MapDataset.source([b"ab", b"cd"]).map(lambda column: column, vectorized=True)) == [b"ab", b"cd"]


def test_masked_arrays_without_a_mask_are_stacked():
    rows = [np.ma.array([1, 2]), np.ma.array([3, 4])]
    assert np.asarray(MapDataset.source(rows).batch(2)[0]).tolist() == [[1, 2], [3, 4]]

"""Packing of lengths: against the rule done by hand. Against Grain's own packers: graph/test_packing.py."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bushel._src.graph.pack_stream import fill_rows
from bushel._src.index.packing import Bins, concat_split, fit, layout, too_long

CAPACITIES = st.lists(st.integers(1, 12), min_size=1, max_size=3)


@st.composite
def problems(draw, most_sequences=40):
    """Lengths of sequences with one to three features, and how long rows are."""
    capacities = draw(CAPACITIES)
    one = st.tuples(*(st.integers(0, capacity) for capacity in capacities))
    lengths = draw(st.lists(one, max_size=most_sequences))
    return np.array(lengths, dtype=np.int64).reshape(-1, len(capacities)), capacities


def by_hand(lengths, capacities, count, strategy, alignments, most):
    """Rows, starts and segments, one sequence and one row at a time."""
    rows, starts, segments = [], [], []
    before, filled_to, members = 0, [[0] * len(capacities) for _ in range(count)], [0] * count

    def fits(row, needs):
        room = all(f + n <= c for f, n, c in zip(filled_to[row], needs, capacities, strict=True))
        return room and (most is None or members[row] < most)

    for needs in lengths.tolist():
        possible = [row for row in range(count) if fits(row, needs)]
        if not possible:
            before += sum(1 for number in members if number)
            filled_to, members = [[0] * len(capacities) for _ in range(count)], [0] * count
            possible = list(range(count))
        row = possible[0] if strategy == "first_fit" else max(possible, key=lambda row: (sum(filled_to[row]), -row))
        rows.append(before + row)
        starts.append(list(filled_to[row]))
        members[row] += 1
        segments.append(members[row])
        ends = [f + n for f, n in zip(filled_to[row], needs, strict=True)]
        filled_to[row] = [-(-end // a) * a for end, a in zip(ends, alignments or [1] * len(ends), strict=True)]
    return rows, starts, segments


@settings(deadline=None, max_examples=150)
@given(
    problem=problems(),
    count=st.integers(1, 5),
    strategy=st.sampled_from(["first_fit", "best_fit"]),
    aligned=st.booleans(),
    most=st.none() | st.integers(1, 3),
    data=st.data(),
)
def test_each_sequence_goes_where_the_rule_says(problem, count, strategy, aligned, most, data):
    lengths, capacities = problem
    alignments = [data.draw(st.integers(1, 4)) for _ in capacities] if aligned else None
    placed = fit(lengths, capacities, count, strategy=strategy, alignments=alignments, most=most)
    rows, starts, segments = by_hand(lengths, capacities, count, strategy, alignments, most)
    assert placed.rows.tolist() == rows
    assert placed.starts.tolist() == starts
    assert placed.segments.tolist() == segments


@settings(deadline=None, max_examples=100)
@given(problem=problems(), count=st.integers(1, 5), cuts=st.lists(st.integers(1, 7), min_size=1))
def test_sequences_may_come_in_blocks_of_any_size(problem, count, cuts):
    lengths, capacities = problem
    whole, parts = Bins(capacities, count), Bins(capacities, count)
    placed = whole.put(lengths.T.tolist())
    first = 0
    while first < placed:
        some = lengths[first : min(placed, first + cuts[first % len(cuts)])]
        assert parts.put(some.T.tolist()) == len(some)
        first += len(some)
    assert parts.positions().rows.tolist() == whole.positions().rows.tolist()
    if placed < len(lengths):
        assert parts.put(lengths.T.tolist(), placed) == placed  # what did not fit does not fit


@settings(deadline=None, max_examples=100)
@given(problem=problems(), count=st.integers(1, 6), most=st.none() | st.integers(1, 3))
def test_as_many_sequences_as_there_are_empty_rows_fit(problem, count, most):
    lengths, capacities = problem
    bins = Bins(capacities, count, most=most)
    while len(lengths) and bins.empty:
        block = lengths[: bins.empty]
        assert bins.put(block.T.tolist()) == len(block)
        lengths = lengths[len(block) :]


@settings(deadline=None, max_examples=150)
@given(problems(), CAPACITIES)
@example((np.array([[3], [0], [1], [0], [9]]), [4]), [4])
def test_concatenation_loses_and_doubles_nothing(problem, others):
    lengths, capacities = problem
    if len(others) == len(capacities):  # lengths above the capacities, too
        capacities = others
    pieces = concat_split(lengths, capacities)
    assert (np.diff(pieces.rows) >= 0).all() and (np.diff(pieces.rows) <= 1).all()
    for feature, capacity in enumerate(capacities):
        left = dict.fromkeys(range(len(lengths)), 0)
        filled_to: dict[int, int] = {}
        for row, start, sequence, offset, size in zip(
            pieces.rows.tolist(),
            pieces.starts[:, feature].tolist(),
            pieces.sequences.tolist(),
            pieces.offsets[:, feature].tolist(),
            pieces.sizes[:, feature].tolist(),
            strict=True,
        ):
            assert offset == left[sequence]  # in order, nothing left out
            assert start == filled_to.get(row, 0)
            left[sequence] += size
            filled_to[row] = start + size
            assert filled_to[row] <= capacity
        assert list(left.values()) == lengths[:, feature].tolist()
    # A row ends only when a feature is full.
    for row in range(int(pieces.rows[-1]) if len(pieces.rows) else 0):
        here = pieces.rows == row
        assert any(pieces.sizes[here, f].sum() == capacity for f, capacity in enumerate(capacities))


@settings(deadline=None, max_examples=150)
@given(st.lists(st.integers(0, 20), max_size=30), st.integers(1, 9))
def test_one_feature_by_arithmetic_is_one_feature_by_the_rule(lengths, capacity):
    one = np.array(lengths, dtype=np.int64)[:, None]
    by_arithmetic = concat_split(one, [capacity])
    # With a second feature that never fills, the rule runs sequence by sequence.
    by_rule = concat_split(np.hstack([one, np.zeros_like(one)]), [capacity, 1])
    for name in ("rows", "segments", "sequences"):
        assert getattr(by_arithmetic, name).tolist() == getattr(by_rule, name).tolist()
    for name in ("starts", "offsets", "sizes"):
        assert getattr(by_arithmetic, name)[:, 0].tolist() == getattr(by_rule, name)[:, 0].tolist()


@settings(deadline=None, max_examples=100)
@given(problem=problems(), count=st.integers(1, 4), aligned=st.booleans(), padding=st.none() | st.just(-1))
def test_rows_hold_every_sequence_with_its_segment_and_positions(problem, count, aligned, padding):
    lengths, capacities = problem
    placed = fit(lengths, capacities, count, alignments=[3] * len(capacities) if aligned else None)
    total = int(placed.rows.max(initial=-1)) + 1
    for feature, capacity in enumerate(capacities):
        sizes, starts = lengths[:, feature], placed.starts[:, feature]
        laid = layout(placed.rows, starts, sizes, placed.segments, count=total, length=capacity)
        tokens = [100 * number + np.arange(size, dtype=np.int32) for number, size in enumerate(sizes.tolist())]
        rows = fill_rows(laid, tokens, np.zeros((0,), np.int32), padding)
        expected = np.full((total, capacity), padding or 0, np.int32)
        ids, positions = np.zeros((2, total, capacity), np.int32)
        for row, start, size, segment, mine in zip(placed.rows, starts, sizes, placed.segments, tokens, strict=True):
            expected[row, start : start + size] = mine
            ids[row, start : start + size] = segment
            positions[row, start : start + size] = np.arange(size)
        assert rows.dtype == np.int32
        np.testing.assert_array_equal(rows, expected)
        for found, wanted in ((laid.segment_ids(), ids), (laid.positions(), positions)):
            assert found.dtype == np.int32
            np.testing.assert_array_equal(found, wanted)


def test_rows_have_the_inner_shape_and_the_dtype_of_the_model():
    laid = layout(np.array([0]), np.array([1]), np.array([2]), np.array([1]), count=1, length=4)
    rows = fill_rows(laid, [np.ones((2, 3), np.int64)], np.zeros((0, 3), np.float32), padding=0.5)
    assert rows.dtype == np.float32
    assert rows[0].tolist() == [[0.5] * 3, [1.0] * 3, [1.0] * 3, [0.5] * 3]


def test_what_cannot_be_placed_is_refused():
    assert too_long(np.array([[3, 1], [4, 6]]), [4, 5]) == 1
    assert too_long(np.array([[4, 5]]), [4, 5]) is None
    with pytest.raises(ValueError, match=r"Sequence 1 has lengths \[7\] and rows have \[6\]\. Truncate it"):
        fit(np.array([[3], [7]]), [6], 2)
    with pytest.raises(ValueError, match='strategy must be "first_fit" or "best_fit", got \'worst\''):
        Bins([3], 1, strategy="worst")

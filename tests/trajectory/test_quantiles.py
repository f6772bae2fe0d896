"""Quantiles within a budget of memory: exact below it, and with a stated error beyond it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from bushel._src.trajectory.dataset_statistics import Quantiles

SHARES = [0.0, 0.01, 0.5, 0.99, 1.0]
SMALL = 1  # byte: the least number of rows is kept


def of(pieces, budget=1 << 20):
    made = Quantiles(pieces[0].shape[1], budget)
    for piece in pieces:
        made.add(piece)
    return made


def assert_within_its_error(made, rows):
    """The asked rank is at most `rank_error` places away from those that the answer has among all rows.

    Exact quantiles are interpolated, so they may lie one place further.
    """
    off = made.rank_error or 1
    for share in SHARES:
        for column, value in zip(rows.T, made.at(share)):
            below, up_to = (column < value).sum(), (column <= value).sum()
            rank = share * (len(rows) - 1)
            assert below - off <= rank <= up_to + off


numbers = hnp.arrays(
    np.float32, hnp.array_shapes(min_dims=2, max_dims=2, max_side=40), elements=st.floats(-9, 9, width=32)
)


def test_rows_of_no_numbers():
    made = of([np.zeros((3, 0), np.float32)])
    assert made.at(0.5).shape == (0,) and made.at(SHARES).shape == (5, 0)


@settings(deadline=None)
@given(numbers, st.integers(1, 40))
def test_exact_within_the_budget(rows, cut):
    made = of([rows[:cut], rows[cut:]])
    assert (made.rank_error, made.levels, made.rows_kept, made.count) == (0, 1, len(rows), len(rows))
    np.testing.assert_allclose(made.at(SHARES), np.quantile(rows.astype(np.float64), SHARES, axis=0))


@settings(deadline=None, max_examples=30)
@given(
    st.integers(1, 40_000),
    st.sampled_from([1, 100, 5000]),
    st.sampled_from(["random", "rising", "falling", "few", "one"]),
    st.integers(0, 99),
)
def test_beyond_it_the_error_is_known(count, piece, kind, seed):
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((count, 2))
    if kind in ("rising", "falling"):
        rows.sort(axis=0)
        rows = rows[::-1] if kind == "falling" else rows
    elif kind == "few":
        rows = rows.round()
    elif kind == "one":
        rows = np.zeros((count, 2))
    rows = rows.astype(np.float32)
    piece = max(piece, count // 500)
    made = of([rows[at : at + piece] for at in range(0, count, piece)], SMALL)
    assert made.count == count and made.rows_kept <= 1024
    assert made.rank_error <= count / 1024 * made.levels * (made.levels + 1)  # what the docstring states
    assert made.levels <= max(0, np.log2(count / 1024)) + 4
    assert_within_its_error(made, rows)


@settings(deadline=None, max_examples=20)
@given(st.lists(st.integers(0, 6000), min_size=1, max_size=6), st.integers(0, 99))
def test_merged_ones_know_their_error_too(counts, seed):
    rng = np.random.default_rng(seed)
    parts = [rng.standard_normal((count, 3)).astype(np.float32) + number for number, count in enumerate(counts)]
    rows = np.concatenate(parts)
    whole = Quantiles(3, SMALL)
    for part in parts:
        whole.absorb(of([part], SMALL))
    assert whole.count == len(rows) and whole.rows_kept <= 1024
    if len(rows):
        assert_within_its_error(whole, rows)


def test_the_check_can_fail():
    rows = np.arange(5000, dtype=np.float32)[:, None]
    made = of([rows], SMALL)
    assert made.rank_error > 0
    with pytest.raises(AssertionError):
        assert_within_its_error(made, rows + 2 * made.rank_error + 2)


def test_what_was_added_may_change_afterwards():
    rows = np.ones((3, 1), np.float32)
    made = of([rows])
    rows[:] = 7
    assert made.at(0.5).tolist() == [1]


def test_wrong_input_of_quantiles_is_named():
    with pytest.raises(ValueError, match="no rows to compute quantiles from"):
        Quantiles(2).at(0.5)
    with pytest.raises(ValueError, match="Rows of 3 numbers cannot be added to rows of 2"):
        of([np.zeros((1, 2)), np.zeros((1, 3))])
    with pytest.raises(ValueError, match="Rows of 1 numbers cannot be added to rows of 2"):
        Quantiles(2).absorb(Quantiles(1))

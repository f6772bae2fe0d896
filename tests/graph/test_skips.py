"""The count of skipped elements and its limit, for skips that are counted at once and for those that are collected."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import bushel
from bushel._src.base.errors import TooManySkipped
from bushel._src.graph.cursors import Skips, collect_skips, collect_then_count, count_collected

numbers = st.lists(st.integers(1, 4), max_size=12)


def add_all(skips: Skips, groups: list[int]) -> int:
    """Adds groups of failed elements. Returns how many groups went in before the limit."""
    for done, number in enumerate(groups):
        try:
            skips.add("an element", "as planned", number)
        except TooManySkipped:
            return done
    return len(groups)


@given(numbers, st.integers(0, 20))
def test_the_limit_is_the_largest_number_that_may_be_skipped(groups, limit):
    allowed = sum(sum(groups[: end + 1]) <= limit for end in range(len(groups)))
    counted = Skips(limit)
    assert add_all(counted, groups) == allowed
    assert counted.count == sum(groups[:allowed])
    collecting = Skips(limit)
    with collect_skips(collecting) as collected:
        assert add_all(collecting, groups) == allowed
    assert collecting.count == 0
    assert [note[2] for note in collected] == groups[: allowed + 1]  # also the one that was too many


@given(numbers, numbers, st.integers(0, 20))
def test_collected_skips_count_after_those_before(first, then, limit):
    """Whether skips are collected or not, the same one is too many, and the error says the same."""
    messages = []
    for collect in (False, True):
        skips = Skips(limit)
        try:
            count_collected(skips, [("a", "as planned", number) for number in first])
            if collect:
                with collect_then_count(skips):
                    for number in then:
                        skips.add("b", "as planned", number)
            else:
                for number in then:
                    skips.add("b", "as planned", number)
        except TooManySkipped as error:
            messages.append((str(error), skips.count))
        else:
            messages.append(("", skips.count))
    assert messages[0] == messages[1]


def test_a_stream_that_reads_ahead_may_skip_as_many_as_the_limit():
    """A window shuffle reads a whole window before it gives an element, so it collects what it skips."""

    def fails(x: int) -> int:
        if x in (2, 5):
            raise ValueError("as planned")
        return x

    ds = bushel.MapDataset.range(8).map(fails).to_iter_dataset().window_shuffle(8, seed=1)
    it = iter(ds.with_options(on_error="skip", skip_limit=2))
    assert sorted(it) == [0, 1, 3, 4, 6, 7]
    assert it.skipped == 2
    with pytest.raises(TooManySkipped, match="1 elements were skipped already, as many as skip_limit allows"):
        list(ds.with_options(on_error="skip", skip_limit=1))

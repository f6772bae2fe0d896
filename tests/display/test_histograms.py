"""Histograms of the values of an element: every finite value is counted, and fewer than ten bins are empty."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from bushel._src.display import pictures

ARRAYS = arrays.arrays(
    st.sampled_from([np.float64, np.float32, np.int64, np.uint8, np.int8, np.uint64, np.bool_]), st.integers(0, 60)
)


def histogram(values):
    found = pictures.histogram(values)
    assert found is not None
    return found


@given(values=ARRAYS)
def test_every_finite_value_is_counted_and_few_bins_are_empty(values):
    finite = np.isfinite(values.astype(np.float64))
    if not finite.any():
        assert pictures.histogram(values) is None
        return
    found = histogram(values)
    counts, edges = found["counts"], found["edges"]
    assert sum(counts) == finite.sum() and len(edges) == len(counts) + 1 <= 41
    assert counts.count(0) < 10
    assert len(counts) == 1 or (np.diff(edges) > 0).all()


@given(values=st.lists(st.integers(-300, 300), min_size=1, max_size=50))
def test_bins_of_whole_numbers_hold_equally_many(values):
    edges = histogram(np.array(values))["edges"]
    assert len({width for width in np.diff(edges)}) == 1 and all(edge % 1 == 0.5 for edge in edges)


def test_many_values_have_many_bins_and_outliers_few():
    normal = np.random.default_rng(0).normal(size=5000)
    assert len(histogram(normal)["counts"]) in (20, 40)
    assert len(histogram(np.arange(10))["counts"]) == 10
    assert len(histogram(np.append(normal, 1e6))["counts"]) == 10

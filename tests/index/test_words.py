"""Indices as words: different numbers of an array."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bushel._src.index import epochs


@given(numbers=st.lists(st.integers(-5, 5) | st.integers(-(2**63), 2**63 - 1)), columns=st.sampled_from([1, 2]))
def test_different_numbers_are_those_of_numpy(numbers, columns):
    array = np.array(numbers[: len(numbers) // columns * columns], np.int64).reshape(-1, columns)
    different, back = epochs.find_distinct(array)
    expected, places = np.unique(array, return_inverse=True)
    assert np.array_equal(different, expected) and np.array_equal(back, places.reshape(array.shape))


def test_different_numbers_of_any_size():
    different, back = epochs.find_distinct(epochs.array([2**70, 1, 2**70]))
    assert different.tolist() == [1, 2**70] and back.tolist() == [1, 0, 1]


def test_a_shuffle_over_several_epochs_does_not_load_masked_arrays():
    """`numpy.ma` takes 10 ms and more to load, and would be loaded in the middle of an epoch."""
    program = (
        "import sys, bushel\n"
        "ds = bushel.MapDataset.range(100).shuffle(seed=1).repeat(3).batch(64)\n"
        "assert sum(map(len, ds)) == 300\n"
        "print('numpy.ma' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"

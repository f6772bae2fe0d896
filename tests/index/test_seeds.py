"""Seeds that follow from the place of an operation. Against the whole of Grain: tests/test_equal_to_grain.py."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.recipes import double
from helpers.strategies import long_seeds
from hypothesis import given, settings
from hypothesis import strategies as st

import bushel
from bushel._src.base.rng import derive

pairs = st.lists(st.tuples(long_seeds(), st.integers(0, 50)), min_size=1, max_size=4)


@settings(deadline=None)
@given(pairs)
def test_a_seed_has_32_bits_and_is_a_plain_integer(seeds_and_depths):
    seed = derive(seeds_and_depths)
    assert type(seed) is int
    assert 0 <= seed < 2**32
    assert derive(list(seeds_and_depths)) == seed


@settings(deadline=None)
@given(pairs)
def test_derived_seeds_are_those_of_numpys_SeedSequence(seeds_and_depths):
    flat = [number for pair in seeds_and_depths for number in pair]
    assert derive(seeds_and_depths) == np.random.SeedSequence(flat).generate_state(1, np.uint32)[0]


@pytest.mark.parametrize(
    ("seeds_and_depths", "seed"), [([(42, 1)], 3329053876), ([(42, 2)], 955475868), ([(0, 0)], 2968811710)]
)
def test_derived_seeds_stay_the_same_from_release_to_release(seeds_and_depths, seed):
    assert derive(seeds_and_depths) == seed


def test_every_part_of_the_place_counts():
    places = [[(42, 1)], [(42, 2)], [(43, 1)], [(42, 1), (42, 1)], [(1, 2), (3, 4)], [(3, 4), (1, 2)]]
    assert len({derive(place) for place in places}) == len(places)


def default_seed(ds: bushel.MapDataset) -> int | None:
    return ds.map(double)._default_seed


def test_the_nearest_seed_on_a_path_hides_those_above():
    start = bushel.MapDataset.range(3)
    assert default_seed(start) is None
    assert default_seed(start.seed(42)) == derive([(42, 1)])
    assert default_seed(start.seed(42).map(double)) == derive([(42, 2)])
    assert default_seed(start.seed(7).map(double).seed(42)) == derive([(42, 1)])


def test_branches_are_walked_breadth_first():
    def branch(seed: int, steps: int) -> bushel.MapDataset:
        ds = bushel.MapDataset.range(3).seed(seed)
        for _ in range(steps):
            ds = ds.map(double)
        return ds

    joined = bushel.MapDataset.concatenate([branch(1, 2), branch(2, 0), bushel.MapDataset.range(3), branch(3, 1)])
    assert default_seed(joined) == derive([(2, 2), (3, 3), (1, 4)])


def test_seeds_reach_from_a_map_dataset_into_its_stream():
    stream = bushel.MapDataset.range(3).seed(42).to_iter_dataset()
    assert stream.map(double)._default_seed == derive([(42, 2)])
    assert stream.seed(5).map(double)._default_seed == derive([(5, 1)])

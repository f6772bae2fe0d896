"""What a pipeline costs before its first element, as a number of Python calls: a count, so that no clock decides."""

import sys

from bushel import MapDataset

RECORDS = list(range(1000))


def add_one(x):
    return x + 1


def is_even(x):
    return x % 2 == 0


def count_calls(action):
    """How many Python functions `action` calls, itself apart, and what it returns."""
    calls = 0

    def notice(frame, event, argument):
        nonlocal calls
        calls += event == "call"

    sys.setprofile(notice)
    try:
        result = action()
    finally:
        sys.setprofile(None)
    return calls - 1, result


def build():
    ds = MapDataset.source(RECORDS).shuffle(seed=1).map(add_one).filter(is_even)
    return ds.to_iter_dataset().batch(32)


def build_dense():
    return MapDataset.source(RECORDS).shuffle(seed=1).map(add_one).map(add_one).batch(32).to_iter_dataset()


def test_building_takes_few_calls():
    for make in (build, build_dense):
        make()  # the first one loads modules and fills the caches of isinstance
        calls, _ = count_calls(make)
        assert calls <= 70, f"Building {make()} takes {calls} Python calls. Grain takes 62 and 79."


def test_opening_an_iterator_takes_few_calls():
    for make in (build, build_dense):
        iter(make())
        ds = make()
        calls, it = count_calls(lambda ds=ds: iter(ds))
        assert calls <= 100, f"Opening an iterator of {ds} takes {calls} Python calls. Grain takes 74 and 61."
        assert next(it).shape == (32,)


def test_the_cost_of_building_does_not_depend_on_the_data():
    counts = [count_calls(lambda n=n: MapDataset.source([0] * n).map(add_one).batch(2))[0] for n in (10, 10, 10**5)]
    assert counts[1] == counts[2]


def test_the_count_can_rise():
    assert count_calls(lambda: [add_one(n) for n in range(100)])[0] >= 100

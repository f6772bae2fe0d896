"""The laws that `bushel.testing` checks: pipelines that keep them pass, and each way to break one is caught."""

import collections
import itertools
import random

import numpy as np
import pytest

import bushel
from bushel import DatasetIterator, IterDataset, MapDataset
from bushel.testing import check_resumes_anywhere, check_same_for_any_executor, same

CHECKS = [check_resumes_anywhere, check_same_for_any_executor]


def ten():
    return MapDataset.range(10)


class Twice(bushel.transforms.FlatMap):
    max_fan_out = 2

    def flat_map(self, element):
        return [element] * (element % 3)


LAWFUL = {
    "empty": lambda: MapDataset.range(0),
    "shuffled batches": lambda: ten().seed(1).shuffle().batch(3),
    "random": lambda: ten().seed(1).random_map(lambda x, rng: x + rng.random()),
    "endless": lambda: ten().seed(1).shuffle().repeat(),
    "sparse": lambda: ten().filter(lambda x: x % 3 == 0),
    "nothing left": lambda: ten().filter(lambda x: False),
    "flat_map": lambda: ten().apply(Twice()),
    "stream": lambda: ten().to_iter_dataset().filter(lambda x: x % 2).batch(2),
    "stream flat_map": lambda: ten().to_iter_dataset().apply(Twice()),
    "stream mix": lambda: IterDataset.mix([ten().to_iter_dataset(), ten().to_iter_dataset().batch(2)]),
    "NaN": lambda: ten().map(lambda x: {"x": float("nan"), "y": np.array([np.nan, x])}),
}


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("build", LAWFUL.values(), ids=LAWFUL)
def test_lawful_pipelines_pass(build, check):
    check(build())


def test_a_map_that_counts_its_calls_is_caught():
    calls = itertools.count()
    with pytest.raises(AssertionError, match=r"resumed after 0 elements, element 0 is \d+ and should be 0"):
        check_resumes_anywhere(ten().map(lambda x: next(calls)))


def test_a_map_with_randomness_of_its_own_is_caught():
    wild = random.Random(1)
    for check in CHECKS:
        with pytest.raises(AssertionError, match=r"element 0 is .* and should be"):
            check(ten().map(lambda x: x + wild.random()))


def test_a_map_that_remembers_is_caught():
    total = [0]

    def running_sum(x):
        total[0] += x
        return total[0]

    with pytest.raises(AssertionError, match="with one thread, element 0 is 45 and should be 0"):
        check_same_for_any_executor(ten().map(running_sum))


class Walk(IterDataset):
    def __init__(self, iterator, count=10):
        super().__init__()
        self.iterator, self.count = iterator, count

    def __iter__(self):
        return self.iterator(self.count)


class Right(DatasetIterator):
    def __init__(self, count):
        super().__init__()
        self.count, self.position = count, 0

    def __next__(self):
        if self.position == self.count:
            raise StopIteration
        self.position += 1
        return self.position

    def get_state(self):
        return {"position": self.position}

    def set_state(self, state, *, check: bool = True):
        self.position = state["position"]


class Forgetful(Right):
    """Its state is always the start."""

    def get_state(self):
        return {"position": 0}


class OneOff(Right):
    """Goes one too far."""

    def set_state(self, state, *, check: bool = True):
        self.position = min(self.count, state["position"] + 1)


class Deaf(Right):
    """Ignores the state, and says so in no way."""

    def get_state(self):
        return {}

    def set_state(self, state, *, check: bool = True):
        pass


class Ahead(Right):
    """Its state is that of what it has buffered, not of what it gave."""

    def __init__(self, count):
        super().__init__(count)
        self.buffer = collections.deque()

    def __next__(self):
        while len(self.buffer) < 2 and self.position < self.count:
            self.position += 1
            self.buffer.append(self.position)
        if not self.buffer:
            raise StopIteration
        return self.buffer.popleft()

    def set_state(self, state, *, check: bool = True):
        super().set_state(state, check=check)
        self.buffer.clear()


class NoEnd(Right):
    """Once resumed, it does not know where to end."""

    def set_state(self, state, *, check: bool = True):
        super().set_state(state, check=check)
        self.count = 1000


def test_an_iterator_with_the_right_state_passes():
    for check in CHECKS:
        check(Walk(Right).map(lambda x: x))
        check(Walk(Right, count=0))


BROKEN = {
    Forgetful: "resumed after 1 elements, element 1 is 1 and should be 2",
    OneOff: r"set_state\(get_state\(\)\) changed the state after 0 elements",
    Deaf: "resumed after 1 elements, element 1 is 1 and should be 2",
    Ahead: "resumed after 1 elements, element 1 is 3 and should be 2",
    NoEnd: "resumed after 0 elements, the run does not end where it did",
}


@pytest.mark.parametrize(("iterator", "sentence"), BROKEN.items(), ids=[kind.__name__ for kind in BROKEN])
@pytest.mark.parametrize("wrap", [lambda ds: ds, lambda ds: ds.map(lambda x: x)], ids=["alone", "in a pipeline"])
def test_an_iterator_with_a_wrong_state_is_caught(iterator, sentence, wrap):
    with pytest.raises(AssertionError, match=sentence):
        check_resumes_anywhere(wrap(Walk(iterator)))


def test_only_the_first_elements_are_checked_where_a_limit_is_given():
    def late(x, seen=collections.Counter()):  # noqa: B006
        seen[x] += 1
        return x if x < 5 else seen[x]

    check_resumes_anywhere(ten().map(late), max_elements=5)
    with pytest.raises(AssertionError):
        check_resumes_anywhere(ten().map(late), max_elements=8)


SAME = [
    (1, 1),
    ("a", "a"),
    (None, None),
    (float("nan"), float("nan")),
    (np.array([1.0, np.nan]), np.array([1.0, np.nan])),
    ({"a": 1, "b": [2]}, {"b": [2], "a": 1}),
    ((1, {"x": np.zeros(2)}), (1, {"x": np.zeros(2)})),
    (np.int64(1), np.array(1)),
]

OTHER = [
    (1, 2),
    (1, 1.0),
    (1, True),
    (1, None),
    ([1], (1,)),
    ([1], [1, 1]),
    ({"a": 1}, {"b": 1}),
    ({"a": 1}, {"a": 1, "b": 2}),
    (np.zeros(2), np.zeros(3)),
    (np.zeros((1, 2)), np.zeros(2)),
    (np.zeros(2, np.float32), np.zeros(2)),
    (np.array([1.0, np.nan]), np.array([np.nan, 1.0])),
]


@pytest.mark.parametrize(("a", "b"), SAME, ids=repr)
def test_same_is_true_of_equal_trees(a, b):
    assert same(a, b)
    assert same(b, a)


@pytest.mark.parametrize(("a", "b"), OTHER, ids=repr)
def test_same_is_false_of_trees_that_differ(a, b):
    assert not same(a, b)
    assert not same(b, a)

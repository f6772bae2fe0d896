"""Datasets, iterators and transformations of one's own, written as for Grain, anywhere in a pipeline."""

import itertools
import json
import os
import sys
from typing import Any

import cloudpickle
import numpy as np
import pytest
from helpers.stepped_executor import Stepped

import bushel
from bushel import DatasetIterator, IterDataset, MapDataset, ReadOptions
from bushel._src.datasets.iterator import PipelineIterator
from bushel._src.engine.processes.executor import Processes
from bushel._src.engine.tasks import Threads
from bushel.experimental import InterleaveIterDataset, get_next_index, set_next_index
from bushel.testing import check_resumes_anywhere, check_same_for_any_executor, same

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers need not import the tests


def ten():
    return MapDataset.range(10)


# Iterators of one's own, written as for Grain.


class Countdown(IterDataset):
    """A stream that begins with itself."""

    def __init__(self, start):
        super().__init__()
        self.start = start

    def __iter__(self):
        return CountdownIterator(self.start)


class CountdownIterator(DatasetIterator):
    def __init__(self, start):
        super().__init__()
        self.left = start

    def __next__(self):
        if not self.left:
            raise StopIteration
        self.left -= 1
        return self.left

    def get_state(self):
        return {"left": self.left}

    def set_state(self, state, *, check: bool = True):
        self.left = state["left"]


class Windows(IterDataset):
    """The last few elements, in the middle of a pipeline."""

    def __init__(self, parent, size):
        super().__init__(parent)
        self.size = size

    def __iter__(self):
        return WindowsIterator(self._parent.__iter__(), self.size)


class WindowsIterator(DatasetIterator):
    def __init__(self, parent, size):
        super().__init__(parent)
        self.size = size
        self.window = []

    def __next__(self):
        while True:
            element = next(self._parent)
            self.window = [*self.window, int(element)][-self.size :]
            if len(self.window) == self.size:
                return np.array(self.window)

    def get_state(self):
        return {"parent": self._parent.get_state(), "window": self.window}

    def set_state(self, state, *, check: bool = True):
        self._parent.set_state(state["parent"])
        self.window = list(state["window"])


OWN = {
    "at the start": lambda: Countdown(7),
    "before map": lambda: Countdown(7).map(lambda x: x * 10),
    "before filter and batch": lambda: Countdown(9).filter(lambda x: x % 2).batch(2),
    "before random_map": lambda: Countdown(5).seed(3).random_map(lambda x, rng: x + rng.random()),
    "in the middle": lambda: Windows(ten().shuffle(seed=1).to_iter_dataset(), 3).map(np.sum),
    "at the end": lambda: Windows(ten().to_iter_dataset().map(lambda x: x + 1), 2),
    "twice": lambda: Windows(Windows(ten().to_iter_dataset(), 2).map(np.sum), 2).batch(3),
    "over a map dataset": lambda: Windows(ten(), 2).batch(2),
    "with pipe": lambda: ten().to_iter_dataset(ReadOptions(2, 4)).pipe(Windows, 2).batch(2),
    "in a mixture": lambda: IterDataset.mix([Countdown(4), ten().to_iter_dataset()]).batch(2),
    "over streams, in a mixture": lambda: IterDataset.mix([Windows(ten(), 2), Windows(ten()[3:], 2)]).map(np.sum),
    "over a mixture": lambda: Windows(IterDataset.mix([ten().to_iter_dataset(), Countdown(5)]), 3).map(np.sum),
}


@pytest.mark.parametrize("build", OWN.values(), ids=OWN)
def test_an_iterator_of_ones_own_resumes_anywhere(build):
    check_resumes_anywhere(build())


@pytest.mark.parametrize("build", OWN.values(), ids=OWN)
def test_an_iterator_of_ones_own_gives_the_same_for_any_executor(build):
    check_same_for_any_executor(build())


def stands(it, count=None):
    """Elements and the state after each."""
    return [(element, it.get_state()) for element in itertools.islice(it, count)]


@pytest.fixture(scope="module")
def executors():
    executors = [Stepped(1), Threads(2), Processes(2)]
    yield executors
    for executor in executors:
        executor.close()


@pytest.mark.parametrize("build", OWN.values(), ids=OWN)
def test_an_iterator_of_ones_own_draws_from_workers_and_nobody_can_tell(executors, build):
    expected = stands(PipelineIterator(build()._node))
    for executor in executors:
        with PipelineIterator(build()._node, executor=executor) as it:
            assert same(stands(it), expected)
        for at, (_, state) in enumerate(expected):
            with PipelineIterator(build()._node, executor=executor) as it:
                it.set_state(json.loads(json.dumps(state)))
                assert same(stands(it), expected[at + 1 :])


def process(x):
    return os.getpid()


IN_WORKERS = {
    "over map of a MapDataset": lambda: Windows(ten().map(process), 1),
    "over map": lambda: Windows(ten().to_iter_dataset().map(process), 1),
    "over a filter": lambda: Windows(ten().to_iter_dataset().filter(lambda x: x % 2).map(process), 1),
    "twice": lambda: Windows(Windows(ten().map(process), 1).map(lambda window: window[0]), 1),
    "in a mixture": lambda: IterDataset.mix([Windows(ten().map(process), 1)] * 2),
    "in an interleave": lambda: InterleaveIterDataset([Windows(ten().map(process), 1)] * 2, cycle_length=2),
    "made by an interleave": lambda: InterleaveIterDataset(
        MapDataset.range(3).map(lambda i: Windows(ten().map(process), 1)), cycle_length=2
    ),
    "marked before": lambda: Windows(ten().map(process).to_iter_dataset().mp_prefetch(TWO), 1).map(np.sum),
}

TWO = bushel.MultiprocessingOptions(num_workers=2)


@pytest.mark.parametrize("build", IN_WORKERS.values(), ids=IN_WORKERS)
def test_workers_compute_what_a_users_own_iterator_reads(build):
    with iter(build().mp_prefetch(TWO)) as it:
        found = {int(np.sum(window)) for window in it}
        assert len(it.report().pools) == 1
    assert os.getpid() not in found and len(found) <= 2


def test_pools_of_what_an_iterator_of_ones_own_draws_from_are_told():
    with iter(IN_WORKERS["marked before"]()) as it:
        next(it)
        assert [pool.size for pool in it.report().pools] == [2]


def fails_on_odd(x):
    if x % 2:
        raise ValueError(f"no {x}")
    return x


SKIPPING = {
    "after it": lambda: Windows(MapDataset.range(20).map(fails_on_odd), 1).map(np.sum),
    "in a mixture": lambda: IterDataset.mix([Windows(ten().map(fails_on_odd), 1)] * 2),
    "twice": lambda: Windows(Windows(MapDataset.range(20).map(fails_on_odd), 1).map(np.sum), 1).map(np.sum),
}


@pytest.mark.parametrize("build", SKIPPING.values(), ids=SKIPPING)
def test_elements_left_out_before_an_iterator_of_ones_own_are_counted_once(executors, build):
    ds = build().with_options(on_error="skip")
    expected = stands(PipelineIterator(ds._node))
    assert len(expected) == 10 and expected[4][1]["skipped"] < 5
    skipped = 9 if build is SKIPPING["in a mixture"] else 10  # it ends with its first part
    for executor in [None, *executors]:
        with PipelineIterator(ds._node, executor=executor) as it:
            assert same(stands(it), expected)
            assert it.skipped == skipped
        with PipelineIterator(ds._node, executor=executor) as it:
            it.set_state(expected[3][1])
            assert same(stands(it), expected[4:])
            assert it.skipped == skipped
        with PipelineIterator(build().with_options(on_error="skip", skip_limit=6)._node, executor=executor) as it:
            with pytest.raises(bushel.TooManySkipped):
                list(it)
            assert it.skipped == 6


def test_the_state_in_the_middle_of_an_element_counts_no_skip_twice():
    seen = []

    def look(x):
        seen.append(it.get_state())
        return x

    ds = Windows(MapDataset.range(20).map(fails_on_odd), 1).map(look).with_options(on_error="skip")
    it = iter(ds)
    after = [it.get_state(), *(state for _, state in stands(it))]
    assert [state["parent"] for state in seen] == [state["parent"] for state in after[:10]]
    assert it.skipped == 10


def test_the_elements_of_an_iterator_of_ones_own():
    assert list(Countdown(3).map(lambda x: -x)) == [-2, -1, 0]
    assert [w.tolist() for w in Windows(MapDataset.range(4).to_iter_dataset(), 2).batch(2)] == [
        [[0, 1], [1, 2]],
        [[2, 3]],
    ]


def test_state_of_an_iterator_of_ones_own_lies_in_the_state_as_it_is():
    it = iter(Countdown(5).map(lambda x: x))
    next(it)
    state = it.get_state()
    assert state.pop("bushel")
    assert state == {"left": 4}


def test_closing_reaches_the_parents_of_an_iterator_of_ones_own():
    it = iter(Windows(ten().to_iter_dataset(), 2).map(np.sum))
    next(it)
    it.close()
    with pytest.raises(ValueError, match="closed iterator"):
        next(it)


def test_an_iterator_of_ones_own_may_be_a_context_manager():
    with iter(Countdown(3)) as it:
        assert list(it) == [2, 1, 0]


def test_classes_that_keep_grains_books_run():
    class Doubled(MapDataset):
        def __len__(self):
            return len(self._parent)

        def __getitem__(self, index):
            with self._stats.record_self_time():
                return self._stats.record_output_spec(2 * self._parent[index])

    class Stream(IterDataset):
        def __iter__(self):
            return Iterator(self._parent.__iter__())

    class Iterator(DatasetIterator):
        def __next__(self):
            element = next(self._parent)
            with self._stats.record_self_time(num_elements=1):
                process = self._ctx.mp_context
                return self._stats.record_output_spec((element, process.process_index, process.process_count))

        def get_state(self):
            return self._parent.get_state()

        def set_state(self, state, *, check: bool = True):
            self._parent.set_state(state)

    assert list(Stream(Doubled(MapDataset.range(3)).to_iter_dataset())) == [(0, 0, 1), (2, 0, 1), (4, 0, 1)]


def test_a_plain_generator_is_told_what_is_missing():
    class Plain(IterDataset):
        def __iter__(self) -> Any:
            yield from range(3)

    assert list(Plain()) == [0, 1, 2]
    with pytest.raises(TypeError) as raised:
        next(iter(Plain().map(str)))
    assert str(raised.value) == (
        "generator has no `get_state`: the iterator of an IterDataset must be a bushel.DatasetIterator with "
        "`__next__`, `get_state` and `set_state`."
    )


def test_an_iterator_of_ones_own_may_know_its_index():
    class Seekable(CountdownIterator):
        def _get_next_index(self):
            return 10 - self.left

        def _set_next_index(self, index):
            self.left = 10 - index

    class Dataset(Countdown):
        def __iter__(self):
            return Seekable(self.start)

    it = iter(Dataset(10).map(str))
    next(it)
    assert get_next_index(it) == 1
    set_next_index(it, 8)
    assert list(it) == ["1", "0"]
    with pytest.raises(NotImplementedError, match="CountdownIterator has no index of its next element"):
        get_next_index(iter(Countdown(3)))


# Map datasets of one's own.


class Doubled(MapDataset):
    """An operation on a parent."""

    def __init__(self, parent):
        super().__init__(parent)

    def __len__(self):
        return len(self._parent)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.slice(index)
        element = self._parent[index]
        return None if element is None else element * 2


class Squares(MapDataset):
    """A source without a parent, that does not call its base class."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return (index % self.count) ** 2


class Paired(MapDataset):
    """An operation on two parents."""

    def __init__(self, parents):
        super().__init__(parents)

    def __len__(self):
        return min(len(parent) for parent in self.parents)

    def __getitem__(self, index: Any) -> Any:
        return tuple(parent[index] for parent in self.parents)


class Bulk(Doubled):
    """One that can answer for many indices at once."""

    def _getitems(self, indices):
        return [element * 2 for element in self._parent._getitems(indices)]


OWN_MAPS = {
    "with a parent": (lambda: Doubled(ten()), [0, 2, 4, 6, 8, 10, 12, 14, 16, 18]),
    "with pipe": (lambda: ten()[:3].pipe(Doubled), [0, 2, 4]),
    "without a parent": (lambda: Squares(4), [0, 1, 4, 9]),
    "with many reads": (lambda: Bulk(ten()[:4]), [0, 2, 4, 6]),
    "with two parents": (lambda: Paired([Squares(2), ten()]), [(0, 0), (1, 1)]),
    "then map": (lambda: Squares(4).map(lambda x: x + 1), [1, 2, 5, 10]),
    "then slice": (lambda: Doubled(ten()).slice(slice(2, 8, 3)), [4, 10]),
    "its own slice": (lambda: Doubled(ten())[2:8:3], [4, 10]),
    "after filter": (lambda: Doubled(ten().filter(lambda x: x > 7)), [16, 18]),
    "then filter": (lambda: Doubled(ten()).filter(lambda x: x > 14), [16, 18]),
    "then repeat": (lambda: Squares(2).repeat(2), [0, 1, 0, 1]),
    "then concatenate": (lambda: MapDataset.concatenate([Squares(2), Doubled(ten()[:2])]), [0, 1, 0, 2]),
    "then mix": (lambda: MapDataset.mix([Squares(2), Doubled(ten()[5:])]), [0, 10, 1, 12]),
    "then another": (lambda: Doubled(Doubled(Squares(3))), [0, 4, 16]),
}


@pytest.mark.parametrize(("build", "expected"), OWN_MAPS.values(), ids=OWN_MAPS)
def test_a_map_dataset_of_ones_own(build, expected):
    assert list(build()) == expected
    check_resumes_anywhere(build())
    check_same_for_any_executor(build())


def test_a_map_dataset_of_ones_own_shuffles_and_batches():
    ds = Squares(10).seed(3).shuffle().batch(4)
    assert sorted(x for batch in ds for x in batch.tolist()) == [n**2 for n in range(10)]
    assert same(list(ds), list(MapDataset.range(10).map(lambda n: n**2).seed(3).shuffle().batch(4)))


def test_seeds_pass_through_a_map_dataset_of_ones_own():
    # As in Grain: the operation counts as one step between the seed and the shuffle.
    ours = ten().seed(4).pipe(Doubled).shuffle()
    assert list(ours) == list(ten().seed(4).map(lambda x: 2 * x).shuffle())


def test_a_map_dataset_of_ones_own_sees_later_epochs():
    class Epoch(MapDataset):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            return index

    assert list(Epoch().repeat(3)) == [0, 1, 2, 3, 4, 5]


def test_parents_can_be_walked():
    ds = MapDataset.mix([Doubled(ten()), ten().shuffle(seed=1)]).batch(2).to_iter_dataset().map(str)
    (stream,) = ds.parents
    (batched,) = stream.parents
    (mixed,) = batched.parents
    doubled, shuffled = mixed.parents
    assert isinstance(doubled, Doubled)
    assert list(doubled.parents[0]) == list(range(10))
    assert repr(shuffled) == "MapDataset.range(10).shuffle(seed=1)"
    assert ten().parents == ()


def test_abstract_methods_must_be_there():
    class NoLength(MapDataset):
        def __getitem__(self, index):
            return index

    with pytest.raises(TypeError, match="abstract"):
        NoLength()  # pyright: ignore[reportAbstractUsage]
    with pytest.raises(TypeError, match="abstract"):
        MapDataset()  # pyright: ignore[reportAbstractUsage]
    with pytest.raises(TypeError, match="abstract"):
        IterDataset()  # pyright: ignore[reportAbstractUsage]


# Transformations as classes.


class Pairs(bushel.transforms.FlatMap):
    max_fan_out = 2

    def flat_map(self, element):
        return [2 * element, 2 * element + 1]


class AddOne(bushel.transforms.Map):
    def map(self, element):
        return element + 1


class Noise(bushel.transforms.RandomMap):
    def random_map(self, element, rng):
        return element + float(rng.random())


class WithIndex(bushel.transforms.MapWithIndex):
    def map_with_index(self, index, element):
        return index, element


class Even(bushel.transforms.Filter):
    def filter(self, element):
        return element % 2 == 0


def as_stream(ds):
    return ds.to_iter_dataset()


@pytest.mark.parametrize("start", [lambda ds: ds, as_stream], ids=["map", "stream"])
def test_transform_classes_do_what_functions_do(start):
    ds = start(ten().seed(1))
    assert list(ds.map(AddOne())) == list(ds.map(lambda x: x + 1))
    assert list(ds.random_map(Noise())) == list(ds.random_map(lambda x, rng: x + float(rng.random())))
    assert list(ds.map_with_index(WithIndex())) == list(ds.map_with_index(lambda i, x: (i, x)))
    assert list(ds.filter(Even())) == list(ds.filter(lambda x: x % 2 == 0))


@pytest.mark.parametrize("start", [lambda ds: ds, as_stream], ids=["map", "stream"])
def test_apply_takes_each_transformation_by_its_kind(start):
    ds = start(ten().seed(1))
    steps = [AddOne(), WithIndex(), bushel.transforms.Batch(4, drop_remainder=True)]
    expected = ds.map(AddOne()).map_with_index(WithIndex()).batch(4, drop_remainder=True)
    assert same(list(ds.apply(steps)), list(expected))
    assert same(list(ds.apply(Even())), [0, 2, 4, 6, 8])
    assert same(list(ds.apply([Noise()])), list(ds.random_map(Noise())))
    assert list(ds.apply([Pairs(), AddOne()])) == list(range(1, 21))


def test_a_transform_class_that_can_also_be_called_is_used_by_its_method():
    class Both(bushel.transforms.Map):
        def map(self, element):
            return "map"

        def __call__(self, element):
            return "call"

    assert list(MapDataset.range(1).map(Both())) == ["map"]
    assert list(MapDataset.range(1).filter(Both())) == [0]


def test_pipe_passes_arguments_on():
    assert ten().pipe(lambda ds, n, *, by: ds[:n].map(lambda x: x * by), 3, by=2)[2] == 4
    assert ten().to_iter_dataset().pipe(list) == list(range(10))

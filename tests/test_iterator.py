"""Iterators as users hold them: closing, several threads at once, seeking."""

import collections
import gc
import json
import sys
import threading
import time

import grain
import numpy as np
import pytest

import bushel
from bushel import IterDataset, MapDataset, ReadOptions
from bushel.experimental import get_next_index, set_next_index
from bushel.testing import same


def ten():
    return MapDataset.range(10)


# Closing.


def reading_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("bushel-read")]


def wait_for_threads_to_end(threads):
    for thread in threads:
        thread.join(timeout=250)
        assert not thread.is_alive()


def test_leaving_the_with_block_closes():
    with iter(ten()) as it:
        assert next(it) == 0
    with pytest.raises(ValueError, match="Trying to advance a closed iterator: DatasetIterator"):
        next(it)


def test_an_error_in_the_with_block_passes_through():
    with pytest.raises(KeyError), iter(ten()) as it:
        raise KeyError
    with pytest.raises(ValueError, match="closed iterator"):
        next(it)


@pytest.mark.parametrize("options", [None, ReadOptions(2, 4)], ids=repr)
def test_closing_twice_is_closing_once(options):
    it = iter(ten().to_iter_dataset(options).batch(2))
    next(it)
    it.close()
    it.close()
    with pytest.raises(ValueError, match="closed iterator"):
        next(it)
    with pytest.raises(ValueError, match="closed iterator"):
        it.start_prefetch()


def test_a_closed_iterator_still_tells_its_state():
    it = iter(ten().to_iter_dataset(ReadOptions(2, 4)))
    next(it)
    it.close()
    resumed = iter(ten())
    resumed.set_state(it.get_state())
    assert next(resumed) == 1


def test_closing_an_iterator_that_never_ran_is_fine():
    iter(ten().to_iter_dataset(ReadOptions(2, 4))).close()


def test_closing_ends_the_threads():
    before = reading_threads()
    it = iter(ten().repeat().to_iter_dataset(ReadOptions(3, 8)))
    next(it)
    mine = [thread for thread in reading_threads() if thread not in before]
    assert len(mine) == 3
    it.close()
    wait_for_threads_to_end(mine)


def test_an_iterator_that_is_forgotten_ends_its_threads():
    before = reading_threads()
    it = iter(ten().repeat().to_iter_dataset(ReadOptions(3, 8)))
    next(it)
    mine = [thread for thread in reading_threads() if thread not in before]
    del it
    gc.collect()
    wait_for_threads_to_end(mine)


def test_each_iterator_is_on_its_own():
    ds = ten().seed(1).shuffle().batch(2)
    one, two = iter(ds), iter(ds)
    next(one)
    next(one)
    assert same(next(two), ds[0])


def test_an_ended_iterator_stays_ended():
    it = iter(MapDataset.range(2).to_iter_dataset(ReadOptions(2, 4)))
    assert list(it) == [0, 1]
    assert next(it, None) is None
    assert next(it, None) is None
    it.set_state({**it.get_state(), "next_index": 1})
    assert list(it) == [1]


def test_prefetching_early_changes_nothing():
    for options in (None, ReadOptions(2, 4)):
        it = iter(ten().to_iter_dataset(options).batch(3))
        it.start_prefetch()
        it.start_prefetch()
        assert it.get_state()["next_index"] == 0
        assert [batch.tolist() for batch in it] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]


class Outside:
    """Records that are not known to be in memory."""

    def __len__(self):
        return 10

    def __getitem__(self, index):
        time.sleep(1e-3)
        return index


class Inside(Outside):
    in_memory = True


DEFAULT_THREADS = {
    "range": (lambda: MapDataset.range(10), 0),
    "list": (lambda: MapDataset.source(list(range(10))), 0),
    "array": (lambda: MapDataset.source(np.arange(10)), 0),
    "arrays": (lambda: MapDataset.source(bushel.sources.ArrayDataSource(np.arange(10))), 0),
    "a source that says it is": (lambda: MapDataset.source(Inside()), 0),
    "a source of one's own": (lambda: MapDataset.source(Outside()), 16),
    "one of two sources": (lambda: MapDataset.concatenate([ten(), MapDataset.source(Outside())]).batch(2), 16),
}


@pytest.mark.parametrize(("build", "count"), DEFAULT_THREADS.values(), ids=DEFAULT_THREADS)
def test_threads_read_only_where_records_are_not_in_memory(build, count):
    before = reading_threads()
    with iter(build()) as it:
        for _ in range(9):
            next(it)
        assert len([thread for thread in reading_threads() if thread not in before]) == count


def test_without_threads_nothing_is_computed_ahead():
    seen = []
    it = iter(ten().map(lambda x: seen.append(x) or x).to_iter_dataset().map(lambda x: x))
    next(it)
    next(it)
    assert seen == [0, 1]


# Several threads on one iterator.

COUNT = 2000


@pytest.fixture
def restless():
    """Threads that take turns as often as they can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


class Pairs(bushel.transforms.FlatMap):
    max_fan_out = 2

    def flat_map(self, element):
        return [2 * element, 2 * element + 1]


SHARED = {
    "plain": lambda: MapDataset.range(COUNT).shuffle(seed=1),
    "map": lambda: MapDataset.range(COUNT).map(lambda x: x),
    "threaded reads": lambda: MapDataset.range(COUNT).map(lambda x: x).to_iter_dataset(ReadOptions(3, 16)),
    "batch": lambda: MapDataset.range(COUNT).batch(7),
    "threaded batches": lambda: MapDataset.range(COUNT).batch(7).to_iter_dataset(ReadOptions(3, 16)),
    "filter": lambda: MapDataset.range(2 * COUNT).filter(lambda x: x < COUNT),
    "stream filter": lambda: MapDataset.range(2 * COUNT).to_iter_dataset().filter(lambda x: x < COUNT),
    "stream batch": lambda: MapDataset.range(COUNT).to_iter_dataset(ReadOptions(2, 8)).batch(7),
    "flat_map": lambda: MapDataset.range(COUNT // 2).to_iter_dataset().apply(Pairs()),
    "random_map": lambda: MapDataset.range(COUNT).to_iter_dataset().random_map(lambda x, rng: x, seed=1),
    "mix": lambda: IterDataset.mix(
        [MapDataset.range(COUNT // 2).to_iter_dataset(), MapDataset.range(COUNT // 2, COUNT).to_iter_dataset()]
    ),
}


@pytest.mark.parametrize("build", SHARED.values(), ids=SHARED)
def test_eight_threads_share_one_iterator(build, restless):
    """Grain 0.2.18 gives made-up elements, IndexErrors or no end at all here."""
    it = iter(build())
    taken = [[] for _ in range(8)]
    errors = []
    together = threading.Barrier(8)

    def take(mine):
        together.wait()
        try:
            mine.extend(it)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=take, args=(mine,)) for mine in taken]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=250)
        assert not thread.is_alive()
    assert errors == []
    elements = [int(x) for mine in taken for element in mine for x in np.atleast_1d(element)]
    assert sorted(elements) == list(range(COUNT))


def test_states_taken_by_another_thread_are_those_of_whole_elements(restless):
    it = iter(MapDataset.range(COUNT).to_iter_dataset().random_map(lambda x, rng: x, seed=1))
    states = []
    done = threading.Event()

    def save():
        while not done.is_set():
            states.append(it.get_state())

    saver = threading.Thread(target=save)
    saver.start()
    assert list(it) == list(range(COUNT))
    done.set()
    saver.join(timeout=250)
    assert states
    assert all(state["parent"]["next_index"] == state["index_for_rng"] for state in states)


def test_random_access_from_several_threads(restless):
    ds = MapDataset.range(500).seed(1).shuffle().random_map(lambda x, rng: (x, rng.random())).batch(5)
    expected = [ds[i] for i in range(len(ds))]
    found, errors = {}, []

    def read(offset):
        try:
            for i in range(offset, len(ds), 4):
                found[i] = ds[i]
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=read, args=(offset,)) for offset in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=250)
        assert not thread.is_alive(), f"{len(found)} of {len(ds)} batches within 250 s"
    assert errors == []
    assert same([found[i] for i in range(len(ds))], expected)


# Seeking.


def seekable(library):
    ten = library.MapDataset.range(10)
    return {
        "map dataset": ten.shuffle(seed=1),
        "map": ten.to_iter_dataset().map(lambda x: x + 1),
        "batch": ten.batch(3),
        "stream batch": ten.to_iter_dataset().batch(3),
        "map_with_index": ten.to_iter_dataset().map_with_index(lambda i, x: (i, x)),
        "random_map": ten.to_iter_dataset().random_map(lambda x, rng: x + rng.random(), seed=1),
        "sparse map dataset": ten.filter(lambda x: x % 2 == 0),
    }


@pytest.mark.parametrize("name", seekable(bushel))
def test_next_index_counts_as_in_grain(name):
    ours, theirs = iter(seekable(bushel)[name]), iter(seekable(grain)[name])
    for element in ours:
        assert same(element, next(theirs))
        assert get_next_index(ours) == grain.experimental.get_next_index(theirs)


@pytest.mark.parametrize("name", seekable(bushel))
@pytest.mark.parametrize("index", [0, 1, 3])
def test_seeking_goes_where_grain_goes(name, index):
    ours, theirs = iter(seekable(bushel)[name]), iter(seekable(grain)[name])
    next(ours)
    next(theirs)
    set_next_index(ours, index)
    grain.experimental.set_next_index(theirs, index)
    assert get_next_index(ours) == grain.experimental.get_next_index(theirs)
    assert same(list(ours), list(theirs))


def test_seeking_past_the_end_is_refused():
    it = iter(ten())
    with pytest.raises(IndexError, match="11 is out of range for dataset of length 10"):
        set_next_index(it, 11)
    assert list(it) == list(range(10))


@pytest.mark.parametrize("index", [1.5, True, "1", None])
def test_an_index_to_seek_must_be_an_integer(index):
    with pytest.raises(TypeError):
        set_next_index(iter(ten()), index)


NOT_SEEKABLE = {
    "filter": lambda: ten().to_iter_dataset().filter(lambda x: x % 2),
    "batch after filter": lambda: ten().to_iter_dataset().filter(lambda x: x % 2).batch(2),
    "flat_map": lambda: ten().to_iter_dataset().apply(Pairs()),
    "mix": lambda: IterDataset.mix([ten().to_iter_dataset(), ten().to_iter_dataset()]),
}


@pytest.mark.parametrize("build", NOT_SEEKABLE.values(), ids=NOT_SEEKABLE)
def test_where_the_index_depends_on_what_came_before_there_is_none(build):
    it = iter(build())
    next(it)
    state = it.get_state()
    with pytest.raises(NotImplementedError):
        get_next_index(it)
    with pytest.raises(NotImplementedError):
        set_next_index(it, 1)
    assert it.get_state() == state


def test_any_sequence_of_states_leads_where_it_should():
    ds = ten().seed(1).shuffle().batch(2)
    it = iter(ds)
    states = collections.deque()
    for _ in range(3):
        states.append(json.dumps(it.get_state()))
        next(it)
    for number in (2, 0, 1):
        it.set_state(json.loads(states[number]))
        assert same(next(it), ds[number])


def test_the_iterator_reads_as_a_position():
    it = iter(ten().batch(2).to_iter_dataset().map(str))
    next(it)
    assert repr(it) == "<iterator of map(str) at {'next_index': 1}>"

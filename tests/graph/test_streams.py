"""Limit, repeat, rebatch, zip, interleave, window shuffles: what they do at the ends, and where Grain goes wrong."""

from __future__ import annotations

import itertools

import grain
import numpy as np
import pytest
from helpers.beside_grain import check_equal, plain, restored, run, stream
from helpers.case_counts import cases
from helpers.stepped_executor import Stepped
from hypothesis import example, given, settings
from hypothesis import strategies as st

import bushel
from bushel import IterDataset, MapDataset
from bushel._src.datasets.iterator import PipelineIterator
from bushel._src.engine.tasks import Threads
from bushel._src.index.shuffle import window_shuffle
from bushel.testing import check_resumes_anywhere, check_same_for_any_executor, same

quick = settings(deadline=None, max_examples=cases(30, 60))


def numbers(count=10, lib=bushel):
    return lib.MapDataset.range(count).to_iter_dataset(lib.ReadOptions(0, 0))


def mixed(lib, count=10):
    """A stream whose state changes when it ends."""
    return lib.IterDataset.mix([numbers(count, lib), numbers(count, lib)], [2, 1])


STREAMS = {
    "limit": lambda lib: lib.experimental.LimitIterDataset(mixed(lib), 7),
    "limit above the end": lambda lib: lib.experimental.LimitIterDataset(mixed(lib), 99),
    "repeat": lambda lib: lib.experimental.RepeatIterDataset(mixed(lib, 3), 3),
    "endless repeat": lambda lib: lib.experimental.RepeatIterDataset(mixed(lib, 3)),
    "repeat of a limit": lambda lib: lib.experimental.RepeatIterDataset(
        lib.experimental.LimitIterDataset(mixed(lib), 4), 3
    ),
    "repeat of nothing": lambda lib: lib.experimental.RepeatIterDataset(numbers(0, lib), 3),
    "zip": lambda lib: lib.experimental.ZipIterDataset([numbers(4, lib), numbers(4, lib).map(str)]),
    "zip of one": lambda lib: lib.experimental.ZipIterDataset([numbers(4, lib)]),
    "zip, first shorter": lambda lib: lib.experimental.ZipIterDataset([numbers(3, lib), numbers(4, lib)]),
    "zip, last shorter": lambda lib: lib.experimental.ZipIterDataset([numbers(4, lib), mixed(lib), numbers(3, lib)]),
    "loose zip, first shorter": lambda lib: lib.experimental.ZipIterDataset(
        [numbers(3, lib), mixed(lib)], strict=False
    ),
    "loose zip, last shorter": lambda lib: lib.experimental.ZipIterDataset(
        [numbers(8, lib), mixed(lib), numbers(3, lib)], strict=False
    ),
    "batches of a loose zip": lambda lib: lib.experimental.LimitIterDataset(
        lib.experimental.ZipIterDataset([numbers(8, lib), mixed(lib, 20), numbers(5, lib)], strict=False).batch(3), 2
    ),
    "window shuffle": lambda lib: lib.experimental.WindowShuffleIterDataset(numbers(11, lib), window_size=4, seed=9),
    "window shuffle, whole windows": lambda lib: lib.experimental.WindowShuffleIterDataset(
        mixed(lib, 8), window_size=4, seed=9
    ),
    "window above the end": lambda lib: lib.experimental.WindowShuffleIterDataset(mixed(lib), window_size=99, seed=9),
    "interleave of one": lambda lib: lib.experimental.InterleaveIterDataset([numbers(4, lib)], cycle_length=3),
}


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("cut", [0, 1, 3, 4, 7])
def test_streams_are_grains(name, cut):
    check_equal(STREAMS[name], cut, most=25)


@pytest.mark.parametrize("name", STREAMS)
def test_streams_keep_the_laws(name):
    ds = STREAMS[name](bushel)
    if not name.startswith("zip, "):  # which are errors
        check_resumes_anywhere(ds, max_elements=25)
        check_same_for_any_executor(ds, max_elements=25)


def sequences(count=30):
    return numbers(count).map(lambda x: {"a": np.arange(1 + x % 5)})


BEFORE_WORKERS = {
    "first fit": lambda: bushel.experimental.FirstFitPackIterDataset(
        sequences(), length_struct={"a": 7}, num_packing_bins=3
    ),
    "concat-then-split": lambda: bushel.experimental.ConcatThenSplitIterDataset(sequences(), length_struct={"a": 7}),
    "cache": lambda: sequences().cache().batch(4, batch_fn=list),
    "window shuffle": lambda: sequences().window_shuffle(8, seed=1).limit(20),
    "interleave": lambda: bushel.experimental.InterleaveIterDataset([sequences(), sequences(7)], cycle_length=2),
}


@pytest.mark.parametrize("name", BEFORE_WORKERS)
def test_worker_processes_change_neither_elements_nor_states(name):
    build = BEFORE_WORKERS[name]
    inline = run(iter(build()))
    for workers in (1, 2):
        ds = build().mp_prefetch(bushel.MultiprocessingOptions(num_workers=workers))
        with iter(ds) as it:
            found = run(it)
        assert same(found.elements, inline.elements)
        assert found.states == inline.states
        with restored(ds, inline.states[3]) as it:
            assert same(run(it).elements, inline.elements[3:])


# ---------------------------------------------------------------------------------------------------------------------
# An operation does not fail over an element that it does not give


class FailsAt:
    """The identity, but for some numbers."""

    def __init__(self, bad):
        self.bad = bad

    def __call__(self, x):
        if x in self.bad:
            raise ValueError(f"cannot make {x}")
        return x


READS_MORE = {
    "loose zip": lambda lib, one, two: lib.experimental.ZipIterDataset([one, two], strict=False),
    "zip": lambda lib, one, two: lib.experimental.ZipIterDataset([one, two]),
    "zip of a zip": lambda lib, one, two: lib.experimental.ZipIterDataset(
        [lib.experimental.ZipIterDataset([one, numbers(7, lib)], strict=False), two], strict=False
    ),
    "mix": lambda lib, one, two: lib.IterDataset.mix([one, two], [2, 1]),
    "interleave": lambda lib, one, two: lib.experimental.InterleaveIterDataset([one, two], cycle_length=2),
    "limit": lambda lib, one, two: lib.experimental.LimitIterDataset(one, 5),
    "limited interleave": lambda lib, one, two: lib.experimental.LimitIterDataset(
        lib.experimental.InterleaveIterDataset([one, two], cycle_length=2), 5
    ),
    "window shuffle": lambda lib, one, two: lib.experimental.WindowShuffleIterDataset(one, window_size=3, seed=4),
    "repeat": lambda lib, one, two: lib.experimental.RepeatIterDataset(one, 2),
}
THEN = {
    "nothing": lambda ds: ds,
    "batch": lambda ds: ds.batch(4),
    "whole batches": lambda ds: ds.batch(4, drop_remainder=True),
    "filter and batch": lambda ds: ds.filter(lambda x: True).batch(4),
}


def until_it_fails(it):
    """The elements up to the end or to the first error, and that error."""
    elements = []
    try:
        for element in it:
            elements.append(element)
    except ValueError as error:
        return elements, str(error)[:3]  # the two libraries complain of unequal lengths in other words
    return elements, None


@pytest.mark.parametrize("operation", READS_MORE)
@settings(deadline=None, max_examples=25)
@given(
    lengths=st.tuples(st.integers(0, 9), st.integers(0, 9)),
    bad=st.tuples(st.sets(st.integers(0, 8), max_size=2), st.sets(st.integers(0, 8), max_size=2)),
    then=st.sampled_from(sorted(THEN)),
)
@example(lengths=(5, 1), bad=({3}, set()), then="batch")
@example(lengths=(5, 1), bad=({3}, set()), then="filter and batch")
def test_an_operation_fails_where_grain_fails(operation, lengths, bad, then):
    def build(lib):
        one, two = (numbers(length, lib).map(FailsAt(some)) for length, some in zip(lengths, bad, strict=True))
        return THEN[then](READS_MORE[operation](lib, one, two))

    expected = until_it_fails(iter(build(grain)))
    if expected[1] == "Zip":
        expected = expected[0], "zip"
    ds = build(bushel)
    assert same(until_it_fails(iter(ds)), expected)
    for executor in (Stepped(1), Threads(2)):
        with PipelineIterator(ds._node, executor=executor) as it:
            assert same(until_it_fails(it), expected), executor
        executor.close()


# ---------------------------------------------------------------------------------------------------------------------
# Rebatch


@st.composite
def batches(draw):
    sizes = draw(st.lists(st.integers(1, 6), max_size=8))
    ends = np.cumsum([0, *sizes]).tolist()
    return [
        {"x": np.arange(a, b), "y": (np.ones((b - a, 2), np.float32) * a, np.arange(a, b) % 2 == 0)}
        for a, b in itertools.pairwise(ends)
    ]


@quick
@given(batches=batches(), size=st.integers(1, 9), drop=st.booleans(), cut=st.integers(0, 30))
def test_rebatched_batches_are_grains(batches, size, drop, cut):
    check_equal(lambda lib: lib.experimental.RebatchIterDataset(stream(lib, batches), size, drop), cut)


@quick
@given(batches=batches(), size=st.integers(1, 9), drop=st.booleans())
def test_rebatch_keeps_every_element_and_resumes(batches, size, drop):
    ds = stream(bushel, batches).rebatch(size, drop_remainder=drop)
    check_resumes_anywhere(ds)
    check_same_for_any_executor(ds)
    found = [batch["x"] for batch in ds]
    total = sum(len(batch["x"]) for batch in batches)
    assert np.concatenate([*found, []]).tolist() == list(range(total - total % size if drop else total))
    assert all(len(batch) == size for batch in found[:-1])


def test_we_differ_a_rebatch_restored_after_its_last_batch_has_ended():
    def after_the_end(lib):
        ds = lib.experimental.RebatchIterDataset(stream(lib, [np.arange(4)]), 2)
        it = iter(ds)
        for _ in range(2):
            next(it)
        return list(restored(ds, plain(it.get_state())))

    assert [batch.tolist() for batch in after_the_end(grain)] == [[]]
    assert after_the_end(bushel) == []


def test_we_differ_a_rebatch_restored_between_two_batches_changes_no_dtype():
    def after_one(lib):
        ds = lib.experimental.RebatchIterDataset(stream(lib, [np.array([1.5]), np.array([2])]), 1)
        it = iter(ds)
        next(it)
        state = plain(it.get_state())
        return next(it).dtype, next(restored(ds, state)).dtype

    assert after_one(grain) == (np.int64, np.float64)
    assert after_one(bushel) == (np.int64, np.int64)


@pytest.mark.parametrize("batch", [np.zeros((0, 2)), 7, {"x": np.arange(2), "y": np.arange(3)}, {}])
def test_what_is_no_batch_is_not_rebatched(batch):
    with pytest.raises(ValueError, match="rebatch needs trees of arrays that share a first axis"):
        next(iter(stream(bushel, [batch]).rebatch(2)))


# ---------------------------------------------------------------------------------------------------------------------
# Window shuffles


@quick
@given(length=st.integers(1, 60), window=st.integers(1, 20), seed=st.integers(0, 2**32 - 1), epoch=st.integers(-2, 3))
def test_a_window_shuffle_keeps_each_element_in_its_window(length, window, seed, epoch):
    places = np.arange(length) + epoch * length
    shuffled = window_shuffle(places, length=length, window=window, seed=seed)
    assert sorted(shuffled.tolist()) == places.tolist()
    assert ((shuffled - epoch * length) // window == np.arange(length) // window).all()
    few = [int(window_shuffle(places[i : i + 1], length=length, window=window, seed=seed)[0]) for i in range(length)]
    assert few == shuffled.tolist()


@quick
@given(windows=st.integers(1, 5), window=st.integers(3, 20), seed=st.integers(0, 1000), epoch=st.integers(0, 2))
def test_whole_windows_are_shuffled_as_in_grain(windows, window, seed, epoch):
    length = windows * window
    ours, theirs = (
        lib.experimental.WindowShuffleMapDataset(
            lib.MapDataset.range(length).shuffle(seed=1), window_size=window, seed=seed
        )
        for lib in (bushel, grain)
    )
    places = [epoch * length, (epoch + 1) * length - 1]
    assert [ours[i] for i in places] == [theirs[i] for i in places]


def test_we_differ_a_window_shuffle_loses_no_element_at_the_end():
    def lost(lib):
        return [
            seed
            for seed in range(6)
            if set(lib.experimental.WindowShuffleMapDataset(lib.MapDataset.range(10), window_size=4, seed=seed))
            != set(range(10))
        ]

    assert lost(grain) == [0, 1, 4, 5]
    assert lost(bushel) == []
    # All but the last window are Grain's.
    ours, theirs = (
        list(lib.experimental.WindowShuffleMapDataset(lib.MapDataset.range(10), window_size=4, seed=2))
        for lib in (bushel, grain)
    )
    assert ours[:8] == theirs[:8]


def test_a_window_shuffle_takes_its_seed_from_above():
    derived = MapDataset.range(9).seed(4).shuffle()  # whose seed is that of its place
    seed = int(repr(derived).rpartition("seed=")[2].rstrip(")"))
    for ds in (MapDataset.range(9).seed(4), MapDataset.range(9).to_iter_dataset().seed(4)):
        assert list(ds.window_shuffle(3)) == list(ds.window_shuffle(3, seed=seed))
    with pytest.raises(ValueError, match="`window_shuffle` requires a seed"):
        MapDataset.range(9).window_shuffle(3)


@pytest.mark.parametrize(("arguments", "sentence"), [((0, 1), "window_size must be positive"), ((3, -1), "Seed must")])
def test_windows_that_make_no_sense_are_refused(arguments, sentence):
    for ds in (MapDataset.range(9), MapDataset.range(9).to_iter_dataset()):
        with pytest.raises(ValueError, match=sentence):
            ds.window_shuffle(arguments[0], seed=arguments[1])


# ---------------------------------------------------------------------------------------------------------------------
# Interleave


@st.composite
def parts(draw):
    """Lengths of datasets, and whether each is a MapDataset."""
    return draw(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=6))


def interleaved(lib, parts, cycle):
    datasets = [
        lib.MapDataset.range(100 * n, 100 * n + length)
        if is_map
        else mixed(lib, length).map(lambda x, n=n: 100 * n + x)
        for n, (length, is_map) in enumerate(parts)
    ]
    return lib.experimental.InterleaveIterDataset(datasets, cycle_length=cycle)


@settings(deadline=None, max_examples=40)
@given(parts=parts(), cycle=st.integers(1, 7), cut=st.integers(0, 30))
def test_interleaved_elements_are_grains(parts, cycle, cut):
    def of_the_living(states):
        for state in states:
            for place, ended in enumerate(state["exhausted"]):
                if ended:
                    state["iterators_in_use_states"][place] = None
        return states

    ours, theirs = (interleaved(lib, parts, cycle) for lib in (bushel, grain))
    our, their = run(iter(ours)), run(iter(theirs))
    assert our.elements == their.elements
    cut %= len(our.elements) + 1
    assert run(restored(ours, their.states[cut])).elements == our.elements[cut:]
    assert run(restored(theirs, our.states[cut])).elements == our.elements[cut:]
    assert of_the_living(our.states) == of_the_living(their.states)


@settings(deadline=None, max_examples=40)
@given(parts=parts(), cycle=st.integers(1, 7))
def test_an_interleave_keeps_the_laws(parts, cycle):
    ds = interleaved(bushel, parts, cycle)
    check_resumes_anywhere(ds)
    check_same_for_any_executor(ds)
    check_resumes_anywhere(ds.batch(3).repeat(2))


class Counted(IterDataset):
    """A stream that tells when it is opened and closed."""

    def __init__(self, name, length, log):
        super().__init__()
        self.name, self.length, self.log = name, length, log

    def __iter__(self):
        return CountedIterator(self)


class CountedIterator(bushel.DatasetIterator):
    def __init__(self, dataset):
        super().__init__()
        self.dataset, self.position = dataset, 0
        dataset.log.append(f"open {dataset.name}")

    def __next__(self):
        if self.position == self.dataset.length:
            raise StopIteration
        self.position += 1
        return (self.dataset.name, self.position)

    def get_state(self):
        return {"position": self.position}

    def set_state(self, state, *, check: bool = True):
        self.position = state["position"]

    def close(self):
        if not self._closed:
            self._closed = True
            self.dataset.log.append(f"close {self.dataset.name}")


def test_datasets_of_an_interleave_are_made_and_opened_when_their_turn_comes():
    log = []

    def make(name):
        log.append(f"make {name}")
        return Counted(name, 2, log)

    ds = bushel.experimental.InterleaveIterDataset(MapDataset.source(list("abcd")).map(make), cycle_length=2)
    assert log == []
    with iter(ds) as it:
        assert [next(it) for _ in range(2)] == [("a", 1), ("b", 1)]
        assert log == ["make a", "open a", "make b", "open b"]
        assert [next(it) for _ in range(3)] == [("a", 2), ("b", 2), ("c", 1)]
        assert log[4:] == ["close a", "close b", "make c", "open c"]
    assert log[8:] == ["close c"]


def test_a_dataset_that_a_filter_drops_is_left_out():
    def make(n):
        return MapDataset.range(10 * n, 10 * n + 2)

    names = MapDataset.range(5).filter(lambda n: n % 2 == 0)
    ds = bushel.experimental.InterleaveIterDataset(names.map(make), cycle_length=2)
    assert list(ds) == [0, 20, 1, 21, 40, 41]
    check_resumes_anywhere(ds)


@pytest.mark.parametrize("fails_at", [0, 1, 2])
def test_an_error_while_a_stream_ends_loses_nothing(fails_at):
    # The first stream ends, and the next is opened, in the very step that fails: all of it is undone.
    failures = [OSError("not now")] * 4  # elements of a batch that fail are tried once more, one by one

    def shaky(x):
        if x == ("c", fails_at + 1) and failures:
            raise failures.pop()
        return x

    def build(function):
        datasets = [Counted(name, length, []) for name, length in (("a", 1), ("b", 3), ("c", 3), ("d", 1))]
        return bushel.experimental.InterleaveIterDataset(datasets, cycle_length=2).map(function).batch(4, batch_fn=list)

    it, found, errors = iter(build(shaky)), [], 0
    while True:
        try:
            found.append(next(it))
        except OSError:
            errors += 1
        except StopIteration:
            break
    assert errors >= 2 and not failures
    assert found == list(build(lambda x: x))


def test_what_is_no_dataset_is_not_interleaved():
    with pytest.raises(TypeError, match="takes an IterDataset, got 3"):
        bushel.experimental.InterleaveIterDataset([3], cycle_length=1)
    ds = bushel.experimental.InterleaveIterDataset(MapDataset.range(2), cycle_length=1)
    with pytest.raises(TypeError, match="An interleave takes datasets, got 0 of type int"):
        next(iter(ds))
    with pytest.raises(ValueError, match="at least one dataset"):
        bushel.experimental.InterleaveIterDataset([], cycle_length=1)
    with pytest.raises(ValueError, match="cycle_length must be positive"):
        bushel.experimental.InterleaveIterDataset([MapDataset.range(2)], cycle_length=0)


def test_a_state_with_another_cycle_length_is_refused():
    state = iter(interleaved(bushel, [(2, True)] * 3, 2)).get_state()
    it = iter(interleaved(bushel, [(2, True)] * 3, 3))
    with pytest.raises(bushel.StateMismatch, match="interleave of 2 streams at a time; this one has 3"):
        it.set_state(state, check=False)


def test_we_differ_an_interleave_repeated_knows_its_streams():
    def second_epoch(lib):
        inner = lib.experimental.InterleaveIterDataset([numbers(2, lib), numbers(2, lib)], cycle_length=2)
        ds = lib.experimental.RepeatIterDataset(inner, 2)
        it = iter(ds)
        for _ in range(5):
            next(it)
        return list(restored(ds, plain(it.get_state())))

    assert second_epoch(grain) == []
    assert second_epoch(bushel) == [0, 1, 1]


# ---------------------------------------------------------------------------------------------------------------------
# Repeat and zip


def test_an_endless_repeat_of_nothing_ends():
    ds = numbers(5).filter(lambda x: x > 9).repeat()
    assert list(ds) == []
    it = iter(ds)
    assert next(it, "end") == next(it, "end") == "end"


def test_a_repeat_of_a_billion_empty_epochs_ends():
    assert list(numbers(0).repeat(10**9)) == []


@pytest.mark.parametrize(
    ("lengths", "sentence"),
    [
        ((3, 4), "zip: stream 2 is longer than stream 1. Pass strict=False"),
        ((4, 3), "zip: stream 2 is shorter than stream 1"),
        ((4, 4, 3), "zip: stream 3 is shorter than streams 1 to 2"),
    ],
)
def test_a_zip_of_unequal_streams_says_which(lengths, sentence):
    it = iter(numbers(lengths[0]).zip(*map(numbers, lengths[1:])))
    assert [next(it) for _ in range(3)][2] == (2,) * len(lengths)
    for _ in range(2):
        with pytest.raises(ValueError, match=sentence):
            next(it)


def test_a_zip_that_has_ended_reads_no_more():
    ds = numbers(5).map(FailsAt({3})).zip(numbers(1), strict=False)
    it = iter(ds)
    assert next(it) == (0, 0)
    assert next(it, "end") == "end"
    state = it.get_state()
    assert [next(it, "end") for _ in range(4)] == ["end"] * 4 and it.get_state() == state


def test_a_zip_that_has_ended_reads_no_more_after_a_restart():
    ds = numbers(5).map(FailsAt({2})).zip(numbers(1), strict=False).batch(2)
    it = iter(ds)
    next(it)  # it took the end of the zip to know that this is the last one
    restored = iter(ds)
    restored.set_state(it.get_state())
    assert next(restored, "end") == "end" and restored.get_state() == it.get_state()


def test_methods_and_classes_are_the_same():
    experimental, ds = bushel.experimental, numbers(7)
    pairs = [
        (ds.limit(3), experimental.LimitIterDataset(ds, 3)),
        (ds.repeat(2), experimental.RepeatIterDataset(ds, 2)),
        (ds.batch(3).rebatch(2), experimental.RebatchIterDataset(ds.batch(3), 2)),
        (ds.zip(ds), experimental.ZipIterDataset([ds, ds])),
        (ds.window_shuffle(3, seed=1), experimental.WindowShuffleIterDataset(ds, window_size=3, seed=1)),
        (ds.cache(), experimental.CacheIterDataset(ds)),
    ]
    for method, made in pairs:
        assert same(list(method), list(made))
        assert repr(method) == repr(made)
        iter(made).set_state(iter(method).get_state())  # of one identity


# ---------------------------------------------------------------------------------------------------------------------
# Mixtures by key, whose parts and weights may change


@settings(deadline=None, max_examples=40)
@given(
    before=st.dictionaries(st.sampled_from("abcd"), st.integers(1, 9), min_size=1),
    after=st.dictionaries(st.sampled_from("abcd"), st.integers(1, 9), min_size=1),
    taken=st.integers(0, 12),
)
def test_a_mixture_by_key_goes_on_with_other_parts_and_weights_as_in_grain(before, after, taken):
    def build(lib, weights):
        streams = {key: numbers(60, lib).map(lambda x, key=key: (key, x)) for key in weights}
        return lib.IterDataset.mix(streams, weights)

    rest = {}
    for lib in (bushel, grain):
        it = iter(build(lib, before))
        for _ in range(taken):
            next(it)
        rest[lib] = run(restored(build(lib, after), plain(it.get_state())), 20)
    assert rest[bushel].elements == rest[grain].elements
    assert rest[bushel].states == rest[grain].states
    it = iter(build(bushel, after))
    it.set_state(iter(build(bushel, before)).get_state())  # the identity agrees, too


# ---------------------------------------------------------------------------------------------------------------------
# The check that Grain's users know


@pytest.mark.filterwarnings("ignore:.* draws from a generator of its own")
@pytest.mark.parametrize("lib", [bushel, grain], ids=["bushel", "grain"])
def test_the_check_of_checkpoints_accepts_and_refuses(lib):
    check = lib.experimental.assert_equal_output_after_checkpoint
    check(lib.experimental.WindowShuffleIterDataset(numbers(7, lib), window_size=3, seed=1))
    with pytest.raises(AssertionError):
        check(numbers(0, lib))
    rng = np.random.default_rng(0)
    with pytest.raises(AssertionError):
        check(numbers(5, lib).map(lambda x: x + rng.random()))

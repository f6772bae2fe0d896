"""Bad arguments are refused at once, in a sentence; with Grain's type of error where Grain refuses them too."""

import math
from concurrent.futures import Future

import grain
import pytest

import bushel
from bushel import MapDataset, ReadOptions
from bushel.engine import Executor, Ticket


def ten():
    return MapDataset.range(10)


def stream(library):
    return library.MapDataset.range(4).to_iter_dataset()


def two(library):
    return [library.MapDataset.range(10), library.MapDataset.range(10)]


def two_streams(library):
    return [stream(library), stream(library)]


def split(library):
    class Split(library.experimental.FlatMapTransform):
        max_fan_out = 2

        def flat_map(self, element):
            return [element]

    return Split()


ARGUMENTS = {
    "mix, zero weight": (
        lambda g: g.MapDataset.mix(two(g), [0, 1]),
        ValueError,
        "Must specify all non-zero proportions for mixing, got [0.0, 1.0]. Leave the dataset out instead.",
    ),
    "mix, negative weight": (
        lambda g: g.MapDataset.mix(two(g), [-1, 2]),
        ValueError,
        "Weights for mixing must be positive, got [-1.0, 2.0].",
    ),
    "mix, NaN": (
        lambda g: g.MapDataset.mix(two(g), [math.nan, 1]),
        ValueError,
        "Weights for mixing must be finite numbers, got [nan, 1.0].",
    ),
    "mix, infinite weight": (
        lambda g: g.MapDataset.mix(two(g), [math.inf, 1]),
        ValueError,
        "Weights for mixing must be finite numbers, got [inf, 1.0].",
    ),
    "mix, too few weights": (
        lambda g: g.MapDataset.mix(two(g), [1]),
        ValueError,
        "A mixture of 2 datasets needs 2 weights, got 1: [1.0].",
    ),
    "mix, too many weights": (
        lambda g: g.MapDataset.mix(two(g), [1, 2, 3]),
        ValueError,
        "A mixture of 2 datasets needs 2 weights, got 3: [1.0, 2.0, 3.0].",
    ),
    "mix, weights of text": (lambda g: g.MapDataset.mix(two(g), ["a", "b"]), TypeError, "Weights for mixing must be"),
    "mix of nothing": (lambda g: g.MapDataset.mix([]), ValueError, "mix needs at least one dataset."),
    "mix with an empty dataset": (
        lambda g: g.MapDataset.mix([g.MapDataset.range(10), g.MapDataset.range(0)]),
        ValueError,
        "All datasets must have positive length for mixing, but the dataset at index 1 (range(0)) has length 0.",
    ),
    "mix of streams as maps": (
        lambda g: g.MapDataset.mix(two_streams(g)),
        TypeError,
        "mix takes MapDatasets, got an IterDataset.",
    ),
    "mix of maps as streams": (
        lambda g: g.IterDataset.mix(two(g)),
        TypeError,
        "IterDataset.mix takes IterDatasets, got a MapDataset.",
    ),
    "stream mix, zero weight": (
        lambda g: g.IterDataset.mix(two_streams(g), [1, 0]),
        ValueError,
        "Must specify all non-zero proportions for mixing, got [1.0, 0.0].",
    ),
    "stream mix, negative weight": (
        lambda g: g.IterDataset.mix(two_streams(g), [-1, 2]),
        ValueError,
        "Weights for mixing must be positive, got [-1.0, 2.0].",
    ),
    "stream mix, too few weights": (
        lambda g: g.IterDataset.mix(two_streams(g), [1]),
        ValueError,
        "A mixture of 2 datasets needs 2 weights, got 1: [1.0].",
    ),
    "stream mix of nothing": (
        lambda g: g.IterDataset.mix([]),
        ValueError,
        "IterDataset.mix needs at least one dataset.",
    ),
    "stream mix, other keys": (
        lambda g: g.IterDataset.mix({"a": stream(g)}, {"b": 1}),
        ValueError,
        "Datasets by key need weights with the same keys ['a'], got {'b': 1}.",
    ),
    "batch of 0": (
        lambda g: g.MapDataset.range(10).batch(0),
        ValueError,
        "batch_size must be positive, but got 0.",
    ),
    "batch of -1": (
        lambda g: g.MapDataset.range(10).batch(-1),
        ValueError,
        "batch_size must be positive, but got -1.",
    ),
    "batch of 2.0": (
        lambda g: g.MapDataset.range(10).batch(2.0),
        TypeError,
        "batch_size must be an integer, got 2.0 of type float.",
    ),
    "batch of True": (
        lambda g: g.MapDataset.range(10).batch(True),
        TypeError,
        "batch_size must be an integer, got True of type bool.",
    ),
    "batch of text": (
        lambda g: g.MapDataset.range(10).batch("4"),
        TypeError,
        "batch_size must be an integer, got '4' of type str.",
    ),
    "stream batch of 0": (lambda g: stream(g).batch(0), ValueError, "batch_size must be positive, but got 0."),
    "stream batch of 2.5": (
        lambda g: stream(g).batch(2.5),
        TypeError,
        "batch_size must be an integer, got 2.5 of type float.",
    ),
    "batch after filter": (
        lambda g: g.MapDataset.range(10).filter(bool).batch(2),
        ValueError,
        "`MapDataset.batch` can not follow `MapDataset.filter` because it can discard elements. Convert "
        "`MapDataset` to `IterDataset` with `to_iter_dataset()` before calling `batch`.",
    ),
    "batch long after filter": (
        lambda g: g.MapDataset.range(10).filter(bool).shuffle(seed=1).map(str).batch(2),
        ValueError,
        "`MapDataset.batch` can not follow `MapDataset.filter`",
    ),
    "batch after flat_map": (
        lambda g: g.MapDataset.range(10).apply(split(g)).batch(2),
        ValueError,
        "`MapDataset.batch` can not follow `MapDataset.flat_map`",
    ),
    "slice with step 0": (
        lambda g: g.MapDataset.range(10)[::0],
        ValueError,
        "A slice needs a step other than zero, got slice(None, None, 0).",
    ),
    "slice, position out of range": (
        lambda g: g.MapDataset.range(10).slice([1, 20]),
        IndexError,
        "Position 20 is out of range for a dataset of length 10.",
    ),
    "slice, position of an empty dataset": (
        lambda g: g.MapDataset.range(0).slice([0]),
        IndexError,
        "Position 0 is out of range for a dataset of length 0.",
    ),
    "slice, position is no integer": (
        lambda g: g.MapDataset.range(10).slice([1.5]),
        TypeError,
        "slice takes a slice or a sequence of integers; a position must be an integer, got 1.5 of type float.",
    ),
    "slice of an integer": (
        lambda g: g.MapDataset.range(10).slice(3),
        TypeError,
        "slice takes a slice or a sequence of integers; ",
    ),
    "seed(-1)": (
        lambda g: g.MapDataset.range(10).seed(-1).shuffle(),
        ValueError,
        "Seed must be an integer that is not negative (got seed=-1).",
    ),
    "seed(1.5)": (
        lambda g: g.MapDataset.range(10).seed(1.5),
        TypeError,
        "Seed must be an integer, got 1.5 of type float.",
    ),
    "seed(True)": (
        lambda g: g.MapDataset.range(10).seed(True),
        TypeError,
        "Seed must be an integer, got True of type bool.",
    ),
    "seed(None)": (
        lambda g: g.MapDataset.range(10).seed(None),
        TypeError,
        "Seed must be an integer, got None of type NoneType.",
    ),
    "stream seed(1.5)": (lambda g: stream(g).seed(1.5), TypeError, "Seed must be an integer, got 1.5 of type float."),
    "shuffle(seed=-1)": (
        lambda g: g.MapDataset.range(10).shuffle(seed=-1),
        ValueError,
        "Seed must be an integer between 0 and 2**32-1 (got seed=-1).",
    ),
    "shuffle(seed=2**32)": (
        lambda g: g.MapDataset.range(10).shuffle(seed=2**32),
        ValueError,
        "Seed must be an integer between 0 and 2**32-1 (got seed=4294967296).",
    ),
    "shuffle(seed=1.5)": (
        lambda g: g.MapDataset.range(10).shuffle(seed=1.5),
        TypeError,
        "Seed must be an integer, got 1.5 of type float.",
    ),
    "shuffle(seed=True)": (
        lambda g: g.MapDataset.range(10).shuffle(seed=True),
        TypeError,
        "Seed must be an integer, got True of type bool.",
    ),
    "shuffle without a seed": (
        lambda g: g.MapDataset.range(10).shuffle(),
        ValueError,
        "`shuffle` requires a seed. Please provide it with `ds.seed(seed)` or `shuffle(seed=...)`.",
    ),
    "random_map without a seed": (
        lambda g: g.MapDataset.range(10).random_map(lambda x, rng: x),
        ValueError,
        "`random_map` requires a seed. Please either provide it with `ds.seed(seed)` before any random "
        "transformations or pass it directly with `ds.random_map(transform, seed=seed)`.",
    ),
    "stream random_map without a seed": (
        lambda g: stream(g).random_map(lambda x, rng: x),
        ValueError,
        "`random_map` requires a seed. Please either provide it",
    ),
    "random_map(seed=-1)": (
        lambda g: g.MapDataset.range(10).random_map(lambda x, rng: x, seed=-1),
        ValueError,
        "Seed must be an integer that is not negative (got seed=-1).",
    ),
    "element of an empty range": (
        lambda g: g.MapDataset.range(0)[0],
        IndexError,
        "range(0) is empty: it has no element 0.",
    ),
    "element of an empty source": (
        lambda g: g.MapDataset.source([])[3],
        IndexError,
        "source(list of 0) is empty: it has no element 3.",
    ),
    "element of an empty slice": (
        lambda g: g.MapDataset.range(10)[5:5].map(str)[0],
        IndexError,
        "map(str) is empty: it has no element 0.",
    ),
    "concatenate nothing": (
        lambda g: g.MapDataset.concatenate([]),
        ValueError,
        "concatenate needs at least one dataset.",
    ),
    "concatenate an endless dataset": (
        lambda g: g.MapDataset.concatenate([g.MapDataset.range(10).repeat(), g.MapDataset.range(10)]),
        ValueError,
        "Cannot concatenate infinite datasets. repeat() is infinite.",
    ),
    "repeat an endless dataset": (
        lambda g: g.MapDataset.range(10).repeat().repeat(2),
        ValueError,
        "Repeating already infinite dataset repeat() does nothing.",
    ),
    "repeat(0)": (
        lambda g: g.MapDataset.range(10).repeat(0),
        ValueError,
        "num_epochs must be positive, but got 0.",
    ),
    "repeat(-1)": (
        lambda g: g.MapDataset.range(10).repeat(-1),
        ValueError,
        "num_epochs must be positive, but got -1.",
    ),
    "repeat(1.5)": (
        lambda g: g.MapDataset.range(10).repeat(1.5),
        TypeError,
        "num_epochs must be an integer, got 1.5 of type float.",
    ),
    "map of a number": (
        lambda g: g.MapDataset.range(10).map(3),
        TypeError,
        "`map` takes a function or a Map transformation, got 3 of type int.",
    ),
    "filter of text": (
        lambda g: g.MapDataset.range(10).filter("x"),
        TypeError,
        "`filter` takes a function or a Filter transformation, got 'x' of type str.",
    ),
    "random_map of None": (
        lambda g: g.MapDataset.range(10).random_map(None, seed=1),
        TypeError,
        "`random_map` takes a function or a RandomMap transformation, got None of type NoneType.",
    ),
    "map_with_index of a list": (
        lambda g: g.MapDataset.range(10).map_with_index([1]),
        TypeError,
        "`map_with_index` takes a function or a MapWithIndex transformation, got [1] of type list.",
    ),
    "stream map of a number": (
        lambda g: stream(g).map(3),
        TypeError,
        "`map` takes a function or a Map transformation, got 3 of type int.",
    ),
    "map of a transformation of another kind": (
        lambda g: g.MapDataset.range(10).map(split(g)),
        TypeError,
        "`map` takes a function or a Map transformation, got <",
    ),
    "flat_map of a function": (
        lambda g: g.experimental.FlatMapMapDataset(g.MapDataset.range(10), list),
        TypeError,
        "`flat_map` takes a",
    ),
    "stream flat_map of a function": (
        lambda g: g.experimental.FlatMapIterDataset(stream(g), list),
        TypeError,
        "`flat_map` takes a",
    ),
    "source of a number": (
        lambda g: g.MapDataset.source(3),
        TypeError,
        "A source needs `__len__` and `__getitem__`, got int. Pass a list, an array, or a source of bushel.sources. "
        "For data that is read in order, write an IterDataset.",
    ),
    "source of a generator": (
        lambda g: g.MapDataset.source(x for x in "ab"),
        TypeError,
        "A source needs `__len__` and `__getitem__`, got generator.",
    ),
    "source of a set": (
        lambda g: g.MapDataset.source({1, 2}),
        TypeError,
        "A source needs `__len__` and `__getitem__`, got set.",
    ),
    "source of a text": (
        lambda g: g.MapDataset.source("train-*.array_record"),
        TypeError,
        "A source holds records, but 'train-*.array_record' is a str. If it names files, open them: "
        "`bushel.MapDataset.source(bushel.sources.open(path))`.",
    ),
    "source of splits": (
        lambda g: g.MapDataset.source({"train": [1, 2], "test": [3]}),
        TypeError,
        "A source is read by position from 0 on, but this dict has the keys 'train', 'test'. Pass one of its values",
    ),
    "ds[1.5]": (
        lambda g: g.MapDataset.range(10)[1.5],
        TypeError,
        "index must be an integer, got 1.5 of type float.",
    ),
    "ds[True]": (
        lambda g: g.MapDataset.range(10)[True],
        TypeError,
        "index must be an integer, got True of type bool.",
    ),
    "ds['a']": (
        lambda g: g.MapDataset.range(10)["a"],
        TypeError,
        "index must be an integer, got 'a' of type str.",
    ),
    "ds[None]": (
        lambda g: g.MapDataset.range(10)[None],
        TypeError,
        "index must be an integer, got None of type NoneType.",
    ),
    "ReadOptions, negative threads": (
        lambda g: g.ReadOptions(num_threads=-1),
        ValueError,
        "num_threads must be non-negative, got -1",
    ),
    "ReadOptions, negative buffer": (
        lambda g: g.ReadOptions(prefetch_buffer_size=-1),
        ValueError,
        "prefetch_buffer_size must be non-negative, got -1",
    ),
    "ReadOptions, half a thread": (
        lambda g: g.ReadOptions(num_threads=0.5),
        TypeError,
        "num_threads must be an integer, got 0.5 of type float.",
    ),
    "zip of unequal lengths": (
        lambda g: g.experimental.ZipMapDataset([g.MapDataset.range(10), g.MapDataset.range(3)]),
        ValueError,
        "All parents must have the same length. Got lengths [10, 3].",
    ),
    "zip of nothing": (
        lambda g: g.experimental.ZipMapDataset([]),
        ValueError,
        "At least one parent must be provided.",
    ),
    "range with step 0": (
        lambda g: g.MapDataset.range(0, 5, 0),
        ValueError,
        "step of a range must not be zero.",
    ),
    "range(1.5)": (
        lambda g: g.MapDataset.range(1.5),
        TypeError,
        "stop must be an integer, got 1.5 of type float.",
    ),
    "apply of a number": (
        lambda g: g.MapDataset.range(10).apply(3),
        NotImplementedError,
        "Transformation type: 3 is not supported.",
    ),
    "batch_and_pad of too many": (
        lambda g: g.experimental.batch_and_pad([1, 2, 3], batch_size=2),
        ValueError,
        "Cannot batch 3 values to 2.",
    ),
    "batch_and_pad of none": (
        lambda g: g.experimental.batch_and_pad([], batch_size=2),
        ValueError,
        "Cannot batch 0 values.",
    ),
    "index_shuffle out of range": (
        lambda g: g.experimental.index_shuffle(11, max_index=10, seed=1, rounds=4),
        ValueError,
        "index must be in [0, max_index], but got index = 11 and max_index = 10",
    ),
    "index_shuffle, odd rounds": (
        lambda g: g.experimental.index_shuffle(1, max_index=10, seed=1, rounds=5),
        ValueError,
        "rounds must be an even integer between 4 and 1024, but got rounds = 5",
    ),
    "mp_prefetch(True)": (
        lambda g: stream(g).mp_prefetch(True),
        TypeError,
        "workers must be a number of worker processes, bushel.MultiprocessingOptions or bushel.RayOptions, got",
    ),
    "mp_prefetch(-1)": (lambda g: stream(g).mp_prefetch(-1), ValueError, "num_workers must be non-negative, got -1"),
    "mp_prefetch, no init function": (
        lambda g: stream(g).mp_prefetch(g.multiprocessing.MultiprocessingOptions(2), worker_init_fn=3),
        TypeError,
        "worker_init_fn must be a function of (worker index, worker count), got 3.",
    ),
    "to_iter_dataset(3)": (
        lambda g: g.MapDataset.range(4).to_iter_dataset(3),
        TypeError,
        "read_options must be ReadOptions, got 3 of type int: ReadOptions(num_threads=...).",
    ),
    "multithread_prefetch of a map": (
        lambda g: g.experimental.multithread_prefetch(g.MapDataset.range(4), num_threads=2, buffer_size=1),
        TypeError,
        "The dataset of multithread_prefetch must be IterDataset, got ",
    ),
    "multithread_prefetch, negative": (
        lambda g: g.experimental.multithread_prefetch(stream(g), num_threads=-1, buffer_size=1),
        ValueError,
        "num_threads must be greater than or equal to 0, got -1.",
    ),
    "multithread_prefetch, buffer of text": (
        lambda g: g.experimental.multithread_prefetch(stream(g), num_threads=1, buffer_size="2"),
        TypeError,
        "buffer_size must be an integer, got '2' of type str.",
    ),
    "index_shuffle, negative seed": (
        lambda g: g.experimental.index_shuffle(1, max_index=10, seed=-1, rounds=4),
        ValueError,
        "seed must be between 0 and 2**32-1, but got seed = -1",
    ),
}


class NoSeconds(Executor):
    """Answers with the result alone."""

    def submit(self, task):
        done = Future()
        done.set_result(task.run())
        return Ticket(task, done)

    def wait(self, ticket):
        return ticket.done.result()

    def forget(self, tickets):
        pass

    def close(self):
        pass


@pytest.mark.parametrize("executor", [3, None, NoSeconds], ids=repr)
def test_what_is_no_executor_is_refused(executor):
    with pytest.raises(TypeError, match=r"executor of iterate_on must be Executor, got .*: pass an instance of a cl"):
        stream(bushel).iterate_on(executor)


@pytest.mark.parametrize(
    "build", [stream, lambda g: g.IterDataset.mix([stream(g)]).map(abs), lambda g: stream(g).with_options(**TIMED)]
)
def test_an_executor_that_answers_something_else_is_told(build):
    with build(bushel).iterate_on(NoSeconds()) as it, pytest.raises(TypeError) as raised:
        next(it)
    assert str(raised.value) == (
        "`wait` of NoSeconds must return the result of task.run() and the seconds it took, as a tuple of these two; "
        "got Result."
    )


TIMED = {"execution_tracking_mode": bushel.experimental.ExecutionTrackingMode.STAGE_TIMING}


@pytest.mark.parametrize(("call", "kind", "sentence"), ARGUMENTS.values(), ids=ARGUMENTS)
def test_a_bad_argument_is_refused_in_a_sentence(call, kind, sentence):
    with pytest.raises(kind) as raised:
        call(bushel)
    assert type(raised.value) is kind
    assert str(raised.value).startswith(sentence)


# Where Grain refuses too, but with another type of error, or with its own only when the data is read.
OTHER_TYPE = {
    "mix, infinite weight": "OverflowError",
    "mix, too few weights": "AssertionError",
    "mix, too many weights": "AssertionError",
    "stream mix, too few weights": "AssertionError",
    "slice, position out of range": "ValueError",  # 0.2.18 takes no list of positions at all
    "slice, position of an empty dataset": "ValueError",
    "slice, position is no integer": "ValueError",
    "slice of an integer": "ValueError",
    "element of an empty range": "ZeroDivisionError",
    "element of an empty source": "ZeroDivisionError",
    "element of an empty slice": "ZeroDivisionError",
    "index_shuffle, negative seed": "TypeError",
    "mp_prefetch(True)": "AttributeError",
    "mp_prefetch(-1)": "AttributeError",
    "multithread_prefetch of a map": "AssertionError",
}

# What Grain takes without a word, when it is built.
TAKEN_BY_GRAIN = {
    "mix of maps as streams",
    "stream mix, negative weight",
    "stream mix, other keys",
    "batch of 2.0",
    "batch of True",
    "stream batch of 2.5",
    "seed(1.5)",
    "seed(True)",
    "seed(None)",
    "stream seed(1.5)",
    "shuffle(seed=1.5)",
    "shuffle(seed=True)",
    "random_map(seed=-1)",
    "concatenate nothing",
    "repeat(1.5)",
    "map of a number",
    "filter of text",
    "random_map of None",
    "map_with_index of a list",
    "stream map of a number",
    "map of a transformation of another kind",
    "flat_map of a function",
    "stream flat_map of a function",
    "source of a number",
    "source of a generator",
    "source of a set",
    "source of a text",
    "source of splits",
    "ds[1.5]",
    "ds[True]",
    "ReadOptions, half a thread",
    "to_iter_dataset(3)",
    "multithread_prefetch, negative",
    "multithread_prefetch, buffer of text",
}


def grains_error(call):
    try:
        call(grain)
    except Exception as error:
        return type(error).__name__
    return None


@pytest.mark.parametrize("name", ARGUMENTS)
def test_the_type_of_error_is_grains_or_listed(name):
    call, kind, _ = ARGUMENTS[name]
    expected = None if name in TAKEN_BY_GRAIN else OTHER_TYPE.get(name, kind.__name__)
    assert grains_error(call) == expected


@pytest.mark.parametrize("indices", ["ab", [1.5], 3, [[1, 2]], [True], None], ids=repr)
def test_get_needs_integers(indices):
    with pytest.raises(TypeError, match="get needs a list of integers, got "):
        ten().get(indices)


def test_a_time_is_a_number():
    for wrong in ("5", True, [1]):
        with pytest.raises(TypeError, match="timeout_s must be a number, got "):
            bushel.MultiprocessingOptions(2, timeout_s=wrong)
    for wrong in (0, -1.0, math.nan):
        with pytest.raises(ValueError, match="timeout_s must be positive, got "):
            bushel.MultiprocessingOptions(2, timeout_s=wrong)


def test_get_of_nothing_is_an_empty_list():
    assert ten().get([]) == []


def test_an_index_past_64_bits_is_some_epoch_as_in_grain():
    assert ten()[2**70] == grain.MapDataset.range(10)[2**70] == 2**70 % 10


def test_an_unusual_pair_of_read_options_is_warned_of(caplog):
    ReadOptions(num_threads=16, prefetch_buffer_size=4)
    assert [record.getMessage() for record in caplog.records] == [
        "prefetch_buffer_size=4 is smaller than num_threads=16: at most 4 threads can work at a time."
    ]
    caplog.clear()
    ReadOptions(num_threads=16, prefetch_buffer_size=0)
    assert not caplog.records


def test_a_filter_that_drops_nearly_all_is_warned_of(caplog):
    assert list(MapDataset.range(3000).to_iter_dataset().filter(lambda x: x == 5)) == [5]
    assert [record.getMessage() for record in caplog.records] == [
        "filter(<lambda>) dropped 99.90 % of the last 1000 elements. Please check the filter; if it is meant, "
        "filtering the data once before training is cheaper. This is said from 90 % on: see "
        "DatasetOptions(filter_warn_threshold_ratio=...), None for never."
    ]
    caplog.clear()
    assert list(MapDataset.range(3000).filter(lambda x: x == 5)) == [5]
    assert len(caplog.records) == 1

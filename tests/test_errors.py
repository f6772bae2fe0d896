"""What an error tells: a user's own error keeps its type and gets its place in the pipeline."""

import pathlib
import traceback

import grain
import numpy as np
import pytest

import bushel
from bushel import IterDataset, MapDataset, ReadOptions
from bushel import experimental as ex
from bushel._src.base.errors import StoppedByUser

HERE = "/".join(pathlib.Path(__file__).parts[-3:])
EXECUTORS = [None, ReadOptions(0, 0), ReadOptions(1, 1), ReadOptions(3, 8)]


class Broken(Exception):
    """An error of the user's own."""


def bad(x, *_):
    """Fails on seven."""
    if x == 7:
        raise Broken("seven")
    return x


class NoVerdict:
    """As an array of several bools: neither true nor false."""

    def __bool__(self):
        raise Broken("seven")


def ambiguous(x):
    return NoVerdict() if x == 7 else True


def bad_at_index(_, x):
    return bad(x)


def bad_pair(pair):
    return bad(pair[1])


def bad_columns(xs):
    if (np.asarray(xs) == 7).any():
        raise Broken("seven among them")
    return xs


def bad_batch(rows):
    return [bad(row) for row in rows]


class BadMap(bushel.transforms.Map):
    def map(self, element):
        return bad(element)


class BadSplit(bushel.transforms.FlatMap):
    max_fan_out = 2

    def flat_map(self, element):
        return [bad(element), element]


class BadSource:
    def __len__(self):
        return 10

    def __getitem__(self, index):
        return bad(index)


class BadManyReads(BadSource):
    def __getitems__(self, indices):
        return [bad(index) for index in indices]


class BadDataset(MapDataset):
    def __init__(self, parent):
        super().__init__(parent)

    def __len__(self):
        return len(self._parent)

    def __getitem__(self, index):
        return bad(self._parent[index])


def at(function):
    """`file.py:line` of a function, as messages have it."""
    return f"{HERE}:{function.__code__.co_firstlineno}"


def ten():
    return MapDataset.range(10)


def shuffled():
    """Seven is the second element."""
    return ten().shuffle(seed=1)


def zipped(*parts):
    return bushel.experimental.ZipMapDataset(parts)


# Each pipeline fails on the number seven. (How it is built, the first note, the element of the dataset that it is.)
MAPS = {
    "map": (
        lambda: ten().map(bad),
        f"map(bad @ {at(bad)}) failed at its element 7, made of record 7 of range(10).",
        7,
    ),
    "map after shuffle": (
        lambda: shuffled().map(bad),
        f"map(bad @ {at(bad)}) failed at its element 1, made of record 7 of range(10).",
        1,
    ),
    "map before shuffle": (
        lambda: ten().map(bad).shuffle(seed=1),
        f"map(bad @ {at(bad)}) failed at its element 7, made of record 7 of range(10).",
        1,
    ),
    "transform class": (
        lambda: ten().map(BadMap()),
        f"map(BadMap @ {at(BadMap.map)}) failed at its element 7, made of record 7 of range(10).",
        7,
    ),
    "map_with_index": (
        lambda: shuffled().map_with_index(bad_at_index),
        f"map_with_index(bad_at_index @ {at(bad_at_index)}) failed at its element 1, made of record 7 of range(10).",
        1,
    ),
    "random_map": (
        lambda: ten().random_map(bad, seed=1),
        f"random_map(bad @ {at(bad)}) failed at its element 7, made of record 7 of range(10).",
        7,
    ),
    "filter": (
        lambda: ten().filter(bad),
        f"filter(bad @ {at(bad)}) failed at its element 7, made of record 7 of range(10).",
        7,
    ),
    "filter without a verdict": (
        lambda: ten().filter(ambiguous),
        f"filter(ambiguous @ {at(ambiguous)}) failed at its element 7, made of record 7 of range(10).",
        7,
    ),
    "flat_map": (
        lambda: ten().apply(BadSplit()),
        f"flat_map(BadSplit @ {at(BadSplit.flat_map)}) failed at its element 7, made of record 7 of range(10).",
        14,
    ),
    "vectorized map": (
        lambda: ten().map(bad_columns, vectorized=True),
        f"map(bad_columns @ {at(bad_columns)}) failed at its element 7, made of record 7 of range(10).",
        7,
    ),
    "vectorized filter": (
        lambda: ten().filter(bad_columns, vectorized=True),
        f"filter(bad_columns @ {at(bad_columns)}) failed at its element 7, made of record 7 of range(10).",
        7,
    ),
    "batch": (
        lambda: ten().map(bad).batch(3),
        f"map(bad @ {at(bad)}) failed at its element 7, made of record 7 of range(10).",
        2,
    ),
    "batch after shuffle": (
        lambda: shuffled().map(bad).batch(3),
        f"map(bad @ {at(bad)}) failed at its element 1, made of record 7 of range(10).",
        0,
    ),
    "map after batch": (
        lambda: ten().batch(3).map(bad_columns),
        f"map(bad_columns @ {at(bad_columns)}) failed at its element 2, made of records 6, 7, 8 of range(10).",
        2,
    ),
    "map after a large batch": (
        lambda: ten().batch(10).map(bad_columns),
        f"map(bad_columns @ {at(bad_columns)}) failed at its element 0, "
        "made of records 0, 1, 2, 3, 4, 5, 6, 7, ... of range(10).",
        0,
    ),
    "batch_fn": (
        lambda: ten().batch(3, batch_fn=bad_batch),
        "batch(3, batch_fn=bad_batch) failed at its element 2, made of records 6, 7, 8 of range(10).",
        2,
    ),
    "source": (lambda: MapDataset.source(BadSource()), "reading record 7 of BadSource failed.", 7),
    "source after shuffle": (
        lambda: MapDataset.source(BadSource()).shuffle(seed=1),
        "reading record 7 of BadSource failed.",
        1,
    ),
    "source of many reads": (
        lambda: MapDataset.source(BadManyReads()),
        "reading record 7 of BadManyReads failed.",
        7,
    ),
    "mix": (
        lambda: MapDataset.mix([ten().map(bad), MapDataset.range(100, 110).map(bad)]),
        f"map(bad @ {at(bad)}) failed at its element 7, made of record 7 of range(10).",
        14,
    ),
    "concatenate": (
        lambda: MapDataset.concatenate([MapDataset.range(100, 103), ten().map(bad)]),
        f"map(bad @ {at(bad)}) failed at its element 7, made of record 7 of range(10).",
        10,
    ),
    "mix, concatenate, batch": (
        lambda: MapDataset.concatenate([MapDataset.range(100, 103), MapDataset.mix([ten().map(bad), ten()])]).batch(4),
        f"map(bad @ {at(bad)}) failed at its element 7, made of record 7 of range(10).",
        4,
    ),
    "zip": (
        lambda: zipped(ten(), shuffled()).map(bad_pair),
        f"map(bad_pair @ {at(bad_pair)}) failed at its element 1, "
        "made of record 1 of range(10); record 7 of range(10).",
        1,
    ),
    "one part of a zip": (
        lambda: zipped(ten(), ten().map(bad)),
        f"map(bad @ {at(bad)}) failed at its element 7, made of record 7 of range(10).",
        7,
    ),
    "slice of a later epoch": (
        lambda: ten().map(bad).repeat(2)[8:],
        f"map(bad @ {at(bad)}) failed at its element 17, made of record 7 of range(10).",
        9,
    ),
    "dataset of one's own": (
        lambda: ten().pipe(BadDataset).map(lambda x: x),
        "pipe(BadDataset) failed at its element 7.",
        7,
    ),
}


def iterated(it):
    """What came before the error, and the error."""
    came = []
    with pytest.raises(Broken) as raised:
        for element in it:
            came.append(element)
    return came, raised.value


@pytest.mark.parametrize("options", EXECUTORS, ids=repr)
@pytest.mark.parametrize(("build", "note", "index"), MAPS.values(), ids=MAPS)
def test_an_error_tells_where_it_happened(build, note, index, options):
    it = iter(build().to_iter_dataset(options))
    came, error = iterated(it)
    assert error.__notes__ == [f"bushel: {note}", f"bushel: this was element {index} of the output."]
    assert len(came) in (index, index - 1)  # a filter drops the zero
    assert it.get_state()["next_index"] == index


@pytest.mark.parametrize(("build", "note", "index"), MAPS.values(), ids=MAPS)
def test_random_access_tells_the_same(build, note, index):
    ds = build()
    with pytest.raises(Broken) as raised:
        ds[index]
    assert raised.value.__notes__ == [f"bushel: {note}", f"bushel: this was element {index} of the dataset."]


@pytest.mark.parametrize("name", ["map", "map after shuffle", "batch", "mix", "flat_map", "source"])
def test_taking_many_names_the_one_that_failed(name):
    build, note, index = MAPS[name]
    order = [*[n for n in range(len(build())) if n != index][:2], index]
    with pytest.raises(Broken) as raised:
        build().get(order)
    assert raised.value.__notes__ == [f"bushel: {note}", f"bushel: this was element {index} of the dataset."]


@pytest.mark.parametrize("options", EXECUTORS, ids=repr)
def test_a_vectorized_function_names_all_the_elements_it_got(options):
    ds = ten().map(bad_columns, vectorized=True).batch(3)
    _, error = iterated(iter(ds.to_iter_dataset(options)))
    assert "records 6, 7, 8 of range(10)" in error.__notes__[0]
    assert error.__notes__[1] == "bushel: this was element 2 of the output."


def test_many_reads_name_the_record_that_cannot_be_read():
    ds = MapDataset.source(BadManyReads()).slice([4, 7, 1]).batch(3)
    _, error = iterated(iter(ds))
    assert error.__notes__[0] == "bushel: reading record 7 of BadManyReads failed."


def test_many_reads_that_fail_only_together_name_all_records():
    class Together(BadManyReads):
        def __getitems__(self, indices):
            if len(indices) > 1:
                raise Broken("too many")
            return list(indices)

    _, error = iterated(iter(MapDataset.source(Together()).slice([4, 7, 1]).batch(3)))
    assert error.__notes__[0] == "bushel: reading records 4, 7, 1 of Together failed."


# Streams. The index of the output is not known there; that of the element in the dataset above is.
STREAMS = {
    "map": (
        lambda: shuffled().to_iter_dataset().map(bad),
        [f"map(bad @ {at(bad)}) failed at its element 1, made of record 7 of range(10)."],
    ),
    "map_with_index": (
        lambda: ten().to_iter_dataset().map_with_index(bad_at_index),
        [f"map_with_index(bad_at_index @ {at(bad_at_index)}) failed at its element 7, made of record 7 of range(10)."],
    ),
    "random_map": (
        lambda: ten().to_iter_dataset().random_map(bad, seed=1),
        [f"random_map(bad @ {at(bad)}) failed at its element 7, made of record 7 of range(10)."],
    ),
    "filter": (
        lambda: ten().to_iter_dataset().filter(bad),
        [f"filter(bad @ {at(bad)}) failed at its element 7, made of record 7 of range(10)."],
    ),
    "flat_map": (
        lambda: ten().to_iter_dataset().apply(BadSplit()),
        [f"flat_map(BadSplit @ {at(BadSplit.flat_map)}) failed at its element 7, made of record 7 of range(10)."],
    ),
    "vectorized map": (
        lambda: ten().to_iter_dataset().map(bad_columns, vectorized=True),
        [f"map(bad_columns @ {at(bad_columns)}) failed at its element 7, made of record 7 of range(10)."],
    ),
    "map after filter": (
        lambda: ten().to_iter_dataset().filter(lambda x: x % 2).map(bad),
        [f"map(bad @ {at(bad)}) failed at its element 7, made of record 7 of range(10)."],
    ),
    "map before batch": (
        lambda: ten().to_iter_dataset().map(bad).batch(4),
        [f"map(bad @ {at(bad)}) failed at its element 7, made of record 7 of range(10)."],
    ),
    "batch_fn": (
        lambda: ten().to_iter_dataset().batch(3, batch_fn=bad_batch),
        ["batch(3, batch_fn=bad_batch) failed."],
    ),
    "map after batch": (
        lambda: ten().to_iter_dataset().batch(3).map(bad_columns),
        [f"map(bad_columns @ {at(bad_columns)}) failed."],
    ),
    "mix": (
        lambda: IterDataset.mix([ten().to_iter_dataset(), ten().to_iter_dataset().map(bad)]),
        [
            f"map(bad @ {at(bad)}) failed at its element 7, made of record 7 of range(10).",
            "in part 1 of mix(weights=[100, 100]).",
        ],
    ),
    "mix by key": (
        lambda: IterDataset.mix({"a": ten().map(bad).to_iter_dataset(), "b": ten().to_iter_dataset()}),
        [
            f"map(bad @ {at(bad)}) failed at its element 7, made of record 7 of range(10).",
            "this was element 7 of the output.",
            "in part a of mix(weights={'a': 100, 'b': 100}).",
        ],
    ),
}


@pytest.mark.parametrize(("build", "notes"), STREAMS.values(), ids=STREAMS)
def test_an_error_in_a_stream_tells_where_it_happened(build, notes):
    _, error = iterated(iter(build()))
    assert error.__notes__ == [f"bushel: {note}" for note in notes]


# It is the user's own error.


@pytest.mark.parametrize("options", EXECUTORS, ids=repr)
def test_the_error_is_the_object_that_the_function_raised(options):
    own = Broken("mine")

    def fail(_):
        raise own

    with pytest.raises(Broken) as raised:
        next(iter(ten().map(fail).batch(2).to_iter_dataset(options)))
    assert raised.value is own
    assert str(own) == "mine"
    assert own.__cause__ is None


@pytest.mark.parametrize("options", EXECUTORS, ids=repr)
def test_the_traceback_leads_to_the_line(options):
    _, error = iterated(iter(ten().map(bad).to_iter_dataset(options)))
    last = traceback.extract_tb(error.__traceback__)[-1]
    assert (last.filename, last.name) == (__file__, "bad")
    text = "".join(traceback.format_exception(error))
    assert "RowFailed" not in text
    assert text.count("Traceback (most recent call last)") == 1


def no_entry(_):
    try:
        {}["x"]
    except KeyError as missing:
        raise Broken("no entry") from missing


CAUSES = {
    "map": lambda: ten().map(no_entry),
    "batch_fn": lambda: ten().batch(2, batch_fn=no_entry),
    "vectorized map": lambda: ten().map(no_entry, vectorized=True),
    "threads": lambda: ten().map(no_entry).to_iter_dataset(ReadOptions(2, 4)),
    "stream map": lambda: ten().to_iter_dataset().map(no_entry),
    "stream batch_fn": lambda: ten().to_iter_dataset().batch(2, batch_fn=no_entry),
    "stream vectorized map": lambda: ten().to_iter_dataset().map(no_entry, vectorized=True),
}


@pytest.mark.parametrize("build", CAUSES.values(), ids=CAUSES)
def test_a_cause_is_kept(build):
    with pytest.raises(Broken) as raised:
        next(iter(build()))
    assert isinstance(raised.value.__cause__, KeyError)


# After an error the iterator stands where it stood.


def once_bad():
    failed = []

    def function(x, *_):
        if x == 7 and not failed:
            failed.append(x)
            raise Broken("the first time")
        return x

    return function


class SplitBy(bushel.transforms.FlatMap):
    max_fan_out = 2

    def __init__(self, function):
        self.function = function

    def flat_map(self, element):
        return [self.function(element), -element]


AGAIN = {
    "map": lambda function: ten().map(function),
    "filter": lambda function: ten().filter(lambda x: function(x) != 3),
    "random_map": lambda function: ten().random_map(function, seed=1),
    "batch": lambda function: ten().map(function).batch(3),
    "shuffle": lambda function: ten().map(function).shuffle(seed=3),
    "flat_map": lambda function: ten().apply(SplitBy(function)),
    "stream map": lambda function: ten().to_iter_dataset().map(function),
    "stream batch": lambda function: ten().to_iter_dataset().filter(lambda x: x != 3).map(function).batch(3),
    "stream batch after a map": lambda function: ten().map(function).to_iter_dataset().batch(3),
    "stream counter": lambda function: ten().to_iter_dataset().map_with_index(lambda i, x: (i, function(x))),
    "stream random_map": lambda function: ten().to_iter_dataset().random_map(function, seed=1).batch(4),
    "stream flat_map": lambda function: ten().to_iter_dataset().apply(SplitBy(function)),
    "stream mix": lambda function: IterDataset.mix(
        [ten().to_iter_dataset().map(function), MapDataset.range(100, 120).to_iter_dataset()], [2, 1]
    ).batch(2),
    "threads": lambda function: ten().map(function).to_iter_dataset(ReadOptions(3, 5)),
    "threads and batches": lambda function: ten().map(function).batch(3).to_iter_dataset(ReadOptions(3, 5)),
}


@pytest.mark.parametrize("build", AGAIN.values(), ids=AGAIN)
def test_after_an_error_nothing_is_lost_and_nothing_comes_twice(build):
    expected = list(build(lambda x, *_: x))
    it = iter(build(once_bad()))
    found, errors = [], 0
    while True:
        state = it.get_state()
        try:
            found.append(next(it))
        except Broken:
            errors += 1
            assert it.get_state() == state
        except StopIteration:
            break
    assert errors <= 1
    assert bushel.testing.same(found, expected)


def test_an_error_that_stays_is_raised_each_time():
    it = iter(ten().map(bad))
    for _ in range(7):
        next(it)
    for _ in range(3):
        with pytest.raises(Broken):
            next(it)
    bushel.experimental.set_next_index(it, 8)
    assert list(it) == [8, 9]


# StopIteration is an error, wherever it comes from.


def stop(x, *_):
    if x == 7:
        raise StopIteration
    return x


class StopSplit(bushel.transforms.FlatMap):
    max_fan_out = 1

    def flat_map(self, element):
        return [stop(element)]


class StopSource:
    def __len__(self):
        return 10

    def __getitem__(self, index):
        return stop(index)


class StopManyReads(StopSource):
    def __getitems__(self, indices):
        return [stop(index) for index in indices]


class StopDataset(MapDataset):
    def __len__(self):
        return 10

    def __getitem__(self, index):
        return stop(index)


class StopSelection(bushel.transforms.DatasetSelectionMap):
    def __len__(self):
        return 10

    def __getitem__(self, index):
        return 0, stop(index)


def stop_columns(xs):
    if (np.asarray(xs) == 7).any():
        raise StopIteration
    return xs


def stop_batch(rows):
    for row in rows:
        stop(row)
    return rows


STOPS = {
    "map": lambda: ten().map(stop),
    "map_with_index": lambda: ten().map_with_index(lambda i, x: stop(x)),
    "random_map": lambda: ten().random_map(stop, seed=1),
    "filter": lambda: ten().filter(stop),
    "flat_map": lambda: ten().apply(StopSplit()),
    "vectorized map": lambda: ten().map(stop_columns, vectorized=True),
    "vectorized filter": lambda: ten().filter(stop_columns, vectorized=True),
    "batch_fn": lambda: ten().batch(2, batch_fn=stop_batch),
    "source": lambda: MapDataset.source(StopSource()),
    "source of many reads": lambda: MapDataset.source(StopManyReads()),
    "dataset of one's own": lambda: StopDataset().map(lambda x: x),
    "selection map": lambda: MapDataset.select_from_datasets([ten()], StopSelection()),
    "batch": lambda: ten().map(stop).batch(3),
    "mix": lambda: MapDataset.mix([ten(), ten().map(stop)]),
}

STREAM_STOPS = {
    "map": lambda: ten().to_iter_dataset().map(stop),
    "map_with_index": lambda: ten().to_iter_dataset().map_with_index(lambda i, x: stop(x)),
    "random_map": lambda: ten().to_iter_dataset().random_map(stop, seed=1),
    "filter": lambda: ten().to_iter_dataset().filter(stop),
    "flat_map": lambda: ten().to_iter_dataset().apply(StopSplit()),
    "vectorized map": lambda: ten().to_iter_dataset().map(stop_columns, vectorized=True),
    "vectorized filter": lambda: ten().to_iter_dataset().filter(stop_columns, vectorized=True),
    "batch_fn": lambda: ten().to_iter_dataset().batch(2, batch_fn=stop_batch),
    "mix": lambda: IterDataset.mix([ten().to_iter_dataset().map(stop), ten().to_iter_dataset()]),
}

STOPPED = (
    "A function of the pipeline raised StopIteration, which would end the iteration early without an error. "
    "Raise another exception, or use `filter` to drop elements."
)


def assert_stopped(run):
    with pytest.raises(RuntimeError) as raised:
        run()
    assert type(raised.value) is StoppedByUser
    assert str(raised.value) == STOPPED
    assert isinstance(raised.value.__cause__, StopIteration)


@pytest.mark.parametrize("options", EXECUTORS, ids=repr)
@pytest.mark.parametrize("build", STOPS.values(), ids=STOPS)
def test_stop_iteration_is_an_error(build, options):
    assert_stopped(lambda: list(build().to_iter_dataset(options)))


@pytest.mark.parametrize("build", STOPS.values(), ids=STOPS)
def test_stop_iteration_is_an_error_in_random_access(build):
    assert_stopped(lambda: build().get(range(len(build()))))


@pytest.mark.parametrize("build", STREAM_STOPS.values(), ids=STREAM_STOPS)
def test_stop_iteration_is_an_error_in_a_stream(build):
    assert_stopped(lambda: list(build()))


def test_grain_ends_the_data_there():
    assert list(grain.MapDataset.range(10).map(stop)) == list(range(7))


# Selection maps, promises that are broken, shapes that do not fit.


class BadSelection(bushel.transforms.DatasetSelectionMap):
    def __len__(self):
        return 10

    def __getitem__(self, index):
        return 0, bad(index)


class WrongSelection(BadSelection):
    def __getitem__(self, index):
        return index, index


def test_a_selection_map_fails_at_its_element():
    came, error = iterated(iter(MapDataset.select_from_datasets([ten()], BadSelection())))
    assert came == [0, 1, 2, 3, 4, 5, 6]
    assert error.__notes__[0] == "bushel: select_from_datasets(BadSelection) failed at its element 7."


def test_a_selection_map_must_choose_a_dataset_that_is_there():
    ds = MapDataset.select_from_datasets([ten(), ten()], WrongSelection())
    assert [ds[0], ds[1]] == [0, 1]
    with pytest.raises(IndexError, match=r"The selection map chose dataset 2, but there are 2 datasets\.") as raised:
        ds[2]
    assert raised.value.__notes__[0] == "bushel: select_from_datasets(WrongSelection) failed at its element 2."


def test_a_source_must_give_as_many_records_as_were_asked_for():
    class Short(BadSource):
        def __getitems__(self, indices):
            return [1]

    with pytest.raises(ValueError, match=r"Short was asked for 2 records and gave 1: `__getitems__`"):
        MapDataset.source(Short()).batch(2)[0]


def test_a_vectorized_function_must_return_as_many_elements():
    with pytest.raises(ValueError) as raised:
        ten().map(lambda xs: xs.sum(), vectorized=True).batch(5)[0]
    assert str(raised.value) == (
        "map(<lambda>, vectorized=True) is vectorized: it got arrays with 5 elements and must return arrays "
        "with as many; it returned int64[]."
    )


def test_flat_map_must_keep_its_promise():
    class Many(bushel.transforms.FlatMap):
        max_fan_out = 2

        def flat_map(self, element):
            return [element] * 3

    with pytest.raises(ValueError) as raised:
        ten().apply(Many())[0]
    assert str(raised.value) == (
        "flat_map gave 3 elements for one, more than its max_fan_out of 2. "
        "Raise max_fan_out of the transformation, or split less."
    )


def test_a_batch_of_unlike_elements_shows_them():
    with pytest.raises(ValueError) as raised:
        MapDataset.source([{"a": 1}, {"a": 2}, {"b": 1}]).batch(3)[0]
    assert "same structure but got:\n  2 x {'a': int}\n  1 x {'b': int}\n" in str(raised.value)
    with pytest.raises(ValueError) as raised:
        MapDataset.source([np.zeros(2), np.zeros(3)]).batch(2)[0]
    assert "same structure but got:\n  1 x float64[2]\n  1 x float64[3]\n" in str(raised.value)
    assert raised.value.__notes__[0] == "bushel: batch(2) failed at its element 0, made of records 0, 1 of list of 2."


# Tracebacks.


def fail_at_three(x):
    return 1 // (3 - x) and x


def frames_of(error):
    """The functions in a traceback, after this file's own call: whether Bushel's, and their names."""
    trace = error.__traceback__.tb_next
    while trace is not None:
        code = trace.tb_frame.f_code
        yield code.co_filename.startswith(str(pathlib.Path(bushel.__file__).parent)), code.co_name
        trace = trace.tb_next


def streams_that_fail():
    ds = MapDataset.range(10).map(fail_at_three)
    stream = MapDataset.range(10).to_iter_dataset().map(fail_at_three)
    workers = bushel.MultiprocessingOptions(num_workers=1)
    return {
        "map": ds.to_iter_dataset(),
        "batches": ds.batch(2).to_iter_dataset(),
        "stream": stream.batch(2),
        "threads": ds.to_iter_dataset(bushel.ReadOptions(2, 4)),
        "pulled": ex.ThreadPrefetchIterDataset(stream, prefetch_buffer_size=2),
        "workers": ds.to_iter_dataset().mp_prefetch(workers),
        "a mixture": bushel.IterDataset.mix([stream, stream]).mp_prefetch(workers),
    }


@pytest.mark.parametrize("name", streams_that_fail())
def test_a_traceback_goes_from_next_to_the_users_code(name):
    with iter(streams_that_fail()[name]) as it, pytest.raises(ZeroDivisionError) as raised:
        while True:
            next(it)
    ours, *theirs = frames_of(raised.value)
    assert ours == (True, "__next__")
    assert theirs == [(False, "fail_at_three")]
    line = traceback.extract_tb(raised.value.__traceback__)[-1].line
    assert line is not None and "//" in line


def test_a_traceback_can_be_had_whole(monkeypatch):
    monkeypatch.setitem(vars(bushel.config)["_values"], "py_traceback_filtering", "off")
    with iter(streams_that_fail()["threads"]) as it, pytest.raises(ZeroDivisionError) as raised:
        list(it)
    assert sum(ours for ours, _ in frames_of(raised.value)) > 2


def test_errors_of_bushels_own_that_nobody_foresaw_keep_their_traceback():
    it = iter(MapDataset.range(3))
    it._cursor._runner = None
    with pytest.raises(AttributeError) as raised:
        next(it)
    assert [name for ours, name in frames_of(raised.value) if ours] == [
        "__next__",
        "__next__",
        "pull",
        "_pull_here",
        "make_here",
    ]

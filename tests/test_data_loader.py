"""DataLoader beside Grain's: elements, states, shards, workers, and what is refused."""

import dataclasses
import itertools
import json
import logging
import sys

import cloudpickle
import grain
import grain.python
import numpy as np
import pytest
from absl import flags
from array_record.python.array_record_module import ArrayRecordWriter
from helpers.beside_grain import assert_same
from helpers.loader_recipes import (
    FUNCTIONS,
    EveryOther,
    EveryOtherWithLength,
    Recipe,
    Words,
    add,
    jitter,
    keep,
    operation,
    pairs,
    pass_on,
)
from hypothesis import given, settings
from hypothesis import strategies as st

import bushel
import bushel.python
from bushel import StateMismatch
from bushel.testing import same

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers need not import the tests

MOST = 30


@st.composite
def operation_lists(draw):
    """Operations that make sense one after the other: a batch and a flat_map at most once."""
    elementwise = st.one_of(*(st.tuples(st.just(name), st.integers(0, len(FUNCTIONS[name]) - 1)) for name in FUNCTIONS))
    before = draw(st.lists(elementwise, max_size=3))
    middle = draw(
        st.one_of(
            st.none(),
            st.tuples(st.just("batch"), st.tuples(st.integers(1, 5), st.booleans())),
            st.tuples(st.just("lists"), st.integers(1, 4)),
            st.tuples(st.just("flat_map"), st.none()),
        )
    )
    after = () if middle is not None and middle[0] == "lists" else draw(st.lists(elementwise, max_size=2))
    if middle is not None and middle[0] == "flat_map":
        # After a FlatMap, Grain's records have no generator.
        after = [entry for entry in after if "random" not in entry[0]]
    return (*before, *([] if middle is None else [middle]), *after)


@st.composite
def recipes(draw):
    """Loaders for which Grain 0.2.18 loses no record: where shards are uneven, the remainder is dropped."""
    records = draw(st.integers(1, 40))
    sequential = draw(st.booleans()) and draw(st.booleans())
    shard = None
    if draw(st.booleans()):
        count = draw(st.integers(1, min(4, records)))
        shard = (draw(st.integers(0, count - 1)), count, records % count != 0 or draw(st.booleans()))
    operations = draw(operation_lists())
    drops = {"filter", "flat_map"} & {name for name, _ in operations}
    return Recipe(
        records=records,
        shuffle=draw(st.booleans()),
        seed=draw(st.integers(0, 2**32 - 1)),
        epochs=draw(st.sampled_from([1, 2, 3] if drops else [1, 2, 3, None])),  # all may be dropped, without an end
        sequential=sequential,
        shard=shard,
        shards_the_loader=shard is not None and draw(st.booleans()),
        operations=operations,
    )


def some(iterator, most=MOST):
    return list(itertools.islice(iterator, most))


def plain(state):
    """A state without what only Bushel writes."""
    return {key: value for key, value in json.loads(state).items() if key != "bushel"}


def moved(loader, state):
    it = iter(loader)
    it.set_state(state)
    return it


# The law: as Grain's without workers, element by element and state by state.


@settings(max_examples=60, deadline=None)
@given(recipe=recipes(), cut=st.integers(0, 12))
def test_a_loader_is_grains(recipe, cut):
    ours, theirs = (recipe.build(lib) for lib in (bushel, grain))
    our, their = iter(ours), iter(theirs)
    head = some(our, cut)
    assert_same(head, some(their, cut), "elements")
    assert plain(our.get_state()) == plain(their.get_state())
    state, theirs_state = our.get_state(), their.get_state()
    rest = some(our)
    assert_same(rest, some(their), "elements after the cut")
    assert_same(some(moved(ours, theirs_state)), rest, "from Grain's state")
    assert_same(some(moved(theirs, state)), rest, "in Grain, from Bushel's state")
    assert_same(some(moved(ours, state)), rest, "from its own state")


@pytest.fixture(scope="module", params=[1, 2, 3])
def workers(request):
    return request.param


RECIPES = {
    "maps": Recipe(40, shuffle=True, epochs=2, operations=(("map", 0), ("map", 1))),
    "random maps, then batches": Recipe(
        37, shuffle=True, seed=9, epochs=2, operations=(("random_map", 0), ("map", 1), ("batch", (4, False)))
    ),
    "a random map of batches": Recipe(
        30, seed=3, operations=(("random_map", 0), ("batch", (4, True)), ("random_map", 1))
    ),
    "a filter, then batches": Recipe(50, shuffle=True, operations=(("filter", 0), ("batch", (3, False)))),
    "flat_map": Recipe(20, operations=(("map", 0), ("flat_map", None), ("map", 1))),
    "one shard of three": Recipe(39, shuffle=True, epochs=2, shard=(1, 3, True), operations=(("random_map", 0),)),
    "in order, loader sharded": Recipe(
        40, sequential=True, shard=(3, 4, True), shards_the_loader=True, operations=(("batch", (3, False)),)
    ),
}


@pytest.mark.parametrize("name", RECIPES)
def test_workers_change_nothing(name, workers):
    recipe = RECIPES[name]
    expected = list(recipe.build(grain))
    with iter(recipe.build(bushel, worker_count=workers)) as it:
        assert_same(list(it), expected, f"{workers} workers")


def test_a_state_restores_with_any_number_of_workers():
    recipe = RECIPES["random maps, then batches"]
    expected = list(recipe.build(grain))
    found, state = [], None
    for workers in (2, 0, 3, 1):
        with iter(recipe.build(bushel, worker_count=workers)) as it:
            if state is not None:
                it.set_state(state)
            found += some(it, 4)
            state = it.get_state()
    assert_same(found, expected[: len(found)], "four runs")


def test_workers_may_be_left_to_bushel():
    loader = Recipe(12, operations=(("batch", (5, False)),)).build(bushel, worker_count=None)
    assert loader.multiprocessing_options.num_workers is None
    with iter(loader) as it:
        it.start_prefetch()
        assert [len(batch["i"]) for batch in it] == [5, 5, 2]
        assert "worker" in str(it.report())


# States that Grain wrote with workers.


@pytest.fixture(scope="module")
def parsed_flags():
    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()  # Grain's workers need it


def test_a_state_of_grains_workers_is_read_where_records_stay_single(parsed_flags):
    recipe = Recipe(20, shuffle=True, seed=4, epochs=2, shard=(1, 2, False), operations=(("map", 0), ("random_map", 0)))
    theirs, expected = iter(recipe.build(grain, worker_count=2)), list(recipe.build(bushel))
    done = 0
    for more in (0, 3, 1, 5):
        assert_same(some(theirs, more), expected[done : done + more], "Grain's elements")
        done += more
        assert_same(list(moved(recipe.build(bushel), theirs.get_state())), expected[done:], f"from {done} on")


def worker_state(recipe, workers, **changes):
    """What Grain writes with workers that have read one record each."""
    state = plain(iter(recipe.build(bushel)).get_state())
    seen = {str(worker): worker for worker in range(workers)}
    return json.dumps({**state, "worker_count": workers, "last_seen_indices": seen, **changes}).encode()


@pytest.mark.parametrize("name", ["a filter, then batches", "flat_map", "in order, loader sharded"])
def test_a_state_of_grains_workers_is_refused_where_they_made_elements_of_their_own(name):
    recipe = RECIPES[name]
    state = worker_state(Recipe(recipe.records), 2)
    it = iter(recipe.build(bushel))
    before = it.get_state()
    with pytest.raises(StateMismatch, match="does not describe a position in the one sequence"):
        it.set_state(state, check=False)
    assert it.get_state() == before


# Every source that Grain has: its states go on in Bushel, and Bushel's in Grain.


@pytest.fixture
def record_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, count in (("a", 7), ("b", 5)):
        writer = ArrayRecordWriter(str(tmp_path / f"{name}.array_record"), "group_size:1")
        for number in range(count):
            writer.write(f"{name}{number}".encode())
        writer.close()
    return tmp_path


@dataclasses.dataclass
class Instruction:
    """As TFDS has them, and `array_record` accepts them."""

    filename: str
    skip: int
    take: int
    examples_in_shard: int = 7


PATHS = {
    "one file": lambda folder: str(folder / "a.array_record"),
    "a pathlib.Path": lambda folder: folder / "a.array_record",
    "two files": lambda folder: [str(folder / "b.array_record"), str(folder / "a.array_record")],
    "a tuple, one file twice": lambda folder: (folder / "a.array_record", str(folder / "a.array_record")),
    "relative": lambda folder: "a.array_record",
    "relative with a dot": lambda folder: "./a.array_record",
    "not normalised": lambda folder: f"{folder}//.././{folder.name}/a.array_record",
    "a part": lambda folder: [f"{folder}/a.array_record[2:6]", "b.array_record[0:3]"],
    "instructions": lambda folder: [Instruction(f"{folder}/a.array_record", 1, 4), Instruction("b.array_record", 0, 5)],
}


def open_in(lib, kind, name, folder):
    """A source of either library. `name` is that of paths, numbers or values."""
    if kind == "ArrayRecord":
        return lib.sources.ArrayRecordDataSource(PATHS[name](folder))
    if kind == "Range":
        return lib.sources.RangeDataSource(*name)
    if kind == "SharedMemory":
        return lib.sources.SharedMemoryDataSource(name=name)
    return {"list": [5, 6, 7, 8], "tuple": (1, 2, 3), "array": np.arange(6), "text": "letters", "words": Words(9)}[name]


def assert_states_move(kind, name, folder):
    """The rest after any state is the same in both libraries, whichever of them wrote the state."""

    def build(lib):
        source = open_in(lib, kind, name, folder)
        sampler = lib.samplers.IndexSampler(len(source), lib.sharding.NoSharding(), True, 2, 3)
        return lib.DataLoader(data_source=source, sampler=sampler, worker_count=0)

    for writer, reader in itertools.permutations((bushel, grain)):
        it, whole = iter(build(writer)), list(build(reader))
        for done in range(len(whole)):
            assert_same(list(moved(build(reader), it.get_state())), whole[done:], f"{kind} {name} from {done} on")
            assert_same([next(it)], [whole[done]], "the next one")


@pytest.mark.parametrize("name", PATHS)
def test_states_over_array_record_files_move_to_grain_and_back(name, record_files, monkeypatch):
    # `array_record` accepts instructions of one class of its own.
    monkeypatch.setattr("array_record.python.array_record_data_source.FileInstruction", Instruction)
    assert_states_move("ArrayRecord", name, record_files)


@pytest.mark.parametrize("name", [(0, 5, 1), (3, 20, 4), (9, -2, -3)])
def test_states_over_ranges_move_to_grain_and_back(name, tmp_path):
    assert_states_move("Range", name, tmp_path)


@pytest.mark.parametrize("name", ["list", "tuple", "array", "text", "words"])
def test_states_over_plain_values_move_to_grain_and_back(name, tmp_path):
    assert_states_move("values", name, tmp_path)


def test_states_over_shared_memory_move_to_grain_and_back(tmp_path):
    source = bushel.sources.SharedMemoryDataSource([1, "two", None, b"four", 5.5])
    try:
        assert_states_move("SharedMemory", source.shm.name, tmp_path)
        # Grain refuses other memory with the same values; the name of the memory says nothing about the data.
        other = bushel.sources.SharedMemoryDataSource([1, "two", None, b"four", 5.5])
        loader = bushel.load(other, num_epochs=1)
        theirs = iter(grain.load(grain.sources.SharedMemoryDataSource(name=source.shm.name), num_epochs=1))
        some(theirs, 2)
        assert list(moved(loader, theirs.get_state())) == [None, b"four", 5.5]
        other.close()
        other.unlink()
        changed = bushel.sources.SharedMemoryDataSource([1, "two", None, b"five", 5.5])
        with pytest.raises(StateMismatch, match="written with another data_source"):
            moved(bushel.load(changed, num_epochs=1), theirs.get_state())
        changed.close()
        changed.unlink()
    finally:
        source.close()
        source.unlink()


def test_a_state_over_other_array_record_files_is_refused(record_files):
    theirs = iter(grain.load(grain.sources.ArrayRecordDataSource("a.array_record"), num_epochs=1))
    loader = bushel.load(bushel.sources.ArrayRecordDataSource(str(record_files / "a.array_record")), num_epochs=1)
    with pytest.raises(StateMismatch, match="hash of their paths, as they were given") as caught:
        moved(loader, theirs.get_state())
    it = iter(loader)
    it.set_state(theirs.get_state(), check=False)
    assert len(list(it)) == 7
    assert "This state was written with another data_source:" in str(caught.value)


def test_a_source_with_a_repr_of_its_own_is_named_by_it(record_files):
    def named(lib):
        class Named(lib.sources.ArrayRecordDataSource):
            def __repr__(self):
                return "my files"

        return iter(lib.load(Named("a.array_record"), num_epochs=1))

    ours, theirs = named(bushel), named(grain)
    assert plain(ours.get_state())["data_source"] == plain(theirs.get_state())["data_source"] == "my files"


# Checkpoints in the middle of any operations, from Grain to Bushel and back: exact, or refused with the reason.


MOVING = {
    "maps": [("map", 0), ("random_map", 0)],
    "a filter": [("filter", 0), ("map", 1)],
    "batches": [("map", 0), ("batch", (3, False))],
    "a filter, then batches": [("filter", 0), ("batch", (2, True))],
    "flat_map": [("flat_map", None), ("map", 0)],
    "older operations": ["legacy"],
    "pairs": [("map", 0), pairs],
    "packing": ["numbers", "pack"],
    "packing of what a filter leaves": [("filter", 0), "numbers", "pack"],
    "flat_map, then an operation that keeps nothing": [("flat_map", None), pass_on],
    "an operation that keeps nothing": [pass_on, ("batch", (2, False))],
}
"""Operations in the order of a DataLoader: those of `loaders.operation`, and functions on iterators of records."""


def moving_loader(lib, name, workers=0):
    def built(entry):
        if isinstance(entry, tuple):
            return operation(lib, *entry)
        if entry == "numbers":
            return type("Numbers", (lib.transforms.Map,), {"map": staticmethod(number_sequence)})()
        if entry == "pack":
            return lib.experimental.PackAndBatchOperation(length_struct=6, batch_size=2)
        return entry

    entries = legacy(lib) if MOVING[name] == ["legacy"] else [built(entry) for entry in MOVING[name]]
    sampler = lib.samplers.IndexSampler(24, lib.sharding.NoSharding(), True, 1, 3)
    return lib.DataLoader(data_source=Words(24), sampler=sampler, operations=entries, worker_count=workers)


def number_sequence(element):
    return np.arange(element["i"] % 4 + 1)


def has_own_operation(name):
    return any(callable(entry) or entry == "pack" for entry in MOVING[name])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", MOVING)
def test_a_checkpoint_of_grains_is_restored_exactly_or_refused(name):
    ours, theirs = moving_loader(bushel, name), iter(moving_loader(grain, name))
    whole = list(moving_loader(grain, name))
    for done in range(len(whole) + 1):
        state, it = theirs.get_state(), iter(ours)
        if has_own_operation(name) and (done or ("flat_map", None) in MOVING[name]):
            before = it.get_state()
            with pytest.raises(StateMismatch, match=r"written by Grain\. It says how many records operate\("):
                it.set_state(state)
            assert it.get_state() == before
            assert_same(list(it), whole, "after a refused state")
        else:
            assert_same(list(moved_iterator(it, state)), whole[done:], f"from {done} on")
        next(theirs, None)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", MOVING)
def test_a_checkpoint_of_bushels_is_restored_by_grain_exactly_or_refused(name):
    ours, theirs = iter(moving_loader(bushel, name)), moving_loader(grain, name)
    whole = list(moving_loader(bushel, name))
    for done in range(len(whole) + 1):
        state = ours.get_state()
        if has_own_operation(name):
            reason = KeyError if ("flat_map", None) in MOVING[name] else ValueError
            with pytest.raises(reason, match=r"operate.*Grain cannot restore|next_index") as caught:
                moved(theirs, state)
            assert "'worker_count'" not in str(caught.value)
        else:
            assert_same(list(moved(theirs, state)), whole[done:], f"from {done} on")
        assert_same(list(moved(moving_loader(bushel, name), state)), whole[done:], f"in Bushel from {done} on")
        next(ours, None)


def test_grains_state_of_an_operation_that_keeps_nothing_is_restored_without_a_check():
    name = "an operation that keeps nothing"
    theirs, whole = iter(moving_loader(grain, name)), list(moving_loader(grain, name))
    some(theirs, 3)
    it = iter(moving_loader(bushel, name))
    it.set_state(theirs.get_state(), check=False)
    assert_same(list(it), whole[3:], "as in Grain")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", MOVING)
def test_a_checkpoint_of_grains_workers_is_restored_exactly_or_refused(name, parsed_flags):
    ours, theirs = moving_loader(bushel, name), iter(moving_loader(grain, name, workers=2))
    some(theirs, 3)
    state, rest = theirs.get_state(), list(theirs)
    if name == "maps":
        assert_same(list(moved(ours, state)), rest, "the rest")
    else:
        with pytest.raises(StateMismatch, match=r"written by Grain"):
            moved(ours, state)
    our = iter(ours)
    some(our, 3)
    told = "exhausted|next_index" if ("flat_map", None) in MOVING[name] else "Worker count|cannot restore"
    with pytest.raises((ValueError, KeyError), match=told):
        some(moved(moving_loader(grain, name, workers=2), our.get_state()))


# Shards.


@pytest.mark.parametrize("drop", [False, True])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("sequential", [False, True])
@pytest.mark.parametrize("shards_the_loader", [False, True])
def test_shards_hold_every_record_once(count, drop, sequential, shards_the_loader):
    found = []
    for index in range(count):
        shard = (index, count, drop)
        recipe = Recipe(10, True, 5, 1, sequential, shard, shards_the_loader)
        found.append([int(element["i"]) for element in recipe.build(bushel)])
    every = sorted(itertools.chain(*found))
    assert every == (sorted(set(every)) if drop else list(range(10)))
    sizes = {len(part) for part in found}
    assert sizes == {10 // count} if drop else max(sizes) - min(sizes) <= 1


def test_we_differ_uneven_shards_lose_no_record_in_any_epoch():
    def of(lib):
        return [[int(e["i"]) for e in Recipe(10, shard=(s, 3, False), epochs=2).build(lib)] for s in range(3)]

    assert of(grain)[0] == [0, 1, 2, 3, 0, 1]  # the second epoch of shard 0 lacks two records
    assert of(bushel) == [[0, 1, 2, 3] * 2, [4, 5, 6] * 2, [7, 8, 9] * 2]


def test_an_endless_shard_without_records_is_refused():
    with pytest.raises(ValueError, match=r"Shard 2 of 3 has no record to repeat without end"):
        Recipe(2, shard=(2, 3, False), epochs=None).build(bushel)
    finite = Recipe(2, shard=(2, 3, False), epochs=1, shuffle=True)
    assert list(finite.build(bushel)) == list(finite.build(grain)) == []


# Samplers.


@settings(max_examples=60, deadline=None)
@given(recipe=recipes(), index=st.integers(0, 200))
def test_samplers_are_grains(recipe, index):
    found = []
    for lib in (bushel, grain):
        shard = lib.sharding.ShardOptions(*(recipe.shard or (0, 1, False)))
        if recipe.sequential:
            sampler = lib.samplers.SequentialSampler(recipe.records, shard, recipe.seed)
        else:
            sampler = lib.samplers.IndexSampler(recipe.records, shard, recipe.shuffle, recipe.epochs, recipe.seed)
        try:
            metadata = sampler[index]
            entry = (metadata.index, metadata.record_key, metadata.rng.random(3).tolist())
        except IndexError:
            entry = "outside"
        found.append((repr(sampler), len(sampler), entry))
    assert found[0] == found[1]


@pytest.mark.parametrize("with_generator", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("with_length", [False, True])
def test_a_sampler_of_ones_own(with_generator, workers, with_length):
    def loader(lib, **more):
        sampler = (EveryOtherWithLength if with_length else EveryOther)(21, lib.RecordMetadata)
        names = [("random_map", 0), ("batch", (3, False))] if with_generator else [("map", 0)]
        return lib.DataLoader(
            data_source=Words(21),
            sampler=sampler,
            operations=[operation(lib, *name) for name in names],
            shard_options=lib.sharding.ShardOptions(0, 1),
            **more,
        )

    assert_same(list(loader(bushel, worker_count=workers)), list(loader(grain)), "elements")


def test_a_sampler_that_fails_is_told():
    class Wrong:
        def __len__(self):
            return 3

        def __getitem__(self, index):
            return bushel.RecordMetadata(index=index, record_key="first")

    loader = bushel.DataLoader(data_source=[1, 2, 3], sampler=Wrong(), shard_options=bushel.NoSharding())
    with pytest.raises(TypeError, match=r"record_key of RecordMetadata.* must be an integer, got 'first'") as caught:
        next(iter(loader))
    assert "bushel: sample(Wrong) failed at its element 0" in "".join(caught.value.__notes__)


# Operations of the older kind.


def legacy(lib):
    python = lib.python
    return [
        python.MapOperation(map_function=add),
        python.RandomMapOperation(random_map_function=jitter),
        python.FilterOperation(condition_function=keep),
        python.BatchOperation(batch_size=3),
    ]


def legacy_loader(lib, operations, **more):
    sampler = lib.samplers.IndexSampler(30, lib.sharding.NoSharding(), True, 1, 3)
    return lib.DataLoader(data_source=Words(30), sampler=sampler, operations=operations, **more)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("workers", [0, 2])
def test_operations_of_the_older_kind_are_grains(workers):
    expected = list(legacy_loader(grain, legacy(grain)))
    ours = legacy_loader(bushel, legacy(bushel), worker_count=workers)
    assert_same(list(ours), expected, "elements")
    it = iter(ours)
    some(it, 2)
    assert plain(it.get_state())["worker_count"] == 0  # restores at once
    assert_same(list(moved(ours, it.get_state())), expected[2:], "from a state")


def test_operations_of_the_older_kind_say_what_to_use_instead():
    for kind, argument in (("MapOperation", add), ("FilterOperation", keep), ("BatchOperation", 2)):
        with pytest.warns(DeprecationWarning, match="Please use transforms"):
            getattr(bushel.python, kind)(argument)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("data", [[1, {"a": 1}], [{"a": 1}, 1], [{"a": 1}, {"b": 1}], [(1, 2), [1, 2]]])
def test_an_older_batch_of_unlike_records_is_a_type_error(data):
    for lib in (grain, bushel):
        records = [lib.python.Record(lib.python.RecordMetadata(n, n), entry) for n, entry in enumerate(data)]
        with pytest.raises(TypeError, match="Record structures do not match"):
            list(lib.python.BatchOperation(2)(iter(records)))


@pytest.mark.parametrize("workers", [0, 2])
def test_an_operation_of_ones_own_goes_on_where_it_was(workers):
    expected = list(legacy_loader(grain, [pairs]))
    ours = legacy_loader(bushel, [pairs], worker_count=workers)
    with iter(ours) as it, iter(ours) as other:
        for cut in (0, 1, 4, 10):
            assert some(it, cut) == expected[:cut]
            state = it.get_state()
            expected = expected[cut:]
            other.set_state(state)
            assert list(other) == expected


def ahead(records):
    """An operation of one's own that reads one record further than it gives."""
    held = None
    for record in records:
        if held is not None:
            yield held
        held = record
    if held is not None:
        yield held


def test_we_differ_an_operation_that_reads_ahead_loses_nothing():
    def rest(lib):
        loaded = legacy_loader(lib, [ahead])
        it = iter(loaded)
        some(it, 3)
        return [e["i"] for e in moved(loaded, it.get_state())]

    expected = [e["i"] for e in legacy_loader(grain, [ahead])]
    assert rest(grain) == expected[4:]
    assert rest(bushel) == expected[3:]


def test_an_operation_of_ones_own_may_fail_and_go_on():
    fails = [True]

    def moody(records):
        for record in records:
            if record.data["i"] == 5 and fails:
                fails.pop()
                raise OSError("away")
            yield record

    loader = bushel.DataLoader(data_source=Words(8), sampler=bushel.SequentialSampler(8), operations=[moody])
    it = iter(loader)
    assert [e["i"] for e in some(it, 5)] == [0, 1, 2, 3, 4]
    with pytest.raises(OSError, match="away") as caught:
        next(it)
    assert "bushel: operate(moody) failed." in caught.value.__notes__
    assert [e["i"] for e in it] == [5, 6, 7]


def test_an_operation_that_gives_no_records_is_told():
    loader = bushel.DataLoader(
        data_source=[1], sampler=bushel.SequentialSampler(1), operations=[lambda records: (r.data for r in records)]
    )
    with pytest.raises(TypeError, match="must return records, with `metadata` and `data`; it returned 1"):
        next(iter(loader))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_packing_as_an_operation():
    def loader(lib):
        texts = [np.arange(n, dtype=np.int32) for n in (3, 2, 4, 1, 5)]
        return lib.DataLoader(
            data_source=texts,
            sampler=lib.samplers.SequentialSampler(5, lib.sharding.NoSharding()),
            operations=[lib.experimental.PackAndBatchOperation(length_struct=6, batch_size=2)],
        )

    assert_same(list(loader(bushel)), list(loader(grain)), "packed")


# `load`.


@settings(max_examples=15, deadline=None)
@given(
    count=st.integers(1, 20),
    batch=st.none() | st.integers(1, 4),
    drop=st.booleans(),
    shuffle=st.booleans(),
    epochs=st.integers(1, 2),
)
@pytest.mark.filterwarnings("ignore:drop_remainder has no effect")
def test_load_gives_what_grains_load_gives(count, batch, drop, shuffle, epochs):
    def loaded(lib):
        return lib.load(
            Words(count), num_epochs=epochs, shuffle=shuffle, seed=7, batch_size=batch, drop_remainder=drop,
            transformations=[operation(lib, "map", 0), operation(lib, "random_map", 0)],
        )  # fmt: skip

    assert_same(list(loaded(bushel)), list(loaded(grain)), "elements")


# What is refused, and that the iterator stays as it was.


def changed(**changes):
    base = {"records": 12, "shuffle": True, "seed": 1, "epochs": 2, "operations": (("map", 0), ("batch", (2, False)))}
    return Recipe(**{**base, **changes})


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (changed(seed=2), "seed=2"),
        (changed(shuffle=False), "shuffle=False"),
        (changed(epochs=3), "num_epochs=3"),
        (changed(records=13), "num_records=13"),
        (changed(shard=(0, 2, False)), "shard_count=2"),
        (changed(shard=(0, 2, False), shards_the_loader=True), "shard 0 of 2"),
        (changed(operations=(("map", 0), ("batch", (3, False)))), "+ batch(3)"),
        (changed(operations=(("map", 1), ("batch", (2, False)))), "map(double)"),
    ],
)
def test_a_state_of_another_loader_is_refused_with_the_difference(other, told):
    saved = iter(changed().build(bushel))
    next(saved)
    it = iter(other.build(bushel))
    next(it)
    before = it.get_state()
    with pytest.raises(StateMismatch, match="What differs") as caught:
        it.set_state(saved.get_state())
    assert told in str(caught.value)
    assert it.get_state() == before
    if other.shard is None:
        it.set_state(saved.get_state(), check=False)


def test_other_data_are_refused():
    def it(data):
        return iter(bushel.DataLoader(data_source=data, sampler=bushel.IndexSampler(3)))

    with pytest.raises(StateMismatch, match=r"source\(list of 3\): same name, other data"):
        it([1, 2, 4]).set_state(it([1, 2, 3]).get_state())


class Version:
    """A source whose repr says which data it holds."""

    def __init__(self, version):
        self.version = version

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return index

    def __repr__(self):
        return f"Version({self.version})"


@pytest.mark.parametrize("lib", [bushel, grain], ids=["Bushel's state", "Grain's state"])
def test_data_with_another_repr_are_refused_as_in_grain(lib):
    def it(module, version):
        sampler = module.samplers.IndexSampler(4, module.sharding.NoSharding(), num_epochs=1)
        return iter(module.DataLoader(data_source=Version(version), sampler=sampler))

    saved = it(lib, 1)
    next(saved)
    state = saved.get_state()
    for module in (bushel, grain):
        with pytest.raises(ValueError, match=r"Version\(1\)(.|\n)*Version\(2\)"):
            it(module, 2).set_state(state)
        assert list(moved_iterator(it(module, 1), state)) == [1, 2, 3]
    it(bushel, 2).set_state(state, check=False)


@pytest.mark.parametrize("what", ["sampler", "data_source"])
def test_a_state_of_grain_with_another_sampler_or_source_is_refused(what):
    recipe = changed()
    state = plain(iter(recipe.build(bushel)).get_state())
    it = iter(recipe.build(bushel))
    with pytest.raises(StateMismatch, match=rf"another {what}:\n- Other\(\)\n\+ .*\nPass check=False"):
        it.set_state(json.dumps({**state, what: "Other()"}).encode())
    it.set_state(json.dumps({**state, what: "Other()"}).encode(), check=False)


def test_a_source_without_a_repr_does_not_depend_on_its_address():
    class Plain:
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return index

    def it():
        return iter(bushel.DataLoader(data_source=Plain(), sampler=bushel.IndexSampler(4, num_epochs=1)))

    saved = it()
    next(saved)
    state = {**plain(saved.get_state()), "data_source": repr(Plain())}  # with an address
    assert list(moved_iterator(it(), json.dumps(state).encode())) == [1, 2, 3]


def moved_iterator(it, state):
    it.set_state(state)
    return it


GARBAGE = {
    "empty": (b"", "cannot be read as JSON"),
    "cut short": (b'{"version": 2, "last_seen_ind', "cannot be read as JSON"),
    "no object": (b"[1, 2]", "A state is a JSON object"),
    "no text": (b"\x80\x04\x95\x1a\x00\x00", "cannot be read as JSON"),
    "a pickle": (b"cos\nsystem\n(S'touch /tmp/bad'\ntR.", "cannot be read as JSON"),
    "very deep": (b"[" * 200_000, "cannot be read as JSON"),
    "a huge number": (b'{"version": ' + b"9" * 10_000 + b"}", "cannot be read as JSON"),
    "None": (None, "cannot be read as JSON"),
    "older": ({"version": 1}, "has version 1; version 2 is the one known"),
    "newer": ({"version": 99}, "has version 99"),
    "version of another type": ({"version": True}, "has version True"),
    "no positions": ({"last_seen_indices": None}, "damaged"),
    "a position that is text": ({"last_seen_indices": {"0": "7"}}, "a position in last_seen_indices is '7'"),
    "a position that is a bool": ({"last_seen_indices": {"0": True}}, "a position in last_seen_indices is True"),
    "before the start": ({"last_seen_indices": {"0": -5}}, "of another shard, or damaged"),
    "of more workers": ({"last_seen_indices": {"0": 1, "1": 2}}, "should hold 1 positions"),
    "negative workers": ({"worker_count": -1}, "damaged"),
    "workers that are text": ({"worker_count": "2"}, "damaged"),
    "Bushel of another version": ({"bushel": {"version": 7}}, "has version 7"),
    "Bushel without identity": ({"bushel": {"version": 1}}, "identity in the state cannot be read"),
    "Bushel of nothing": ({"bushel": None}, "has version None"),
}


@pytest.mark.parametrize("name", GARBAGE)
def test_what_is_no_state_is_refused_and_changes_nothing(name):
    garbage, told = GARBAGE[name]
    it = iter(Recipe(8, operations=(("map", 0),)).build(bushel))
    some(it, 3)
    before = it.get_state()
    if isinstance(garbage, dict):
        garbage = json.dumps({**plain(before), **garbage}).encode()
    with pytest.raises(StateMismatch) as caught:
        it.set_state(garbage)
    assert told in str(caught.value)
    assert it.get_state() == before
    assert [e["i"] for e in it] == [3, 4, 5, 6, 7]


def test_a_position_past_the_end_is_refused():
    it = iter(Recipe(8).build(bushel))
    state = {**plain(it.get_state()), "last_seen_indices": {"0": 8}}
    with pytest.raises(IndexError, match="out of range for dataset of length 8"):
        it.set_state(json.dumps(state).encode())


def test_workers_that_did_not_read_in_turn_are_refused():
    recipe = Recipe(8, operations=(("map", 0),))
    with pytest.raises(StateMismatch, match=r"had read \[0, 1\] records, not in turn"):
        iter(recipe.build(bushel)).set_state(worker_state(recipe, 2, last_seen_indices={"0": -2, "1": 1}))


# Arguments.


def loader(**arguments):
    return bushel.DataLoader(**{"data_source": [1, 2], "sampler": bushel.IndexSampler(2), **arguments})


class Unsharded:
    def __getitem__(self, index):
        return bushel.RecordMetadata(index, index)


BAD = {
    "a stream as source": (
        lambda: loader(data_source=bushel.MapDataset.range(3).to_iter_dataset()),
        TypeError,
        "can only be read in order go through the Dataset API",
    ),
    "a generator as source": (lambda: loader(data_source=(i for i in "ab")), TypeError, "got generator"),
    "no shard": (lambda: loader(sampler=Unsharded()), ValueError, "Unsharded does not say which shard it samples"),
    "shards that are none": (lambda: loader(shard_options=(0, 1)), TypeError, r"ShardOptions, got \(0, 1\)"),
    "negative workers": (lambda: loader(worker_count=-1), ValueError, "worker_count .* got -1"),
    "workers in parts": (lambda: loader(worker_count=1.5), TypeError, "worker_count must be an integer, got 1.5"),
    "a negative buffer": (lambda: loader(worker_buffer_size=-2), ValueError, "worker_buffer_size .* got -2"),
    "a class as operation": (lambda: loader(operations=[bushel.transforms.Map]), TypeError, "The operations of a Data"),
    "no operation": (lambda: loader(operations=["batch"]), TypeError, "got 'batch'"),
    "a batch of nothing": (lambda: loader(operations=[bushel.Batch(0)]), ValueError, "batch_size must be positive"),
    "no records": (lambda: bushel.IndexSampler(0), ValueError, "at least one record, got num_records=0"),
    "no epochs": (lambda: bushel.IndexSampler(2, num_epochs=0), ValueError, "num_epochs must be positive, but got 0"),
    "no seed": (lambda: bushel.IndexSampler(2, shuffle=True), ValueError, "Shuffling requires a seed"),
    "a large seed": (lambda: bushel.IndexSampler(2, seed=2**32), ValueError, "between 0 and 2..32-1 .got seed=429"),
    "a seed that is text": (lambda: bushel.IndexSampler(2, shuffle=True, seed="0"), TypeError, "seed must be an int"),
    "a shard that is not there": (lambda: bushel.ShardOptions(3, 3), ValueError, "shard_index 3 with shard_count 3"),
    "no shards": (lambda: bushel.ShardOptions(0, 0), ValueError, "shard_count must be positive"),
    "a sampler's index": (lambda: bushel.SequentialSampler(3)[3], IndexError, "Index 3 is out of range for a sampler"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_argument_gets_a_sentence(name):
    call, kind, sentence = BAD[name]
    with pytest.raises(kind, match=sentence):
        call()


def test_a_sampler_of_more_records_than_there_are_is_warned_of(caplog):
    with caplog.at_level(logging.WARNING, "bushel"):
        assert list(loader(sampler=bushel.IndexSampler(3, num_epochs=1))) == [1, 2, 1]  # as in Grain
    assert "has more records than its source, which has 2: some come twice" in caplog.text


# Errors, None, printing.


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_names_operation_and_record_and_next_tries_again(workers):
    class Fussy(bushel.transforms.RandomMap):
        def random_map(self, element, rng):
            if element["i"] == 3:
                raise KeyError("three")
            return element

    with iter(
        bushel.DataLoader(
            data_source=Words(6),
            sampler=bushel.SequentialSampler(6, seed=1),
            operations=[Fussy(), operation(bushel, "map", 0)],
            worker_count=workers,
        )
    ) as it:
        assert [e["i"] for e in some(it, 3)] == [0, 1, 2]
        for _ in range(2):
            with pytest.raises(KeyError, match="three") as caught:
                next(it)
            notes = "\n".join(caught.value.__notes__)
            assert "random_map(Fussy @ " in notes and "record 3 of Words(6)" in notes
        assert plain(it.get_state())["last_seen_indices"] == {"0": 2}


def test_an_error_at_the_end_of_a_longer_shard_is_told_too():
    class Last(bushel.transforms.Map):
        def map(self, element):
            raise OSError("away")

    sampler = bushel.IndexSampler(10, bushel.ShardOptions(0, 3), num_epochs=2)
    it = iter(bushel.DataLoader(data_source=Words(10), sampler=sampler, operations=[Last()]))
    state = plain(it.get_state())
    it.set_state(json.dumps({**state, "last_seen_indices": {"0": 18}}).encode())  # seven of its eight are read
    with pytest.raises(OSError, match="away") as caught:
        next(it)
    assert "record 3 of Words(10)" in "".join(caught.value.__notes__)


def test_a_DataLoader_takes_None_as_an_element():
    def loaded(lib):
        def of(kind, name, function):
            return type("Own", (kind,), {name: lambda self, element: function(element)})()

        operations = [
            of(lib.transforms.Map, "map", lambda x: None if x == 1 else x),
            of(lib.transforms.Filter, "filter", lambda x: x != 2),
            of(lib.transforms.Map, "map", lambda x: (x,)),
        ]
        sampler = lib.samplers.SequentialSampler(4, lib.sharding.NoSharding())
        return lib.DataLoader(data_source=[0, 1, 2, None], sampler=sampler, operations=operations)

    assert list(loaded(bushel)) == list(loaded(grain)) == [(0,), (None,), (None,)]


def test_a_loader_prints_as_a_pipeline():
    recipe = Recipe(6, operations=(("random_map", 0), ("batch", (2, False))))
    text = repr(recipe.build(bushel))
    assert ".random_map(jitter)" in text and ".batch(2)" in text and "IndexSampler(num_records=6" in text
    assert "last_seen" not in repr(iter(recipe.build(bushel)))


def test_closing_ends_workers():
    it = iter(Recipe(100).build(bushel, worker_count=1))
    next(it)
    it.close()
    it.close()
    with pytest.raises(ValueError, match="closed"):
        next(it)


def test_arrays_are_read_in_columns():
    arrays = {"x": np.arange(20).reshape(10, 2)}
    source = bushel.sources.ArrayDataSource(arrays)
    sampler = bushel.IndexSampler(10, shuffle=True, num_epochs=1, seed=0)
    loaded = bushel.DataLoader(data_source=source, sampler=sampler, operations=[bushel.Batch(4)])
    order = [sampler[index].record_key for index in range(10)]
    expected = [{"x": arrays["x"][order[start : start + 4]]} for start in (0, 4, 8)]
    assert same(list(loaded), expected)

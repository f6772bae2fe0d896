"""ElasticIterator of an interleave: hosts share its datasets, and another number of hosts goes on with them."""

import asyncio
import copy
import itertools
import json
import logging
from typing import Any

import grain
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from orbax.checkpoint.experimental import v1 as newer

import bushel
from bushel import StateMismatch
from bushel._src.state import checkpoint_files
from bushel.checkpoint import CheckpointHandler
from bushel.experimental import ElasticIterator, InterleaveIterDataset
from bushel.testing import same


def host(index, count):
    return bushel.ShardOptions(shard_index=index, shard_count=count)


def numbers(part, length, lib=bushel):
    """The elements 100 * part, 100 * part + 1 ...: each tells where it belongs."""
    return lib.MapDataset.range(100 * part, 100 * part + length)


class Counting(bushel.IterDataset):
    """A user's own stream, whose states are numbers and not dicts."""

    def __init__(self, start, stop):
        super().__init__()
        self.start, self.stop = start, stop

    def __iter__(self):
        return CountingIterator(self.start, self.stop)


class CountingIterator(bushel.DatasetIterator):
    def __init__(self, at, stop):
        super().__init__()
        self.at: int = at
        self.stop: int = stop

    def __next__(self):
        if self.at == self.stop:
            raise StopIteration
        self.at += 1
        return self.at - 1

    def get_state(self) -> Any:
        return self.at

    def set_state(self, state, *, check: bool = True):
        self.at = state


KINDS = ["map datasets", "streams", "filtered streams", "a map dataset of them", "one's own"]


def interleave(lengths, cycle_length, kind="map datasets", lib=bushel):
    parts = [numbers(part, length, lib) for part, length in enumerate(lengths)]
    if kind == "streams":
        parts = [part.shuffle(seed=7).to_iter_dataset().map(int) for part in parts]
    elif kind == "filtered streams":
        parts = [part.to_iter_dataset().filter(lambda x: x % 100 != 1) for part in parts]
    elif kind == "a map dataset of them":
        parts = lib.MapDataset.source(list(enumerate(lengths))).map(lambda pair: numbers(*pair, lib).to_iter_dataset())
    elif kind == "one's own":
        parts = [Counting(100 * part, 100 * part + length) for part, length in enumerate(lengths)]
    return lib.experimental.InterleaveIterDataset(parts, cycle_length=cycle_length)


def in_order(ds):
    """The elements of each dataset of an interleave in its order, by its number."""
    by_part = {}
    for element in ds:
        by_part.setdefault(int(element) // 100, []).append(int(element))
    return by_part


def flat(batches):
    return [int(x) for batch in batches for x in np.atleast_1d(batch)]


def shard_states(iterators):
    """The states of all hosts together, after a round trip through JSON."""
    together = {}
    for iterator in iterators:
        states = iterator.get_shard_states()
        assert not together.keys() & states.keys(), "each dataset has one host"
        together |= states
    return json.loads(json.dumps(together))


def plain(states):
    """Shard states without what is Bushel's own in them."""
    return {int(number): {**state, "bushel": None} for number, state in states.items()}


def positions(states):
    """The states of datasets that have not ended, by number; None for those that have."""
    return {int(number): None if state["exhausted"] else state["state"] for number, state in states.items()}


# Laws.


@st.composite
def phases(draw):
    """Lengths of datasets, and a job that goes on several times: (hosts, rows per host, cycle length, stops)."""
    lengths = draw(st.lists(st.integers(0, 6), min_size=1, max_size=7))
    hosts = st.integers(1, min(4, len(lengths)))
    stops = st.lists(st.integers(0, 4), min_size=4, max_size=4)
    one = st.tuples(hosts, st.integers(0, 3), st.integers(1, 4), stops)
    return lengths, draw(st.lists(one, min_size=2, max_size=4))


@settings(max_examples=150, deadline=None)
@given(run=phases(), kind=st.sampled_from(KINDS), through=st.sampled_from(["shards", "states and shards"]))
def test_another_number_of_hosts_loses_nothing_and_repeats_nothing(run, kind, through):
    lengths, parts = run
    found, states = [], None
    for number, (count, rows, cycle_length, stops) in enumerate(parts):
        ds = interleave(lengths, cycle_length, kind)
        hosts = [ElasticIterator(ds, rows * count, host(index, count)) for index in range(count)]
        for index, it in enumerate(hosts):
            if states is not None:
                it.set_shard_states(states)
                mine = {number: at for number, at in positions(states).items() if number % count == index}
                assert positions(it.get_shard_states()) == mine
        for index, (it, stop) in enumerate(zip(hosts, stops, strict=False)):
            found += flat(itertools.islice(it, None if number == len(parts) - 1 else stop))
            if through == "states and shards":  # a job that is also stopped and begun with as many hosts
                hosts[index] = ElasticIterator(ds, rows * count, host(index, count))
                hosts[index].set_state(json.loads(json.dumps(it.get_state())))
        states = shard_states(hosts)
    assert in_order(found) == in_order(interleave(lengths, 1, kind))
    assert all(state["exhausted"] for state in states.values() if found)


@settings(max_examples=100, deadline=None)
@given(run=phases(), kind=st.sampled_from(KINDS), stop=st.integers(0, 6))
def test_the_same_number_of_hosts_resumes_exactly(run, kind, stop):
    """From every stop, also after shard states were set: then some datasets wait for their turn at a state."""
    lengths, ((count, rows, cycle_length, stops), (after, *_), *_) = run
    ds = interleave(lengths, cycle_length, kind)
    hosts = [ElasticIterator(ds, rows * count, host(index, count)) for index in range(count)]
    for it, steps in zip(hosts, stops, strict=False):
        list(itertools.islice(it, steps))
    states = shard_states(hosts)
    for index in range(after):
        it = ElasticIterator(ds, rows * after, host(index, after))
        it.set_shard_states(states)
        list(itertools.islice(it, stop))
        state, shards = it.get_state(), plain(it.get_shard_states())
        fresh = ElasticIterator(ds, rows * after, host(index, after))
        fresh.set_state(json.loads(json.dumps(state)))
        assert fresh.get_state() == state and plain(fresh.get_shard_states()) == shards
        rest = list(it)
        assert same(rest, list(fresh))
        it.set_state(state)
        assert same(rest, list(it)), "its own state does not change while it goes on"


def grains_host(lengths, index, count, cycle_length):
    """What Grain's ElasticIterator runs: the interleave of every `count`-th dataset. Version 0.2.18 has its part of the
    API: `get_shard_states` and `set_shard_states`, the same as in Grain's head.
    """
    parts = [numbers(part, length, grain).to_iter_dataset() for part, length in enumerate(lengths)][index::count]
    return iter(grain.experimental.InterleaveIterDataset(parts, cycle_length=cycle_length))


def begins_anew_in_grain(states, cycle_length):
    """Whether Grain's set_shard_states would read datasets again that have ended."""
    active = [place for place, state in enumerate(states) if not state["exhausted"]][:cycle_length]
    after = active[-1] + 1 if active else 0
    return any(state["exhausted"] for state in states[after:])


@settings(max_examples=60, deadline=None)
@given(run=phases())
def test_elements_and_states_are_grains(run):
    lengths, ((count, _, cycle_length, stops), (after, *_), *_) = run
    ds = interleave(lengths, cycle_length)
    ours = [ElasticIterator(ds, 0, host(index, count)) for index in range(count)]
    theirs = [grains_host(lengths, index, count, cycle_length) for index in range(count)]
    grains = {}
    for index, stop in zip(range(count), stops, strict=False):
        assert list(itertools.islice(ours[index], stop)) == list(itertools.islice(theirs[index], stop))
        states = copy.deepcopy(theirs[index].get_shard_states())
        grains |= {index + count * place: state for place, state in enumerate(states)}
    assert plain(shard_states(ours)) == plain(grains)
    for index in range(after):
        mine = [grains[number] for number in range(index, len(lengths), after)]
        if begins_anew_in_grain(mine, cycle_length):
            continue
        it, grains_it = ElasticIterator(ds, 0, host(index, after)), grains_host(lengths, index, after, cycle_length)
        it.set_shard_states(grains)
        grains_it.set_shard_states(copy.deepcopy(mine))
        state = it.get_state()
        grains_state = copy.deepcopy(grains_it.get_state())
        assert {key: state[key] for key in grains_state} == grains_state
        rest = list(it)
        assert rest == list(grains_it)
        it.set_state(grains_state)
        assert rest == list(it)


# What Grain's own class gives. These values are printed by `elastic_iterator.py` of Grain's head (commit f5dd0d8, which
# is newer than 0.2.18), run with the rest of Grain 0.2.18.

LENGTHS = [3, 5, 1, 4, 2, 6]
GOLDEN = {
    # (hosts, batch, steps, hosts after, batch after, cycle length)
    (3, 6, 2, 2, 4, 2): {
        "given": [[[100, 130], [101, 131]], [[110, 140], [111, 141]], [[120, 150], [151, 152]]],
        "shards": {0: (0, 2), 1: (0, 2), 2: (1, 1), 3: (0, 2), 4: (0, 2), 5: (0, 3)},
        "in use": [[0, 2], [0, 1]],
        "later": [{}, {2: {"next_index": 3}}],
        "rest": [[[102]], [[112, 132], [113, 133], [114, 153], [154, 155]]],
    },
    (2, 4, 3, 1, 0, 2): {
        "given": [[[100, 120], [101, 102], [140, 141]], [[110, 130], [111, 131], [112, 132]]],
        "shards": {0: (1, 3), 1: (0, 3), 2: (1, 0), 3: (0, 3), 4: (0, 2), 5: (0, 0)},
        "in use": [[1, 3]],
        "later": [{4: {"next_index": 2}, 5: {"next_index": 0}}],
        "rest": [[113, 133, 114, 150, 151, 152, 153, 154, 155]],
    },
    (1, 2, 4, 3, 3, 3): {
        "given": [[[100, 110], [120, 101], [111, 102], [112, 130]]],
        "shards": {0: (0, 3), 1: (0, 3), 2: (1, 0), 3: (0, 1), 4: (0, 0), 5: (0, 0)},
        "in use": [[0, 1], [0, 1], [1, 0]],
        "later": [{}, {}, {}],
        "rest": [
            [[131], [132], [133]],
            [[113], [140], [114], [141]],
            [[150], [151], [152], [153], [154], [155]],
        ],
    },
}  # fmt: skip


@pytest.mark.parametrize("run", GOLDEN)
def test_values_of_grains_own_class(run):
    count, batch, steps, after, batch_after, cycle_length = run
    parts = [
        bushel.MapDataset.range(10 * part, 10 * part + length).to_iter_dataset() for part, length in enumerate(LENGTHS)
    ]
    ds = InterleaveIterDataset(parts, cycle_length=cycle_length).map(lambda x: x + 100)
    hosts = [ElasticIterator(ds, batch, host(index, count)) for index in range(count)]
    expected = GOLDEN[run]
    assert [[next(it).tolist() for _ in range(steps)] for it in hosts] == expected["given"]
    shards = shard_states(hosts)
    assert {
        int(number): (state["exhausted"], state["state"]["next_index"]) for number, state in shards.items()
    } == expected["shards"]
    hosts = [ElasticIterator(ds, batch_after, host(index, after)) for index in range(after)]
    for it in hosts:
        it.set_shard_states(shards)
    states = [it.get_state() for it in hosts]
    assert [state["iterators_in_use_indices"] for state in states] == expected["in use"]
    assert [state["future_states"] for state in states] == expected["later"]
    assert [[np.asarray(batch).tolist() for batch in it] for it in hosts] == expected["rest"]


def test_we_differ_a_dataset_that_has_ended_is_not_read_again():
    states = [{"exhausted": 0, "state": {"next_index": 1}}, {"exhausted": 1, "state": {"next_index": 0}}]
    theirs = grains_host([2, 2], 0, 1, 1)
    theirs.set_shard_states(copy.deepcopy(states))
    assert list(theirs) == [1, 100, 101]
    ours = ElasticIterator(interleave([2, 2], 1), 0, bushel.NoSharding())
    ours.set_shard_states(dict(enumerate(states)))
    assert list(ours) == [1]


def test_we_differ_states_of_datasets_that_wait_survive_json():
    lengths = [2, 3]
    states = [{"exhausted": 0, "state": {"next_index": 1}}, {"exhausted": 0, "state": {"next_index": 2}}]
    theirs, ours = grains_host(lengths, 0, 1, 1), ElasticIterator(interleave(lengths, 1), 0, bushel.NoSharding())
    theirs.set_shard_states(copy.deepcopy(states))
    theirs.set_state(json.loads(json.dumps(theirs.get_state())))
    assert list(theirs) == [1, 100, 101, 102]
    ours.set_shard_states(dict(enumerate(states)))
    ours.set_state(json.loads(json.dumps(ours.get_state())))
    assert list(ours) == [1, 102]


# Operations after the interleave, and how it runs.


def test_operations_on_elements_and_batches_stay():
    ds = interleave([5, 4, 6], 2).map(lambda x: x + 1).filter(lambda x: x % 3).batch(2)
    ds = ds.map(lambda pair: pair.sum())
    hosts = [ElasticIterator(ds, 2, host(index, 2)) for index in range(2)]
    assert [next(it).tolist() for it in hosts] == [[1 + 2], [101 + 103]]
    alone = ElasticIterator(ds, 0, bushel.NoSharding())
    alone.set_shard_states(shard_states(hosts))
    assert [int(x) for x in alone] == [104 + 4, 5 + 202, 203 + 205, 206]


@pytest.mark.parametrize("operation", ["random_map", "map_with_index"])
def test_counts_begin_again_as_in_grain(operation):
    def build(lib):
        ds = interleave([4, 4], 2, "streams", lib)
        return ds.random_map(_noisy, seed=3) if operation == "random_map" else ds.map_with_index(_numbered)

    def inner(it):
        """The iterator of Grain's interleave below the operation."""
        return it._parent

    ours, theirs = ElasticIterator(build(bushel), 0, bushel.NoSharding()), iter(build(grain))
    assert [next(ours) for _ in range(3)] == [next(theirs) for _ in range(3)]
    states, grains = shard_states([ours]), copy.deepcopy(inner(theirs).get_shard_states())
    assert positions(states) == positions(dict(enumerate(grains)))
    ours, theirs = ElasticIterator(build(bushel), 0, bushel.NoSharding()), iter(build(grain))
    ours.set_shard_states(states)
    inner(theirs).set_shard_states(grains)
    state = ours.get_state()
    found = [next(ours), next(ours)]
    assert found == [next(theirs), next(theirs)]
    ours.set_state(state)
    assert [next(ours), next(ours)] == found


def _noisy(x, rng):
    return x + rng.random()


def _numbered(index, x):
    return index, x


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_change_nothing(workers):
    ds = interleave([7, 3, 5, 6], 2, "streams")
    options = bushel.MultiprocessingOptions(num_workers=workers)
    hosts = [ElasticIterator(ds, 4, host(index, 2)) for index in range(2)]
    expected = [next(hosts[0])]
    with ElasticIterator(ds, 4, host(0, 2), multiprocessing_options=options) as it:
        it.start_prefetch()
        assert same([next(it)], expected)
        assert it.get_state() == hosts[0].get_state()
        states = shard_states([it, hosts[1]])
    alone = ElasticIterator(ds, 2, bushel.NoSharding())
    alone.set_shard_states(states)
    with ElasticIterator(ds, 2, bushel.NoSharding(), multiprocessing_options=options) as it:
        it.set_shard_states(states)
        assert same(list(it), list(alone))


def test_elements_that_fail_are_left_out_and_counted():
    ds = interleave([4, 4], 1).map(_fails_at_one)
    options = bushel.experimental.DatasetOptions(on_error="skip")
    it = ElasticIterator(ds, 0, bushel.NoSharding(), options=options)
    assert [next(it), next(it)] == [0, 2] and it.skipped == 1
    after = [ElasticIterator(ds, 0, host(index, 2), options=options) for index in range(2)]
    for one in after:
        one.set_shard_states(shard_states([it]))
    assert [list(one) for one in after] == [[3], [100, 102, 103]]


def _fails_at_one(x):
    if x % 100 == 1:
        raise ValueError("one")
    return x


def test_an_error_leaves_the_position_of_a_dataset_that_had_waited():
    fails = [True]

    def moody(x):
        if x == 102 and fails:
            fails.pop()
            raise OSError("away")
        return x

    ds = interleave([2, 4], 1).map(moody)
    it = ElasticIterator(ds, 3, bushel.NoSharding())
    states = [{"exhausted": 0, "state": {"next_index": 1}}, {"exhausted": 0, "state": {"next_index": 1}}]
    it.set_shard_states(dict(enumerate(states)), check=False)
    state = it.get_state()
    with pytest.raises(OSError, match="away"):
        next(it)
    assert it.get_state() == state
    assert [batch.tolist() for batch in it] == [[1, 101, 102], [103]]


def test_a_dataset_that_had_waited_and_has_ended_is_opened_again_after_an_error():
    fails = [True]

    def moody(x):
        if x == 200 and fails:
            fails.pop()
            raise OSError("away")
        return x

    it = ElasticIterator(interleave([1, 3, 2], 1).map(moody), 2, bushel.NoSharding())
    it.set_shard_states({n: {"exhausted": 0, "state": {"next_index": at}} for n, at in enumerate([0, 1, 0])})
    assert next(it).tolist() == [0, 101]
    with pytest.raises(OSError, match="away"):
        next(it)
    assert [batch.tolist() for batch in it] == [[102, 200], [201]]


def test_states_that_are_asked_for_in_the_middle_of_an_element_are_those_before_it():
    seen = []

    def ask(x):
        seen.append((it.get_state(), it.get_shard_states()))
        return x

    it = ElasticIterator(interleave([1, 3, 2], 1).map(ask), 3, bushel.NoSharding())
    it.set_shard_states({n: {"exhausted": 0, "state": {"next_index": at}} for n, at in enumerate([0, 1, 0])})
    before = it.get_state(), it.get_shard_states()
    assert next(it).tolist() == [0, 101, 102]
    assert seen == [before] * 3


def test_a_state_that_the_data_refuse_leaves_the_datasets_that_wait():
    parts = [bushel.experimental.FlatMapIterDataset(numbers(part, 4).to_iter_dataset(), Twice()) for part in range(2)]
    it = ElasticIterator(InterleaveIterDataset(parts, cycle_length=1), 0, bushel.NoSharding())

    def entry(element, copies):
        return {"exhausted": 0, "state": {"parent": {"next_index": element}, "next_index_in_buffer": copies}}

    it.set_shard_states({0: entry(3, 1), 1: entry(2, 1)})
    before = it.get_state()
    with pytest.raises(StateMismatch, match="after row 5 of what flat_map makes of an element, which has 2"):
        it.set_shard_states({0: entry(3, 5), 1: entry(0, 0)})
    assert it.get_state() == before
    assert list(it) == [3, 102, 103, 103]


class Twice(bushel.experimental.FlatMapTransform):
    max_fan_out = 2

    def flat_map(self, element):
        return [element, element]


def test_the_last_batch_may_be_dropped():
    ds = interleave([5], 1)
    assert [len(batch) for batch in ElasticIterator(ds, 2, bushel.NoSharding())] == [2, 2, 1]
    assert [len(batch) for batch in ElasticIterator(ds, 2, bushel.NoSharding(), remainder="drop")] == [2, 2]
    with pytest.raises(ValueError, match='remainder="pad" is for a MapDataset'):
        ElasticIterator(ds, 2, bushel.NoSharding(), remainder="pad")


def test_many_files_are_an_interleave(tmp_path):
    pq = pytest.importorskip("pyarrow.parquet")
    pa = pytest.importorskip("pyarrow")
    for part in range(3):
        pq.write_table(pa.table({"x": np.arange(4) + 100 * part}), tmp_path / f"{part}.parquet")
    ds = bushel.experimental.ParquetIterDataset([str(tmp_path / f"{part}.parquet") for part in range(3)])
    ds = ds.map(lambda row: row["x"])
    hosts = [ElasticIterator(ds, 4, host(index, 2)) for index in range(2)]
    found = flat(next(it) for it in hosts)
    alone = ElasticIterator(ds, 4, bushel.NoSharding())
    alone.set_shard_states(shard_states(hosts))
    assert sorted(found + flat(alone)) == sorted(flat(ds))


def test_several_epochs_are_datasets_listed_several_times():
    parts = bushel.MapDataset.range(3).repeat(2).map(lambda part: numbers(part, 4))
    ds = InterleaveIterDataset(parts, cycle_length=1)
    hosts = [ElasticIterator(ds, 0, host(index, 2)) for index in range(2)]
    found = [next(it) for it in hosts for _ in range(6)]
    alone = ElasticIterator(ds, 0, bushel.NoSharding())
    alone.set_shard_states(shard_states(hosts))
    assert sorted(found + list(alone)) == sorted(flat(2 * [numbers(part, 4) for part in range(3)]))


def test_datasets_that_a_filter_drops_have_no_host():
    parts = bushel.MapDataset.range(5).filter(lambda n: n != 2).map(lambda n: numbers(n, 3))
    ds = InterleaveIterDataset(parts, cycle_length=2)
    hosts = [ElasticIterator(ds, 0, host(index, 2)) for index in range(2)]
    found = [next(it) for it in hosts] + [next(hosts[0])]
    after = [ElasticIterator(ds, 0, host(index, 3)) for index in range(3)]
    for it in after:
        it.set_shard_states(shard_states(hosts))
        found += list(it)
    assert sorted(found) == sorted(ds)


def test_the_base_iterator_is_another_name_for_what_runs():
    it = ElasticIterator(interleave([3, 3], 1), 2, host(1, 2))
    base = it.base_iterator
    assert next(base).tolist() == [100] and base.shard_options == it.shard_options == host(1, 2)
    assert base.get_state() == it.get_state() and base.get_shard_states() == it.get_shard_states()
    state = it.get_state()
    it.set_state(state)
    assert next(it.base_iterator).tolist() == [101]
    it.close()
    with pytest.raises(ValueError, match="closed"):
        next(it)


# Errors.


def test_a_pipeline_that_cannot_be_shared_is_refused():
    ds, alone = interleave([3, 3], 1), bushel.NoSharding()
    own_position = {
        "repeat": bushel.experimental.RepeatIterDataset(ds, 2),
        "limit": bushel.experimental.LimitIterDataset(ds, 2),
        "window": bushel.experimental.WindowShuffleIterDataset(ds, window_size=2, seed=1),
        "zip": bushel.experimental.ZipIterDataset([ds, ds]).map(str),
        "mix": bushel.IterDataset.mix([ds, ds], [1, 1]),
    }
    for pipeline in own_position.values():
        with pytest.raises(ValueError, match=r"does not support `.*` after an interleave.*before the interleave"):
            ElasticIterator(pipeline, 2, alone)
    with pytest.raises(ValueError, match=r"For several epochs, interleave `datasets \* num_epochs`\."):
        ElasticIterator(own_position["repeat"], 2, alone)
    with pytest.raises(ValueError, match=r"begins with an InterleaveIterDataset.* has `Counting\(\)` in its place"):
        ElasticIterator(Counting(0, 4).map(str), 2, alone)
    endless = InterleaveIterDataset(bushel.MapDataset.range(2).map(lambda n: numbers(n, 2)).repeat(), cycle_length=2)
    with pytest.raises(ValueError, match="endlessly many datasets"):
        ElasticIterator(endless, 2, alone)


BAD = {
    "more hosts than datasets": ((3, host(0, 3)), ValueError, "cannot share 2 interleaved datasets among 3 hosts"),
    "hosts that do not divide": ((3, host(0, 2)), ValueError, "3 is not divisible by shard count 2"),
    "a negative batch": ((-2, host(0, 2)), ValueError, "global_batch_size must be greater than or equal to 0"),
    "a batch that is no number": (("2", host(0, 2)), TypeError, "global_batch_size must be an integer"),
    "no shard": ((2, (0, 2)), TypeError, r"shard_options must be ShardOptions, got \(0, 2\)"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_argument_gets_a_sentence(name):
    arguments, kind, sentence = BAD[name]
    with pytest.raises(kind, match=sentence):
        ElasticIterator(interleave([3, 3], 1), *arguments)


START = {"exhausted": 0, "state": {"next_index": 0}}
BAD_STATES = {
    "one too few": ({0: START, 1: START}, r"reads 2 of the 4 datasets and needs a state for each; those of 2 are"),
    "none": ({}, r"those of 0, 2 are missing. Collect what get_shard_states\(\) returned on all hosts"),
    "one too many": (dict.fromkeys(range(5), START), r"states of shards 4; the interleave has 4 datasets, 0 to 3"),
    "a list": ([START, START], r"what get_shard_states\(\) returned, a dict; got \["),
    "no number": ({"a": START, "2": START}, "must be of type int, got 'a'"),
    "a state of another kind": ({0: START, 2: {"next_index": 3}}, r"needs an entry 'exhausted'.*\[2\]"),
    "ended twice": ({0: START, 2: {"exhausted": 2, "state": {}}}, r"ended \(1\) or not \(0\), got 2"),
    "without a state": ({0: START, 2: {"exhausted": 0, "state": None}}, "must not be None"),
    "a position outside": ({0: START, 2: {"exhausted": 0, "state": {"next_index": -1}}}, "next_index"),
    "an entry that is no dict": ({0: START, 2: 7}, "a dict; got 7"),
}


@pytest.mark.parametrize("name", BAD_STATES)
def test_bad_shard_states_get_a_sentence_and_change_nothing(name, caplog):
    states, sentence = BAD_STATES[name]
    it = ElasticIterator(interleave([3, 3, 3, 3], 2), 2, host(0, 2))
    next(it)
    before = it.get_state()
    with caplog.at_level(logging.ERROR), pytest.raises(StateMismatch, match=sentence):
        it.set_shard_states(states)
    assert it.get_state() == before
    assert flat(it) == [200, 1, 201, 2, 202]


def test_states_of_other_data_are_refused():
    it = ElasticIterator(interleave([3, 3], 1).map(abs), 0, bushel.NoSharding())
    states = it.get_shard_states()
    other = ElasticIterator(interleave([3, 4], 1).map(abs), 0, host(1, 2))
    told = r"- range\(100, 103\)\n  \+ range\(100, 104\)\nPass check=False to set_shard_states to"
    with pytest.raises(StateMismatch, match=told):
        other.set_shard_states(states)
    other.set_shard_states(states, check=False)
    same_data = ElasticIterator(interleave([3, 4], 2).map(abs), 0, host(0, 2))
    same_data.set_shard_states(states)  # a host needs to know nothing of the others' datasets, nor of the cycle
    other_function = ElasticIterator(interleave([3, 3], 1).map(str), 0, bushel.NoSharding())
    with pytest.raises(StateMismatch, match=r"- map\(abs\)"):
        other_function.set_shard_states(states)


def test_a_state_of_another_host_is_refused():
    ds = interleave([3, 3, 3, 3], 1)
    state = ElasticIterator(ds, 4, host(1, 4)).get_state()
    for there in (host(0, 4), host(1, 2)):
        it = ElasticIterator(ds, 4, there)
        with pytest.raises(StateMismatch, match=r"saved by host 1 of 4; this is host .*with set_shard_states\(\)"):
            it.set_state(state)
        assert len(flat(it)) == 12 // there.shard_count


# Checkpoints.


def as_process(monkeypatch, index, count):
    monkeypatch.setattr(checkpoint_files, "jax_process", lambda: (index, count))


def saved_by_three(monkeypatch, folder, save):
    """Three processes that have taken one batch each; what they gave, and the iterators."""
    ds = interleave([4, 3, 5, 2, 6], 2, "streams")
    hosts = [ElasticIterator(ds, 6, host(index, 3)) for index in range(3)]
    given = flat(next(it) for it in hosts)
    for index, it in enumerate(hosts):
        as_process(monkeypatch, index, 3)
        save(folder, it)
    return ds, given, hosts


def test_a_checkpoint_is_restored_by_another_number_of_processes(tmp_path, monkeypatch):
    ds, found, hosts = saved_by_three(monkeypatch, tmp_path, CheckpointHandler().save)
    names = [f"process_{i}-of-3.json" for i in range(3)] + [f"shard_state_{i}.json" for i in range(5)]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    for index in range(2):
        as_process(monkeypatch, index, 2)
        found += flat(CheckpointHandler().restore(tmp_path, ElasticIterator(ds, 2, host(index, 2))))
    assert sorted(found) == sorted(ds)
    as_process(monkeypatch, 1, 3)  # as many: exactly where it was
    again = CheckpointHandler().restore(tmp_path, ElasticIterator(ds, 6, host(1, 3)))
    assert again.get_state() == hosts[1].get_state()
    # The same processes, which now read as one host: the file of the process is of another host.
    as_process(monkeypatch, 0, 3)
    alone = CheckpointHandler().restore(tmp_path, ElasticIterator(ds, 6, bushel.NoSharding()))
    assert sorted(flat(alone)) == sorted(flat(itertools.chain(*hosts)))


def test_a_checkpoint_without_the_file_of_a_shard_is_refused(tmp_path, monkeypatch):
    ds, *_ = saved_by_three(monkeypatch, tmp_path, CheckpointHandler().save)
    (tmp_path / "shard_state_2.json").unlink()
    as_process(monkeypatch, 0, 2)
    with pytest.raises(StateMismatch, match="those of 2 are missing"):
        CheckpointHandler().restore(tmp_path, ElasticIterator(ds, 2, host(0, 2)))
    for path in tmp_path.glob("shard_*"):
        path.unlink()
    with pytest.raises(ValueError, match=r"process_0-of-2\.json does not exist"):
        CheckpointHandler().restore(tmp_path, ElasticIterator(ds, 2, host(0, 2)))


class _Folder:
    def __init__(self, path):
        self.path = path

    async def await_creation(self):
        return self.path


async def _both(first):
    await (await first)


def test_the_newer_protocol_has_the_shards_too(tmp_path, monkeypatch):
    ds, found, _ = saved_by_three(
        monkeypatch, tmp_path, lambda folder, it: asyncio.run(_both(it.save(_Folder(folder))))
    )
    for index in range(2):
        as_process(monkeypatch, index, 2)
        it = ElasticIterator(ds, 2, host(index, 2))
        asyncio.run(_both(it.load(tmp_path)))
        found += flat(it)
    assert sorted(found) == sorted(ds)


def test_orbax_saves_and_restores(tmp_path):
    ds = interleave([4, 3, 5], 2)
    it = ElasticIterator(ds, 2, bushel.NoSharding())
    next(it)
    newer.save_checkpointables(tmp_path / "now", {"data": it})
    rest = list(it)
    fresh = ElasticIterator(ds, 2, bushel.NoSharding())
    newer.load_checkpointables(tmp_path / "now", {"data": fresh})
    assert same(list(fresh), rest)


def test_shards_that_grain_has_written_are_read_with_one_warning(tmp_path, monkeypatch, caplog):
    lengths = [4, 3, 5]
    theirs = grains_host(lengths, 0, 1, 2)
    found = [next(theirs) for _ in range(5)]
    (tmp_path / "process_0-of-1.json").write_text(json.dumps(theirs.get_state()))
    for number, state in enumerate(theirs.get_shard_states()):
        (tmp_path / f"shard_state_{number}.json").write_text(json.dumps(state, indent=4))
    for index in range(2):
        as_process(monkeypatch, index, 2)
        caplog.clear()
        it = CheckpointHandler().restore(tmp_path, ElasticIterator(interleave(lengths, 2), 0, host(index, 2)))
        assert [record.message.split(" carry")[0] for record in caplog.records] == [
            f"{2 - index} of these shard states"
        ]
        found += list(it)
    assert sorted(found) == sorted(interleave(lengths, 2))

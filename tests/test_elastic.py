"""ElasticIterator of a MapDataset: one global order for any number of hosts, from any stop to any other number."""

import itertools
import json
import logging
import sys
from typing import Any

import cloudpickle
import grain
import numpy as np
import pytest
from helpers.loader_recipes import digit
from hypothesis import given, settings
from hypothesis import strategies as st

import bushel
from bushel import StateMismatch
from bushel.experimental import ElasticIterator
from bushel.testing import same

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers need not import the tests


def pipeline(lib, length, epochs=1, mixed=False):
    """Shuffled, perhaps mixed, with a random operation: each element is a function of its global index."""
    ds = lib.MapDataset.range(length).seed(3).shuffle()
    if mixed:
        ds = lib.MapDataset.mix([ds, lib.MapDataset.range(1000, 1000 + length)], [2, 1])
    return ds.random_map(digit, seed=5).repeat(epochs)


def hosts(count):
    return [bushel.ShardOptions(shard_index=index, shard_count=count) for index in range(count)]


class Fleet:
    """All hosts of a run, as one."""

    def __init__(self, ds, batch, count, state=None, **options):
        self.count = count
        self.hosts = [ElasticIterator(ds, batch, host, **options) for host in hosts(count)]
        for host in self.hosts if state is not None else ():
            host.set_state(json.loads(json.dumps(state)))

    def __iter__(self):
        return self

    def __next__(self):
        """The global batch, put together of the rows of all hosts."""
        ended = object()
        parts: list[Any] = [next(host, ended) for host in self.hosts]
        if ended in [part for part in parts if part is ended]:
            assert all(part is ended for part in parts), "hosts end together"
            raise StopIteration
        if isinstance(parts[0], tuple):
            return tuple(self._woven([part[leaf] for part in parts]) for leaf in range(2))
        return self._woven(parts)

    def _woven(self, parts):
        whole = np.empty(sum(map(len, parts)), parts[0].dtype)
        for index, part in enumerate(parts):
            whole[index :: self.count] = part
        return whole

    def state(self):
        states = [host.get_state() for host in self.hosts]
        assert all(state == states[0] for state in states), "one state for all hosts"
        return states[0]


def divisors(number):
    return [count for count in range(1, number + 1) if number % count == 0]


@st.composite
def runs(draw):
    batch = draw(st.sampled_from([1, 2, 4, 6, 8, 12]))
    parts = st.tuples(st.sampled_from(divisors(batch)), st.integers(0, 4))
    return draw(st.integers(0, 60)), batch, draw(st.lists(parts, min_size=1, max_size=4)), draw(st.integers(1, 2))


@settings(max_examples=80, deadline=None)
@given(run=runs(), remainder=st.sampled_from(["drop", "pad"]), mixed=st.booleans())
def test_any_sequence_of_host_counts_gives_the_batches_of_one_host(run, remainder, mixed):
    length, batch, parts, epochs = run
    mixed = mixed and length > 0
    ds = pipeline(bushel, length, epochs, mixed)
    alone = list(ElasticIterator(ds, batch, bushel.NoSharding(), remainder=remainder))
    found, state = [], None
    for number, (count, stop) in enumerate(parts):
        fleet = Fleet(ds, batch, count, state, remainder=remainder)
        last = number == len(parts) - 1
        for _ in range(10**6 if last else stop):
            whole = next(fleet, None)
            if whole is None:
                break
            found.append(whole)
        state = fleet.state()
    assert same(found, alone)
    elements = [ds[index] for index in range(len(ds))]
    if remainder == "drop":
        kept = len(elements) // batch * batch
        assert [int(x) for whole in found for x in whole] == elements[:kept]
    else:
        assert [int(x) for whole, mask in found for x in whole[mask]] == elements
        assert all(len(whole) == len(mask) == batch for whole, mask in found)


@settings(max_examples=30, deadline=None)
@given(length=st.integers(0, 40), batches=st.lists(st.sampled_from([2, 3, 4, 6]), min_size=2, max_size=3))
def test_the_global_batch_size_may_change_too(length, batches):
    ds = pipeline(bushel, length)
    found, state = [], None
    for batch in batches:
        fleet = Fleet(ds, batch, batch, state)
        found += [int(x) for whole in [next(fleet, ())] for x in whole]
        state = fleet.state()
    assert found == [ds[index] for index in range(len(found))]


@settings(max_examples=25, deadline=None)
@given(steps=st.integers(0, 5), batch=st.sampled_from([2, 4, 6]), taken=st.integers(0, 5))
def test_elements_and_states_are_grains(steps, batch, taken):
    # Grain's hosts end together only where the batch divides the length.
    length = steps * batch
    for index in range(2):
        ours = ElasticIterator(pipeline(bushel, length), batch, hosts(2)[index])
        shard = grain.sharding.ShardOptions(index, 2)
        theirs = grain.experimental.ElasticIterator(
            pipeline(grain, length), batch, shard, read_options=grain.ReadOptions(0, 0)
        )
        taken = min(taken, steps)
        assert same([next(ours) for _ in range(taken)], [next(theirs) for _ in range(taken)])
        state, grains = ours.get_state(), theirs.get_state()
        assert state["global_next_index"] == grains["global_next_index"]
        rest = list(ours)
        assert same(rest, list(theirs))
        theirs.set_state({"global_next_index": state["global_next_index"]})
        ours.set_state(grains)
        assert same(rest, [next(theirs) for _ in rest])
        assert same(rest, list(ours))


def test_we_differ_all_hosts_end_together():
    ours = [list(ElasticIterator(bushel.MapDataset.range(9), 4, host)) for host in hosts(4)]
    theirs = [
        list(grain.experimental.ElasticIterator(grain.MapDataset.range(9), 4, grain.sharding.ShardOptions(h, 4)))
        for h in range(4)
    ]
    assert [len(host) for host in ours] == [2, 2, 2, 2]
    assert [len(host) for host in theirs] == [3, 2, 2, 2]


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_change_nothing(workers):
    ds = pipeline(bushel, 23)
    options = bushel.MultiprocessingOptions(num_workers=workers)
    expected = list(ElasticIterator(ds, 6, hosts(3)[1], remainder="pad"))
    with ElasticIterator(ds, 6, hosts(3)[1], multiprocessing_options=options, remainder="pad") as it:
        it.start_prefetch()
        found = [next(it)]
        state = it.get_state()
        it.set_state(state)
        assert same(found + list(it), expected)


def test_trees_and_texts_are_padded():
    ds = bushel.MapDataset.source([{"text": word, "n": n} for n, word in enumerate(["pear", "fig", "plum"])])
    (batch, mask), (tail, tail_mask) = ElasticIterator(ds, 2, bushel.NoSharding(), remainder="pad")
    assert (batch["text"].tolist(), mask.tolist()) == (["pear", "fig"], [True, True])
    assert (tail["n"].tolist(), tail_mask.tolist()) == ([2, 2], [True, False])
    # A host that has nothing of the last batch has something to show all the same.
    second = list(ElasticIterator(ds, 2, hosts(2)[1], remainder="pad"))
    assert [mask.tolist() for _, mask in second] == [[True], [False]]


def test_a_state_of_other_data_is_refused_and_nothing_changes():
    it = ElasticIterator(pipeline(bushel, 20), 4, hosts(2)[0])
    next(it)
    before = it.get_state()
    other = ElasticIterator(pipeline(bushel, 21), 4, hosts(2)[0])
    with pytest.raises(StateMismatch, match=r"- range\(21\)\n  \+ range\(20\)"):
        it.set_state(other.get_state())
    assert it.get_state() == before


@pytest.mark.parametrize("position", [-1, 21, "4", None, True, 2**70])
def test_a_position_that_is_none_is_refused(position, caplog):
    it = ElasticIterator(pipeline(bushel, 20), 4, hosts(2)[0])
    next(it)
    before = it.get_state()
    with caplog.at_level(logging.ERROR), pytest.raises(StateMismatch):
        it.set_state({"global_next_index": position})
    assert it.get_state() == before


def test_an_error_leaves_the_position():
    fails = [True]

    def moody(x):
        if x == 5 and fails:
            fails.pop()
            raise OSError("away")
        return x

    it = ElasticIterator(bushel.MapDataset.range(8).map(moody), 4, bushel.NoSharding())
    next(it)
    with pytest.raises(OSError, match="away"):
        next(it)
    assert it.get_state()["global_next_index"] == 4
    assert next(it).tolist() == [4, 5, 6, 7]


BAD = {
    "hosts that do not divide": ((12, hosts(5)[0]), ValueError, "12 is not divisible by shard count 5"),
    "no batch": ((0, hosts(1)[0]), ValueError, "global_batch_size must be positive"),
    "no shard": ((4, 1), TypeError, "shard_options must be ShardOptions, got 1"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_argument_gets_a_sentence(name):
    arguments, kind, sentence = BAD[name]
    with pytest.raises(kind, match=sentence):
        ElasticIterator(bushel.MapDataset.range(10), *arguments)


def test_what_cannot_be_elastic_is_refused():
    ds = bushel.MapDataset.range(10)
    with pytest.raises(ValueError, match=r"does not support `filter`"):
        ElasticIterator(ds.filter(lambda x: x > 3).map(str), 2, bushel.NoSharding())
    with pytest.raises(ValueError, match=r"takes a MapDataset, or .*Leave out `to_iter_dataset`"):
        ElasticIterator(ds.to_iter_dataset(), 2, bushel.NoSharding())
    with pytest.raises(ValueError, match='"drop" or "pad", got \'keep\''):
        ElasticIterator(ds, 2, bushel.NoSharding(), remainder="keep")
    with pytest.raises(TypeError, match=r"takes a MapDataset, or an IterDataset .*; got list"):
        ElasticIterator([1, 2], 2, bushel.NoSharding())


def test_a_map_dataset_has_one_state_and_none_for_each_shard():
    it = ElasticIterator(bushel.MapDataset.range(8), 4, hosts(2)[1])
    assert it.shard_options == it.base_iterator.shard_options == hosts(2)[1]
    for name in ("get_shard_states", "set_shard_states"):
        with pytest.raises(NotImplementedError, match=f"{name} is only supported for IterDataset.*fits any number"):
            getattr(it, name)(*[{}] * name.startswith("set"))
    next(it.base_iterator)
    assert it.get_state()["global_next_index"] == 4


def test_closing_ends_it():
    it = ElasticIterator(bushel.MapDataset.range(10), 2, bushel.NoSharding())
    it.close()
    with pytest.raises(ValueError, match="closed"):
        next(it)


def chosen_by_columns(kind):
    """Pipelines whose order follows from a column: filters, packing, buckets of weights, exact mixtures."""
    numbers = bushel.MapDataset.range(300).seed(3)
    match kind:
        case "where":
            return numbers.shuffle().where(numbers.column(lambda x: x) % 3 > 0).repeat(2)
        case "sample":
            return numbers.sample(np.arange(300) + 1.0, seed=2)
        case "order_by":
            return numbers.order_by(-np.arange(300), noise=0.3, seed=1)
        case "mix":
            return bushel.MapDataset.mix([numbers.shuffle(), numbers.map(np.negative)], [3, 1], exact=True)
        case _:
            sequences = numbers.map(lambda x: np.full(1 + x % 7, x))
            packed = sequences.pack(sequences.column(len), length=16).shuffle(seed=4)
            return packed.map(lambda row: row["tokens"].sum())


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["where", "sample", "order_by", "mix", "pack"])
def test_what_columns_choose_is_elastic_too(kind, workers):
    ds = chosen_by_columns(kind)
    options = bushel.MultiprocessingOptions(num_workers=workers)
    alone = list(ElasticIterator(ds, 12, bushel.NoSharding()))
    found, state = [], None
    for count in (4, 3, 1):
        fleet = Fleet(ds, 12, count, state, multiprocessing_options=options)
        found += itertools.islice(fleet, 1 if count > 1 else None)
        state = fleet.state()
        for host in fleet.hosts:
            host.close()
    assert same(found, alone) and len(alone) > 2


def test_an_elastic_iterator_has_a_report_and_tells_the_origins_of_a_step():
    host = bushel.sharding.ShardOptions(shard_index=1, shard_count=2)
    options = bushel.experimental.DatasetOptions(execution_tracking_mode="stage_timing")
    with ElasticIterator(bushel.MapDataset.range(20).map(abs), 4, host, options=options) as it:
        next(it)
        state = it.get_state()
        (step,) = it.origins()
        assert (step.index, [record.record for record in step.records]) == (1, [5, 7])
        assert next(it).tolist() == [5, 7]
        report = it.report()
        assert report.timed and report.elements == 2 and any(stage.call == "map(abs)" for stage in report.stages)
        assert it.skipped == 0
        it.set_state(state)
        assert [step.index for step in it.origins(2)] == [1, 2]


def test_failing_elements_cannot_be_left_out():
    options = bushel.experimental.DatasetOptions(on_error="skip")
    with pytest.raises(ValueError, match="the other hosts would not know which ones"):
        ElasticIterator(bushel.MapDataset.range(4), 2, bushel.sharding.NoSharding(), options=options)

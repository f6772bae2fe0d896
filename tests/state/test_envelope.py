"""States that are none: each is refused in a sentence, and the iterator stands where it stood.

A wrong state is a StateMismatch (a ValueError); a position outside the data is an IndexError too, as in Grain.
"""

import copy
import itertools
import json
import logging
import math

import numpy as np
import pytest
from helpers.case_counts import cases
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import bushel
from bushel import IterDataset, MapDataset, ReadOptions, StateMismatch
from bushel._src.base.errors import PositionOutOfRange


def plain():
    return MapDataset.range(10).seed(1).shuffle()


class Twice(bushel.experimental.FlatMapTransform):
    max_fan_out = 2

    def flat_map(self, element):
        return [element, -element]


def part(low):
    return MapDataset.range(low, low + 10).to_iter_dataset()


STREAMS = {
    "plain": plain,
    "threads": lambda: plain().to_iter_dataset(ReadOptions(2, 4)),
    "batch": lambda: plain().batch(3),
    "stream batch": lambda: plain().to_iter_dataset().filter(lambda x: x != 3).batch(3),
    "random_map": lambda: part(0).random_map(lambda x, rng: x + rng.random(), seed=1),
    "map_with_index": lambda: part(0).map_with_index(lambda i, x: (i, x)),
    "flat_map": lambda: part(0).apply(Twice()),
    "mix": lambda: IterDataset.mix([part(0), part(100)], [1, 2]),
    "mix by key": lambda: IterDataset.mix({"a": part(0), "b": part(100)}, {"a": 1, "b": 2}),
    "nested": lambda: IterDataset.mix([part(0).seed(1).random_map(lambda x, rng: x), part(1).apply(Twice())]).batch(2),
}


def started(ds, steps=2):
    it = iter(ds)
    for _ in range(steps):
        next(it)
    return it


def assert_refused(it, state, kind, sentence, **options):
    """The state is refused with this type and these words, and the iterator goes on as if nothing had been."""
    before = it.get_state()
    with pytest.raises(kind) as raised:
        it.set_state(state, **options)
    assert type(raised.value) is kind
    assert sentence in str(raised.value)
    assert it.get_state() == before


# What a state is.


@pytest.mark.parametrize("build", STREAMS.values(), ids=STREAMS)
def test_a_state_is_plain_json_and_small(build):
    it = started(build())
    state = it.get_state()
    text = json.dumps(state, allow_nan=False)
    assert json.loads(text) == state
    assert len(text) < 2000


def test_a_state_is_small_however_large_the_data():
    array = np.zeros((100_000, 10), np.float32)
    ds = (
        MapDataset.source(array)
        .seed(0)
        .shuffle()
        .slice(range(0, 100_000, 3))
        .map(lambda x: x.sum())
        .batch(100)
        .repeat()
    )
    assert len(json.dumps(started(ds).get_state())) < 1000


@pytest.mark.parametrize("build", STREAMS.values(), ids=STREAMS)
def test_the_state_is_grains_plus_one_key(build):
    state = started(build()).get_state()
    envelope = state.pop("bushel")
    assert sorted(envelope) == ["identity", "python", "version"]
    assert envelope["version"] == 1
    assert "bushel" not in json.dumps(state)


@pytest.mark.parametrize("build", STREAMS.values(), ids=STREAMS)
@pytest.mark.parametrize("steps", [0, 1, 3])
def test_setting_the_state_one_has_changes_nothing(build, steps):
    it, untouched = started(build(), steps), started(build(), steps)
    state = it.get_state()
    it.set_state(state)
    assert it.get_state() == state
    assert all(bushel.testing.same(a, b) for a, b in zip(it, untouched, strict=True))


@pytest.mark.parametrize("build", STREAMS.values(), ids=STREAMS)
def test_reading_a_state_moves_nothing(build):
    it = started(build())
    assert it.get_state() == it.get_state()
    state = it.get_state()
    state.clear()
    assert it.get_state() != {}


@pytest.mark.parametrize("build", STREAMS.values(), ids=STREAMS)
def test_a_state_that_was_handed_out_stays_as_it_is(build):
    it = started(build())
    state = it.get_state()
    as_it_was = copy.deepcopy(state)
    next(it)
    it.set_state(copy.deepcopy(state))
    next(it)
    assert state == as_it_was


# What is refused.

GARBAGE = {
    "None": (None, StateMismatch, "A state is what get_state() returned, a dict; got None."),
    "list": ([1], StateMismatch, "A state is what get_state() returned, a dict; got [1]."),
    "str": ("{}", StateMismatch, "A state is what get_state() returned, a dict; got '{}'."),
    "bytes": (b"{}", StateMismatch, "A state is what get_state() returned, a dict; got b'{}'."),
    "int": (3, StateMismatch, "A state is what get_state() returned, a dict; got 3."),
    "empty": (
        {},
        StateMismatch,
        "This iterator's state needs an entry 'next_index'; the given one has the keys []. "
        "Was it saved by another pipeline?",
    ),
    "other keys": (
        {"step": 3, 4: 5},
        StateMismatch,
        "This iterator's state needs an entry 'next_index'; the given one has the keys ['4', 'step'].",
    ),
    "bool": (
        {"next_index": True},
        StateMismatch,
        "Entry 'next_index' of an iterator's state must be of type int, got True.",
    ),
    "float": (
        {"next_index": 3.0},
        StateMismatch,
        "Entry 'next_index' of an iterator's state must be of type int, got 3.0.",
    ),
    "NaN": (
        {"next_index": math.nan},
        StateMismatch,
        "Entry 'next_index' of an iterator's state must be of type int, got nan.",
    ),
    "text": (
        {"next_index": "3"},
        StateMismatch,
        "Entry 'next_index' of an iterator's state must be of type int, got '3'.",
    ),
    "null": (
        {"next_index": None},
        StateMismatch,
        "Entry 'next_index' of an iterator's state must be of type int, got None.",
    ),
    "nested": (
        {"next_index": {"next_index": 3}},
        StateMismatch,
        "Entry 'next_index' of an iterator's state must be of type int, got {'next_index': 3}.",
    ),
    "negative": (
        {"next_index": -1},
        PositionOutOfRange,
        "Checkpoint `next_index` -1 is out of range for dataset of length 10.",
    ),
    "past the end": (
        {"next_index": 11},
        PositionOutOfRange,
        "Checkpoint `next_index` 11 is out of range for dataset of length 10.",
    ),
    "past 64 bits": (
        {"next_index": 2**70},
        PositionOutOfRange,
        f"Checkpoint `next_index` {2**70} is out of range for dataset of length 10.",
    ),
}


@pytest.mark.parametrize("envelope", [True, False], ids=["in its envelope", "bare"])
@pytest.mark.parametrize(("state", "kind", "sentence"), GARBAGE.values(), ids=GARBAGE)
def test_garbage_is_refused(state, kind, sentence, envelope):
    it = started(plain())
    if envelope and isinstance(state, dict):
        state = {**state, "bushel": it.get_state()["bushel"]}
    assert_refused(it, state, kind, sentence)
    assert_refused(it, state, kind, sentence, check=False)


def test_the_very_end_is_a_position():
    it = iter(plain())
    it.set_state({**it.get_state(), "next_index": 10})
    assert list(it) == []


ENVELOPES = {
    "version 99": ({"version": 99}, "This state has version 99; this Bushel reads version 1."),
    "version 0": ({"version": 0}, "This state has version 0; this Bushel reads version 1."),
    "version as text": ({"version": "1"}, "This state has version '1'; this Bushel reads version 1."),
    "version as bool": ({"version": True}, "This state has version True; this Bushel reads version 1."),
    "version as float": ({"version": 1.0}, "This state has version 1.0; this Bushel reads version 1."),
    "no version": ({}, "This state has version None; this Bushel reads version 1."),
    "None": (None, "This state has version None; this Bushel reads version 1."),
    "list": ([1], "This state has version None; this Bushel reads version 1."),
}


@pytest.mark.parametrize(("envelope", "sentence"), ENVELOPES.values(), ids=ENVELOPES)
def test_an_unknown_version_is_refused_whatever_is_asked(envelope, sentence):
    it = started(plain())
    assert_refused(it, {"next_index": 3, "bushel": envelope}, StateMismatch, sentence)
    assert_refused(it, {"next_index": 3, "bushel": envelope}, StateMismatch, sentence, check=False)


def deep(levels):
    node = ["x", "", "", []]
    for _ in range(levels):
        node = ["x", "", "", [node]]
    return node


IDENTITIES = {
    "missing": ...,
    "None": None,
    "text": "identity",
    "dict": {},
    "empty list": [],
    "three entries": ["a", "b", "c"],
    "numbers": [1, 2, 3, []],
    "parents are no list": ["a", "b", "c", {}],
    "nested garbage": ["a", "b", "c", [["a", "b", "c", [None]]]],
    "deeper than the stack": deep(5000),
}


@pytest.mark.parametrize("identity", IDENTITIES.values(), ids=IDENTITIES)
def test_an_identity_that_cannot_be_read_is_refused(identity):
    it = started(plain())
    envelope = {"version": 1, "python": it.get_state()["bushel"]["python"], "identity": identity}
    if identity is ...:
        del envelope["identity"]
    state = {"next_index": 3, "bushel": envelope}
    assert_refused(it, state, StateMismatch, "This state belongs to another pipeline.")
    it.set_state(state, check=False)
    assert it.get_state()["next_index"] == 3


INNER = {
    "random_map without its counter": ("random_map", {"parent": {"next_index": 1}}, "needs an entry 'index_for_rng'"),
    "random_map without its parent": ("random_map", {"index_for_rng": 1}, "needs an entry 'parent'"),
    "random_map, parent is a list": ("random_map", {"index_for_rng": 1, "parent": []}, "must be of type dict, got []"),
    "random_map, empty parent": ("random_map", {"index_for_rng": 1, "parent": {}}, "needs an entry 'next_index'"),
    "random_map, negative": ("random_map", {"index_for_rng": -1, "parent": {"next_index": 1}}, "index_for_rng"),
    "map_with_index, float": ("map_with_index", {"counter": 1.5, "parent": {"next_index": 1}}, "must be of type int"),
    "map_with_index, negative": ("map_with_index", {"counter": -1, "parent": {"next_index": 1}}, "counter"),
    "flat_map, bool": ("flat_map", {"next_index_in_buffer": True, "parent": {"next_index": 1}}, "must be of type int"),
    "flat_map, negative": (
        "flat_map",
        {"next_index_in_buffer": -1, "parent": {"next_index": 1}},
        "next_index_in_buffer",
    ),
    "mix, stop is a number": (
        "mix",
        {"index": 2, "stop": 0, "parents": [{"next_index": 1}, {"next_index": 1}]},
        "Entry 'stop' of an iterator's state must be of type bool, got 0.",
    ),
    "mix, one part missing": (
        "mix",
        {"index": 2, "stop": False, "parents": [{"next_index": 1}]},
        "This state is of a mixture of 1 streams; this one has 2.",
    ),
    "mix, the second part is garbage": (
        "mix",
        {"index": 2, "stop": False, "parents": [{"next_index": 5}, {"next_index": None}]},
        "Entry 'next_index' of an iterator's state must be of type int, got None.",
    ),
    "mix, parts by key": (
        "mix",
        {"index": 2, "stop": False, "parents": {"a": {"next_index": 1}, "b": {"next_index": 1}}},
        "Entry 'parents' of an iterator's state must be of type list",
    ),
    "mix, negative": ("mix", {"index": -1, "stop": False, "parents": [{"next_index": 1}] * 2}, "index"),
    "mix, past 64 bits": ("mix", {"index": 2**70, "stop": False, "parents": [{"next_index": 1}] * 2}, "index"),
    "mix by key, part is garbage": (
        "mix by key",
        {"index": 2, "stop": False, "parents": {"a": {"next_index": 3}, "b": 7}},
        "This iterator's state needs an entry 'next_index'; the given one is 7.",
    ),
}


@pytest.mark.parametrize(("name", "inner", "sentence"), INNER.values(), ids=INNER)
def test_garbage_inside_is_refused_and_no_part_of_it_is_kept(name, inner, sentence):
    it = started(STREAMS[name]())
    before = it.get_state()
    with pytest.raises(StateMismatch) as raised:
        it.set_state({**inner, "bushel": before["bushel"]})
    assert sentence in str(raised.value)
    assert it.get_state() == before
    assert list(map(str, it)) == list(map(str, started(STREAMS[name]())))


# Any JSON at all.

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-2, 12)
    | st.floats()
    | st.text(max_size=8)
    | st.just("bushel")
)
KEYS = st.sampled_from(
    ["next_index", "parent", "parents", "index", "stop", "counter", "index_for_rng", "bushel", "a", "b"]
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS | st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


def places(tree, path=()):
    """The paths to every part of a state."""
    yield path
    if isinstance(tree, dict):
        entries = tree.items()
    elif isinstance(tree, list):
        entries = enumerate(tree)
    else:
        return
    for key, value in entries:
        yield from places(value, (*path, key))


def changed(tree, path, value):
    """A copy of a state with one part replaced."""
    if not path:
        return value
    tree = copy.copy(tree)
    tree[path[0]] = changed(tree[path[0]], path[1:], value)
    return tree


def assert_refused_or_usable(name, state, check):
    it = started(STREAMS[name]())
    before = it.get_state()
    try:
        it.set_state(state, check=check)
    except StateMismatch as error:
        assert str(error).endswith((".", "?"))
        assert it.get_state() == before
        assert bushel.testing.same(list(it), list(started(STREAMS[name]())))
    else:
        list(itertools.islice(it, 3))
        json.dumps(it.get_state())


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(state=JSON, check=st.booleans(), name=st.sampled_from(sorted(STREAMS)))
@example(state={"bushel": {"version": 1}}, check=True, name="plain")
def test_any_json_is_refused_in_a_sentence_or_is_a_position(state, check, name):
    assert_refused_or_usable(name, state, check)


@settings(max_examples=cases(60, 120), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), value=JSON, check=st.booleans(), name=st.sampled_from(sorted(STREAMS)))
def test_a_state_with_one_part_replaced_is_refused_or_is_a_position(data, value, check, name):
    state = started(STREAMS[name]()).get_state()
    path = data.draw(st.sampled_from(list(places(state))))
    assert_refused_or_usable(name, changed(state, path, value), check)


# Grain's states.


def test_a_grain_state_is_accepted_with_one_warning(caplog):
    it = iter(plain())
    with caplog.at_level(logging.WARNING, logger="bushel"):
        it.set_state({"next_index": 4})
    assert [record.getMessage() for record in caplog.records] == [
        "This state has no identity, as states of Grain. It is restored without a comparison of the pipelines."
    ]
    assert list(it) == list(plain())[4:]


def test_a_grain_state_is_accepted_without_a_word_where_no_check_is_asked(caplog):
    it = iter(plain())
    with caplog.at_level(logging.WARNING, logger="bushel"):
        it.set_state({"next_index": 4}, check=False)
    assert not caplog.records


def test_a_state_of_ones_own_is_accepted_without_a_word(caplog):
    it = iter(plain())
    with caplog.at_level(logging.WARNING, logger="bushel"):
        it.set_state(started(plain()).get_state())
    assert not caplog.records


WORKERS = {
    "next_index_in_cycle": 1,
    "next_index_in_datasets": 2,
    "iterators_in_use_indices": [0, 1],
    "iterators_in_use_states": [{"next_index": 3}, {"next_index": 2}],
    "exhausted": [0, 0],
    "future_states": {},
}


@pytest.mark.parametrize("check", [True, False])
def test_a_state_of_grains_workers_is_refused_with_the_reason(check):
    assert_refused(
        started(plain()),
        WORKERS,
        StateMismatch,
        "This state was written by Grain with worker processes: it holds one position per worker and describes no "
        "position in the one sequence that this pipeline gives. Save it in Grain without workers.",
        check=check,
    )


def test_a_state_of_grains_workers_is_refused_further_inside_too():
    it = started(STREAMS["random_map"]())
    state = {"parent": WORKERS, "index_for_rng": 2}
    assert_refused(it, state, StateMismatch, "written by Grain with worker processes")


def test_numbers_of_numpy_are_numbers():
    # Orbax and friends hand numbers back as arrays.
    it = iter(plain())
    it.set_state({**it.get_state(), "next_index": np.int64(4)})
    assert it.get_state()["next_index"] == 4
    it.set_state({**it.get_state(), "next_index": np.array(5)})
    assert json.loads(json.dumps(it.get_state()))["next_index"] == 5

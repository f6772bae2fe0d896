"""What is refused on restore, and how the difference is told; and what `check=False` does."""

import dataclasses
import functools
import itertools

import numpy as np
import pytest
from helpers.state_mismatches import difference, saved

import bushel
from bushel import IterDataset, MapDataset, StateMismatch
from bushel.sources import ArrayDataSource, RangeDataSource

# What is refused, and how the difference is told. Each case changes one thing.


def ten(*, step=1):
    return MapDataset.range(0, 10 * step, step)


def add(by):
    return lambda x: x + by


def add_1(x, by=1):
    return x + by


def with_default(by):
    def add(x, by=by):
        return x + by

    return add


def with_keyword(by):
    def add(x, *, by=by):
        return x + by

    return add


class Add(bushel.transforms.Map):
    def __init__(self, by):
        self.by = by

    def map(self, x):
        return x + self.by

    def method(self, x):
        return x * self.by


@dataclasses.dataclass
class Weighted(bushel.transforms.DatasetSelectionMap):
    first: int

    def __len__(self):
        return 6

    def __getitem__(self, index):
        return (0, index) if index < self.first else (1, index)


class Records:
    """A source of a user: known by type and length."""

    def __init__(self, count=10):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return index


class OtherRecords(Records):
    pass


class Split(bushel.transforms.FlatMap):
    def __init__(self, fan_out):
        self.max_fan_out = fan_out

    def flat_map(self, element):
        return [element] * 2


def arrays(first):
    return MapDataset.source(ArrayDataSource({"x": np.array([first, 1, 2]), "y": np.zeros(3)}))


def large_array(changed):
    data = np.zeros((1000, 1000), np.float32)
    data[:, 3] = changed
    return MapDataset.source(data)


def two_part(which, low, high):
    parts = [ten(), MapDataset.range(100, 110)]
    parts[which] = MapDataset.range(low, high)
    return MapDataset.concatenate(parts)


SAME_CODE = "~ map(<lambda>): same name, other code"

REFUSED = {
    "changed lambda body": (
        lambda: ten().map(lambda x: x + 1),
        lambda: ten().map(lambda x: x + 2),
        [SAME_CODE],
    ),
    "changed constant in a comprehension": (
        lambda: ten().map(lambda x: ["a" for _ in range(x)]),
        lambda: ten().map(lambda x: ["b" for _ in range(x)]),
        [SAME_CODE],
    ),
    "changed string": (lambda: ten().map(lambda x: "a"), lambda: ten().map(lambda x: "b"), [SAME_CODE]),
    "other attribute": (
        lambda: ten().map(lambda x: x.real),
        lambda: ten().map(lambda x: x.imag),
        [SAME_CODE],
    ),
    "changed closure value": (lambda: ten().map(add(1)), lambda: ten().map(add(2)), [SAME_CODE]),
    "closure of another type": (lambda: ten().map(add(1)), lambda: ten().map(add(1.0)), [SAME_CODE]),
    "changed array in a closure": (
        lambda: ten().map(add(np.arange(3))),
        lambda: ten().map(add(np.array([0, 1, 3]))),
        [SAME_CODE],
    ),
    "changed default argument": (
        lambda: ten().map(with_default(1)),
        lambda: ten().map(with_default(2)),
        ["~ map(add): same name, other code"],
    ),
    "changed keyword default": (
        lambda: ten().map(with_keyword(1)),
        lambda: ten().map(with_keyword(2)),
        ["~ map(add): same name, other code"],
    ),
    "changed partial": (
        lambda: ten().map(functools.partial(add_1, by=2)),
        lambda: ten().map(functools.partial(add_1, by=3)),
        ["~ map(partial(add_1)): same name, other code"],
    ),
    "changed attribute of a transform": (
        lambda: ten().map(Add(1)),
        lambda: ten().map(Add(2)),
        ["~ map(Add): same name, other code"],
    ),
    "changed attribute behind a bound method": (
        lambda: ten().map(Add(1).method),
        lambda: ten().map(Add(2).method),
        ["~ map(method): same name, other code"],
    ),
    "other function": (
        lambda: ten().map(add_1),
        lambda: ten().map(str),
        ["- map(add_1)", "+ map(str)"],
    ),
    "other ufunc": (
        lambda: ten().map(np.sin),
        lambda: ten().map(np.cos),
        ["- map(sin)", "+ map(cos)"],
    ),
    "vectorized": (
        lambda: ten().map(np.sin),
        lambda: ten().map(np.sin, vectorized=True),
        ["- map(sin)", "+ map(sin, vectorized=True)"],
    ),
    "changed filter": (
        lambda: ten().filter(lambda x: x >= 0),
        lambda: ten().filter(lambda x: x >= 1),
        ["~ filter(<lambda>): same name, other code"],
    ),
    "changed random map": (
        lambda: ten().random_map(lambda x, rng: rng.random(), seed=1),
        lambda: ten().random_map(lambda x, rng: rng.normal(), seed=1),
        ["~ random_map(<lambda>, seed=1): same name, other code"],
    ),
    "other random_map seed": (
        lambda: ten().random_map(lambda x, rng: x, seed=1),
        lambda: ten().random_map(lambda x, rng: x, seed=2),
        ["- random_map(<lambda>, seed=1)", "+ random_map(<lambda>, seed=2)"],
    ),
    "other list of equal length": (
        lambda: MapDataset.source(["a", "b", "c"]),
        lambda: MapDataset.source(["a", "b", "d"]),
        ["~ source(list of 3): same name, other data"],
    ),
    "other list of dicts": (
        lambda: MapDataset.source([{"a": 1}, {"a": 2}]),
        lambda: MapDataset.source([{"a": 1}, {"a": 3}]),
        ["~ source(list of 2): same name, other data"],
    ),
    "other order in a list": (
        lambda: MapDataset.source([1, 2, 3]),
        lambda: MapDataset.source([1, 3, 2]),
        ["~ source(list of 3): same name, other data"],
    ),
    "other ArrayDataSource of equal length": (
        lambda: arrays(0),
        lambda: arrays(9),
        ["~ source(ArrayDataSource({'x': int64[3], 'y': float64[3]})): same name, other data"],
    ),
    "other np.ndarray of equal length": (
        lambda: MapDataset.source(np.arange(3)),
        lambda: MapDataset.source(np.array([0, 1, 3])),
        ["~ source(int64[3]): same name, other data"],
    ),
    "other large array": (
        lambda: large_array(0),
        lambda: large_array(1),
        ["~ source(float32[1000, 1000]): same name, other data"],
    ),
    "other dtype": (
        lambda: MapDataset.source(np.zeros(3, np.int32)),
        lambda: MapDataset.source(np.zeros(3, np.int64)),
        ["- source(int32[3])", "+ source(int64[3])"],
    ),
    "other length of a list": (
        lambda: MapDataset.source([1, 2, 3]),
        lambda: MapDataset.source([1, 2, 3, 4]),
        ["- source(list of 3)", "+ source(list of 4)"],
    ),
    "other length of a user's source": (
        lambda: MapDataset.source(Records(10)),
        lambda: MapDataset.source(Records(11)),
        ["~ source(Records): same name, other data"],
    ),
    "changed source class": (
        lambda: MapDataset.source(Records()),
        lambda: MapDataset.source(OtherRecords()),
        ["- source(Records)", "+ source(OtherRecords)"],
    ),
    "other range": (lambda: ten(), lambda: ten(step=2), ["- range(10)", "+ range(0, 20, 2)"]),
    "other RangeDataSource": (
        lambda: MapDataset.source(RangeDataSource(0, 10, 1)),
        lambda: MapDataset.source(RangeDataSource(1, 11, 1)),
        [
            "- source(RangeDataSource(start=0, stop=10, step=1))",
            "+ source(RangeDataSource(start=1, stop=11, step=1))",
        ],
    ),
    "other shuffle seed": (
        lambda: ten().shuffle(seed=1),
        lambda: ten().shuffle(seed=2),
        ["- shuffle(seed=1)", "+ shuffle(seed=2)"],
    ),
    "other seed()": (
        lambda: ten().seed(42).shuffle(),
        lambda: ten().seed(43).shuffle(),
        ["- seed(42)", "+ seed(43)", "- shuffle(seed=3329053876)", "+ shuffle(seed=2428068368)"],
    ),
    "other seed() without a random operation": (
        lambda: ten().seed(1),
        lambda: ten().seed(2),
        ["- seed(1)", "+ seed(2)"],
    ),
    "other batch size": (lambda: ten().batch(4), lambda: ten().batch(8), ["- batch(4)", "+ batch(8)"]),
    "drop_remainder": (
        lambda: ten().batch(4),
        lambda: ten().batch(4, drop_remainder=True),
        ["- batch(4)", "+ batch(4, drop_remainder=True)"],
    ),
    "other batch_fn": (
        lambda: ten().batch(4, batch_fn=lambda rows: rows),
        lambda: ten().batch(4, batch_fn=lambda rows: rows[::-1]),
        ["~ batch(4, batch_fn=<lambda>): same name, other code"],
    ),
    "other mix weights": (
        lambda: MapDataset.mix([ten(), ten()], [1, 1]),
        lambda: MapDataset.mix([ten(), ten()], [1, 2]),
        ["- mix(weights=[100, 100])", "+ mix(weights=[100, 200])"],
    ),
    "other part of a mixture": (
        lambda: MapDataset.mix([ten(), ten().map(add(1))]),
        lambda: MapDataset.mix([ten(), ten().map(add(2))]),
        [SAME_CODE + "  (in part 1)"],
    ),
    "another part in a mixture": (
        lambda: MapDataset.mix([ten(), ten()], [1, 1]),
        lambda: MapDataset.mix([ten(), ten(), ten().shuffle(seed=1)], [1, 1, 1]),
        [
            "- mix(weights=[100, 100])",
            "+ mix(weights=[100, 100, 100])",
            "+ part 2: shuffle(seed=1)",
        ],
    ),
    "other part of a concatenation": (
        lambda: two_part(1, 100, 110),
        lambda: two_part(1, 100, 111),
        ["- range(100, 110)  (in part 1)", "+ range(100, 111)  (in part 1)"],
    ),
    "parts of a concatenation in another order": (
        lambda: MapDataset.concatenate([ten(), ten(step=2)]),
        lambda: MapDataset.concatenate([ten(step=2), ten()]),
        [
            "- range(10)  (in part 0)",
            "+ range(0, 20, 2)  (in part 0)",
            "- range(0, 20, 2)  (in part 1)",
            "+ range(10)  (in part 1)",
        ],
    ),
    "other selection map": (
        lambda: MapDataset.select_from_datasets([ten(), ten()], Weighted(2)),
        lambda: MapDataset.select_from_datasets([ten(), ten()], Weighted(3)),
        ["- select_from_datasets(Weighted(first=2))", "+ select_from_datasets(Weighted(first=3))"],
    ),
    "other fan out": (
        lambda: ten().apply(Split(2)),
        lambda: ten().apply(Split(3)),
        ["~ flat_map(Split): same name, other code"],
    ),
    "added map": (lambda: ten(), lambda: ten().map(add_1), ["+ map(add_1)"]),
    "removed map": (lambda: ten().map(add_1), lambda: ten(), ["- map(add_1)"]),
    "added map in the middle": (
        lambda: ten().shuffle(seed=1).batch(2),
        lambda: ten().shuffle(seed=1).map(add_1).batch(2),
        ["+ map(add_1)"],
    ),
    "reordered operations": (
        lambda: ten().shuffle(seed=1).map(add_1),
        lambda: ten().map(add_1).shuffle(seed=1),
        ["+ map(add_1)", "- map(add_1)"],
    ),
    "other repeat count": (lambda: ten().repeat(2), lambda: ten().repeat(3), ["- repeat(2)", "+ repeat(3)"]),
    "endless repeat": (lambda: ten().repeat(2), lambda: ten().repeat(), ["- repeat(2)", "+ repeat()"]),
    "reseed_each_epoch": (
        lambda: ten().repeat(2),
        lambda: ten().repeat(2, reseed_each_epoch=False),
        ["- repeat(2)", "+ repeat(2, reseed_each_epoch=False)"],
    ),
    "other slice": (
        lambda: ten()[:5],
        lambda: ten()[1:6],
        ["- slice(slice(0, 5))", "+ slice(slice(1, 6))"],
    ),
    "other shard": (
        lambda: ten()[0::2],
        lambda: ten()[1::2],
        ["- slice(slice(0, 10, 2))", "+ slice(slice(1, 10, 2))"],
    ),
    "other shard count": (
        lambda: ten()[0::2],
        lambda: ten()[0::4],
        ["- slice(slice(0, 10, 2))", "+ slice(slice(0, 10, 4))"],
    ),
    "other list of positions": (
        lambda: ten().slice([1, 2, 3]),
        lambda: ten().slice([1, 2, 4]),
        ["~ slice([3 positions]): same name, other parameters"],
    ),
    "allow_nones": (
        lambda: ten().to_iter_dataset(),
        lambda: ten().to_iter_dataset(allow_nones=True),
        ["- to_iter_dataset()", "+ to_iter_dataset(allow_nones=True)"],
    ),
    "operation moved into the stream": (
        lambda: ten().map(add_1).to_iter_dataset(),
        lambda: ten().to_iter_dataset().map(add_1),
        ["- map(add_1)", "+ map(add_1)"],
    ),
    "stream batch size": (
        lambda: ten().to_iter_dataset().batch(2),
        lambda: ten().to_iter_dataset().batch(3),
        ["- batch(2)", "+ batch(3)"],
    ),
    "stream filter": (
        lambda: ten().to_iter_dataset().filter(lambda x: x > 1),
        lambda: ten().to_iter_dataset().filter(lambda x: x > 2),
        ["~ filter(<lambda>): same name, other code"],
    ),
    "two differences": (
        lambda: ten().shuffle(seed=1).map(add_1).batch(2),
        lambda: ten().shuffle(seed=2).map(add_1).batch(3),
        ["- shuffle(seed=1)", "+ shuffle(seed=2)", "- batch(2)", "+ batch(3)"],
    ),
}


@pytest.mark.parametrize(("old", "new", "lines"), REFUSED.values(), ids=REFUSED)
def test_a_difference_is_refused_and_named(old, new, lines):
    assert difference(old(), new()) == lines


@pytest.mark.parametrize(("old", "new"), [case[:2] for case in REFUSED.values()], ids=REFUSED)
def test_each_of_them_is_the_same_as_itself(old, new):
    assert difference(old(), old()) == []
    assert difference(new(), new()) == []


def test_the_message_says_how_to_go_on():
    it = iter(ten().shuffle(seed=2))
    with pytest.raises(StateMismatch) as raised:
        it.set_state(saved(ten().shuffle(seed=1)))
    assert str(raised.value) == (
        "This state belongs to another pipeline. What differs (- in the state, + here, ~ in both):\n"
        "  - shuffle(seed=1)\n"
        "  + shuffle(seed=2)\n"
        "Pass check=False to set_state to restore it anyway."
    )


FORM_FITS = [name for name in REFUSED if name not in ("operation moved into the stream", "other fan out")]


@pytest.mark.parametrize(("old", "new"), [REFUSED[name][:2] for name in FORM_FITS], ids=FORM_FITS)
def test_check_false_restores_the_position_anyway(old, new):
    it = iter(new())
    it.set_state(saved(old()), check=False)
    assert it.get_state()["next_index"] >= 1
    list(itertools.islice(it, 3))


# Mixtures of streams: by key, parts may come and go; in sequence, they may not.


def part(low, by=0):
    return MapDataset.range(low, low + 100).map(add(by)).to_iter_dataset()


def test_a_mixture_by_key_takes_other_weights():
    old = IterDataset.mix({"a": part(0), "b": part(1000)}, {"a": 1, "b": 1})
    new = IterDataset.mix({"a": part(0), "b": part(1000)}, {"a": 1, "b": 3})
    assert difference(old, new) == []
    it = iter(new)
    it.set_state(saved(old, steps=6))
    assert {next(it) for _ in range(8)} == {3, 4, 1003, 1004, 1005, 1006, 1007, 1008}


def test_a_mixture_by_key_takes_a_new_part():
    old = IterDataset.mix({"a": part(0), "b": part(1000)})
    new = IterDataset.mix({"a": part(0), "b": part(1000), "c": part(2000)})
    assert difference(old, new) == []
    it = iter(new)
    it.set_state(saved(old, steps=4))
    assert {next(it) for _ in range(6)} == {2, 3, 1002, 1003, 2000, 2001}


def test_a_mixture_by_key_takes_the_removal_of_a_part():
    old = IterDataset.mix({"a": part(0), "b": part(1000), "c": part(2000)})
    new = IterDataset.mix({"a": part(0), "b": part(1000)})
    assert difference(old, new) == []
    it = iter(new)
    it.set_state(saved(old, steps=6))
    assert {next(it) for _ in range(4)} == {2, 3, 1002, 1003}


def test_a_mixture_by_key_may_shrink_to_one_part_and_grow_again():
    one = IterDataset.mix({"a": part(0)})
    two = IterDataset.mix({"a": part(0), "b": part(1000)})
    assert difference(one, two) == []
    assert difference(two, one) == []


def test_a_mixture_by_key_refuses_a_changed_part_by_name():
    old = IterDataset.mix({"a": part(0), "b": part(1000)})
    new = IterDataset.mix({"a": part(0), "b": part(1000, by=1)})
    assert difference(old, new) == [SAME_CODE + "  (in part b)"]


def test_a_mixture_by_key_refuses_what_changed_after_it():
    old = IterDataset.mix({"a": part(0), "b": part(1000)}).batch(2)
    new = IterDataset.mix({"a": part(0), "b": part(1000)}).batch(3)
    assert difference(old, new) == ["- batch(2)", "+ batch(3)"]


def test_a_mixture_by_key_refuses_a_mixture_in_sequence():
    by_key = IterDataset.mix({"a": part(0), "b": part(1000)})
    in_sequence = IterDataset.mix([part(0), part(1000)])
    assert difference(by_key, in_sequence) != []
    assert difference(in_sequence, by_key) != []


def test_a_mixture_in_sequence_takes_no_change():
    old = IterDataset.mix([part(0), part(1000)])
    assert difference(old, IterDataset.mix([part(0), part(1000)], [1, 3])) == [
        "- mix(weights=[100, 100])",
        "+ mix(weights=[100, 300])",
    ]
    assert difference(old, IterDataset.mix([part(0), part(1000), part(2000)])) == [
        "- mix(weights=[100, 100])",
        "+ mix(weights=[100, 100, 100])",
        "+ part 2: to_iter_dataset()",
    ]
    assert difference(old, IterDataset.mix([part(0), part(1000, by=1)])) == [SAME_CODE + "  (in part 1)"]

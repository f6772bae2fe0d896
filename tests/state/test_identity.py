"""What makes two pipelines the same for a checkpoint: laws of identity, and what counts in a function."""

import contextlib
import datetime
import decimal
import functools
import json
import logging
import operator
import os
import pathlib
import re
import subprocess
import sys
import threading
from collections import deque
from typing import Any

import numpy as np
import pytest
from helpers.processes import run_script
from helpers.state_mismatches import difference, saved

import bushel
from bushel import MapDataset, ReadOptions, StateMismatch
from bushel._src.state import identity
from bushel._src.state.digest import digest

SAME_CODE = "~ map(<lambda>): same name, other code"


def ten():
    return MapDataset.range(10)


def add(by):
    return lambda x: x + by


def add_1(x):
    return x + 1


# The same pipeline in another process.

PIPELINES = '''
import collections, dataclasses, enum, functools, operator, pathlib, re
import numpy as np
import bushel
from bushel import IterDataset, MapDataset


class Colour(enum.Enum):
    RED = 1


class Scale(bushel.transforms.Map):
    def __init__(self, by, names):
        self.by, self.names = by, names

    def map(self, x):
        return x * self.by

    def shift(self, x):
        return x + self.by


@dataclasses.dataclass
class Through(bushel.transforms.Map):
    function: object

    def map(self, x):
        return self.function(x)


class Noise(bushel.transforms.RandomMap):
    def random_map(self, x, rng):
        return x + rng.random()


class Callable:
    def __init__(self, tags):
        self.tags = tags

    def __call__(self, x):
        return x


class Own(bushel.MapDataset):
    def __init__(self, parent, by):
        super().__init__(parent)
        self.by = by

    def __len__(self):
        return len(self._parent)

    def __getitem__(self, index):
        return self._parent[index] * self.by


def plain(x):
    """Words."""
    return x


def default(x, by=3, *, tag="t", names=frozenset({"a", "b", "c"})):
    return x * by


def outer(x):
    def inner(y):
        return {"a", "b", "c"}, y + 1
    return inner(x)


def closed(value):
    return lambda x: (x, value)


ten = MapDataset.range(10)
strings = {"one", "two", "three", "four", "five"}

pipelines = {
    "range": ten,
    "list of dicts": MapDataset.source([{"b": n, "a": str(n), "c": {"d": [n]}} for n in range(10)]),
    "list of sets": MapDataset.source([{"x", "y", "z", str(n)} for n in range(10)]),
    "long list": MapDataset.source([f"record {n}" for n in range(1000)]),
    "array source": MapDataset.source(
        bushel.sources.ArrayDataSource({"x": np.arange(20).reshape(10, 2), "y": range(10)})
    ),
    "large array": MapDataset.source(np.arange(40_000.0).reshape(10, 4000)),
    "shuffle": ten.seed(3).shuffle(),
    "lambda": ten.map(lambda x: x + 1),
    "lambda with a set constant": ten.map(lambda x: x in {"one", "two", "three", "four"}),
    "lambda with a comprehension": ten.map(lambda x: [str(y) + "!" for y in range(x)]),
    "function": ten.map(plain),
    "defaults": ten.map(default),
    "nested function": ten.map(outer),
    "closure over an int": ten.map(closed(4)),
    "closure over an array": ten.map(closed(np.arange(5))),
    "closure over a dict": ten.map(closed({"b": 1, "a": {"c"}, 3: None})),
    "closure over a set": ten.map(closed(strings)),
    "closure over a frozenset": ten.map(closed(frozenset(strings | {"six"}))),
    "closure over a nested set": ten.map(closed([{("k", n): strings} for n in range(3)])),
    "closure over a function": ten.map(closed(plain)),
    "closure over an enum": ten.map(closed(Colour.RED)),
    "closure over a class": ten.map(closed(Scale)),
    "closure over a module": ten.map(closed(np)),
    "closure over an object": ten.map(closed(Callable(strings))),
    "closure over a pattern": ten.map(closed(re.compile("a+"))),
    "closure over a path": ten.map(closed(pathlib.PurePosixPath("a/b"))),
    "closure over a default dict": ten.map(closed(collections.defaultdict(list, {"a": [1]}))),
    "partial": ten.map(functools.partial(default, by=5, tag="u")),
    "partial of a lambda": ten.map(functools.partial(lambda a, x: a + x, 4)),
    "cached function": ten.map(functools.lru_cache(plain)),
    "bound method": ten.map(Scale(2, strings).shift),
    "method of a dict": ten.map({n: n for n in range(10)}.__getitem__),
    "item getter": MapDataset.source([{"a": n} for n in range(10)]).map(operator.itemgetter("a")),
    "built-in": ten.map(str),
    "ufunc": ten.map(np.sin),
    "transform class": ten.map(Scale(2, strings)),
    "transform dataclass with a function": ten.map(Through(plain)),
    "random transform class": ten.seed(1).random_map(Noise()),
    "callable object": ten.map(Callable(strings)),
    "own dataset": ten.pipe(Own, 3),
    "batch function": ten.batch(2, batch_fn=lambda rows: list(rows)),
    "mix": MapDataset.mix([ten, ten.map(plain)], [1, 2]),
    "mix by key": IterDataset.mix({"b": ten.to_iter_dataset(), "a": ten.to_iter_dataset().map(plain)}),
    "stream": ten.to_iter_dataset().filter(lambda x: x % 2).map(plain).batch(2),
}
'''

RUN_IN_CHILD = """
import json, sys
namespace = {"__name__": "pipelines"}
exec(compile(open(sys.argv[1]).read(), sys.argv[1], "exec"), namespace)
states = {}
for name, ds in namespace["pipelines"].items():
    it = iter(ds)
    next(it)
    states[name] = it.get_state()
print(json.dumps(states))
"""


def build(text=PIPELINES):
    namespace: dict[str, Any] = {"__name__": "pipelines"}
    exec(compile(text, "pipelines.py", "exec"), namespace)
    return namespace["pipelines"]


def in_child(folder, hash_seed, prefix=""):
    """The states of all pipelines, from a process with its own hash seed, folder and line numbers."""
    folder.mkdir()
    file = folder / "pipelines.py"
    file.write_text(prefix + PIPELINES)
    env = os.environ | {"PYTHONHASHSEED": str(hash_seed), "OPENBLAS_NUM_THREADS": "1"}
    env["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    command = [sys.executable, "-c", RUN_IN_CHILD, str(file)]
    child = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=env, cwd=folder)
    return json.loads(child.stdout)


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    folder = tmp_path_factory.mktemp("identity")
    return in_child(folder / "one", 1), in_child(folder / "two", 2, prefix="# moved down\n" * 7 + "x = 1\n")


@pytest.mark.parametrize("name", build())
def test_identity_is_the_same_in_every_process(elsewhere, name):
    one, two = elsewhere
    assert one[name]["bushel"] == two[name]["bushel"]


@pytest.mark.parametrize("name", build())
def test_a_state_from_another_process_is_accepted(elsewhere, name):
    with iter(build()[name]) as it:
        it.set_state(elsewhere[1][name])


def test_no_address_is_part_of_an_identity(elsewhere):
    for name, state in elsewhere[0].items():
        assert not re.search(r"0x[0-9a-f]{6,}", json.dumps(state)), name


def test_different_pipelines_have_different_identities(elsewhere):
    texts = {name: json.dumps(state["bushel"]) for name, state in elsewhere[0].items()}
    assert len(set(texts.values())) == len(texts)


# Values that a function closes over, or that are the function: each by what it is, also without a `__dict__`.


class Slots:
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


class Text(str):
    pass


class Number(int):
    pass


class Plain:
    def __init__(self, value):
        self.value = value


VALUES = {
    "int": (1, 2),
    "negative zero": (0.0, -0.0),
    "bool and int": (True, 1),
    "str and bytes": ("a", b"a"),
    "list and tuple": ([1], (1,)),
    "list": ([1, 2], [1, 3]),
    "nested list": ([[1], [2]], [[1, 2], []]),
    "dict": ({"a": 1}, {"a": 2}),
    "dict keys": ({"a": 1}, {"b": 1}),
    "set": ({1, 2}, {1, 3}),
    "frozenset": (frozenset({1}), frozenset({2})),
    "None": (None, "None"),
    "range": (range(3), range(4)),
    "slice": (slice(1), slice(2)),
    "array": (np.zeros(2), np.ones(2)),
    "array shape": (np.zeros((2, 3)), np.zeros((3, 2))),
    "array of objects": (np.array(["a", None], object), np.array(["b", None], object)),
    "numpy scalar": (np.float32(1), np.float32(2)),
    "dtype": (np.dtype("int32"), np.dtype("int64")),
    "object": (Plain(1), Plain(2)),
    "object in an object": (Plain(Plain(1)), Plain(Plain(2))),
    "slots": (Slots(1), Slots(2)),
    "str subclass": (Text("a"), Text("b")),
    "int subclass": (Number(1), Number(2)),
    "bytearray": (bytearray(b"a"), bytearray(b"b")),
    "pattern": (re.compile("a"), re.compile("b")),
    "pattern flags": (re.compile("a"), re.compile("a", re.IGNORECASE)),
    "path": (pathlib.Path("a"), pathlib.Path("b")),
    "date": (datetime.date(2020, 1, 1), datetime.date(2021, 1, 1)),
    "decimal": (decimal.Decimal(1), decimal.Decimal(2)),
    "deque": (deque([1]), deque([2])),
    "item getter": (operator.itemgetter("a"), operator.itemgetter("b")),
    "method of a dict": ({"a": 1}.get, {"a": 2}.get),
    "function": (add(1), add(2)),
}


@pytest.mark.parametrize(("one", "two"), VALUES.values(), ids=VALUES)
def test_a_value_in_a_closure_counts(one, two):
    def closing(value):
        return lambda x: (x, value)

    assert difference(ten().map(closing(one)), ten().map(closing(two))) == [SAME_CODE]


class Linked:
    """An object that holds others, which hold it."""

    def __init__(self, name):
        self.name, self.others = name, []


def graph(count):
    nodes = [Linked(n) for n in range(count)]
    for node in nodes:
        node.others = nodes
    return nodes[0]


def self_holding(container):
    container.append(container)
    return container


OPEN_FILES = contextlib.ExitStack()
OBJECTS = {
    "logger": lambda: logging.getLogger("a.b.c"),
    "lock": threading.Lock,
    "file": lambda: OPEN_FILES.enter_context(open(os.devnull)),  # noqa: SIM115
    "generator": lambda: (n for n in range(3)),
    "random generator": lambda: np.random.default_rng(1),
    "module": lambda: os.path,
    "list that holds itself": lambda: self_holding([1]),
    "graph of objects": lambda: graph(30),
    "dataset": ten,
    "iterator": lambda: iter(ten()),
    "deeply nested": lambda: functools.reduce(lambda inner, _: [inner], range(500), "x"),
    "memory view": lambda: memoryview(b"abc"),
    "object that cannot be pickled": lambda: Unpicklable(),
    "object that cannot be compared or shown": lambda: Hostile(),
}


class Unpicklable:
    __slots__ = ()

    def __reduce_ex__(self, protocol):
        raise TypeError("not this one")


class Hostile:
    def __init__(self):
        self.value = 3

    def __eq__(self, other):
        raise TypeError("no comparison")

    def __repr__(self):
        raise TypeError("no repr")

    __hash__ = None  # pyright: ignore[reportAssignmentType]


@pytest.mark.timeout(20)
@pytest.mark.parametrize("make", OBJECTS.values(), ids=OBJECTS)
def test_any_object_may_be_closed_over(make, request):
    """Whatever a function holds, a pipeline can be built, run and resumed; what cannot be told counts by its type."""
    request.addfinalizer(OPEN_FILES.close)

    def closing(value):
        return lambda x: (value, x)[1]

    assert difference(ten().map(closing(make())), ten().map(closing(make()))) == []


def test_a_built_in_function_counts_by_what_it_holds():
    letters = MapDataset.source([{"a": 1, "b": 2}])
    assert difference(letters.map(operator.itemgetter("a")), letters.map(operator.itemgetter("b"))) == [
        "- map(operator.itemgetter('a'))",
        "+ map(operator.itemgetter('b'))",
    ]
    assert difference(ten().map({0: "zero"}.get), ten().map({0: "nought"}.get)) == ["~ map(get): same name, other code"]


# What is accepted.


def test_words_and_line_numbers_do_not_count():
    old = build(PIPELINES)["function"]
    new = build("\n\n" + PIPELINES.replace('"""Words."""', '"""Other words, told at greater length."""'))["function"]
    assert difference(old, new) == []


@pytest.mark.parametrize("options", [None, ReadOptions(0, 0), ReadOptions(1, 1), ReadOptions(4, 16)], ids=repr)
@pytest.mark.parametrize("other", [None, ReadOptions(2, 8)], ids=repr)
def test_threads_and_buffers_do_not_count(options, other):
    ds = ten().shuffle(seed=1)
    assert difference(ds.to_iter_dataset(options), ds.to_iter_dataset(other)) == []


def test_a_map_dataset_and_its_stream_share_states():
    assert difference(ten(), ten().to_iter_dataset()) == []


def test_how_a_value_was_written_does_not_count():
    assert difference(ten()[1:100], ten()[1:10]) == []
    assert difference(ten().seed(42).shuffle(), ten().seed(42).shuffle(seed=3329053876)) == []
    assert difference(MapDataset.mix([ten(), ten()], [1, 2]), MapDataset.mix([ten(), ten()], [0.5, 1.0])) == []


# Identity is what was written, not what has happened since.


def build_lazy():
    class Lazy(bushel.transforms.Map):
        def __init__(self):
            self.table = None

        def map(self, x):
            if self.table is None:
                self.table = {n: str(n) for n in range(10)}
            return self.table[x]

    return ten().map(Lazy())


def build_memoised():
    memory = {}

    def remember(x):
        return memory.setdefault(x, str(x))

    return ten().map(remember)


def build_with_random_access():
    ds = build_lazy()
    ds[0]  # a look at the data before training
    return ds


@pytest.mark.parametrize("build", [build_lazy, build_memoised])
def test_what_a_function_remembers_while_running_does_not_count(build):
    assert difference(build(), build()) == []
    used = build()
    state = saved(used, steps=3)
    assert saved(used, steps=3) == state
    iter(used).set_state(state)
    iter(build()).set_state(state)


def test_a_look_at_the_data_does_not_count():
    assert difference(build_with_random_access(), build_lazy()) == []
    assert difference(build_lazy(), build_with_random_access()) == []


# When functions are digested: not when a pipeline is built, but before the first of them runs.


def build_with_table(table):
    return ten().shuffle(seed=1).map(lambda x: table.setdefault(x, x * table["scale"]))


def test_building_and_opening_digest_no_function(monkeypatch):
    digested = []
    examine = identity.examine
    monkeypatch.setattr(
        identity, "examine", lambda *values, **options: digested.append(values[0]) or examine(*values, **options)
    )
    it = iter(ten().map(add_1).to_iter_dataset().map(add_1).batch(2))
    assert digested == []
    it.get_state()
    assert digested.count(add_1) == 1  # it is the same function twice


def test_a_value_that_changes_before_the_first_element_counts():
    table = {"scale": 1}
    ds = build_with_table(table)
    it = iter(ds)
    table["scale"] = 2
    assert difference(build_with_table({"scale": 2}), ds) == []
    assert it.get_state() == iter(build_with_table({"scale": 2})).get_state()


FIRST_USES = {
    "next": lambda ds: next(iter(ds)),
    "random access": lambda ds: ds[0],
    "take": lambda ds: ds.get([0]),
    "random access further down": lambda ds: ds.batch(2)[0],
    "stream further down": lambda ds: next(iter(ds.to_iter_dataset().batch(2))),
    "with options": lambda ds: next(iter(ds.to_iter_dataset().with_options(on_error="skip"))),
    "threads": lambda ds: list(ds.to_iter_dataset(ReadOptions(2, 2))),
    "prefetch": lambda ds: start_prefetch(ds.to_iter_dataset().prefetch(2)),
    "column": lambda ds: ds.column(lambda x: x),
    "column through a shuffle": lambda ds: ds.seed(1).shuffle().map(lambda x: x).column(lambda x: x),
    "describe": lambda ds: ds.describe(),
    "own dataset": lambda ds: own_dataset(OWN)(ds)[0],
    "in a mixture": lambda ds: MapDataset.mix([ds, ten()])[0],
    "moved": lambda ds: move(iter(ds)),
}


def start_prefetch(ds):
    with iter(ds) as it:
        it.start_prefetch()
        next(it)


def move(it):
    bushel.experimental.set_next_index(it, 3)
    next(it)


@pytest.mark.parametrize("use", FIRST_USES.values(), ids=FIRST_USES)
def test_whatever_runs_a_function_first_what_it_remembers_does_not_count(use):
    fresh, used = build_with_table({"scale": 2}), build_with_table({"scale": 2})
    use(used)
    assert saved(used) == saved(fresh)


# Bytecode belongs to a Python version.


def from_python(version, state):
    state["bushel"]["python"] = version
    return state


def test_across_python_versions_functions_are_compared_by_name():
    old, new = ten().map(lambda x: x + 1), ten().map(lambda x: x + 2)
    iter(new).set_state(from_python("3.0", saved(old)))
    with pytest.raises(StateMismatch):
        iter(new).set_state(saved(old))


def test_across_python_versions_names_and_parameters_still_count():
    state = from_python("3.0", saved(ten().map(add_1).shuffle(seed=1)))
    with pytest.raises(StateMismatch, match=r"- shuffle\(seed=1\)"):
        iter(ten().map(add_1).shuffle(seed=2)).set_state(state)
    with pytest.raises(StateMismatch, match=r"- map\(add_1\)"):
        iter(ten().map(str).shuffle(seed=1)).set_state(state)


# Transformations and datasets of one's own.


def own_dataset(text):
    namespace = {"bushel": bushel, "__name__": "own"}
    exec(text, namespace)
    return namespace["Own"]


OWN = """
class Own(bushel.MapDataset):
    def __init__(self, parent, by=2):
        super().__init__(parent)
        self.by = by
    def __len__(self):
        return len(self._parent)
    def __getitem__(self, index):
        return self._parent[index] * self.by
"""


def test_attributes_of_a_dataset_of_ones_own_count():
    own = own_dataset(OWN)
    assert difference(ten().pipe(own), ten().pipe(own)) == []
    assert difference(ten().pipe(own), ten().pipe(own, 3)) == ["~ pipe(Own): same name, other parameters"]


def test_code_of_a_dataset_of_ones_own_counts():
    old, new = own_dataset(OWN), own_dataset(OWN.replace("* self.by", "+ self.by"))
    assert difference(ten().pipe(old), ten().pipe(new)) == ["~ pipe(Own): same name, other code"]


TRANSFORM = """
class Own(bushel.transforms.Map):
    def map(self, x):
        return self.helper(x)
    def helper(self, x):
        return x + 1
"""


def test_code_of_a_transform_class_counts():
    old, new = own_dataset(TRANSFORM), own_dataset(TRANSFORM.replace("self.helper(x)", "self.helper(x) * 2"))
    assert difference(ten().map(old()), ten().map(old())) == []
    assert difference(ten().map(old()), ten().map(new())) == ["~ map(Own): same name, other code"]


def test_code_that_a_transform_class_calls_on_itself_counts():
    old, new = own_dataset(TRANSFORM), own_dataset(TRANSFORM.replace("x + 1", "x + 2"))
    assert difference(ten().map(old()), ten().map(new())) == ["~ map(Own): same name, other code"]


def test_attributes_of_a_transform_class_count():
    text = "class Own(bushel.transforms.Map):\n    by = 2\n    def map(self, x): return x * self.by\n"
    old, new = own_dataset(text), own_dataset(text.replace("by = 2", "by = 3"))
    assert difference(ten().map(old()), ten().map(new())) == ["~ map(Own): same name, other code"]


def test_globals_that_a_function_reads_are_part_of_the_identity():
    old, new = {"BY": 1}, {"BY": 2}
    for namespace in (old, new):
        exec("def scale(x): return x * BY", namespace)
    assert difference(ten().map(old["scale"]), ten().map(new["scale"])) == ["~ map(scale): same name, other code"]


def test_digests_of_earlier_versions_stay():
    """States that were saved by earlier versions must restore: these values were written by one."""
    ds = MapDataset.range(20)
    found = {
        "shuffle": ds.shuffle(seed=3),
        "slice": ds.slice([3, 1, 2]),
        "repeat": ds.repeat(2),
        "mix": MapDataset.mix([ds, ds], [1, 2]),
        "concatenate": MapDataset.concatenate([ds, ds]),
    }
    assert {name: identity.identify(ds._node)[1] for name, ds in found.items()} == {
        "shuffle": "dcdee3eb343221c6",
        "slice": "c88187ee4137f473",
        "repeat": "d6b7679abc8dbe83",
        "mix": "0a1ad92c77ea6732",
        "concatenate": "078a919946f45662",
    }
    assert digest(list(range(1000))) == "7eb8f200f70f45f7"
    assert digest({"a": 1, "b": [2]}) == "4b919262a413fb10"


def test_a_state_belongs_to_the_user():
    ds = ten().to_iter_dataset()
    state = iter(ds).get_state()
    state["bushel"]["identity"][0] = "changed"
    state["bushel"]["identity"][3].clear()
    assert iter(ds).get_state()["bushel"]["identity"] == identity.identify(ds._node)
    assert iter(ds).get_state()["bushel"]["identity"][3]


IDENTITY = """
    import bushel{module}

    class Split(bushel.experimental.FlatMapTransform):
        max_fan_out = 2

        def flat_map(self, x):
            return [x]

    ds = bushel.experimental.FlatMapIterDataset(bushel.MapDataset.range(5).to_iter_dataset(), Split())
    print(iter(ds).identity)
"""


def test_an_identity_does_not_depend_on_which_public_modules_are_loaded(tmp_path):
    """`FlatMap` says that it is of `bushel.transforms`; before that module is loaded it is Bushel's class, too."""
    found = [run_script(tmp_path, IDENTITY.replace("{module}", module)) for module in ("", ".transforms")]
    assert [code for code, _, _ in found] == [0, 0], found
    assert found[0] == found[1] and "FlatMap=" not in found[0][1]

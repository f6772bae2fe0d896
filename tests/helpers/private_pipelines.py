"""Random pipelines whose parts alias, keep and overwrite all they can, and a model of each that copies everything.

`draw_case(seed)` makes a pipeline and what it must give. The model runs the same functions on the same records. But it
copies what a function gets and what it returns, so nothing is shared. If Bushel's elements are private, both are equal.
"""

from __future__ import annotations

import array
import collections
import dataclasses
import functools
import random
import sys
import types
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, NamedTuple

import cloudpickle
import numpy as np

import bushel
from bushel._src.datasets.iterator import PipelineIterator
from bushel._src.engine.pool import wire
from bushel._src.engine.program import Result
from bushel._src.engine.tasks import Executor, Task, Ticket, run_task

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers need not import the tests

LENGTH = 9


# ---------------------------------------------------------------------------------------------------------------------
# Leaves and containers


class Sub(np.ndarray):
    """A class of arrays."""


STRUCT = np.dtype([("x", np.float64), ("y", np.int32)])


def _objects(n: int) -> np.ndarray:
    made = np.empty(2, object)
    made[0], made[1] = np.full(n % 3 + 1, float(n)), [n]
    return made


def _read_only(n: int) -> np.ndarray:
    return np.frombuffer(np.arange(n, n + 4.0).tobytes())


def _structs(n: int) -> np.ndarray:
    made = np.zeros(4, STRUCT)
    made["x"] = n
    return made


ARRAYS: dict[str, Callable[[int], Any]] = {
    "array": lambda n: np.arange(4.0) + n,
    "integers": lambda n: np.arange(4) + n,
    "view": lambda n: (np.arange(6.0) + n)[1:5],
    "reversed": lambda n: (np.arange(4.0) + n)[::-1],
    "fortran": lambda n: np.asfortranarray(np.arange(4.0).reshape(2, 2) + n),
    "read-only": _read_only,
    "broadcast": lambda n: np.broadcast_to(np.float64(n), (4,)),
    "long": lambda n: np.full(700, float(n)),
    "struct": _structs,
}
LEAVES: dict[str, Callable[[int], Any]] = {
    **ARRAYS,
    "objects": _objects,
    "masked": lambda n: np.ma.masked_array([n, n + 1.0, 3.0], mask=[False, n % 2 == 0, False]),
    "subclass": lambda n: (np.arange(4.0) + n).view(Sub),
    "scalar array": lambda n: np.array(float(n)),
    "void": lambda n: _structs(n)[0],
    "bytearray": lambda n: bytearray([n % 250, 1, 2]),
    "list": lambda n: [n, n + 1],
    "dict": lambda n: {"k": [n]},
    "set": lambda n: {n},
    "array.array": lambda n: array.array("i", [n, 2]),
    "text": lambda n: f"text {n}",
}


class Named(NamedTuple):
    a: Any
    b: Any
    n: int


@dataclasses.dataclass
class Plain:
    a: Any
    b: Any
    n: int


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: Any
    b: Any
    n: int


@dataclasses.dataclass(slots=True)
class Slotted:
    a: Any
    b: Any
    n: int


class Attributes(dict[str, Any]):
    """A dict whose entries are its attributes."""

    def __init__(self, entries: Any = ()):
        super().__init__(entries)
        self.__dict__ = self


class Own:
    def __init__(self, a: Any, b: Any, n: int):
        self.a, self.b, self.n = a, b, n


def _by_name(kind: Callable[[dict[str, Any]], Any]) -> Callable[[Any, Any, int], Any]:
    return lambda a, b, n: kind({"a": a, "b": b, "n": n})


CONTAINERS: dict[str, tuple[type, Callable[[Any, Any, int], Any]]] = {
    "dict": (dict, _by_name(dict)),
    "tuple": (tuple, lambda a, b, n: (a, b, n)),
    "Named": (Named, Named),
    "Plain": (Plain, Plain),
    "Frozen": (Frozen, Frozen),
    "Slotted": (Slotted, Slotted),
    "Own": (Own, Own),
    "SimpleNamespace": (types.SimpleNamespace, lambda a, b, n: types.SimpleNamespace(a=a, b=b, n=n)),
    "defaultdict": (collections.defaultdict, _by_name(lambda parts: collections.defaultdict(list, parts))),
    "OrderedDict": (collections.OrderedDict, _by_name(collections.OrderedDict)),
    "Attributes": (Attributes, _by_name(Attributes)),
    "UserDict": (collections.UserDict, _by_name(collections.UserDict)),
    "ChainMap": (collections.ChainMap, _by_name(lambda parts: collections.ChainMap(parts))),
    "deque": (collections.deque, lambda a, b, n: collections.deque([a, b, n])),
    "Elements": (list, lambda a, b, n: [a, b, n]),
}
_NAMES = {kind: name for name, (kind, _) in CONTAINERS.items() if name != "Elements"}


def parts_of(element: Any) -> tuple[Any, Any, int]:
    """The leaves and the number of an element."""
    if isinstance(element, (tuple, list, collections.deque)):
        return tuple(element)  # type: ignore[return-value]
    if hasattr(element, "keys"):
        return element["a"], element["b"], element["n"]
    return element.a, element.b, element.n


def is_group(x: Any) -> bool:
    """Whether `x` is a list or tuple of elements, or one array per leaf: what `batch` or `zip` made."""
    return isinstance(x, Group)


class Group(list[Any]):
    """A batch that `batch_fn` has made: a list of elements."""


def pure(x: Any) -> Any:
    """A copy in which nothing is shared, and every array can be written."""
    if x is None or isinstance(x, (int, float, str, np.number)):
        return x
    if isinstance(x, Group):
        return Group(map(pure, x))
    if isinstance(x, np.ma.MaskedArray):
        return np.ma.masked_array(np.array(x.data), mask=np.array(np.ma.getmaskarray(x)))
    if isinstance(x, np.ndarray):
        array_copy = np.array(x, subok=type(x) is Sub)
        if x.dtype == object:
            for place in np.ndindex(x.shape):
                array_copy[place] = pure(x[place])
        return array_copy
    if isinstance(x, (np.void, bytearray, set, array.array)):
        return x.copy() if not isinstance(x, array.array) else array.array(x.typecode, x)
    if type(x) is dict and set(x) != {"a", "b", "n"} and not {"a", "b", "n"} <= set(x):
        return {key: pure(part) for key, part in x.items()}
    if type(x) is list:
        return list(map(pure, x))
    if type(x) is tuple and not (len(x) == 3 and isinstance(x[2], (int, np.integer))):
        return tuple(map(pure, x))
    made: Any = CONTAINERS[_NAMES[type(x)]][1](*map(pure, parts_of(x)))
    for key in set(x) - {"a", "b", "n"} if hasattr(x, "keys") else ():
        made[key] = pure(x[key])
    return made


def canonical(x: Any) -> Any:
    """The value of an element as plain data, to be compared."""
    if isinstance(x, np.ma.MaskedArray):
        return "masked", x.filled(-1).tolist(), np.ma.getmaskarray(x).tolist()
    if isinstance(x, np.ndarray) and x.dtype == object:
        return "objects", x.shape, [canonical(part) for part in x.reshape(-1).tolist()]
    if isinstance(x, (np.ndarray, np.void)):
        assert not isinstance(x, np.ndarray) or x.flags.writeable
        return "array", str(x.dtype), x.shape, x.tolist()
    if isinstance(x, np.generic):
        return x.item()
    if isinstance(x, (bytearray, array.array, set)):
        return type(x).__name__, sorted(x) if isinstance(x, set) else list(x)
    if hasattr(x, "keys"):
        return type(x).__name__, sorted((key, canonical(x[key])) for key in x)
    if isinstance(x, (list, tuple, collections.deque)):
        return type(x).__name__, [canonical(part) for part in x]
    if type(x) in _NAMES:
        return type(x).__name__, [canonical(part) for part in parts_of(x)]
    return x


# ---------------------------------------------------------------------------------------------------------------------
# Functions that write


def write_leaf(x: Any, way: int) -> None:
    """Writes into a leaf, in one of several ways, if it can be written at all."""
    if isinstance(x, np.ma.MaskedArray):
        if way % 2:
            x[0] = np.ma.masked
        else:
            x += 1
    elif isinstance(x, np.ndarray) and x.dtype == object:
        for part in x.reshape(-1).tolist():
            write_leaf(part, way)
    elif isinstance(x, (np.ndarray, np.void)) and x.dtype.names:
        x["x"] += way + 1
    elif isinstance(x, np.ndarray):
        match way % 7:
            case 0:
                x += 1
            case 1:
                np.add(x, 3, out=x)
            case 2:
                np.copyto(x, np.asarray(x) * 2)
            case 3:
                x.fill(7)
            case 4:
                x[...] = x * 3 + 1
            case 5:
                x.flat[0] = -5
            case 6:
                np.multiply.at(x, ..., 2)
    elif isinstance(x, (bytearray, array.array)):
        x[0] = (x[0] + 1) % 200
        x.append(way)
    elif type(x) is list:
        x.append(way)
    elif type(x) is dict:
        x["k"].append(way)
        x.update(more=way)
    elif isinstance(x, set):
        x.add(1000 + way)


def write(x: Any, way: int, target: int) -> None:
    """Writes into leaf `a`, leaf `b` or both, of an element or of all elements of a group."""
    if x is None or isinstance(x, (int, float, np.number)):
        return
    if isinstance(x, Group) or (type(x) is tuple and not _is_element(x)):
        for element in x:
            write(element, way, target)
        return
    a, b, _ = parts_of(x)
    if target != 1:
        write_leaf(a, way)
    if target != 0:
        write_leaf(b, way)
    if way == 4 and type(x) in (dict, collections.OrderedDict, collections.defaultdict, collections.UserDict):
        x["extra"] = [way]  # type: ignore[index]


def _is_element(x: Any) -> bool:
    return len(x) == 3 and (isinstance(x[2], (int, np.integer)) or (isinstance(x[2], np.ndarray) and x[2].ndim == 1))


def number_of(x: Any) -> int:
    """The number of an element: of the first one in a group."""
    if isinstance(x, (int, np.integer)):
        return int(x)
    if isinstance(x, Group) or (type(x) is tuple and not _is_element(x)):
        return number_of(x[0])
    return int(np.reshape(parts_of(x)[2], -1)[0])


@functools.cache
def _memo_in_c(key: Any) -> list[Any]:
    return []


GLOBAL_MEMO: dict[Any, Any] = {}


class Function:
    """A user's function: writes into its element, keeps what it gets or returns, and returns it in some form."""

    class_memo: dict[Any, Any] = {}  # noqa: RUF012

    def __init__(self, draw: random.Random, *, fails: bool = False):
        self.way, self.target = draw.randrange(7), draw.randrange(3)
        self.writes = draw.random() < 0.7
        self.returns = draw.choice(["same", "same", "same", "pure", "alias", "views", "swap", "memo", "buffer"])
        self.keeps = draw.choice(["nothing", "nothing", "got", "returned"])
        self.memo = draw.choice(["attribute", "global", "class", "C", "default"])
        self.key = draw.random()
        self.fails = draw.randrange(LENGTH) if fails else None
        self.kept: Any = None
        self.memos: dict[Any, Any] = {}
        self.buffer: Any = None

    def find_memo(self, n: int) -> list[Any]:
        if self.memo == "C":
            return _memo_in_c((self.key, n))
        where = {"attribute": self.memos, "global": GLOBAL_MEMO, "class": Function.class_memo, "default": self.memos}
        return where[self.memo].setdefault((self.key, n), [])

    def __call__(self, x: Any, *_: Any) -> Any:
        if self.kept is not None:
            write(self.kept, 3, 2)  # what it kept is its own memory: it may write there
        if self.writes:
            write(x, self.way, self.target)
        if self.fails is not None and number_of(x) == self.fails:
            raise ValueError("this one fails, after it has written")
        made = self.make(x)
        self.kept = {"got": x, "returned": made}.get(self.keeps)
        return made

    def make(self, x: Any) -> Any:
        if x is None or isinstance(x, (int, float, np.number)):
            return x
        if isinstance(x, Group) or type(x) is tuple:
            return x if self.returns != "pure" else pure(x)
        a, b, n = parts_of(x)
        make = CONTAINERS[_NAMES[type(x)]][1] if type(x) in _NAMES else CONTAINERS["Elements"][1]
        match self.returns:
            case "pure":
                return pure(x)
            case "alias":
                return make(a, a, n)
            case "views" if type(a) is np.ndarray and a.ndim and len(a) > 2:
                return make(a[1:], a[:-1], n)
            case "swap":
                return make(b, a, n)
            case "memo":
                kept = self.find_memo(int(np.reshape(n, -1)[0]))
                if not kept:
                    kept.append(make(pure(a), pure(b), n))
                elif canonical(pure(kept[0])) != canonical(pure(make(a, b, n))):
                    return make(a, b, n)  # this element came another way: its memo would depend on the order
                return kept[0]
            case "buffer" if type(a) is np.ndarray and a.dtype != object:
                if self.buffer is None or self.buffer.shape != a.shape or self.buffer.dtype != a.dtype:
                    self.buffer = np.zeros_like(a)
                np.copyto(self.buffer, a)
                return make(self.buffer, b, n)
        return x


class Predicate(Function):
    """A filter. It writes, and keeps what it gets."""

    def __call__(self, x: Any, *_: Any) -> Any:
        if self.kept is not None:
            write(self.kept, 3, 2)
        if self.writes:
            write(x, self.way, self.target)
        self.kept = x if self.keeps != "nothing" else None
        return number_of(x) % 4 != 1


class Batcher(Function):
    """A `batch_fn`: a list of the elements, which it may keep and write into."""

    def __call__(self, elements: Any, *_: Any) -> Any:
        if self.kept is not None:
            write(self.kept, 3, 2)
        if self.writes:
            write(elements[0], self.way, self.target)
        made = Group(elements if self.returns != "memo" else [elements[0]] * 2)
        self.kept = None if self.keeps == "nothing" else made
        return made


class Splitter(bushel.transforms.FlatMap):
    """A `flat_map`: an element twice, as itself and as views of it."""

    max_fan_out = 2

    def __init__(self, draw: random.Random):
        self.function = Function(draw)
        self.lazily = draw.random() < 0.3

    def flat_map(self, element: Any) -> Any:
        made = self.function(element)
        return self.yield_one_buffer(made) if self.lazily else [made, made]

    def yield_one_buffer(self, made: Any) -> Iterator[Any]:
        for way in (0, 1):
            yield made
            write(made, way, 0)

    def __call__(self, element: Any) -> Any:
        return self.flat_map(element)


READERS: dict[str, Callable[[Any], Any]] = {
    "same": lambda e: e,
    "entries": lambda e: {"a": e["a"], "b": e["a"], "n": e["n"]},
    "views": lambda e: {"a": e["a"][1:], "b": e["a"][:-1], "n": e["n"]},
    "one array twice": lambda e: {"a": e["a"] + 1, "b": e["b"], "n": e["n"]},
    "flat": lambda e: {"a": e["a"].reshape(-1), "b": e["a"], "n": e["n"]},
    "kept": lambda e: {"a": KEPT, "b": KEPT, "n": e["n"]},
}
KEPT = np.zeros(4)


# ---------------------------------------------------------------------------------------------------------------------
# Sources


class Kept:
    """A source that keeps its records, some of them as one object."""

    def __init__(self, records: list[Any]):
        self.records = records

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Any:
        return self.records[index]


class KeptBlocks(Kept):
    """Reads many at once."""

    def __getitems__(self, indices: Any) -> list[Any]:
        return [self.records[index] for index in indices]


class Made:
    """A source that makes each record."""

    def __init__(self, make: Callable[[int], Any]):
        self.make = make

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


class Buffer(Made):
    """A source that reads all records into the memory of the first."""

    record: Any = None

    def __getitem__(self, index: int) -> Any:
        new = self.make(index)
        if self.record is None:
            self.record = pure(new)
            return self.record
        for old, part in zip(parts_of(self.record)[:2], parts_of(new)[:2]):
            overwrite(old, part)
        if isinstance(self.record, dict):
            texts = {name: part for name, part in zip("ab", parts_of(new)) if isinstance(part, str)}
            self.record.update(texts, n=parts_of(new)[2])
            return self.record
        make = CONTAINERS[_NAMES[type(self.record)]][1] if type(self.record) in _NAMES else CONTAINERS["Elements"][1]
        leaves = [
            part if isinstance(part, str) else old for old, part in zip(parts_of(self.record)[:2], parts_of(new)[:2])
        ]
        return make(*leaves, parts_of(new)[2])


def overwrite(old: Any, new: Any) -> None:
    """Puts the values of a leaf into another leaf of its kind."""
    if isinstance(old, np.ndarray) and old.dtype == object:
        for place in np.ndindex(old.shape):
            old[place] = pure(new[place])
    elif isinstance(old, np.ma.MaskedArray):
        old[...] = new
        old.mask = np.ma.getmaskarray(new)
    elif isinstance(old, (np.ndarray, bytearray, list, array.array)):
        old[... if isinstance(old, np.ndarray) else slice(None)] = new
    elif isinstance(old, np.void):
        for name in old.dtype.names or ():
            old[name] = new[name]
    elif isinstance(old, (dict, set)):
        old.clear()
        old.update(pure(new))


class OwnMap(bushel.MapDataset):
    """A dataset of the user's own class that keeps its elements."""

    def __init__(self, records: list[Any]):
        super().__init__()
        self._records = Kept(records)

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: Any) -> Any:
        return self._records[index % LENGTH]


class OwnIterator(bushel.DatasetIterator):
    """An iterator of the user's own class that keeps its elements."""

    def __init__(self, source: Any):
        super().__init__()
        self.source, self.at = source, 0

    def __next__(self) -> Any:
        if self.at == LENGTH:
            raise StopIteration
        self.at += 1
        return self.source[self.at - 1]

    def get_state(self) -> dict[str, Any]:
        return {"at": self.at}

    def set_state(self, state: dict[str, Any], *, check: bool = True) -> None:
        self.at = state["at"]


class OwnStream(bushel.IterDataset):
    """A stream of the user's own class."""

    def __init__(self, source: Any):
        super().__init__()
        self._source = source

    def __iter__(self) -> Any:
        return OwnIterator(self._source)


@dataclasses.dataclass
class Case:
    """A pipeline, and the elements that it must give."""

    ds: Any
    expected: list[Any]
    text: str
    stackable: bool
    """Whether elements are dicts of arrays of one shape."""
    in_order: bool = True


def draw_source(draw: random.Random) -> Case:
    """A source, its records, and whether Bushel can stack them."""
    container = draw.choice(["dict", "dict", "dict", "dict", *CONTAINERS])
    leaf, other = draw.choice(list(LEAVES)), draw.choice(list(LEAVES))
    if draw.random() < 0.5:
        leaf, other = draw.choice(list(ARRAYS)), draw.choice(list(ARRAYS))
    alias = draw.choice(["none", "none", "same", "views", "whole"])
    wrap = CONTAINERS[container][1]
    shared = LEAVES[other](77) if draw.random() < 0.2 else None

    def make(n: int) -> Any:
        a = LEAVES[leaf](n)
        b: Any = LEAVES[other](n + 50) if shared is None else shared
        if alias == "same":
            b = a
        elif alias == "views" and type(a) is np.ndarray and a.ndim == 1:
            a, b = a[:-1], a[1:]
        elif alias == "whole" and type(a) is np.ndarray and a.ndim == 1:
            b = a[:]
        return wrap(a, b, n)

    expected = [pure(make(n)) for n in range(LENGTH)]
    shift = draw.choice([0, 0, 3])  # some records are one object
    if shift:
        expected = [pure(expected[n % shift]) for n in range(LENGTH)]
    records = [make(n) for n in range(shift or LENGTH)]
    kept = [records[n % len(records)] for n in range(LENGTH)]
    kind = draw.choice(
        ["list", "list", "kept", "blocks", "made", "buffer", "map", "own map", "own stream", "iterable", "arrays"]
    )
    stackable = container == "dict" and leaf in ARRAYS and other in ARRAYS
    if kind == "arrays" and not (stackable and not shift):
        kind = "list"
    text = f"{kind} of {container}({leaf}, {other}), alias {alias}, shared {shared is not None}, {shift} records"
    source = bushel.MapDataset.source

    def remake(n: int) -> Any:
        return make(n % shift if shift else n)

    match kind:
        case "list":
            ds: Any = source(kept)
        case "kept":
            ds = source(Kept(kept))
        case "blocks":
            ds = source(KeptBlocks(kept))
        case "made":
            ds = source(Made(remake))
        case "buffer":
            ds = source(Buffer(remake))
        case "map":
            ds = bushel.MapDataset.range(LENGTH).map(remake)
        case "own map":
            ds = OwnMap(kept)
        case "own stream":
            ds = OwnStream(draw.choice([Kept(kept), Buffer(remake)]))
        case "iterable":
            ds = bushel.IterDataset.source(functools.partial(iter, kept))
        case _:
            columns = {name: np.stack([row[name] for row in expected]) for name in ("a", "b")}
            ds = source(bushel.sources.ArrayDataSource({**columns, "n": np.arange(LENGTH)}))
    return Case(ds, expected, text, stackable)


# ---------------------------------------------------------------------------------------------------------------------
# Stages


def apply_purely(function: Callable[..., Any], elements: list[Any]) -> list[Any]:
    """The model of a map: what the function gets and what it returns are copies."""
    return [pure(function(pure(element))) for element in elements]


def filter_purely(function: Callable[..., Any], elements: list[Any]) -> list[Any]:
    """The model of a filter. An element that stays has what the function has written into it."""
    kept = []
    for element in map(pure, elements):
        if function(element):
            kept.append(pure(element))
    return kept


def twin(function: Callable[[Any], Any], elements: list[Any], number: int = 1) -> list[Any]:
    """Elements in the order that a stage gives to plain numbers, which share nothing."""
    streams = [bushel.MapDataset.range(len(elements)).to_iter_dataset() for _ in range(number)]
    return [pure(elements[place]) for place in function(streams[0] if number == 1 else streams)]


def choose_reader(draw: random.Random, case: Case) -> str | None:
    """A function whose code only reads, and that can read these elements; None if the one that was drawn cannot."""
    name, rows = draw.choice(list(READERS)), case.expected
    plain = case.stackable and all(type(row) is dict and set(row) == {"a", "b", "n"} for row in rows)
    plain = plain and all(type(row[key]) is np.ndarray for row in rows for key in "ab")
    flat = plain and all(row[key].ndim == 1 and len(row[key]) > 3 for row in rows for key in "ab")
    numbers = plain and not any(row["a"].dtype.names for row in rows)
    if name in ("views", "flat"):
        return name if flat else None
    return name if (numbers if name == "one array twice" else plain) else None


def add_map_stage(draw: random.Random, case: Case) -> None:
    """One more operation with random access."""
    seed = draw.randrange(1 << 30)
    function, model = Function(random.Random(seed)), Function(random.Random(seed))
    stage = draw.choice(
        ["map", "map", "map", "map_with_index", "random_map", "reader", "reader", "reader", "reader", "flat_map",
         "batch_fn", "slice", "repeat", "mix", "concatenate", "zip"]
    )  # fmt: skip
    ds, expected = case.ds, case.expected
    match stage:
        case "map":
            case.ds, case.expected = ds.map(function), apply_purely(model, expected)
        case "map_with_index":
            case.ds = ds.map_with_index(lambda _, x: function(x))
            case.expected = apply_purely(model, expected)
        case "random_map":
            case.ds, case.expected = ds.random_map(function, seed=1), apply_purely(model, expected)
        case "batch_fn":
            if not expected or isinstance(expected[0], Group) or ".flat_map" in case.text:
                return
            batch, model_batch = Batcher(random.Random(seed)), Batcher(random.Random(seed))
            case.ds = ds.batch(3, batch_fn=batch)
            groups = [expected[start : start + 3] for start in range(0, len(expected), 3)]
            case.expected = [pure(model_batch(list(map(pure, group)))) for group in groups]
        case "flat_map":
            if len(expected) > 30:
                return
            split, model_split = Splitter(random.Random(seed)), Splitter(random.Random(seed))
            case.ds = bushel.experimental.FlatMapMapDataset(ds, split)
            case.expected = [pure(part) for row in expected for part in model_split.flat_map(pure(row))]
        case "reader":
            if (name := choose_reader(draw, case)) is None:
                return
            stage = f"reader {name}"
            case.ds, case.expected = ds.map(READERS[name]), apply_purely(READERS[name], expected)
        case "slice":
            case.ds, case.expected = ds.slice(slice(None, None, -1)), [pure(row) for row in expected[::-1]]
        case "repeat":
            if len(expected) > 40:
                return
            case.ds, case.expected = ds.repeat(2), [pure(row) for row in expected * 2]
        case "mix":
            if len(expected) > 40:
                return
            case.ds = bushel.MapDataset.mix([ds, ds])
            case.expected = [pure(row) for row in expected for _ in range(2)]
        case "concatenate":
            if len(expected) > 40:
                return
            case.ds, case.expected = bushel.MapDataset.concatenate([ds, ds]), [pure(row) for row in expected * 2]
        case "zip":
            case.ds = bushel.experimental.ZipMapDataset([ds, ds]).map(lambda pair: pair[1])
    case.text += f"\n  .{stage}  {vars(function) if 'map' in stage else ''}"


def add_stream_stage(draw: random.Random, case: Case) -> None:
    """One more operation of a stream."""
    seed = draw.randrange(1 << 30)
    function, model = Function(random.Random(seed)), Function(random.Random(seed))
    stage = draw.choice(
        ["map", "map", "map", "random_map", "reader", "reader", "filter", "flat_map", "batch_fn", "batch", "window",
         "mix", "zip", "interleave", "repeat", "cache", "cache", "rebatch", "limit"]
    )  # fmt: skip
    ds, expected = case.ds, case.expected
    grouped = bool(expected) and isinstance(expected[0], Group)
    match stage:
        case "map":
            case.ds, case.expected = ds.map(function), apply_purely(model, expected)
        case "random_map":
            case.ds, case.expected = ds.random_map(function, seed=1), apply_purely(model, expected)
        case "reader":
            if (name := choose_reader(draw, case)) is None:
                return
            stage = f"reader {name}"
            case.ds, case.expected = ds.map(READERS[name]), apply_purely(READERS[name], expected)
        case "filter":
            case.ds = ds.filter(Predicate(random.Random(seed)))
            case.expected = filter_purely(Predicate(random.Random(seed)), expected)
        case "flat_map":
            if len(expected) > 30:
                return
            split, model_split = Splitter(random.Random(seed)), Splitter(random.Random(seed))
            case.ds = bushel.experimental.FlatMapIterDataset(ds, split)
            case.expected = [pure(part) for row in expected for part in model_split.flat_map(pure(row))]
        case "batch_fn":
            if grouped:
                return
            batch, model_batch = Batcher(random.Random(seed)), Batcher(random.Random(seed))
            case.ds = ds.batch(3, batch_fn=batch)
            groups = [expected[start : start + 3] for start in range(0, len(expected), 3)]
            case.expected = [pure(model_batch(list(map(pure, group)))) for group in groups]
        case "batch":
            shapes = {tuple(sorted((key, np.shape(row[key])) for key in row)) for row in expected if type(row) is dict}
            plain = all(type(row) is dict and np.ndim(row["n"]) == 0 for row in expected) and len(shapes) == 1
            if not (case.stackable and plain) or any(set(row) != {"a", "b", "n"} for row in expected):
                return
            if len({(row["a"].dtype, row["b"].dtype) for row in expected}) != 1:
                return
            case.ds = ds.batch(2, drop_remainder=True)
            groups = [expected[start : start + 2] for start in range(0, len(expected) - 1, 2)]
            case.expected = [{key: np.stack([row[key] for row in group]) for key in group[0]} for group in groups]
            case.stackable = False
        case "window":
            case.ds = ds.window_shuffle(4, seed=2)
            case.expected = twin(lambda numbers: numbers.window_shuffle(4, seed=2), expected)
        case "mix":
            if len(expected) > 40:
                return
            case.ds = bushel.IterDataset.mix([ds, ds], [1, 1])
            case.expected = twin(lambda numbers: bushel.IterDataset.mix(numbers, [1, 1]), expected, 2)
        case "zip":
            case.ds = bushel.experimental.ZipIterDataset([ds, ds]).map(lambda pair: pair[0])
        case "interleave":
            if len(expected) > 40:
                return
            both = [ds, ds]
            case.ds = bushel.experimental.InterleaveIterDataset(both, cycle_length=2)
            case.expected = [pure(row) for row in expected for _ in range(2)]
        case "repeat":
            if len(expected) > 40 or not expected:
                return
            case.ds = ds.repeat(2)
            case.expected = [pure(row) for row in expected * 2]
        case "cache":
            case.ds = ds.cache()
        case "rebatch":
            if not expected or type(expected[0]) is not dict or np.ndim(expected[0]["n"]) != 1:
                return
            if any(set(row) != {"a", "b", "n"} for row in expected):
                return
            try:
                joined = {key: np.concatenate([row[key] for row in expected]) for key in "abn"}
            except ValueError:
                return
            case.ds = bushel.experimental.RebatchIterDataset(ds, 3, drop_remainder=False)
            places = range(0, len(joined["n"]), 3)
            case.expected = [{key: leaf[at : at + 3].copy() for key, leaf in joined.items()} for at in places]
        case "limit":
            count = max(1, len(expected) - 2)
            case.ds = bushel.experimental.LimitIterDataset(ds, count=count)
            case.expected = expected[:count]
    case.text += f"\n  .{stage}  {vars(function) if 'map' in stage else ''}"


def draw_case(seed: int) -> Case:
    """A pipeline and what it must give. The same seed always draws the same one."""
    draw = random.Random(seed)
    case = draw_source(draw)
    case.text = f"seed {seed}: {case.text}"
    if isinstance(case.ds, bushel.MapDataset):
        for _ in range(draw.choice([0, 1, 1, 2, 3])):
            add_map_stage(draw, case)
        if draw.random() < 0.2:
            case.ds = case.ds.filter(Predicate(random.Random(seed)))
            case.expected = filter_purely(Predicate(random.Random(seed)), case.expected)
            case.text += "\n  .filter of a map dataset"
        case.text += "\n  .to_iter_dataset"
        case.ds = case.ds.to_iter_dataset(draw.choice([bushel.ReadOptions(0, 0), bushel.ReadOptions(1, 4)]))
    for _ in range(draw.choice([0, 1, 1, 2, 2, 3, 4])):
        add_stream_stage(draw, case)
    if draw.random() < 0.15:
        failing = Function(random.Random(seed), fails=True)
        case.ds = case.ds.map(failing)
        rows, model = [], Function(random.Random(seed), fails=True)
        for row in case.expected:
            try:
                rows.append(pure(model(pure(row))))
            except ValueError:
                continue
        case.expected = rows
        options = bushel.experimental.DatasetOptions(on_error="skip", filter_raise_threshold_ratio=None)
        case.ds = bushel.experimental.WithOptionsIterDataset(case.ds, options)
        case.text += "\n  .map that fails once, skipped"
    return case


# ---------------------------------------------------------------------------------------------------------------------
# Running


class InMessages(Executor):
    """Stands in for workers: a copy of the program runs each task, and its results travel as a worker sends them."""

    def __init__(self) -> None:
        self._programs: dict[int, tuple[Any, Any]] = {}

    def submit(self, task: Task) -> Ticket:
        return Ticket(task, Future())

    def wait(self, ticket: Ticket) -> tuple[Result, float]:
        task = ticket.task
        original, program = self._programs.get(id(task.program), (None, None))
        if original is not task.program:
            program = cloudpickle.loads(cloudpickle.dumps(task.program))
            self._programs[id(task.program)] = task.program, program
        given = wire.unpack(_pack(task.given), None) if task.given is not None else None
        place = functools.partial(_refuse_memory)
        result = run_task(program, task.low, task.high, task.count_before, None, given, place)
        sent = dataclasses.replace(result, rows=wire.unpack(wire.pack(result.rows, None), None))
        return sent, 0.0

    def forget(self, tickets: list[Ticket]) -> None:
        pass

    def close(self) -> None:
        pass


def _pack(value: Any) -> Any:
    return wire.pack(value, None)


def _refuse_memory(shape: Any, dtype: Any, size: int) -> None:
    return None


def read(ds: Any, executor: Executor | None, draw: random.Random) -> Iterator[Any]:
    """The elements as a training loop sees them. It writes into them, keeps some, and they must stay as they are."""
    kept: list[tuple[Any, Any]] = []
    # The consumer alone: two threads may not call functions that write into what they keep.
    with PipelineIterator(ds._node, bushel.ReadOptions(0, 0), executor) as iterator:
        for element in iterator:
            value = canonical(element)
            yield value
            for before, was in kept[-6:]:
                assert canonical(before) == was, "an element has changed after it was delivered"
            if draw.random() < 0.5:
                write(element, draw.randrange(7), draw.randrange(3))
                value = canonical(element)
            kept.append((element, value))
    for before, was in kept:
        assert canonical(before) == was, "an element has changed after it was delivered"


def find_difference(seed: int, executor: Executor | None, epochs: int = 2) -> str | None:
    """Runs a pipeline twice, and says what differs from the model."""
    case = draw_case(seed)
    expected = [canonical(row) for row in case.expected]
    for epoch in range(epochs):
        try:
            found = list(read(case.ds, executor, random.Random(seed)))
        except AssertionError as error:
            return f"{case.text}\nepoch {epoch}: {error}"
        if found != expected:
            where = next((at for at, (f, e) in enumerate(zip(found, expected)) if f != e), "length")
            shown = (found[where], expected[where]) if isinstance(where, int) else (len(found), len(expected))
            return f"{case.text}\nepoch {epoch}, element {where}: {shown[0]} instead of {shown[1]}"
    return None

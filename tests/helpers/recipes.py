"""Pipelines described as data, and built with Bushel or with the real Grain. Random ones: strategies.py.

A `Recipe` prints like the code that would build it; `build(recipe, lib)` builds it, `lib` being either module.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import sys
import tempfile
from types import ModuleType
from typing import Any

import numpy as np

import bushel

ENDLESS = sys.maxsize

# ---------------------------------------------------------------------------------------------------------------------
# Functions of users. They take any element that a recipe can produce.


def on_leaves(function: Any, x: Any) -> Any:
    """`x` with `function` of each leaf; containers and None stay."""
    if isinstance(x, dict):
        # In a fixed order: Grain's batches are rebuilt by JAX, which sorts keys; ours keep the order they had.
        return {key: on_leaves(function, x[key]) for key in sorted(x)}
    if isinstance(x, (tuple, list)):
        return type(x)(on_leaves(function, value) for value in x)
    return None if x is None else function(x)


def is_text(leaf: Any) -> bool:
    """Whether a leaf holds letters, or anything else one does not add numbers to."""
    return isinstance(leaf, (str, bytes)) or (isinstance(leaf, np.ndarray) and leaf.dtype.kind in "OUS")


def weigh(x: Any) -> int:
    """One number for an element, exact whatever the layout of its arrays in memory."""
    if x is None:
        return 0
    if isinstance(x, dict):
        return sum(map(weigh, x.values()))
    if isinstance(x, (tuple, list)):
        return sum(map(weigh, x))
    if isinstance(x, str):
        return sum(map(ord, x))
    if isinstance(x, np.ndarray):
        return weigh(x.ravel().tolist())
    return math.floor(abs(float(x)) * 4)


def double(x: Any) -> Any:
    return on_leaves(lambda leaf: leaf if is_text(leaf) else leaf * 2, x)


def one_more(x: Any) -> Any:
    return on_leaves(lambda leaf: leaf if is_text(leaf) else leaf + 1, x)


def with_weight(x: Any) -> Any:
    return {"x": x, "weight": weigh(x)}


def paired(x: Any) -> Any:
    return (x, weigh(x) % 7)


def none_for_thirds(x: Any) -> Any:
    return None if weigh(x) % 3 == 0 else x


def scaled(x: Any, rng: np.random.Generator) -> Any:
    return on_leaves(lambda leaf: leaf if is_text(leaf) else leaf * rng.random(), x)


def moved(x: Any, rng: np.random.Generator) -> Any:
    return on_leaves(lambda leaf: leaf if is_text(leaf) else leaf + rng.integers(5), x)


def with_draws(x: Any, rng: np.random.Generator) -> Any:
    return {"x": x, "r": rng.random(), "n": rng.integers(100), "v": rng.standard_normal(2)}


def plus_index(i: int, x: Any) -> Any:
    return on_leaves(lambda leaf: leaf if is_text(leaf) else leaf + i % 97, x)


def with_index(i: int, x: Any) -> Any:
    return (i, x)


def as_tokens(x: Any) -> Any:
    weight = weigh(x)
    return {"t": np.arange(weight % 9 + 1, dtype=np.int32) + weight % 50, "n": np.full(weight % 4, weight / 7)}


TOKEN_ROWS = {"t": 11, "n": 7}
"""Rows that `as_tokens` is packed into."""


def two_of_three(x: Any) -> bool:
    return weigh(x) % 3 != 1


def mostly_even(x: Any) -> bool:
    return weigh(x) % 8 in (0, 1, 2, 4, 6)


def everything(x: Any) -> bool:
    return True


def several(x: Any) -> list[Any]:
    return [x] * (weigh(x) % 4)


def numbered(x: Any) -> tuple[Any, ...]:
    return tuple((part, x) for part in range(1 + weigh(x) % 3))


MAX_FAN_OUT = 3


class Trouble(Exception):
    """An error of the user's own class."""


@dataclasses.dataclass(frozen=True)
class Troubled:
    """A user's function that raises for some elements, or returns None for them: which ones, their values decide."""

    function: Any
    salt: int
    how: str
    """"raises", "stops" (raises StopIteration), "misses" (single ones), or "misses stretches"."""

    def __call__(self, *args: Any) -> Any:
        element = args[1] if self.function in (with_index, plus_index) else args[0]
        weight = weigh(element)
        number = (7 * weight + self.salt) % (13 if self.salt % 2 else 41)
        if self.how == "misses stretches":
            return None if weight // (8 * (1 + self.salt)) % 2 else self.function(*args)
        if number > 1:
            return self.function(*args)
        if self.how == "misses":
            return None
        if self.how == "stops" and number:
            raise StopIteration
        raise (ValueError, OSError, Trouble)[self.salt % 3](f"no {weight}")

    @property
    def __name__(self) -> str:  # as recipes print it
        return f"{self.function.__name__}, which {self.how} by {self.salt}"


@dataclasses.dataclass(frozen=True)
class TroubledBatch:
    """A `batch_fn` that stacks, and raises for some batches."""

    salt: int

    def __call__(self, rows: Any) -> Any:
        if (weigh(rows) + self.salt) % 7 == 0:
            raise Trouble(f"no batch {weigh(rows)}")
        return np.array([weigh(row) for row in rows])


class OwnStream(bushel.IterDataset):
    """A stream of a class of the user's own: numbers, at some of which it fails."""

    def __init__(self, length: int, salt: int):
        super().__init__()
        self.length, self.salt = length, salt

    def __iter__(self) -> Any:
        return OwnIterator(self.length, self.salt)


class OwnIterator(bushel.DatasetIterator):
    def __init__(self, length: int, salt: int):
        super().__init__()
        self.length, self.salt, self.at = length, salt, 0

    def __next__(self) -> int:
        if self.at == self.length:
            raise StopIteration
        if self.salt and self.at % 16 == 2 * self.salt + 1:
            raise Trouble(f"no number {self.at}")
        self.at += 1
        return self.at - 1

    def get_state(self) -> dict[str, int]:
        return {"at": self.at}

    def set_state(self, state: dict[str, int], *, check: bool = True) -> None:
        self.at = state["at"]


class OwnPairs(bushel.IterDataset):
    """A stream of a class of the user's own that draws from another: each element with its number."""

    def __iter__(self) -> Any:
        return OwnPairsIterator(iter(self._parent))


class OwnPairsIterator(bushel.DatasetIterator):
    def __init__(self, parent: Any):
        super().__init__(parent)
        self.number = 0

    def __next__(self) -> Any:
        element = next(self._parent)
        self.number += 1
        return self.number - 1, element

    def get_state(self) -> dict[str, Any]:
        return {"parent": self._parent.get_state(), "number": self.number}

    def set_state(self, state: dict[str, Any], *, check: bool = True) -> None:
        self._parent.set_state(state["parent"])
        self.number = state["number"]


# A plain function keeps the structure and the shapes of an element, so that elements of several branches still stack.
PLAIN = {"map": [double, one_more], "random_map": [scaled, moved], "map_with_index": [plus_index]}
SHAPING = {"map": [with_weight, paired], "random_map": [with_draws], "map_with_index": [with_index]}
FILTERS = [two_of_three, mostly_even, everything]
SPLITS = [several, numbered]

TRANSFORM_CLASSES = {
    "map": "Map",
    "random_map": "RandomMap",
    "map_with_index": "MapWithIndex",
    "filter": "Filter",
}


def as_class(kind: str, function: Any, lib: ModuleType) -> Any:
    """`function` as an instance of the library's transform class for `kind`."""
    if kind == "flat_map":
        base, members = lib.experimental.FlatMapTransform, {"max_fan_out": MAX_FAN_OUT}
    else:
        base, members = getattr(lib.transforms, TRANSFORM_CLASSES[kind]), {}
    members[kind] = lambda self, *args: function(*args)
    return type(function.__name__, (base,), members)()


# ---------------------------------------------------------------------------------------------------------------------
# Sources


class Records:
    """Records of arrays one by one: what Bushel's ArrayDataSource is, without any way to read many at once."""

    def __init__(self, arrays: Any):
        self._arrays = arrays

    def __len__(self) -> int:
        arrays = self._arrays
        while isinstance(arrays, (dict, tuple)):
            arrays = next(iter(arrays.values())) if isinstance(arrays, dict) else arrays[0]
        return len(arrays)

    def __getitem__(self, index: int) -> Any:
        return on_leaves(lambda array: np.copy(array[index])[()], self._arrays)


def arrays_of(length: int, layout: str) -> Any:
    """Arrays with `length` records, in one of several layouts."""
    n = np.arange(length)
    image = (n[:, None, None] * 5 + np.arange(6).reshape(2, 3)).astype(np.int32)
    match layout:
        case "array":
            return n * 3
        case "tuple":
            return (image, n / np.float32(7))
        case "dict":
            return {"x": image, "y": n % 10}
        case _:
            return {"a": ((n % 100).astype(np.int16), {"b": n % 2 == 0}), "c": n[:, None] / 3, "d": image[:, 0]}


LAYOUTS = ["array", "tuple", "dict", "nested"]


def source_of(kind: str, length: int) -> list[Any]:
    """A list of `length` records."""
    match kind:
        case "ints":
            return [(7 * i * i + 3) % 101 for i in range(length)]
        case "strings":
            return [chr(97 + i % 26) * (1 + i % 4) for i in range(length)]
        case "floats":
            return [i / 7 for i in range(length)]
        case _:
            return [{"x": np.arange(3, dtype=np.float32) * i, "n": i, "b": i % 2 == 0} for i in range(length)]


# ---------------------------------------------------------------------------------------------------------------------
# Recipes


@dataclasses.dataclass(frozen=True)
class Facts:
    """What one has to know of a pipeline to add a valid step, and to compare it with Grain's."""

    length: int
    seeded: bool = False
    sparse: bool = False
    """A filter or flat_map is somewhere above: Grain refuses `MapDataset.batch`."""
    nones: bool = False
    """An element, or a part of one, may be None where a batch would see it."""
    unlike: bool = False
    """Elements come from branches that have nothing in common."""
    random: bool = False
    """A random_map of a MapDataset is somewhere above: Grain refuses indices below 0 and past 2**64."""
    rounded: bool = False
    """Batches of an endless data set: Grain computes their number in floating point."""
    one_epoch: bool = False
    """Cut from an endless data set whose later epochs Grain does not know, for one of the two reasons above."""
    stream: bool = False

    @property
    def endless(self) -> bool:
        return self.length > 1 << 50

    @property
    def long(self) -> bool:
        """Too long to be read through, should a filter drop everything."""
        return self.length > 200_000


@dataclasses.dataclass(frozen=True)
class Leaf:
    """Where a pipeline starts: a range or a source."""

    kind: str
    args: tuple[Any, ...]

    def __repr__(self) -> str:
        return f"{self.kind}({', '.join(map(repr, self.args))})"


@dataclasses.dataclass(frozen=True)
class Join:
    """Several pipelines that become one."""

    how: str
    parts: tuple[Recipe, ...]
    args: dict[str, Any]

    def __repr__(self) -> str:
        return f"{self.how}([{', '.join(map(repr, self.parts))}]{shown(self.args, first=False)})"


@dataclasses.dataclass(frozen=True)
class Step:
    """One call of a method."""

    name: str
    args: dict[str, Any]

    def __repr__(self) -> str:
        return f".{self.name}({shown(self.args)})"


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A pipeline: a start, and steps from there."""

    start: Leaf | Join
    steps: tuple[Step, ...]
    facts: Facts = dataclasses.field(compare=False)

    def __repr__(self) -> str:
        return f"{self.start!r}{''.join(map(repr, self.steps))}"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))  # as Hypothesis shows a failing one

    def then(self, name: str, facts: dict[str, Any], **args: Any) -> Recipe:
        return Recipe(self.start, (*self.steps, Step(name, args)), dataclasses.replace(self.facts, **facts))

    @property
    def operations(self) -> set[str]:
        """Names of all operations, in all branches."""
        above = set()
        if isinstance(self.start, Join):
            above = {self.start.how}.union(*(part.operations for part in self.start.parts))
        return above | {step.name for step in self.steps}


def shown(args: dict[str, Any], first: bool = True) -> str:
    text = ", ".join(f"{name}={getattr(value, '__name__', value)!s}" for name, value in args.items())
    return text if first or not text else f", {text}"


# ---------------------------------------------------------------------------------------------------------------------
# Building


def build(recipe: Recipe, lib: ModuleType, *, threads: int = 0, buffer: int = 0) -> Any:
    """The pipeline of a recipe, made of `lib`: `bushel` or `grain`."""
    built = _start(recipe.start, lib, threads, buffer)
    for step in recipe.steps:
        built = _step(built, step, lib, threads, buffer)
    return built


def as_stream(recipe: Recipe, lib: ModuleType) -> Any:
    """The pipeline of a recipe as a stream that reads in the caller's own thread."""
    built = build(recipe, lib)
    return built if recipe.facts.stream else built.to_iter_dataset(lib.ReadOptions(0, 0))


def _start(start: Leaf | Join, lib: ModuleType, threads: int, buffer: int) -> Any:
    if isinstance(start, Leaf):
        if start.kind == "range":
            return lib.MapDataset.range(*start.args)
        if start.kind == "own":
            return OwnStream(*start.args)
        if start.kind == "arrays":
            arrays = arrays_of(*start.args)
            return lib.MapDataset.source(lib.sources.ArrayDataSource(arrays) if lib is bushel else Records(arrays))
        return lib.MapDataset.source(source_of(start.kind, *start.args))
    parts = [build(part, lib, threads=threads, buffer=buffer) for part in start.parts]
    match start.how:
        case "mix":
            return lib.MapDataset.mix(parts, **start.args)
        case "concatenate":
            return lib.MapDataset.concatenate(parts)
        case "select_from_datasets":
            lengths = tuple(min(part.facts.length, 1 << 20) for part in start.parts)
            return lib.MapDataset.select_from_datasets(parts, selection(lib, start.args["table"], lengths))
        case "zip":
            return lib.experimental.ZipMapDataset(parts)
        case "mix_streams":
            return lib.IterDataset.mix(parts, **start.args)
        case "mix_streams_by_key":
            keys, weights = start.args["keys"], start.args["weights"]
            by_key = None if weights is None else dict(zip(keys, weights, strict=True))
            return lib.IterDataset.mix(dict(zip(keys, parts, strict=True)), by_key)
        case "zip_streams":
            return lib.experimental.ZipIterDataset(parts, **start.args)
        case "interleave":
            return lib.experimental.InterleaveIterDataset(parts, **start.args)
    raise AssertionError(start.how)


def _step(built: Any, step: Step, lib: ModuleType, threads: int, buffer: int) -> Any:
    args = dict(step.args)
    match step.name:
        case "slice":
            return built[args["by"]]
        case "to_iter_dataset":
            return built.to_iter_dataset(lib.ReadOptions(threads, buffer), **args)
        case "flat_map":
            transform = as_class("flat_map", args["function"], lib)
            if isinstance(built, lib.MapDataset) and not args["apply"]:
                return lib.experimental.FlatMapMapDataset(built, transform)
            return built.apply(transform)
        case "limit":
            return lib.experimental.LimitIterDataset(built, **args)
        case "repeat" if isinstance(built, lib.IterDataset):
            return lib.experimental.RepeatIterDataset(built, **args)
        case "rebatch":
            return lib.experimental.RebatchIterDataset(built, **args)
        case "window_shuffle":
            kind = "WindowShuffleMapDataset" if isinstance(built, lib.MapDataset) else "WindowShuffleIterDataset"
            return getattr(lib.experimental, kind)(built, **args)
        case "concat_split":
            return lib.experimental.ConcatThenSplitIterDataset(built.map(as_tokens), length_struct=TOKEN_ROWS)
        case "cache":
            return built.cache(tempfile.mkdtemp() if args["files"] else None)
        case "pulled":
            return lib.experimental.ThreadPrefetchIterDataset(built, **args)
        case "own":
            return OwnPairs(built)
        case "pack":
            packer = getattr(lib.experimental, args.pop("packer"))
            return packer(built.map(as_tokens), length_struct=TOKEN_ROWS, **args)
        case "batch":
            if args.pop("pad", False):
                size = args["batch_size"]
                args["batch_fn"] = functools.partial(lib.experimental.batch_and_pad, batch_size=size)
            return built.apply(lib.transforms.Batch(**args)) if args.pop("apply", False) else built.batch(**args)
        case "map" | "random_map" | "map_with_index" | "filter":
            function = args.pop("function")
            if args.pop("apply", False):
                return built.apply([as_class(step.name, function, lib)])
            return getattr(built, step.name)(function, **args)
    return getattr(built, step.name)(**args)


def selection(lib: ModuleType, table: tuple[tuple[int, int], ...], lengths: tuple[int, ...]) -> Any:
    """A selection map that follows `table`, epoch after epoch."""

    class Selection(lib.transforms.DatasetSelectionMap):
        def __init__(self) -> None:
            self.table, self.lengths = table, lengths

        def __len__(self) -> int:
            return len(self.table)

        def __getitem__(self, index: int) -> tuple[int, int]:
            epoch, place = divmod(index, len(self.table))
            which, position = self.table[place]
            return which, position + epoch * self.lengths[which]

    return Selection()

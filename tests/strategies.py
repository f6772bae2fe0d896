"""Random pipelines for Hypothesis: described as data, built with Bushel or with the real Grain.

A `Recipe` prints like the code that would build it. `build(recipe, lib)` builds it, `lib` being either module.
What the two libraries do differently on purpose is left out here, each under a name that starts with `WITHOUT_`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import sys
from types import ModuleType
from typing import Any

import bushel
import numpy as np
from hypothesis import strategies as st

ENDLESS = sys.maxsize
HUGE = 1 << 50  # lengths past this come from a repeat without end

# ---------------------------------------------------------------------------------------------------------------------
# Where the two libraries differ. Each name guards the place in a strategy where the difference would be drawn;
# tests/test_equal_to_grain.py has a test of each, by itself.

# Grain's cipher is one bit short at lengths of 2**k + 1 (even k >= 16): there its shuffle is no permutation.
WITHOUT_SHUFFLE_ONE_PAST_A_POWER_OF_TWO = True
# Grain stacks None into an array of objects; we raise. So no batch where a function may have returned None.
WITHOUT_NONE_IN_A_BATCH = True
# Grain divides by zero at ds[i] of an empty data set; we raise IndexError. Tests ask `empty` before they index.
WITHOUT_ACCESS_TO_EMPTY = True
# Grain computes ceil(length / batch_size) in floating point: beside the truth, and beyond sys.maxsize for
# batches of one, when the length is that of an endless data set.
WITHOUT_LENGTH_OF_ENDLESS_BATCHES = True
# Grain puts None (of `allow_nones`) before the function of a stream's filter or flat_map; we drop or end there.
WITHOUT_FILTER_OF_NONE = True
# At the end, a batch of batches asks its stream once more than Grain does, and a flat_map tells that in its state.
WITHOUT_BATCHES_OF_BATCHES_AFTER_A_STREAMS_FLAT_MAP = True
# Grain's batches are rebuilt by JAX, which sorts the keys of dicts; ours keep their order. Functions here sort.
WITHOUT_ORDER_OF_KEYS = True
# Indices past 2**63: a shuffle of an endless data set asks for elements near 2**62, a batch or slice above it for
# more; and the second epoch of a slice of an endless data set lies behind its end.
WITHOUT_SHUFFLE_OF_ENDLESS = True
WITHOUT_LATER_EPOCHS_OF_A_SLICE_OF_ENDLESS = True


def grain_shuffles_rightly(length: int) -> bool:
    """Whether Grain's shuffle of so many elements is a permutation."""
    k = (length - 1).bit_length() - 1
    return not (k >= 16 and k % 2 == 0 and length == 2**k + 1)


# ---------------------------------------------------------------------------------------------------------------------
# Numbers


def lengths(most: int = 300) -> st.SearchStrategy[int]:
    """Lengths of data sets: one, a few, around powers of two, and now and then around 2**16 where the cipher grows."""
    near = [n for k in range(1, most.bit_length() + 1) for n in (2**k - 1, 2**k, 2**k + 1) if n <= most]
    usual = st.one_of(st.just(1), st.integers(2, 12), st.sampled_from(near), st.integers(1, most))
    return st.integers(0, 39).flatmap(lambda die: st.integers(65_535, 65_538) if die == 39 else usual)


def near_powers_of_two(low: int = 1, high: int = 20) -> st.SearchStrategy[int]:
    """2**k - 1, 2**k and 2**k + 1 for k in [low, high]."""
    return st.builds(lambda k, d: (1 << k) + d, st.integers(low, high), st.integers(-1, 1))


def seeds() -> st.SearchStrategy[int]:
    """Seeds of a shuffle: 32 bits, small ones and the last ones often."""
    return st.one_of(st.integers(0, 50), st.integers(0, 2**32 - 1), st.integers(2**32 - 3, 2**32 - 1))


def long_seeds() -> st.SearchStrategy[int]:
    """Seeds of `ds.seed` and of a random map: any integer that is not negative."""
    return st.one_of(seeds(), st.integers(0, 2**80))


# ---------------------------------------------------------------------------------------------------------------------
# Functions of users. They take any element that a recipe can produce.


def on_leaves(function: Any, x: Any) -> Any:
    """`x` with `function` of each leaf; containers and None stay."""
    if isinstance(x, dict):
        return {key: on_leaves(function, x[key]) for key in (sorted(x) if WITHOUT_ORDER_OF_KEYS else x)}
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
    """What a strategy has to know of a pipeline to add a valid step."""

    length: int
    seeded: bool = False
    sparse: bool = False
    """A filter or flat_map is somewhere above: Grain refuses `MapDataset.batch`."""
    nones: bool = False
    """An element, or a part of one, may be None where a batch would see it."""
    random: bool = False
    """A random_map of a MapDataset is somewhere above: Grain refuses negative indices."""
    first_epoch_only: bool = False
    """A slice of an endless data set: see WITHOUT_LATER_EPOCHS_OF_A_SLICE_OF_ENDLESS."""
    stream: bool = False

    @property
    def endless(self) -> bool:
        return self.length > HUGE


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

    def then(self, name: str, facts: dict[str, Any], **args: Any) -> Recipe:
        return Recipe(self.start, (*self.steps, Step(name, args)), dataclasses.replace(self.facts, **facts))

    @property
    def joins_or_steps(self) -> set[str]:
        """Names of all operations, in all branches."""
        above = set()
        if isinstance(self.start, Join):
            above = {self.start.how}.union(*(part.joins_or_steps for part in self.start.parts))
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
        if start.kind == "arrays":
            arrays = arrays_of(*start.args)
            return lib.MapDataset.source(
                lib.sources.ArrayDataSource(arrays) if lib is bushel else Records(arrays)
            )
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
        case "batch":
            if args.pop("pad", False):
                size = args["batch_size"]
                args["batch_fn"] = functools.partial(lib.experimental.batch_and_pad, batch_size=size)
            return built.batch(**args)
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


# ---------------------------------------------------------------------------------------------------------------------
# Strategies of map-style pipelines


@st.composite
def leaves(draw: st.DrawFn, kind: Any = None, most: int = 300, exactly: int | None = None) -> Recipe:
    """A range or a source."""
    kind = kind or draw(st.sampled_from(["range", "ints", "strings", "floats", "dicts", "arrays"]))
    if isinstance(kind, tuple):  # one layout of arrays
        length = exactly or draw(lengths(most))
        return Recipe(Leaf("arrays", (length, kind[1])), (), Facts(length))
    if kind == "range":
        length = exactly or draw(lengths(most))
        start, step = draw(st.integers(-50, 50)), draw(st.sampled_from([1, 1, 2, 7, -1, -3]))
        args = draw(st.sampled_from([(length,), (start, start + length), (start, start + length * step, step)]))
        return Recipe(Leaf("range", args), (), Facts(length))
    length = exactly or draw(st.integers(1, 12) | st.integers(1, min(most, 150)))
    if kind == "arrays":
        return Recipe(Leaf("arrays", (length, draw(st.sampled_from(LAYOUTS)))), (), Facts(length))
    return Recipe(Leaf(kind, (length,)), (), Facts(length))


@st.composite
def joins(draw: st.DrawFn, depth: int, kind: Any = None, plain: bool = False) -> Recipe:
    """A mixture, a concatenation, a selection or a zip of pipelines."""
    how = draw(st.sampled_from(["mix", "mix", "concatenate", "select_from_datasets", "zip"]))
    if plain and how == "zip":
        how = "concatenate"
    alike = how != "zip" and (plain or draw(st.integers(0, 6)) > 0)
    if alike and kind is None:
        kind = draw(st.sampled_from(["range", "ints", "strings", "dicts", *(("arrays", one) for one in LAYOUTS)]))
    count = draw(st.integers(2, 4))
    exactly = draw(st.integers(1, 60)) if how == "zip" else None
    parts = tuple(
        draw(map_recipes(depth=depth - 1, kind=kind, plain=alike, max_steps=2, exactly=exactly, within=how))
        for _ in range(count)
    )
    if how == "mix":
        parts = tuple(part for part in parts if part.facts.length) or (draw(leaves(kind)),)
    facts = [part.facts for part in parts]
    together = Facts(
        length=0,
        seeded=any(one.seeded for one in facts),
        sparse=any(one.sparse for one in facts),
        nones=any(one.nones or (how == "zip" and one.sparse) for one in facts),
        random=any(one.random for one in facts),
    )
    args: dict[str, Any] = {}
    match how:
        case "mix":
            weights = draw(st.none() | weights_of(len(parts)))
            args = {"weights": weights}
            length = mixed_length([one.length for one in facts], weights)
        case "concatenate":
            length = sum(one.length for one in facts)
        case "zip":
            length = facts[0].length
        case _:
            there = [number for number, one in enumerate(facts) if one.length]
            if not there:
                return draw(leaves(kind))
            picks = st.sampled_from(there).flatmap(
                lambda which: st.tuples(st.just(which), st.integers(0, min(facts[which].length, 1000) - 1))
            )
            table = tuple(draw(st.lists(picks, min_size=1, max_size=30)))
            args, length = {"table": table}, len(table)
    return Recipe(Join(how, parts, args), (), dataclasses.replace(together, length=length))


def weights_of(count: int) -> st.SearchStrategy[list[float]]:
    """Weights of a mixture."""
    one = st.one_of(st.integers(1, 9), st.floats(0.01, 1.0), st.sampled_from([0.7, 0.3, 1 / 3, 1e-3, 1000.0]))
    return st.lists(one, min_size=count, max_size=count)


def mixed_length(parts: list[int], weights: list[float] | None) -> int:
    """How long a mixture is, by Grain's rule."""
    integers = [1] * len(parts) if weights is None else [int(w * (100 / min(weights))) for w in weights]
    return min(
        ENDLESS,
        int(min(length / (weight / sum(integers)) for length, weight in zip(parts, integers, strict=True))),
    )


def slices(length: int) -> st.SearchStrategy[slice]:
    """Slices with all kinds of bounds and steps; of an endless data set, finite ones that start early."""
    if length > HUGE:
        return st.builds(slice, st.integers(0, 50), st.integers(0, 120), st.sampled_from([None, 1, 2, 5]))
    bound = st.none() | st.integers(-length - 3, length + 3)
    anything = st.builds(slice, bound, bound, st.sampled_from([None, 1, 2, 3, 7, -1, -2, -5]))
    shard = st.integers(2, 5).flatmap(lambda n: st.builds(slice, st.integers(0, n - 1), st.none(), st.just(n)))
    return st.one_of(shard, st.just(slice(None, None, -1)), anything)


@st.composite
def map_recipes(
    draw: st.DrawFn,
    depth: int = 2,
    kind: Any = None,
    plain: bool = False,
    max_steps: int = 6,
    exactly: int | None = None,
    within: str | None = None,
) -> Recipe:
    """A random MapDataset.

    Args:
      depth: how deep joins of pipelines may nest.
      kind: of the sources, where all should be of one.
      plain: no step changes the structure of elements, so that they stack with those of other branches.
      max_steps: after the start.
      exactly: the length to keep.
      within: the join that this is a part of; only parts of a mixture may be endless.
    """
    if depth > 0 and exactly is None and draw(st.integers(0, 3)) == 0:
        recipe = draw(joins(depth, kind, plain))
    else:
        recipe = draw(leaves(kind, exactly=exactly))
    for _ in range(draw(st.integers(0, max_steps))):
        steps = _map_steps(recipe.facts, keep_length=exactly is not None, within=within, plain=plain)
        recipe = draw(st.sampled_from(steps))(draw, recipe, plain)
    if recipe.facts.endless and (
        within not in (None, "mix") or (within is None and (recipe.facts.sparse or recipe.facts.nones))
    ):
        # A filter may drop everything: without an end that would never return.
        recipe = _slice_to(recipe, draw(st.integers(1, 60)))
    return recipe


def _map_steps(facts: Facts, *, keep_length: bool, within: str | None, plain: bool) -> list[Any]:
    steps = [_seed, _map, _map, _map_with_index, _random_map]
    right = grain_shuffles_rightly(facts.length) or not WITHOUT_SHUFFLE_ONE_PAST_A_POWER_OF_TWO
    if right and not (facts.endless and WITHOUT_SHUFFLE_OF_ENDLESS):
        steps += [_shuffle, _shuffle]
    if not plain:
        steps += [_filter, _none_for_thirds]
    if keep_length:
        return steps
    later_epochs = not facts.first_epoch_only or not WITHOUT_LATER_EPOCHS_OF_A_SLICE_OF_ENDLESS
    if not facts.endless or within is None:
        steps += [_slice, _slice]
    if not plain:
        steps.append(_flat_map)
    if 0 < facts.length < 1 << 20 and later_epochs:
        steps.append(_repeat_or_endless if within in (None, "mix") else _repeat)
    if not plain and not facts.sparse and not (facts.nones and WITHOUT_NONE_IN_A_BATCH):
        steps += [_batch, _batch]
    return steps


def _slice_to(recipe: Recipe, length: int) -> Recipe:
    return recipe.then("slice", {"length": length, "first_epoch_only": recipe.facts.endless}, by=slice(None, length))


def _seed(draw: st.DrawFn, recipe: Recipe, plain: bool) -> Recipe:
    return recipe.then("seed", {"seeded": True}, seed=draw(long_seeds()))


def _shuffle(draw: st.DrawFn, recipe: Recipe, plain: bool) -> Recipe:
    if recipe.facts.seeded and draw(st.booleans()):
        return recipe.then("shuffle", {})
    return recipe.then("shuffle", {}, seed=draw(seeds()))


def _slice(draw: st.DrawFn, recipe: Recipe, plain: bool) -> Recipe:
    by = draw(slices(recipe.facts.length))
    length = len(range(*by.indices(recipe.facts.length)))
    facts = {"length": length, "first_epoch_only": recipe.facts.first_epoch_only or recipe.facts.endless}
    return recipe.then("slice", facts, by=by)


def _repeat(draw: st.DrawFn, recipe: Recipe, plain: bool) -> Recipe:
    epochs = draw(st.integers(1, 4))
    facts = {"length": recipe.facts.length * epochs}
    return recipe.then("repeat", facts, num_epochs=epochs, reseed_each_epoch=draw(st.booleans()))


def _repeat_or_endless(draw: st.DrawFn, recipe: Recipe, plain: bool) -> Recipe:
    if draw(st.booleans()):
        return _repeat(draw, recipe, plain)
    return recipe.then("repeat", {"length": ENDLESS}, num_epochs=None, reseed_each_epoch=draw(st.booleans()))


def _function(draw: st.DrawFn, kind: str, plain: bool) -> Any:
    return draw(st.sampled_from(PLAIN[kind] if plain else PLAIN[kind] + SHAPING[kind]))


def _map(draw: st.DrawFn, recipe: Recipe, plain: bool) -> Recipe:
    return recipe.then("map", {}, function=_function(draw, "map", plain), apply=draw(st.booleans()))


def _none_for_thirds(draw: st.DrawFn, recipe: Recipe, plain: bool) -> Recipe:
    return recipe.then("map", {"nones": True}, function=none_for_thirds)


def _map_with_index(draw: st.DrawFn, recipe: Recipe, plain: bool) -> Recipe:
    function = _function(draw, "map_with_index", plain)
    return recipe.then("map_with_index", {}, function=function, apply=draw(st.booleans()))


def _random_map(draw: st.DrawFn, recipe: Recipe, plain: bool) -> Recipe:
    function = _function(draw, "random_map", plain)
    facts = {} if recipe.facts.stream else {"random": True}
    if recipe.facts.seeded and draw(st.booleans()):
        return recipe.then("random_map", facts, function=function, apply=draw(st.booleans()))
    return recipe.then("random_map", facts, function=function, seed=draw(long_seeds()))


def _filter(draw: st.DrawFn, recipe: Recipe, plain: bool) -> Recipe:
    function = draw(st.sampled_from(FILTERS))
    return recipe.then("filter", {"sparse": True}, function=function, apply=draw(st.booleans()))


def _flat_map(draw: st.DrawFn, recipe: Recipe, plain: bool) -> Recipe:
    length = min(ENDLESS, recipe.facts.length * MAX_FAN_OUT)
    function = several if plain else draw(st.sampled_from(SPLITS))
    return recipe.then(
        "flat_map", {"sparse": True, "length": length}, function=function, apply=draw(st.booleans())
    )


def _batch(draw: st.DrawFn, recipe: Recipe, plain: bool) -> Recipe:
    least = 2 if recipe.facts.endless and WITHOUT_LENGTH_OF_ENDLESS_BATCHES else 1
    size = draw(st.integers(least, 7))
    drop, pad = draw(st.booleans()), draw(st.integers(0, 3)) == 0
    length = recipe.facts.length // size if drop else -(-recipe.facts.length // size)
    return recipe.then("batch", {"length": length}, batch_size=size, drop_remainder=drop, pad=pad)


# ---------------------------------------------------------------------------------------------------------------------
# Strategies of streams. `sparse` says nothing there any more; `nones` says that None may come out of the stream.


@st.composite
def stream_recipes(draw: st.DrawFn, depth: int = 1, kind: Any = None, plain: bool = False) -> Recipe:
    """A random IterDataset: a MapDataset turned into a stream, or a mixture of streams, and steps after it."""
    if depth > 0 and draw(st.integers(0, 2)) == 0:
        alike = draw(st.integers(0, 6)) > 0
        if alike:
            kind = kind or draw(st.sampled_from(["range", "ints", "dicts", *(("arrays", one) for one in LAYOUTS)]))
        parts = draw(
            st.lists(stream_recipes(depth=depth - 1, kind=kind, plain=alike), min_size=1, max_size=3)
        )
        facts = Facts(
            length=max(part.facts.length for part in parts),
            seeded=any(part.facts.seeded for part in parts),
            nones=any(part.facts.nones for part in parts),
            stream=True,
        )
        weights = draw(st.none() | weights_of(len(parts)))
        if draw(st.booleans()):
            keys = draw(st.permutations(["a", "b", "c"]))[: len(parts)]
            start = Join("mix_streams_by_key", tuple(parts), {"keys": tuple(keys), "weights": weights})
        else:
            start = Join("mix_streams", tuple(parts), {"weights": weights})
        recipe = Recipe(start, (), facts)
    else:
        recipe = draw(map_recipes(depth=1, kind=kind, plain=plain, max_steps=4))
        allow_nones = draw(st.booleans())
        facts = {
            "stream": True,
            "sparse": False,
            # What a map dropped, the stream drops; only inside a tuple of a zip, None remains.
            "nones": "zip" in recipe.joins_or_steps or (allow_nones and (recipe.facts.sparse or recipe.facts.nones)),
        }
        recipe = recipe.then("to_iter_dataset", facts, allow_nones=allow_nones)
    for _ in range(draw(st.integers(0, 4))):
        recipe = draw(st.sampled_from(_stream_steps(recipe, plain)))(draw, recipe, plain)
    return recipe


def _stream_steps(recipe: Recipe, plain: bool) -> list[Any]:
    facts = recipe.facts
    steps = [_seed, _map, _map_with_index, _random_map]
    if not facts.endless:
        if not plain:
            steps.append(_none_for_thirds)
        if not (facts.nones and WITHOUT_FILTER_OF_NONE):
            steps += [_stream_filter, _stream_flat_map]
    again = {"batch", "flat_map"} <= recipe.joins_or_steps and WITHOUT_BATCHES_OF_BATCHES_AFTER_A_STREAMS_FLAT_MAP
    if not plain and not (facts.nones and WITHOUT_NONE_IN_A_BATCH) and not again:
        steps += [_batch, _batch]
    return steps


def _stream_filter(draw: st.DrawFn, recipe: Recipe, plain: bool) -> Recipe:
    return recipe.then("filter", {}, function=draw(st.sampled_from(FILTERS)), apply=draw(st.booleans()))


def _stream_flat_map(draw: st.DrawFn, recipe: Recipe, plain: bool) -> Recipe:
    return recipe.then(
        "flat_map", {}, function=several if plain else draw(st.sampled_from(SPLITS)), apply=True
    )


def recipes() -> st.SearchStrategy[Recipe]:
    """A random pipeline of either kind."""
    return st.one_of(map_recipes(), stream_recipes())

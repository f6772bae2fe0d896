"""Random numbers and random pipelines for Hypothesis. What a pipeline is, and how it is built: recipes.py.

Only valid pipelines are drawn. What the two libraries do differently on purpose is left out, under the names
`grain_shuffles_rightly`, `can_be_stacked`, `grain_counts_rightly`, `grain_reaches_far`,
`grain_knows_later_epochs`, `grain_windows_rightly` and `grain_repeats_rightly`; tests/test_equal_to_grain.py and the
tests of graph/ have tests of the differences themselves.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from hypothesis import strategies as st

from helpers.recipes import (
    ENDLESS,
    FILTERS,
    LAYOUTS,
    MAX_FAN_OUT,
    PLAIN,
    SHAPING,
    SPLITS,
    Facts,
    Join,
    Leaf,
    Recipe,
    Troubled,
    TroubledBatch,
    none_for_thirds,
    several,
)

# ---------------------------------------------------------------------------------------------------------------------
# Where the two libraries differ


def grain_shuffles_rightly(length: int) -> bool:
    """Grain's cipher is one bit short at lengths of 2**k + 1 (even k >= 16): there its shuffle is no permutation."""
    k = (length - 1).bit_length() - 1
    return not (k >= 16 and k % 2 == 0 and length == 2**k + 1)


def can_be_stacked(facts: Facts) -> bool:
    """Grain stacks None into an array of objects; we raise. So no batch where a function may have returned None.
    Nor of numbers with dicts, which give arrays of objects, too."""
    return not facts.nones and not facts.unlike


def grain_counts_rightly(facts: Facts) -> bool:
    """Grain computes ceil(length / batch_size) in floating point, which is beside the truth for endless data sets."""
    return not (facts.endless and facts.rounded)


def grain_reaches_far(facts: Facts) -> bool:
    """Grain's random_map refuses indices past 2**64, and its number of endless batches is not exact: so no shuffle of
    an endless data set below those."""
    return not (facts.endless and (facts.random or facts.rounded))


def grain_knows_later_epochs(facts: Facts) -> bool:
    """The same for slices of an endless data set: their second epoch lies past 2**63."""
    return not facts.one_epoch


def grain_windows_rightly(facts: Facts, window: int) -> bool:
    """Grain's window shuffle reaches past the end of an epoch, and its seeds end at 2**32."""
    return facts.length % window == 0 and not facts.endless


def grain_repeats_rightly(recipe: Recipe) -> bool:
    """In its second epoch, Grain's interleave says in its state that its streams have ended."""
    return "interleave" not in recipe.operations


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
# Strategies of map-style pipelines


@st.composite
def leaves(
    draw: st.DrawFn, kind: Any = None, most: int = 300, exactly: int | None = None, trouble: bool = False
) -> Recipe:
    """A range or a source."""
    if trouble and exactly is None:
        exactly = draw(st.sampled_from([1, 3, 8, 16, 20, 33, 40, 50, 64]))
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
def joins(draw: st.DrawFn, depth: int, kind: Any = None, plain: bool = False, trouble: bool = False) -> Recipe:
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
        draw(
            map_recipes(
                depth=depth - 1, kind=kind, plain=alike, max_steps=2, exactly=exactly, within=how, trouble=trouble
            )
        )
        for _ in range(count)
    )
    if how == "mix":
        parts = tuple(part for part in parts if part.facts.length) or (draw(leaves(kind, trouble=trouble)),)
    facts = [part.facts for part in parts]
    together = Facts(
        length=0,
        seeded=any(one.seeded for one in facts),
        sparse=any(one.sparse for one in facts),
        nones=any(one.nones or (how == "zip" and one.sparse) for one in facts),
        unlike=any(one.unlike for one in facts) or not (alike or how == "zip"),
        random=any(one.random for one in facts),
        rounded=any(one.rounded for one in facts),
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
                return draw(leaves(kind, trouble=trouble))
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
    if Facts(length).endless:
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
    trouble: bool = False,
) -> Recipe:
    """A random MapDataset.

    Args:
      depth: how deep joins of pipelines may nest.
      kind: of the sources, where all should be of one.
      plain: no step changes the structure of elements, so that they stack with those of other branches.
      max_steps: after the start.
      exactly: the length to keep.
      within: the join that this is a part of; only parts of a mixture may be endless.
      trouble: functions may raise, and return None; data sets are short, and never endless.
    """
    if depth > 0 and exactly is None and draw(st.integers(0, 3)) == 0:
        recipe = draw(joins(depth, kind, plain, trouble))
    else:
        recipe = draw(leaves(kind, exactly=exactly, trouble=trouble))
    for _ in range(draw(st.integers(0, max_steps))):
        steps = _map_steps(recipe.facts, exactly is not None, within, plain, trouble)
        recipe = draw(st.sampled_from(steps))(draw, recipe, plain)
    may_drop_all = recipe.facts.long and (recipe.facts.sparse or recipe.facts.nones)
    if (within is None and may_drop_all) or (within not in (None, "mix") and recipe.facts.endless):
        recipe = _cut(recipe, slice(None, draw(st.integers(1, 60))))
    return recipe


def _map_steps(facts: Facts, keep_length: bool, within: str | None, plain: bool, trouble: bool) -> list[Any]:
    steps = [_seed, _map, _map, _map_with_index, _random_map]
    if trouble:
        steps += 4 * [_troubled]
        within = within or "trouble"  # never endless
    if grain_shuffles_rightly(facts.length) and grain_reaches_far(facts):
        steps += [_shuffle, _shuffle]
        steps.append(_window_shuffle)
    if not plain:
        steps += [_filter, _none_for_thirds]
    if keep_length:
        return steps
    if not facts.endless or within is None:
        steps += [_slice, _slice]
    if not plain:
        steps.append(_flat_map)
    if 0 < facts.length < 1 << 20 and grain_knows_later_epochs(facts):
        steps.append(_repeat_or_endless if within in (None, "mix") else _repeat)
    if not plain and not facts.sparse and can_be_stacked(facts):
        steps += [_batch, _batch]
    return steps


def _cut(recipe: Recipe, by: slice) -> Recipe:
    facts = recipe.facts
    one_epoch = facts.one_epoch or not grain_reaches_far(facts)
    length = len(range(*by.indices(facts.length)))
    return recipe.then("slice", {"length": length, "one_epoch": one_epoch, "rounded": False}, by=by)


def _seed(draw: st.DrawFn, recipe: Recipe, plain: bool) -> Recipe:
    return recipe.then("seed", {"seeded": True}, seed=draw(long_seeds()))


def _shuffle(draw: st.DrawFn, recipe: Recipe, plain: bool) -> Recipe:
    if recipe.facts.seeded and draw(st.booleans()):
        return recipe.then("shuffle", {})
    return recipe.then("shuffle", {}, seed=draw(seeds()))


def _window_shuffle(draw: st.DrawFn, recipe: Recipe, plain: bool) -> Recipe:
    window, seed = draw(st.sampled_from([4, 10, 25, 1000])), draw(st.integers(0, 1 << 31))
    if recipe.facts.stream:
        return recipe.then("window_shuffle", {}, window_size=window, seed=seed)
    if not grain_windows_rightly(recipe.facts, window):
        return recipe
    # Its negative indices, as those of a random map, are refused by Grain.
    return recipe.then("window_shuffle", {"random": True}, window_size=window, seed=seed)


def _slice(draw: st.DrawFn, recipe: Recipe, plain: bool) -> Recipe:
    return _cut(recipe, draw(slices(recipe.facts.length)))


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
    return recipe.then("flat_map", {"sparse": True, "length": length}, function=function, apply=draw(st.booleans()))


def _batch(draw: st.DrawFn, recipe: Recipe, plain: bool) -> Recipe:
    endless = recipe.facts.endless
    size = draw(st.integers(2 if endless else 1, 7))  # by one, Grain's length would be past sys.maxsize
    drop, pad, apply = draw(st.booleans()), draw(st.integers(0, 3)) == 0, draw(st.booleans())
    length = recipe.facts.length // size if drop else -(-recipe.facts.length // size)
    facts = {"length": length, "rounded": recipe.facts.rounded or endless}
    return recipe.then("batch", facts, batch_size=size, drop_remainder=drop, pad=pad, apply=apply)


# ---------------------------------------------------------------------------------------------------------------------
# Strategies of streams. `sparse` says nothing there any more; `nones` says that None may come out of the stream.


@st.composite
def stream_joins(draw: st.DrawFn, depth: int, kind: Any = None, trouble: bool = False) -> Recipe:
    """A mixture, an interleave or a zip of streams."""
    how = draw(st.sampled_from(["mix_streams", "mix_streams_by_key", "interleave", "zip_streams"]))
    alike = draw(st.integers(0, 6)) > 0
    if alike:
        kind = kind or draw(st.sampled_from(["range", "ints", "dicts", *(("arrays", one) for one in LAYOUTS)]))
    count = draw(st.integers(1, 3))
    parts = [draw(stream_recipes(depth - 1, kind, alike, trouble)) for _ in range(count)]
    facts = Facts(
        length=max(part.facts.length for part in parts) * count,
        # Grain's interleave does not look at the seeds of its parts.
        seeded=how != "interleave" and any(part.facts.seeded for part in parts),
        nones=any(part.facts.nones for part in parts),
        unlike=(not alike and how != "zip_streams") or any(part.facts.unlike for part in parts),
        stream=True,
    )
    args: dict[str, Any]
    match how:
        case "interleave":
            args = {"cycle_length": draw(st.integers(1, 4))}
        case "zip_streams":
            args = {"strict": draw(st.booleans())}
        case _:
            args = {"weights": draw(st.none() | weights_of(count))}
    if how == "mix_streams_by_key":
        args["keys"] = tuple(draw(st.permutations(["a", "b", "c"]))[:count])
    return Recipe(Join(how, tuple(parts), args), (), facts)


@st.composite
def stream_recipes(
    draw: st.DrawFn, depth: int = 1, kind: Any = None, plain: bool = False, trouble: bool = False
) -> Recipe:
    """A random IterDataset: a MapDataset turned into a stream, or several streams joined, and steps after it."""
    if depth > 0 and draw(st.integers(0, 2)) == 0:
        recipe = draw(stream_joins(depth, kind, trouble))
    elif trouble and draw(st.integers(0, 5)) == 0:
        length = draw(st.sampled_from([0, 4, 17, 30, 40]))
        salt = draw(st.sampled_from([0, 0, 0, 3, 6]))
        recipe = Recipe(Leaf("own", (length, salt)), (), Facts(length, stream=True))
    else:
        recipe = draw(map_recipes(depth=1, kind=kind, plain=plain, max_steps=4, trouble=trouble))
        allow_nones = draw(st.booleans())
        facts = {
            "stream": True,
            "sparse": False,
            # What a map dropped, the stream drops; only inside a tuple of a zip, None remains.
            "nones": "zip" in recipe.operations or (allow_nones and (recipe.facts.sparse or recipe.facts.nones)),
        }
        recipe = recipe.then("to_iter_dataset", facts, allow_nones=allow_nones)
    for _ in range(draw(st.sampled_from([1, 2, 3, 4, 5]) if trouble and not plain else st.integers(0, 4))):
        recipe = draw(st.sampled_from(_stream_steps(recipe, plain, trouble)))(draw, recipe, plain)
    return recipe


def _stream_steps(recipe: Recipe, plain: bool, trouble: bool) -> list[Any]:
    facts = recipe.facts
    steps = [_seed, _map, _map_with_index, _random_map, _limit]
    if trouble:
        steps += [*8 * [_troubled], _cache, _pulled, _own]
        if not plain:
            steps += [_batch, _troubled_batch, _concat_split]
            steps += 4 * [_batch] if can_be_stacked(facts) else []
    if not facts.long:
        steps += [_stream_filter, _stream_flat_map, _window_shuffle]
        if grain_repeats_rightly(recipe):
            steps.append(_stream_repeat)
        if not plain:
            steps.append(_none_for_thirds)
    if not plain and can_be_stacked(facts):
        steps += [_batch, _batch, _rebatch]
        if not facts.long:
            steps.append(_pack)
    return steps


def _limit(draw: st.DrawFn, recipe: Recipe, plain: bool) -> Recipe:
    count = draw(st.integers(1, 50))
    return recipe.then("limit", {"length": min(count, recipe.facts.length)}, count=count)


def _stream_repeat(draw: st.DrawFn, recipe: Recipe, plain: bool) -> Recipe:
    epochs = draw(st.integers(1, 3))
    return recipe.then("repeat", {"length": recipe.facts.length * epochs}, num_epochs=epochs)


def _rebatch(draw: st.DrawFn, recipe: Recipe, plain: bool) -> Recipe:
    # The remainder is dropped: Grain's, restored after the last batch, gives an empty one besides.
    return _batch(draw, recipe, plain).then("rebatch", {}, batch_size=draw(st.integers(1, 7)), drop_remainder=True)


def _pack(draw: st.DrawFn, recipe: Recipe, plain: bool) -> Recipe:
    packer = draw(st.sampled_from(["FirstFitPackIterDataset", "BestFitPackIterDataset"]))
    args = {"num_packing_bins": draw(st.integers(1, 4)), "seed": draw(st.integers(0, 99))}
    return recipe.then("pack", {}, packer=packer, **args, shuffle_bins=draw(st.booleans()))


def _stream_filter(draw: st.DrawFn, recipe: Recipe, plain: bool) -> Recipe:
    return recipe.then("filter", {}, function=draw(st.sampled_from(FILTERS)), apply=draw(st.booleans()))


def _stream_flat_map(draw: st.DrawFn, recipe: Recipe, plain: bool) -> Recipe:
    return recipe.then("flat_map", {}, function=several if plain else draw(st.sampled_from(SPLITS)), apply=True)


def recipes() -> st.SearchStrategy[Recipe]:
    """A random pipeline of either kind."""
    return st.one_of(map_recipes(), stream_recipes())


# ---------------------------------------------------------------------------------------------------------------------
# Pipelines in trouble, for Bushel alone: functions that raise or return None, caches, datasets of the user's own


def troubled_recipes() -> st.SearchStrategy[Recipe]:
    """A random short pipeline of either kind whose functions may fail."""
    streams = stream_recipes(depth=2, trouble=True)
    return st.one_of(map_recipes(trouble=True), streams, streams, streams)


def _troubled(draw: st.DrawFn, recipe: Recipe, plain: bool) -> Recipe:
    kind = draw(st.sampled_from(["map", "map", "map_with_index", "random_map", "filter", "flat_map"]))
    how = draw(st.sampled_from([*6 * ["raises"], "stops", "misses", "misses stretches"]))
    salt = draw(st.sampled_from(range(24)))
    if kind == "filter":
        function = Troubled(draw(st.sampled_from(FILTERS)), salt, how)
        return recipe.then("filter", {"sparse": True}, function=function)
    if kind == "flat_map":
        if plain or not recipe.facts.stream:
            return recipe
        return recipe.then("flat_map", {}, function=Troubled(draw(st.sampled_from(SPLITS)), salt, how), apply=True)
    function = Troubled(_function(draw, kind, plain=True), salt, how)
    facts = {"nones": True} if "misses" in how else {}
    args = {"seed": draw(seeds())} if kind == "random_map" else {}
    return recipe.then(kind, facts, function=function, **args)


def _troubled_batch(draw: st.DrawFn, recipe: Recipe, plain: bool) -> Recipe:
    batch_fn = TroubledBatch(draw(st.integers(0, 6)))
    return recipe.then("batch", {"nones": False}, batch_size=draw(st.integers(1, 5)), batch_fn=batch_fn)


def _cache(draw: st.DrawFn, recipe: Recipe, plain: bool) -> Recipe:
    return recipe.then("cache", {}, files=draw(st.booleans()))


def _pulled(draw: st.DrawFn, recipe: Recipe, plain: bool) -> Recipe:
    return recipe.then("pulled", {}, prefetch_buffer_size=draw(st.integers(1, 4)))


def _own(draw: st.DrawFn, recipe: Recipe, plain: bool) -> Recipe:
    return recipe if plain else recipe.then("own", {})


def _concat_split(draw: st.DrawFn, recipe: Recipe, plain: bool) -> Recipe:
    return recipe.then("concat_split", {})

"""`take` of many indices is many times `ds[i]`; what reaches user code is private; vectorized is per element."""

from __future__ import annotations

import itertools
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from helpers import recipes
from helpers.case_counts import cases
from helpers.recipes import LAYOUTS, Recipe, arrays_of, build, on_leaves, source_of, weigh
from helpers.strategies import map_recipes
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import bushel
from bushel._src.base.blocks import Columns, rows_of
from bushel._src.base.errors import RowFailed
from bushel.sources import ArrayDataSource
from bushel.testing import same

laws = settings(
    max_examples=cases(70, 150),
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)


def outcome(act: Any) -> Any:
    try:
        return act()
    except Exception as error:
        return type(error)


def places_of(recipe: Recipe, numbers: list[int]) -> list[int]:
    """Indices of several epochs."""
    assume(recipe.facts.length)
    return numbers if recipe.facts.endless else [number % (recipe.facts.length * 3) for number in numbers]


numbers = st.lists(st.integers(0, 2000), min_size=1, max_size=40)


# ---------------------------------------------------------------------------------------------------------------------
# Blocks and single elements


@laws
@given(recipe=map_recipes(), numbers=numbers)
def test_a_block_is_its_single_elements(recipe, numbers):
    ds, places = build(recipe, bushel), places_of(recipe, numbers)
    one_by_one = [outcome(lambda i=i: ds[i]) for i in places]
    failed = [found for found in one_by_one if isinstance(found, type)]
    block = outcome(lambda: ds._get_block(places))
    if failed:
        assert block is failed[0]
    else:
        assert same(rows_of(block), one_by_one)


@laws
@given(recipe=map_recipes(), numbers=numbers, cuts=st.lists(st.integers(0, 40), max_size=4))
def test_a_plan_may_be_taken_in_any_parts(recipe, numbers, cuts):
    places = np.array(places_of(recipe, numbers))
    node = build(recipe, bushel)._node
    try:
        whole = rows_of(node.plan(places).take(0, len(places)))
    except RowFailed:
        assume(False)
    edges = sorted({0, len(places), *(cut for cut in cuts if cut < len(places))})
    plan = node.plan(places)
    parts = [plan.take(low, high) for low, high in itertools.pairwise(edges)]
    assert [len(part) for part in parts] == list(np.diff(edges))
    assert same([row for part in parts for row in rows_of(part)], whole)
    # In any order, too: threads take parts as they come.
    backwards = [rows_of(plan.take(low, high)) for low, high in list(itertools.pairwise(edges))[::-1]]
    assert same([row for part in backwards[::-1] for row in part], whole)


@laws
@given(recipe=map_recipes())
def test_iteration_is_access_in_order_without_the_missing(recipe):
    ds = build(recipe, bushel)
    places = range(min(recipe.facts.length, 50))
    single = [outcome(lambda i=i: ds[i]) for i in places]
    assume(not any(isinstance(found, type) for found in single))
    expected = [element for element in single if element is not None]
    it = iter(ds.to_iter_dataset(bushel.ReadOptions(0, 0)))
    assert same([next(it) for _ in expected], expected)


@laws
@given(recipe=map_recipes(), numbers=numbers)
def test_planning_reads_nothing(recipe, numbers):
    places = np.array(places_of(recipe, numbers))
    calls = []
    ds = build(recipe, bushel).map(calls.append)
    ds._node.plan(places)
    assert not calls


@pytest.mark.parametrize(
    ("shape", "place"),
    [
        (lambda ds: ds, 7),
        (lambda ds: bushel.MapDataset.mix([bushel.MapDataset.range(20), ds], [2, 1]), 23),
        (lambda ds: bushel.MapDataset.concatenate([bushel.MapDataset.range(5), ds]), 12),
        (lambda ds: bushel.experimental.ZipMapDataset([bushel.MapDataset.range(20), ds]), 7),
        (lambda ds: ds[::-1], 12),
        (lambda ds: ds.batch(3), 2),
        (lambda ds: ds.batch(3).map(recipes.double), 2),
        (lambda ds: ds.apply(recipes.as_class("flat_map", recipes.numbered, bushel)), 21),
    ],
)
def test_an_error_in_a_block_names_the_element_it_was(shape, place):
    def fails_at_7(x):
        if x == 7:
            raise OSError("seven")
        return x

    ds = shape(bushel.MapDataset.range(20).map(fails_at_7))
    for block in (range(len(ds)), [place], [0, 1, place]):
        with pytest.raises(OSError, match="seven") as caught:
            ds.get(list(block))
        assert f"bushel: this was element {place} of the dataset." in caught.value.__notes__
        assert any("record 7 of range(20)" in note for note in caught.value.__notes__)


def test_get_of_nothing_and_of_what_is_no_list_of_integers():
    ds = bushel.MapDataset.range(5)
    assert ds.get([]) == []
    assert ds.get(np.array([3, -1, 7])) == [3, 4, 2]
    assert ds.get(np.array([1, 2], np.uint8)) == [1, 2]
    for wrong in ([0.5], [[1, 2]], ["1"], 3, [True, False]):
        with pytest.raises(TypeError, match="get needs a list of integers"):
            ds.get(wrong)


def test_an_empty_data_set_has_no_elements():
    for ds in (bushel.MapDataset.range(0), bushel.MapDataset.range(5)[3:3], bushel.MapDataset.source([])):
        assert list(ds) == []
        with pytest.raises(IndexError, match="is empty"):
            ds[0]
        with pytest.raises(IndexError, match="is empty"):
            ds.get([0, 1])


# ---------------------------------------------------------------------------------------------------------------------
# Columns stay columns where nothing looks at single elements


@pytest.mark.parametrize("layout", LAYOUTS)
def test_arrays_stay_columns(layout):
    source = bushel.MapDataset.source(ArrayDataSource(arrays_of(50, layout)))
    mixed = bushel.MapDataset.mix([source.shuffle(seed=1), source], [2, 1])
    assert isinstance(source.shuffle(seed=1)[::3]._get_block(np.arange(10)), Columns)
    assert isinstance(mixed._get_block(np.arange(10)), Columns)
    assert isinstance(source.map(recipes.double)._get_block(np.arange(10)), list)


@pytest.mark.parametrize(
    "shape",
    [
        lambda ds: ds,
        lambda ds: ds.shuffle(seed=3).repeat(2)[::-3],
        lambda ds: bushel.MapDataset.mix([ds, ds.shuffle(seed=1)], [3, 1]),
        lambda ds: bushel.MapDataset.concatenate([ds, ds[:7]]),
        lambda ds: bushel.experimental.ZipMapDataset([ds, ds.shuffle(seed=2)]),
        lambda ds: ds.batch(4),
        lambda ds: ds.batch(4).batch(2, drop_remainder=True),
        lambda ds: ds.filter(lambda x: weigh(x) % 2 == 0),
        lambda ds: bushel.MapDataset.mix([ds, ds.filter(lambda x: weigh(x) % 2 == 0)]),
        lambda ds: bushel.MapDataset.mix([ds, ds.map(recipes.double)]),
        lambda ds: bushel.experimental.ZipMapDataset([ds, ds.filter(lambda x: weigh(x) % 2 == 0)]),
    ],
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_columns_give_what_rows_give(layout, shape):
    arrays = arrays_of(32, layout)
    columns = shape(bushel.MapDataset.source(ArrayDataSource(arrays)))
    rows = shape(bushel.MapDataset.source(recipes.Records(arrays)))
    assert len(columns) == len(rows)
    places = np.arange(len(rows) * 2) % (len(rows) * 2)
    assert same(columns.get(places), rows.get(places))
    assert same(list(columns), list(rows))
    assert same(
        list(columns.to_iter_dataset().filter(lambda x: weigh(x) % 3 > 0)),
        list(rows.to_iter_dataset().filter(lambda x: weigh(x) % 3 > 0)),
    )


def test_columns_of_different_kinds_mix_as_rows():
    one = bushel.MapDataset.source(ArrayDataSource(np.arange(3)))
    two = bushel.MapDataset.source(ArrayDataSource({"x": np.arange(3)}))
    for parts in ([one, two], [two, one]):
        mixed = bushel.MapDataset.mix(parts)
        assert same(mixed.get(range(6)), [mixed[i] for i in range(6)])


# ---------------------------------------------------------------------------------------------------------------------
# Vectorized functions


def plus_one_each(x: Any) -> Any:
    return on_leaves(lambda leaf: leaf if recipes.is_text(leaf) else leaf + 1, x)


def even_each(x: Any) -> Any:
    return x["y"] % 2 == 0


def even_all(tree: Any) -> Any:
    return tree["y"] % 2 == 0


@laws
@given(recipe=map_recipes(depth=0, plain=True, kind=("arrays", "dict")), numbers=numbers)
def test_a_vectorized_map_is_the_map_of_each(recipe, numbers):
    ds, places = build(recipe, bushel), places_of(recipe, numbers)
    each, at_once = ds.map(plus_one_each), ds.map(plus_one_each, vectorized=True)
    expected = [each[i] for i in places]
    assert same(at_once.get(places), expected)
    assert same([at_once[i] for i in places[:5]], expected[:5])


@laws
@given(recipe=map_recipes(depth=0, plain=True, kind=("arrays", "dict")), numbers=numbers)
def test_a_vectorized_filter_is_the_filter_of_each(recipe, numbers):
    ds, places = build(recipe, bushel), places_of(recipe, numbers)
    each, at_once = ds.filter(even_each), ds.filter(even_all, vectorized=True)
    assert same(at_once.get(places), [each[i] for i in places])
    # And what follows a filter: missing elements stay missing.
    each, at_once = each.map(plus_one_each), at_once.map(plus_one_each, vectorized=True)
    assert same(at_once.get(places), [each[i] for i in places])
    each, at_once = each.filter(even_each), at_once.filter(even_all, vectorized=True)
    assert same(at_once.get(places), [each[i] for i in places])


@pytest.mark.parametrize("kind", ["ints", "dicts", "floats"])
def test_a_vectorized_function_of_rows_sees_them_stacked(kind):
    ds = bushel.MapDataset.source(source_of(kind, 9))
    at_once = rows_of(ds.map(plus_one_each, vectorized=True).get(range(9)))
    stacked = plus_one_each(ds.batch(9)[0])
    assert same(at_once, rows_of(Columns(stacked, 9)))


@laws
@given(length=st.integers(1, 30), batch=st.integers(1, 7), drop=st.booleans())
def test_vectorized_in_a_stream_is_each_in_a_stream(length, batch, drop):
    def stream():
        return bushel.MapDataset.source(ArrayDataSource(arrays_of(length, "dict"))).to_iter_dataset()

    each = stream().filter(even_each).map(plus_one_each).batch(batch, drop_remainder=drop)
    at_once = (
        stream().filter(even_all, vectorized=True).map(plus_one_each, vectorized=True).batch(batch, drop_remainder=drop)
    )
    assert same(list(at_once), list(each))


def test_a_vectorized_function_is_not_called_for_nothing():
    def never(tree):
        raise AssertionError("called")

    ds = bushel.MapDataset.source(ArrayDataSource(np.arange(6))).filter(lambda x: x < 0, vectorized=True)
    assert rows_of(ds.map(never, vectorized=True).get(range(6))) == [None] * 6
    assert rows_of(ds.filter(never, vectorized=True).get(range(6))) == [None] * 6
    assert (
        rows_of(bushel.MapDataset.range(6).map(lambda x: None).map(never, vectorized=True).get(range(6))) == [None] * 6
    )


@pytest.mark.parametrize("wrong", [lambda x: x[:-1], lambda x: x.sum(), lambda x: {"a": x, "b": 3}])
def test_a_vectorized_function_must_keep_the_number_of_elements(wrong):
    ds = bushel.MapDataset.source(ArrayDataSource(np.arange(6)))
    with pytest.raises(
        ValueError, match="is vectorized: it got arrays with 4 elements and must return arrays with as many"
    ):
        ds.map(wrong, vectorized=True).get(range(4))
    with pytest.raises(ValueError, match="is vectorized"):
        ds.filter(wrong, vectorized=True).get(range(4))
    with pytest.raises(ValueError, match="is vectorized"):
        list(ds.to_iter_dataset().map(wrong, vectorized=True))


@pytest.mark.parametrize("wrong", [lambda x: np.stack([x, x], axis=1) > 2, lambda x: {"a": x > 2}, lambda x: (x, x)])
def test_a_vectorized_filter_gives_one_bool_per_element(wrong):
    ds = bushel.MapDataset.source(ArrayDataSource(np.arange(6)))
    with pytest.raises(ValueError, match="one bool per element"):
        ds.filter(wrong, vectorized=True).get(range(6))
    with pytest.raises(ValueError, match="one bool per element"):
        list(ds.to_iter_dataset().filter(wrong, vectorized=True))


# ---------------------------------------------------------------------------------------------------------------------
# What reaches user code is private and writable


def sources_in_memory() -> dict[str, Any]:
    read_only = np.arange(24.0).reshape(8, 3)
    read_only.setflags(write=False)
    return {
        "arrays": {"x": np.arange(24.0).reshape(8, 3), "y": np.arange(8)},
        "fortran order": {"x": np.asfortranarray(np.arange(24.0).reshape(8, 3)), "y": np.arange(16)[::2]},
        "read-only": {"x": read_only, "y": np.arange(8)},
        "large": {"x": np.arange(24.0).reshape(8, 3).repeat(500, axis=1), "y": np.arange(8)},
        "jax": {"x": jnp.arange(24.0).reshape(8, 3), "y": jnp.arange(8)},
    }


def change_in_place(x: Any) -> Any:
    x["x"] += 1
    return x


def change_all_in_place(tree: Any) -> Any:
    tree["x"] += 1
    return tree


PIPELINES = {
    "map": lambda ds: ds.map(change_in_place),
    "vectorized map": lambda ds: ds.map(change_all_in_place, vectorized=True),
    "two maps": lambda ds: ds.map(change_in_place).map(change_in_place),
    "map after a shuffle": lambda ds: ds.shuffle(seed=1).map(change_in_place),
    "map after a filter": lambda ds: ds.filter(lambda x: x["y"] % 2 == 0).map(change_in_place),
    "map after a vectorized filter": lambda ds: ds.filter(lambda x: x["y"] % 2 == 0, vectorized=True).map(
        change_in_place
    ),
    "random_map": lambda ds: ds.random_map(lambda x, rng: change_in_place(x), seed=1),
    "map_with_index": lambda ds: ds.map_with_index(lambda i, x: change_in_place(x)),
    "map of batches": lambda ds: ds.batch(3).map(change_in_place),
    "batch": lambda ds: ds.batch(3),
    "batch of one": lambda ds: ds.batch(1),
    "batch after a vectorized map": lambda ds: ds.map(change_all_in_place, vectorized=True).batch(3),
    "mix of itself": lambda ds: bushel.MapDataset.mix([ds, ds]).map(change_in_place),
    "concatenate with itself": lambda ds: bushel.MapDataset.concatenate([ds, ds]).map(change_in_place),
    "zip with itself": lambda ds: bushel.experimental.ZipMapDataset([ds, ds]).map(
        lambda pair: {"x": change_in_place(pair[0])["x"], "y": pair[1]["x"]}
    ),
    "one record many times": lambda ds: ds.slice([3] * 8).map(change_in_place),
    "repeat": lambda ds: ds.repeat(3).map(change_in_place),
    "batch_fn": lambda ds: ds.batch(3, batch_fn=lambda rows: max(map(change_in_place, rows), key=weigh)),
}
STREAMS = {
    "stream map": lambda ds: ds.to_iter_dataset().map(change_in_place),
    "stream vectorized map": lambda ds: ds.to_iter_dataset().map(change_all_in_place, vectorized=True),
    "stream random_map": lambda ds: ds.to_iter_dataset().random_map(lambda x, rng: change_in_place(x), seed=1),
    "stream batch": lambda ds: ds.to_iter_dataset().batch(3),
    "stream batch of one, changed": lambda ds: ds.to_iter_dataset().batch(1).map(change_in_place),
    "stream batch of many": lambda ds: ds.repeat(20).to_iter_dataset().batch(32),
    "stream batch after a filter": lambda ds: ds.to_iter_dataset().filter(lambda x: x["y"] % 2 == 0).batch(2),
    "stream mix of itself": lambda ds: bushel.IterDataset.mix([ds.to_iter_dataset().map(change_in_place)] * 2),
}


def spoil(x: Any) -> None:
    """Writes into every array of an element."""
    if isinstance(x, dict):
        for value in x.values():
            spoil(value)
    elif isinstance(x, np.ndarray):
        x[...] = -99


def snapshot(x: Any) -> Any:
    return on_leaves(lambda leaf: np.array(leaf), x)


@pytest.mark.parametrize("kind", sources_in_memory())
@pytest.mark.parametrize("name", PIPELINES | STREAMS)
def test_changes_reach_neither_the_source_nor_later_reads(name, kind):
    arrays = sources_in_memory()[kind]
    before = snapshot(arrays)
    source = bushel.MapDataset.source(ArrayDataSource(arrays))
    ds = (PIPELINES | STREAMS)[name](source)
    first = [snapshot(x) for x in ds]
    assert first
    again = []
    for element in ds:
        again.append(snapshot(element))
        spoil(element)  # the consumer changes what it got: that is nobody else's either
    assert same(again, first)
    assert same(snapshot(arrays), before)
    if isinstance(ds, bushel.MapDataset):
        places = [i for i in range(len(ds)) if ds[i] is not None] * 2  # each twice, in one block
        block = ds.get(places)
        for element, expected in zip(block, first * 2, strict=True):
            assert same(snapshot(element), expected)
            spoil(element)
        assert same(snapshot(ds.get(places)), first * 2)
        assert same(snapshot(arrays), before)


def test_records_of_a_flat_map_are_private_too():
    # Grain splits the element anew for each part, so parts never share memory.
    ds = bushel.MapDataset.source(ArrayDataSource(np.zeros((4, 3))))

    def plus_one(x):
        x += 1
        return x

    views = recipes.as_class("flat_map", lambda x: [x[:2], x[1:]], bushel)
    ds = bushel.experimental.FlatMapMapDataset(ds, views).map(plus_one)
    expected = [np.ones(2)] * 8
    found = [snapshot(ds[i]) for i in range(12)]
    assert same([x for x in found if x is not None], expected)
    assert same([snapshot(x) for x in ds], expected)
    assert same([x for x in ds.get(range(12)) if x is not None], expected)


def test_records_of_a_list_are_copies_with_all_objects_in_them():
    class Tokenizer:
        pass

    records = [{"x": np.zeros(2), "by": Tokenizer()} for _ in range(3)]
    ds = bushel.MapDataset.source(records)
    assert ds[1] is not records[1]
    assert ds[1]["x"] is not records[1]["x"]
    assert ds[1]["by"] is not records[1]["by"]


class Careless(ArrayDataSource):
    """Hands out its own memory."""

    def __getitems__(self, indices):
        low = int(indices[0])
        return Columns(on_leaves(lambda leaf: leaf[low : low + len(indices)], self._tree), len(indices))


def test_columns_that_a_source_keeps_are_copied():
    arrays = sources_in_memory()["arrays"]
    before = snapshot(arrays)
    list(bushel.MapDataset.source(Careless(arrays)).map(change_in_place))
    assert same(snapshot(arrays), before)


def test_the_privacy_check_can_fail(monkeypatch):
    monkeypatch.setattr("bushel._src.graph.source_nodes.make_answer_private", lambda answer, received: answer[0])
    arrays = sources_in_memory()["arrays"]
    before = snapshot(arrays)
    list(bushel.MapDataset.source(Careless(arrays)).map(change_in_place))
    assert not same(snapshot(arrays), before)

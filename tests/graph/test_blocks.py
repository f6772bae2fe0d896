"""Blocks: stacking is np.stack leaf by leaf, and columns behave like the list of rows they stand for."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any, NamedTuple

import jax
import ml_dtypes
import numpy as np
import pytest
from helpers.beside_grain import is_kept
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import bushel
from bushel._src.base import blocks, memory
from bushel._src.base.blocks import Columns, make_block_private
from bushel._src.base.private_elements import COUNTS, make_private
from bushel.testing import same


class Point(NamedTuple):
    x: Any
    y: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Pair:
    """A dataclass that JAX knows as a tree."""

    first: Any
    second: Any


@dataclasses.dataclass(frozen=True)
class Opaque:
    """A dataclass that nobody knows: a leaf."""

    value: int


# ---------------------------------------------------------------------------------------------------------------------
# stack


def stacked_by_numpy(rows: list[Any]) -> Any:
    return jax.tree_util.tree_map(lambda *leaves: np.stack(leaves), *rows)


def array_leaves(dtypes: st.SearchStrategy[Any]) -> st.SearchStrategy[st.SearchStrategy[Any]]:
    """A dtype and shape, and with it a strategy for arrays of just that kind, in any layout in memory."""
    shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)

    def layouts(array: np.ndarray) -> st.SearchStrategy[np.ndarray]:
        read_only = array.copy()
        read_only.setflags(write=False)
        return st.sampled_from([array, array.copy(order="F"), np.repeat(array, 2)[::2].reshape(array.shape), read_only])

    def arrays(dtype: Any, shape: tuple[int, ...]) -> st.SearchStrategy[np.ndarray]:
        dtype = np.dtype(dtype)
        numbers = st.integers(0, 1000).map(lambda n: np.array(n).astype(dtype)[()]) if dtype.kind in "mM" else None
        return hnp.arrays(dtype, shape, elements=numbers).flatmap(layouts)

    return st.tuples(dtypes, shapes).map(lambda kind: arrays(*kind))


number_types = st.sampled_from([np.int8, np.uint8, np.int32, np.int64, np.uint64, np.float16, np.float32, np.float64])
other_types = st.sampled_from([np.bool_, np.complex64, ">i4", "<f8", ">f8", "U3", "S2", "M8[s]", "m8[ms]"])

leaf_kinds = st.one_of(
    st.just(st.integers(-100, 100)),
    st.just(st.integers(-(2**70), 2**70)),
    st.just(st.integers(2**63 - 2, 2**64)),
    st.just(st.floats(allow_nan=True, width=32)),
    st.just(st.booleans()),
    st.just(st.complex_numbers(max_magnitude=10)),
    st.just(st.text(max_size=5)),
    st.just(st.binary(max_size=5)),
    st.just(st.none()),
    st.just(st.builds(Opaque, st.integers(0, 3))),
    st.just(st.integers(-5, 5) | st.floats(-5, 5) | st.booleans()),  # numbers of several types
    st.just(st.integers(-5, 5).map(np.int16) | st.integers(-5, 5)),
    number_types.map(lambda kind: st.integers(0, 100).map(kind)),
    number_types.map(lambda kind: st.integers(0, 100).map(lambda n: np.array(n, kind))),
    array_leaves(number_types),
    array_leaves(other_types),
)


@st.composite
def trees(draw: st.DrawFn, depth: int = 2) -> st.SearchStrategy[Any]:
    """A strategy for elements of one structure: what differs between two draws are the leaves alone."""
    if depth == 0 or draw(st.integers(0, 2)) == 0:
        return draw(leaf_kinds)
    inner = [draw(trees(depth=depth - 1)) for _ in range(draw(st.integers(0, 3)))]
    kind = draw(st.sampled_from(["dict", "tuple", "list", "Point", "Pair"]))
    if kind == "dict":
        keys = [f"k{number}" for number in range(len(inner))]
        any_order = st.permutations(keys)
        return st.tuples(any_order, *inner).map(lambda drawn: {key: drawn[1 + keys.index(key)] for key in drawn[0]})
    if kind in ("tuple", "list"):
        return st.tuples(*inner).map(tuple if kind == "tuple" else list)
    one, two = [*inner, st.just(1), st.just(2)][:2]
    return st.builds(Point if kind == "Point" else Pair, one, two)


rows_of_one_structure = trees().flatmap(lambda elements: st.lists(elements, min_size=1, max_size=5))


@settings(max_examples=300, deadline=None)
@given(rows_of_one_structure)
@example([2**63 - 1, 2**63])
@example([-1, 2**63])
@example([2**64, 1])
@example(["", ""])
@example(["a\0", "b"])
@example([b"", b"abc"])
@example([True, 1, 2.5])
@example([np.float32(1), 2.0])
@example([np.zeros((0, 3)), np.zeros((0, 3))])
@example([np.zeros((3, 0)), np.zeros((3, 0))])
@example([np.arange(3, dtype=">i4"), np.arange(3, dtype=">i4")])
@example([np.ones(2, ml_dtypes.bfloat16), np.zeros(2, ml_dtypes.bfloat16)])
@example([ml_dtypes.bfloat16(1), ml_dtypes.bfloat16(2)])
@example([np.array([1, None], dtype=object), np.array(["a", 2.0], dtype=object)])
@example([np.array([(1, 2.0)], dtype="i4,f8"), np.array([(3, 4.0)], dtype="i4,f8")])
@example([Point(1, {"a": "x"}), Point(2, {"a": "yy"})])
@example([Pair(1, np.ones(2)), Pair(2, np.zeros(2))])
@example([np.str_("a"), np.str_("bcd")])
@example([np.datetime64("2020-01-01"), np.datetime64("2021-01-01")])
@example([{"a": 1, "b": None}, {"b": None, "a": 2}])
def test_stack_is_numpys_leaf_by_leaf(rows):
    expected = stacked_by_numpy(rows)
    kept = jax.tree_util.tree_map(lambda column, *leaves: all(map(is_kept, column, leaves)), expected, *rows)
    if not all(jax.tree_util.tree_leaves(kept)):
        with pytest.raises(ValueError, match="of the batch has"):
            blocks.stack(rows)
        return
    found = blocks.stack(rows)
    assert same(found, expected), f"{found!r} is not {expected!r}"


def test_jax_arrays_become_numpy():
    found = blocks.stack([{"x": jax.numpy.arange(3)}, {"x": jax.numpy.ones(3, int)}])
    assert type(found["x"]) is np.ndarray
    assert same(found, {"x": np.array([[0, 1, 2], [1, 1, 1]], np.int32)})


@pytest.mark.parametrize(
    "rows",
    [
        [np.zeros(2), np.zeros(3)],
        [{"a": 1}, {"b": 1}],
        [{"a": 1}, {"a": 1, "b": 2}],
        [(1, 2), (1, 2, 3)],
        [(1, 2), [1, 2]],
        [Point(1, 2), (1, 2)],
        [Pair(1, 2), Point(1, 2)],
        [None, 1],
        [1, None],
        [(1, None), (1, 2)],
        [{"x": np.zeros(2)}, {"x": np.zeros(())}],
    ],
)
def test_rows_of_different_structures_are_refused_with_both_shown(rows):
    with pytest.raises(ValueError, match="Expected all input elements to have the same structure but got:\n  1 x "):
        blocks.stack(rows)


def test_nothing_cannot_be_stacked():
    with pytest.raises(ValueError, match="Cannot batch 0 values"):
        blocks.stack([])


def test_a_stack_is_a_copy():
    rows = [np.zeros(3), np.zeros(3)]
    found = blocks.stack(rows)
    found += 1
    assert not rows[0].any() and not rows[1].any()
    one = blocks.stack(rows[:1])
    one += 1
    assert not rows[0].any()


@settings(deadline=None)
@given(
    shape=hnp.array_shapes(max_dims=3, max_side=9),
    count=st.integers(1, 40),
    dtype=st.sampled_from([np.uint8, np.float16, np.float32, np.int64, np.complex128, bool]),
    large=st.booleans(),
)
def test_batches_are_aligned_for_jax_whoever_holds_others(shape, count, dtype, large):
    rng = np.random.default_rng(count)
    shape = (memory.WORTH_ALIGNING,) if large else shape
    held = []
    for _ in range(3):  # while others are held, each lies at another place
        rows = [rng.integers(0, 2, shape).astype(dtype) for _ in range(count)]
        held.append((blocks.stack(rows), rows))
    for found, rows in held:
        assert found.nbytes < memory.WORTH_ALIGNING or found.ctypes.data % memory.ALIGNMENT == 0
        assert found.flags.c_contiguous and found.flags.writeable and found.flags.aligned
        assert same(list(found), rows)


def test_a_batch_that_nobody_else_holds_is_not_copied_again():
    batch = blocks.stack([np.full((30, 30), number) for number in range(9)])
    place = batch.ctypes.data
    view = batch[:1]
    assert make_private([{"x": view}])[0]["x"].ctypes.data != place  # two arrays look into this memory
    del view
    rows = [batch]
    del batch
    assert make_private(rows)[0].ctypes.data == place


def test_rows_with_gaps_in_memory_are_stacked():
    grid = np.arange(64 * 64, dtype=np.int32).reshape(64, 64)
    for rows in ([grid.T, grid], [grid[:, ::2], grid[:, 1::2]], [grid[::-1], grid], [grid, grid.T]):
        assert same(blocks.stack(rows), np.stack(rows))


@pytest.mark.parametrize("row", [np.zeros((2, 3), np.int16), np.zeros((50, 60), np.int64)], ids=["joined", "copied"])
def test_the_allocator_decides_where_a_batch_lies(row):
    asked = []

    def allocate(shape, dtype, size):
        asked.append((shape, np.dtype(dtype), size))
        return np.empty(shape, dtype)

    rows = [{"x": row + number, "y": number} for number in range(1000)]
    with memory.allocating(allocate):
        found = blocks.stack(rows)
    assert asked == [((1000, *row.shape), row.dtype, 1000 * row.nbytes)]
    assert same(found, {"x": np.stack([one["x"] for one in rows]), "y": np.arange(1000)})


@settings(deadline=None)
@given(
    st.lists(
        st.one_of(
            st.integers(-(2**70), 2**70), st.integers(-5, 5), st.floats(), st.booleans(), st.sampled_from(
                [np.int8(3), np.uint64(2**63), np.float32(0.5), np.float64(0.25), np.bool_(True), np.array(7)]
            ),
        ),
        min_size=1,
        max_size=6,
    )
)  # fmt: skip
def test_numbers_of_any_kind_are_stacked_as_numpy_does(rows):
    try:
        expected = np.stack(rows)
    except Exception as error:
        with pytest.raises(type(error)):
            blocks.stack(rows)
        return
    if not all(is_kept(expected[number], row) for number, row in enumerate(rows)):
        with pytest.raises(ValueError, match="of the batch has"):
            blocks.stack(rows)
        return
    assert same(blocks.stack(rows), expected)


ENTRIES = ("i1", "u2", "i8", "f2", "f4", "longdouble", "c8", "?", "m8[s]", "M8[D]")


@pytest.mark.parametrize("kind", ENTRIES)
def test_entries_of_arrays_are_stacked_as_they_lay(kind):
    column = np.arange(5).astype(kind)
    found = blocks.stack(list(column))
    assert same(found, column) and found.flags.writeable


# ---------------------------------------------------------------------------------------------------------------------
# Columns. A list of rows, None for the missing ones, is the model.


@st.composite
def columns(draw: st.DrawFn, whole: bool = False) -> Columns:
    """Columns of any structure, with or without missing elements."""
    length = draw(st.integers(0, 8))
    present = None if whole else draw(st.none() | hnp.arrays(bool, length))
    count = length if present is None else int(present.sum())

    def array(dtype: Any, *shape: int) -> np.ndarray:
        return draw(hnp.arrays(dtype, (count, *shape), elements=hnp.from_dtype(np.dtype(dtype), allow_nan=False)))

    tree = draw(
        st.sampled_from(
            [
                lambda: array(np.int64),
                lambda: {"x": array(np.float32, 2), "y": array(np.int8)},
                lambda: {"x": array(np.int16), "y": (array(np.bool_), [array("U2")]), "z": array(np.uint8, 1, 2)},
                lambda: (array(np.int64), array(np.int64, 3)),
                lambda: Point(array(np.int64), {"only": array(np.float64)}),
                lambda: Pair(array(np.int64), array(np.float64, 0)),
                lambda: {"empty": (), "nothing": None, "x": array(np.int32)},
            ]
        )
    )()
    return Columns(tree, length, present)


def model_of(block: Columns) -> list[Any]:
    """The rows that columns stand for, made without any method of theirs."""
    here, rows = 0, []
    for number in range(block.length):
        if block.present is not None and not block.present[number]:
            rows.append(None)
            continue
        rows.append(jax.tree_util.tree_map(lambda leaf, place=here: leaf[place], block.tree))
        here += 1
    return rows


any_columns = columns()


@settings(deadline=None)
@given(any_columns)
def test_rows_are_the_elements(block):
    assert len(block) == block.length
    assert same(block.rows(), model_of(block))
    assert same(blocks.rows_of(block), model_of(block))


@settings(deadline=None)
@given(any_columns, st.integers(0, 8), st.integers(0, 8))
def test_a_part_is_a_slice_of_the_rows(block, low, high):
    low, high = sorted((min(low, len(block)), min(high, len(block))))
    part = block.slice(low, high)
    assert len(part) == high - low
    assert same(part.rows(), model_of(block)[low:high])
    assert same(blocks.rows_of(blocks.slice_block(block.rows(), low, high)), model_of(block)[low:high])


def test_a_part_is_a_view():
    block = Columns({"x": np.arange(5)}, 5)
    assert np.shares_memory(block.slice(1, 3).tree["x"], block.tree["x"])
    some = Columns({"x": np.arange(3)}, 5, np.array([True, False, True, False, True]))
    assert np.shares_memory(some.slice(1, 3).tree["x"], some.tree["x"])


@settings(deadline=None)
@given(any_columns, st.data())
def test_where_drops_what_is_not_kept(block, data):
    there = sum(row is not None for row in model_of(block))
    kept = data.draw(hnp.arrays(bool, there))
    verdicts = iter(kept.tolist())
    expected = [row if row is not None and next(verdicts) else None for row in model_of(block)]
    before = None if block.present is None else block.present.copy()
    assert same(block.where(kept).rows(), expected)
    assert before is None or (block.present == before).all()


@settings(deadline=None)
@given(any_columns)
def test_dense_has_what_is_there(block):
    there = [row for row in model_of(block) if row is not None]
    assert same(blocks.rows_of(block.dense()), there)


@settings(deadline=None)
@given(columns().filter(lambda block: any(row is not None for row in model_of(block))))
def test_rows_become_columns_again(block):
    again = blocks.as_columns(block.rows())
    if again is not None:  # rows of text may have several widths
        assert len(again) == len(block)
        assert same(again.rows(), model_of(block))
    assert blocks.as_columns(block) is block


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [None, None],
        [1, 2.0],
        [1, True],
        [np.int32(1), np.int64(1)],
        [np.zeros(2), np.zeros(3)],
        [np.zeros(2), np.zeros(2, np.float32)],
        ["a", "bc"],
        [{"a": 1}, {"b": 1}],
        [1, 1 << 63],
        [object(), object()],
    ],
)
def test_rows_of_several_kinds_or_none_have_no_columns(rows):
    assert blocks.as_columns(rows) is None


@settings(deadline=None)
@given(st.lists(any_columns | any_columns.map(Columns.rows), min_size=1, max_size=4))
def test_joined_blocks_are_one_after_the_other(parts):
    expected = [row for part in parts for row in (model_of(part) if isinstance(part, Columns) else part)]
    found = blocks.join(parts)
    assert len(found) == len(expected)
    assert same(blocks.rows_of(found), expected)


def test_columns_of_one_kind_stay_columns_when_joined():
    one = Columns({"x": np.arange(2), "y": np.zeros((2, 3))}, 2)
    two = Columns({"y": np.ones((1, 3)), "x": np.arange(1)}, 1)
    other = Columns({"x": np.arange(2.0), "y": np.zeros((2, 3))}, 2)
    assert isinstance(blocks.join([one, two]), Columns)
    assert isinstance(blocks.join([one, other]), list)
    assert blocks.are_alike([one, two]) and not blocks.are_alike([one, other])
    assert not blocks.are_alike([one, Columns((np.arange(2),), 2)])


def test_the_model_sees_differences():
    block = Columns({"x": np.arange(3)}, 3)
    assert not same(block.rows(), model_of(Columns({"x": np.arange(3) + 1}, 3)))
    assert not same(block.rows(), model_of(Columns({"x": np.arange(3, dtype=np.int32)}, 3)))
    assert not same(block.rows(), model_of(Columns({"x": np.arange(2)}, 3, np.array([True, False, True]))))


def test_other_mappings_are_trees_too():
    ordered = collections.OrderedDict
    found = blocks.stack([ordered(a=1, b=2), ordered(a=3, b=4)])
    assert type(found) is ordered
    assert same(found, ordered(a=np.array([1, 3]), b=np.array([2, 4])))
    counted = collections.defaultdict(int, a=1)
    assert same(blocks.stack([counted, counted]), collections.defaultdict(int, a=np.array([1, 1])))


@pytest.mark.parametrize("rows", [[1, {"a": 1}], ["a", [1]], [np.ones(2), (1, 2)], [{"x": 1}, {"x": {"y": 1}}]])
def test_a_container_among_leaves_is_refused(rows):
    for batches in (
        bushel.MapDataset.source(rows).batch(2),
        bushel.load(rows, num_epochs=1, batch_size=2),
    ):
        with pytest.raises(ValueError, match=r"have the same structure but got:\n(.|\n)*containers and others are not"):
            list(batches)


@pytest.mark.skipif(not COUNTS, reason="without a GIL every column is copied")
def test_columns_are_copied_only_where_something_else_holds_them():
    kept = np.zeros(3)
    block = Columns({"kept": kept, "view": kept[:], "inside": {"new": np.zeros(3)}}, 3)
    address = block.tree["inside"]["new"].ctypes.data
    owned = make_block_private(block).tree
    assert owned["inside"]["new"].ctypes.data == address
    assert not np.shares_memory(owned["kept"], kept) and not np.shares_memory(owned["view"], kept)


def test_a_tree_of_columns_that_something_else_holds_is_copied():
    for kept in ({"a": np.zeros(3)}, np.zeros(3), [np.zeros(3)]):
        owned = make_block_private(Columns(kept, 3)).tree
        leaf = owned if isinstance(owned, np.ndarray) else owned["a"] if isinstance(owned, dict) else owned[0]
        leaf += 1
        assert not np.any(kept["a"] if isinstance(kept, dict) else kept)

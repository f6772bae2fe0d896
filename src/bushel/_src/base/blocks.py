"""Blocks: several elements at once, as rows (a list) or as columns (a tree of arrays with a leading axis).

Also makes all elements of a block private: see private_elements.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Sequence
from operator import countOf
from sys import getrefcount
from typing import Any

import numpy as np

from bushel._src.base import exact_values, memory, trees
from bushel._src.base.exact_values import find_ending_in_zero
from bushel._src.base.private_elements import COUNTS, FRESH, copy_value, make_fresh_private, make_private
from bushel._src.base.public import public

_SMALL_ROW = 16 << 10
"""In bytes. What NumPy does before it copies an array costs as much as copying so much."""


@public("bushel.sources")
@dataclasses.dataclass(frozen=True, eq=False)
class Columns:
    """`length` elements as a tree of arrays with a leading axis. The holder of the block may write into the arrays.

    A source may answer `__getitems__` with Columns, and everything after it that works on whole arrays
    never sees single records. Where elements are missing, `present` has one bool per element and the arrays hold
    only those that are there.

    >>> Columns({"x": np.array([1, 2, 3])}, 3).rows()
    [{'x': np.int64(1)}, {'x': np.int64(2)}, {'x': np.int64(3)}]
    """

    tree: Any
    length: int
    present: np.ndarray | None = None

    def __len__(self) -> int:
        return self.length

    def slice(self, low: int, high: int) -> Columns:
        """Return elements [low, high), as views."""
        if low == 0 and high == self.length:
            return self
        if self.present is None:
            return Columns(trees.map_leaves(lambda leaf: leaf[low:high], self.tree), high - low)
        first, last = int(self.present[:low].sum()), int(self.present[:high].sum())
        return Columns(trees.map_leaves(lambda leaf: leaf[first:last], self.tree), high - low, self.present[low:high])

    def rows(self) -> list[Any]:
        """Return the elements one by one, None where one is missing. Rows are views of the columns."""
        if self.present is None:
            return _rows(self.tree, self.length)
        there = iter(_rows(self.tree, int(self.present.sum())))
        return [next(there) if present else None for present in self.present.tolist()]

    def where(self, kept: np.ndarray) -> Columns:
        """Return the same elements, but missing where `kept` is False. `kept` has one bool per present element."""
        if kept.all():
            return self
        tree = trees.map_leaves(lambda leaf: leaf[kept], self.tree)
        if self.present is None:
            return Columns(tree, self.length, kept)
        present = self.present.copy()
        present[present] = kept
        return Columns(tree, self.length, present)

    def dense(self) -> Columns:
        """Only the elements that are not missing."""
        if self.present is None:
            return self
        return Columns(self.tree, int(self.present.sum()))


Block = list[Any] | Columns


def rows_of(block: Block) -> list[Any]:
    """Return a block as a list of elements."""
    return block.rows() if isinstance(block, Columns) else block


def slice_block(block: Block, low: int, high: int) -> Block:
    """Return elements [low, high) of a block."""
    return block.slice(low, high) if isinstance(block, Columns) else block[low:high]


def take_slice(block: Block, low: int, high: int) -> Block:
    """Return elements [low, high) of a block, which then no longer holds them: otherwise they would not count as
    private.
    """
    part = slice_block(block, low, high)
    if isinstance(block, list):
        block[low:high] = [None] * len(part)
    return part


def presence(block: Block) -> list[bool]:
    """Return one bool per element: False where it is missing."""
    if isinstance(block, Columns):
        return [True] * block.length if block.present is None else block.present.tolist()
    return [row is not None for row in block]


def as_columns(block: Block) -> Columns | None:
    """Return a block as columns: rows of one kind are stacked, missing ones left out.

    None if rows differ in structure, type, dtype or shape: stacking would then convert some of them.
    """
    if isinstance(block, Columns):
        return block
    rows = [row for row in block if row is not None]
    if not rows:
        return None
    try:
        stacked = _stacking(rows)
    except ValueError:
        return None
    present = None if len(rows) == len(block) else np.array(presence(block))
    return Columns(stacked(), len(block), present)


def _stacking(rows: list[Any]) -> Callable[[], Any]:
    """Return a function that stacks `rows`. Raise ValueError at once if the rows are not of one kind."""
    parts = trees.gather_children(rows)
    if parts is not None:
        columns = [_stacking(column) for column in parts[0]]
        return lambda: parts[1](stacked() for stacked in columns)
    kinds = set(map(type, rows))
    kind = kinds.pop()
    if kinds or not _alike_leaves(rows, kind):
        raise ValueError("leaves of several kinds")
    return lambda: _stack_leaves(rows, kind)


def _alike_leaves(leaves: list[Any], kind: type) -> bool:
    if kind is np.ndarray:
        return len({(leaf.shape, leaf.dtype) for leaf in leaves}) == 1
    if kind is int:
        return min(leaves) >= -(1 << 63) and max(leaves) < 1 << 63
    if kind is str or kind is bytes:  # of one length, so that no row gets another width, and none loses zeros
        return len(set(map(len, leaves))) == 1 and find_ending_in_zero(leaves) is None
    return _is_number(kind)


def _is_number(kind: type) -> bool:
    return kind in _NUMBERS or issubclass(kind, (np.number, np.bool_))


def join(blocks: list[Block]) -> Block:
    """Return blocks one after the other, as one block: columns if all of them are, and of one kind."""
    if len(blocks) == 1:
        return blocks[0]
    columns = [block for block in blocks if isinstance(block, Columns)]
    if len(columns) == len(blocks) and are_alike(columns) and all(block.present is None for block in columns):
        tree = trees.map_leaves(lambda *leaves: np.concatenate(leaves), *(block.tree for block in columns))
        return Columns(tree, sum(block.length for block in columns))
    return list(itertools.chain.from_iterable(map(rows_of, blocks)))


def are_alike(blocks: Sequence[Columns]) -> bool:
    """Return whether columns have one structure, and leaf by leaf one dtype and one shape per element."""
    first = blocks[0].tree
    try:
        same = trees.map_leaves(
            lambda leaf, *others: all(o.dtype == leaf.dtype and o.shape[1:] == leaf.shape[1:] for o in others),
            first,
            *(block.tree for block in blocks[1:]),
        )
    except ValueError:
        return False
    return all(trees.leaves(same))


def _rows(tree: Any, count: int) -> list[Any]:
    if type(tree) is np.ndarray:
        return list(tree)
    parts = trees.children(tree)
    if parts is None:
        return list(tree)
    if not parts[0]:
        return [parts[1](()) for _ in range(count)]
    columns = [_rows(part, count) for part in parts[0]]
    if type(tree) is dict:
        keys = tuple(tree)
        if len(keys) == 2:  # an input and its label, the usual element: this takes half the time
            one, two = keys
            return [{one: a, two: b} for a, b in zip(*columns)]
        return [dict(zip(keys, values)) for values in zip(*columns)]
    if type(tree) is tuple:
        return list(zip(*columns))
    return [parts[1](values) for values in zip(*columns)]


def stack(rows: list[Any]) -> Any:
    """Return one element whose leaves hold those of `rows` along a new first axis. Each leaf is copied once.

    Leaves of several dtypes get the one that NumPy finds for all. If a leaf would have another value in it, that is an
    error.

    >>> stack([{"x": 1, "y": (2.0,)}, {"x": 3, "y": (4.0,)}])
    {'x': array([1, 3]), 'y': (array([2., 4.]),)}
    """
    if not rows:
        raise ValueError("Cannot batch 0 values.")
    try:
        return _stack(rows)
    except _Changed as error:
        raise ValueError(str(error)) from None
    except ValueError as error:
        raise ValueError(_describe_mismatch(rows, error)) from error


def _describe_mismatch(rows: list[Any], error: ValueError) -> str:
    """Return why rows cannot be stacked: the same text whether or not the rows have been columns on their way.

    Workers send rows of one kind as columns. A number that was in a column is a scalar of NumPy afterwards.
    """
    plain = [trees.map_leaves(_as_plain, row) for row in rows]
    try:
        _stack(plain)
    except ValueError as of_plain:
        error = of_plain
    shown = [trees.describe(row) for row in plain]
    kinds = "\n".join(f"  {shown.count(kind)} x {kind}" for kind in list(dict.fromkeys(shown))[:5])
    return f"Expected all input elements to have the same structure but got:\n{kinds}\n({error})"


def _as_plain(leaf: Any) -> Any:
    """Return a leaf as it was before it may have been in a column: numbers of Python, and arrays in native byte
    order.
    """
    if not isinstance(leaf, (np.ndarray, np.generic)) or leaf.dtype.hasobject:
        return leaf
    if leaf.shape:
        return leaf if leaf.dtype.isnative else leaf.astype(leaf.dtype.newbyteorder("="))
    if leaf.dtype in _OF_PYTHON or leaf.dtype.kind in "SU":
        return leaf.item()
    return leaf[()] if isinstance(leaf, np.ndarray) else leaf


_OF_PYTHON = (np.dtype(np.int64), np.dtype(np.float64), np.dtype(bool))


_NUMBERS = {int: np.dtype(np.int64), float: np.dtype(np.float64), bool: np.dtype(bool)}


def _stack(rows: list[Any]) -> Any:
    first = type(rows[0])
    if first is int or first is float:
        numbers = _stack_numbers(rows)
        if numbers is not None:
            return numbers
    elif first is np.ndarray:
        if countOf(map(type, rows), first) == len(rows):
            return _stack_arrays(rows)
    elif first in _SCALARS:
        if countOf(map(type, rows), first) == len(rows):
            return _stack_scalars(rows, first)
    elif (parts := trees.gather_children(rows)) is not None:
        return parts[1]([_stack(column) for column in parts[0]])
    kinds = set(map(type, rows))
    if None.__class__ in kinds:
        raise ValueError(
            "some elements are None; filter them out before batching: `.filter(lambda x: x is not None)` on a stream"
        )
    if len(kinds) == 1:
        return _stack_leaves(rows, kinds.pop())
    if any(trees.children(row) is not None for row in rows):  # NumPy would make an array of objects
        raise ValueError("some elements are containers and others are not")
    return _stack_exactly(rows)


class _Changed(ValueError):
    """A value that would not be the same in the batch."""


def _stack_exactly(leaves: list[Any]) -> np.ndarray:
    """Return leaves stacked by NumPy's rules, which find a dtype for all. Raise if this would change a value."""
    for number, leaf in enumerate(leaves):
        if isinstance(leaf, (str, bytes)) and exact_values.ends_in_zero(leaf):
            raise _Changed(
                f"Element {number} of the batch has {exact_values.show(leaf)}. NumPy's arrays of texts drop zeros at "
                "the end, so the batch would hold another value. Decode it before `batch`, or use `batch_fn=list`."
            )
        if np.ma.is_masked(leaf):
            raise _Changed(
                f"Element {number} of the batch is a masked array, and a batch would drop its mask. "
                "Use `filled(...)` before `batch`, or make the mask a feature of its own."
            )
    stacked = np.stack(leaves)
    if stacked.dtype.hasobject:
        return copy_value(stacked)  # the objects may belong to somebody else
    for number, leaf in enumerate(leaves):
        if not exact_values.same_values(stacked[number], np.asarray(leaf)):
            kinds = " and ".join(dict.fromkeys(str(np.asarray(leaf).dtype) for leaf in leaves))
            raise _Changed(
                f"Element {number} of the batch has {exact_values.show(leaf)}, which would become "
                f"{exact_values.show(stacked[number])}: NumPy stacks {kinds} as {stacked.dtype}. "
                "Give all elements one dtype before `batch`, such as with `map(np.uint64)`, or use `batch_fn=list`."
            )
    return stacked


def _stack_numbers(rows: list[Any]) -> np.ndarray | None:
    """Return rows as an array of numbers, where NumPy finds that all of them are numbers; None otherwise.

    The dtype is that of `np.stack`, also if integers are among floats. NumPy looks at the type of each row by itself,
    so that there is no need to do it here.
    """
    try:
        numbers = np.array(rows)
    except (ValueError, TypeError, OverflowError):
        return None
    if numbers.dtype not in _EXACT or numbers.ndim != 1:
        return None
    if numbers.dtype == np.float64 and countOf(map(type, rows), float) < len(rows):  # integers may have been rounded
        return _stack_exactly(rows)
    return numbers


_EXACT = (np.dtype(np.int64), np.dtype(np.float64))


def _stack_leaves(leaves: list[Any], kind: type) -> np.ndarray:
    if kind is np.ndarray:
        return _stack_arrays(leaves)
    if (kind is str or kind is bytes) and find_ending_in_zero(leaves) is None:
        return np.array(leaves)
    if not _is_number(kind):
        return _stack_exactly(leaves)
    if kind in _SCALARS:
        return _stack_scalars(leaves, kind)
    try:
        numbers = np.array(leaves)
    except OverflowError:
        return _stack_exactly(leaves)
    # Integers that need more than 64 bits get another dtype: then NumPy's own rule decides.
    return numbers if numbers.dtype == _NUMBERS.get(kind, kind) else _stack_exactly(leaves)


_SCALARS = frozenset(kind for kind in np.sctypeDict.values() if np.dtype(kind).kind in "biufc")
"""Types of NumPy's numbers. As bytes, they are what an array of them holds."""


def _stack_scalars(scalars: list[Any], kind: type) -> np.ndarray:
    return np.frombuffer(b"".join(scalars), kind).copy()


def _stack_arrays(rows: list[np.ndarray]) -> np.ndarray:
    first = rows[0]
    shape, dtype = first.shape, first.dtype
    if dtype.hasobject or dtype.kind in "SUT" or not dtype.isnative:
        return _stack_exactly(rows)
    if not shape:
        return np.array(rows) if all([row.dtype == dtype for row in rows]) else _stack_exactly(rows)
    if (
        first.nbytes <= _SMALL_ROW
        and dtype.kind in "biufc"
        and all([row.shape == shape and row.dtype is dtype for row in rows])
    ):
        with contextlib.suppress(TypeError):  # a row that is a view with gaps
            return memory.join(rows, (len(rows), *shape), dtype)
    try:
        lengths = set(map(len, rows))
    except TypeError:  # one has no axis at all
        lengths = set()
    if len(lengths) != 1:
        raise ValueError("first axes of different lengths: pad them in `map`, or with `batch_fn=...`")
    out = memory.output((len(rows), *shape), dtype)
    try:
        # Along an existing axis, concatenation copies row after row without a new view of each; it checks the
        # other axes itself.
        np.concatenate(rows, out=out.reshape(len(rows) * shape[0], *shape[1:]), casting="no")
    except TypeError:  # several dtypes: numpy's promotion decides
        return _stack_exactly(rows)
    return out


def make_block_private(block: Block, *, received: bool = False) -> Block:
    """Return a block with a copy in place of each object that something else refers to.

    Only the caller may hold the block.

    Args:
      block: the elements; a list changes.
      received: whether the block was unpickled from a message: see `own`.
    """
    return (
        _make_columns_private(block, received) if isinstance(block, Columns) else make_private(block, received=received)
    )


def _make_columns_private(block: Columns, received: bool) -> Columns:
    if not COUNTS:
        return copy_columns(block)
    (count,) = map(getrefcount, [block.tree])
    if count > FRESH + 1:  # the block holds the tree, too
        return copy_columns(block)
    tree = make_fresh_private(block.tree, received)
    return block if tree is block.tree else dataclasses.replace(block, tree=tree)


def make_answer_private(answer: list[Any], *, received: bool = False) -> Block:
    """Return what a source has returned for several positions, as a block that is private.

    Args:
      answer: a list with the answer alone, which this function takes out.
      received: whether arrays on a memoryview are the only ones there: see `own`.
    """
    (count,) = map(getrefcount, answer)
    if isinstance(answer[0], Columns):
        block = answer.pop()
        return (
            copy_columns(block)
            if count > FRESH or block.present is not None
            else _make_columns_private(block, received)
        )
    if isinstance(answer[0], (list, tuple)):
        return make_private(list(answer.pop()), received=received)
    return make_each_private(answer.pop())


def make_each_private(made: Iterable[Any]) -> list[Any]:
    """Return the elements of an iterable as private ones. Each passes the gate before the next one is made."""
    rows: list[Any] = []
    each = iter(made)
    while box := list(itertools.islice(each, 1)):  # from C: a variable would be one more reference to the element
        rows += make_private(box)
    return rows


def copy_columns(block: Columns) -> Columns:
    """Return a copy of columns that shares no memory with them."""
    present = None if block.present is None else block.present.copy()
    return dataclasses.replace(block, tree=copy_value(block.tree), present=present)


def copy_block(block: Block) -> Block:
    """Return a copy of a block that shares no memory with it."""
    return copy_columns(block) if isinstance(block, Columns) else list(map(copy_value, block))

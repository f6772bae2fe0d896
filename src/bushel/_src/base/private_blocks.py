"""Blocks at the gate: all elements of a block are made private. What that is: ownership.py."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable
from sys import getrefcount
from typing import Any

from bushel._src.base.blocks import Block, Columns
from bushel._src.base.ownership import COUNTS, FRESH, copy_value, own, own_fresh


def own_block(block: Block, *, received: bool = False) -> Block:
    """A block with a copy in place of each object that something else refers to. Only the caller may hold the block.

    Args:
      block: the elements; a list changes.
      received: whether the block was unpickled from a message: see `own`.
    """
    return _own_columns(block, received) if isinstance(block, Columns) else own(block, received=received)


def _own_columns(block: Columns, received: bool) -> Columns:
    if not COUNTS:
        return copy_columns(block)
    (count,) = map(getrefcount, [block.tree])
    if count > FRESH + 1:  # the block holds the tree, too
        return copy_columns(block)
    tree = own_fresh(block.tree, received)
    return block if tree is block.tree else dataclasses.replace(block, tree=tree)


def own_answer(answer: list[Any], *, received: bool = False) -> Block:
    """What a source has returned for several positions, as a block that is private.

    Args:
      answer: a list with the answer alone, which this function takes out.
      received: whether arrays on a memoryview are the only ones there: see `own`.
    """
    (count,) = map(getrefcount, answer)
    if isinstance(answer[0], Columns):
        block = answer.pop()
        return copy_columns(block) if count > FRESH or block.present is not None else _own_columns(block, received)
    if isinstance(answer[0], (list, tuple)):
        return own(list(answer.pop()), received=received)
    return own_each(answer.pop())


def own_each(made: Iterable[Any]) -> list[Any]:
    """The elements of an iterable as private ones. Each passes the gate before the next one is made."""
    rows: list[Any] = []
    each = iter(made)
    while box := list(itertools.islice(each, 1)):  # from C: a variable would be one more reference to the element
        rows += own(box)
    return rows


def copy_columns(block: Columns) -> Columns:
    """A copy of columns that shares no memory with them."""
    present = None if block.present is None else block.present.copy()
    return dataclasses.replace(block, tree=copy_value(block.tree), present=present)


def copy_block(block: Block) -> Block:
    """A copy of a block that shares no memory with it."""
    return copy_columns(block) if isinstance(block, Columns) else list(map(copy_value, block))

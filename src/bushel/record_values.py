"""Values of records that a user passes to `where`, `sample`, `order_by`, `pack` and `bucket`: checked, as columns.

The operations themselves are nodes in `graph/`. `columns.py` computes columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from bushel import columns
from bushel.base import checks, trees
from bushel.base.transforms import Map
from bushel.graph import bucket
from bushel.graph.bucket import Bucket, BucketOptions
from bushel.graph.column_values import collect_values
from bushel.graph.columns import Column, Part
from bushel.graph.node import Epochs, MapNode
from bushel.graph.pack_plan import PackedRows, PackOptions, plan_rows
from bushel.state.digest import digest
from bushel.state.identity import identify

_MORE = {"pack": ", length", "bucket": ", boundaries, batch_sizes", "sample": ", seed=0"}
"""The further arguments of operations that take a column."""


def compute_values(values: Any, node: MapNode) -> Any:
    """`values`, or their column over the elements of `node` if they are a function of an element."""
    return columns.column(node, values) if callable(values) or isinstance(values, Map) else values


def bind_column(values: Any, node: MapNode, what: str) -> Column:
    """`values` as a column with a value for every element of `node`.

    They are a function, a column, or an array with one entry per element. `what` names the operation in messages.
    """
    if isinstance(values, str):
        argument = "by=" if what == "split" else ""
        raise TypeError(
            f"`{what}` takes a function or a column, not the name of an entry: write "
            f"`ds.{what}({argument}lambda element: element[{values!r}]{_MORE.get(what, '')})`."
        )
    values = compute_values(values, node)
    if not isinstance(values, Column):
        return _column_by_position(values, node, what)
    if values._reaches(node):
        return values
    # The user may have built the pipeline a second time: then the column belongs to nodes of the same identity.
    known = [(identify(part.node), part.values) for part in values._parts]
    parts = [
        Part(above, part_values) for above in _ancestors(node) for same, part_values in known if identify(above) == same
    ]
    column = Column(tuple(parts))
    if parts and column._reaches(node):
        return column
    homes = " and ".join(part.node.call() for part in values._parts)
    raise ValueError(
        f"`{what}` got a column of the elements of {homes}, and not every element of {node.call()} is made of one of "
        "them. Compute the column on this dataset, or on one that it is made of."
    )


def check_mask(values: Any, node: MapNode) -> Column:
    """`values` as a column of bools, for `where`."""
    column = bind_column(values, node, "where")
    if column.dtype != bool or any(part.values.ndim != 1 for part in column._parts):
        raise TypeError(
            f"`where` takes one bool per element, such as `lengths > 10`; got values of {_type_of(column)}."
        )
    return column


def check_weights(values: Any, node: MapNode) -> Column:
    """`values` as a column of weights, for `sample`."""
    column = _check_numbers(values, node, "sample")
    weights = column.values
    if len(weights) and (not np.isfinite(weights).all() or (weights < 0).any() or not weights.any()):
        raise ValueError(
            "Weights for `sample` must be finite, not negative, and not all zero; "
            f"they range from {weights.min()} to {weights.max()}."
        )
    return column


def check_sortable(values: Any, node: MapNode) -> Column:
    """`values` as a column of numbers without NaN, for `order_by`."""
    column = _check_numbers(values, node, "order_by")
    unknown = np.flatnonzero(np.isnan(column.values))
    if len(unknown):
        raise ValueError(f"`order_by` cannot place {len(unknown)} values that are NaN, the first at {unknown[0]}.")
    return column


def check_groups(values: Any, node: MapNode, whole: MapNode) -> np.ndarray:
    """The value of each element of `node` by which `split` keeps elements together.

    `node` is the step of the pipeline `whole` that is split, where each epoch has the same elements in the same order.
    A function is called with the elements of `whole`.
    """
    values = compute_values(values, whole)
    if not isinstance(values, (Column, str)) and whole.epochs is not Epochs.SAME:
        raise ValueError(_explain_order("split", whole))
    column = bind_column(values, node, "split")
    if column.dtype.kind not in "biuSUmM" or any(part.values.ndim != 1 for part in column._parts):
        raise TypeError(
            "`split(by=...)` takes one whole number, text or date per element, such as the number of an episode; got "
            f"values of {_type_of(column)}."
        )
    return column._of_epoch(node, 0)


def pack_rows(node: MapNode, values: Any, options: PackOptions) -> PackedRows:
    """The node of rows that are packed from the elements of `node`. `values` are the lengths of the elements."""
    if node.epochs is not Epochs.SAME:
        raise ValueError(
            f"After {node.call()} every epoch has another order, and packed in that order it would have another number "
            "of rows. Pack first, then shuffle the rows; `pack(seed=...)` packs elements in a shuffled order."
        )
    values = compute_values(values, node)  # once, and not for each feature
    found = [_check_lengths(values, node, name) for name in options.capacities]
    lengths = np.stack([column._of_epoch(node, 0) for column in found], axis=1).astype(np.int64)
    if options.strategy != "concat_split":
        for number, (name, capacity) in enumerate(options.capacities.items()):
            above = np.flatnonzero(lengths[:, number] > capacity)
            if len(above):
                raise ValueError(
                    f"{len(above)} of {len(lengths)} sequences are longer than their row of {capacity}, the first is "
                    f"element {above[0]} with {lengths[above[0], number]} ({name}). Truncate them, leave them out with "
                    '`where(lengths <= ...)`, or cut them with strategy="concat_split".'
                )
    return PackedRows(node, options, plan_rows(lengths, options), digest([column._digest for column in found]))


def bucket_batches(node: MapNode, values: Any, options: BucketOptions) -> Bucket:
    """The node of batches of elements with similar lengths. `values` are the lengths of the elements of `node`."""
    if node.epochs is Epochs.DIFFERENT:
        raise ValueError(
            f"Epochs of {node.call()} are made of different records, so each would have another number of batches. "
            "Put elements into buckets before slicing a shuffled dataset, and on each part before mixing."
        )
    column = _check_whole_numbers(bind_column(values, node, "bucket"), "bucket")
    longest = int(column.values.max()) if len(column) else 0
    if longest > options.boundaries[-1]:
        raise ValueError(
            f"A sequence has length {longest}, above the last boundary {options.boundaries[-1]}. Add a boundary, "
            "truncate it, or leave it out with `where(lengths <= ...)`."
        )
    return bucket.put_into_buckets(node, column, options)


def _check_lengths(values: Any, node: MapNode, name: str) -> Column:
    """The lengths of one feature: `values` itself, or its entry or field of that name."""
    if isinstance(values, Mapping):
        if name not in values:
            raise ValueError(f"`pack` needs lengths of {name!r}; it got lengths of {sorted(values)}.")
        values = values[name]
    column = bind_column(values, node, "pack")
    return _check_whole_numbers(column[name] if column.dtype.names and name in column.dtype.names else column, "pack")


def _check_whole_numbers(column: Column, what: str) -> Column:
    if column.dtype.kind not in "iu" or any(part.values.ndim != 1 for part in column._parts):
        raise TypeError(f"`{what}` takes one whole number per element as its length; got values of {_type_of(column)}.")
    least = min((int(part.values.min()) for part in column._parts if len(part.values)), default=0)
    if least < 0:
        raise ValueError(f"`{what}` got a negative length, {least}.")
    most = max((int(part.values.max()) for part in column._parts if len(part.values)), default=0)
    if most > np.iinfo(np.int64).max:
        raise ValueError(f"`{what}` got a length of {most}, more than an int64 holds.")
    return column


def _check_numbers(values: Any, node: MapNode, what: str) -> Column:
    column = bind_column(values, node, what)
    if column.dtype.kind not in "biuf" or any(part.values.ndim != 1 for part in column._parts):
        raise TypeError(f"`{what}` takes one number per element; got values of {_type_of(column)}.")
    return column


def _type_of(column: Column) -> str:
    return f"{column.dtype}{list(column._parts[0].values.shape[1:]) or ''}"


def _column_by_position(values: Any, node: MapNode, what: str) -> Column:
    array = collect_values(values, "the argument")
    if node.epochs is not Epochs.SAME:
        raise ValueError(_explain_order(what, node))
    if array.ndim == 0 or len(array) != node.length:
        name = node.call()
        elements = (
            f"elements of {name}, which has no end"
            if checks.is_endless(node.length)
            else (f"{node.length:,} elements of {name}")
        )
        raise ValueError(
            f"`{what}` needs a function, a column, or one value for each of the {elements}; "
            f"got {trees.describe(array)}."
        )
    return Column((Part(node, array),))


def _explain_order(what: str, node: MapNode) -> str:
    return (
        f"`{what}` got an array, which goes by position, but after {node.call()} the same position holds another "
        "record in every epoch. Use a column, `ds.column(function)`, which belongs to records, or do it before."
    )


def _ancestors(node: MapNode) -> list[MapNode]:
    return [node, *(above for parent in node.parents for above in _ancestors(parent))]

"""What operations take as values of records: columns and arrays, bound to a pipeline's records and checked.

The operations themselves are nodes in `graph/`; computing columns is left to `columns.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from bushel.base import trees
from bushel.graph import bucket
from bushel.graph.bucket import Bucket, BucketOptions
from bushel.graph.columns import Column, Part
from bushel.graph.node import Epochs, MapNode
from bushel.graph.pack_plan import PackedRows, PackOptions, plan_rows
from bushel.state.digest import digest
from bushel.state.identity import identity


def bound(values: Any, node: MapNode, what: str) -> Column:
    """`values` as a column that reaches all elements of `node`: one already, or an array with an entry per element."""
    if not isinstance(values, Column):
        return _by_position(values, node, what)
    if values.reaches(node):
        return values
    # The pipeline may have been built a second time: then the column belongs to nodes of the same identity.
    known = [(identity(part.node), part.values) for part in values.parts]
    found = [
        Part(above, part_values) for above in _ancestors(node) for same, part_values in known if identity(above) == same
    ]
    again = Column(tuple(found))
    if found and again.reaches(node):
        return again
    homes = " and ".join(part.node.call() for part in values.parts)
    raise ValueError(
        f"`{what}` got a column of the elements of {homes}, and not every element of {node.call()} is made of one of "
        "them. Compute the column on this dataset, or on one that it is made of."
    )


def mask(values: Any, node: MapNode) -> Column:
    """A column of bools, for `where`."""
    column = bound(values, node, "where")
    if column.dtype != bool or any(part.values.ndim != 1 for part in column.parts):
        raise TypeError(f"`where` takes one bool per element, such as `lengths > 10`; got values of {_kind(column)}.")
    return column


def weights(values: Any, node: MapNode) -> Column:
    """A column of weights, for `sample`."""
    column = _numbers(values, node, "sample")
    found = column.values
    if len(found) and (not np.isfinite(found).all() or (found < 0).any() or not found.any()):
        raise ValueError(
            "Weights for `sample` must be finite, not negative, and not all zero; "
            f"they range from {found.min()} to {found.max()}."
        )
    return column


def sortable(values: Any, node: MapNode) -> Column:
    """A column of numbers without NaN, for `order_by`."""
    column = _numbers(values, node, "order_by")
    unknown = np.flatnonzero(np.isnan(column.values))
    if len(unknown):
        raise ValueError(f"`order_by` cannot place {len(unknown)} values that are NaN, the first at {unknown[0]}.")
    return column


def packed(node: MapNode, values: Any, options: PackOptions) -> PackedRows:
    """Rows packed of the elements of `node`, whose lengths are `values`."""
    if node.epochs is not Epochs.SAME:
        raise ValueError(
            f"After {node.call()} every epoch has another order, and packed in that order it would have another number "
            "of rows. Pack first, then shuffle the rows; `pack(seed=...)` packs elements in a shuffled order."
        )
    columns = [_lengths(values, node, name) for name in options.capacities]
    found = np.stack([column.of_epoch(node, 0) for column in columns], axis=1).astype(np.int64)
    if options.strategy != "concat_split":
        for number, (name, capacity) in enumerate(options.capacities.items()):
            above = np.flatnonzero(found[:, number] > capacity)
            if len(above):
                raise ValueError(
                    f"{len(above)} of {len(found)} sequences are longer than their row of {capacity}, the first is "
                    f"element {above[0]} with {found[above[0], number]} ({name}). Truncate them, leave them out with "
                    '`where(lengths <= ...)`, or cut them with strategy="concat_split".'
                )
    return PackedRows(node, options, plan_rows(found, options), digest([column.digest for column in columns]))


def bucketed(node: MapNode, values: Any, options: BucketOptions) -> Bucket:
    """Batches of like lengths of the elements of `node`, whose lengths are `values`."""
    if node.epochs is Epochs.DIFFERENT:
        raise ValueError(
            f"Epochs of {node.call()} are made of different records, so each would have another number of batches. "
            "Put elements into buckets before slicing a shuffled dataset, and on each part before mixing."
        )
    column = _whole_numbers(bound(values, node, "bucket"), "bucket")
    longest = int(column.values.max()) if len(column) else 0
    if longest > options.boundaries[-1]:
        raise ValueError(
            f"A sequence has length {longest}, above the last boundary {options.boundaries[-1]}. Add a boundary, "
            "truncate it, or leave it out with `where(lengths <= ...)`."
        )
    return bucket.put_into_buckets(node, column, options)


def _lengths(values: Any, node: MapNode, name: str) -> Column:
    """The lengths of one feature: `values` itself, or its entry or field of that name."""
    if isinstance(values, Mapping):
        if name not in values:
            raise ValueError(f"`pack` needs lengths of {name!r}; it got lengths of {sorted(values)}.")
        values = values[name]
    column = bound(values, node, "pack")
    return _whole_numbers(column[name] if column.dtype.names and name in column.dtype.names else column, "pack")


def _whole_numbers(column: Column, what: str) -> Column:
    if column.dtype.kind not in "iu" or any(part.values.ndim != 1 for part in column.parts):
        raise TypeError(f"`{what}` takes one whole number per element as its length; got values of {_kind(column)}.")
    least = min((int(part.values.min()) for part in column.parts if len(part.values)), default=0)
    if least < 0:
        raise ValueError(f"`{what}` got a negative length, {least}.")
    return column


def _numbers(values: Any, node: MapNode, what: str) -> Column:
    column = bound(values, node, what)
    if column.dtype.kind not in "biuf" or any(part.values.ndim != 1 for part in column.parts):
        raise TypeError(f"`{what}` takes one number per element; got values of {_kind(column)}.")
    return column


def _kind(column: Column) -> str:
    return f"{column.dtype}{list(column.parts[0].values.shape[1:]) or ''}"


def _by_position(values: Any, node: MapNode, what: str) -> Column:
    array = np.asarray(values)
    if node.epochs is not Epochs.SAME:
        raise ValueError(
            f"`{what}` got an array, which goes by position, but after {node.call()} the same position holds another "
            "record in every epoch. Use a column, `ds.column(function)`, which belongs to records, or do it before."
        )
    if array.ndim == 0 or len(array) != node.length:
        raise ValueError(
            f"`{what}` needs a column, or one value for each of the {node.length} elements of {node.call()}; "
            f"got {trees.describe(array)}."
        )
    return Column((Part(node, array),))


def _ancestors(node: MapNode) -> list[MapNode]:
    return [node, *(above for parent in node.parents for above in _ancestors(parent))]

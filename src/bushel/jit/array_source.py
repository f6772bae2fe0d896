"""`ArraySource`: records that are rows of arrays in memory, mixtures of such sources, and data sets as arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bushel.base import checks, trees
from bushel.base.blocks import Columns
from bushel.base.hints import explains_arguments
from bushel.base.private_blocks import own_each
from bushel.jit import record_order
from bushel.jit.device_columns import get_row_spec, is_column, make_columns, take_rows
from bushel.jit.pytree import build, child, pytree_dataclass, set_attributes
from bushel.jit.record_order import Ordering
from bushel.jit.record_source import RecordSource
from bushel.jit.source import Address, Tree


@pytree_dataclass
class ArraySource(RecordSource):
    """Records that are rows of arrays, in sequence or shuffled.

    With `ordering="shuffle"` and `init_state(s)`, every epoch has the order of
    `MapDataset.source(...).seed(s).shuffle()` on the host.

    Args:
      data: a tree of arrays with one row per record. Arrays of JAX stay on their device; arrays of NumPy go to the
        default device.
      ordering: "shuffle" or "sequential".
      where: one boolean per record; records with False are left out.
      weights: one number per record. Records are then drawn with replacement, with these weights; an epoch has as many
        draws as there are records.

    >>> source = ArraySource({"x": np.arange(4, dtype=np.int32) * 10}, ordering="sequential")
    >>> source
    ArraySource({'x': int32[]}, length=4, order=Sequential)
    >>> value, mask, state = source.next(source.init_state(0))
    >>> int(value["x"]), bool(mask)
    (0, True)
    """

    columns: Tree = child()
    order: record_order.RecordOrder = child()

    @explains_arguments(
        "Write `ArraySource(arrays)`.",
        shuffle='Write `ordering="shuffle"` or `ordering="sequential"`.',
        seed="Write `loader.init_state(seed)`.",
        batch_size="Write `DataLoader([source, BatchTransform({0})])`.",
    )
    def __init__(self, data: Tree, ordering: Ordering = "shuffle", *, where: Any = None, weights: Any = None):
        columns, length = make_columns(data)
        if weights is not None and where is not None:
            raise ValueError("Give where= or weights=, not both: a weight of zero leaves a record out.")
        if where is not None:
            order = record_order.make_filtered_order(ordering, where, length)
        elif weights is not None:
            drawn = {'ordering="sequential"': ordering != "shuffle"}
            checks.unused(drawn, "with weights, since records are drawn at random", "Leave it out")
            order = record_order.make_weighted_order(weights, length)
        else:
            order = record_order.make_order(ordering, length)
        set_attributes(self, columns=columns, order=order)

    def _get_record_spec(self) -> Tree:
        return get_row_spec(self.columns)

    def _read_records(self, address: Address) -> Tree:
        return take_rows(self.columns, address.record)


def mix(sources: Sequence[ArraySource], weights: Sequence[float] | None = None) -> ArraySource:
    """Mix the records of several array sources in proportion to `weights`, in the fixed pattern of `MapDataset.mix`.

    The arrays are concatenated once, so that a batch is still one gather per array. An epoch ends when the first
    source is used up. In the next epoch each source continues where it stopped; a source that reaches its end is
    shuffled again.

    >>> ones, tens = (ArraySource(np.arange(1, 5) * k, "sequential") for k in (1, 10))
    >>> mixed = mix([ones, tens], [1, 1])
    >>> state = mixed.init_state()
    >>> for _ in range(4):
    ...     value, _, state = mixed.next(state)
    ...     print(value)
    1
    10
    2
    20
    """
    sources = list(sources)
    if not sources or not all(isinstance(source, ArraySource) for source in sources):
        raise TypeError(f"mix takes array sources, got {[type(source).__name__ for source in sources]}.")
    specs = [source.element_spec() for source in sources]
    for number, spec in enumerate(specs):
        if jax.tree.flatten(spec) != jax.tree.flatten(specs[0]):
            raise ValueError(
                "All sources of a mixture must have elements of the same structure, shapes and dtypes, but source 0 "
                f"has {trees.describe(specs[0])} and source {number} has {trees.describe(spec)}."
            )
    sizes = [len(jax.tree.leaves(source.columns)[0]) for source in sources]
    offsets = [sum(sizes[:number]) for number in range(len(sizes))]
    order = record_order.make_mixed_order([source.order for source in sources], offsets, weights)
    columns = jax.tree.map(
        lambda *parts: dataclasses.replace(parts[0], stored=jnp.concatenate([part.stored for part in parts])),
        *(source.columns for source in sources),
        is_leaf=is_column,
    )
    return build(ArraySource, columns=columns, order=order)


def dataset_to_jax(dataset: Any, storage_device: Any = "cpu") -> Tree:
    """Stack all elements of a data set into arrays of JAX.

    Args:
      dataset: an object with `__len__` and `__getitem__`. If it also has `arrays`, or is a `bushel.MapDataset`,
        all elements are read with one call.
      storage_device: "cpu" for the host's memory, a `jax.Device`, or None for JAX's default device.

    >>> dataset_to_jax([{"x": 1, "y": 2.0}, {"x": 3, "y": 4.0}])["x"].tolist()
    [1, 3]
    """
    device = jax.devices(storage_device)[0] if isinstance(storage_device, str) else storage_device
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise TypeError(f"dataset_to_jax takes a data set with __len__ and __getitem__, got {type(dataset).__name__}.")
    if len(dataset) == 0:
        raise ValueError("dataset_to_jax needs at least one element, got an empty data set.")
    if checks.is_endless(len(dataset)):
        raise ValueError("dataset_to_jax takes all elements, but this data set has no end: leave out `repeat()`.")
    if hasattr(dataset, "arrays"):
        stacked = dataset.arrays()
    else:
        everything = range(len(dataset))
        # One by one: a source may use one buffer for all records.
        stacked = stack_rows(
            dataset._get_block(everything)
            if hasattr(dataset, "_get_block")
            else own_each(dataset[i] for i in everything)
        )
    with jax.default_device(device):
        return jax.tree.map(jnp.asarray, stacked)


def stack_rows(block: Any) -> Tree:
    """Return a block of a host data set as one tree of arrays: its columns, or its rows stacked."""
    if isinstance(block, Columns):
        if block.present is None:
            return block.tree
        block = block.rows()
    first = block[0]
    for number, row in enumerate(block):
        same_structure = row is not None and jax.tree.structure(row) == jax.tree.structure(first)
        pairs = zip(jax.tree.leaves(first), jax.tree.leaves(row), strict=True) if same_structure else ()
        if not same_structure or any(np.shape(a) != np.shape(b) for a, b in pairs):
            raise ValueError(
                "Elements can only be stacked if all have the same structure and shapes, but element 0 is "
                f"{trees.describe(first)} and element {number} is {trees.describe(row)}."
            )
    return jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *block)

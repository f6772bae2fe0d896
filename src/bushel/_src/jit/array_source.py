"""Records that are rows of arrays in memory: single rows, windows, or rows distributed over the devices of a mesh.

`ArraySource`, `WindowSource` and `ShardedSource` gather the rows of a batch, one gather per array. Also mixtures, and
data sets as arrays.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bushel._src.base import checks, trees
from bushel._src.base.blocks import Columns, make_each_private
from bushel._src.base.hints import explains_arguments
from bushel._src.base.public import public
from bushel._src.index import shuffle
from bushel._src.jit import record_order
from bushel._src.jit.record_order import (
    TABLE_BELOW,
    OrderedRecords,
    Ordering,
    RecordOrder,
    compute_permutations,
    make_order,
)
from bushel._src.jit.source import (
    Address,
    PrecomputedEpochs,
    Pytree,
    Tree,
    build,
    child,
    pytree_dataclass,
    set_attributes,
    stack_spec,
)
from bushel._src.jit.uint32 import derive_seed, to_uint32

_Tree = Any

_PACKED_BYTES = (32, 3000)  # packing shorter or longer rows gains nothing


@pytree_dataclass
class DeviceColumn(Pytree):
    """One array of rows. On CPU, small images of 8-bit and 16-bit numbers are stored as uint32."""

    stored: jax.Array = child()
    shape: tuple[int, ...] = ()
    dtype: Any = None

    def take(self, records: jax.Array) -> jax.Array:
        """Return the rows of these records."""
        rows = jnp.take(self.stored, records, axis=0, mode="clip")
        if rows.dtype == self.dtype:
            return rows
        return jax.lax.bitcast_convert_type(rows, self.dtype).reshape(len(records), *self.shape)


def make_columns(data: _Tree) -> tuple[_Tree, int]:
    """Check a tree of arrays; return it as a tree of columns, and the number of rows.

    Arrays of NumPy go to JAX's default device. Arrays of JAX stay where they are.
    """
    leaves = jax.tree.leaves(data)
    if not leaves:
        raise ValueError(f"A source needs at least one array, got {trees.describe(data)}.")
    for leaf in leaves:
        if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
            raise TypeError(
                f"A source takes a tree of arrays, got {trees.describe(data)}. Write `np.array(...)` for numbers in a "
                "list, and `ds.batch(len(ds))[0]` for the elements of a MapDataset."
            )
        if not isinstance(leaf, jax.Array) and np.dtype(leaf.dtype).kind not in "biufcV":
            raise TypeError(f"A source takes arrays of numbers, got {trees.describe(data)}.")
    count = count_rows(data)
    return jax.tree.map(_make_column, data), count


def count_rows(data: _Tree) -> int:
    """Return the number of rows, which must be the same for all arrays of `data`."""
    counts = {int(leaf.shape[0]) if getattr(leaf, "shape", ()) else -1 for leaf in jax.tree.leaves(data)}
    if len(counts) != 1 or -1 in counts:
        raise ValueError(f"All arrays of a source must have one row per record, got {trees.describe(data)}.")
    return counts.pop()


def _make_column(array: Any) -> DeviceColumn:
    if not isinstance(array, jax.Array) or _is_elsewhere(array):
        array = _check_range(np.asarray(array))
    row_bytes = array.dtype.itemsize * int(np.prod(array.shape[1:]))
    packable = _is_faster_packed(array.shape[1:], array.dtype) and _is_on_cpu(array)
    shape, dtype = tuple(array.shape[1:]), jax.dtypes.canonicalize_dtype(array.dtype)
    if packable:
        if isinstance(array, np.ndarray):
            array = np.ascontiguousarray(array).reshape(len(array), -1).view(np.uint32)
        else:
            array = jax.lax.bitcast_convert_type(
                array.reshape(len(array), row_bytes // 4, 4 // array.dtype.itemsize), jnp.uint32
            )
    return DeviceColumn(jnp.asarray(array), shape, dtype)


def _is_faster_packed(shape: tuple[int, ...], dtype: Any) -> bool:
    """Return whether XLA on CPU reads rows of this shape faster as words of 32 bits.

    It compiles loops over small images of 8-bit or 16-bit numbers badly: packed, 28 x 28 bytes take half the time. Rows
    of one axis, large rows, and rows whose words would span two pixels (as of 32 x 32 x 3) are up to four times slower.
    """
    if not isinstance(dtype, np.dtype) or dtype.kind not in "iuf" or dtype.itemsize >= 4:
        return False
    axes = [size for size in shape if size != 1]
    small = _PACKED_BYTES[0] <= dtype.itemsize * math.prod(axes) <= _PACKED_BYTES[1]
    return len(axes) > 1 and small and axes[-1] * dtype.itemsize % 4 == 0


def _check_range(array: np.ndarray) -> np.ndarray:
    """Return the array if JAX can hold its integers. Without its 64-bit types, JAX would cut them off silently."""
    dtype = jax.dtypes.canonicalize_dtype(array.dtype)
    if array.dtype.kind in "iu" and dtype != array.dtype and array.size:
        limits = np.iinfo(dtype)
        if int(array.min()) < limits.min or int(array.max()) > limits.max:
            raise ValueError(
                f"JAX converts {array.dtype} to {dtype}, but numbers from {array.min()} to {array.max()} do not fit "
                f"{dtype}. Set jax_enable_x64, or make the numbers smaller."
            )
    return array


def _is_elsewhere(array: jax.Array) -> bool:
    """Return whether an array is on another device than JAX's default one, and not committed to that device.

    Every call of a compiled program would move such an array to the default device. So the column moves it once.
    """
    committed = array.committed if hasattr(array, "committed") else getattr(array, "_committed", True)
    return not committed and array.devices() != _get_default_devices()


def _is_on_cpu(array: Any) -> bool:
    devices = array.devices() if isinstance(array, jax.Array) else _get_default_devices()
    return len(devices) == 1 and next(iter(devices)).platform == "cpu"


def _get_default_devices() -> set[Any]:
    return jnp.zeros(()).devices()


def is_column(value: Any) -> bool:
    """Return whether a part of a tree is a column."""
    return isinstance(value, DeviceColumn)


def get_row_spec(columns: _Tree) -> _Tree:
    """Return the shapes and dtypes of one row."""
    return jax.tree.map(lambda column: jax.ShapeDtypeStruct(column.shape, column.dtype), columns, is_leaf=is_column)


def take_rows(columns: _Tree, records: jax.Array) -> _Tree:
    """Return the rows of these records, from all columns."""
    return jax.tree.map(lambda column: column.take(records), columns, is_leaf=is_column)


@public("bushel.jit")
@pytree_dataclass
class ArraySource(OrderedRecords):
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


@public("bushel.jit")
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


@public("bushel.jit.cereal")
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
            else make_each_private(dataset[i] for i in everything)
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


@public("bushel.jit")
class Window(NamedTuple):
    """Successive rows of one episode. Where `mask` is False the episode has ended, and its last row is repeated."""

    steps: Tree
    mask: Any
    episode: Any


@public("bushel.jit")
@pytree_dataclass
class WindowSource(OrderedRecords):
    """Windows of `length` successive rows. No window crosses the end of an episode.

    Args:
      data: a tree of arrays with one row per step, one episode after the other.
      length: the number of steps in a window.
      stride: the number of steps from the start of a window to the start of the next.
      episode_lengths: the number of rows of each episode; by default all rows are one episode.
      partial: whether a window may begin so late that the episode ends inside it. The mask is False for the missing
        steps.
      ordering: "shuffle" or "sequential".

    >>> source = WindowSource(np.arange(5), 2, episode_lengths=[3, 2], ordering="sequential")
    >>> state = source.init_state()
    >>> for _ in range(source.steps_per_epoch):
    ...     window, _, state = source.next(state)
    ...     print(window.steps, window.episode)
    [0 1] 0
    [1 2] 0
    [3 4] 1
    """

    columns: Tree = child()
    ends: jax.Array = child()
    """Episode e has the windows from `ends[e - 1]` up to, and without, `ends[e]`."""
    first_row: jax.Array = child()
    """Episode e has the rows from `first_row[e]` up to, and without, `first_row[e + 1]`."""
    order: RecordOrder = child()
    window_length: int
    stride: int

    def __init__(
        self,
        data: Tree,
        length: int,
        *,
        stride: int = 1,
        episode_lengths: Any = None,
        partial: bool = False,
        ordering: Ordering = "shuffle",
    ):
        length, stride = checks.positive(length, "length"), checks.positive(stride, "stride")
        columns, count = make_columns(data)
        lengths = np.array([count]) if episode_lengths is None else np.asarray(episode_lengths)
        if lengths.ndim != 1 or lengths.dtype.kind not in "iu" or (lengths < 0).any() or lengths.sum() != count:
            raise ValueError(
                f"episode_lengths must be integers that add up to the {count} rows of the data, "
                f"got {lengths.tolist()[:10]}."
            )
        lengths = lengths.astype(np.int64)
        windows = -(-lengths // stride) if partial else np.maximum(0, (lengths - length) // stride + 1)
        ends = np.cumsum(windows)
        if not ends[-1]:
            raise ValueError(
                f"No episode has a window of {length} steps: the longest episode has {lengths.max()}. "
                "Pass partial=True for windows that are longer than their episode."
            )
        first_row = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        set_attributes(
            self,
            columns=columns,
            ends=jnp.asarray(ends.astype(np.int32)),
            first_row=jnp.asarray(first_row),
            order=make_order(ordering, int(ends[-1])),
            window_length=length,
            stride=stride,
        )

    def _get_record_spec(self) -> Tree:
        steps = stack_spec(get_row_spec(self.columns), self.window_length)
        mask = jax.ShapeDtypeStruct((self.window_length,), bool)
        return Window(steps, mask, jax.ShapeDtypeStruct((), jnp.int32))

    def _read_records(self, address: Address) -> Tree:
        episode = jnp.searchsorted(self.ends, address.record, side="right").astype(jnp.int32)
        before = jnp.where(episode > 0, self.ends[episode - 1], 0)
        start = self.first_row[episode] + (address.record - before) * self.stride
        wanted = start[:, None] + jnp.arange(self.window_length)
        last = self.first_row[episode + 1] - 1
        row = jnp.minimum(wanted, last[:, None])
        rows = take_rows(self.columns, row.reshape(-1))
        steps = jax.tree.map(lambda leaf: leaf.reshape(*row.shape, *leaf.shape[1:]), rows)
        return Window(steps, wanted <= last[:, None], episode)


if hasattr(jax, "shard_map"):
    shard_map = jax.shard_map
else:  # before JAX 0.6
    from jax.experimental.shard_map import shard_map

_SEED_STEP = 0x9E3779B9
"""The difference between the seeds of two shards. It is large, because the seeds of two epochs differ by 1."""


@pytree_dataclass
class RoundRobin(RecordOrder):
    """The shards take turns, each in its own order: position p is element p // shards of shard p % shards.

    Shard k has the order of `.shuffle(seed=derived + k * 0x9E3779B9)` over its own rows on the host, where `derived` is
    the seed that `.seed(s).shuffle()` uses.
    """

    length: int
    shuffled: bool
    shards: int = 1

    @property
    def _shard_length(self) -> int:
        return self.length // self.shards

    def _derive_shard_seed(self, seed: Any, shard: Any) -> jax.Array:
        return derive_seed(seed) + to_uint32(shard) * to_uint32(_SEED_STEP)

    def compute_tables(self, seed: Any, epoch: Any, count: int) -> Any:
        if not self.shuffled or self._shard_length >= TABLE_BELOW:
            return None
        shard_seeds = self._derive_shard_seed(seed, jnp.arange(self.shards))
        seeds = shard_seeds[None] + epoch + jnp.arange(count, dtype=jnp.uint32)[:, None]
        tables = compute_permutations(self._shard_length, seeds.reshape(-1))
        return tables.reshape(count, self.shards, self._shard_length)

    def find_records(self, seed: Any, tables: PrecomputedEpochs, epoch: Any, position: Any) -> jax.Array:
        shard, turn = position % self.shards, position // self.shards
        if not self.shuffled:
            row = turn.astype(jnp.int32)
        elif tables.tables is None:
            shard_seed = self._derive_shard_seed(seed, shard) + epoch
            row = shuffle.walk(turn, length=self._shard_length, seed=shard_seed, xp=jnp)
        else:
            row = tables.tables[(epoch - tables.first).astype(jnp.int32), shard, turn].astype(jnp.int32)
        return shard.astype(jnp.int32) * self._shard_length + row


@public("bushel.jit")
@pytree_dataclass
class ShardedSource(OrderedRecords):
    """Rows of arrays, distributed over the devices of one axis of a mesh. Batches are distributed in the same way.

    Each device shuffles its own rows and gathers its own part of every batch, so devices send no data to each other.
    The batch size must be a multiple of the number of devices.

    Args:
      data: a tree of arrays. Their rows are distributed evenly over the axis, unless they already are.
      mesh: the devices.
      axis: the name of the mesh's axis.
      ordering: "shuffle" or "sequential".
      exchange: shuffle all rows together, in the order of `.seed(s).shuffle()` on the host. Devices then send rows to
        each other in every step.
    """

    columns: Tree = child()
    order: RecordOrder = child()
    mesh: Mesh
    axis: str
    exchange: bool

    def __init__(
        self, data: Tree, mesh: Mesh, axis: str = "data", ordering: Ordering = "shuffle", *, exchange: bool = False
    ):
        if axis not in mesh.shape:
            raise ValueError(f"The mesh has the axes {list(mesh.shape)}, not {axis!r}.")
        shards, count = mesh.shape[axis], count_rows(data)
        if count % shards:
            raise ValueError(
                f"{count} rows cannot be distributed evenly over {shards} devices. Leave out the last "
                f"{count % shards}, or add rows, and mark them in a column of your own."
            )
        order = make_order(ordering, count)
        sharding = NamedSharding(mesh, PartitionSpec(axis))
        set_attributes(
            self,
            columns=jax.tree.map(lambda leaf: _put_column(leaf, sharding), data),
            order=order if exchange else RoundRobin(count, ordering == "shuffle", shards),
            mesh=mesh,
            axis=axis,
            exchange=exchange,
        )

    def _get_record_spec(self) -> Tree:
        return get_row_spec(self.columns)

    def _read_records(self, address: Address) -> Tree:
        over = PartitionSpec(self.axis)
        if self.exchange:
            rows = take_rows(self.columns, address.record)
            return jax.lax.with_sharding_constraint(rows, NamedSharding(self.mesh, over))

        def take_local_rows(columns: Tree, records: jax.Array) -> Tree:
            first = jax.lax.axis_index(self.axis) * (self.length // self.shards)
            return take_rows(columns, records - first)

        gather = shard_map(take_local_rows, mesh=self.mesh, in_specs=(over, over), out_specs=over)
        return gather(self.columns, address.record)


def _put_column(array: Any, sharding: NamedSharding) -> DeviceColumn:
    array = jax.device_put(array, sharding)
    return DeviceColumn(array, tuple(array.shape[1:]), array.dtype)

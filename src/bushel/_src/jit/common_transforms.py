"""The common transforms: batches, maps, entries of batches, images, devices; and `masked_mean`.

Batches of an indexed source are located by arithmetic, those of others collected one element after the other.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp

from bushel._src.base import checks, trees
from bushel._src.base.hints import explains_creation
from bushel._src.base.public import public
from bushel._src.jit.source import (
    Address,
    ElementTransform,
    IndexedSource,
    PrecomputedEpochs,
    Pytree,
    Source,
    Transform,
    Tree,
    check_callable,
    check_spec,
    child,
    find_specs,
    pytree_dataclass,
    stack_spec,
)
from bushel._src.jit.uint32 import LIMIT, count_epochs, multiply_divide, to_uint32


def count_batches(length: int, size: int, remainder: str) -> int:
    """Return the number of batches in an epoch of `length` elements.

    >>> [count_batches(10, 4, remainder) for remainder in ("pad", "drop", "wrap")]
    [3, 2, 3]
    """
    return length // size if remainder == "drop" else -(-length // size)


def make_batches(inner: Source, size: int, remainder: str) -> Source:
    """Return batches of any source. For `remainder` see `BatchTransform`."""
    if not isinstance(inner, IndexedSource):
        return BatchedStream(inner, size, remainder)
    if inner.shards > 1 and inner.shape:
        raise ValueError("Batches of a sharded source cannot be batched again. Use one BatchTransform.")
    if size % inner.shards:
        raise ValueError(f"batch_size must be a multiple of the {inner.shards} shards of the data, got {size}.")
    return BatchedSource(inner, size, remainder)


@pytree_dataclass
class BatchedSource(IndexedSource):
    """Batches of an indexed source."""

    inner: IndexedSource = child()
    size: int
    remainder: str

    @property
    def length(self) -> int:
        return count_batches(self.inner.length, self.size, self.remainder)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.size, *self.inner.shape)

    @property
    def shards(self) -> int:
        return self.inner.shards

    @property
    def depth(self) -> int:
        return 1 + self.inner.depth

    def _get_specs(self) -> tuple[Tree, Any]:
        return stack_spec(self.inner._get_specs(), self.size)

    def _count_record_epochs(self, count: int) -> int:
        if self._wraps:
            return self.inner._count_record_epochs(count * self.size)
        epochs = count_epochs(count, self.length)
        if self.inner._count_record_epochs(1) == 1:
            return epochs
        return self.inner._count_record_epochs(epochs * self.inner.length)

    def _find_record_epoch(self, epoch: Any, position: Any) -> Any:
        return self.inner._find_record_epoch(*self._find_start(epoch, position))

    def _compute_tables(self, seed: Any, epoch: Any, count: int) -> Any:
        return self.inner._compute_tables(seed, epoch, count)

    def _locate(self, seed: Any, tables: PrecomputedEpochs, epoch: Any, position: Any) -> Address:
        address = self._locate_rows(seed, tables, epoch, position)
        if self.shards == 1:
            return address
        # The order goes from shard to shard, but each device needs its rows side by side in the batch.
        grid = (*jnp.shape(position), self.size // self.shards, self.shards)
        return Address(*(jnp.swapaxes(part.reshape(grid), -1, -2).reshape(part.shape) for part in address))

    def _locate_rows(self, seed: Any, tables: PrecomputedEpochs, epoch: Any, position: Any) -> Address:
        first_epoch, start = self._find_start(epoch, position)
        positions = start[..., None] + jnp.arange(self.size, dtype=jnp.uint32)
        length = self.inner.length
        if self._wraps:
            turns = positions // length
            return self.inner._locate(seed, tables, first_epoch[..., None] + turns, positions - turns * length)
        inside = positions < length
        # `first_epoch` has one entry for the whole batch, so its seed is derived once and not once per row.
        address = self.inner._locate(
            seed, tables, first_epoch[..., None], jnp.where(inside, positions, 0) if self._pads else positions
        )
        if not self._pads:
            return address
        extra = address.valid.ndim - inside.ndim
        return address._replace(valid=address.valid & inside.reshape(*inside.shape, *(1,) * extra))

    def _find_start(self, epoch: Any, position: Any) -> tuple[Any, Any]:
        """Return the epoch and the position of the first element of a batch."""
        epoch, position = to_uint32(epoch), to_uint32(position)
        if not self._wraps:
            return epoch, position * self.size
        return multiply_divide(epoch, self.length * self.size, self.inner.length, plus=position * self.size)

    @property
    def _wraps(self) -> bool:
        return self.remainder == "wrap" and self.inner.length % self.size != 0

    @property
    def _pads(self) -> bool:
        return self.remainder == "pad" and self.inner.length % self.size != 0

    def _read_element(self, address: Address) -> tuple[Tree, jax.Array]:
        value, mask = self.inner._read_elements(address)
        return (zero_padding(value, mask) if self._pads else value), mask

    def _read_elements(self, address: Address) -> tuple[Tree, jax.Array]:
        count = address.record.shape[0]
        rows = address.reshape(count * self.size, *address.record.shape[2:])
        return jax.tree.map(lambda leaf: leaf.reshape(count, self.size, *leaf.shape[1:]), self._read_element(rows))


def zero_padding(value: Tree, mask: jax.Array) -> Tree:
    """Return `value` with zeros in the rows that are padding."""
    present = mask.reshape(mask.shape[0], -1).any(axis=1)

    def zero(leaf: jax.Array) -> jax.Array:
        return jnp.where(present.reshape(-1, *(1,) * (leaf.ndim - 1)), leaf, jnp.zeros((), leaf.dtype))

    return jax.tree.map(zero, value)


@pytree_dataclass
class BatchedStream(Pytree):
    """Batches of a source that can only be read in order. Their mask has one entry per element, as cyreal's.

    It is False for an element that has False anywhere in its own mask.
    """

    inner: Any = child()
    size: int
    remainder: str

    @property
    def steps_per_epoch(self) -> int:
        return count_batches(self.inner.steps_per_epoch, self.size, self.remainder)

    def element_spec(self) -> Tree:
        return stack_spec(self.inner.element_spec(), self.size)

    def init_state(self, key: Any = None) -> tuple[Any, jax.Array]:
        return self.inner.init_state(key), jnp.int32(0)

    def next(self, state: tuple[Any, jax.Array]) -> tuple[Tree, jax.Array, tuple[Any, jax.Array]]:
        inner_state, step = state
        length, size = self.inner.steps_per_epoch, self.size
        left = length - step * size if self.remainder != "wrap" else jnp.int32(size)

        def pull(inner_state: Any, row: jax.Array) -> tuple[Any, tuple[Tree, jax.Array]]:
            if self.remainder != "pad" or length % size == 0:
                return self._pull_element(inner_state)
            return jax.lax.cond(row < left, self._pull_element, self._make_padding, inner_state)

        inner_state, (value, mask) = jax.lax.scan(pull, inner_state, jnp.arange(size))
        step = (step + 1) % self.steps_per_epoch
        if self.remainder == "drop" and length % size:
            inner_state = jax.lax.cond(step == 0, self._skip_remainder, lambda state: state, inner_state)
        return value, mask, (inner_state, step)

    def _pull_element(self, inner_state: Any) -> tuple[Any, tuple[Tree, jax.Array]]:
        value, mask, inner_state = self.inner.next(inner_state)
        return inner_state, (value, jnp.asarray(mask).all())

    def _get_specs(self) -> tuple[Tree, Any]:
        value, mask = find_specs(self.inner)
        return stack_spec((value, jax.ShapeDtypeStruct((), mask.dtype)), self.size)

    def _make_padding(self, inner_state: Any) -> tuple[Any, tuple[Tree, jax.Array]]:
        _, element = jax.eval_shape(self._pull_element, inner_state)
        return inner_state, jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), element)

    def _skip_remainder(self, inner_state: Any) -> Any:
        count = self.inner.steps_per_epoch % self.size
        return jax.lax.fori_loop(0, count, lambda _, state: self.inner.next(state)[2], inner_state)


Remainder = Literal["pad", "drop", "wrap"]


@public("bushel.jit")
@explains_creation(
    drop_last='Write `BatchTransform(4, remainder="drop")`.',
    pad_last_batch='Write `remainder="pad"`, which is the default, or `remainder="wrap"`.',
    drop_remainder='Write `BatchTransform(4, remainder="drop")`.',
)
@dataclasses.dataclass(frozen=True)
class BatchTransform(Transform):
    """Collect `batch_size` elements into a batch, with a mask that has one boolean per element.

    `remainder` says what happens to the last elements of an epoch if they do not fill a batch:

    - "pad", the default: rows of zeros fill the batch, with False in the mask. The host's `.batch(n).repeat()`.
    - "drop": they are left out. The host's `.batch(n, drop_remainder=True).repeat()`.
    - "wrap": elements of the next epoch fill the batch, with True in the mask. The host's `.repeat().batch(n)`.

    >>> import numpy as np
    >>> from bushel.jit import ArraySource
    >>> batches = BatchTransform(2)(ArraySource(np.arange(3), "sequential"))
    >>> state = batches.init_state()
    >>> for _ in range(2):
    ...     value, mask, state = batches.next(state)
    ...     print(value, mask)
    [0 1] [ True  True]
    [2 0] [ True False]
    """

    batch_size: int
    remainder: Remainder = dataclasses.field(default="pad", kw_only=True)
    element_spec_override: Tree = dataclasses.field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        checks.positive(self.batch_size, "batch_size")
        if self.remainder == "keep":
            raise ValueError(
                "Inside jit all batches have one shape, so a shorter last batch cannot be kept. Write "
                'remainder="pad": rows of zeros fill it, with False in the mask.'
            )
        checks.choice(self.remainder, Remainder, "remainder")

    def __call__(self, inner: Source) -> Source:
        length = inner.steps_per_epoch
        if self.remainder == "drop" and length < self.batch_size:
            raise ValueError(
                f'remainder="drop" with batch_size={self.batch_size} leaves no batch: an epoch has {length} elements.'
            )
        check_spec(inner.element_spec(), self.element_spec_override, "BatchTransform")
        if length + self.batch_size > LIMIT:
            raise ValueError(
                f"Inside jit an epoch and a batch together can have at most 2**31 elements, got {length} and "
                f"{self.batch_size}."
            )
        return make_batches(inner, self.batch_size, self.remainder)


@public("bushel.jit")
@dataclasses.dataclass(frozen=True)
class MapTransform(ElementTransform):
    """Apply `fn(value, mask)` to each element: to records before a `BatchTransform`, to batches after it.

    >>> import numpy as np
    >>> from bushel.jit import ArraySource
    >>> doubled = MapTransform(lambda value, mask: value * 2)(ArraySource(np.arange(3), "sequential"))
    >>> doubled.next(doubled.init_state())[0].tolist()
    0
    """

    fn: Callable[[Tree, jax.Array], Tree]
    element_spec_override: Tree = None

    def check(self, spec: Tree) -> None:
        check_callable(self.fn, self)

    def apply(self, value: Tree, mask: jax.Array, keys: jax.Array | None) -> tuple[Tree, jax.Array]:
        result = jax.tree.map(jnp.asarray, self.fn(value, mask))
        return check_spec(result, self.element_spec_override, "The function of MapTransform"), mask


@public("bushel.jit")
@dataclasses.dataclass(frozen=True)
class RandomMapTransform(ElementTransform):
    """Apply `fn(record, key)` to each record, also to the records inside a batch.

    The key is computed from (seed, epoch, record) and from the number of this stage. So the result for a record does
    not depend on the batch size, on the step, or on where a run was resumed.

    >>> import numpy as np
    >>> from bushel.jit import ArraySource
    >>> noisy = RandomMapTransform(lambda x, key: x + jax.random.normal(key))(ArraySource(np.zeros(3)))
    >>> noisy.element_spec()
    ShapeDtypeStruct(shape=(), dtype=float32)
    """

    fn: Callable[[Tree, jax.Array], Tree]
    random = True

    def check(self, spec: Tree) -> None:
        check_callable(self.fn, self)

    def apply(self, value: Tree, mask: jax.Array, keys: jax.Array | None) -> tuple[Tree, jax.Array]:
        fn = self.fn
        assert keys is not None
        for _ in keys.shape:
            fn = jax.vmap(fn)
        return jax.tree.map(jnp.asarray, fn(value, keys)), mask


@public("bushel.jit.cereal")
@dataclasses.dataclass(frozen=True)
class DevicePutTransform(ElementTransform):
    """Move elements to a device: a `jax.Device`, a name such as "cpu" or "gpu:0", or None for `jax.devices()[0]`."""

    device: Any = None

    def check(self, spec: Tree) -> None:
        find_device(self.device)

    def apply(self, value: Tree, mask: jax.Array, keys: jax.Array | None) -> tuple[Tree, jax.Array]:
        return jax.device_put(value, find_device(self.device)), mask


def find_device(device: Any) -> Any:
    """Return the device with this name, or `jax.devices()[0]` for None."""
    if device is None:
        return jax.devices()[0]
    if not isinstance(device, str):
        return device
    platform, _, number = device.partition(":")
    try:
        return jax.devices(platform)[int(number or 0)]
    except (RuntimeError, IndexError, ValueError):
        known = ", ".join(sorted(f"{each.platform}:{each.id}" for each in jax.devices()))
        raise ValueError(f"There is no device {device!r}. The devices are {known}.") from None


@public("bushel.jit")
@dataclasses.dataclass(frozen=True)
class NormalizeImageTransform(ElementTransform):
    """Convert images to floats, as `image * scale + offset`: by default from 0..255 to 0..1.

    >>> import numpy as np
    >>> from bushel.jit import ArraySource, BatchTransform, DataLoader
    >>> images = {"image": np.full((4, 2, 2, 1), 255, np.uint8)}
    >>> loader = DataLoader([ArraySource(images), BatchTransform(2), NormalizeImageTransform()])
    >>> float(loader.batch_at(0, 0)[0]["image"].max())
    1.0
    """

    image_key: str = "image"
    dtype: Any = jnp.float32
    scale: float = 1 / 255
    offset: float = 0.0
    data_key: str | None = None

    def check(self, spec: Tree) -> None:
        get_entry_spec(spec, self.data_key or self.image_key, "NormalizeImageTransform")

    def apply(self, value: Tree, mask: jax.Array, keys: jax.Array | None) -> tuple[Tree, jax.Array]:
        key = self.data_key or self.image_key
        image = value[key].astype(self.dtype) * self.scale + self.offset
        return replace_entry(value, key, image), mask


@public("bushel.jit")
@dataclasses.dataclass(frozen=True)
class FlattenTransform(ElementTransform):
    """Merge all axes of one entry from axis `start_index` on into one axis."""

    data_key: str
    start_index: int = 1

    def check(self, spec: Tree) -> None:
        leaf = get_entry_spec(spec, self.data_key, "FlattenTransform")
        if not 0 <= self.start_index < max(len(leaf.shape), 1):
            raise ValueError(
                f"FlattenTransform: start_index must be an axis of {self.data_key!r}, which is {trees.describe(leaf)}; "
                f"got {self.start_index}."
            )

    def apply(self, value: Tree, mask: jax.Array, keys: jax.Array | None) -> tuple[Tree, jax.Array]:
        leaf = value[self.data_key]
        kept = leaf.shape[: self.start_index]
        return replace_entry(value, self.data_key, leaf.reshape(*kept, math.prod(leaf.shape[self.start_index :]))), mask


@public("bushel.jit")
@dataclasses.dataclass(frozen=True)
class FlattenImageTransform(ElementTransform):
    """Turn each image into a vector: all axes behind the axes of the mask become one.

    >>> import numpy as np
    >>> from bushel.jit import ArraySource, BatchTransform, DataLoader
    >>> images = {"image": np.zeros((4, 8, 8, 3), np.float32)}
    >>> loader = DataLoader([ArraySource(images), BatchTransform(2), FlattenImageTransform()])
    >>> loader.batch_at(0, 0)[0]["image"].shape
    (2, 192)
    """

    image_key: str = "image"

    def check(self, spec: Tree) -> None:
        get_entry_spec(spec, self.image_key, "FlattenImageTransform")

    def apply(self, value: Tree, mask: jax.Array, keys: jax.Array | None) -> tuple[Tree, jax.Array]:
        image = value[self.image_key]
        return replace_entry(value, self.image_key, image.reshape(*image.shape[: mask.ndim], -1)), mask


@public("bushel.jit")
@dataclasses.dataclass(frozen=True)
class RenameTransform(ElementTransform):
    """Rename entries of a dict. `renames` maps old names to new ones.

    >>> import numpy as np
    >>> from bushel.jit import ArraySource, BatchTransform, DataLoader
    >>> loader = DataLoader([ArraySource({"x": np.arange(4)}), BatchTransform(2), RenameTransform({"x": "inputs"})])
    >>> sorted(loader.batch_at(0, 0)[0])
    ['inputs']
    """

    renames: Mapping[str, str]

    def check(self, spec: Tree) -> None:
        if not isinstance(spec, Mapping):
            raise TypeError(f"RenameTransform takes elements that are dicts, got {trees.describe(spec)}.")
        missing = [key for key in self.renames if key not in spec]
        if missing:
            raise KeyError(f"RenameTransform: elements have no entry {missing[0]!r}, only {list(spec)}.")
        names = [self.renames.get(key, key) for key in spec]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"RenameTransform: two entries would have the name {twice[0]!r}.")

    def apply(self, value: Tree, mask: jax.Array, keys: jax.Array | None) -> tuple[Tree, jax.Array]:
        return {self.renames.get(key, key): entry for key, entry in value.items()}, mask


@public("bushel.jit")
@dataclasses.dataclass(frozen=True)
class TimeSeriesBatchTransform(ElementTransform):
    """Reshape batches of sequences to (batch, time, features), or pack them as (batch * time, features).

    Packed batches get an entry that is True where a sequence begins, and a mask with one boolean per step.

    Args:
      sequence_key: the name of the entry with the sequences.
      mode: "batched" or "packed".
      sequence_start_key: the name of the new entry of packed batches.
    """

    sequence_key: str = "context"
    mode: Literal["batched", "packed"] = "batched"
    sequence_start_key: str = "sequence_start"

    def __post_init__(self) -> None:
        checks.choice(self.mode, ("batched", "packed"), "mode")
        named = {"sequence_start_key": self.sequence_start_key != "sequence_start" and self.mode == "batched"}
        checks.unused(named, 'with mode="batched"', 'Write mode="packed"')

    def check(self, spec: Tree) -> None:
        leaf = get_entry_spec(spec, self.sequence_key, "TimeSeriesBatchTransform")
        if len(leaf.shape) < 2:
            raise ValueError(
                f"TimeSeriesBatchTransform: {self.sequence_key!r} needs axes for batch and time, "
                f"got {trees.describe(leaf)}."
            )

    def apply(self, value: Tree, mask: jax.Array, keys: jax.Array | None) -> tuple[Tree, jax.Array]:
        sequence = value[self.sequence_key]
        size, steps = sequence.shape[:2]
        sequence = sequence.reshape(size, steps, -1)
        if self.mode == "batched":
            return replace_entry(value, self.sequence_key, sequence), mask
        mask = jnp.repeat(mask, steps)
        starts = (jnp.arange(size * steps) % steps == 0) & mask
        packed = {self.sequence_key: sequence.reshape(size * steps, -1), self.sequence_start_key: starts}
        return {**value, **packed}, mask


def replace_entry(value: Any, key: str, entry: Any) -> Any:
    """Return a dict or a named tuple with one entry replaced."""
    return {**value, key: entry} if isinstance(value, Mapping) else value._replace(**{key: entry})


def get_entry_spec(spec: Tree, key: str, transform: str) -> Any:
    """Return the spec of one entry. An error names the transform that needs it."""
    names = list(spec._fields) if hasattr(spec, "_fields") else list(spec) if isinstance(spec, Mapping) else None
    if names is None:
        raise TypeError(f"{transform} takes elements with named entries, got {trees.describe(spec)}.")
    if key not in names:
        raise KeyError(f"{transform}: elements have no entry {key!r}, only {names}.")
    return spec[key] if isinstance(spec, Mapping) else getattr(spec, key)


@public("bushel.jit")
def masked_mean(values: jax.Array, mask: jax.Array) -> jax.Array:
    """Return the mean over the real records: padding counts neither in the sum nor in the number of records.

    `values` begins with the axes of the mask, and may have more. If all records are padding the mean is 0.

    >>> float(masked_mean(jnp.array([1.0, 3.0, 100.0]), jnp.array([True, True, False])))
    2.0
    """
    if values.shape[: mask.ndim] != mask.shape:
        raise ValueError(
            f"masked_mean: the shape of values, {list(values.shape)}, must begin with the mask's {list(mask.shape)}."
        )
    wide = jnp.broadcast_to(mask.reshape(*mask.shape, *(1,) * (values.ndim - mask.ndim)), values.shape)
    total = jnp.where(wide, values, 0).sum()
    return total / jnp.maximum(wide.sum(), 1)

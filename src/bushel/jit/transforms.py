"""The transforms: batches, maps, keys of batches, images, devices. Random ones are in augment.py."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from bushel.base import checks, trees
from bushel.jit import words
from bushel.jit.batches import BatchedStream
from bushel.jit.protocol import Indexed, Source, Tree
from bushel.jit.transform import Elementwise, Transform, checked_spec


@dataclasses.dataclass(frozen=True)
class BatchTransform(Transform):
    """Several elements as one, with a mask that has one boolean for each of them.

    What happens to the elements at the end of an epoch that fill no batch:

    - `pad_last_batch=True`: they come with rows of zeros behind them, masked False. The host's `.batch(n).repeat()`.
    - `drop_last=True`: they are left out. The host's `.batch(n, drop_remainder=True).repeat()`.
    - neither: the batch is filled up from the next epoch. The host's `.repeat().batch(n)`.

    >>> import numpy as np
    >>> from bushel.jit import ArraySource
    >>> batches = BatchTransform(2, pad_last_batch=True)(ArraySource(np.arange(3), "sequential"))
    >>> state = batches.init_state()
    >>> for _ in range(2):
    ...     value, mask, state = batches.next(state)
    ...     print(value, mask)
    [0 1] [ True  True]
    [2 0] [ True False]
    """

    batch_size: int
    drop_last: bool = False
    pad_last_batch: bool = False
    element_spec_override: Tree = None

    def __post_init__(self) -> None:
        checks.positive(self.batch_size, "batch_size")
        if self.drop_last and self.pad_last_batch:
            raise ValueError("Give drop_last or pad_last_batch, not both: the last elements are left out or padded.")

    def __call__(self, inner: Source) -> Source:
        length = inner.steps_per_epoch
        if self.drop_last and length < self.batch_size:
            raise ValueError(
                f"drop_last=True with batch_size={self.batch_size} leaves nothing of {length} elements per epoch."
            )
        checked_spec(inner.element_spec(), self.element_spec_override, "BatchTransform")
        if length + self.batch_size > words.LIMIT:
            raise ValueError(f"Inside jit an epoch and a batch are below 2**31 elements, got {length}.")
        remainder = "drop" if self.drop_last else "pad" if self.pad_last_batch else "wrap"
        if isinstance(inner, Indexed):
            return inner.batched(self.batch_size, remainder)
        return BatchedStream(inner, self.batch_size, remainder)


@dataclasses.dataclass(frozen=True)
class MapTransform(Elementwise):
    """Applies `fn(value, mask)` to each element: to batches after a `BatchTransform`, to records before it.

    >>> import numpy as np
    >>> from bushel.jit import ArraySource
    >>> doubled = MapTransform(lambda value, mask: value * 2)(ArraySource(np.arange(3), "sequential"))
    >>> doubled.next(doubled.init_state())[0].tolist()
    0
    """

    fn: Callable[[Tree, jax.Array], Tree]
    element_spec_override: Tree = None

    def check(self, spec: Tree) -> None:
        _callable(self.fn, "MapTransform")

    def apply(self, value: Tree, mask: jax.Array, keys: jax.Array | None) -> tuple[Tree, jax.Array]:
        made = self.fn(value, mask)
        return checked_spec(_as_arrays(made), self.element_spec_override, "MapTransform's function"), mask


@dataclasses.dataclass(frozen=True)
class RandomMapTransform(Elementwise):
    """Applies `fn(record, key)` to each record, also to those inside a batch.

    The key belongs to (seed, epoch, record) and to the place of this stage, so a record is changed alike whatever
    the batch size, the step it comes at, or where a run was resumed.

    >>> import numpy as np
    >>> from bushel.jit import ArraySource
    >>> noisy = RandomMapTransform(lambda x, key: x + jax.random.normal(key))(ArraySource(np.zeros(3)))
    >>> noisy.element_spec()
    ShapeDtypeStruct(shape=(), dtype=float32)
    """

    fn: Callable[[Tree, jax.Array], Tree]
    random = True

    def check(self, spec: Tree) -> None:
        _callable(self.fn, "RandomMapTransform")

    def apply(self, value: Tree, mask: jax.Array, keys: jax.Array | None) -> tuple[Tree, jax.Array]:
        fn = self.fn
        assert keys is not None
        for _ in keys.shape:
            fn = jax.vmap(fn)
        return _as_arrays(fn(value, keys)), mask


@dataclasses.dataclass(frozen=True)
class DevicePutTransform(Elementwise):
    """Moves elements to a device: a `jax.Device`, a name such as "cpu" or "gpu:0", or the first of `jax.devices()`."""

    device: Any = None

    def check(self, spec: Tree) -> None:
        device_named(self.device)

    def apply(self, value: Tree, mask: jax.Array, keys: jax.Array | None) -> tuple[Tree, jax.Array]:
        return jax.device_put(value, device_named(self.device)), mask


def device_named(device: Any) -> Any:
    """The device that a name, or nothing, stands for."""
    if device is None:
        return jax.devices()[0]
    if not isinstance(device, str):
        return device
    platform, _, number = device.partition(":")
    try:
        found = jax.devices(platform)
        return found[int(number or 0)]
    except (RuntimeError, IndexError, ValueError):
        known = ", ".join(sorted(f"{each.platform}:{each.id}" for each in jax.devices()))
        raise ValueError(f"There is no device {device!r} here; there are {known}.") from None


@dataclasses.dataclass(frozen=True)
class NormalizeImageTransform(Elementwise):
    """Images of small integers as floats: `image * scale + offset`, with values from 0 to 1 by default."""

    image_key: str = "image"
    dtype: Any = jnp.float32
    scale: float = 1 / 255
    offset: float = 0.0
    data_key: str | None = None

    def check(self, spec: Tree) -> None:
        entry_spec(spec, self.data_key or self.image_key, "NormalizeImageTransform")

    def apply(self, value: Tree, mask: jax.Array, keys: jax.Array | None) -> tuple[Tree, jax.Array]:
        key = self.data_key or self.image_key
        image = value[key].astype(self.dtype) * self.scale + self.offset
        return replaced(value, key, image), mask


@dataclasses.dataclass(frozen=True)
class FlattenTransform(Elementwise):
    """One entry with all axes from `start_index` on made one."""

    data_key: str
    start_index: int = 1

    def check(self, spec: Tree) -> None:
        leaf = entry_spec(spec, self.data_key, "FlattenTransform")
        if not 0 <= self.start_index < max(len(leaf.shape), 1):
            raise ValueError(
                f"FlattenTransform: start_index must be an axis of {self.data_key!r}, {trees.describe(leaf)}; "
                f"got {self.start_index}."
            )

    def apply(self, value: Tree, mask: jax.Array, keys: jax.Array | None) -> tuple[Tree, jax.Array]:
        leaf = value[self.data_key]
        kept = leaf.shape[: self.start_index]
        return replaced(value, self.data_key, leaf.reshape(*kept, math.prod(leaf.shape[self.start_index :]))), mask


@dataclasses.dataclass(frozen=True)
class FlattenImageTransform(Elementwise):
    """Images as vectors, one per record: every axis behind those of the mask made one."""

    image_key: str = "image"

    def check(self, spec: Tree) -> None:
        entry_spec(spec, self.image_key, "FlattenImageTransform")

    def apply(self, value: Tree, mask: jax.Array, keys: jax.Array | None) -> tuple[Tree, jax.Array]:
        image = value[self.image_key]
        return replaced(value, self.image_key, image.reshape(*image.shape[: mask.ndim], -1)), mask


@dataclasses.dataclass(frozen=True)
class RenameTransform(Elementwise):
    """Entries of a dict under other names."""

    renames: Mapping[str, str]

    def check(self, spec: Tree) -> None:
        if not isinstance(spec, Mapping):
            raise TypeError(f"RenameTransform takes elements that are dicts, got {trees.describe(spec)}.")
        missing = [key for key in self.renames if key not in spec]
        if missing:
            raise KeyError(f"RenameTransform: elements have no {missing[0]!r}, only {list(spec)}.")
        names = [self.renames.get(key, key) for key in spec]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"RenameTransform: two entries would be called {twice[0]!r}.")

    def apply(self, value: Tree, mask: jax.Array, keys: jax.Array | None) -> tuple[Tree, jax.Array]:
        return {self.renames.get(key, key): entry for key, entry in value.items()}, mask


@dataclasses.dataclass(frozen=True)
class TimeSeriesBatchTransform(Elementwise):
    """Batches of sequences as (batch, time, features), or packed as (batch * time, features).

    Packed batches get an entry that is True where a sequence begins, and a mask with one boolean per step.
    """

    sequence_key: str = "context"
    mode: str = "batched"
    sequence_start_key: str = "sequence_start"

    def check(self, spec: Tree) -> None:
        if self.mode not in ("batched", "packed"):
            raise ValueError(f"mode is 'batched' or 'packed', got {self.mode!r}.")
        leaf = entry_spec(spec, self.sequence_key, "TimeSeriesBatchTransform")
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
            return replaced(value, self.sequence_key, sequence), mask
        mask = jnp.repeat(mask, steps)
        begins = (jnp.arange(size * steps) % steps == 0) & mask
        packed = {self.sequence_key: sequence.reshape(size * steps, -1), self.sequence_start_key: begins}
        return {**value, **packed}, mask


def replaced(value: Any, key: str, entry: Any) -> Any:
    """A dict or a named tuple with one entry replaced."""
    return {**value, key: entry} if isinstance(value, Mapping) else value._replace(**{key: entry})


def entry_spec(spec: Tree, key: str, what: str) -> Any:
    """The spec of one entry."""
    names = list(spec._fields) if hasattr(spec, "_fields") else list(spec) if isinstance(spec, Mapping) else None
    if names is None:
        raise TypeError(f"{what} takes elements with entries by name, got {trees.describe(spec)}.")
    if key not in names:
        raise KeyError(f"{what}: elements have no {key!r}, only {names}.")
    return spec[key] if isinstance(spec, Mapping) else getattr(spec, key)


def _as_arrays(tree: Tree) -> Tree:
    return jax.tree.map(jnp.asarray, tree)


def _callable(fn: Any, what: str) -> None:
    if not callable(fn):
        raise TypeError(f"{what} takes a function, got {fn!r}.")


def masked_mean(values: jax.Array, mask: jax.Array) -> jax.Array:
    """The mean over real records: padding counts neither above nor below the line.

    `values` has one entry per record, or more behind it. Where nothing is real the mean is 0.

    >>> float(masked_mean(jnp.array([1.0, 3.0, 100.0]), jnp.array([True, True, False])))
    2.0
    """
    if values.shape[: mask.ndim] != mask.shape:
        raise ValueError(f"masked_mean: values {list(values.shape)} do not begin with the mask's {list(mask.shape)}.")
    wide = jnp.broadcast_to(mask.reshape(*mask.shape, *(1,) * (values.ndim - mask.ndim)), values.shape)
    total = jnp.where(wide, values, 0).sum()
    return total / jnp.maximum(wide.sum(), 1)

"""From the host to the device: for datasets, for loaders, for `jax.pmap`, with a `jax.random` key for each element."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, Literal, overload

import numpy as np

from bushel._src.base import checks
from bushel._src.base.late_imports import install_command
from bushel._src.base.public import public
from bushel._src.base.state_names import in_states
from bushel._src.datasets import global_arrays
from bushel._src.datasets.iter_dataset import IterDataset, IterPipeline, ThreadPrefetchIterDataset
from bushel._src.datasets.iterator import DatasetIterator, ThreadPrefetchDatasetIterator
from bushel._src.datasets.map_dataset import MapDataset
from bushel._src.engine.report import Report
from bushel._src.engine.transfer import Put, make_put
from bushel._src.graph import streams
from bushel._src.graph.cursors import State
from bushel._src.graph.streams import StreamNode

_WORD = 0xFFFFFFFF


@public("bushel.device")
def keys(seed: int, *, impl: str | None = None) -> Keys:
    """Return the keys of `jax.random` that belong to the elements of a dataset, by their index.

    Call the result inside a jitted step, with the indices of a batch. An element then has the same key on any mesh, on
    any number of processes and after any restart, since the key depends on the seed and on the index only.

    Args:
      seed: of all keys; another seed gives other keys for all elements.
      impl: the generator, as `jax.random.key` takes it; by default JAX's own.

    >>> import jax, bushel
    >>> augmentation = bushel.device.keys(seed=0)
    >>> ds = bushel.MapDataset.range(8).map_with_index(lambda index, x: {"x": float(x), "index": index}).batch(4)
    >>> @jax.jit
    ... def step(batch):
    ...     noise = jax.vmap(jax.random.normal)(augmentation(batch["index"]))
    ...     return batch["x"] + noise
    >>> [step(batch).shape for batch in ds.to_device()]
    [(4,), (4,)]
    """
    return Keys(checks.seed(seed), impl)


@public("bushel.device")
@in_states("Keys")
@dataclasses.dataclass(frozen=True)
class Keys:
    """Keys of `jax.random` by index. It is hashable, so that it may be a static argument of a jitted function.

    The key of index i is `fold_in(fold_in(jax.random.key(seed), i % 2**32), i // 2**32)`.
    """

    seed: int
    impl: str | None = None

    def __call__(self, indices: Any) -> Any:
        """Return an array of keys of the shape of `indices`: integers, of Python, of NumPy or traced.

        JAX has 32-bit integers unless `jax_enable_x64` is set. On a device an index then counts modulo 2**32, so an
        element has the key of the one 2**32 elements before. `for_batch` has no such limit.
        """
        import jax.numpy as jnp

        if not hasattr(indices, "dtype") or isinstance(indices, (np.ndarray, np.generic)):
            numbers = np.asarray(indices)
            _check_integers(numbers.dtype, indices)
            numbers = numbers.astype(np.int64)
            return self._fold(jnp.asarray(np.uint32(numbers & _WORD)), jnp.asarray(np.uint32(numbers >> 32 & _WORD)))
        _check_integers(indices.dtype, indices)
        # A difference and not `zeros_like`, which has no sharding: `vmap` wants both to be sharded alike.
        high = indices >> 32 if indices.dtype.itemsize == 8 else indices - indices
        return self._fold(indices.astype(jnp.uint32), high.astype(jnp.uint32))

    def for_batch(self, number: Any, size: int) -> Any:
        """Return the keys of the rows of batch `number`, where each batch has `size` rows: those of `number * size +
        row`.

        For steps that know their number, so that batches need no leaf for the index. The number may be traced, and is
        below 2**32.

        >>> import jax
        >>> bool((Keys(0).for_batch(3, 4) == Keys(0)(range(12, 16))).all())
        True
        """
        import jax.numpy as jnp

        size = checks.positive(size, "size")
        if not hasattr(number, "dtype") or isinstance(number, (np.ndarray, np.generic)):
            first = checks.not_negative(number, "number") * size
            return self(np.arange(first, first + size, dtype=np.int64))
        _check_integers(number.dtype, number)
        low, high = _multiply(jnp.asarray(number).astype(jnp.uint32), size)
        rows = low + jnp.arange(size, dtype=jnp.uint32)
        return self._fold(rows, high + (rows < low).astype(jnp.uint32))

    def _fold(self, low: Any, high: Any) -> Any:
        import jax

        first = jax.random.key(self.seed, impl=self.impl)

        def fold(low: Any, high: Any) -> Any:
            return jax.random.fold_in(jax.random.fold_in(first, low), high)

        return jax.vmap(fold)(low.ravel(), high.ravel()).reshape(low.shape)


def _check_integers(dtype: Any, indices: Any) -> None:
    if np.dtype(dtype).kind not in "iu":
        raise TypeError(f"The index of an element is an integer, got {indices!r} of dtype {dtype}.")


def _multiply(number: Any, size: int) -> tuple[Any, Any]:
    """Return the lower and the upper 32 bits of `number * size`, both below 2**32, without 64-bit integers."""
    import jax.numpy as jnp

    half = jnp.uint32(0xFFFF)
    parts = [number & half, number >> 16]
    factors = [jnp.uint32(size & 0xFFFF), jnp.uint32(size >> 16)]
    (small, first), (second, large) = ([part * factor for factor in factors] for part in parts)
    middle = (small >> 16) + (first & half) + (second & half)
    low = (small & half) | (middle << 16)
    return low, large + (first >> 16) + (second >> 16) + (middle >> 16)


@public("bushel.device")
def for_pmap(
    ds: MapDataset[Any] | IterDataset[Any],
    devices: Sequence[Any] | None = None,
    *,
    buffer_size: int = 2,
    remainder: Literal["drop", "pad"] | None = None,
) -> IterDataset[Any]:
    """Return the batches of a dataset for `jax.pmap`: a batch of n rows on d devices becomes arrays of shape (d, n / d,
    ...).

    With several processes all of them build the same pipeline, and n counts the rows of all processes together. Each
    process reads the rows of its own devices, as with `to_device`, and its arrays have one entry for each of them.

    Args:
      ds: batches, with as many rows as all devices can share equally.
      devices: the devices of all processes, in the order in which they take the rows; by default `jax.devices()`.
      buffer_size: how many batches wait on the devices, besides the one in use.
      remainder: what becomes of a last batch that is smaller: see `IterDataset.to_device`.

    >>> import jax, bushel
    >>> ds = bushel.MapDataset.range(6).batch(3)
    >>> [jax.pmap(lambda x: x + 1)(batch).tolist() for batch in bushel.device.for_pmap(ds, jax.devices()[:1])]
    [[[1, 2, 3]], [[4, 5, 6]]]
    """
    import jax

    stream = ds.to_iter_dataset() if isinstance(ds, MapDataset) else ds
    if not isinstance(stream, IterDataset):
        raise TypeError(f"for_pmap takes a MapDataset or an IterDataset, got {ds!r}.")
    mesh = jax.sharding.Mesh(np.array(jax.devices() if devices is None else list(devices)), ("device",))
    where = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("device"))
    rows = _LeadingAxis(global_arrays.rows_for(stream._node, where, remainder))
    checks.not_negative(buffer_size, "buffer_size")
    return IterPipeline(streams.ToDevice(stream._node, where, buffer_size, "raise", rows))


class _LeadingAxis:
    """The rows of this process as arrays with a leading axis, made out of global arrays that are cut by rows."""

    def __init__(self, rows: global_arrays.GlobalRows):
        self._rows = rows
        self.is_global = rows.is_global

    def restrict(self, stream: StreamNode) -> StreamNode:
        return self._rows.restrict(stream)

    def assemble(self, element: Any) -> Any:
        import jax

        return jax.tree.map(_split, self._rows.assemble(element))


def _split(array: Any) -> Any:
    """Return the shards of a global array that are on the devices of this process, one beside the other."""
    import jax

    shards = sorted(array.addressable_shards, key=lambda shard: shard.index[0].start or 0)
    mesh = jax.sharding.Mesh(np.array([shard.device for shard in shards]), ("device",))
    where = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("device"))
    shards_in_rows = [shard.data[None] for shard in shards]
    return jax.make_array_from_single_device_arrays((len(shards_in_rows), *shards[0].data.shape), where, shards_in_rows)


@overload
def device_put(
    ds: MapDataset[Any] | IterDataset[Any],
    device: Any = None,
    *,
    buffer_size: int = 2,
    unsupported: Literal["keep", "raise"] = "keep",
) -> IterDataset[Any]: ...


@overload
def device_put(
    ds: Iterable[Any], device: Any = None, *, buffer_size: int = 2, unsupported: Literal["keep", "raise"] = "keep"
) -> LoaderOnDevice: ...


@public("bushel")
def device_put(
    ds: MapDataset[Any] | IterDataset[Any] | Iterable[Any],
    device: Any = None,
    *,
    buffer_size: int = 2,
    unsupported: Literal["keep", "raise"] = "keep",
) -> IterDataset[Any] | LoaderOnDevice:
    """Return the elements of a dataset or a loader as arrays on accelerators.

    For a dataset it is `ds.to_device(device)`.

    A loader, such as the one of `bushel.trajectory.get_dataloader`, stays a loader: its iterators have the states of
    the loader's own.

    Args:
      ds: elements that are trees of arrays.
      device: a device, a sharding, or a tree of them; by default JAX's default device.
      buffer_size: how many elements wait on the device, besides the one in use.
      unsupported: what becomes of leaves that JAX cannot hold: "keep" leaves them on the host, "raise" raises.

    >>> import jax
    >>> import bushel
    >>> ds = bushel.MapDataset.range(4).batch(2)
    >>> [batch.devices() == {jax.devices()[0]} for batch in bushel.device_put(ds, jax.devices()[0])]
    [True, True]
    """
    _need_jax()
    if isinstance(ds, MapDataset | IterDataset):
        return ds.to_device(device, buffer_size=buffer_size, unsupported=unsupported)
    return LoaderOnDevice(ds, device, 1, checks.not_negative(buffer_size, "buffer_size"), unsupported)


@overload
def device_put_like_grain(
    ds: IterDataset[Any], device: Any, *, cpu_buffer_size: int = 4, device_buffer_size: int = 2
) -> IterDataset[Any]: ...


@overload
def device_put_like_grain(
    ds: Iterable[Any], device: Any, *, cpu_buffer_size: int = 4, device_buffer_size: int = 2
) -> LoaderOnDevice: ...


@public("bushel.experimental", "device_put")
def device_put_like_grain(
    ds: IterDataset[Any] | Iterable[Any], device: Any, *, cpu_buffer_size: int = 4, device_buffer_size: int = 2
) -> IterDataset[Any] | LoaderOnDevice:
    """Return `ds.to_device(device)` with the arguments of Grain's `device_put`. A loader will do as well.

    Args:
      ds: elements that are trees of arrays.
      device: a device, or a sharding.
      cpu_buffer_size: how many elements a thread holds ready on the host.
      device_buffer_size: how many elements wait on the device.

    >>> import jax
    >>> import bushel
    >>> ds = bushel.MapDataset.range(4).batch(2).to_iter_dataset()
    >>> [batch.devices() == {jax.devices()[0]} for batch in bushel.experimental.device_put(ds, jax.devices()[0])]
    [True, True]
    """
    _need_jax()
    if isinstance(ds, IterDataset):
        ahead = ThreadPrefetchIterDataset(ds, prefetch_buffer_size=cpu_buffer_size)
        return ahead.to_device(device, buffer_size=device_buffer_size)
    if isinstance(ds, MapDataset):
        raise TypeError("device_put takes an IterDataset or a loader, got a MapDataset. Call to_iter_dataset() first.")
    return LoaderOnDevice(ds, device, cpu_buffer_size, device_buffer_size, "keep")


def _need_jax() -> None:
    try:
        import jax  # noqa: F401
    except ImportError as error:
        raise ImportError(f"device_put needs JAX: {install_command('jax')}") from error


@public("bushel.device")
class LoaderOnDevice:
    """The elements of a loader on a device: iterate over it, or take an iterator for its state."""

    def __init__(self, loader: Iterable[Any], device: Any, host_buffer: int, device_buffer: int, unsupported: str):
        if not hasattr(loader, "__iter__") or hasattr(loader, "__next__"):
            raise TypeError(f"device_put takes an IterDataset, or a loader that can be iterated over; got {loader!r}.")
        self._loader, self._device, self._unsupported = loader, device, unsupported
        self._sizes = [checks.not_negative(size, "prefetch_buffer_size") for size in (host_buffer, device_buffer)]

    def __iter__(self) -> DatasetIterator[Any]:
        elements: Any = iter(self._loader)
        if not (hasattr(elements, "get_state") and hasattr(elements, "set_state")):
            raise TypeError(
                f"device_put needs iterators with get_state and set_state, as those of Bushel's loaders have; "
                f"{type(self._loader).__name__} gives a {type(elements).__name__}."
            )
        on_host, on_device = self._sizes
        return _OnDevice(elements, make_put(self._device, self._unsupported), on_host, on_device)

    def __repr__(self) -> str:
        return f"device_put({self._loader!r}, {self._device!r})"


class _Put(DatasetIterator[Any]):
    """The elements of an iterator, each put on a device when it is asked for."""

    def __init__(self, parent: ThreadPrefetchDatasetIterator[Any], put: Put):
        super().__init__(parent)
        self._put = put

    def __next__(self) -> Any:
        return self._put(next(self._parent))

    def get_state(self) -> State:
        return self._parent.get_state()

    def set_state(self, state: State, *, check: bool = True) -> None:
        self._parent.set_state(state, check=check)


class _OnDevice(ThreadPrefetchDatasetIterator[Any]):
    """The elements of an iterator put on a device ahead. Its states are those of the iterator."""

    def __init__(self, elements: Any, put: Put, host_buffer: int, device_buffer: int):
        self._elements = elements
        self._same_on_all_processes = getattr(elements, "_same_on_all_processes", False)
        ahead = ThreadPrefetchDatasetIterator(elements, host_buffer)
        super().__init__(_Put(ahead, put), device_buffer)

    @property
    def skipped(self) -> int:
        """How many elements failed and were left out so far, those that are read ahead included."""
        return getattr(self._elements, "skipped", 0)

    def report(self) -> Report:
        """Return where the time of the loader went: see `bushel.Report`."""
        return self._elements.report()

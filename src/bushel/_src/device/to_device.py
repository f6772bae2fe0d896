"""From the host to the device, as functions: for datasets, for loaders, and for `jax.pmap`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, overload

import numpy as np

from bushel._src.base import checks
from bushel._src.base.late_imports import install_command
from bushel._src.base.public import public
from bushel._src.datasets import global_arrays
from bushel._src.datasets.iter_dataset import IterDataset, IterPipeline, ThreadPrefetchIterDataset
from bushel._src.datasets.iterator import DatasetIterator, ThreadPrefetchDatasetIterator
from bushel._src.datasets.map_dataset import MapDataset
from bushel._src.engine.report import Report
from bushel._src.engine.transfer import Put, make_put
from bushel._src.graph import streams
from bushel._src.graph.cursors import State
from bushel._src.graph.streams import StreamNode


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

"""From the host to the device: elements are on their way while the one before is used."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any, overload

from bushel.base import checks
from bushel.dataset import IterDataset, MapDataset, ThreadPrefetchIterDataset
from bushel.engine import Report
from bushel.graph.state_fields import State
from bushel.iterator import DatasetIterator, ThreadPrefetchDatasetIterator

_NOT_IN_JAX = "OSUTMm"  # kinds of dtypes: objects, texts and times


@overload
def device_put(  # pyright: ignore[reportOverlappingOverload]
    ds: IterDataset[Any], device: Any, *, cpu_buffer_size: int = 4, device_buffer_size: int = 2
) -> IterDataset[Any]: ...


@overload
def device_put(
    ds: Iterable[Any], device: Any, *, cpu_buffer_size: int = 4, device_buffer_size: int = 2
) -> LoaderOnDevice: ...


def device_put(
    ds: IterDataset[Any] | Iterable[Any], device: Any, *, cpu_buffer_size: int = 4, device_buffer_size: int = 2
) -> IterDataset[Any] | LoaderOnDevice:
    """The same elements on a device, put there ahead by a thread. Texts, which JAX does not have, stay on the host.

    Args:
      ds: elements that are trees of arrays. A loader, such as the one of `bushel.trajectory.get_dataloader`, will do
        as well: the result is then a loader too, and its iterators have the states of the loader's own.
      device: what `jax.device_put` takes: a device, or a sharding.
      cpu_buffer_size: how many elements are held ready on the host.
      device_buffer_size: how many are held ready on the device.

    >>> import jax
    >>> import bushel
    >>> ds = bushel.MapDataset.range(4).batch(2).to_iter_dataset()
    >>> [batch.devices() == {jax.devices()[0]} for batch in device_put(ds, jax.devices()[0])]
    [True, True]
    """
    try:
        import jax  # noqa: F401
    except ImportError as error:
        raise ImportError("device_put needs JAX: pip install 'bushel[jax]'.") from error
    if isinstance(ds, IterDataset):
        ds = ThreadPrefetchIterDataset(ds, prefetch_buffer_size=cpu_buffer_size)
        ds = ds.map(functools.partial(_put, device=device))
        return ThreadPrefetchIterDataset(ds, prefetch_buffer_size=device_buffer_size)
    if isinstance(ds, MapDataset):
        raise TypeError("device_put takes an IterDataset or a loader, got a MapDataset. Call to_iter_dataset() first.")
    return LoaderOnDevice(ds, device, cpu_buffer_size, device_buffer_size)


class LoaderOnDevice:
    """The elements of a loader on a device: iterate over it, or take an iterator for its state."""

    def __init__(self, loader: Iterable[Any], device: Any, cpu_buffer_size: int, device_buffer_size: int):
        if not hasattr(loader, "__iter__") or hasattr(loader, "__next__"):
            raise TypeError(f"device_put takes an IterDataset, or a loader that can be iterated over; got {loader!r}.")
        self._loader, self._device = loader, device
        self._sizes = [
            checks.not_negative(size, "prefetch_buffer_size") for size in (cpu_buffer_size, device_buffer_size)
        ]

    def __iter__(self) -> DatasetIterator[Any]:
        elements: Any = iter(self._loader)
        if not (hasattr(elements, "get_state") and hasattr(elements, "set_state")):
            raise TypeError(
                f"device_put needs iterators with get_state and set_state, as those of Bushel's loaders have; "
                f"{type(self._loader).__name__} gives a {type(elements).__name__}."
            )
        on_host, on_device = self._sizes
        return _OnDevice(elements, self._device, on_host, on_device)

    def __repr__(self) -> str:
        return f"device_put({self._loader!r}, {self._device!r})"


class _Put(DatasetIterator[Any]):
    """The elements of an iterator, each put on a device when it is asked for."""

    def __init__(self, parent: ThreadPrefetchDatasetIterator[Any], device: Any):
        super().__init__(parent)
        self._device = device

    def __next__(self) -> Any:
        return _put(next(self._parent), self._device)

    def get_state(self) -> State:
        return self._parent.get_state()

    def set_state(self, state: State) -> None:
        self._parent.set_state(state)


class _OnDevice(ThreadPrefetchDatasetIterator[Any]):
    """The elements of an iterator put on a device ahead. Its states are those of the iterator."""

    def __init__(self, elements: Any, device: Any, cpu_buffer_size: int, device_buffer_size: int):
        self._elements = elements
        self._same_on_all_processes = getattr(elements, "_same_on_all_processes", False)
        ahead = ThreadPrefetchDatasetIterator(elements, cpu_buffer_size)
        super().__init__(_Put(ahead, device), device_buffer_size)

    @property
    def skipped(self) -> int:
        """How many elements failed and were left out so far, those that are read ahead included."""
        return getattr(self._elements, "skipped", 0)

    def report(self) -> Report:
        """Where the time of the loader went: see `bushel.Report`."""
        return self._elements.report()


def _put(element: Any, device: Any) -> Any:
    """An element on a device, but for what JAX cannot hold."""
    import jax

    leaves = jax.tree.leaves(element)
    if all(map(_fits, leaves)):
        return jax.device_put(element, device)
    # None is no leaf, so that `device` may still be a tree of shardings.
    found = jax.device_put(jax.tree.map(lambda leaf: leaf if _fits(leaf) else None, element), device)
    return jax.tree.map(
        lambda moved, leaf: leaf if moved is None else moved, found, element, is_leaf=lambda part: part is None
    )


def _fits(leaf: Any) -> bool:
    """Whether JAX can hold a leaf: numbers, and arrays of them."""
    dtype = getattr(leaf, "dtype", None)
    if dtype is None:
        return isinstance(leaf, bool | int | float | complex) or hasattr(leaf, "__jax_array__")
    return getattr(dtype, "kind", "") not in _NOT_IN_JAX and getattr(dtype, "names", None) is None

"""From the host to the device: elements are on their way while the one before is used."""

from __future__ import annotations

import functools
from typing import Any

from bushel.dataset import IterDataset, ThreadPrefetchIterDataset


def device_put(
    ds: IterDataset[Any], device: Any, *, cpu_buffer_size: int = 4, device_buffer_size: int = 2
) -> IterDataset[Any]:
    """The same elements on a device, put there ahead by a thread.

    Args:
      ds: elements that are trees of arrays.
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
    ds = ThreadPrefetchIterDataset(ds, prefetch_buffer_size=cpu_buffer_size)
    ds = ds.map(functools.partial(_put, device=device))
    return ThreadPrefetchIterDataset(ds, prefetch_buffer_size=device_buffer_size)


def _put(element: Any, device: Any) -> Any:
    import jax

    return jax.device_put(element, device)

"""The loader inside `jax.jit`: sources and transforms that are pure functions, over arrays that stay on the device.

>>> import numpy as np
>>> from bushel.jit import ArraySource, BatchTransform, DataLoader
>>> loader = DataLoader([ArraySource({"x": np.arange(10)}), BatchTransform(4, pad_last_batch=True)])
>>> state, total, _ = loader.scan_epoch(loader.init_state(0), 0, lambda total, batch, mask: (total + mask.sum(), None))
>>> int(total)
10
"""

try:
    import jax as _jax  # noqa: F401
except ImportError as error:
    raise ImportError("bushel.jit needs JAX: pip install 'bushel[jax]'") from error

from bushel.jit.arrays import ArraySource, dataset_to_jax, mix
from bushel.jit.gym import GymnaxSource, set_loader_policy_state, set_source_policy_state
from bushel.jit.host import DiskSource, HostCallbackTransform
from bushel.jit.loader import DataLoader, LoaderState
from bushel.jit.protocol import Source
from bushel.jit.transforms import (
    BatchTransform,
    DevicePutTransform,
    FlattenImageTransform,
    FlattenTransform,
    MapTransform,
    NormalizeImageTransform,
    RandomMapTransform,
    RenameTransform,
    TimeSeriesBatchTransform,
    masked_mean,
)

__all__ = [
    "ArraySource",
    "BatchTransform",
    "DataLoader",
    "DevicePutTransform",
    "DiskSource",
    "FlattenImageTransform",
    "FlattenTransform",
    "GymnaxSource",
    "HostCallbackTransform",
    "LoaderState",
    "MapTransform",
    "NormalizeImageTransform",
    "RandomMapTransform",
    "RenameTransform",
    "Source",
    "TimeSeriesBatchTransform",
    "dataset_to_jax",
    "masked_mean",
    "mix",
    "set_loader_policy_state",
    "set_source_policy_state",
]

"""A data loader inside `jax.jit`: pure functions over arrays that stay on the device.

>>> import numpy as np
>>> from bushel.jit import ArraySource, BatchTransform, DataLoader
>>> loader = DataLoader([ArraySource({"x": np.arange(10)}), BatchTransform(4)])
>>> state, total, _ = loader.scan_epoch(loader.init_state(0), 0, lambda total, batch, mask: (total + mask.sum(), None))
>>> int(total)
10
"""

from bushel.base.install import install_command as _install_command

try:
    import jax as _jax  # noqa: F401
except ImportError as error:
    raise ImportError(f"bushel.jit needs JAX: {_install_command('jax')}") from error

from bushel.jit import cereal, datasets
from bushel.jit.array_source import ArraySource, mix
from bushel.jit.chunk_loader import Chunk, ChunkLoader
from bushel.jit.common_transforms import (
    BatchTransform,
    FlattenImageTransform,
    FlattenTransform,
    MapTransform,
    NormalizeImageTransform,
    RandomMapTransform,
    RenameTransform,
    TimeSeriesBatchTransform,
    masked_mean,
)
from bushel.jit.compiled_loader import DataLoader, LoaderIterator, LoaderState
from bushel.jit.gymnax_source import GymnaxSource, GymnaxSourceState
from bushel.jit.host_callbacks import DiskSource, HostCallbackTransform
from bushel.jit.image_augmentation import (
    ColorJitterTransform,
    CutMixTransform,
    CutoutTransform,
    MixupTransform,
    RandomCropTransform,
    RandomFlipTransform,
)
from bushel.jit.prioritised_buffer import PrioritisedBuffer, PriorityState
from bushel.jit.replay_buffer import BufferTransform, ReplayBuffer, ReplayState
from bushel.jit.sharded_source import ShardedSource
from bushel.jit.source import IndexedState, Source
from bushel.jit.trajectory_buffer import TrajectoryBuffer, TrajectoryState, n_step_return
from bushel.jit.window_source import Window, WindowSource

__all__ = [
    "ArraySource",
    "BatchTransform",
    "BufferTransform",
    "Chunk",
    "ChunkLoader",
    "ColorJitterTransform",
    "CutMixTransform",
    "CutoutTransform",
    "DataLoader",
    "DiskSource",
    "FlattenImageTransform",
    "FlattenTransform",
    "GymnaxSource",
    "GymnaxSourceState",
    "HostCallbackTransform",
    "IndexedState",
    "LoaderIterator",
    "LoaderState",
    "MapTransform",
    "MixupTransform",
    "NormalizeImageTransform",
    "PrioritisedBuffer",
    "PriorityState",
    "RandomCropTransform",
    "RandomFlipTransform",
    "RandomMapTransform",
    "RenameTransform",
    "ReplayBuffer",
    "ReplayState",
    "ShardedSource",
    "Source",
    "TimeSeriesBatchTransform",
    "TrajectoryBuffer",
    "TrajectoryState",
    "Window",
    "WindowSource",
    "cereal",
    "datasets",
    "masked_mean",
    "mix",
    "n_step_return",
]

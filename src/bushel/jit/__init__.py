"""A data loader inside `jax.jit`: pure functions over arrays that stay on the device.

>>> import numpy as np
>>> from bushel.jit import ArraySource, BatchTransform, DataLoader
>>> loader = DataLoader([ArraySource({"x": np.arange(10)}), BatchTransform(4)])
>>> state, total, _ = loader.scan_epoch(loader.init_state(0), 0, lambda total, batch, mask: (total + mask.sum(), None))
>>> int(total)
10
"""

from bushel._src.jit.array_source import ArraySource, ShardedSource, Window, WindowSource, mix
from bushel._src.jit.chunk_loader import Chunk, ChunkLoader
from bushel._src.jit.common_transforms import (
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
from bushel._src.jit.compiled_loader import CompiledIterator, DataLoader, LoaderState
from bushel._src.jit.gymnax_source import GymnaxSource, GymnaxSourceState
from bushel._src.jit.host_callbacks import DiskSource, HostCallbackTransform
from bushel._src.jit.image_augmentation import (
    ColorJitterTransform,
    CutMixTransform,
    CutoutTransform,
    MixupTransform,
    RandomCropTransform,
    RandomFlipTransform,
)
from bushel._src.jit.replay_buffer import (
    BufferTransform,
    PrioritisedBuffer,
    PriorityState,
    ReplayBuffer,
    ReplayState,
    TrajectoryBuffer,
    TrajectoryState,
    n_step_return,
)
from bushel._src.jit.source import IndexedState, Source
from bushel.jit import cereal, datasets

__all__ = [
    "ArraySource",
    "BatchTransform",
    "BufferTransform",
    "Chunk",
    "ChunkLoader",
    "ColorJitterTransform",
    "CompiledIterator",
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

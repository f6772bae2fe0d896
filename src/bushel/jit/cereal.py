"""The names of the first `cereal`, with its defaults: `from bushel.jit.cereal import ...` for `from cereal import ...`.

Names that only `bushel.jit` has are not repeated here.
"""

from bushel._src.jit.array_source import ArraySource as ArraySampleSource
from bushel._src.jit.array_source import dataset_to_jax
from bushel._src.jit.cereal import BatchTransform, MNISTDiskSource
from bushel._src.jit.common_transforms import (
    DevicePutTransform,
    FlattenImageTransform,
    MapTransform,
    NormalizeImageTransform,
)
from bushel._src.jit.compiled_loader import DataLoader, LoaderState
from bushel._src.jit.datasets.image_datasets import CIFAR10Dataset, MNISTDataset
from bushel._src.jit.gymnax_source import GymnaxSource, set_loader_policy_state, set_source_policy_state
from bushel._src.jit.host_callbacks import DiskSource as DiskSampleSource
from bushel._src.jit.host_callbacks import HostCallbackTransform
from bushel._src.jit.source import Source

__all__ = [
    "ArraySampleSource",
    "BatchTransform",
    "CIFAR10Dataset",
    "DataLoader",
    "DevicePutTransform",
    "DiskSampleSource",
    "FlattenImageTransform",
    "GymnaxSource",
    "HostCallbackTransform",
    "LoaderState",
    "MNISTDataset",
    "MNISTDiskSource",
    "MapTransform",
    "NormalizeImageTransform",
    "Source",
    "dataset_to_jax",
    "set_loader_policy_state",
    "set_source_policy_state",
]

"""The names of the first `cereal`, with its defaults: `from bushel.jit.cereal import ...` for `from cereal import ...`.

What is new in `bushel.jit` is not repeated here.
"""

from __future__ import annotations

from typing import Any

from bushel.jit import transforms
from bushel.jit.arrays import ArraySource as ArraySampleSource
from bushel.jit.arrays import dataset_to_jax
from bushel.jit.datasets.images import CIFAR10Dataset, MNISTDataset
from bushel.jit.gym import GymnaxSource
from bushel.jit.host import DiskSource as DiskSampleSource
from bushel.jit.host import HostCallbackTransform
from bushel.jit.loader import DataLoader, LoaderState
from bushel.jit.protocol import Source
from bushel.jit.records import Records
from bushel.jit.transforms import DevicePutTransform, FlattenImageTransform, MapTransform, NormalizeImageTransform


def BatchTransform(*args: Any, drop_last: bool = False, pad_last_batch: bool | None = None, **kwargs: Any) -> Any:
    """`bushel.jit.BatchTransform` with the default of cereal: the last batch is padded, unless it is dropped."""
    pad = not drop_last if pad_last_batch is None else pad_last_batch and not drop_last
    return transforms.BatchTransform(*args, drop_last=drop_last, pad_last_batch=pad, **kwargs)


def MNISTDiskSource(
    split: str = "train", prefetch_size: int = 64, cache_dir: Any = None, ordering: str = "shuffle"
) -> Records:
    """MNIST, read from its files image by image."""
    return MNISTDataset.make_disk_source(
        split=split, cache_dir=cache_dir, ordering=ordering, prefetch_size=prefetch_size
    )


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
]

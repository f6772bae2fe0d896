"""The names of the first `cereal`, with its defaults: `from bushel.jit.cereal import ...` for `from cereal import ...`.

Names that only `bushel.jit` has are not repeated here.
"""

from __future__ import annotations

from typing import Any, Literal

from bushel._src.base import checks
from bushel._src.base.public import public
from bushel._src.jit import common_transforms
from bushel._src.jit.array_source import ArraySource as ArraySampleSource
from bushel._src.jit.array_source import dataset_to_jax
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
from bushel._src.jit.record_order import Ordering
from bushel._src.jit.source import Source


@public("bushel.jit.cereal")
class BatchTransform(common_transforms.BatchTransform):
    """`bushel.jit.BatchTransform` with cereal's arguments. `pad_last_batch=False` wraps, which is cyreal's default."""

    def __init__(
        self,
        batch_size: int,
        drop_last: bool = False,
        pad_last_batch: bool | None = None,
        element_spec_override: Any = None,
    ):
        pad = pad_last_batch is None or pad_last_batch
        remainder = "drop" if drop_last else "pad" if pad else "wrap"
        super().__init__(batch_size, remainder=remainder, element_spec_override=element_spec_override)


@public("bushel.jit.cereal")
class MNISTDiskSource(DiskSampleSource):
    """MNIST, read from its files image by image."""

    def __init__(
        self,
        split: Literal["train", "test"] = "train",
        prefetch_size: int = 64,
        cache_dir: Any = None,
        ordering: Ordering = "shuffle",
    ):
        checks.choice(ordering, Ordering, "ordering")  # before anything is downloaded
        length, read_example = MNISTDataset.open_images(split, cache_dir)
        super().__init__(length, read_example, None, ordering, prefetch_size)


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

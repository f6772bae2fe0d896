"""Both kinds of dataset under one name, and functions that take either."""

from __future__ import annotations

from typing import Any

from bushel._src.base.public import public
from bushel._src.datasets.base_dataset import Dataset, apply_all
from bushel._src.datasets.iter_dataset import (
    FlatMapIterDataset,
    IterDataset,
    ThreadPrefetchIterDataset,
    WithOptionsIterDataset,
    multithread_prefetch,
)
from bushel._src.datasets.map_dataset import FlatMapMapDataset, MapDataset, PackedMapDataset, ZipMapDataset

__all__ = [
    "Dataset",
    "FlatMapIterDataset",
    "FlatMapMapDataset",
    "IterDataset",
    "MapDataset",
    "PackedMapDataset",
    "ThreadPrefetchIterDataset",
    "WithOptionsIterDataset",
    "ZipMapDataset",
    "apply_transformations",
    "get_element_spec",
    "multithread_prefetch",
]


@public("bushel.experimental")
def get_element_spec(ds: MapDataset[Any] | IterDataset[Any]) -> Any:
    """Return shapes and dtypes of a dataset's elements, without reading any.

    >>> get_element_spec(MapDataset.range(5).batch(2, drop_remainder=True))
    ShapeDtypeStruct(shape=(2,), dtype=<class 'numpy.int64'>)
    """
    return ds._element_spec


@public("bushel.experimental")
def apply_transformations(ds: Any, transformations: Any) -> Any:
    """Return `ds.apply(transformations)`, under Grain's older name.

    >>> from bushel.transforms import Batch
    >>> list(apply_transformations(MapDataset.range(4), [Batch(2)]))
    [array([0, 1]), array([2, 3])]
    """
    return apply_all(ds, transformations)

"""What Grain keeps under `grain.experimental`, under the same names."""

from bushel.base.options import DatasetOptions, ExecutionTrackingMode
from bushel.base.rng import RngPool
from bushel.base.specs import ShapeDtypeStruct, ShapeDtypeStructProtocol
from bushel.base.transforms import FlatMap as FlatMapTransform
from bushel.base.transforms import MapWithIndex as MapWithIndexTransform
from bushel.dataset import (
    FlatMapIterDataset,
    FlatMapMapDataset,
    WithOptionsIterDataset,
    ZipMapDataset,
    apply_transformations,
    get_element_spec,
    multithread_prefetch,
)
from bushel.graph.batch import batch_and_pad
from bushel.index.shuffle import index_shuffle
from bushel.iterator import get_next_index, set_next_index
from bushel.performance import PerformanceConfig, pick_performance_config

__all__ = [
    "DatasetOptions",
    "ExecutionTrackingMode",
    "FlatMapIterDataset",
    "FlatMapMapDataset",
    "FlatMapTransform",
    "MapWithIndexTransform",
    "PerformanceConfig",
    "RngPool",
    "ShapeDtypeStruct",
    "ShapeDtypeStructProtocol",
    "WithOptionsIterDataset",
    "ZipMapDataset",
    "apply_transformations",
    "batch_and_pad",
    "get_element_spec",
    "get_next_index",
    "index_shuffle",
    "multithread_prefetch",
    "pick_performance_config",
    "set_next_index",
]

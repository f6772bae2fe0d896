"""What Grain keeps under `grain.experimental`, under the same names."""

from bushel.base.options import DatasetOptions, ExecutionTrackingMode
from bushel.base.rng import RngPool
from bushel.base.specs import ShapeDtypeStruct, ShapeDtypeStructProtocol
from bushel.base.transforms import FlatMap as FlatMapTransform
from bushel.base.transforms import MapWithIndex as MapWithIndexTransform
from bushel.dataset import (
    FlatMapIterDataset,
    FlatMapMapDataset,
    ThreadPrefetchIterDataset,
    WithOptionsIterDataset,
    ZipMapDataset,
    apply_transformations,
    get_element_spec,
    multithread_prefetch,
)
from bushel.device.loader_on_device import device_put_like_grain as device_put
from bushel.elastic import ElasticIterator
from bushel.files import ParquetIterDataset, TFRecordIterDataset, WebDatasetIterDataset
from bushel.graph.batch import batch_and_pad
from bushel.graph.concat_split import BOSHandling
from bushel.graph.legacy import PackAndBatchOperation
from bushel.index.shuffle import index_shuffle
from bushel.iterator import ThreadPrefetchDatasetIterator, get_next_index, set_next_index
from bushel.operations import (
    BestFitPackIterDataset,
    CacheIterDataset,
    ConcatThenSplitIterDataset,
    FirstFitPackIterDataset,
    InterleaveIterDataset,
    LimitIterDataset,
    RebatchIterDataset,
    RepeatIterDataset,
    WindowShuffleIterDataset,
    WindowShuffleMapDataset,
    ZipIterDataset,
    assert_equal_output_after_checkpoint,
)
from bushel.performance import PerformanceConfig, pick_performance_config

__all__ = [
    "BOSHandling",
    "BestFitPackIterDataset",
    "CacheIterDataset",
    "ConcatThenSplitIterDataset",
    "DatasetOptions",
    "ElasticIterator",
    "ExecutionTrackingMode",
    "FirstFitPackIterDataset",
    "FlatMapIterDataset",
    "FlatMapMapDataset",
    "FlatMapTransform",
    "InterleaveIterDataset",
    "LimitIterDataset",
    "MapWithIndexTransform",
    "PackAndBatchOperation",
    "ParquetIterDataset",
    "PerformanceConfig",
    "RebatchIterDataset",
    "RepeatIterDataset",
    "RngPool",
    "ShapeDtypeStruct",
    "ShapeDtypeStructProtocol",
    "TFRecordIterDataset",
    "ThreadPrefetchDatasetIterator",
    "ThreadPrefetchIterDataset",
    "WebDatasetIterDataset",
    "WindowShuffleIterDataset",
    "WindowShuffleMapDataset",
    "WithOptionsIterDataset",
    "ZipIterDataset",
    "ZipMapDataset",
    "apply_transformations",
    "assert_equal_output_after_checkpoint",
    "batch_and_pad",
    "device_put",
    "get_element_spec",
    "get_next_index",
    "index_shuffle",
    "multithread_prefetch",
    "pick_performance_config",
    "set_next_index",
]

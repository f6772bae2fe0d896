"""What Grain keeps under `grain.experimental`, under the same names."""

from bushel._src.base.options import DatasetOptions, ExecutionTrackingMode
from bushel._src.base.rng import RngPool
from bushel._src.base.transforms import FlatMap as FlatMapTransform
from bushel._src.base.transforms import MapWithIndex as MapWithIndexTransform
from bushel._src.base.trees import ShapeDtypeStruct, ShapeDtypeStructProtocol
from bushel._src.datasets.grain_classes import (
    BestFitPackIterDataset,
    CacheIterDataset,
    ConcatThenSplitIterDataset,
    FirstFitPackIterDataset,
    InterleaveIterDataset,
    IterableIterDataset,
    LimitIterDataset,
    ParquetIterDataset,
    PerformanceConfig,
    RebatchIterDataset,
    RepeatIterDataset,
    TFRecordIterDataset,
    WebDatasetIterDataset,
    WindowShuffleIterDataset,
    WindowShuffleMapDataset,
    ZipIterDataset,
    apply_transformations,
    assert_equal_output_after_checkpoint,
    get_element_spec,
    pick_performance_config,
)
from bushel._src.datasets.iter_dataset import (
    FlatMapIterDataset,
    ThreadPrefetchIterDataset,
    WithOptionsIterDataset,
    multithread_prefetch,
)
from bushel._src.datasets.iterator import ThreadPrefetchDatasetIterator, get_next_index, set_next_index
from bushel._src.datasets.map_dataset import FlatMapMapDataset, ZipMapDataset
from bushel._src.device.to_device import device_put_like_grain as device_put
from bushel._src.graph.batch import batch_and_pad
from bushel._src.graph.concat_split import BOSHandling
from bushel._src.graph.loader_ops import PackAndBatchOperation
from bushel._src.index.shuffle import index_shuffle
from bushel._src.loaders.elastic import ElasticIterator

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
    "IterableIterDataset",
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

"""What Grain keeps under `grain.experimental`, under the same names."""

from bushel.base.rng import RngPool
from bushel.base.specs import ShapeDtypeStruct, ShapeDtypeStructProtocol
from bushel.base.transforms import FlatMap as FlatMapTransform
from bushel.base.transforms import MapWithIndex as MapWithIndexTransform
from bushel.dataset import (
    FlatMapIterDataset,
    FlatMapMapDataset,
    ZipMapDataset,
    apply_transformations,
    get_element_spec,
    multithread_prefetch,
)
from bushel.files import IterableIterDataset, ParquetIterDataset, TFRecordIterDataset, WebDatasetIterDataset
from bushel.graph.batch import batch_and_pad
from bushel.graph.concat_split import BOSHandling
from bushel.index.shuffle import index_shuffle
from bushel.iterator import get_next_index, set_next_index
from bushel.operations import (
    BestFitPackIterDataset,
    ConcatThenSplitIterDataset,
    FirstFitPackIterDataset,
    InterleaveIterDataset,
    LimitIterDataset,
    RebatchIterDataset,
    RepeatIterDataset,
    WindowShuffleIterDataset,
    WindowShuffleMapDataset,
    ZipIterDataset,
)

__all__ = [
    "BOSHandling",
    "BestFitPackIterDataset",
    "ConcatThenSplitIterDataset",
    "FirstFitPackIterDataset",
    "FlatMapIterDataset",
    "FlatMapMapDataset",
    "FlatMapTransform",
    "InterleaveIterDataset",
    "IterableIterDataset",
    "LimitIterDataset",
    "MapWithIndexTransform",
    "ParquetIterDataset",
    "RebatchIterDataset",
    "RepeatIterDataset",
    "RngPool",
    "ShapeDtypeStruct",
    "ShapeDtypeStructProtocol",
    "TFRecordIterDataset",
    "WebDatasetIterDataset",
    "WindowShuffleIterDataset",
    "WindowShuffleMapDataset",
    "ZipIterDataset",
    "ZipMapDataset",
    "apply_transformations",
    "batch_and_pad",
    "get_element_spec",
    "get_next_index",
    "index_shuffle",
    "multithread_prefetch",
    "set_next_index",
]

"""What Grain keeps under `grain.python`, its older front door."""

from typing import TYPE_CHECKING, Any

from bushel import checkpoint, experimental
from bushel.base.config import config
from bushel.base.options import MultiprocessingOptions, ReadOptions
from bushel.base.records import Record, RecordMetadata
from bushel.base.transforms import (
    Batch,
    DatasetSelectionMap,
    Transformation,
    Transformations,
)
from bushel.base.transforms import Filter as FilterTransform
from bushel.base.transforms import Map as MapTransform
from bushel.base.transforms import MapWithIndex as MapWithIndexTransform
from bushel.base.transforms import RandomMap as RandomMapTransform
from bushel.checkpoint import CheckpointHandler as PyGrainCheckpointHandler
from bushel.constants import DATASET_INDEX, EPOCH, INDEX, META_FEATURES, RECORD, RECORD_KEY, SEED
from bushel.data_loader import DataLoader, load
from bushel.data_loader import DataLoaderIterator as PyGrainDatasetIterator
from bushel.dataset import IterDataset, MapDataset
from bushel.graph.legacy import BatchOperation, FilterOperation, MapOperation, Operation, RandomMapOperation
from bushel.iterator import DatasetIterator
from bushel.multiprocessing import SharedMemoryArray
from bushel.samplers import IndexSampler, Sampler, SequentialSampler
from bushel.sharding import NoSharding, ShardByJaxProcess, ShardOptions
from bushel.sources import ArrayRecordDataSource, RandomAccessDataSource, RangeDataSource
from bushel.sources import SharedMemoryDataSource as InMemoryDataSource

if TYPE_CHECKING:
    from bushel.orbax import CheckpointRestore as PyGrainCheckpointRestore
    from bushel.orbax import CheckpointSave as PyGrainCheckpointSave

__all__ = [
    "ArrayRecordDataSource",
    "Batch",
    "BatchOperation",
    "DATASET_INDEX",
    "DataLoader",
    "DatasetIterator",
    "DatasetSelectionMap",
    "EPOCH",
    "FilterOperation",
    "FilterTransform",
    "INDEX",
    "InMemoryDataSource",
    "IndexSampler",
    "IterDataset",
    "META_FEATURES",
    "MapDataset",
    "MapOperation",
    "MapTransform",
    "MapWithIndexTransform",
    "MultiprocessingOptions",
    "NoSharding",
    "Operation",
    "PyGrainCheckpointHandler",
    "PyGrainCheckpointRestore",
    "PyGrainCheckpointSave",
    "PyGrainDatasetIterator",
    "RECORD",
    "RECORD_KEY",
    "RandomAccessDataSource",
    "RandomMapOperation",
    "RandomMapTransform",
    "RangeDataSource",
    "ReadOptions",
    "Record",
    "RecordMetadata",
    "SEED",
    "Sampler",
    "SequentialSampler",
    "ShardByJaxProcess",
    "ShardOptions",
    "SharedMemoryArray",
    "Transformation",
    "Transformations",
    "config",
    "experimental",
    "load",
]


def __getattr__(name: str) -> Any:
    if name in ("PyGrainCheckpointRestore", "PyGrainCheckpointSave"):
        return getattr(checkpoint, name.removeprefix("PyGrain"))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

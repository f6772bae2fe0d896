"""What Grain keeps under `grain.python`, its older front door."""

import typing as _typing

from bushel._src.base.doors import open_door as _open_door

if _typing.TYPE_CHECKING:
    from bushel import experimental
    from bushel._src.base.config import config
    from bushel._src.base.options import MultiprocessingOptions, ReadOptions
    from bushel._src.base.record_fields import DATASET_INDEX, EPOCH, INDEX, META_FEATURES, RECORD, RECORD_KEY, SEED
    from bushel._src.base.records import Record, RecordMetadata
    from bushel._src.base.sharding import NoSharding, ShardByJaxProcess, ShardOptions
    from bushel._src.base.transforms import Batch, DatasetSelectionMap, Transformation, Transformations
    from bushel._src.base.transforms import Filter as FilterTransform
    from bushel._src.base.transforms import Map as MapTransform
    from bushel._src.base.transforms import MapWithIndex as MapWithIndexTransform
    from bushel._src.base.transforms import RandomMap as RandomMapTransform
    from bushel._src.datasets.dataset import IterDataset, MapDataset
    from bushel._src.datasets.iterator import DatasetIterator
    from bushel._src.datasets.shared_arrays import SharedMemoryArray
    from bushel._src.graph.legacy import BatchOperation, FilterOperation, MapOperation, Operation, RandomMapOperation
    from bushel._src.graph.sampling import IndexSampler, Sampler, SequentialSampler
    from bushel._src.loaders.data_loader import DataLoader, load
    from bushel._src.loaders.data_loader import DataLoaderIterator as PyGrainDatasetIterator
    from bushel._src.loaders.orbax import CheckpointRestore as PyGrainCheckpointRestore
    from bushel._src.loaders.orbax import CheckpointSave as PyGrainCheckpointSave
    from bushel._src.sources.array_record import ArrayRecordDataSource
    from bushel._src.sources.memory_sources import RangeDataSource
    from bushel._src.sources.protocol import RandomAccessDataSource
    from bushel._src.sources.shared_list import SharedMemoryDataSource as InMemoryDataSource
    from bushel._src.state.handler import CheckpointHandler as PyGrainCheckpointHandler

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

_MODULES = {
    "base.config": "config",
    "base.options": "MultiprocessingOptions ReadOptions",
    "base.record_fields": "DATASET_INDEX EPOCH INDEX META_FEATURES RECORD RECORD_KEY SEED",
    "base.records": "Record RecordMetadata",
    "base.sharding": "NoSharding ShardByJaxProcess ShardOptions",
    "base.transforms": (
        "Batch DatasetSelectionMap Filter=FilterTransform Map=MapTransform MapWithIndex=MapWithIndexTransform "
        "RandomMap=RandomMapTransform Transformation Transformations"
    ),
    "datasets.dataset": "IterDataset MapDataset",
    "datasets.iterator": "DatasetIterator",
    "datasets.shared_arrays": "SharedMemoryArray",
    "graph.legacy": "BatchOperation FilterOperation MapOperation Operation RandomMapOperation",
    "graph.sampling": "IndexSampler Sampler SequentialSampler",
    "loaders.data_loader": "DataLoader DataLoaderIterator=PyGrainDatasetIterator load",
    "loaders.orbax": "CheckpointRestore=PyGrainCheckpointRestore CheckpointSave=PyGrainCheckpointSave",
    "sources.array_record": "ArrayRecordDataSource",
    "sources.memory_sources": "RangeDataSource",
    "sources.protocol": "RandomAccessDataSource",
    "sources.shared_list": "SharedMemoryDataSource=InMemoryDataSource",
    "state.handler": "CheckpointHandler=PyGrainCheckpointHandler",
}

if not _typing.TYPE_CHECKING:  # so that a type checker reports missing names
    __getattr__, __dir__ = _open_door(__name__, __all__, _MODULES)

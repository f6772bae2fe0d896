"""What Grain keeps under `grain.python`, its older front door."""

import typing as _typing

from bushel._src.base.doors import open_door as _open_door

if _typing.TYPE_CHECKING:
    from bushel import experimental
    from bushel._src.base.grain_names import config
    from bushel._src.base.options import (
        MultiprocessingOptions,
        NoSharding,
        ReadOptions,
        ShardByJaxProcess,
        ShardOptions,
    )
    from bushel._src.base.records import (
        DATASET_INDEX,
        EPOCH,
        INDEX,
        META_FEATURES,
        RECORD,
        RECORD_KEY,
        SEED,
        Record,
        RecordMetadata,
    )
    from bushel._src.base.transforms import Batch, DatasetSelectionMap, Transformation, Transformations
    from bushel._src.base.transforms import Filter as FilterTransform
    from bushel._src.base.transforms import Map as MapTransform
    from bushel._src.base.transforms import MapWithIndex as MapWithIndexTransform
    from bushel._src.base.transforms import RandomMap as RandomMapTransform
    from bushel._src.datasets.iter_dataset import IterDataset
    from bushel._src.datasets.iterator import DatasetIterator
    from bushel._src.datasets.map_dataset import MapDataset
    from bushel._src.datasets.shared_arrays import SharedMemoryArray
    from bushel._src.graph.loader_ops import (
        BatchOperation,
        FilterOperation,
        MapOperation,
        Operation,
        RandomMapOperation,
    )
    from bushel._src.graph.samplers import IndexSampler, Sampler, SequentialSampler
    from bushel._src.loaders.checkpoint import CheckpointHandler as PyGrainCheckpointHandler
    from bushel._src.loaders.data_loader import DataLoader, load
    from bushel._src.loaders.data_loader import DataLoaderIterator as PyGrainDatasetIterator
    from bushel._src.loaders.orbax import CheckpointRestore as PyGrainCheckpointRestore
    from bushel._src.loaders.orbax import CheckpointSave as PyGrainCheckpointSave
    from bushel._src.sources.array_record import ArrayRecordDataSource
    from bushel._src.sources.memory_sources import RangeDataSource
    from bushel._src.sources.memory_sources import SharedMemoryDataSource as InMemoryDataSource
    from bushel._src.sources.user_sources import RandomAccessDataSource

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
    "base.grain_names": "config",
    "base.options": "MultiprocessingOptions NoSharding ReadOptions ShardByJaxProcess ShardOptions",
    "base.records": "DATASET_INDEX EPOCH INDEX META_FEATURES RECORD Record RECORD_KEY RecordMetadata SEED",
    "base.transforms": (
        "Batch DatasetSelectionMap Filter=FilterTransform Map=MapTransform MapWithIndex=MapWithIndexTransform "
        "RandomMap=RandomMapTransform Transformation Transformations"
    ),
    "datasets.iter_dataset": "IterDataset",
    "datasets.iterator": "DatasetIterator",
    "datasets.map_dataset": "MapDataset",
    "datasets.shared_arrays": "SharedMemoryArray",
    "graph.loader_ops": "BatchOperation FilterOperation MapOperation Operation RandomMapOperation",
    "graph.samplers": "IndexSampler Sampler SequentialSampler",
    "loaders.checkpoint": "CheckpointHandler=PyGrainCheckpointHandler",
    "loaders.data_loader": "DataLoader DataLoaderIterator=PyGrainDatasetIterator load",
    "loaders.orbax": "CheckpointRestore=PyGrainCheckpointRestore CheckpointSave=PyGrainCheckpointSave",
    "sources.array_record": "ArrayRecordDataSource",
    "sources.memory_sources": "RangeDataSource SharedMemoryDataSource=InMemoryDataSource",
    "sources.user_sources": "RandomAccessDataSource",
}

if not _typing.TYPE_CHECKING:  # so that a type checker reports missing names
    __getattr__, __dir__ = _open_door(__name__, __all__, _MODULES)

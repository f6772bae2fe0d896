"""Bushel feeds JAX: data pipelines that are a function of an index.

>>> import bushel
>>> ds = bushel.MapDataset.range(10).seed(0).shuffle().map(lambda x: x + 1).batch(5)
>>> sorted(int(x) for batch in ds for x in batch)
[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
"""

from bushel import (
    checkpoint,
    constants,
    experimental,
    multiprocessing,
    python,
    samplers,
    sharding,
    sources,
    testing,
    transforms,
)
from bushel.base.config import config
from bushel.base.errors import PipelineNotSent, StateMismatch, WorkerDied
from bushel.base.options import MultiprocessingOptions, ReadOptions
from bushel.base.records import Record, RecordMetadata
from bushel.base.transforms import Batch, Transformation
from bushel.base.transforms import Map as MapTransform
from bushel.base.transforms import RandomMap as RandomMapTransform
from bushel.checkpoint import CheckpointHandler as OrbaxCheckpointHandler
from bushel.data_loader import DataLoader, DataLoaderIterator, load
from bushel.dataset import IterDataset, MapDataset
from bushel.engine import Report
from bushel.iterator import DatasetIterator
from bushel.samplers import IndexSampler, Sampler, SequentialSampler
from bushel.sharding import NoSharding, ShardByJaxProcess, ShardOptions
from bushel.sources import RandomAccessDataSource

__version__ = "0.1.0"
__version_info__ = (0, 1, 0)

__all__ = [
    "Batch",
    "DataLoader",
    "DataLoaderIterator",
    "DatasetIterator",
    "IndexSampler",
    "IterDataset",
    "MapDataset",
    "MapTransform",
    "MultiprocessingOptions",
    "NoSharding",
    "OrbaxCheckpointHandler",
    "PipelineNotSent",
    "RandomAccessDataSource",
    "RandomMapTransform",
    "ReadOptions",
    "Record",
    "RecordMetadata",
    "Report",
    "Sampler",
    "SequentialSampler",
    "ShardByJaxProcess",
    "ShardOptions",
    "StateMismatch",
    "Transformation",
    "WorkerDied",
    "__version__",
    "__version_info__",
    "checkpoint",
    "config",
    "constants",
    "experimental",
    "load",
    "multiprocessing",
    "python",
    "samplers",
    "sharding",
    "sources",
    "testing",
    "transforms",
]

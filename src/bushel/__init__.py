"""Bushel feeds JAX: data pipelines that are a function of an index.

>>> import bushel
>>> ds = bushel.MapDataset.range(10).seed(0).shuffle().map(lambda x: x + 1).batch(5)
>>> sorted(int(x) for batch in ds for x in batch)
[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
"""

from bushel import experimental, sources, testing, transforms
from bushel.base.errors import PipelineNotSent, StateMismatch, TooManySkipped, WorkerDied
from bushel.base.options import MultiprocessingOptions, ReadOptions
from bushel.dataset import IterDataset, MapDataset
from bushel.engine import Report
from bushel.graph.columns import Column
from bushel.graph.explain import Explanation
from bushel.iterator import DatasetIterator

__version__ = "0.1.0"

__all__ = [
    "Column",
    "DatasetIterator",
    "Explanation",
    "IterDataset",
    "MapDataset",
    "MultiprocessingOptions",
    "PipelineNotSent",
    "ReadOptions",
    "Report",
    "StateMismatch",
    "TooManySkipped",
    "WorkerDied",
    "__version__",
    "experimental",
    "sources",
    "testing",
    "transforms",
]

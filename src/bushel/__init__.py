"""Bushel feeds JAX: data pipelines that are a function of an index.

>>> import bushel
>>> ds = bushel.MapDataset.range(10).seed(0).shuffle().map(lambda x: x + 1).batch(5)
>>> sorted(int(x) for batch in ds for x in batch)
[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
"""

import os as _os
import typing as _typing

from bushel import sources as sources  # results hold its `Columns`: cloudpickle looks for it among loaded modules
from bushel._src.base.doors import open_door as _open_door

if _typing.TYPE_CHECKING:
    from bushel import checkpoint as checkpoint
    from bushel import constants as constants
    from bushel import device as device
    from bushel import experimental as experimental
    from bushel import jit as jit
    from bushel import multiprocessing as multiprocessing
    from bushel import prometheus as prometheus
    from bushel import python as python
    from bushel import ray as ray
    from bushel import samplers as samplers
    from bushel import sharding as sharding
    from bushel import testing as testing
    from bushel import trajectory as trajectory
    from bushel import transforms as transforms
    from bushel import view as view
    from bushel._src.base.errors import BushelDeprecationWarning as BushelDeprecationWarning
    from bushel._src.base.errors import BushelError as BushelError
    from bushel._src.base.errors import BushelWarning as BushelWarning
    from bushel._src.base.errors import DamagedFile as DamagedFile
    from bushel._src.base.errors import OtherFile as OtherFile
    from bushel._src.base.errors import PipelineNotSent as PipelineNotSent
    from bushel._src.base.errors import PositionOutOfRange as PositionOutOfRange
    from bushel._src.base.errors import SavedByAnotherPipeline as SavedByAnotherPipeline
    from bushel._src.base.errors import StateMismatch as StateMismatch
    from bushel._src.base.errors import StoppedByUser as StoppedByUser
    from bushel._src.base.errors import TooLarge as TooLarge
    from bushel._src.base.errors import TooManySkipped as TooManySkipped
    from bushel._src.base.errors import UnknownFormat as UnknownFormat
    from bushel._src.base.errors import WorkerDied as WorkerDied
    from bushel._src.base.errors import WorkerTimeout as WorkerTimeout
    from bushel._src.base.grain_names import config as config
    from bushel._src.base.options import DatasetOptions as DatasetOptions
    from bushel._src.base.options import MultiprocessingOptions as MultiprocessingOptions
    from bushel._src.base.options import NoSharding as NoSharding
    from bushel._src.base.options import RayOptions as RayOptions
    from bushel._src.base.options import ReadOptions as ReadOptions
    from bushel._src.base.options import ShardByJaxProcess as ShardByJaxProcess
    from bushel._src.base.options import ShardOptions as ShardOptions
    from bushel._src.base.options import WorkerOptions as WorkerOptions
    from bushel._src.base.records import Record as Record
    from bushel._src.base.records import RecordMetadata as RecordMetadata
    from bushel._src.base.shown_text import Written as Written
    from bushel._src.base.shown_text import on_progress as on_progress
    from bushel._src.base.transforms import Batch as Batch
    from bushel._src.base.transforms import Map as MapTransform
    from bushel._src.base.transforms import RandomMap as RandomMapTransform
    from bushel._src.base.transforms import Transformation as Transformation
    from bushel._src.datasets.base_dataset import Dataset as Dataset
    from bushel._src.datasets.iter_dataset import IterDataset as IterDataset
    from bushel._src.datasets.iterator import DatasetIterator as DatasetIterator
    from bushel._src.datasets.map_dataset import MapDataset as MapDataset
    from bushel._src.datasets.map_dataset import PackedMapDataset as PackedMapDataset
    from bushel._src.device.to_device import device_put as device_put
    from bushel._src.display.show_element import ShownElement as ShownElement
    from bushel._src.engine.measurements import Pool as Pool
    from bushel._src.engine.measurements import SkippedElements as SkippedElements
    from bushel._src.engine.measurements import Stage as Stage
    from bushel._src.engine.measurements import Transfer as Transfer
    from bushel._src.engine.report import Report as Report
    from bushel._src.graph.columns import Column as Column
    from bushel._src.graph.graph_text import Description as Description
    from bushel._src.graph.origins import ElementOrigin as ElementOrigin
    from bushel._src.graph.origins import SourceRecord as SourceRecord
    from bushel._src.graph.samplers import IndexSampler as IndexSampler
    from bushel._src.graph.samplers import Sampler as Sampler
    from bushel._src.graph.samplers import SequentialSampler as SequentialSampler
    from bushel._src.loaders.checkpoint import CheckpointHandler as OrbaxCheckpointHandler
    from bushel._src.loaders.data_loader import DataLoader as DataLoader
    from bushel._src.loaders.data_loader import DataLoaderIterator as DataLoaderIterator
    from bushel._src.loaders.data_loader import load as load
    from bushel._src.loaders.elastic import ElasticIterator as ElasticIterator
    from bushel._src.reporting.report_server import ReportServer as ReportServer
    from bushel._src.reporting.report_server import serve_report as serve_report
    from bushel._src.sources.user_sources import RandomAccessDataSource as RandomAccessDataSource
    from bushel._src.state.identity import IdentityExplanation as IdentityExplanation
    from bushel._src.state.identity import IdentityPart as IdentityPart
    from bushel._src.state.identity import explain_identity as explain_identity

__version__ = "0.1.0"
__version_info__ = (0, 1, 0)

__all__ = [
    "Batch",
    "BushelDeprecationWarning",
    "BushelError",
    "BushelWarning",
    "Column",
    "DamagedFile",
    "DataLoader",
    "DataLoaderIterator",
    "Dataset",
    "DatasetIterator",
    "DatasetOptions",
    "Description",
    "ElasticIterator",
    "ElementOrigin",
    "IdentityExplanation",
    "IdentityPart",
    "IndexSampler",
    "IterDataset",
    "MapDataset",
    "MapTransform",
    "MultiprocessingOptions",
    "NoSharding",
    "OrbaxCheckpointHandler",
    "OtherFile",
    "PackedMapDataset",
    "PipelineNotSent",
    "Pool",
    "PositionOutOfRange",
    "RandomAccessDataSource",
    "RandomMapTransform",
    "RayOptions",
    "ReadOptions",
    "Record",
    "RecordMetadata",
    "Report",
    "ReportServer",
    "Sampler",
    "SavedByAnotherPipeline",
    "SequentialSampler",
    "ShardByJaxProcess",
    "ShardOptions",
    "ShownElement",
    "SkippedElements",
    "SourceRecord",
    "Stage",
    "StateMismatch",
    "StoppedByUser",
    "TooLarge",
    "TooManySkipped",
    "Transfer",
    "Transformation",
    "UnknownFormat",
    "WorkerDied",
    "WorkerOptions",
    "WorkerTimeout",
    "Written",
    "__version__",
    "__version_info__",
    "checkpoint",
    "config",
    "constants",
    "experimental",
    "explain_identity",
    "load",
    "multiprocessing",
    "on_progress",
    "python",
    "samplers",
    "serve_report",
    "sharding",
    "sources",
    "testing",
    "transforms",
]

_EXTRAS = ("device", "device_put", "jit", "prometheus", "ray", "trajectory", "view")
"""Names that need an extra, such as JAX. They are not in `__all__`, so that `from bushel import *` needs none."""

_MODULES = {
    "base.errors": (
        "BushelDeprecationWarning BushelError BushelWarning DamagedFile OtherFile PipelineNotSent "
        "PositionOutOfRange SavedByAnotherPipeline StateMismatch StoppedByUser TooLarge TooManySkipped "
        "UnknownFormat WorkerDied WorkerTimeout"
    ),
    "base.grain_names": "config",
    "base.options": (
        "DatasetOptions MultiprocessingOptions NoSharding RayOptions ReadOptions ShardByJaxProcess "
        "ShardOptions WorkerOptions"
    ),
    "base.records": "Record RecordMetadata",
    "base.shown_text": "on_progress Written",
    "base.transforms": "Batch Map=MapTransform RandomMap=RandomMapTransform Transformation",
    "datasets.base_dataset": "Dataset",
    "datasets.iter_dataset": "IterDataset",
    "datasets.iterator": "DatasetIterator",
    "datasets.map_dataset": "MapDataset PackedMapDataset",
    "device.to_device": "device_put",
    "display.show_element": "ShownElement",
    "engine.measurements": "Pool SkippedElements Stage Transfer",
    "engine.report": "Report",
    "graph.columns": "Column",
    "graph.graph_text": "Description",
    "graph.origins": "ElementOrigin SourceRecord",
    "graph.samplers": "IndexSampler Sampler SequentialSampler",
    "loaders.checkpoint": "CheckpointHandler=OrbaxCheckpointHandler",
    "loaders.data_loader": "DataLoader DataLoaderIterator load",
    "loaders.elastic": "ElasticIterator",
    "reporting.report_server": "ReportServer serve_report",
    "sources.user_sources": "RandomAccessDataSource",
    "state.identity": "explain_identity IdentityExplanation IdentityPart",
}

if not _typing.TYPE_CHECKING:  # so that a type checker reports missing names
    __getattr__, __dir__ = _open_door(__name__, __all__, _MODULES, _EXTRAS)

if _os.environ.get("ENABLE_PYGRAIN_PROMETHEUS_TELEMETRY"):
    from bushel._src.base import options as _options

    if _options.TELEMETRY:
        from bushel._src.reporting.prometheus import serve_all as _serve_all

        _serve_all()

"""Bushel feeds JAX: data pipelines that are a function of an index.

>>> import bushel
>>> ds = bushel.MapDataset.range(10).seed(0).shuffle().map(lambda x: x + 1).batch(5)
>>> sorted(int(x) for batch in ds for x in batch)
[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
"""

import importlib as _importlib
import os as _os
import typing as _typing

if _typing.TYPE_CHECKING:
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
    from bushel import (
        device as device,
    )
    from bushel import (
        jit as jit,
    )
    from bushel import (
        prometheus as prometheus,
    )
    from bushel import (
        ray as ray,
    )
    from bushel import (
        trajectory as trajectory,
    )
    from bushel.base.config import config
    from bushel.base.errors import (
        BushelDeprecationWarning,
        BushelError,
        BushelWarning,
        DamagedFile,
        OtherFile,
        PipelineNotSent,
        PositionOutOfRange,
        SavedByAnotherPipeline,
        StateMismatch,
        StoppedByUser,
        TooLarge,
        TooManySkipped,
        UnknownFormat,
        WorkerDied,
        WorkerTimeout,
    )
    from bushel.base.options import DatasetOptions, MultiprocessingOptions, RayOptions, ReadOptions, WorkerOptions
    from bushel.base.progress import on_progress
    from bushel.base.records import Record, RecordMetadata
    from bushel.base.transforms import Batch, Transformation
    from bushel.base.transforms import Map as MapTransform
    from bushel.base.transforms import RandomMap as RandomMapTransform
    from bushel.base.written import Written
    from bushel.base_dataset import Dataset
    from bushel.checkpoint import CheckpointHandler as OrbaxCheckpointHandler
    from bushel.data_loader import DataLoader, DataLoaderIterator, load
    from bushel.dataset import IterDataset, MapDataset
    from bushel.device.loader_on_device import device_put as device_put
    from bushel.display.shown import ShownElement
    from bushel.elastic import ElasticIterator
    from bushel.engine import Report
    from bushel.engine.figures import Pool, Skip, Stage, Transfer
    from bushel.graph.columns import Column
    from bushel.graph.origins import ElementOrigin, SourceRecord
    from bushel.graph.show import Description
    from bushel.iterator import DatasetIterator
    from bushel.map_dataset import PackedMapDataset
    from bushel.running import ReportServer, serve_report
    from bushel.samplers import IndexSampler, Sampler, SequentialSampler
    from bushel.sharding import NoSharding, ShardByJaxProcess, ShardOptions
    from bushel.sources import RandomAccessDataSource
    from bushel.state.explanation import IdentityExplanation, IdentityPart, explain_identity
    from bushel.view import view as view

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
    "Skip",
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
"""Modules that need an extra, such as JAX. They are not in `__all__`, so that `from bushel import *` needs none."""

_ELSEWHERE = {
    "IdentityPart": "state.explanation",
    "Transfer": "engine.figures",
    "Stage": "engine.figures",
    "Skip": "engine.figures",
    "Pool": "engine.figures",
    "Batch": "base.transforms",
    "BushelDeprecationWarning": "base.errors",
    "BushelError": "base.errors",
    "BushelWarning": "base.errors",
    "Column": "graph.columns",
    "DamagedFile": "base.errors",
    "DataLoader": "data_loader",
    "DataLoaderIterator": "data_loader",
    "Dataset": "base_dataset",
    "DatasetIterator": "iterator",
    "DatasetOptions": "base.options",
    "Description": "graph.show",
    "ElasticIterator": "elastic",
    "ElementOrigin": "graph.origins",
    "IdentityExplanation": "state.explanation",
    "IndexSampler": "samplers",
    "IterDataset": "dataset",
    "MapDataset": "dataset",
    "MapTransform": "base.transforms.Map",
    "MultiprocessingOptions": "base.options",
    "NoSharding": "sharding",
    "OrbaxCheckpointHandler": "checkpoint.CheckpointHandler",
    "OtherFile": "base.errors",
    "PackedMapDataset": "map_dataset",
    "PipelineNotSent": "base.errors",
    "PositionOutOfRange": "base.errors",
    "RandomAccessDataSource": "sources",
    "RandomMapTransform": "base.transforms.RandomMap",
    "RayOptions": "base.options",
    "ReadOptions": "base.options",
    "Record": "base.records",
    "RecordMetadata": "base.records",
    "Report": "engine",
    "ReportServer": "running",
    "Sampler": "samplers",
    "SavedByAnotherPipeline": "base.errors",
    "SequentialSampler": "samplers",
    "ShardByJaxProcess": "sharding",
    "ShardOptions": "sharding",
    "ShownElement": "display.shown",
    "SourceRecord": "graph.origins",
    "StateMismatch": "base.errors",
    "StoppedByUser": "base.errors",
    "TooLarge": "base.errors",
    "TooManySkipped": "base.errors",
    "Transformation": "base.transforms",
    "UnknownFormat": "base.errors",
    "WorkerDied": "base.errors",
    "WorkerOptions": "base.options",
    "WorkerTimeout": "base.errors",
    "Written": "base.written",
    "config": "base.config",
    "device_put": "device.loader_on_device",
    "explain_identity": "state.explanation",
    "load": "data_loader",
    "on_progress": "base.progress",
    "serve_report": "running",
}
"""The module of each name that is loaded when it is asked for; with another name there, where it has one."""


if not _typing.TYPE_CHECKING:  # so that a type checker reports missing names

    def __getattr__(name: str) -> object:
        """Loads a name when it is first asked for: `import bushel` is quick, and workers load only what they run."""
        if name not in __all__ and name not in _EXTRAS:
            hints = _importlib.import_module("bushel.base.hints")
            text = hints.missing_in_module("bushel", name, [*__all__, *_EXTRAS])
            raise hints.no_attribute(text, name)
        if name not in _ELSEWHERE:
            return _importlib.import_module(f"bushel.{name}")
        module, _, other = _ELSEWHERE[name].rpartition(".")
        if not other[0].isupper():
            module, other = _ELSEWHERE[name], name
        value = globals()[name] = getattr(_importlib.import_module(f"bushel.{module}"), other)
        return value


if _os.environ.get("ENABLE_PYGRAIN_PROMETHEUS_TELEMETRY"):
    from bushel.base import options as _options

    if _options.TELEMETRY:
        _importlib.import_module("bushel.prometheus").serve_all()


def __dir__() -> list[str]:
    return sorted({name for name in globals() if name.startswith("__")} | {*__all__, *_EXTRAS})

"""Figures of iterators for Prometheus: read when they are scraped, from the report of each iterator."""

from __future__ import annotations

import itertools
import logging
import os
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from bushel._src.base.late_imports import install_command
from bushel._src.base.public import public
from bushel._src.datasets.iterator import DatasetIterator, on_open
from bushel._src.engine.tasks import in_worker
from bushel._src.loaders.data_loader import DataLoaderIterator

if TYPE_CHECKING:
    from prometheus_client.core import Metric
    from prometheus_client.registry import CollectorRegistry

__all__ = ["export"]

logger = logging.getLogger("bushel")

PORT = 9431
"""Where Grain serves its figures, and Bushel where Grain's variable asks for it."""

_OF_STAGE = ("iterator", "number", "stage", "where")
_OF_POOL = ("iterator", "number", "kind")
_COUNTERS = {
    "elements": ("Elements delivered.", ("iterator",)),
    "skipped_elements": ('Elements that failed and were left out, with on_error="skip".', ("iterator",)),
    "wait_seconds": ("Seconds that the consumer spent in next().", ("iterator",)),
    "stage_elements": ("Elements that a stage gave.", _OF_STAGE),
    "stage_seconds": ("Seconds that a stage took itself.", _OF_STAGE),
    "stage_bytes": ("Bytes of what a stage gave.", _OF_STAGE),
    "pool_busy_seconds": ("Seconds that workers or threads worked, added up.", _OF_POOL),
    "pool_wait_seconds": ("Seconds that the consumer waited for them.", _OF_POOL),
    "pool_deaths": ("Workers that have died and were replaced.", _OF_POOL),
}
_GAUGES = {
    "pool_members": ("Workers or threads at work now.", _OF_POOL),
    "pool_ready_blocks": ("Blocks computed and not yet asked for.", _OF_POOL),
}


@public("bushel.prometheus")
def export(iterator: Any, name: str = "train", *, registry: CollectorRegistry | None = None) -> None:
    """Let Prometheus see an iterator whose stages are timed, under the label `iterator="train"` or another name.

    It is seen until it is gone, or another is exported under its name. Needs the extra `prometheus`;
    `prometheus_client.start_http_server(9431)` serves the figures.

    Args:
      iterator: of a dataset, loader or ElasticIterator with the option `execution_tracking_mode="stage_timing"`.
      name: tells several iterators of one process apart.
      registry: by default the one that `prometheus_client` serves.
    """
    try:
        import prometheus_client
    except ImportError as error:
        raise ImportError(f"Prometheus is an extra: {install_command('prometheus')}") from error
    if not isinstance(iterator, (DatasetIterator, DataLoaderIterator)):
        raise TypeError(f"export takes an iterator of a Bushel dataset, got {type(iterator).__name__}.")
    report = iterator.report()
    if not report.timed:
        raise ValueError(f"There is nothing to export. {report.verdict}")
    registry = prometheus_client.REGISTRY if registry is None else registry
    collector = _COLLECTORS.get(registry)
    if collector is None:
        collector = _COLLECTORS[registry] = _Collector()
        registry.register(collector)
    collector.iterators[name] = weakref.ref(iterator)


def serve_all() -> None:
    """Export every iterator that is made from now on, and serves the figures on a port, as Grain does.

    Bushel calls it when it is imported where `ENABLE_PYGRAIN_PROMETHEUS_TELEMETRY=true` is set. The port opens with the
    first iterator: `PYGRAIN_PROMETHEUS_PORT`, or 9431, on all addresses of this machine. Worker processes open none.
    """
    numbers = itertools.count()

    def notify(iterator: DatasetIterator[Any]) -> None:
        if in_worker() or not iterator.report().timed:
            return
        number = next(numbers)
        if number == 0:
            _open_port()
        export(iterator, f"iterator {number}")

    on_open.append(notify)


def _open_port() -> None:
    import prometheus_client

    text = os.environ.get("PYGRAIN_PROMETHEUS_PORT", "")
    if text and not text.isdecimal():
        logger.warning("PYGRAIN_PROMETHEUS_PORT=%r is not a number: using %d.", text, PORT)
    port = int(text) if text.isdecimal() else PORT
    try:
        prometheus_client.start_http_server(port)
    except (OSError, OverflowError) as error:
        logger.warning("Prometheus cannot read this process: port %d did not open (%s).", port, error)


class _Collector:
    """All iterators of a registry: a metric may be registered once."""

    def __init__(self) -> None:
        self.iterators: dict[str, weakref.ref[Any]] = {}

    def describe(self) -> list[Metric]:
        return list(_families().values())

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Any] = _families()
        for name, reference in list(self.iterators.items()):
            iterator = reference()
            if iterator is None:
                self.iterators.pop(name, None)
                continue
            for metric, labels, value in _figures(iterator, name):
                families[metric].add_metric(labels, value)
        yield from families.values()


def _figures(iterator: Any, name: str) -> Iterator[tuple[str, list[str], float]]:
    report = iterator.report()
    yield "elements", [name], report.elements
    yield "wait_seconds", [name], report.waited_s
    yield "skipped_elements", [name], iterator.skipped
    for stage in report.stages:
        labels = [name, str(stage.number), stage.call, stage.where]
        yield "stage_elements", labels, stage.elements
        yield "stage_seconds", labels, stage.self_s
        yield "stage_bytes", labels, stage.size_bytes
    for number, pool in enumerate(report.pools):
        labels = [name, str(number), pool.kind]
        yield "pool_busy_seconds", labels, pool.busy_s
        yield "pool_wait_seconds", labels, pool.wait_s
        yield "pool_deaths", labels, pool.deaths
        yield "pool_members", labels, pool.size
        yield "pool_ready_blocks", labels, pool.ready_now


def _families() -> dict[str, Any]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    kinds = [(_COUNTERS, CounterMetricFamily), (_GAUGES, GaugeMetricFamily)]
    return {
        metric: family(f"bushel_{metric}", text, labels=labels)
        for table, family in kinds
        for metric, (text, labels) in table.items()
    }


_COLLECTORS: weakref.WeakKeyDictionary[Any, _Collector] = weakref.WeakKeyDictionary()

"""What Prometheus sees: the figures of the report, with the real client."""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
import urllib.request
from typing import Any

import pytest
from helpers.waiting import wait_until

prometheus_client = pytest.importorskip("prometheus_client")

from prometheus_client.parser import text_string_to_metric_families  # noqa: E402

import bushel  # noqa: E402
import bushel.prometheus  # noqa: E402
from bushel._src.base.late_imports import install_command  # noqa: E402
from bushel.experimental import DatasetOptions, ExecutionTrackingMode, WithOptionsIterDataset  # noqa: E402

TIMED = DatasetOptions(execution_tracking_mode=ExecutionTrackingMode.STAGE_TIMING)


def timed(ds: Any) -> Any:
    return iter(WithOptionsIterDataset(ds, TIMED))


def seen(registry: Any) -> dict[str, dict[tuple[str, ...], float]]:
    """Values by metric and labels, as a scrape would have them."""
    text = prometheus_client.generate_latest(registry).decode()
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = tuple(sample.labels[name] for name in sorted(sample.labels))
            assert labels not in found.setdefault(sample.name, {}), "one value for each set of labels"
            found[sample.name][labels] = sample.value
    return found


def test_a_scrape_is_the_report():
    registry = prometheus_client.CollectorRegistry()
    ds = bushel.MapDataset.range(40).map(abs).map(abs).to_iter_dataset().batch(4)
    with timed(ds.mp_prefetch(bushel.MultiprocessingOptions(num_workers=2))) as it:
        bushel.prometheus.export(it, registry=registry)
        assert seen(registry)["bushel_elements_total"] == {("train",): 0}
        for _ in range(10):
            next(it)
        report, found = it.report(), seen(registry)
    assert found["bushel_elements_total"] == {("train",): 10}
    assert found["bushel_wait_seconds_total"] == {("train",): report.waited_s}
    for metric, name in [("elements", "elements"), ("seconds", "self_s"), ("bytes", "size_bytes")]:
        assert found[f"bushel_stage_{metric}_total"] == {
            ("train", str(stage.number), stage.call, stage.where): getattr(stage, name) for stage in report.stages
        }
    (pool,) = report.pools
    assert found["bushel_pool_members"] == {("train", "workers", "0"): 2}
    assert found["bushel_pool_busy_seconds_total"] == {("train", "workers", "0"): pool.busy_s}
    assert found["bushel_pool_wait_seconds_total"] == {("train", "workers", "0"): pool.wait_s}
    assert found["bushel_pool_ready_blocks"] == {("train", "workers", "0"): pool.ready_now}


def test_killed_workers_are_counted():
    registry = prometheus_client.CollectorRegistry()
    ds = bushel.MapDataset.range(400).map(lambda x: (os.getpid(), x)).to_iter_dataset()
    with timed(ds.mp_prefetch(bushel.MultiprocessingOptions(num_workers=2))) as it:
        bushel.prometheus.export(it, registry=registry)
        pid, _ = next(it)
        assert seen(registry)["bushel_pool_deaths_total"] == {("train", "workers", "0"): 0}
        assert "died" not in str(it.report())
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: it.report().pools[0].deaths == 1)
        assert seen(registry)["bushel_pool_deaths_total"] == {("train", "workers", "0"): 1}
        assert "1 of the workers has died and been replaced." in str(it.report())
        assert [x for _, x in it] == list(range(1, 400))


def test_several_iterators_are_told_apart_and_are_gone_when_they_are_gone():
    registry = prometheus_client.CollectorRegistry()
    ds = bushel.MapDataset.range(10).to_iter_dataset()
    train, evaluate = timed(ds), timed(ds)
    bushel.prometheus.export(train, registry=registry)
    bushel.prometheus.export(evaluate, "eval", registry=registry)
    next(train)
    assert seen(registry)["bushel_elements_total"] == {("train",): 1, ("eval",): 0}
    del train
    gc.collect()
    assert seen(registry)["bushel_elements_total"] == {("eval",): 0}
    again = timed(ds)
    bushel.prometheus.export(again, "eval", registry=registry)
    list(again)
    assert seen(registry)["bushel_elements_total"] == {("eval",): 10}


def test_over_http_from_the_registry_of_the_client():
    it = timed(bushel.MapDataset.range(10).to_iter_dataset())
    bushel.prometheus.export(it, "over http")
    list(it)
    server, thread = prometheus_client.start_http_server(0, addr="127.0.0.1")
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics", timeout=10) as reply:
            text = reply.read().decode()
    finally:
        server.shutdown()
        server.server_close()
        thread.join(100)
    assert 'bushel_elements_total{iterator="over http"} 10.0' in text


def test_what_cannot_be_exported_is_refused_in_a_sentence(monkeypatch):
    with pytest.raises(
        ValueError,
        match=r"There is nothing to export. Stages are not timed. To time them, iterate over ds.with_options",
    ):
        bushel.prometheus.export(iter(bushel.MapDataset.range(3)))
    with pytest.raises(TypeError, match="takes an iterator of a Bushel dataset, got list"):
        bushel.prometheus.export([])
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ImportError, match=re.escape(install_command("prometheus"))):
        bushel.prometheus.export(iter(bushel.MapDataset.range(3)))


def test_skipped_elements_are_counted():
    registry = prometheus_client.CollectorRegistry()
    ds = bushel.MapDataset.range(10).map(lambda x: 1 // (x % 4)).to_iter_dataset()
    it = iter(ds.with_options(on_error="skip", execution_tracking_mode="stage_timing"))
    bushel.prometheus.export(it, registry=registry)
    assert len(list(it)) == 7
    assert seen(registry)["bushel_skipped_elements_total"] == {("train",): 3}


def test_a_data_loader_and_an_elastic_iterator_are_exported():
    registry = prometheus_client.CollectorRegistry()
    loader = bushel.DataLoader(
        data_source=list(range(40)),
        sampler=bushel.SequentialSampler(40),
        operations=[bushel.Batch(4)],
        worker_count=2,
        enable_profiling=True,
    )
    host = bushel.sharding.NoSharding()
    elastic = bushel.experimental.ElasticIterator(bushel.MapDataset.range(8), 4, host, options=TIMED)
    with iter(loader) as batches:
        bushel.prometheus.export(batches, "loader", registry=registry)
        bushel.prometheus.export(elastic, "elastic", registry=registry)
        assert len(list(batches)) == 10 and len(list(elastic)) == 2
        found = seen(registry)
    assert found["bushel_elements_total"] == {("loader",): 10, ("elastic",): 2}
    assert any(labels[0] == "loader" and labels[3] == "workers" for labels in found["bushel_stage_seconds_total"])

"""Clusters that anybody could use: a warning says so. And the page about clusters, whose code runs here."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
import warnings
from pathlib import Path

import pytest
from helpers import ray_clusters

import bushel

pytestmark = [pytest.mark.ray, pytest.mark.serial]

PAGE = Path(__file__).parent.parent.parent / "docs" / "many_machines.md"

OPEN = """
    import warnings
    import ray
    import bushel

    ds = bushel.MapDataset.range(10).to_iter_dataset().ray_prefetch(bushel.RayOptions(num_workers=1))
    try:
        iter(ds)
    except ConnectionError as error:
        print("no cluster:", error)
    ray.init(num_cpus=1, include_dashboard=False, object_store_memory=100 << 20, logging_level="ERROR")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with iter(ds) as it:
            print("elements:", list(it))
        with iter(ds) as it:
            next(it)
    ours = [str(warning.message) for warning in caught if "Ray cluster" in str(warning.message)]
    print("warnings:", len(ours), ours[0])
    ray.shutdown()
"""


@pytest.mark.slow
def test_a_cluster_that_asks_for_no_token_is_used_with_a_warning(tmp_path):
    variables = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    variables |= {"RAY_AUTH_MODE": "disabled", "RAY_TMPDIR": "/tmp/bushel-open", "RAY_USAGE_STATS_ENABLED": "0"}
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(OPEN)], env=variables, capture_output=True, text=True, timeout=200
    )
    assert run.returncode == 0, run.stderr
    assert "no cluster: No Ray cluster was found. Start one with `ray start --head`" in run.stdout
    assert "elements: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]" in run.stdout
    assert "warnings: 1 This Ray cluster does not ask for a token" in run.stdout
    assert "RAY_AUTH_MODE=token" in run.stdout


MIXED = """
    import ray
    import bushel

    ray.init(address={address!r}, log_to_driver=False, logging_level="ERROR")
    ds = bushel.MapDataset.range(10).to_iter_dataset().ray_prefetch(bushel.RayOptions(num_workers=1))
    with iter(ds) as it:
        try:
            next(it)
        except bushel.WorkerDied as error:
            print(error)
    ray.shutdown()
"""


@pytest.mark.slow
def test_a_head_without_a_token_cannot_be_used_with_one(tmp_path):
    """Ray runs no actor on a cluster whose head is open and whose program has a token. The error says what to do."""
    folder = tempfile.mkdtemp(prefix="bushel-ray-", dir="/tmp")  # a short name: sockets lie in there
    variables = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    variables |= {"RAY_TMPDIR": folder, "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    start = ["start", "--head", "--block", f"--port={port}", "--num-cpus=1", "--object-store-memory=100000000"]
    command = [sys.executable, "-m", "ray.scripts.scripts", *start, "--include-dashboard=false"]
    head = subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True)
    try:
        assert head.stdout is not None
        assert any("Ray runtime started" in line for line in head.stdout)
        script = textwrap.dedent(MIXED.format(address=f"127.0.0.1:{port}"))
        variables |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        run = subprocess.run([sys.executable, "-c", script], env=variables, capture_output=True, text=True, timeout=200)
        assert "If the head of the cluster was started without it, anybody can use" in run.stdout, (
            run.stdout + run.stderr
        )
    finally:
        head.terminate()  # it ends the processes that it has started
        head.communicate(timeout=250)
        shutil.rmtree(folder, ignore_errors=True)


def test_the_warning_of_an_open_cluster_comes_once(cluster, monkeypatch):
    from bushel._src.engine.actors import cluster as connecting

    assert connecting.asks_for_token()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        connecting.connect()
    monkeypatch.setattr(connecting, "asks_for_token", lambda: False)
    with pytest.warns(UserWarning, match=f"does not ask for a token .it listens at {cluster.address}.") as caught:
        connecting.connect()
        connecting.connect()
    assert len(caught) == 1


@pytest.mark.slow
def test_the_cluster_of_the_tests_refuses_strangers(cluster):
    script = f"import ray; ray.init(address={cluster.address!r}, log_to_driver=False)"
    variables = os.environ | {"RAY_AUTH_TOKEN": "0" * 64, "RAY_raylet_start_wait_time_s": "1"}
    run = subprocess.run([sys.executable, "-c", script], env=variables, capture_output=True, text=True, timeout=250)
    assert run.returncode != 0 and "token" in run.stderr


def test_the_code_of_the_page_runs(cluster, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 2
    with ray_clusters.leaving_nothing():
        namespace = {"__name__": "page"}
        for block in blocks:
            exec(compile(block, str(PAGE), "exec"), namespace)
        namespace.clear()


def test_a_report_has_a_line_for_each_node(cluster):
    ds = bushel.MapDataset.range(2000).to_iter_dataset()
    with iter(ds.ray_prefetch(bushel.RayOptions(num_workers=2))) as it:
        assert len(list(it)) == 2000
        (pool,) = it.report().pools
        assert pool.kind == "actors" and pool.nodes
        for line in pool.nodes:
            assert re.fullmatch(
                r"Node \S+ \([0-9a-f]{8}\): \d actors?; \d+ blocks, [\d.]+ [KM]?B, [\d.]+ s of work\.", line
            )
            assert line in str(it.report())

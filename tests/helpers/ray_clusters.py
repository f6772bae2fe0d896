"""A real Ray cluster of several nodes on this machine, with a token, and what is left of ours in it."""

from __future__ import annotations

import contextlib
import gc
import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

STORE_BYTES = 100 << 20


@contextlib.contextmanager
def running_cluster(nodes: int = 3, variables: Mapping[str, str] | None = None) -> Iterator[Any]:
    """A cluster of nodes with two CPUs each, to which this process is connected.

    Under load Ray gives up a start after some seconds, so it is tried several times.
    """
    assert "ray" not in sys.modules, "Ray reads its settings when it is imported: import it inside of functions."
    folder = tempfile.mkdtemp(prefix="bushel-ray-", dir="/tmp")  # a short name: sockets lie in there
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_TMPDIR", folder)
        patch.setenv("RAY_health_check_period_ms", "500")  # a dead node is noticed in seconds, and not in half a minute
        for name, value in (variables or {}).items():
            patch.setenv(name, value)
        import ray

        cluster = start(nodes)
        try:
            ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()
            shutil.rmtree(folder, ignore_errors=True)


def start(nodes: int) -> Any:
    from ray.cluster_utils import Cluster

    for attempt in range(4):
        cluster = Cluster()
        try:
            cluster.add_node(
                num_cpus=2, object_store_memory=STORE_BYTES, include_dashboard=False, include_log_monitor=False
            )
            for _ in range(nodes - 1):
                add_node(cluster)
            return cluster
        except Exception:
            cluster.shutdown()
            if attempt == 3:
                raise
    raise AssertionError


def add_node(cluster: Any) -> Any:
    """Adds a node. Under load Ray gives up a start after some seconds; what has started then ends with the cluster."""
    for attempt in range(4):
        try:
            return cluster.add_node(num_cpus=2, object_store_memory=STORE_BYTES)
        except Exception as error:
            if attempt == 3 or "timed out during startup" not in str(error):
                raise
    raise AssertionError


def living_actors() -> list[str]:
    """The names of our actors that are not dead."""
    import ray._private.state

    actors = ray._private.state.actors().values()
    return [actor["Name"] for actor in actors if actor["Name"].startswith("bushel-") and actor["State"] != "DEAD"]


def kill_actor() -> int:
    """Kills the process of one of our actors. Returns its number."""
    import ray._private.state

    alive = [
        actor
        for actor in ray._private.state.actors().values()
        if actor["Name"].startswith("bushel-") and actor["State"] == "ALIVE"
    ]
    process = int(alive[0]["Pid"])
    os.kill(process, signal.SIGKILL)
    return process


def held_objects() -> int:
    """How many objects this process refers to."""
    import ray._private.worker

    return len(ray._private.worker.global_worker.core_worker.get_all_reference_counts())


def spilled_bytes() -> int:
    """How much Ray has written from the object stores of all nodes to disk, by its own statistics."""
    import ray
    from ray._private.internal_api import node_stats

    total = 0
    for node in ray.nodes():
        if node["Alive"]:
            where = node["NodeManagerAddress"], node["NodeManagerPort"]
            total += node_stats(*where, include_memory_info=False).store_stats.spilled_bytes_total
    return total


def worker_processes() -> set[int]:
    """The processes of our actors on this machine."""
    found = set()
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/cmdline", "rb") as file:
                if file.read().startswith(b"ray::bushel-"):
                    found.add(int(name))
    return found


@contextlib.contextmanager
def leaving_nothing(timeout_s: float = 120.0) -> Iterator[None]:
    """Checks that nothing of ours stays: no actor, no object and no process that was not there before."""
    before = set(living_actors()), held_objects(), worker_processes()
    yield
    deadline = time.monotonic() + timeout_s
    while True:
        gc.collect()
        actors, processes = set(living_actors()) - before[0], worker_processes() - before[2]
        if not actors and held_objects() <= before[1] and not processes:
            return
        assert time.monotonic() < deadline, f"{actors}, {held_objects()} objects, not {before[1]}; {processes}"
        time.sleep(0.05)

"""What may die in a cluster, and how it must end: nothing is lost, nothing comes twice, and the culprit is named."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from typing import Any

import cloudpickle
import numpy as np
import pytest
from helpers import ray_clusters
from helpers.waiting import wait_until

import bushel
from bushel._src.engine.actors.executor import Actors
from bushel.testing import same

pytestmark = [pytest.mark.ray, pytest.mark.serial]

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # actors need not import the tests


def quickly(x: int) -> dict[str, Any]:
    return {"number": x, "row": np.full(300, x)}


def slowly(x: int) -> dict[str, Any]:
    time.sleep(0.002)
    return quickly(x)


def not_third(element: dict[str, Any]) -> bool:
    return element["number"] % 3 > 0


def two_kinds(count: int, make: Any = slowly) -> Any:
    """Elements that workers compute, with a filter, mixed in order, and cut into batches by the consumer."""
    one = bushel.MapDataset.range(count).seed(1).shuffle().map(make).to_iter_dataset().filter(not_third)
    other = bushel.MapDataset.range(count, 2 * count).seed(2).shuffle().map(make).to_iter_dataset()
    return bushel.IterDataset.mix([one, other], [1, 2]).batch(4)


def kill(member: Any) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(member.location.pid, signal.SIGKILL)


def members_of(executor: Actors) -> list[Any]:
    """The actors of an executor that have started."""
    supervisor = executor._supervisor
    with supervisor._lock:
        return [member for member in supervisor.workers if member.location is not None]


def test_an_actor_that_is_killed_is_replaced(cluster):
    ds = two_kinds(400)
    expected = list(ds)
    with ray_clusters.leaving_nothing(), contextlib.closing(Actors(3)) as executor, ds.iterate_on(executor) as it:
        found = [next(it) for _ in range(10)]
        kill(members_of(executor)[0])
        found += [next(it) for _ in range(30)]
        state = it.get_state()
        for member in members_of(executor):
            kill(member)
        found += it
        assert same(found, expected)
        assert executor.report().deaths >= 2
        assert "have died and been replaced" in str(it.report())
        it.set_state(state)
        assert same(list(it), expected[40:])


def one_on_each_node(count: int) -> Actors:
    return Actors(count, resources={"CPU": 2})


def test_a_node_that_dies_and_a_node_that_joins(cluster):
    ds = two_kinds(100_000)  # more than Ray lets pass until it notices something
    node = ray_clusters.add_node(cluster)
    with ray_clusters.leaving_nothing(), contextlib.closing(one_on_each_node(4)) as executor:
        it = ds.iterate_on(executor)
        found = [next(it) for _ in range(10)]
        wait_until(lambda: len(members_of(executor)) == 4)  # one of them on the node that will die
        cluster.remove_node(node, allow_graceful=False)
        while not executor.report().deaths:  # Ray takes a moment to notice it
            found.append(next(it))
        wait_until(lambda: len(members_of(executor)) == 3)  # there is room for three only
        node = ray_clusters.add_node(cluster)
        found += [next(it) for _ in range(10)]
        wait_until(lambda: len(members_of(executor)) == 4)  # the one that waited has started on the new node
        found += [next(it) for _ in range(100)]
        it.close()
    assert same(found, list(itertools.islice(two_kinds(100_000, quickly), len(found))))
    cluster.remove_node(node)


def kills_at_50(x: int) -> int:
    if x == 50:
        os.kill(os.getpid(), signal.SIGKILL)
    return x


def test_an_element_that_kills_is_named(cluster):
    ds = bushel.MapDataset.range(100).map(kills_at_50).to_iter_dataset()
    with ray_clusters.leaving_nothing(), contextlib.closing(Actors(2)) as executor:
        with ds.iterate_on(executor) as it:
            found = []
            with pytest.raises(
                bushel.WorkerDied, match=r"Computing element 50 of the output \(.*50.*\) killed"
            ) as raised:
                found.extend(next(it) for _ in range(100))
            assert found == list(range(50)) and raised.value.at == (50, 51)
            assert it.get_state()["next_index"] == 50
        with ds.with_options(on_error="skip").iterate_on(executor) as it:
            assert list(it) == [x for x in range(100) if x != 50]
            assert it.skipped == 1


def hangs_at_20(x: int) -> int:
    if x == 20:
        time.sleep(1000)
    return x


def test_an_element_that_never_ends_is_given_up(cluster):
    ds = bushel.MapDataset.range(40).map(hangs_at_20).to_iter_dataset()
    options = bushel.RayOptions(num_workers=1, timeout_s=3.0)
    with ray_clusters.leaving_nothing(), iter(ds.ray_prefetch(options)) as it:
        assert [next(it) for _ in range(20)] == list(range(20))
        with pytest.raises(bushel.WorkerDied, match=r"Computing element 20 .* took longer than timeout_s=3.0 s, twice"):
            next(it)


DRIVER = """
    import time
    import numpy as np
    import ray
    import bushel

    ray.init(address={address!r}, log_to_driver=False, logging_level="ERROR")
    table = np.zeros((1 << 20, 4))
    ds = bushel.MapDataset.source(table).map(lambda row: np.zeros(1 << 16) + row.sum()).to_iter_dataset().batch(2)
    it = iter(ds.ray_prefetch(bushel.RayOptions(num_workers=2)))
    next(it)
    print("ready", flush=True)
    time.sleep(1000)
"""


def test_if_the_program_is_killed_its_actors_and_objects_go(cluster):
    import ray  # not above: Ray reads its settings when it is imported

    def free_bytes() -> float:
        return ray.available_resources().get("object_store_memory", 0)

    with ray_clusters.leaving_nothing():
        before, actors = free_bytes(), set(ray_clusters.living_actors())
        script = textwrap.dedent(DRIVER.format(address=cluster.address))
        driver = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
        assert driver.stdout is not None and driver.stdout.readline() == "ready\n"
        wait_until(lambda: len(set(ray_clusters.living_actors()) - actors) == 2)
        wait_until(lambda: free_bytes() < before - (1 << 25))  # the table is there
        driver.kill()
        driver.wait()
        driver.stdout.close()
        wait_until(lambda: free_bytes() >= before - (1 << 20))


def tokens(element: dict[str, Any]) -> dict[str, Any]:
    return {"tokens": element["row"][: 1 + element["number"] % 7]}


def packed(count: int) -> Any:
    """A filter, a mixture and packing."""
    parts = [
        bushel.MapDataset.range(start, start + count).seed(start).shuffle().map(slowly).to_iter_dataset()
        for start in (0, count)
    ]
    ds = bushel.IterDataset.mix([parts[0].filter(not_third), parts[1]]).map(tokens)
    return bushel.experimental.FirstFitPackIterDataset(ds, length_struct={"tokens": 16}, num_packing_bins=4).batch(4)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_fifty_deaths_of_actors_and_nodes_lose_and_double_nothing(cluster):
    """Fifty deaths of actors and of nodes while a pipeline runs: equal to the run that nobody disturbed."""
    draw = random.Random(0)
    ds = packed(12_000)
    expected = list(ds)
    nodes = [ray_clusters.add_node(cluster)]
    kills = 0
    with ray_clusters.leaving_nothing(), contextlib.closing(Actors(6)) as executor, ds.iterate_on(executor) as it:
        found: list[Any] = []
        for _ in range(50):
            found += [next(it) for _ in range(min(draw.randrange(2, 30), len(expected) - len(found)))]
            if draw.random() < 0.15:
                cluster.remove_node(nodes.pop(), allow_graceful=False)
                nodes.append(ray_clusters.add_node(cluster))
            else:
                kill(draw.choice(wait_until(lambda: members_of(executor))))
            kills += 1
            if draw.random() < 0.2:
                it.set_state(it.get_state())  # all that was computed ahead is thrown away
        assert kills == 50
        assert len(found) < len(expected), "the run was over before the last kill"
        found += it
        assert same(found, expected)
        assert executor.report().deaths >= 40
    for node in nodes:
        cluster.remove_node(node)


@pytest.mark.slow
@pytest.mark.timeout(1000)
def test_ray_restarts_its_directory_while_a_pipeline_runs(tmp_path):
    """The GCS is killed and started again, with its tables in a file. In a process with a cluster of its own."""
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    script = [sys.executable, "-c", textwrap.dedent(GCS.format(folder=str(tmp_path)))]
    run = subprocess.run(script, env=variables, capture_output=True, text=True, timeout=900)
    assert run.returncode == 0 and run.stdout.endswith("equal\n"), run.stdout + run.stderr


GCS = """
    import os, signal, time
    from helpers import ray_clusters
    import bushel

    def slowly(x):
        time.sleep(0.005)
        return x

    ds = bushel.MapDataset.range(3000).seed(0).shuffle().map(slowly).to_iter_dataset().batch(10)
    files = {{"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": {folder!r}}}
    with ray_clusters.running_cluster(2, files) as cluster:
        from bushel._src.engine.actors.executor import Actors

        executor = Actors(2)
        it = ds.iterate_on(executor)
        found = [next(it) for _ in range(20)]
        cluster.head_node.kill_gcs_server()
        found += [next(it) for _ in range(60)]  # while it is away
        cluster.head_node.start_gcs_server()
        found += [next(it) for _ in range(60)]
        os.kill(executor._supervisor.workers[0].location.pid, signal.SIGKILL)  # a new actor can be started again
        found += it
        assert executor.report().deaths == 1
        executor.close()
    assert [x.tolist() for x in found] == [x.tolist() for x in ds]
    print("equal")
"""


def test_if_ray_is_shut_down_the_next_element_raises(cluster):
    script = """
        import ray
        import bushel

        ray.init(address={address!r}, log_to_driver=False, logging_level="ERROR")
        it = iter(bushel.MapDataset.range(10**6).to_iter_dataset().ray_prefetch(bushel.RayOptions(num_workers=1)))
        next(it)
        ray.shutdown()
        try:
            for _ in it:
                pass
        except RuntimeError as error:
            print(error, ray.is_initialized())
    """
    script = textwrap.dedent(script.format(address=cluster.address))
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=200)
    assert run.stdout == "Ray was shut down while an iterator used its actors. False\n", run.stdout + run.stderr

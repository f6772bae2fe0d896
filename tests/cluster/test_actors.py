"""Actors of a Ray cluster: the same elements, order and states as everywhere, and nothing is left behind."""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
from collections.abc import Iterator
from typing import Any

import cloudpickle
import numpy as np
import pytest
from helpers import ray_clusters, strategies
from helpers.places_to_run import DECISIONS, places
from helpers.recipes import Recipe, as_stream
from helpers.waiting import wait_until
from helpers.worker_pools import open_on
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import bushel
from bushel._src.datasets.iterator import PipelineIterator
from bushel._src.engine.actors.executor import Actors
from bushel._src.engine.processes.executor import Processes
from bushel._src.engine.tasks import Executor
from bushel.experimental import ElasticIterator
from bushel.testing import same

pytestmark = [pytest.mark.ray, pytest.mark.serial]

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # actors need not import the tests

laws = settings(
    max_examples=25,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)
many = settings(laws, max_examples=300)


@pytest.fixture(scope="module")
def executors(cluster: Any) -> Iterator[dict[str, Executor | None]]:
    """Three actors, two worker processes, and the consumer itself: for all pipelines."""
    with contextlib.closing(Actors(3)) as actors, contextlib.closing(Processes(2)) as processes:
        yield {"actors": actors, "processes": processes, "inline": None}


names = st.sampled_from(["actors", "processes", "inline"])


def opened(recipe: Recipe | Any, executor: Executor | None, place: str = "as measured") -> PipelineIterator[Any]:
    ds = as_stream(recipe, bushel) if isinstance(recipe, Recipe) else recipe
    return open_on(ds, executor, DECISIONS[place])


def told(it: Any, most: int) -> tuple[list[Any], list[str], Any]:
    """Elements, the states around them, and the error that ended it, if any."""
    elements, states = [], [json.dumps(it.get_state())]
    try:
        for element in itertools.islice(it, most):
            elements.append(element)
            states.append(json.dumps(it.get_state()))
    except Exception as error:
        return elements, states, (type(error), str(error))
    return elements, [*states, json.dumps(it.get_state())], None


def check_same(recipe: Recipe, executors: dict[str, Executor | None], place: str, most: int) -> None:
    with opened(recipe, None) as here, opened(recipe, executors["actors"], place) as there:
        expected, found = told(here, most), told(there, most)
    assert same(found[0], expected[0])
    assert found[1:] == expected[1:]


def check_goes_on(
    recipe: Recipe, one: Executor | None, other: Executor | None, place: str, cut: int, most: int
) -> None:
    with opened(recipe, None) as it:
        elements, states, failed = told(it, most)
    cut %= len(elements) + 1
    with opened(recipe, one, place) as it:
        assert len(list(itertools.islice(it, cut))) == cut
        saved = json.dumps(it.get_state())
    with opened(recipe, other, place) as it:
        it.set_state(json.loads(saved))
        found = told(it, most - cut)
    assert same(found[0], elements[cut:])
    assert found[1:] == (states[cut:], failed)


@laws
@given(recipe=strategies.recipes(), place=places)
def test_elements_and_states_are_the_same(executors, recipe, place):
    check_same(recipe, executors, place, most=25)


@laws
@given(recipe=strategies.recipes(), one=names, other=names, cut=st.integers(0, 25), place=places)
def test_states_are_interchangeable(executors, recipe, one, other, cut, place):
    check_goes_on(recipe, executors[one], executors[other], place, cut, most=25)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@many
@given(recipe=strategies.recipes(), one=names, other=names, cut=st.integers(0, 60), place=places)
def test_many_pipelines_are_the_same_in_actors(executors, recipe, one, other, cut, place):
    check_same(recipe, executors, place, most=60)
    check_goes_on(recipe, executors[one], executors[other], place, cut, most=60)


# ---------------------------------------------------------------------------------------------------------------------
# Examples


def picture(x: int) -> dict[str, Any]:
    return {"picture": np.full((64, 64), x, np.float32), "number": x}


def is_odd(element: dict[str, Any]) -> bool:
    return element["number"] % 2 == 1


def brighten(element: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    element["picture"] += rng.random()  # in place
    return element


def pictures(count: int = 400) -> Any:
    return bushel.MapDataset.range(count).seed(0).shuffle().map(picture).to_iter_dataset()


def test_ray_prefetch_gives_what_everybody_gives_and_leaves_nothing(cluster):
    ds = pictures().filter(is_odd).random_map(brighten).batch(8)
    expected = list(ds)
    before = set(ray_clusters.living_actors())
    with ray_clusters.leaving_nothing(), iter(ds.ray_prefetch(bushel.RayOptions(num_workers=2))) as it:
        first = [next(it) for _ in range(7)]
        state = it.get_state()
        assert len(set(ray_clusters.living_actors()) - before) == 2
    with iter(ds.mp_prefetch(bushel.MultiprocessingOptions(2))) as it:
        it.set_state(state)
        assert same([*first, *it], expected)


def test_bushel_chooses_how_many_actors(cluster):
    ds = pictures().batch(8)
    options = bushel.RayOptions(min_workers=2, max_workers=3)
    with ray_clusters.leaving_nothing(), iter(ds.ray_prefetch(options)) as it:
        assert same(list(it), list(ds))
        assert it.report().pools[0].size >= 2


def test_arrays_may_be_written_to_and_kept(executors):
    ds = pictures(600).batch(8)
    with ds.iterate_on(executors["actors"]) as it:
        batches = list(it)  # 10 MB, all of them kept
    for batch in batches:
        batch["picture"] += 1
    assert same(batches, [{"picture": b["picture"] + 1, "number": b["number"]} for b in ds])


class Table:
    """A function with a large array, and a small one into which it writes."""

    def __init__(self, table: np.ndarray):
        self.table, self.scratch = table, np.zeros(4)

    def __call__(self, index: int) -> Any:
        self.scratch[:] = self.table[index]
        return self.scratch.sum(), id_of_memory(self.table)


def id_of_memory(array: np.ndarray) -> str:
    """The file in which an array lies, as the process sees it."""
    address = array.__array_interface__["data"][0]
    with open("/proc/self/maps") as maps:
        for line in maps:
            low, high = (int(bound, 16) for bound in line.split()[0].split("-"))
            if low <= address < high:
                return line.rstrip()
    return ""


def test_large_arrays_are_in_the_object_store_once_for_all_programs(executors):
    table = np.random.default_rng(0).random((100_000, 4))  # 3.2 MB
    parts = [bushel.MapDataset.range(start, start + 50).map(Table(table)).to_iter_dataset() for start in (0, 50)]
    ds = bushel.IterDataset.mix(parts)
    before = ray_clusters.held_objects()
    with ds.iterate_on(executors["actors"]) as it:
        sums, files = zip(*it)
        assert ray_clusters.held_objects() - before <= 3  # two programs, and one array
    assert sums == tuple(total for total, _ in ds)
    assert all("plasma" in file for file in files), "an actor has copied the array"


def large(x: int) -> dict[str, Any]:
    return {"number": x, "picture": np.full((3 << 19,), x, np.float32)}  # 6 MB


def huge(x: int) -> dict[str, Any]:
    return {"number": x, "picture": np.full((15 << 19,), x, np.float32)}  # 30 MB, a third of the store


@pytest.mark.parametrize(
    ("make", "count", "budget_bytes"),
    [
        (large, 30, None),
        pytest.param(large, 60, 32 << 20, marks=pytest.mark.slow),
        pytest.param(large, 60, 1 << 30, marks=pytest.mark.slow),  # more than the stores have
        pytest.param(huge, 20, None, marks=pytest.mark.slow),
    ],
)
def test_the_object_store_never_spills(cluster, make, count, budget_bytes):
    """Twice and more of what a store holds goes through it, and the consumer keeps all of it."""
    ds = bushel.MapDataset.range(count).map(make).to_iter_dataset()
    before = ray_clusters.spilled_bytes()
    with iter(ds.ray_prefetch(bushel.RayOptions(num_workers=3, budget_bytes=budget_bytes))) as it:
        kept = list(it)
        assert ray_clusters.spilled_bytes() == before
    assert [element["number"] for element in kept] == list(range(count))
    assert all((element["picture"][[0, -1]] == element["number"]).all() for element in kept)


@pytest.mark.slow
def test_what_ray_spills_is_seen(cluster):
    import ray

    before = ray_clusters.spilled_bytes()
    kept = [ray.put(np.zeros(20 << 20, np.uint8)) for _ in range(8)]  # 160 MB into a store of 100 MB
    wait_until(lambda: ray_clusters.spilled_bytes() > before)
    del kept


def hosts(count: int) -> list[bushel.ShardOptions]:
    return [bushel.ShardOptions(shard_index=index, shard_count=count) for index in range(count)]


def weave(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """A global batch from the rows of all hosts: each host has every n-th row."""
    return {key: np.stack([part[key] for part in parts], 1).reshape(-1, *parts[0][key].shape[1:]) for key in parts[0]}


def test_several_hosts_share_the_cluster(cluster):
    """Each host has actors of its own. A state of two hosts continues on three, with actors or without."""
    ds = bushel.MapDataset.range(120).seed(3).shuffle().map(picture)
    options = bushel.RayOptions(num_workers=1)
    with ray_clusters.leaving_nothing():
        two = [ElasticIterator(ds, 12, host, multiprocessing_options=options) for host in hosts(2)]
        alone = list(ElasticIterator(ds, 12, bushel.NoSharding()))
        for step in range(4):
            parts = [next(it) for it in two]
            assert same(weave(parts), alone[step])
        states = [it.get_state() for it in two]
        for it in two:
            it.close()
        assert states[0] == states[1]
        three = [
            ElasticIterator(ds, 12, host, multiprocessing_options=options if index < 2 else None)
            for index, host in enumerate(hosts(3))
        ]
        for it in three:
            it.set_state(states[0])
        for step in range(4, len(alone)):
            parts = [next(it) for it in three]
            assert same(weave(parts), alone[step])
        for it in three:
            it.close()


def fails(x: int) -> int:
    if x == 37:
        raise LookupError(f"no {x} here")
    return x


def test_an_error_comes_in_its_place_and_says_where(executors):
    ds = bushel.MapDataset.range(100).map(fails).to_iter_dataset()
    with ds.iterate_on(executors["actors"]) as it:
        assert list(itertools.islice(it, 37)) == list(range(37))
        for _ in range(2):
            with pytest.raises(LookupError, match="no 37 here") as raised:
                next(it)
            assert any(note.startswith("bushel: on node ") for note in raised.value.__notes__)
    skipping = ds.with_options(on_error="skip")
    with skipping.iterate_on(executors["actors"]) as it:
        assert list(it) == [x for x in range(100) if x != 37]
        assert it.skipped == 1


def test_functions_that_cannot_be_sent_are_named(executors):
    import threading

    lock = threading.Lock()
    ds = bushel.MapDataset.range(5).map(lambda x: (lock, x)[1]).to_iter_dataset()
    with ds.iterate_on(executors["actors"]) as it, pytest.raises(bushel.PipelineNotSent, match="map"):
        next(it)


def refuse(index: int, count: int) -> None:
    raise OSError(f"actor {index} of {count} has no disk")


def test_an_init_function_that_fails_ends_the_run_with_its_error(cluster):
    ds = pictures().ray_prefetch(bushel.RayOptions(num_workers=1), refuse)
    with ray_clusters.leaving_nothing(), iter(ds) as it:
        with pytest.raises(OSError, match="actor 0 of 1 has no disk") as raised:
            next(it)
        assert "worker_init_fn failed" in "".join(raised.value.__notes__)

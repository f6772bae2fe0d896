"""Results made where they are read: what no function of the user's sees goes straight there, all else never does."""

from __future__ import annotations

import copy
import dataclasses
import functools
import importlib
import inspect
import pkgutil
import sys
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

import bushel
import bushel._src.graph
from bushel._src.base import memory, trees
from bushel._src.base.blocks import rows_of
from bushel._src.datasets.iterator import PipelineIterator
from bushel._src.engine.program import Result
from bushel._src.engine.tasks import Executor, Task, Ticket, run_task
from bushel._src.graph.node import MapNode
from bushel._src.graph.reindex import Reindex
from bushel.experimental import FirstFitPackIterDataset, batch_and_pad
from bushel.sources import BagzDataSource, FixedRecords
from bushel.testing import same

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers need not import the tests

COUNT, WIDTH = 80, 1500


class Remembers:
    """What a mixup, a cache, a buffer for replay does: it keeps what it has seen. It must stay as it was."""

    def __init__(self) -> None:
        self._kept: list[tuple[np.ndarray, np.ndarray]] = []

    def __call__(self, element: Any, *_: Any) -> Any:
        for seen, was in self._kept:
            assert (seen == was).all(), "what a function has seen has changed since"
        arrays = [leaf for leaf in trees.leaves(element) if isinstance(leaf, np.ndarray) and leaf.nbytes >= 4096]
        self._kept += [(leaf, leaf.copy()) for leaf in arrays]
        del self._kept[:-40]
        assert not isinstance(memory.output((8192,), np.uint8).base, Poisoned), "this is not the place of results"
        return element

    def keep(self, element: Any) -> bool:
        self(element)
        return True

    def make_batch(self, elements: Any) -> Any:
        return np.stack([trees.leaves(self(element))[0] for element in elements])


class Poisoned(np.ndarray):
    """Memory of the stand-in for a slot."""


class Overwriting(Executor):
    """Stands in for a worker that has one slot: each result is read, and overwritten before the next is made."""

    def __init__(self) -> None:
        self.placed_bytes = 0
        self._slot: list[np.ndarray] = []

    def submit(self, task: Task) -> Ticket:
        return Ticket(task, Future())

    def wait(self, ticket: Ticket) -> tuple[Result, float]:
        task = ticket.task
        result = run_task(task.program, task.low, task.high, task.count_before, None, task.given, self._empty)
        result = dataclasses.replace(result, rows=[copy.deepcopy(row) for row in rows_of(result.rows)])
        for array in self._slot:
            array[...] = 0xEE
        self._slot.clear()
        return result, 0.0

    def _empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], size: int) -> np.ndarray:
        self.placed_bytes += size
        raw = np.empty(size, np.uint8).view(Poisoned)
        self._slot.append(raw)
        return np.ndarray(shape, dtype, raw)

    def forget(self, tickets: list[Ticket]) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def bag(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fixed") / "x.bag"
    data = np.repeat(np.arange(COUNT, dtype="<i4"), WIDTH)
    path.write_bytes(data.tobytes() + (np.arange(1, COUNT + 1, dtype="<u8") * (4 * WIDTH)).tobytes())
    return path


def fixed(bag: Path) -> Any:
    return bushel.MapDataset.source(FixedRecords(BagzDataSource(str(bag)), dtype=np.int32, shape=(WIDTH,)))


def documents() -> Any:
    sizes = np.random.default_rng(0).integers(700, 2000, COUNT)
    return bushel.MapDataset.source([np.full(size, number, np.int32) for number, size in enumerate(sizes.tolist())])


def packed(bag: Path) -> Any:
    return documents().pack(documents().column(len), 2048)


def bucketed(bag: Path) -> Any:
    return documents().bucket(documents().column(len), [1000, 2000], 4, seed=1)


def filled(bag: Path) -> Any:
    rows = FirstFitPackIterDataset(
        documents().map(lambda row: {"row": row}).to_iter_dataset(), length_struct={"row": 2048}, num_packing_bins=4
    )
    return rows.map(lambda row: row["row"])


MAKERS = {
    "fixed records": fixed,
    "fixed records, shuffled": lambda bag: fixed(bag).shuffle(seed=1),
    "fixed records, chosen": lambda bag: fixed(bag).where(np.arange(COUNT) % 3 > 0),
    "batches of fixed records": lambda bag: fixed(bag).batch(2),
    "packed rows": packed,
    "buckets": bucketed,
    "batches": lambda bag: documents().map(lambda row: row[:700]).batch(3),
    "padded batches": lambda bag: (
        documents().map(lambda row: row[:700]).batch(4, batch_fn=functools.partial(batch_and_pad, batch_size=4))
    ),
    "filled rows of a stream": filled,
}

FUNCTIONS = {
    "map": lambda ds: ds.map(Remembers()),
    "random_map": lambda ds: ds.random_map(Remembers(), seed=1),
    "filter": lambda ds: stream(ds.filter(Remembers().keep)),
    "vectorized map": lambda ds: ds.map(Remembers(), vectorized=True),
    "batch_fn": lambda ds: ds.batch(1, batch_fn=Remembers().make_batch),
    "map behind a map": lambda ds: ds.map(lambda x: x).map(Remembers()),
    "map of batches": lambda ds: ds.batch(1).map(Remembers()),
    "map of a stream": lambda ds: stream(ds).map(Remembers()),
    "random_map of a stream": lambda ds: stream(ds).random_map(Remembers(), seed=1),
    "filter of a stream": lambda ds: stream(ds).filter(Remembers().keep),
    "map of batches of a stream": lambda ds: stream(ds).batch(1).map(Remembers()),
    "batch_fn of a stream": lambda ds: stream(ds).batch(1, batch_fn=Remembers().make_batch),
}

ENDS = {
    "as it is": lambda ds: ds,
    "batch": lambda ds: ds.batch(1),
    "batch of a stream": lambda ds: stream(ds).batch(1),
}


def stream(ds: Any) -> Any:
    return ds if isinstance(ds, bushel.IterDataset) else ds.to_iter_dataset(bushel.ReadOptions(0, 0))


def elements(ds: Any, executor: Executor | None = None) -> list[Any]:
    with PipelineIterator(stream(ds)._node, bushel.ReadOptions(0, 0), executor) as iterator:
        return list(iterator)


# ---------------------------------------------------------------------------------------------------------------------
# The law: what a function has seen stays as it was.


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("maker", MAKERS)
def test_what_a_function_has_seen_never_changes(bag, maker, function, end):
    made = MAKERS[maker](bag)
    if isinstance(made, bushel.IterDataset) and function == "vectorized map":
        pytest.skip("no vectorized map of single rows is wanted here")
    ds = ENDS[end](FUNCTIONS[function](made))
    assert same(elements(ds, Overwriting()), elements(ds))


@pytest.mark.parametrize("num_workers", [pytest.param(1, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize("function", ["map", "random_map of a stream", "filter"])
@pytest.mark.parametrize("maker", ["fixed records", "packed rows", "buckets", "filled rows of a stream"])
def test_what_a_function_has_seen_never_changes_in_workers(bag, maker, function, num_workers):
    ds = stream(FUNCTIONS[function](MAKERS[maker](bag).repeat(8))).batch(1)
    workers = bushel.MultiprocessingOptions(num_workers, budget_bytes=4 << 20)
    expected, number = elements(ds), -1
    for number, element in enumerate(ds.mp_prefetch(workers)):  # kept, they would hold the slots
        assert same(element, expected[number])
    assert number + 1 == len(expected)


def test_a_pipeline_inside_of_a_function_makes_no_results(bag):
    inner = documents().map(lambda row: row[:700]).batch(2)
    remembers = Remembers()
    ds = bushel.MapDataset.range(40).map(lambda n: remembers(inner[n])).batch(2)
    assert same(elements(ds, Overwriting()), elements(ds))
    ds = bushel.MapDataset.range(40).map(lambda n: remembers(next(iter(inner.to_iter_dataset())))).batch(2)
    assert same(elements(ds, Overwriting()), elements(ds))


def test_a_cache_keeps_what_it_was_given(bag):
    ds = fixed(bag).to_iter_dataset().cache().repeat(2).batch(8)
    assert same(elements(ds, Overwriting()), elements(ds))


def test_the_law_can_fail(bag, monkeypatch):
    monkeypatch.setattr("bushel._src.engine.program.Program.takes_in_place", True)
    with pytest.raises(AssertionError, match="has changed since"):
        elements(fixed(bag).map(Remembers()), Overwriting())


# ---------------------------------------------------------------------------------------------------------------------
# What no function sees is made in place, once.

PLACED = {
    "batch": lambda bag: documents().map(lambda row: row[:700]).batch(4),
    "batch, shuffled": lambda bag: documents().map(lambda row: row[:700]).batch(4).shuffle(seed=1),
    "batch of a stream": lambda bag: stream(documents().map(lambda row: row[:700])).batch(4),
    "batch after a map of a stream": lambda bag: stream(documents()).map(lambda row: row[:700]).batch(4),
    "batch of batches": lambda bag: stream(documents().map(lambda row: row[:700]).batch(2)).batch(2),
    "two batches of a stream": lambda bag: stream(documents().map(lambda row: row[:700])).batch(2).batch(2),
    "padded batch": MAKERS["padded batches"],
    "batch after a vectorized map": lambda bag: (
        stream(documents().map(lambda row: row[:700])).map(lambda rows: rows, vectorized=True).map(np.array).batch(4)
    ),
    "fixed records": fixed,
    "batch of fixed records": lambda bag: fixed(bag).batch(4),
    "batch of shuffled fixed records": lambda bag: fixed(bag).shuffle(seed=1).batch(4),
    "batch of fixed records of a stream": lambda bag: stream(fixed(bag)).batch(4),
    "batch of mapped fixed records": lambda bag: fixed(bag).map(lambda row: row + 1).batch(4),
    "packed rows": lambda bag: packed(bag),
    "batch of packed rows": lambda bag: packed(bag).batch(4),
    "buckets": bucketed,
}


@pytest.mark.parametrize("what", PLACED)
def test_results_are_made_in_place(bag, what):
    ds = PLACED[what](bag)
    executor = Overwriting()
    found = elements(ds, executor)
    assert same(found, elements(ds))
    # Segment ids and positions of packed rows are not.
    leaves = [leaf for row in found for leaf in ([row["tokens"]] if isinstance(row, dict) else trees.leaves(row))]
    assert executor.placed_bytes == sum(leaf.nbytes for leaf in leaves)


def test_objects_are_not_made_in_place(bag):
    ds = bushel.MapDataset.source([np.array([str(n)] * 900, object) for n in range(40)])
    ds = ds.pack(ds.column(len), 2048)
    assert same(elements(ds, Overwriting()), elements(ds))


def test_no_other_node_says_that_it_makes_results():
    """One that does goes into `MAKERS` above, and takes from its parents what it needs `memory.call_apart`."""
    for module in pkgutil.walk_packages(bushel._src.graph.__path__, "bushel._src.graph."):
        importlib.import_module(module.name)
    importlib.import_module("bushel.trajectory")
    importlib.import_module("bushel._src.view.padding")
    found, left = set(), [MapNode]
    for kind in left:
        left.extend(kind.__subclasses__())
        if kind.in_place is not MapNode.in_place and not inspect.isabstract(kind):
            found.add("Reindex" if issubclass(kind, Reindex) else kind.__name__)
    batches = {"BatchElements", "Bucket", "PackedRows", "SortedValues", "_WatchedBatches"}
    assert found == {"SourceNode", "Reindex", "Chosen", "Watched", "LocalRows"} | batches

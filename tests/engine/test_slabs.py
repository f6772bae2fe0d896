"""Shared memory of results: what one looks at never changes, and what nobody looks at comes back."""

from __future__ import annotations

import collections
import contextlib
import ctypes
import gc
import itertools
import logging
import os
import re
import shutil
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle
import numpy as np
import pytest
from helpers.processes import descriptors
from helpers.waiting import wait_until
from helpers.worker_pools import numbers, open_on, worker_pool
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import bushel
from bushel._src.base.memory import ALIGNMENT
from bushel._src.engine.processes.executor import Processes
from bushel._src.engine.shared_memory import Slab, Slot, make_anonymous_file
from bushel.testing import same

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers need not import the tests

portable = pytest.mark.parametrize("portable", [False, True], ids=["memfd", "portable"])
BUDGET_BYTES = 40 << 20
BATCH_BYTES = 32 * 1024 * 8


@contextlib.contextmanager
def grown_pool(num_workers: int = 2, **options: Any) -> Iterator[Processes]:
    """A pool whose slots have the size they need, so that the arena stays the same."""
    with worker_pool(num_workers, **options) as executor:
        with open_on(batches(150), executor) as it:
            collections.deque(it, maxlen=0)
        del it
        yield executor


def batches(count: int) -> Any:
    """Batch n holds 32 rows of the number n, and 32 labels."""
    rows = bushel.MapDataset.range(32 * count).map(lambda x: {"x": np.full(1024, x // 32), "label": x // 32})
    return rows.batch(32).to_iter_dataset()


def arena_of(executor: Processes) -> Slab:
    return wait_until(lambda: executor._supervisor.buffer.arena)


def warm(it: Any, executor: Processes, first: int = 0) -> int:
    """Reads until results come through shared memory; returns the number of the next one."""
    for number in itertools.count(first):
        batch = next(it)
        if lies_in_shared_memory(batch["x"]):
            return number + 1
    raise AssertionError


def lies_in_shared_memory(array: np.ndarray) -> bool:
    address = array.__array_interface__["data"][0]
    with open("/proc/self/maps") as file:
        for line in file:
            low, _, high = line.split(None, 1)[0].partition("-")
            if int(low, 16) <= address < int(high, 16):
                return "memfd:bushel" in line or "/bushel-" in line or "#" in line or "(deleted)" in line
    raise AssertionError("mapped nowhere")


# ---------------------------------------------------------------------------------------------------------------------
# Arenas: no slot is granted twice


class ArenaMachine(RuleBasedStateMachine):
    """Grants, leases and returns in any order, against a model that knows who holds what."""

    @initialize(slots=st.integers(1, 5), portable=st.booleans())
    def make(self, slots: int, portable: bool) -> None:
        self.arena = Slab(1000, slots, portable=portable)
        self.granted: set[int] = set()
        self.views: dict[int, list[tuple[Any, int]]] = {}
        self.stamp = 0

    @rule()
    def grant(self) -> None:
        slot = self.arena.grant()
        held = self.granted | set(self.views)
        if len(held) == self.arena.slots:
            assert slot is None
            return
        assert slot is not None and 0 <= slot < self.arena.slots
        assert slot not in held
        self.granted.add(slot)

    @precondition(lambda self: self.granted)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(sorted(self.granted)))
        self.granted.remove(slot)
        self.arena.give_back(slot)

    @precondition(lambda self: self.granted)
    @rule(data=st.data(), kind=st.sampled_from(["memoryview", "array", "slice", "several"]))
    def lease(self, data: st.DataObject, kind: str) -> None:
        slot = data.draw(st.sampled_from(sorted(self.granted)))
        self.granted.remove(slot)
        memory = self.arena.lease(slot)
        assert len(memory) == self.arena.slot_bytes >= 1000
        self.stamp = (self.stamp + 1) % 250
        memory[:] = bytes([self.stamp]) * len(memory)
        array = np.frombuffer(memory, np.uint8)
        views = {
            "memoryview": [memory],
            "array": [array],
            "slice": [array[10:20]],
            "several": [array[::3], memory[5:9], array.view(np.uint16)[3:].view(np.uint8)],
        }[kind]
        self.views[slot] = [(view, self.stamp) for view in views]

    @precondition(lambda self: self.views)
    @rule(data=st.data(), elsewhere=st.booleans())
    def drop_a_view(self, data: st.DataObject, elsewhere: bool) -> None:
        slot = data.draw(st.sampled_from(sorted(self.views)))
        views = self.views[slot]
        if elsewhere:  # a lease may end on any thread
            thread = threading.Thread(target=views.pop)
            thread.start()
            thread.join()
        else:
            views.pop()
        if not views:
            del self.views[slot]

    @precondition(lambda self: self.views)
    @rule(data=st.data())
    def look_through_another(self, data: st.DataObject) -> None:
        views = self.views[data.draw(st.sampled_from(sorted(self.views)))]
        view, stamp = views[0]
        views.append((np.asarray(view)[1:], stamp))

    @rule()
    def close(self) -> None:
        self.arena.close()  # what is leased stays; again does nothing

    @invariant()
    def held_and_free_are_all(self) -> None:
        if hasattr(self, "arena"):
            assert self.arena.count_held() == len(self.granted) + len(self.views)

    @invariant()
    def what_is_seen_stays(self) -> None:
        for views in getattr(self, "views", {}).values():
            for view, stamp in views:
                assert set(bytes(np.asarray(view))) == {stamp}


ArenaMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestArenas = ArenaMachine.TestCase


@portable
def test_memory_of_an_arena_has_no_name_and_is_shared(portable, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    descriptor = make_anonymous_file(10_000, portable=portable)
    try:
        assert not list(tmp_path.iterdir())
        assert os.fstat(descriptor).st_size == 10_000
        assert not os.get_inheritable(descriptor)
        os.pwrite(descriptor, b"seen", 100)
        assert os.pread(descriptor, 4, 100) == b"seen"
    finally:
        os.close(descriptor)


@portable
def test_a_closed_arena_lives_as_long_as_its_last_view(portable):
    before = descriptors()
    arena = Slab(5000, 2, portable=portable)
    slot = arena.grant()
    array = np.frombuffer(arena.lease(slot), np.uint8)
    array[:] = 7
    arena.close()
    del arena
    gc.collect()
    assert descriptors() <= before + 1  # the map's own, while it lives
    assert (array == 7).all()
    del array
    gc.collect()
    assert descriptors() <= before


def no_space_beyond(limit: int) -> Any:
    def reserve(descriptor: int, start: int, size: int) -> None:
        if start + size > limit:
            raise OSError(28, "No space left on device")

    return reserve


def test_an_arena_has_as_many_slots_as_there_is_room_for(monkeypatch):
    monkeypatch.setattr("bushel._src.engine.shared_memory._reserve", no_space_beyond(3 << 20))
    arena = Slab(1 << 20, 5, portable=True)
    granted = [arena.grant() for _ in range(4)]
    assert sorted(granted[:3]) == [0, 1, 2] and granted[3] is None
    assert arena.count_held() == arena.slots == 3
    arena.give_back(1)
    assert arena.grant() == 1 and arena.grant() is None
    before = descriptors()
    with pytest.raises(OSError, match="No space left"):
        Slab(4 << 20, 5, portable=True)
    assert descriptors() == before


def test_a_slot_is_there_before_it_is_granted(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    arena = Slab(1 << 20, 50, portable=True)
    for count in (1, 2, 3):
        arena.grant()
        assert count << 20 <= os.fstat(arena.descriptor).st_blocks * 512 < (count + 1) << 20


SMALL = """
    import logging
    import numpy as np
    import bushel
    from bushel._src.engine.processes.executor import Processes

    logging.basicConfig(format="%(message)s")
    ds = bushel.MapDataset.range(60).map(lambda i: np.full(1 << 20, i, np.uint8)).batch(2).to_iter_dataset()
    for budget_bytes in (1 << 30, 64 << 20):
        with ds.iterate_on(Processes(2, portable=True, budget_bytes=budget_bytes)) as it:
            kept = list(it)
        print([int(batch[0, 0]) for batch in kept] == list(range(0, 60, 2)))
"""


@pytest.mark.skipif(not shutil.which("unshare"), reason="needs a file system of its own")
def test_a_small_file_system_costs_copies_and_no_worker(tmp_path):
    (tmp_path / "small").mkdir()
    (tmp_path / "script.py").write_text(textwrap.dedent(SMALL))
    mount = f"mount -t tmpfs -o size=8m none {tmp_path}/small"
    if subprocess.run(["unshare", "-rm", "sh", "-c", mount], capture_output=True).returncode:
        pytest.skip("may not mount a file system")
    command = f"{mount} && TMPDIR={tmp_path}/small exec {sys.executable} {tmp_path}/script.py"
    done = subprocess.run(["unshare", "-rm", "sh", "-c", command], capture_output=True, text=True, timeout=250)
    assert (done.returncode, done.stdout) == (0, "True\nTrue\n"), done.stderr
    assert "No shared memory for results" in done.stderr and "No space left" in done.stderr


def test_a_slot_hands_out_aligned_parts_that_do_not_overlap():
    memory = np.zeros(10_000 + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    slot = Slot(memoryview(memory[start : start + 10_000].data))
    for _ in range(2):
        slot.reset()
        end = 0
        for size in (1, 63, 64, 65, 1000, 0, 4000):
            offset = slot.allocate(size)
            assert offset is not None and offset % ALIGNMENT == 0 and offset >= end
            end = offset + size
            part = np.frombuffer(slot.view(offset, size), np.uint8)
            assert len(part) == size
            if size:
                assert slot.find_offset(part.ctypes.data, size) == offset
        assert slot.allocate(10_000 - end + 1) is None
    other = np.zeros(100, np.uint8)
    assert slot.find_offset(other.ctypes.data, 100) is None
    assert slot.find_offset(ctypes.addressof(ctypes.c_char.from_buffer(memory)) + start + 9_990, 100) is None


# ---------------------------------------------------------------------------------------------------------------------
# What one looks at never changes


def jax_numpy() -> Any:
    import jax.numpy

    return jax.numpy


LOOKS: dict[str, Callable[[np.ndarray], Any]] = {
    "the array": lambda x: x,
    "a view": lambda x: x[3:5],
    "a view of a view of a view": lambda x: x.T[::2][1:].reshape(-1)[4:] if x.ndim == 1 else x[1:].T[::2].T[::3],
    "np.asarray": np.asarray,
    "another dtype": lambda x: x.view(np.float64),
    "memoryview": lambda x: memoryview(x)[2:4],
    "memoryview of a view": lambda x: x[5:].data,
    "the iterator of rows": lambda x: next(iter(x)),
    "dlpack": lambda x: np.from_dlpack(x),
    "ctypes": lambda x: np.ctypeslib.as_array(np.ctypeslib.as_ctypes(x)),
    "jnp.asarray": lambda x: jax_numpy().asarray(x.view(np.float32)),
    "jax.device_put": lambda x: __import__("jax").device_put(x.view(np.float32)),
    "jax dlpack": lambda x: jax_numpy().from_dlpack(x.view(np.float32)),
    "broadcast": lambda x: np.broadcast_to(x, (3, *x.shape)),
    "a structured view": lambda x: x.view([("a", "i4"), ("b", "i4")])["a"],
}


def bytes_of(look: Any) -> bytes:
    return np.ascontiguousarray(np.asarray(look)).tobytes()


@pytest.mark.parametrize("look", LOOKS)
def test_what_one_looks_at_never_changes(look):
    check_stays(look)


@pytest.mark.parametrize("look", ["a view of a view of a view", "jax.device_put"])
def test_nor_does_it_without_memfd(look):
    check_stays(look, portable=True)


def check_stays(look: str, **options: Any) -> None:
    with worker_pool(2, **options) as executor, open_on(batches(400), executor) as it:
        number = warm(it, executor)
        kept = []
        for _ in range(2):
            batch = next(it)
            assert (batch["x"] == number).all()
            kept.append((LOOKS[look](batch["x"]), bytes_of(LOOKS[look](batch["x"]))))
            number += 1
            del batch
        for turn in range(100):  # many more blocks than there are slots
            assert next(it)["x"][0, 0] == number
            number += 1
            if turn % 40 == 20:
                gc.collect()
                for seen, before in kept:
                    assert bytes_of(seen) == before
        for seen, before in kept:
            assert bytes_of(seen) == before


def test_the_check_of_kept_views_can_fail():
    """If a lease ended while something still looks, these tests would see it."""
    with grown_pool(1) as executor, open_on(batches(400), executor) as it:
        number = warm(it, executor)
        batch = next(it)
        address, size = batch["x"].ctypes.data, batch["x"].nbytes
        stolen = np.ctypeslib.as_array((ctypes.c_char * size).from_address(address)).view(np.int64)  # holds nothing
        assert (stolen == number).all()
        arena = arena_of(executor)  # so that the memory itself stays
        del batch
        for _ in it:
            if not (stolen == number).all():
                break
        else:
            raise AssertionError("the slot was never used again")
        assert arena.slots


def test_each_row_keeps_what_it_shows():
    with worker_pool() as executor, open_on(numbers(2000).map(lambda x: np.full(5000, x)), executor) as it:
        kept = [(number, row) for number, row in enumerate(it) if number % 97 == 0]
        gc.collect()
        assert [number for number, row in kept if not (row == number).all()] == []


def test_what_a_function_keeps_in_a_worker_stays_as_it_was():
    kept: list[tuple[int, Any]] = []

    def changed(batch: Any) -> list[int]:
        kept.append((int(batch[0, 0]), batch))
        del kept[:-200]
        return [first for first, seen in kept if seen[0, 0] != first or seen[-1, -1] != first // 64 * 64 + 63]

    rows = bushel.MapDataset.range(64 * 1000).map(lambda x: np.full(32, x, np.float32))
    for ds in (rows.to_iter_dataset().batch(64).map(changed), rows.batch(64).map(changed).to_iter_dataset()):
        with worker_pool(1) as executor, open_on(ds, executor) as it:
            assert [row for rows in it for row in rows] == []


# ---------------------------------------------------------------------------------------------------------------------
# Slots come back


def settled(executor: Processes) -> bool:
    return not any(worker.jobs for worker in executor._supervisor.workers) and not executor._supervisor._waiting


@pytest.mark.parametrize("look", ["the array", "a view of a view of a view", "memoryview", "dlpack", "jax.device_put"])
def test_a_slot_comes_back_with_its_last_view(look):
    with grown_pool() as executor:
        it = open_on(batches(100), executor)
        warm(it, executor)
        kept = LOOKS[look](next(it)["x"])
        it.close()
        del it
        wait_until(lambda: settled(executor))
        arena = arena_of(executor)
        gc.collect()
        assert arena.count_held() == 1
        del kept
        gc.collect()
        wait_until(lambda: arena.count_held() == 0)


def test_a_closed_iterator_holds_no_memory():
    with grown_pool() as executor:
        it = open_on(batches(100), executor)
        warm(it, executor)
        it.close()
        wait_until(lambda: settled(executor))
        gc.collect()
        wait_until(lambda: arena_of(executor).count_held() == 0)
        assert it.get_state()["next_index"] > 0


def test_results_nobody_asked_for_give_their_slots_back():
    with worker_pool() as executor:
        for _ in range(5):
            with open_on(batches(100), executor) as it:
                warm(it, executor)
                it.set_state(it.get_state())
            del it
        wait_until(lambda: settled(executor))
        gc.collect()
        wait_until(lambda: arena_of(executor).count_held() == 0)


def test_errors_give_their_slots_back():
    def fail(x: dict[str, Any]) -> Any:
        if x["x"][0, 0] % 7 == 3:
            raise ValueError("as planned")
        return x

    with worker_pool() as executor:
        with open_on(batches(60).map(fail), executor) as it:
            seen, batch = 0, None
            while True:
                try:
                    batch = next(it)
                    seen += 1
                except ValueError:
                    bushel.experimental.set_next_index(it, bushel.experimental.get_next_index(it) + 1)
                except StopIteration:
                    break
        assert seen == sum(number % 7 != 3 for number in range(60))
        del it, batch
        wait_until(lambda: settled(executor))

        def all_are_back() -> bool:
            gc.collect()  # more than once: without a GIL, what another thread has made may take two rounds
            return arena_of(executor).count_held() == 0

        wait_until(all_are_back)


def test_arrays_outlive_the_pool():
    with worker_pool() as executor, open_on(batches(50), executor) as it:
        kept = list(enumerate(it))
    del it
    gc.collect()
    for number, batch in kept:
        assert (batch["x"] == number).all()
        batch["x"] += 1


# ---------------------------------------------------------------------------------------------------------------------
# More is kept than there is room


def test_a_list_of_more_than_the_budget_goes_on_with_one_warning(caplog):
    caplog.set_level(logging.WARNING, logger="bushel")
    ds = batches(500).mp_prefetch(bushel.MultiprocessingOptions(num_workers=2, budget_bytes=BUDGET_BYTES))
    assert 500 * BATCH_BYTES > 3 * BUDGET_BYTES
    with iter(ds) as it:
        kept = list(it)
    assert [int(batch["x"][0, 0]) for batch in kept] == list(range(500))
    assert all((batch["x"] == number).all() and (batch["label"] == number).all() for number, batch in enumerate(kept))
    (record,) = caplog.records
    assert "shared memory for results is full: arrays that are still in use hold" in record.getMessage()
    assert "budget_bytes" in record.getMessage()


@pytest.mark.parametrize("budget_mb", [64, 128, 256])
def test_the_warning_is_true_and_its_advice_is_good(caplog, budget_mb):
    """More room is there when the budget says so, and it is used before anyone is warned."""
    with worker_pool(2, budget_bytes=budget_mb << 20) as executor, open_on(batches(2500), executor) as it:
        kept = []
        while not caplog.records:
            kept.append(next(it))
        arena = executor._supervisor.buffer.arena
        in_slots = sum(lies_in_shared_memory(batch["x"]) for batch in kept) * BATCH_BYTES
    assert 0.9 * budget_mb < arena.slots * arena.slot_bytes / (1 << 20) <= budget_mb
    told = re.search(r"hold (\d+) of its (\d+) slots of ([\d.]+) MB", caplog.records[0].getMessage())
    assert told is not None
    held, slots, slot_mb = map(float, told.groups())
    assert slots == arena.slots and 0.5 < held / slots <= 1
    assert abs(slot_mb - arena.slot_bytes / 1e6) < 0.1
    assert in_slots / arena.slot_bytes <= held + 8  # not all of a slot need be in use; some were still on the way


def test_after_all_was_let_go_results_come_through_shared_memory_again(caplog):
    with grown_pool(budget_bytes=BUDGET_BYTES) as executor, open_on(batches(600), executor) as it:
        warm(it, executor)
        kept = list(itertools.islice(it, 300))
        assert not lies_in_shared_memory(kept[-1]["x"])
        assert len(caplog.records) == 1
        kept.clear()
        gc.collect()
        warm(it, executor)
        warm(it, executor)
    assert len(caplog.records) == 1


def test_one_kept_label_per_batch_does_not_fill_the_memory(caplog):
    with grown_pool(budget_bytes=BUDGET_BYTES) as executor, open_on(batches(600), executor) as it:
        warm(it, executor)
        labels = []
        shared = 0
        for batch in it:
            labels.append(batch["label"])
            shared += lies_in_shared_memory(batch["x"])
        assert shared > 0.5 * len(labels)
    assert not caplog.records
    assert [label[0] for label in labels] == list(range(600 - len(labels), 600))


def part(k: int, size: int = 300_000) -> Any:
    return bushel.MapDataset.range(60).map(lambda x: np.full(size, 1000 * k + x)).to_iter_dataset()


@pytest.mark.parametrize("weights", [[1, 1], [1, 5], [5, 1]])
def test_a_mixture_whose_elements_are_all_kept_goes_on(weights):
    ds = bushel.IterDataset.mix([part(1), part(2)], weights)
    with open_on(ds, None) as it:
        expected = [int(x[0]) for x in itertools.islice(it, 40)]
    with iter(ds.mp_prefetch(bushel.MultiprocessingOptions(num_workers=2, budget_bytes=16 << 20))) as it:
        found: list[Any] = []
        reader = threading.Thread(target=lambda: found.append(list(itertools.islice(it, 40))), daemon=True)
        reader.start()
        reader.join(20)
        assert found, "hangs"
        assert [int(x[0]) for x in found[0]] == expected


def test_a_mixture_of_many_streams_goes_on():
    """More blocks ahead, of all parts together, than there are slots; nothing is kept."""
    ds = bushel.IterDataset.mix([part(k, 200_000) for k in range(8)])
    found: list[list[int]] = []
    with iter(ds.mp_prefetch(bushel.MultiprocessingOptions(num_workers=2))) as it:
        reader = threading.Thread(
            target=lambda: found.append([int(x[0]) for x in itertools.islice(it, 120)]), daemon=True
        )
        reader.start()
        reader.join(20)
        assert found, "hangs"
    assert found[0] == [1000 * (n % 8) + n // 8 for n in range(120)]


def test_elements_larger_than_any_slot_arrive():
    sizes = [10, 100_000, 2_000_000, 10, 500_000]
    ds = bushel.MapDataset.range(20).map(lambda x: np.full(sizes[x % 5], x)).to_iter_dataset()
    for budget in (1 << 20, 1 << 30):
        with iter(ds.mp_prefetch(bushel.MultiprocessingOptions(num_workers=2, budget_bytes=budget))) as it:
            for number, array in enumerate(it):
                assert array.shape == (sizes[number % 5],) and (array == number).all()


def test_without_shared_memory_results_go_by_the_heap(monkeypatch):
    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("bushel._src.engine.pool.jobs.Slab", fail)
    with worker_pool() as executor, open_on(batches(50), executor) as it:
        number = -1
        for number, batch in enumerate(it):
            assert (batch["x"] == number).all()
        assert number == 49


# ---------------------------------------------------------------------------------------------------------------------
# How results lie in memory


@pytest.mark.parametrize("budget", [1, 1 << 30], ids=["beside", "in slots"])
@pytest.mark.parametrize("where", ["in a MapDataset", "in a stream", "after a filter"])
def test_batches_are_aligned_and_writable(where, budget):
    rows = bushel.MapDataset.range(640).map(lambda x: {"x": np.full((9, 33), x, np.float32), "y": np.arange(3)})
    ds = {
        "in a MapDataset": lambda: rows.batch(16).to_iter_dataset(),
        "in a stream": lambda: rows.to_iter_dataset().batch(16),
        "after a filter": lambda: rows.to_iter_dataset().filter(lambda row: True).batch(16),
    }[where]()
    with worker_pool(budget_bytes=budget) as executor, open_on(ds, executor) as it:
        number = -1
        for number, batch in enumerate(it):
            if where != "after a filter":  # those are cut from a block, anywhere
                assert batch["x"].ctypes.data % ALIGNMENT == 0, number
            assert batch["x"].flags.c_contiguous
            assert batch["x"].flags.writeable and batch["y"].flags.writeable
            batch["x"] *= 2
            assert (batch["x"][:, 0, 0] == 2 * np.arange(16 * number, 16 * number + 16)).all()
        assert number == 39


def test_batches_lie_in_shared_memory():
    with grown_pool() as executor, open_on(batches(200), executor) as it:
        assert sum(lies_in_shared_memory(batch["x"]) for batch in it) > 100  # while blocks grow, some do not


def test_writing_into_one_result_does_not_reach_another():
    with worker_pool() as executor, open_on(numbers(600).map(lambda x: np.full(2000, x)), executor) as it:
        for number, row in enumerate(it):
            assert (row == number).all()
            row[:] = -1


def test_jax_takes_batches_over_without_a_copy():
    import jax

    with worker_pool() as executor, open_on(batches(200), executor) as it:
        warm(it, executor)
        batch = next(it)["x"].view(np.float32)
        array = jax.device_put(batch)
        assert array.unsafe_buffer_pointer() == batch.ctypes.data


def test_elements_are_the_same_through_shared_memory_and_beside_it():
    ds = numbers(300).map(
        lambda x: {"a": np.full((x % 7, 100), x), "b": [np.asfortranarray(np.full((50, 50), x)), "text"], "c": None}
    )
    with open_on(ds, None) as it:
        expected = list(it)
    for options in ({"budget_bytes": 1}, {}, {"portable": True}):
        with worker_pool(**options) as executor, open_on(ds, executor) as it:
            assert same(list(it), expected)


@pytest.mark.parametrize("kind", ["by index", "in order", "in a thread"])
def test_what_a_pipeline_inside_of_a_function_gives_may_be_kept(kind):
    inner = bushel.MapDataset.range(2000).map(lambda x: np.full(4, x)).batch(2000)
    kept: list[Any] = []

    def first() -> Any:
        if kind == "by index":
            return inner[0]
        threads = bushel.ReadOptions(2, 4) if kind == "in a thread" else bushel.ReadOptions(0, 0)
        with iter(inner.to_iter_dataset(threads)) as it:
            return next(it)

    def with_kept(x: int) -> Any:
        if not kept and x >= 2000:  # when slots are in use
            kept.append(first())
        return np.full(3000, x + 10_000_000), int(kept[0].sum()) if kept else -1

    ds = bushel.MapDataset.range(4000).map(with_kept).batch(2).to_iter_dataset()
    with iter(ds.mp_prefetch(bushel.MultiprocessingOptions(num_workers=1))) as it:
        sums = {int(total) for _, totals in it for total in totals}
    assert sums == {-1, 7996000}

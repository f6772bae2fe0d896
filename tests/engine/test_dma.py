"""Slots mapped for a GPU: mapped once, unmapped when nothing looks into them. The GPU's side keeps the books here."""

from __future__ import annotations

import gc
import logging
import threading
from typing import Any

import numpy as np
import pytest
from helpers.case_counts import cases
from helpers.waiting import wait_until
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import bushel
from bushel._src.engine import shared_memory
from bushel._src.engine.processes.executor import Processes
from bushel._src.engine.shared_memory import DmaMapper, Slab
from bushel._src.engine.transfer import HostMemory


class Client:
    """Keeps the ranges that are mapped, and refuses what CUDA refuses: a page mapped twice, an unknown address."""

    def __init__(self) -> None:
        self.mapped: dict[int, int] = {}
        self.calls: list[str] = []
        self.lock = threading.Lock()

    def dma_map(self, address: int, size: int) -> None:
        with self.lock:
            self.calls.append("map")
            assert address % 4096 == 0 and size % 4096 == 0
            for start, length in self.mapped.items():
                assert address + size <= start or start + length <= address, "these pages are mapped already"
            self.mapped[address] = size

    def dma_unmap(self, address: int) -> None:
        with self.lock:
            self.calls.append("unmap")
            del self.mapped[address]

    def covers(self, array: np.ndarray) -> bool:
        start = array.__array_interface__["data"][0]
        with self.lock:
            ranges = list(self.mapped.items())
        return any(low <= start and start + array.nbytes <= low + size for low, size in ranges)


def dma_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "bushel-dma"]


def test_a_slot_is_mapped_once_and_unmapped_when_its_last_array_is_gone():
    client = Client()
    mapper = DmaMapper(client)
    arena = Slab(10_000, 3)
    slot = arena.grant()
    assert slot is not None
    array = np.frombuffer(arena.lease(slot), np.uint8)
    for _ in range(3):
        mapper.map(arena, slot)
    wait_until(lambda: bool(client.mapped))
    assert client.covers(array)
    arena.close()
    mapper.close(arena)
    # Requests are served in order: when the slot of another arena is mapped, the first arena was looked at.
    other = Slab(4096, 1)
    mapper.map(other, other.grant() or 0)
    wait_until(lambda: client.calls.count("map") == 2)
    other.close()
    mapper.close(other)
    wait_until(lambda: "unmap" in client.calls)
    assert client.calls == ["map", "map", "unmap"] and client.covers(array), "an array still looks into the slot"
    mapper.stop()
    client.calls = ["map"]
    part = array[5:9]
    del array
    gc.collect()
    assert client.calls == ["map"], "a slice still looks into the slot"
    del part
    gc.collect()
    wait_until(lambda: not dma_threads())
    assert client.calls == ["map", "unmap"] and not client.mapped


def test_slots_that_were_granted_and_never_leased_do_not_keep_an_arena():
    client = Client()
    mapper = DmaMapper(client)
    arena = Slab(4096, 4)
    slots = [arena.grant() for _ in range(3)]
    array = np.frombuffer(arena.lease(slots[0] or 0), np.uint8)
    mapper.map(arena, slots[0] or 0)
    wait_until(lambda: bool(client.mapped))
    assert client.covers(array)
    del array
    arena.close()
    mapper.close(arena)  # two slots are still granted, as those of workers that were killed
    wait_until(lambda: not client.mapped)
    mapper.map(arena, 1)  # too late: the arena is closed
    mapper.stop()
    wait_until(lambda: not dma_threads())
    assert client.calls == ["map", "unmap"]


def test_a_client_that_refuses_is_asked_once(caplog):
    class Refusing(Client):
        def dma_map(self, address: int, size: int) -> None:
            self.calls.append("map")
            raise RuntimeError("no locked memory left")

    client, arena = Refusing(), Slab(4096, 4)
    mapper = DmaMapper(client)
    with caplog.at_level(logging.INFO, logger="bushel"):
        mapper.map(arena, 0)
        wait_until(lambda: "no locked memory left" in caplog.text)
        mapper.map(arena, 1)
    mapper.close(arena)
    mapper.stop()
    wait_until(lambda: not dma_threads())
    assert client.calls == ["map"] and mapper.count_mapped_bytes() == 0
    arena.close()


def test_only_devices_whose_client_can_map_get_a_mapper():
    class Device:
        def __init__(self, platform: str, client: Any):
            self.platform, self.client = platform, client

    assert shared_memory.find_mapper([]) is None
    assert shared_memory.find_mapper([Device("cpu", Client())]) is None
    assert shared_memory.find_mapper([Device("gpu", object())]) is None
    assert isinstance(shared_memory.find_mapper([Device("cpu", Client()), Device("gpu", Client())]), DmaMapper)


@pytest.mark.parametrize("portable", [False, True])
def test_results_of_workers_lie_in_mapped_memory(portable):
    client = Client()
    mapper = DmaMapper(client)
    records = bushel.sources.ArrayDataSource(np.arange(64 * 4096, dtype=np.uint8).reshape(64, 4096))
    ds = bushel.MapDataset.source(records).batch(4).to_iter_dataset()
    executor = Processes(2, portable=portable, mapper=mapper)
    expected = list(ds)
    kept, batch = [], None
    with ds.iterate_on(executor) as it:
        for number, batch in enumerate(it):
            assert (batch == expected[number]).all()
            kept.append(batch)
    # The first results may have come before there was an arena of the right size.
    wait_until(lambda: sum(map(client.covers, kept)) >= 4)
    assert mapper.count_mapped_bytes() > 0
    executor.close()
    mapper.stop()
    assert client.mapped, "arrays still look into the slots"
    assert all((batch == want).all() for batch, want in zip(kept, expected, strict=True))
    kept.clear()
    del batch
    gc.collect()
    wait_until(lambda: not client.mapped and not dma_threads())


# ---------------------------------------------------------------------------------------------------------------------
# Memory of elements that the consumer makes


@settings(max_examples=cases(10, 30), deadline=None, suppress_health_check=list(HealthCheck))
@given(sizes=st.lists(st.integers(8, 40), min_size=1, max_size=20), keep=st.data(), slots=st.integers(1, 4))
def test_no_element_is_written_over_while_it_is_kept(sizes, keep, slots):
    client = Client()
    memory = HostMemory(1 << 28, slots, mapper := DmaMapper(client))
    kept: list[tuple[int, Any]] = []
    for number, size in enumerate(sizes):
        with memory.for_element():
            made = bushel._src.base.blocks.stack([np.full(size << 17, number, np.uint8)] * 2)
        kept.append((number, made))
        del made
        for place in sorted(keep.draw(st.sets(st.integers(0, len(kept) - 1))), reverse=True):
            del kept[place]
        assert all([(array == value).all() for value, array in kept])
    memory.close()
    kept.clear()
    mapper.stop()
    gc.collect()
    wait_until(lambda: not client.mapped)


def test_elements_use_the_same_memory_again():
    memory = HostMemory(1 << 26, 4)
    places = set()
    for _ in range(20):
        with memory.for_element():
            made = bushel._src.base.blocks.stack([np.zeros(1 << 22, np.uint8)] * 2)
        places.add(made.__array_interface__["data"][0])
        del made
    assert len(places) <= 2  # the first one, which showed how large elements are, and one slot
    memory.close()


def test_a_closed_memory_makes_no_new_slots():
    memory = HostMemory(1 << 26, 4)
    memory.close()
    for _ in range(3):
        with memory.for_element():
            assert bushel._src.base.blocks.stack([np.ones(1 << 22, np.uint8)] * 2).all()
    assert memory._arena is None

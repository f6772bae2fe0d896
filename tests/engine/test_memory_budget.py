"""Workers that are faster than the consumer stay within the budget of memory."""

from __future__ import annotations

import os
import sys
import sysconfig
import time
from typing import Any

import cloudpickle
import numpy as np
import pytest
from helpers.processes import memory_of, offspring
from helpers.worker_pools import numbers, open_on, worker_pool

import bushel

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers need not import the tests


ROW = np.zeros(125_000, np.int64)

FAST = {
    "elements": lambda: bushel.MapDataset.range(10**6).map(lambda x: ROW + x).to_iter_dataset(),
    "batches": lambda: bushel.MapDataset.range(10**6).map(lambda x: ROW + x).batch(4).to_iter_dataset(),
    "batches after a filter": lambda: numbers(10**6).map(lambda x: ROW + x).filter(lambda row: row[0] % 3).batch(4),
}


@pytest.mark.parametrize("stream", FAST)
def test_workers_that_are_faster_than_the_consumer_stay_within_the_budget(stream, caplog):
    budget, more = 64 << 20, 32 << 20  # what is in the making in two workers, as docs/workers.md says
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        more += 32 << 20  # whose allocator keeps what the first blocks, which came as copies, have taken
    with worker_pool(budget_bytes=budget) as executor:
        with open_on(numbers(100), executor) as it:
            list(it)
        family = [os.getpid(), *offspring()]
        before, most = memory_of(family), 0
        with open_on(FAST[stream](), executor) as it:
            for number in range(120):
                next(it)
                time.sleep(0.005)
                if number % 8 == 7:
                    most = max(most, memory_of(family))
    assert most - before < budget + more
    assert most - before > 5 << 20  # it was seen at all
    assert "shared memory" not in caplog.text  # nobody holds anything


MANY = {
    "bytes": lambda x: b"x" * (1 << 20),
    "text": lambda x: "x" * (1 << 20),
    "an object with an array": lambda x: Holder(np.zeros(1 << 20, np.uint8)),
    "arrays that do not fit into the budget twice": lambda x: np.zeros(12 << 20, np.uint8),
    "small arrays": lambda x: np.zeros(900, np.int32),
    "lists": lambda x: list(range(x, x + 10_000)),
}


class Holder:
    """No tree, so that nobody sees what is in it."""

    def __init__(self, array: np.ndarray):
        self.array = array


@pytest.mark.parametrize("elements", MANY)
def test_workers_stay_within_the_budget_with_elements_of_any_kind(tmp_path, elements):
    make, budget = MANY[elements], 16 << 20
    size = len(cloudpickle.dumps(make(0)))
    made = tmp_path / "made"

    def noted(x: int) -> Any:
        with made.open("ab") as file:
            file.write(b".")
        return make(x)

    options = bushel.MultiprocessingOptions(num_workers=2, per_worker_buffer_size=100, budget_bytes=budget)
    with iter(numbers(10**6).map(noted).mp_prefetch(options)) as it:
        read = max(3, (8 << 20) // size)  # so many that blocks have grown
        for _ in range(read):
            next(it)
        seen, steady_since = 0, time.monotonic()
        while time.monotonic() - steady_since < 0.3:
            if made.stat().st_size != seen:
                seen, steady_since = made.stat().st_size, time.monotonic()
        block_bytes = it._observer._pools[0].block_bytes
    in_hand = 2 * 2 * max(size, block_bytes)  # what is in the making in two workers, as docs/workers.md says
    assert (seen - read) * size < budget + in_hand + block_bytes  # one is handed over in part

"""Programs that end while threads of ours still work: the process ends well, with nothing on stderr.

Before `ending_threads`, those whose threads hold arrays of JAX were aborted ("FATAL: exception not rethrown") after
their last line.
"""

import os
import subprocess
import sys

import pytest

BEGIN = """
import sys, threading, time
import bushel

records = bushel.MapDataset.range(1000)
"""
BEGIN_WITH_JAX = f"""
{BEGIN}
import jax
import numpy as np
from bushel import experimental as ex

def many(index):  # letting go of them takes a while
    return [jax.device_put(np.full(4, index, np.float32)) for _ in range(2000)]

def host(index):
    return [np.full(4, index, np.float32) for _ in range(2000)]
"""
ENDS = {"left": "", "closed": "it.close()", "deleted": "del it"}
PIPELINES = {
    "read threads": "records.map(many).to_iter_dataset(bushel.ReadOptions(4, 16))",
    "a prefetch thread": "ex.ThreadPrefetchIterDataset("
    "records.to_iter_dataset(bushel.ReadOptions(0, 0)).map(many), prefetch_buffer_size=4)",
    "to_device": "records.map(host).to_iter_dataset().to_device(jax.devices()[0])",
}


def run(program):
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended\n", "")


@pytest.mark.parametrize(
    ("pipeline", "end"),
    [
        ("read threads", "left"),
        ("read threads", "closed"),
        ("a prefetch thread", "left"),
        ("to_device", "left"),
        pytest.param("read threads", "deleted", marks=pytest.mark.slow),
        pytest.param("a prefetch thread", "closed", marks=pytest.mark.slow),
        pytest.param("a prefetch thread", "deleted", marks=pytest.mark.slow),
        pytest.param("to_device", "closed", marks=pytest.mark.slow),
        pytest.param("to_device", "deleted", marks=pytest.mark.slow),
    ],
)
def test_a_program_ends_well(pipeline, end):
    lines = [f"it = iter({PIPELINES[pipeline]})", "for _ in range(5): next(it)", ENDS[end], "print('ended')"]
    run(BEGIN_WITH_JAX + "\n".join(lines))


def test_a_function_that_never_returns_does_not_keep_the_program():
    stuck = """
def stuck(index):
    while index > 4:
        time.sleep(1000)
    return index

def busy(index):
    while index > 4:
        pass
    return index

its = [iter(records.map(fn).to_iter_dataset(bushel.ReadOptions(4, 16))) for fn in (stuck, busy)]
for it in its:
    for _ in range(5): next(it)
print("ended")
"""
    run(BEGIN + stuck)


def test_a_thread_that_is_ended_in_a_finalizer_ends_without_a_word():
    """Python cannot raise an error in a finalizer, so it prints the error and goes on."""
    stuck = """
class Endless:
    def __del__(self):
        while True:
            pass

inside = threading.Event()

def stuck(index):
    if index > 50:
        inside.set()
        Endless()
        while True:
            pass
    return index

it = iter(records.map(stuck).to_iter_dataset(bushel.ReadOptions(1, 64)))
next(it)
inside.wait()
print("ended")
"""
    run(BEGIN + stuck)


def test_what_is_stopped_at_exit_is_forgotten_when_it_ends():
    forgotten = """
import gc
from bushel._src.base import background
for _ in range(20):
    with iter(records.to_iter_dataset(bushel.ReadOptions(4, 16))) as it:
        next(it)
while background._stops:
    time.sleep(0.01)
print("ended")
"""
    run(BEGIN + forgotten)

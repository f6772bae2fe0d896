"""`to_device`: the elements and states of the pipeline, as arrays on devices; errors in their place; nothing hangs."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
import time
from typing import Any

import jax
import numpy as np
import pytest
from engine.test_pulling import run
from helpers import strategies
from helpers.recipes import as_stream
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import bushel
from bushel import MultiprocessingOptions
from bushel.testing import same

laws = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


def on_host(element: Any) -> Any:
    """An element with its JAX arrays as NumPy arrays."""
    return jax.tree.map(lambda leaf: np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf, element)


def as_jax_holds(element: Any) -> Any:
    """An element of the host as it looks after a way through JAX: 64 bits become 32."""
    return jax.tree.map(lambda leaf: np.asarray(jax.numpy.asarray(leaf)) if _is_numeric(leaf) else leaf, element)


def _is_numeric(leaf: Any) -> bool:
    return np.asarray(leaf).dtype.kind in "biufc"


@laws
@given(recipe=strategies.stream_recipes(), buffer=st.integers(0, 4), start=st.integers(0, 20))
def test_elements_states_and_errors_are_those_of_the_stream(recipe, buffer, start):
    ds = as_stream(recipe, bushel)
    with iter(ds) as it:
        elements, states, failed = run(it, 20)
    moved = ds.to_device(buffer_size=buffer)
    with iter(moved) as it:
        found = run(it, 20)
    assert found[1:] == (states, failed)
    assert same(list(map(on_host, found[0])), list(map(as_jax_holds, elements)))
    start %= len(elements) + 1
    with iter(moved) as it:
        next(it, None) if elements else None
        it.set_state(json.loads(json.dumps(states[start])))
        assert it.get_state() == states[start]
        rest = run(it, 20 - start)
    assert same(list(map(on_host, rest[0])), list(map(as_jax_holds, elements[start:])))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("buffer", [0, 1, 5])
def test_batches_of_workers_arrive_unchanged_and_stay_so(workers, buffer):
    records = np.random.default_rng(0).integers(0, 255, (200, 32, 32, 3), dtype=np.uint8)
    source = bushel.sources.ArrayDataSource({"image": records, "label": np.arange(200, dtype=np.int32)})
    ds = bushel.MapDataset.source(source).seed(1).shuffle().batch(16).to_iter_dataset()
    expected = list(ds)
    ahead = ds.mp_prefetch(MultiprocessingOptions(num_workers=workers)) if workers else ds
    with iter(ahead.to_device(jax.devices()[0], buffer_size=buffer)) as it:
        found = list(it)  # all are kept, so no slot may be used again
    assert len(found) == len(expected) == 13
    for batch, want in zip(found, expected, strict=True):
        assert batch["image"].committed and batch["image"].devices() == {jax.devices()[0]}
        assert same(on_host(batch), want)


def test_elements_that_take_long_are_computed_by_a_thread():
    import threading

    names = []

    def slow(x: int) -> np.ndarray:
        names.append(threading.current_thread().name)
        time.sleep(0.002)
        return np.full(3, x)

    ds = bushel.MapDataset.range(12).map(slow).to_iter_dataset(bushel.ReadOptions(0, 0)).to_device(buffer_size=2)
    with iter(ds) as it:
        states = [it.get_state()["next_index"]]
        for number, element in enumerate(it):
            assert element.tolist() == [number] * 3
            states.append(it.get_state()["next_index"])
    assert states == list(range(13))
    assert names[0] == "MainThread" and names[-1] == "bushel-pull"


def test_a_failing_element_is_raised_in_its_turn_and_tried_again():
    fails = {5}

    def check(x: int) -> np.ndarray:
        if x in fails:
            raise ValueError(f"bad record {x}")
        return np.full(4, x)

    for threads in (bushel.ReadOptions(0, 0), bushel.ReadOptions(2, 4)):
        fails.add(5)
        with iter(bushel.MapDataset.range(8).map(check).to_iter_dataset(threads).to_device(buffer_size=4)) as it:
            assert [int(next(it)[0]) for _ in range(5)] == [0, 1, 2, 3, 4]
            with pytest.raises(ValueError, match="bad record 5"):
                next(it)
            assert it.get_state()["next_index"] == 5
            fails.clear()
            assert [int(x[0]) for x in it] == [5, 6, 7]


def test_skipped_elements_are_counted_when_the_element_after_them_is_delivered():
    ds = bushel.MapDataset.range(6).map(lambda x: np.array([6 // (x - 2)])).to_iter_dataset()
    with iter(ds.to_device(buffer_size=4).with_options(on_error="skip")) as it:
        counts = []
        for _ in it:
            counts.append(it.skipped)
        assert counts == [0, 0, 1, 1, 1]


def test_what_jax_cannot_hold_is_refused_by_name_if_asked():
    element = {"x": np.ones(2), "meta": {"text": "a", "when": np.datetime64("2024")}}
    ds = bushel.MapDataset.range(2).map(lambda n: element)
    with iter(ds.to_device(unsupported="raise")) as it, pytest.raises(TypeError) as caught:
        next(it)
    message = str(caught.value)
    assert (
        "['meta']['text']" in message
        and "['meta']['when']" in message
        and "['x']" not in message
        and 'unsupported="keep"' in message
    )


def test_wrong_arguments_are_named():
    ds = bushel.MapDataset.range(4).batch(2).to_iter_dataset()
    with pytest.raises(ValueError, match=r'unsupported must be "keep" or "raise", got \'drop\''):
        ds.to_device(unsupported="drop")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"buffer_size .* got -1"):
        ds.to_device(buffer_size=-1)
    with pytest.raises(TypeError, match=r"to_device takes a device, a Sharding, .* got 'gpu'"):
        iter(ds.to_device("gpu"))
    with pytest.raises(ValueError, match="must come after mp_prefetch"):
        iter(ds.to_device().mp_prefetch(MultiprocessingOptions(num_workers=1)))


def test_the_report_says_how_long_the_step_waited_and_how_fast_the_transfer_was():
    ds = bushel.MapDataset.source(np.zeros((40, 1000), np.float32)).batch(1).to_iter_dataset()
    with iter(ds.to_device()) as it:
        for _ in it:
            pass
        (transfer,) = it.report().transfers
        text = str(it.report())
    assert transfer.elements == 40 and transfer.size_bytes == 40 * 4000 and transfer.bytes_per_s > 0
    assert 0 < transfer.waited_s <= transfer.elapsed_s and transfer.limit in ("input", "transfer")
    assert "40 elements of 4.0 KB" in text and "the step waited" in text and "GB/s" in text


def test_the_verdict_names_what_limits():
    def with_figures(waited: float, speed: float, mapped: int = 0) -> str:
        transfer = bushel._src.engine.measurements.Transfer("1 x GPU", 100, 10**9, 10.0, waited, 1.0, speed, mapped)
        return bushel.Report(False, (), (), 0, 0.0, 0.0, (transfer,)).verdict

    assert "compute-bound: the step waits for data 1 % of its time" in with_figures(0.1, 1e9)
    assert "reading and computing limit" in with_figures(5.0, 1e10)
    assert "not mapped" in with_figures(5.0, 1e8) and "uint8" in with_figures(5.0, 1e8)
    assert "the link to the device limits" in with_figures(5.0, 1e8, mapped=1)


PROGRAM = """
import numpy as np, jax, sys, time
import bushel
source = bushel.sources.ArrayDataSource(np.zeros((1000, 64, 64, 3), np.uint8))
ds = bushel.MapDataset.source(source).seed(0).shuffle().repeat().batch(32).to_iter_dataset()
if WORKERS:
    ds = ds.mp_prefetch(bushel.MultiprocessingOptions(num_workers=WORKERS))
it = iter(ds.to_device())
step = jax.jit(lambda total, batch: total + batch.sum())
total = 0
for number, batch in enumerate(it):
    total = step(total, batch)
    if number == 20:
        print("running", flush=True)
    HOW
"""

ENDS = {
    "falls off the end": ("if number > 30: break", 0, ""),
    "sys.exit": ("if number > 30: sys.exit(3)", 3, ""),
    "an error": ("if number > 30: raise RuntimeError('by design')", 1, "RuntimeError: by design"),
    "closed in the middle": ("if number > 30: it.close(); break", 0, ""),
    "Ctrl-C": ("pass", -signal.SIGINT, "KeyboardInterrupt"),
}


SLOW_ENDS = {"sys.exit", "closed in the middle"}  # a program that breaks, and one that fails, end in the same ways


@pytest.mark.parametrize("workers", [1, pytest.param(0, marks=pytest.mark.slow)])
@pytest.mark.parametrize("how", [pytest.param(how, marks=[pytest.mark.slow] * (how in SLOW_ENDS)) for how in ENDS])
def test_programs_end_soon_and_without_noise(how, workers):
    line, code, last = ENDS[how]
    script = textwrap.dedent(PROGRAM).replace("WORKERS", str(workers)).replace("HOW", line)
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "running\n"
    if how == "Ctrl-C":
        process.send_signal(signal.SIGINT)
    _, noise = process.communicate(timeout=250)
    assert process.returncode == code, noise
    assert noise.count("Traceback") == (1 if last else 0) and noise.rstrip().endswith(last), noise

"""Iterators in checkpoints: with Orbax's manager and its newer protocol, in files that Grain reads too."""

import json
import os
import pathlib
import socket
import subprocess
import sys

import grain
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from orbax.checkpoint.experimental import v1 as newer

import bushel
from bushel import StateMismatch
from bushel._src.base.late_imports import install_command
from bushel._src.state import checkpoint_files
from bushel.checkpoint import CheckpointHandler, CheckpointRestore, CheckpointSave
from bushel.experimental import ElasticIterator
from bushel.testing import same

FILE = "process_0-of-1.json"


def dataset(lib):
    return lib.MapDataset.range(40).seed(1).shuffle().random_map(_noisy, seed=2).batch(3).repeat(2)


def loader(lib):
    sampler = lib.samplers.IndexSampler(40, lib.sharding.NoSharding(), shuffle=True, num_epochs=2, seed=4)
    return lib.DataLoader(data_source=list(range(40)), sampler=sampler, operations=[lib.transforms.Batch(3)])


def elastic(lib):
    return ElasticIterator(lib.MapDataset.range(40).seed(1).shuffle(), 4, lib.sharding.NoSharding())


def _noisy(x, rng):
    return x + rng.random()


KINDS = {"dataset": dataset, "loader": loader, "elastic": elastic}


def after(kind, steps):
    """An iterator that has given `steps` elements."""
    it = iter(KINDS[kind](bushel))
    for _ in range(steps):
        next(it)
    return it


def position(it):
    state = it.get_state()
    return {**(json.loads(state) if isinstance(state, bytes) else state), "bushel": None}


# Orbax.


@pytest.mark.parametrize("kind", KINDS)
def test_model_optimizer_and_iterator_in_one_step(kind, tmp_path):
    it = after(kind, 3)
    model, optimizer = {"w": jnp.arange(4.0)}, {"m": jnp.ones(4), "count": jnp.asarray(7)}
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        args = ocp.args.Composite(
            model=ocp.args.StandardSave(model), optimizer=ocp.args.StandardSave(optimizer), data=CheckpointSave(it)
        )
        manager.save(3, args=args)
        expected = list(it)  # goes on while the manager writes
        manager.wait_until_finished()
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        fresh = after(kind, 0)
        args = ocp.args.Composite(
            model=ocp.args.StandardRestore(model), optimizer=ocp.args.StandardRestore(optimizer),
            data=CheckpointRestore(fresh),
        )  # fmt: skip
        restored = manager.restore(manager.latest_step(), args=args)
    assert restored["data"] is fresh
    assert same(list(fresh), expected)
    assert np.array_equal(restored["model"]["w"], model["w"]) and int(restored["optimizer"]["count"]) == 7


@pytest.mark.parametrize("kind", KINDS)
def test_the_newer_protocol(kind, tmp_path):
    it = after(kind, 3)
    newer.save_checkpointables(tmp_path / "now", {"data": it, "model": {"w": np.arange(3.0)}})
    later = newer.save_checkpointables_async(tmp_path / "later", {"data": it})
    expected = list(it)  # what is saved is where it stood
    later.result()
    for folder in ("now", "later"):
        fresh = after(kind, 0)
        newer.load_checkpointables(tmp_path / folder, {"data": fresh})
        assert same(list(fresh), expected)


def test_orbax_takes_iterators_for_what_they_are():
    from orbax.checkpoint.experimental.v1._src.handlers.types import StatefulCheckpointable

    assert all(isinstance(after(kind, 0), StatefulCheckpointable) for kind in KINDS)


# Files of either library, read by the other.


@pytest.mark.parametrize("kind", ["dataset", "loader"])
@pytest.mark.parametrize("steps", [0, 1, 9])
def test_files_move_between_grain_and_bushel(kind, steps, tmp_path):
    ours, theirs = iter(KINDS[kind](bushel)), iter(KINDS[kind](grain))
    for _ in range(steps):
        next(ours)
        next(theirs)
    (tmp_path / "ours").mkdir()
    (tmp_path / "theirs").mkdir()
    CheckpointHandler().save(tmp_path / "ours", ours)
    grain.checkpoint.CheckpointHandler().save(tmp_path / "theirs", theirs)
    expected = list(theirs)
    mine = CheckpointHandler().restore(tmp_path / "theirs", iter(KINDS[kind](bushel)))
    assert same(list(mine), expected)
    its = grain.checkpoint.CheckpointHandler().restore(tmp_path / "ours", iter(KINDS[kind](grain)))
    assert same(list(its), expected)


def test_a_file_of_grains_newer_protocol_is_read(tmp_path):
    theirs = iter(dataset(grain))
    next(theirs)
    newer.save_checkpointables(tmp_path / "step", {"data": theirs})
    ours = iter(dataset(bushel))
    newer.load_checkpointables(tmp_path / "step", {"data": ours})
    assert same(list(ours), list(theirs))


# What is refused, with the iterator as it was.


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_file_cut_short_is_refused(kind, tmp_path, data):
    CheckpointHandler().save(tmp_path, after(kind, 5))
    whole = (tmp_path / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    it = after(kind, 2)
    before = position(it)
    with pytest.raises(StateMismatch, match="cannot be read as JSON"):
        CheckpointHandler().restore(tmp_path, it)
    assert position(it) == before
    next(it)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_file_with_one_byte_changed_is_refused_or_a_position_of_this_pipeline(kind, tmp_path, data):
    CheckpointHandler().save(tmp_path, after(kind, 5))
    damaged = bytearray((tmp_path / FILE).read_bytes())
    damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    (tmp_path / FILE).write_bytes(damaged)
    it = after(kind, 2)
    before = position(it)
    try:
        CheckpointHandler().restore(tmp_path, it)
    except (StateMismatch, IndexError):
        assert position(it) == before
    next(it, None)


HOSTILE = {
    "a pickle": b"\x80\x04\x95\x20\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94.",
    "very deep": b'{"next_index":' * 100_000,
    "a huge number": b'{"next_index": ' + b"9" * 5_000 + b"}",
    "NaN": b'{"next_index": NaN, "last_seen_indices": {"0": NaN}, "version": 2, "global_next_index": NaN}',
    "a list": b"[]",
    "nothing in it": b"{}",
    "another iterator's": b'{"parents": [], "index": 0, "stop": false}',
    "another program's": b'{"epoch": 3, "optimizer": "adam"}',
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", HOSTILE)
def test_a_foreign_file_is_refused(kind, name, tmp_path):
    (tmp_path / FILE).write_bytes(HOSTILE[name])
    it = after(kind, 2)
    before = position(it)
    with pytest.raises(StateMismatch):
        CheckpointHandler().restore(tmp_path, it)
    assert position(it) == before


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_of_another_pipeline_is_refused(kind, tmp_path):
    other = iter(bushel.MapDataset.range(41).shuffle(seed=1))
    CheckpointHandler().save(tmp_path, other)
    it = after(kind, 2)
    before = position(it)
    with pytest.raises(StateMismatch, match="another pipeline"):
        CheckpointHandler().restore(tmp_path, it)
    assert position(it) == before


@pytest.mark.parametrize("kind", KINDS)
def test_a_version_to_come_is_refused(kind, tmp_path):
    state = after(kind, 5).get_state()
    state = json.loads(state) if isinstance(state, bytes) else state
    state["bushel"]["version"] = 99
    (tmp_path / FILE).write_text(json.dumps(state))
    with pytest.raises(StateMismatch, match="has version 99; this Bushel reads version 1"):
        CheckpointHandler().restore(tmp_path, after(kind, 2))


def test_what_is_no_iterator_is_told(tmp_path):
    with pytest.raises(TypeError, match=r"takes an iterator with get_state and set_state, got \[1\]"):
        CheckpointHandler().save(tmp_path, [1])


# Several processes.


def as_process(monkeypatch, index, count):
    monkeypatch.setattr(checkpoint_files, "jax_process", lambda: (index, count))


def test_each_process_has_its_file(tmp_path, monkeypatch):
    for index in range(3):
        as_process(monkeypatch, index, 3)
        CheckpointHandler().save(tmp_path, after("dataset", index))
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"process_{i}-of-3.json" for i in range(3)]
    as_process(monkeypatch, 1, 3)
    it = CheckpointHandler().restore(tmp_path, after("dataset", 0))
    assert it.get_state()["next_index"] == 1


def test_another_number_of_processes_needs_an_elastic_iterator(tmp_path, monkeypatch):
    for index in range(4):
        as_process(monkeypatch, index, 4)
        (tmp_path / "plain").mkdir(exist_ok=True)
        (tmp_path / "elastic").mkdir(exist_ok=True)
        CheckpointHandler().save(tmp_path / "plain", after("dataset", 2))
        CheckpointHandler().save(tmp_path / "elastic", after("elastic", 2))
    as_process(monkeypatch, 2, 3)
    told = r"process_2-of-3.json does not exist. There are process_0-of-4.json, .*use an ElasticIterator"
    with pytest.raises(ValueError, match=told):
        CheckpointHandler().restore(tmp_path / "plain", after("dataset", 0))
    it = CheckpointHandler().restore(tmp_path / "elastic", after("elastic", 0))
    assert it.get_state()["global_next_index"] == 8


def test_an_empty_folder_is_told(tmp_path):
    with pytest.raises(ValueError, match="The folder holds no state of an iterator"):
        CheckpointHandler().restore(tmp_path, after("dataset", 0))


HOST = """
import pathlib, sys
import jax
jax.distributed.initialize(f"127.0.0.1:{sys.argv[1]}", num_processes=2, process_id=int(sys.argv[2]))
import bushel
shard = bushel.ShardByJaxProcess(drop_remainder=True)
it = iter(bushel.load(list(range(11)), num_epochs=1, shard_options=shard))
found = [next(it), next(it)]
folder = pathlib.Path(sys.argv[3])
bushel.checkpoint.CheckpointHandler().save(folder, it)
print(shard.shard_index, shard.shard_count, found)
jax.distributed.shutdown()
"""


@pytest.mark.slow
def test_two_jax_processes_save_and_restore_one_checkpoint(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", HOST, str(port), str(index), str(tmp_path)], stdout=subprocess.PIPE, text=True,
            env=environment,
        )
        for index in range(2)
    ]  # fmt: skip
    found = [process.communicate(timeout=250)[0].strip() for process in processes]
    assert found == ["0 2 [0, 1]", "1 2 [5, 6]"]
    assert sorted(path.name for path in pathlib.Path(tmp_path).iterdir()) == [
        f"process_{i}-of-2.json" for i in range(2)
    ]


IN_A_NEW_PROCESS = """
import sys
import bushel
import orbax.checkpoint as ocp

def started():
    it = iter(bushel.MapDataset.range(9))
    return next(it), it

_, it = started()
_, other = started()
"""
WAYS = {
    "a Checkpointer": """
with ocp.Checkpointer(bushel.checkpoint.CheckpointHandler()) as checkpointer:
    next(it)
    checkpointer.save(sys.argv[1] + "/a", args=bushel.checkpoint.CheckpointSave(it))
    checkpointer.restore(sys.argv[1] + "/a", args=bushel.checkpoint.CheckpointRestore(other))
""",
    "the handlers of a manager": """
with ocp.CheckpointManager(sys.argv[1], item_handlers={"it": bushel.python.PyGrainCheckpointHandler()}) as manager:
    next(it)
    manager.save(3, args=ocp.args.Composite(it=bushel.python.PyGrainCheckpointSave(it)))
    manager.restore(3, args=ocp.args.Composite(it=bushel.python.PyGrainCheckpointRestore(other)))
""",
}


@pytest.mark.parametrize("way", WAYS)
def test_a_handler_that_is_made_first_is_known(way, tmp_path):
    script = IN_A_NEW_PROCESS + WAYS[way] + "print(next(other))"
    command = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert done.stdout == "2\n", done.stderr


# Without Orbax.


def test_without_orbax_the_error_names_the_extra():
    script = """
import sys
sys.modules["orbax"] = sys.modules["orbax.checkpoint"] = None
import bushel
try:
    bushel.checkpoint.CheckpointSave
except ImportError as error:
    print(error)
bushel.checkpoint.CheckpointHandler()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=250, check=True)
    assert done.stdout == f"Checkpoints with Orbax need it: {install_command('orbax')}\n"


def test_a_name_that_is_not_there_is_an_attribute_error():
    assert not hasattr(bushel.checkpoint, "CheckpointKeep")
    assert not hasattr(bushel.python, "PyGrainCheckpointKeep")
    assert bushel.python.PyGrainCheckpointSave is CheckpointSave

"""One process of a job that reads global batches with jax.distributed. `jax_jobs.py` starts it, several at a time.

Each process compares the rows on its own devices with the same pipeline on the host, and counts what it has read.
"""

import functools
import hashlib
import json
import os
import pathlib
import signal
import sys

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import bushel

BATCH = 24
RECORDS = 24 * 5 + 7


class Counted:
    """Records that say which of them were read."""

    def __init__(self, length=RECORDS):
        self.length = length
        self.read = []

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        self.read.append(index)
        return {"index": index, "x": np.full((4, 6), index, np.float32)}

    def fingerprint(self):
        return self.length


def add_noise(element, rng):
    return element | {"noise": rng.random(6, dtype=np.float32)}


def add_place(index, element):
    return element | {"place": index}


def records(source):
    return bushel.MapDataset.source(source).seed(3).shuffle()


def by_map(source=None, size=RECORDS):
    return records(source or Counted(size)).random_map(add_noise).map_with_index(add_place).batch(BATCH)


def by_stream(source=None, size=RECORDS):
    stream = records(source or Counted(size)).to_iter_dataset()
    return stream.random_map(add_noise, seed=5).map_with_index(add_place).batch(BATCH)


def mixed(source):
    parts = [records(source).repeat(), bushel.MapDataset.source(Counted(50)).map(lambda e: e | {"index": -e["index"]})]
    return bushel.MapDataset.mix(parts, [3, 1], exact=True).random_map(add_noise, seed=1).batch(BATCH)


def chosen(source):
    keep = np.arange(RECORDS) % 3 > 0
    return bushel.MapDataset.source(source).where(keep).shuffle(seed=1).batch(BATCH).shuffle(seed=2).repeat(2)


def packed(source):
    ds = bushel.MapDataset.source(source).map(lambda e: np.arange(e["index"] % 7 + 1))
    return ds.pack(np.arange(RECORDS) % 7 + 1, 8).shuffle(seed=1).batch(BATCH)


def bucketed(source):
    ds = bushel.MapDataset.source(source).map(lambda e: np.full(e["index"] % 7 + 1, e["index"]))
    return ds.bucket(np.arange(RECORDS) % 7 + 1, [3, 7], [BATCH, 2 * BATCH], seed=3)


def filtered(source):
    stream = records(source).to_iter_dataset().filter(lambda e: e["index"] % 3 > 0)
    return stream.random_map(add_noise, seed=5).batch(BATCH)


def after_batch(source):
    return records(source).batch(BATCH).map(lambda batch: batch | {"sum": np.cumsum(batch["index"])})


ROW_BY_ROW = [by_map, by_stream, mixed, chosen, packed, bucketed]
WHOLE = [filtered, after_batch]


def meshes():
    devices = np.array(jax.devices())
    yield Mesh(devices, ("data",)), [P("data"), P()]
    yield Mesh(devices[::-1], ("data",)), [P("data")]
    if len(devices) % 2 == 0:
        mesh = Mesh(devices.reshape(-1, 2), ("data", "model"))
        yield mesh, [P("data"), P("model"), P(("data", "model")), P(("model", "data"))]
        if jax.device_count() == 8:
            yield Mesh(devices.reshape(2, 4).T, ("model", "data")), [P("data"), P("model")]


def tree_of_shardings(mesh):
    names = mesh.axis_names
    return {
        "index": NamedSharding(mesh, P(names[0])),
        "x": NamedSharding(mesh, P(None, None, names[-1]) if mesh.shape[names[-1]] in (2, 3, 6) else P()),
        "noise": NamedSharding(mesh, P(names[-1])),
        "place": NamedSharding(mesh, P()),
    }


def layouts():
    for mesh, specs in meshes():
        yield from (NamedSharding(mesh, spec) for spec in specs)


def check(build, where, remainder):
    """Compares the global batches with those of the host, row by row, and returns how many records were read here."""
    source = Counted()
    with iter(build(source).to_device(where, remainder=remainder)) as it, iter(build(Counted())) as host:
        source.read.clear()
        for number, batch in enumerate(it):
            if number == 8:
                break
            expected = next(host)
            while remainder == "drop" and count_rows(expected) != count_rows(batch):
                expected = next(host)
            if remainder == "pad":
                batch, mask = batch
                total, real = count_rows(batch), count_rows(expected)
                expected = jax.tree.map(functools.partial(pad, total=total), expected)
                compare(mask, np.arange(total) < real)
            jax.tree.map(compare, batch, expected)
            assert it.get_state() == host.get_state(), (it.get_state(), host.get_state())
    return len(source.read)


def count_rows(batch):
    return jax.tree.leaves(batch)[0].shape[0]


def pad(leaf, total):
    return np.concatenate([leaf, np.repeat(leaf[:1], total - len(leaf), axis=0)])


def compare(array, expected):
    expected = np.asarray(expected)
    expected = expected.astype(jax.dtypes.canonicalize_dtype(expected.dtype))
    assert array.shape == expected.shape and array.dtype == expected.dtype, (array, expected)
    assert len(array.addressable_shards) == jax.local_device_count()
    for shard in array.addressable_shards:
        np.testing.assert_array_equal(np.asarray(shard.data), expected[shard.index])


def check_layouts():
    """All pipelines on all layouts, the last batch padded. Also: only the rows of this process are read."""
    read = {}
    for place, where in enumerate(layouts()):
        for build in (*ROW_BY_ROW, *WHOLE) if place == 0 else (by_map, by_stream):
            count = check(build, where, "pad")
            if place == 0:
                read[build.__name__] = count
    for mesh, _ in meshes():
        check(by_map, tree_of_shardings(mesh), "pad")
    check(by_map, next(layouts()), "drop")
    check_errors()
    return read


def check_errors():
    """What batches of several processes cannot do."""
    if jax.process_count() == 1:
        return
    where, ds = sharded(), by_map()
    with pytest.raises(ValueError, match=r'cannot skip elements that fail \(on_error="skip"\): the other processes'):
        iter(ds.to_device(where, remainder="pad").with_options(on_error="skip"))
    with pytest.raises(TypeError, match=r"\['word'\] is <U1\[\d+\], which JAX cannot hold"):
        next(iter(bushel.MapDataset.range(BATCH).map(lambda x: {"x": x, "word": "a"}).batch(BATCH).to_device(where)))
    others = [device for device in jax.devices() if device.process_index != jax.process_index()]
    elsewhere = NamedSharding(Mesh(np.array(others), ("data",)), P("data"))
    with pytest.raises(ValueError, match=rf"Process {jax.process_index()} has no device of NamedSharding"):
        ds.to_device(elsewhere, remainder="pad")


def digest(batch):
    """Of the whole global batch, which is collected from all processes."""
    everywhere = NamedSharding(sharded().mesh, P())
    leaves = jax.tree.leaves(jax.jit(lambda tree: tree, out_shardings=everywhere)(batch))
    whole = [np.asarray(leaf.addressable_data(0)) for leaf in leaves]
    return hashlib.sha256(b"".join(leaf.tobytes() for leaf in whole)).hexdigest()[:16]


def sharded():
    return NamedSharding(Mesh(np.array(jax.devices()), ("data",)), P("data"))


def trained_dataset():
    return by_map(Counted()).to_device(sharded(), remainder="pad")


def train(folder, steps, every, die_at):
    """Some steps from the last checkpoint on: the number of each step, and a digest of its global batch."""
    import orbax.checkpoint as ocp

    options = ocp.CheckpointManagerOptions(max_to_keep=3, enable_async_checkpointing=False)
    seen = {}
    with iter(trained_dataset()) as it, ocp.CheckpointManager(folder, options=options) as manager:
        step = manager.latest_step() or 0
        if step:
            restored = manager.restore(step, args=ocp.args.Composite(data=bushel.checkpoint.CheckpointRestore(it)))
            assert restored["data"] is it
        for batch in it:
            step += 1
            seen[step] = digest(batch)
            if step % every == 0:
                manager.save(step, args=ocp.args.Composite(data=bushel.checkpoint.CheckpointSave(it)))
            if step == die_at and jax.process_index() == jax.process_count() - 1:
                os.kill(os.getpid(), signal.SIGKILL)
            if len(seen) == steps:
                break
        return seen, it.get_state()


def main():
    job = json.loads(sys.argv[1])
    jax.config.update("jax_num_cpu_devices", job["devices"][job["process"]])
    if len(job["devices"]) > 1:
        jax.distributed.initialize(
            f"127.0.0.1:{job['port']}", num_processes=len(job["devices"]), process_id=job["process"]
        )
    found = {"process": jax.process_index(), "devices": jax.device_count()}
    if job.get("layouts"):
        found["read"] = check_layouts()
    if job.get("steps"):
        folder = pathlib.Path(job["folder"])
        found["seen"], found["state"] = train(folder, job["steps"], job["every"], job.get("die_at"))
    print(json.dumps(found), flush=True)
    if len(job["devices"]) > 1:
        jax.distributed.shutdown()  # waits for the others


if __name__ == "__main__":
    main()

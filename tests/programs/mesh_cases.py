"""Sharded sources on eight devices. Run by test_mesh.py in a process of its own, where there are eight."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from helpers.hlo import collectives, compiled
from helpers.jit_loaders import collected, host_of, real
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import bushel
from bushel._src.base import rng
from bushel._src.jit.compiled_loader import _next_batch, _scan_epoch
from bushel.jit import ArraySource, BatchTransform, DataLoader, MapTransform, RandomFlipTransform, ShardedSource
from bushel.testing import same

MESH = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))
SHARDED = NamedSharding(MESH, PartitionSpec("data"))


def data(length):
    return {"x": np.arange(length, dtype=np.int32), "image": np.zeros((length, 4, 4), np.uint8)}


def loader_of(length, size, remainder="pad", **arguments):
    batch = BatchTransform(size, remainder=remainder)
    stages = [batch, RandomFlipTransform(), MapTransform(lambda value, mask: {**value, "y": value["x"] * 2})]
    return DataLoader([ShardedSource(data(length), MESH, **arguments), *stages])


def epoch(loader, state):
    state, _, (batches, masks) = loader.scan_epoch(state, None, collected)
    return state, np.asarray(batches["x"]), np.asarray(masks)


def test_there_are_eight_devices():
    assert len(jax.devices()) == 8


@pytest.mark.parametrize(
    ("length", "remainder"), [(4 * 37, "wrap"), pytest.param(4 * 40_000, "pad", marks=pytest.mark.slow)]
)
def test_an_epoch_covers_every_record_once(length, remainder):
    loader = loader_of(length, 16 if length < 1000 else 16_000, remainder)
    state, orders = loader.init_state(3), []
    for _ in range(2):
        state, *out = epoch(loader, state)
        # In a batch the rows of a shard lie together; in the order of positions shards take turns.
        records, masks = (np.swapaxes(part.reshape(len(part), 4, -1), 1, 2) for part in out)
        orders.append(records[masks])
    seen = np.concatenate(orders)
    assert (np.sort(seen[:length]) == np.arange(length)).all()
    assert (np.sort(seen[length : 2 * length]) == np.arange(length)).all()
    assert (seen[:length] != seen[length : 2 * length]).any()


def test_every_device_gives_rows_of_its_own_shard_in_the_order_of_the_host():
    length, size = 4 * 37, 16
    loader = loader_of(length, size)
    _, records, masks = epoch(loader, loader.init_state(3))
    for shard in range(4):
        own = slice(shard * 4, (shard + 1) * 4)
        found = records[:, own][masks[:, own]]
        seed = (rng.derive([(3, 1)]) + shard * 0x9E3779B9) & 0xFFFFFFFF
        rows = bushel.MapDataset.range(shard * 37, (shard + 1) * 37).shuffle(seed=seed)
        assert found.tolist() == list(rows)


def test_batches_are_spread_as_the_data_are():
    loader = loader_of(4 * 37, 16)
    batch, _, _ = loader.next_batch(loader.init_state(0))
    for leaf in jax.tree.leaves(batch):
        assert leaf.sharding.is_equivalent_to(SHARDED, leaf.ndim)


def test_nothing_goes_between_devices():
    loader = loader_of(4 * 40_000, 16)
    state = loader.init_state(0)
    assert collectives(compiled(_next_batch, loader, state)) == []
    assert collectives(compiled(_scan_epoch, loader, state, 0, lambda carry, batch, mask: (carry, None), 1)) == []


def test_an_exchange_has_the_order_of_the_host_and_is_found_by_the_check():
    loader = loader_of(4 * 37, 16, exchange=True)
    host = host_of(4 * 37, 16, "pad", seed=3, data=data(4 * 37))
    state = loader.init_state(3)
    assert collectives(compiled(_next_batch, loader, state)) != []
    for step in range(12):
        batch, state, mask = loader.next_batch(state)
        assert batch["x"].sharding.is_equivalent_to(SHARDED, 1)
        assert same(real(batch["x"], mask), host[step]["x"])


def test_data_that_are_spread_already_stay_where_they_are():
    spread = jax.device_put(data(4 * 37), SHARDED)
    source = ShardedSource(spread, MESH)
    pointers = [leaf.unsafe_buffer_pointer() for leaf in (s.data for s in spread["x"].addressable_shards)]
    stored = source.columns["x"].stored
    assert [shard.data.unsafe_buffer_pointer() for shard in stored.addressable_shards] == pointers


@pytest.mark.slow
def test_plain_sources_take_sharded_arrays_too():
    loader = DataLoader([ArraySource(jax.device_put(data(4 * 37), SHARDED)), BatchTransform(16)])
    host = host_of(4 * 37, 16, "pad", seed=3, data=data(4 * 37))
    batch, _, mask = loader.next_batch(loader.init_state(3))
    assert same(real(batch["x"], mask), host[0]["x"])


def test_data_that_are_bound_to_no_device_go_to_the_default_one_once():
    first, second = jax.devices()[:2]
    with jax.default_device(first):
        rows = jax.numpy.arange(64)
    with jax.default_device(second):
        assert ArraySource(rows).columns.stored.devices() == {second}
        assert ArraySource(jax.device_put(rows, first)).columns.stored.devices() == {first}


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            lambda: ShardedSource(data(10), MESH),
            "10 rows cannot be distributed evenly over 4 devices. Leave out the last 2,",
        ),
        (lambda: ShardedSource(data(8), MESH, "rows"), "The mesh has the axes ['data', 'model'], not 'rows'."),
        (lambda: loader_of(8, 6), "batch_size must be a multiple of the 4 shards of the data, got 6."),
        (lambda: ShardedSource({"x": np.float32(1)}, MESH), "one row per record"),
        (
            lambda: DataLoader([ShardedSource(data(8), MESH), BatchTransform(4), BatchTransform(2)]),
            "cannot be batched again",
        ),
        (  # a stage between the two batches once hid the first from the check
            lambda: DataLoader(
                [ShardedSource(data(8), MESH), BatchTransform(4), MapTransform(lambda v, m: v), BatchTransform(4)]
            ),
            "cannot be batched again",
        ),
    ],
)
def test_what_cannot_be_spread_is_told(make, sentence):
    with pytest.raises(ValueError) as raised:
        make()
    assert sentence in str(raised.value)

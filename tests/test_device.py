"""Elements put on a device ahead: the same values, the same states."""

import subprocess
import sys

import grain
import jax
import numpy as np
import pytest
from comparing import check_equal
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import bushel
from bushel.experimental import device_put


def test_elements_and_states_are_grains():
    device = jax.devices()[0]

    def build(lib):
        ds = lib.MapDataset.range(12).seed(1).shuffle().batch(3).to_iter_dataset()
        return lib.experimental.device_put(ds, device).map(np.asarray)

    check_equal(build)
    assert grain.experimental.device_put is not device_put


def test_elements_are_where_they_should_be():
    sharding = NamedSharding(Mesh(np.array(jax.devices()[:1]), ("data",)), PartitionSpec("data"))
    ds = bushel.MapDataset.range(4).map(lambda x: {"x": x, "y": [x, 0.5]}).batch(2).to_iter_dataset()
    with iter(device_put(ds, sharding, cpu_buffer_size=1, device_buffer_size=1)) as it:
        for batch in it:
            assert all(leaf.sharding == sharding for leaf in jax.tree.leaves(batch))
            assert len(jax.tree.leaves(batch)) == 3


def test_without_jax_the_error_names_the_extra():
    script = """
import sys
sys.modules["jax"] = None
import bushel
try:
    bushel.experimental.device_put(bushel.MapDataset.range(3).to_iter_dataset(), None)
except ImportError as error:
    print(error)
print(bushel.ShardByJaxProcess())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    first, second = done.stdout.splitlines()
    assert first == "device_put needs JAX: pip install 'bushel[jax]'."
    assert second == "ShardByJaxProcess(shard_index=0, shard_count=1, drop_remainder=False)"


def test_a_bad_buffer_is_told():
    with pytest.raises(ValueError, match=r"prefetch_buffer_size .* got -1"):
        device_put(bushel.MapDataset.range(3).to_iter_dataset(), None, cpu_buffer_size=-1)

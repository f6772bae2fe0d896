"""Elements put on a device ahead: the same values, the same states."""

import subprocess
import sys

import grain
import jax
import numpy as np
import pytest
from helpers.beside_grain import check_equal
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import bushel
from bushel._src.base.late_imports import install_command
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
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=250, check=True)
    first, second = done.stdout.splitlines()
    assert first == f"device_put needs JAX: {install_command('jax')}"
    assert second == "ShardByJaxProcess(shard_index=0, shard_count=1, drop_remainder=False)"


def test_a_bad_buffer_is_told():
    with pytest.raises(ValueError, match=r"prefetch_buffer_size .* got -1"):
        device_put(bushel.MapDataset.range(3).to_iter_dataset(), None, cpu_buffer_size=-1)


# ---------------------------------------------------------------------------------------------------------------------
# What JAX cannot hold


def with_texts(number):
    return {
        "x": np.full(2, number, np.float32),
        "words": np.array(["a", "bc"][number % 2]),
        "bytes": b"lift",
        "objects": np.array([b"x", None], object),
        "when": np.datetime64("2024-01-01") + np.timedelta64(number, "D"),
        "nothing": None,
        "pair": (number, "text"),
    }


def test_texts_stay_on_the_host_beside_the_arrays():
    device = jax.devices()[0]
    ds = bushel.MapDataset.range(5).map(with_texts).to_iter_dataset()
    found = list(device_put(ds, device))
    assert len(found) == 5
    for number, element in enumerate(found):
        assert element["x"].devices() == {device} and element["pair"][0].devices() == {device}
        assert element["x"].tolist() == [number, number] and int(element["pair"][0]) == number
        expected = with_texts(number)
        for name in ("words", "bytes", "when", "nothing"):
            assert type(element[name]) is type(expected[name]) and element[name] == expected[name]
        assert element["objects"].tolist() == [b"x", None] and element["pair"][1] == "text"


def test_a_tree_of_shardings_works_beside_texts():
    mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
    rows, copies = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())
    ds = bushel.MapDataset.range(2).map(lambda n: {"x": np.ones(4), "y": np.ones(2), "text": "a"}).to_iter_dataset()
    for element in device_put(ds, {"x": rows, "y": copies, "text": copies}):
        assert (element["x"].sharding, element["y"].sharding, element["text"]) == (rows, copies, "a")


# ---------------------------------------------------------------------------------------------------------------------
# Loaders


def loader_of_texts():
    sampler = bushel.samplers.IndexSampler(12, bushel.sharding.NoSharding(), shuffle=True, num_epochs=1, seed=3)
    source = [{"x": np.int32(number), "text": str(number)} for number in range(12)]
    return bushel.DataLoader(data_source=source, sampler=sampler)


@pytest.mark.parametrize("sizes", [(4, 2), (0, 0), (1, 0), (0, 3)])
def test_a_loader_on_a_device_has_its_elements_and_its_states(sizes):
    device, loader = jax.devices()[0], loader_of_texts()
    moved = device_put(loader, device, cpu_buffer_size=sizes[0], device_buffer_size=sizes[1])
    with iter(loader) as plain, iter(moved) as ours:
        for _ in range(5):
            element, expected = next(ours), next(plain)
            assert element["x"].devices() == {device}
            assert (int(element["x"]), element["text"]) == (int(expected["x"]), expected["text"])
            assert ours.get_state() == plain.get_state()  # of what was delivered
        state = ours.get_state()
        rest = [element["text"] for element in ours]
    with iter(moved) as again, iter(loader) as plain:
        again.set_state(state)
        assert [element["text"] for element in again] == rest and len(rest) == 7
        plain.set_state(state)
        assert [element["text"] for element in plain] == rest
    with pytest.raises(ValueError, match="closed"):
        next(again)
    assert repr(moved) == f"device_put({loader!r}, {device!r})"


def test_what_is_no_loader_is_told():
    for given, sentence in (
        (bushel.MapDataset.range(3), r"got a MapDataset\. Call to_iter_dataset\(\) first"),
        (3, "or a loader that can be iterated over; got 3"),
        (iter([1, 2]), "or a loader that can be iterated over"),
    ):
        with pytest.raises(TypeError, match=sentence):
            device_put(given, None)
    with pytest.raises(TypeError, match=r"needs iterators with get_state and set_state.*list gives a list_iterator"):
        iter(device_put([1, 2], None))
    with pytest.raises(ValueError, match=r"prefetch_buffer_size .* got -1"):
        device_put(loader_of_texts(), None, device_buffer_size=-1)

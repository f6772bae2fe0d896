"""Batches on eight devices of one process. test_global_arrays.py runs these cases in a process that has eight."""

from __future__ import annotations

import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P
from programs import global_job

import bushel
from bushel._src.datasets import global_arrays
from bushel._src.datasets.iter_dataset import IterPipeline
from bushel._src.graph import local_rows
from bushel._src.graph.local_rows import RowChoice
from bushel._src.index import epochs
from bushel._src.index.epochs import DeviceRows
from bushel.experimental import DatasetOptions

DEVICES = np.array(jax.devices())
ROWS = NamedSharding(Mesh(DEVICES, ("data",)), P("data"))
GRID = Mesh(DEVICES.reshape(4, 2), ("data", "model"))


def test_there_are_eight_devices():
    assert len(DEVICES) == 8


# Which rows a process needs.


@st.composite
def meshes(draw):
    shape = draw(st.sampled_from([(8,), (4, 2), (2, 4), (2, 2, 2), (3,), (6,), (2, 3), (1, 5), (1,)]))
    order = draw(st.permutations(range(8)))[: np.prod(shape)]
    return Mesh(DEVICES[order].reshape(shape), tuple("abc"[: len(shape)]))


@st.composite
def shardings(draw, mesh):
    names = draw(st.lists(st.sampled_from(mesh.axis_names), unique=True))
    first = draw(st.sampled_from([tuple(names), *names[:1], None]))
    return NamedSharding(mesh, draw(st.sampled_from([P(first), P(first, None)])) if first else P())


@st.composite
def layouts(draw):
    """Some shardings, each over a mesh of its own, which process has which device, and how many rows a batch has."""
    chosen = [draw(shardings(draw(meshes()))) for _ in range(draw(st.integers(1, 3)))]
    process_of = dict(zip(DEVICES, draw(st.lists(st.integers(0, 3), min_size=8, max_size=8)), strict=True))
    counts = [global_arrays.device_rows_of(sharding, sharding.device_set).count for sharding in chosen]
    return chosen, process_of, epochs.divisor([DeviceRows(n, ()) for n in counts]) * draw(st.integers(1, 3))


@given(layouts())
def test_the_rows_of_a_process_are_those_of_its_devices_and_no_others(layout):
    chosen, process_of, size = layout
    batch = np.arange(size)
    for process in range(4):
        mine = {device for device in DEVICES if process_of[device] == process}
        shares, needed, pieces = [], set(), []
        for sharding in chosen:
            if not mine & sharding.device_set:
                continue
            shares.append(global_arrays.device_rows_of(sharding, mine))
            only_rows = NamedSharding(sharding.mesh, P(*sharding.spec[:1]))
            for device, (index,) in only_rows.devices_indices_map((size,)).items():
                if device in mine:
                    needed.update(batch[index].tolist())
                    pieces.append(index.indices(size)[:2])
        rows = epochs.union_of_rows(shares, size)
        assert rows.tolist() == sorted(needed)
        for low, high in pieces:
            assert batch[rows][epochs.slice_of(rows, low, high)].tolist() == batch[low:high].tolist()


@given(layouts())
def test_processes_together_read_all_rows(layout):
    chosen, process_of, size = layout
    for sharding in chosen:
        groups = [{d for d in sharding.device_set if process_of[d] == process} for process in range(4)]
        rows = [global_arrays.device_rows_of(sharding, group).rows(size) for group in groups if group]
        assert sorted(set(np.concatenate(rows).tolist())) == list(range(size))


@given(count=st.integers(1, 6), full=st.integers(1, 30), data=st.data())
def test_padded_rows_read_the_first_row_again(count, full, data):
    size = data.draw(st.integers(1, full))
    shares = tuple(DeviceRows(count, (part,)) for part in range(count))
    together = np.concatenate([RowChoice((share,), "pad").rows(size, full) for share in shares])
    total = RowChoice(shares, "pad").global_size(size, full)
    assert total % count == 0 and full <= total < full + count
    assert together.tolist() == [*range(size), *[0] * (total - size)]


# All layouts and all pipelines: the batches of the host.

PIPELINES = [*global_job.ROW_BY_ROW, *global_job.WHOLE]
LAYOUTS = {
    "rows": ROWS,
    "rows in another order": NamedSharding(Mesh(DEVICES[::-1], ("data",)), P("data")),
    "replicated": NamedSharding(GRID, P()),
    "rows of a grid": NamedSharding(GRID, P("data")),
    "the other axis of a grid": NamedSharding(GRID, P("model")),
    "both axes": NamedSharding(GRID, P(("data", "model"))),
    "both axes, turned": NamedSharding(GRID, P(("model", "data"))),
    "in cubes": NamedSharding(Mesh(DEVICES.reshape(2, 2, 2), tuple("abc")), P(("c", "a"))),
}


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("remainder", ["pad", "drop"])
def test_layouts(name, remainder):
    global_job.check(global_job.by_map, LAYOUTS[name], remainder)


@pytest.mark.parametrize("build", PIPELINES)
@pytest.mark.parametrize("remainder", ["pad", "drop"])
def test_pipelines(build, remainder):
    global_job.check(build, LAYOUTS["rows of a grid"], remainder)


@pytest.mark.parametrize("build", [global_job.by_map, global_job.by_stream])
@pytest.mark.parametrize("where", [global_job.tree_of_shardings(GRID), *LAYOUTS.values()])
def test_batches_without_a_remainder(build, where):
    whole = functools.partial(build, size=24 * 5)
    global_job.check(lambda _: whole(), where, None)


def test_a_tensor_that_is_cut_along_other_axes_than_rows():
    where = global_job.tree_of_shardings(GRID)
    assert where["x"].spec == P(None, None, "model")
    global_job.check(global_job.by_map, where, "pad")


def test_one_device_with_a_padded_last_batch():
    for where in (None, jax.devices()[3], SingleDeviceSharding(jax.devices()[3])):
        batches = list(bushel.MapDataset.range(5).batch(3).to_device(where, remainder="pad"))
        assert [(batch.tolist(), mask.tolist()) for batch, mask in batches] == [
            ([0, 1, 2], [True] * 3),
            ([3, 4, 3], [True, True, False]),
        ]
        assert batches[0][0].devices() == {jax.devices()[3 if where else 0]}


def test_batches_that_the_devices_cannot_share_are_padded():
    (batch, mask), _ = bushel.MapDataset.range(10).batch(5).to_device(ROWS, remainder="pad")
    assert batch.tolist() == [0, 1, 2, 3, 4, 0, 0, 0]
    assert mask.sharding == ROWS and mask.tolist() == [True] * 5 + [False] * 3


def test_workers_read_the_rows():
    build = global_job.by_map

    def with_workers(source):
        return build(source).to_iter_dataset().mp_prefetch(bushel.MultiprocessingOptions(num_workers=2))

    expected = [jax.tree.map(np.asarray, pair) for pair in build(global_job.Counted()).to_device(ROWS, remainder="pad")]
    found = list(with_workers(global_job.Counted()).to_device(ROWS, remainder="pad"))
    assert len(found) == 6
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_a_pipeline_prints_as_it_was_written():
    ds = global_job.by_map(global_job.Counted()).to_iter_dataset()
    assert repr(ds.to_device(ROWS, remainder="pad")).startswith(f"{ds!r}\n    .to_device(NamedSharding(")
    assert repr(global_job.filtered(global_job.Counted()).to_device(ROWS, remainder="drop")).count("filter(") == 1


def test_stages_are_timed():
    ds = global_job.by_map(global_job.Counted()).to_device(ROWS, remainder="pad")
    with iter(ds.with_options(execution_tracking_mode="stage_timing")) as it:
        assert len(list(it)) == 6
        report = it.report()
    (transfer,) = report.transfers
    assert transfer.elements == 6
    assert sum(stage.elements for stage in report.stages if stage.call == "source(Counted)") == 6 * 24


# States.


@pytest.mark.parametrize("build", [global_job.by_map, global_job.by_stream, global_job.chosen, global_job.filtered])
@pytest.mark.parametrize("remainder", ["pad", "drop"])
def test_a_state_fits_any_layout_and_the_pipeline_of_the_host(build, remainder):
    def read(it):
        return [jax.tree.map(np.asarray, element) for element in itertools.islice(it, 12)]

    def opened(where):
        return iter(build(global_job.Counted()).to_device(where, remainder=remainder))

    first, second = LAYOUTS["rows"], LAYOUTS["both axes, turned"]
    it, states = opened(first), []
    for _ in it:
        states.append(it.get_state())
    plain = iter(build(global_job.Counted()))
    on_host = [plain.get_state() for _ in plain]
    assert states == on_host if remainder == "pad" else [state for state in on_host if state in states] == states
    for state in states[:: max(1, len(states) // 3)]:
        one, other = opened(first), opened(second)
        one.set_state(state)
        other.set_state(state)
        assert one.get_state() == other.get_state() == state
        rest = read(one)
        jax.tree.map(np.testing.assert_array_equal, rest, read(other))
        plain = iter(build(global_job.Counted()))
        plain.set_state(state)
        batches = [batch for batch in plain if remainder == "pad" or len(batch["index"]) == 24]
        assert len(rest) == len(batches)
        for (batch, mask), expected in zip(rest if remainder == "pad" else zip(rest, [...] * 99), batches):
            jax.tree.map(lambda leaf, row: np.testing.assert_array_equal(leaf[mask], row), batch, expected)  # noqa: B023


def test_a_state_in_the_middle_of_a_batch_is_refused():
    def build(size):
        return bushel.MapDataset.range(64).to_iter_dataset().random_map(lambda x, rng: x, seed=1).batch(size)

    it = iter(build(8))
    next(it)
    other = iter(build(16).to_device(ROWS, remainder="pad"))
    with pytest.raises(bushel.StateMismatch, match=r"after 8 elements, in the middle of a batch of 16"):
        other.set_state(it.get_state(), check=False)


def test_one_process_restores_what_several_have_saved(tmp_path):
    handler = bushel.checkpoint.CheckpointHandler()
    ds = global_job.by_map(global_job.Counted()).to_device(ROWS, remainder="pad")
    it = iter(ds)
    next(it)
    handler.save(tmp_path, it)
    (saved,) = tmp_path.iterdir()
    for process in range(4):
        (tmp_path / f"process_{process}-of-4.json").write_text(saved.read_text())
    saved.unlink()
    assert handler.restore(tmp_path, iter(ds)).get_state()["next_index"] == 1
    (tmp_path / "process_3-of-4.json").write_text(saved.name)
    with pytest.raises(ValueError, match=r"process_3-of-4.json differ, so each process .* a position of its own"):
        handler.restore(tmp_path, iter(ds))


# What is refused, and what is told.


def test_a_last_batch_that_cannot_be_cut_is_an_error_from_the_start():
    ds = bushel.MapDataset.range(21).batch(8)
    told = r"The last batch of batch\(8\) has 5 rows, which cannot be cut into 8 equal parts.*remainder=\"drop\""
    with pytest.raises(ValueError, match=told):
        global_arrays.rows_for(ds.repeat().to_iter_dataset()._node, ROWS)
    global_arrays.rows_for(ds[:2].to_iter_dataset()._node, ROWS)  # it may be cut away
    global_arrays.rows_for(ds.to_iter_dataset()._node, ROWS, "drop")
    stream = ds[1:].to_iter_dataset()._node
    rows = global_arrays.rows_for(stream, ROWS)
    with pytest.raises(ValueError, match="A batch has 5 rows, which cannot be cut into 8 equal parts"):
        list(map(rows.assemble, IterPipeline(rows.restrict(stream))))


@pytest.mark.parametrize("remainder", [None, "drop", "pad"])
def test_a_batch_function_decides_how_many_rows_there_are(remainder):
    padded = functools.partial(bushel.experimental.batch_and_pad, batch_size=16)
    for ds in (bushel.MapDataset.range(21), bushel.MapDataset.range(21).to_iter_dataset()):
        batches = [*ds.batch(12, batch_fn=padded).to_device(ROWS, remainder=remainder)]
        rows = [batch[0] if remainder == "pad" else batch for batch in batches]
        assert [row.tolist() for row in rows] == [[*range(12), 0, 0, 0, 0], [*range(12, 21), *[0] * 7]]


def test_a_batch_size_that_cannot_be_cut():
    for remainder in (None, "drop"):
        with pytest.raises(ValueError, match=r"batch\(12\) cannot be cut into 8 equal parts"):
            global_arrays.rows_for(bushel.MapDataset.range(24).batch(12).to_iter_dataset()._node, ROWS, remainder)


def test_a_bad_remainder():
    with pytest.raises(ValueError, match=r'remainder must be "drop" or "pad", got .wrap.'):
        bushel.MapDataset.range(24).batch(8).to_device(ROWS, remainder="wrap")


def test_texts_are_refused_by_name():
    ds = bushel.MapDataset.range(8).map(lambda x: {"x": x, "words": [str(x)]}).batch(8)
    with pytest.raises(TypeError, match=r"\['words'\]\[0\] is <U1\[8\], which JAX cannot hold"):
        next(iter(ds.to_device(ROWS, remainder="drop")))


def test_an_array_that_does_not_fit_its_sharding():
    ds = bushel.MapDataset.range(8).map(lambda x: np.zeros(3)).batch(8)
    with pytest.raises(ValueError, match=r"An array of shape \(8, 3\) does not fit"):
        next(iter(ds.to_device(NamedSharding(GRID, P("data", "model")), remainder="drop")))


def test_batches_with_different_rows_have_no_remainder():
    ds = bushel.MapDataset.range(16).batch(8).map(lambda x: {"x": x, "y": x[:4]})
    with pytest.raises(ValueError, match="arrays all have the same number of rows"):
        next(iter(ds.to_device(ROWS, remainder="pad")))


@pytest.mark.parametrize(
    ("build", "told"),
    [
        (lambda ds: ds.batch(4).map(np.sum), r"map\(sum\)"),
        (lambda ds: ds.batch(4, batch_fn=np.stack).shuffle(seed=1), r"batch\(4, batch_fn=stack\)"),
        (lambda ds: ds.to_iter_dataset().filter(bool).batch(4), r"filter\(bool\)"),
        (lambda ds: ds.to_iter_dataset().batch(4).map(np.sum), r"map\(sum\)"),
        (lambda ds: ds.filter(bool).to_iter_dataset().batch(4), r"to_iter_dataset\(\)"),
        (lambda ds: bushel.MapDataset.concatenate([ds.batch(4), ds.batch(4).map(np.sum)]), r"map\(sum\)"),
        (lambda ds: ds, r"range\(16\)"),
    ],
)
def test_why_a_batch_is_computed_whole(build, told):
    ds = build(bushel.MapDataset.range(16))
    node = ds._node if isinstance(ds, bushel.IterDataset) else ds.to_iter_dataset()._node
    assert local_rows.restrict_rows(node, RowChoice((DeviceRows(2, (0,)),), None)) is None
    assert re.fullmatch(told, local_rows.find_obstacle(node).call())


# Keys, and pmap.


def noise(keys, batch):
    return jax.vmap(jax.random.normal)(keys(batch["place"]))


@pytest.mark.parametrize("name", ["rows", "both axes, turned"])
def test_keys_are_the_same_on_any_layout(name):
    keys = bushel.device.keys(seed=5)
    step = jax.jit(functools.partial(noise, keys))
    by_number = jax.jit(lambda number: jax.vmap(jax.random.normal)(keys.for_batch(number, 24)))
    found = np.empty(0)
    for number, (batch, mask) in enumerate(
        global_job.by_map(global_job.Counted()).to_device(LAYOUTS[name], remainder="pad")
    ):
        mask = np.asarray(mask)
        found = np.asarray(step(batch))[mask]
        assert found.tolist() == np.asarray(by_number(jnp.uint32(number)))[: len(found)].tolist()
    assert found[0] == jax.random.normal(keys(5 * 24))


@functools.cache
def compiled_keys(size):
    keys = bushel.device.keys(1)
    by_number = jax.jit(lambda number: jax.random.key_data(keys.for_batch(number, size)))
    by_words = jax.jit(lambda low, high: jax.random.key_data(keys._fold(low, high)))
    return by_number, by_words


@given(number=st.integers(0, 2**32 - 1), size=st.sampled_from([1, 24, 1000]))
def test_the_keys_of_a_batch_are_those_of_its_indices(number, size):
    by_number, by_words = compiled_keys(size)
    indices = np.arange(number * size, (number + 1) * size)
    expected = by_words(np.uint32(indices & 0xFFFFFFFF), np.uint32(indices >> 32))
    assert (by_number(jnp.uint32(number)) == expected).all()


def test_keys_are_folded_in_as_documented():
    keys = bushel.device.keys(7)
    for index in (5, 2**31 + 3, 2**40 + 1):
        expected = jax.random.fold_in(jax.random.fold_in(jax.random.key(7), index % 2**32), index // 2**32)
        assert (jax.random.key_data(keys(index)) == jax.random.key_data(expected)).all()
    assert keys(jnp.arange(6).reshape(2, 3)).shape == (2, 3)
    different = set(map(tuple, np.asarray(jax.random.key_data(keys(np.arange(1000)))).tolist()))
    assert len(different) == 1000
    with pytest.raises(TypeError, match="The index of an element is an integer"):
        keys(jnp.ones(3))


def test_batches_for_pmap():
    ds = global_job.by_map(global_job.Counted())
    plain = iter(ds)
    it = iter(bushel.device.for_pmap(ds, remainder="pad"))
    double = jax.pmap(functools.partial(jax.tree.map, lambda leaf: leaf * 2))
    for batch, mask in it:
        expected = next(plain)
        doubled = double(batch)
        assert doubled["x"].shape == (8, 3, 4, 6)
        found = {name: np.asarray(leaf).reshape(24, *leaf.shape[2:]) for name, leaf in doubled.items()}
        real = len(expected["place"])
        assert mask.shape == (8, 3) and int(mask.sum()) == real
        assert (found["x"][:real] == expected["x"] * 2).all()
        assert (found["noise"][:real] == expected["noise"] * 2).all()
        assert it.get_state() == plain.get_state()


def test_some_devices_for_pmap():
    ds = bushel.MapDataset.range(12).batch(6)
    for batch in bushel.device.for_pmap(ds, jax.devices()[2:5]):
        assert batch.shape == (3, 2)
        assert [shard.device for shard in batch.addressable_shards] == jax.devices()[2:5]
    with pytest.raises(TypeError, match="for_pmap takes a MapDataset or an IterDataset, got"):
        bushel.device.for_pmap([1, 2])


def test_options_of_the_pipeline_still_skip_on_one_process():
    ds = bushel.MapDataset.range(32).map(lambda x: 8 // (x - 9) * 0 + x).to_iter_dataset().batch(8)
    skipping = ds.to_device(ROWS).pipe(
        bushel._src.datasets.iter_dataset.WithOptionsIterDataset, DatasetOptions(on_error="skip")
    )
    assert [batch.shape for batch in itertools.islice(skipping, 3)] == [(8,)] * 3

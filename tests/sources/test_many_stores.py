"""HDF5 files, Zarr stores and Lance data sets: several as one index space, and groups of them as records."""

import os
import pickle
import shutil

import fsspec
import h5py
import lance
import numpy as np
import pyarrow as pa
import pytest
import zarr
from helpers.record_formats import read_by_eight_threads
from helpers.servers import Web
from hypothesis import given, settings
from hypothesis import strategies as st

import bushel
from bushel import DamagedFile, MapDataset
from bushel._src.base import blocks
from bushel._src.sources import array_stores
from bushel.sources import ArrayDataSource, HDF5DataSource, LanceDataSource, ZarrDataSource
from bushel.sources import open as open_path
from bushel.testing import check_resumes_anywhere, same

LENGTHS = (5, 0, 7, 1, 4)
TOTAL = sum(LENGTHS)
CONTENT = {"x": np.arange(TOTAL * 3, dtype=np.float32).reshape(TOTAL, 3), "y": np.arange(TOTAL)}
EXPECTED = ArrayDataSource(CONTENT)
WORKERS = bushel.MultiprocessingOptions(num_workers=2)


def write_hdf5(path, arrays):
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file[name] = array


def write_zarr(path, arrays):
    group = zarr.open_group(path, mode="w")
    for name, array in arrays.items():
        group.create_array(name, shape=array.shape, dtype=array.dtype, chunks=tuple(max(1, n) for n in array.shape))[
            ...
        ] = array


def write_lance(path, arrays):
    x = pa.FixedSizeListArray.from_arrays(pa.array(arrays["x"].reshape(-1)), 3)
    lance.write_dataset(pa.table({"x": x, "y": arrays["y"]}), str(path))


KINDS = {
    "h5": (write_hdf5, HDF5DataSource),
    "zarr": (write_zarr, ZarrDataSource),
    "lance": (write_lance, LanceDataSource),
}


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def folder(kind, tmp_path_factory):
    folder, start = tmp_path_factory.mktemp(kind), 0
    for number, length in enumerate(LENGTHS):
        part = {name: array[start : start + length] for name, array in CONTENT.items()}
        KINDS[kind][0](folder / f"part-{number}.{kind}", part)
        start += length
    return folder


@pytest.fixture(scope="module")
def source(kind, folder):
    return KINDS[kind][1](str(folder / f"part-*.{kind}"))


def rows(block):
    return blocks.rows_of(block)


@settings(max_examples=30, deadline=None)
@given(indices=st.lists(st.integers(-TOTAL, TOTAL - 1), max_size=20))
def test_many_stores_are_one_index_space(source, indices):
    assert len(source) == TOTAL
    expected = [EXPECTED[index] for index in indices]
    assert same(rows(source.__getitems__(indices)), expected)
    assert same([source[index] for index in indices[:3]], expected[:3])


def test_positions_outside_are_refused(source):
    for read in (lambda: source[TOTAL], lambda: source[-TOTAL - 1], lambda: source.__getitems__([0, TOTAL])):
        with pytest.raises(IndexError):
            read()


def test_pipelines_workers_and_pickles_of_many_stores(source):
    ds = MapDataset.source(source).shuffle(seed=1).batch(4)
    expected = list(MapDataset.source(EXPECTED).shuffle(seed=1).batch(4))
    assert same(list(ds), expected)
    check_resumes_anywhere(ds.to_iter_dataset())
    with iter(ds.to_iter_dataset().mp_prefetch(WORKERS)) as workers:
        assert same(list(workers), expected)
    assert same(pickle.loads(pickle.dumps(source))[TOTAL - 1], EXPECTED[TOTAL - 1])
    read_by_eight_threads(source, EXPECTED)


def test_lists_patterns_and_folders_name_the_same(kind, folder, source):
    build = KINDS[kind][1]
    names = [folder / f"part-{number}.{kind}" for number in range(len(LENGTHS))]
    for paths in (names, iter(map(str, names)), [str(folder / f"part-[0-2].{kind}"), *names[3:]]):
        found = build(paths)
        assert found.paths == source.paths == [str(name) for name in names]
        assert found.fingerprint() == source.fingerprint()
        assert same(rows(found.__getitems__(range(TOTAL))), rows(source.__getitems__(range(TOTAL))))
    backwards = build(names[::-1])
    assert same(backwards[0], EXPECTED[TOTAL - 4])
    assert backwards.fingerprint() != source.fingerprint()
    assert repr(source) == f"{build.__name__}(part-0.{kind} and 4 more: {TOTAL} records)"
    assert len(open_path(folder / f"part-*.{kind}")) == TOTAL
    if kind == "h5":
        assert build(folder).paths == source.paths
    with pytest.raises(FileNotFoundError, match="matches"):
        build(str(folder / f"none-*.{kind}"))
    with pytest.raises(FileNotFoundError):
        build([names[0], folder / f"none.{kind}"])
    with pytest.raises(ValueError, match="No paths were given"):
        build([])
    with pytest.raises(TypeError):
        build(7)


def test_a_folder_without_files_of_hdf5_is_told(tmp_path):
    (tmp_path / "notes.txt").write_text("nothing")
    with pytest.raises(FileNotFoundError, match=r"has no file that ends in \.h5 or \.hdf5"):
        HDF5DataSource(tmp_path)


def test_a_checkpoint_knows_every_store(kind, folder, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy, copy_function=shutil.copy2)
    write, build = KINDS[kind]
    pattern = str(copy / f"part-*.{kind}")
    state = iter(MapDataset.source(build(pattern)).to_iter_dataset()).get_state()
    iter(MapDataset.source(build(pattern)).to_iter_dataset()).set_state(state)
    changed = copy / f"part-2.{kind}"
    os.unlink(changed) if changed.is_file() else shutil.rmtree(changed)
    write(changed, {name: array[:7] + 1 for name, array in CONTENT.items()})
    with pytest.raises(bushel.StateMismatch):
        iter(MapDataset.source(build(pattern)).to_iter_dataset()).set_state(state)


def test_one_of_many_files_that_was_replaced_is_refused(tmp_path):
    for number in range(3):
        write_hdf5(tmp_path / f"{number}.h5", CONTENT)
    sent = pickle.dumps(HDF5DataSource(tmp_path))
    write_hdf5(tmp_path / "1.h5", {"x": CONTENT["x"], "y": CONTENT["y"], "z": CONTENT["y"]})
    source = pickle.loads(sent)
    assert same(source[0], EXPECTED[0]) and same(source[2 * TOTAL], EXPECTED[0])
    with pytest.raises(DamagedFile, match=r"1\.h5 has changed: it was .* when the source was made"):
        source[TOTAL]


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"x": CONTENT["x"]}, "'y' is missing in the former and int64"),
        ({**CONTENT, "z": CONTENT["y"]}, r"'z' is int64.* in the former and missing"),
        ({**CONTENT, "x": CONTENT["x"].astype(np.float64)}, r"'x' is float64\[3\] in the former and float32\[3\]"),
        ({**CONTENT, "x": CONTENT["x"][:, :2]}, r"'x' is float32\[2\] in the former and float32\[3\]"),
    ],
    ids=["fewer", "more", "dtype", "shape"],
)
@pytest.mark.parametrize("name", ["h5", "zarr"])
def test_stores_of_different_arrays_are_refused(name, arrays, said, tmp_path):
    write, build = KINDS[name]
    write(tmp_path / f"a.{name}", CONTENT)
    write(tmp_path / f"b.{name}", arrays)
    with pytest.raises(ValueError, match=rf"b\.{name} and .*a\.{name} cannot be read as one source: {said}"):
        build(str(tmp_path / f"*.{name}"))
    assert len(build(str(tmp_path / f"*.{name}"), columns=["x"] if "y" not in arrays else ["y"])) == 2 * TOTAL


def test_lance_data_sets_of_different_columns_are_refused(tmp_path):
    for name, table in {"a": {"n": [1], "s": ["x"]}, "b": {"n": [1.5], "s": ["y"]}}.items():
        lance.write_dataset(pa.table(table), str(tmp_path / f"{name}.lance"))
    with pytest.raises(ValueError, match=r"'n' is double in the former and int64 in the latter"):
        LanceDataSource(str(tmp_path / "*.lance"))
    source = LanceDataSource(str(tmp_path / "*.lance"), columns=["s"])
    assert source.__getitems__([1, 0]) == [{"s": "y"}, {"s": "x"}]
    with pytest.raises(ValueError, match="A version belongs to one Lance data set, but these paths name 2"):
        LanceDataSource(str(tmp_path / "*.lance"), columns=["s"], version=1)
    with pytest.raises(ValueError, match=r"only local Lance data sets can be named by a pattern"):
        LanceDataSource("s3://bucket/*.lance")


def test_few_files_are_open_at_once(monkeypatch, tmp_path):
    monkeypatch.setattr(array_stores, "_OPEN_AT_ONCE", 3)
    for number in range(12):
        write_hdf5(tmp_path / f"{number:02d}.h5", {"y": np.arange(4) + 4 * number})

    def count():
        return h5py.h5f.get_obj_count(h5py.h5f.OBJ_ALL, h5py.h5f.OBJ_FILE)

    before = count()
    source = HDF5DataSource(tmp_path)
    assert count() == before
    for _ in range(2):
        assert [source[index]["y"] for index in range(48)] == list(range(48))
        assert count() - before <= 3
    assert source.__getitems__(np.arange(48)[::-1]).tree["y"].tolist() == list(range(48))[::-1]
    assert count() - before <= 3
    read_by_eight_threads(source, [{"y": np.int64(index)} for index in range(48)])
    assert count() - before <= 3 + 8  # a read that goes on holds its file


def test_hdf5_files_behind_http(tmp_path):
    write_hdf5(tmp_path / "a.h5", CONTENT)
    with Web((tmp_path / "a.h5").read_bytes()) as web:
        source = HDF5DataSource([f"{web.url}/a.h5", tmp_path / "a.h5"])
        assert same(rows(source.__getitems__([TOTAL + 2, 1])), [EXPECTED[2], EXPECTED[1]])


def test_patterns_of_zarr_stores_behind_urls(tmp_path):
    for number in range(3):
        write_zarr(tmp_path / f"{number}.zarr", CONTENT)
    memory = fsspec.filesystem("memory")
    memory.put(str(tmp_path), "/many-stores", recursive=True)
    try:
        source = ZarrDataSource("memory://many-stores/*.zarr")
        assert len(source) == 3 * TOTAL
        assert same(source[TOTAL + 3], EXPECTED[3])
    finally:
        memory.rm("/many-stores", recursive=True)


# Groups as records.

DEMOS = {
    f"data/demo_{number}/{name}": np.arange((number + 3) * size, dtype=np.float32).reshape(number + 3, size) + number
    for number in range(12)
    for name, size in {"actions": 2, "obs/eef": 3}.items()
} | {"mask/train": np.array([1, 5], np.int32)}


def demo(number, names=("actions", "obs/eef")):
    return {name: DEMOS[f"data/demo_{number}/{name}"] for name in names}


@pytest.mark.parametrize("name", ["h5", "zarr"])
def test_groups_are_records_in_the_order_of_their_numbers(name, tmp_path):
    write, build = KINDS[name]
    write(tmp_path / f"a.{name}", DEMOS)
    source = build(tmp_path / f"a.{name}", group="data/*")
    expected = [demo(number) for number in range(12)]
    assert len(source) == 12
    assert same([source[index] for index in range(12)], expected)
    assert same(source.__getitems__([11, 2, -1, 2]), [expected[number] for number in (11, 2, 11, 2)])
    assert source.__getitems__([]) == []
    with pytest.raises(IndexError):
        source[12]
    ds = MapDataset.source(source).shuffle(seed=1)
    with iter(ds.to_iter_dataset().mp_prefetch(WORKERS)) as workers:
        assert same(list(workers), list(ds))
    assert len(pickle.dumps(source)) < 1_500
    assert same(pickle.loads(pickle.dumps(source))[3], expected[3])
    some = build(tmp_path / f"a.{name}", columns=["actions"], group="/data/demo_?/")
    assert same(list(some), [demo(number, ["actions"]) for number in range(10)])
    assert same(build(tmp_path / f"a.{name}", group="data/demo_4/obs")[0], {"eef": DEMOS["data/demo_4/obs/eef"]})
    prints = {repr(one.fingerprint()) for one in (source, some, build(tmp_path / f"a.{name}", columns=["mask/train"]))}
    assert len(prints) == 3
    read_by_eight_threads(source, expected)


@pytest.mark.parametrize("name", ["h5", "zarr"])
def test_groups_of_many_files_and_whole_files_are_records(name, tmp_path):
    write, build = KINDS[name]
    for number in range(3):  # one file for each episode, as ALOHA has them
        write(tmp_path / f"episode_{number}.{name}", demo(number))
    episodes = build(str(tmp_path / f"episode_*.{name}"), group="/")
    assert same(list(episodes), [demo(number) for number in range(3)])
    frames = build(str(tmp_path / f"episode_*.{name}"))
    assert len(frames) == 3 + 4 + 5
    assert same(frames[3], {key: value[0] for key, value in demo(1).items()})
    with pytest.raises(NotImplementedError, match=r"records .* are groups, whose arrays may have any length"):
        episodes.element_spec()
    write(tmp_path / f"all.{name}", DEMOS)
    both = build([tmp_path / f"all.{name}"] * 2, group="data/*")
    assert same(both[13], demo(1))


@pytest.mark.parametrize("name", ["h5", "zarr"])
def test_groups_that_are_not_there_are_told(name, tmp_path):
    write, build = KINDS[name]
    path = tmp_path / f"a.{name}"
    write(path, {**DEMOS, "data/other/z": np.zeros(2)})
    with pytest.raises(ValueError, match=rf"a\.{name} has no group that matches 'demos/\*'"):
        build(path, group="demos/*")
    with pytest.raises(ValueError, match=rf"a\.{name} has no group that matches 'mask/train'"):
        build(path, group="mask/train")  # an array
    source = build(path, columns=["actions"], group="data/*")
    assert len(source[0]) == 1
    with pytest.raises(ValueError, match=r"the group 'data/other' has no array 'actions'"):
        source[12]
    with pytest.raises(TypeError, match="group is a path inside"):
        build(path, group=["data/demo_1"])
    with pytest.raises(ValueError, match=r"Choose some by their names, or pass group='data/\*'"):
        build(path)


def test_groups_of_hdf5_files_hold_anything(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["data/a/text"], file["data/a/count"] = "pick up", 7
        file["data/a/empty"] = np.zeros((0, 4))
        file["data/b"] = h5py.SoftLink("/data/a")
        file["data/c"] = h5py.SoftLink("/nowhere")
        file["data/d"] = np.arange(3)  # no group
        file["data/a/x"] = np.arange(3)
    source = HDF5DataSource(tmp_path / "a.h5", group="data/*")
    assert len(source) == 2
    assert source[0]["text"] == b"pick up" and source[0]["count"] == 7 and source[0]["empty"].shape == (0, 4)
    assert same(source[1], source[0])
    first = source[0]["x"]
    first[:] = 9
    assert source[0]["x"].tolist() == [0, 1, 2]


def test_a_damaged_group_is_named_and_others_are_read(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        for number in range(3):
            file.create_dataset(f"data/demo_{number}/x", data=np.arange(50), chunks=(50,), fletcher32=True)
        place = file["data/demo_1/x"].id.get_chunk_info(0).byte_offset
    content = bytearray(path.read_bytes())
    content[place + 9] ^= 1
    path.write_bytes(content)
    source = HDF5DataSource(path, group="data/*")
    assert source[0]["x"].tolist() == source[2]["x"].tolist() == list(range(50))
    with pytest.raises(DamagedFile, match=r"a\.h5: the group 'data/demo_1' cannot be read"):
        source[1]

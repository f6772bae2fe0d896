"""Arrays in files, written by NumPy and safetensors: mapped, sent by name, refused when damaged; checksums."""

import json
import pickle
import random
import struct

import numpy as np
import pytest
import safetensors.numpy
from helpers.record_formats import read_by_eight_threads
from helpers.servers import Web
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import bushel
from bushel import DamagedFile, MapDataset
from bushel.sources import ArrayDataSource, check_checksums, load_arrays, write_checksums
from bushel.testing import same

KINDS = ["npz", "compressed", "safetensors"]


def saved(folder, kind, arrays):
    path = folder / f"arrays.{'npz' if kind == 'compressed' else kind}"
    if kind == "npz":
        np.savez(path, **arrays)
    elif kind == "compressed":
        np.savez_compressed(path, **arrays)
    else:
        safetensors.numpy.save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, path)
    return path


dtypes = st.sampled_from(
    [np.dtype(kind) for kind in ("f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "?")]
)
arrays = hnp.arrays(dtypes, hnp.array_shapes(min_dims=1, min_side=0, max_side=4))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25, deadline=None)
@given(content=st.dictionaries(st.sampled_from("abc"), arrays, min_size=1), fortran=st.booleans())
def test_arrays_come_back(kind, content, fortran, tmp_path_factory):
    if fortran:
        content = {name: np.asfortranarray(array) for name, array in content.items()}
    found = load_arrays(saved(tmp_path_factory.mktemp("arrays"), kind, content))
    assert found.keys() == content.keys()
    for name, array in content.items():
        assert found[name].dtype == array.dtype
        assert np.array_equal(found[name], array, equal_nan=array.dtype.kind == "f")


@settings(max_examples=25, deadline=None)
@given(array=arrays)
def test_an_array_comes_back(array, tmp_path_factory):
    path = tmp_path_factory.mktemp("array") / "x.npy"
    np.save(path, array)
    found = load_arrays(path)
    assert found.dtype == array.dtype
    assert np.array_equal(found, array, equal_nan=array.dtype.kind == "f")


CONTENT = {"x": np.arange(300_000, dtype=np.float32).reshape(1000, 300), "y": np.arange(1000)}


@pytest.mark.parametrize("kind", KINDS)
def test_pipelines_read_arrays_of_files(kind, tmp_path):
    path = saved(tmp_path, kind, CONTENT)
    source = ArrayDataSource(load_arrays(path))
    expected = MapDataset.source(ArrayDataSource(CONTENT)).shuffle(seed=1).batch(64)
    ds = MapDataset.source(source).shuffle(seed=1).batch(64)
    assert same(list(ds), list(expected))
    with iter(ds.to_iter_dataset().mp_prefetch(bushel.MultiprocessingOptions(num_workers=2))) as workers:
        assert same(list(workers), list(expected))
    if kind != "compressed":
        sent = pickle.dumps(source)
        assert len(sent) < 2_000
        assert same(pickle.loads(sent)[7], source[7])


@pytest.mark.parametrize("kind", [*KINDS, "npy"])
def test_eight_threads_read_the_right_records(kind, tmp_path):
    if kind == "npy":
        np.save(tmp_path / "x.npy", CONTENT["x"])
        source, expected = ArrayDataSource(load_arrays(tmp_path / "x.npy")), CONTENT["x"]
    else:
        source = ArrayDataSource(load_arrays(saved(tmp_path, kind, CONTENT)))
        expected = [{"x": x, "y": y} for x, y in zip(CONTENT["x"], CONTENT["y"])]
    read_by_eight_threads(source, expected)


SLICES = [slice(None), slice(None, None, 2), slice(None, None, -3), slice(5, 900), slice(990, 10, -1)]


@settings(max_examples=40, deadline=None)
@given(
    rows=st.sampled_from(SLICES),
    columns=st.sampled_from(SLICES),
    fortran=st.booleans(),
    turned=st.booleans(),
    dtype=st.sampled_from(["<f4", "i1", [("a", "i1"), ("b", "<f4")]]),
)
def test_any_part_of_a_mapped_array_is_sent_by_name(rows, columns, fortran, turned, dtype, tmp_path_factory):
    path = tmp_path_factory.mktemp("mapped") / "x.npy"
    array = np.arange(1000 * 40).reshape(1000, 40).astype(np.dtype(dtype))
    np.save(path, np.asfortranarray(array) if fortran else array)
    part = load_arrays(path)[rows, columns]
    part = part.T if turned else part
    for source in (ArrayDataSource(part), MapDataset.source(part)):
        sent = pickle.dumps(source)
        assert len(sent) < 2_000
        again = pickle.loads(sent)
        assert len(again) == len(part)
        assert all(np.array_equal(again[index], part[index]) for index in range(len(part)))
        twice = pickle.dumps(again)
        assert len(twice) < 2_000
        assert all(np.array_equal(one, other) for one, other in zip(pickle.loads(twice), part, strict=True))


def test_what_is_not_in_the_file_is_sent_itself(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(1000))
    changed = np.load(tmp_path / "x.npy", mmap_mode="c")
    changed[3] = -1
    assert pickle.loads(pickle.dumps(ArrayDataSource(changed)))[3] == -1
    mapped = load_arrays(tmp_path / "x.npy")
    assert len(pickle.loads(pickle.dumps(ArrayDataSource(mapped[:0])))) == 0
    masked = np.ma.masked_array(mapped, mapped == 5)
    assert pickle.loads(pickle.dumps(MapDataset.source(masked)))[5] is np.ma.masked


def test_a_mapped_array_as_a_source_is_read_by_workers(tmp_path):
    np.save(tmp_path / "x.npy", CONTENT["x"])
    ds = MapDataset.source(np.load(tmp_path / "x.npy", mmap_mode="r")).shuffle(seed=1).batch(64).to_iter_dataset()
    with iter(ds.mp_prefetch(bushel.MultiprocessingOptions(num_workers=2))) as workers:
        assert same(list(workers), list(ds))


@pytest.mark.parametrize("kind", [*KINDS, "npy"])
def test_files_cut_short_are_refused(kind, tmp_path):
    if kind == "npy":
        path = tmp_path / "x.npy"
        np.save(path, CONTENT["x"])
    else:
        path = saved(tmp_path, kind, CONTENT)
    content = path.read_bytes()
    for length in [0, 5, 60, *random.Random(0).sample(range(len(content)), 5), len(content) - 1]:
        path.write_bytes(content[:length])
        with pytest.raises(DamagedFile, match="is not a complete"):
            load_arrays(path)


@pytest.mark.parametrize("kind", [*KINDS, "npy"])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_changed_byte_is_harmless_or_told_with_the_file(kind, data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("flip")
    small = {"x": np.arange(60, dtype=np.float32).reshape(20, 3), "y": np.arange(20)}
    path = folder / "arrays.npy" if kind == "npy" else saved(folder, kind, small)
    if kind == "npy":
        np.save(path, small["x"])
    content = bytearray(path.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    try:
        load_arrays(path)
    except DamagedFile as error:
        assert f"arrays.{path.suffix[1:]} is not a complete" in str(error)
    except ValueError as error:  # the name of a type became another one
        assert f"arrays.{path.suffix[1:]} has an array" in str(error)


def test_some_arrays_of_a_file(tmp_path):
    path = saved(tmp_path, "safetensors", CONTENT)
    assert list(load_arrays(path, columns=["y"])) == ["y"]
    with pytest.raises(ValueError, match=r"has no array 'z'; it has '[xy]', '[xy]'"):
        load_arrays(path, columns=["z"])
    with pytest.raises(ValueError, match="is not an array file"):
        load_arrays(tmp_path / "x.txt")
    with pytest.raises(ValueError, match=r"an \.npy file has one array"):
        load_arrays(tmp_path / "x.npy", columns=["x"])


@pytest.mark.filterwarnings("ignore:Stored array in format 3.0")
@pytest.mark.parametrize("kind", ["npz", "compressed"])
def test_names_of_fields_in_any_script(kind, tmp_path):
    array = np.array([(1, 2.5), (3, 4.5)], [("größe", "i4"), ("数", "f4")])
    found = load_arrays(saved(tmp_path, kind, {"x": array}))["x"]
    assert found.dtype == array.dtype and found.tolist() == array.tolist()


@pytest.mark.parametrize("kind", ["npz", "compressed"])
def test_an_array_of_objects_is_refused_and_does_no_harm_to_others(kind, tmp_path):
    path = saved(tmp_path, kind, {"x": np.arange(3), "objects": np.array([{}, []], object)})
    assert same(load_arrays(path, columns=["x"]), {"x": np.arange(3)})
    with pytest.raises(ValueError, match=r"arrays\.npz has an array of Python objects, .* Name the other") as caught:
        load_arrays(path)
    assert not isinstance(caught.value, DamagedFile)


def safetensors_of(path, kind, itemsize):
    """A file with an array `x` of the given type, zeros, and an array `y` of bytes."""
    header = {
        "x": {"dtype": kind, "shape": [4], "data_offsets": [0, 4 * itemsize]},
        "y": {"dtype": "U8", "shape": [2], "data_offsets": [4 * itemsize, 4 * itemsize + 2]},
    }
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(4 * itemsize) + b"\1\2")
    return path


@pytest.mark.parametrize("kind", ["C64", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"])
def test_rare_types_of_safetensors(kind, tmp_path):
    array = load_arrays(safetensors_of(tmp_path / "x.safetensors", kind, 8 if kind == "C64" else 1))["x"]
    assert array.shape == (4,)
    assert array.dtype.name == {"C64": "complex64", "F8_E8M0": "float8_e8m0fnu"}.get(
        kind, kind.lower().replace("f8", "float8")
    )


def test_a_type_of_safetensors_that_is_not_read(tmp_path):
    path = safetensors_of(tmp_path / "x.safetensors", "F6_E2M3", 1)
    assert load_arrays(path, columns=["y"])["y"].tolist() == [1, 2]
    with pytest.raises(
        ValueError, match=r"x\.safetensors has an array 'x' of the unsupported type F6_E2M3\. Name"
    ) as caught:
        load_arrays(path)
    assert not isinstance(caught.value, DamagedFile)


def test_arrays_of_bfloat16_are_read_from_safetensors(tmp_path):
    import jax.numpy as jnp
    import safetensors.flax

    array = jnp.arange(6, dtype=jnp.bfloat16).reshape(3, 2)
    safetensors.flax.save_file({"w": array}, tmp_path / "x.safetensors")
    assert np.array_equal(load_arrays(tmp_path / "x.safetensors")["w"], np.asarray(array))


@pytest.mark.parametrize("kind", ["npz", "safetensors"])
def test_arrays_behind_a_url(kind, tmp_path):
    path = saved(tmp_path, kind, CONTENT)
    with Web(path.read_bytes()) as web:
        assert same(load_arrays(f"{web.url}/arrays.{kind}"), CONTENT)


@settings(max_examples=25, deadline=None)
@given(place=st.integers(0, 2_500_000 - 1), bit=st.integers(0, 7))
def test_a_checksum_beside_a_file_finds_any_change(place, bit, tmp_path_factory):
    path = tmp_path_factory.mktemp("sums") / "data.bag"
    content = bytearray(2_500_000)
    path.write_bytes(content)
    assert write_checksums(path) == [f"{path}.checksums"]
    check_checksums(path)
    content[place] ^= 1 << bit
    path.write_bytes(content)
    low = place >> 20 << 20
    with pytest.raises(DamagedFile, match=f"bytes {low} to {min(low + (1 << 20), len(content))} do not match"):
        check_checksums(path)


def test_a_file_of_another_size_does_not_fit_its_checksums(tmp_path):
    path = tmp_path / "data.bag"
    path.write_bytes(b"abc")
    write_checksums(path)
    path.write_bytes(b"ab")
    with pytest.raises(DamagedFile, match="has 2 bytes; it had 3 when its checksums were written"):
        check_checksums(path)


def test_checksums_that_are_damaged_themselves(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.arange(10))
    write_checksums(tmp_path / "x*")
    write_checksums(tmp_path / "x*")
    check_checksums(tmp_path / "x*")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["x.npy", "x.npy.checksums"]
    beside = tmp_path / "x.npy.checksums"
    good = beside.read_bytes()
    with pytest.raises(ValueError, match="these are files of checksums"):
        check_checksums(beside)
    for bad in (
        b"",
        b"{}",
        b"[]",
        good[:-3],
        b"\xff",
        good.replace(b'"size": 208', b'"size": "208"'),
        b'{"size": 208}',
    ):
        beside.write_bytes(bad)
        with pytest.raises(DamagedFile, match=r"x\.npy\.checksums has no complete checksums"):
            check_checksums(path)

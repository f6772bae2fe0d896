"""Arrays in HDF5 files and Zarr stores, lines of text, files in folders, images and sounds."""

import io
import pickle
import struct
import zlib

import h5py
import numpy as np
import pytest
import simplejpeg
import soundfile
import zarr
from helpers.record_formats import read_by_eight_threads
from helpers.servers import Web
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import bushel
from bushel import DamagedFile, MapDataset
from bushel.sources import (
    ArrayDataSource,
    FileDataSource,
    HDF5DataSource,
    LineDataSource,
    ZarrDataSource,
    decode_audio,
    decode_image,
)
from bushel.testing import check_resumes_anywhere, same

COUNT = 97
CONTENT = {
    "inner/y": np.arange(COUNT),
    "x": np.random.default_rng(0).standard_normal((COUNT, 3, 5)).astype(np.float32),
}


def write_hdf5(path):
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=CONTENT["x"], chunks=(10, 3, 5), compression="gzip", fletcher32=True)
        file.create_dataset("inner/y", data=CONTENT["inner/y"])
    return path


def write_zarr(path):
    group = zarr.open_group(path, mode="w")
    group.create_array("x", data=CONTENT["x"], chunks=(10, 3, 5))
    group.create_group("inner").create_array("y", data=CONTENT["inner/y"], chunks=(20,))
    return path


KINDS = {"hdf5": (write_hdf5, HDF5DataSource), "zarr": (write_zarr, ZarrDataSource)}


@pytest.fixture(scope="module", params=KINDS)
def source(request, tmp_path_factory):
    write, build = KINDS[request.param]
    return build(write(tmp_path_factory.mktemp("arrays") / f"data.{request.param}"))


EXPECTED = ArrayDataSource(CONTENT)


@settings(max_examples=20, deadline=None)
@given(indices=st.lists(st.integers(0, COUNT - 1), max_size=30))
def test_many_records_are_those_of_the_arrays(source, indices):
    assert len(source) == COUNT
    assert same(source.__getitems__(indices).tree, EXPECTED.__getitems__(indices).tree)
    for index in indices[:2]:
        assert same(source[index], EXPECTED[index])
        assert same(source[index - COUNT], EXPECTED[index])


def test_pipelines_workers_and_pickles(source):
    ds = MapDataset.source(source).shuffle(seed=1).batch(16)
    expected = list(MapDataset.source(EXPECTED).shuffle(seed=1).batch(16))
    assert same(list(ds), expected)
    check_resumes_anywhere(ds.to_iter_dataset())
    with iter(ds.to_iter_dataset().mp_prefetch(bushel.MultiprocessingOptions(num_workers=2))) as workers:
        assert same(list(workers), expected)
    sent = pickle.dumps(source)
    assert len(sent) < 1_000
    assert same(pickle.loads(sent)[5], EXPECTED[5])
    assert bushel.experimental.get_element_spec(MapDataset.source(source))["x"].shape == (3, 5)


def test_eight_threads_read_the_right_records(source):
    read_by_eight_threads(source, EXPECTED)


@pytest.mark.parametrize("kind", KINDS)
def test_some_arrays_and_bad_names(kind, tmp_path):
    write, build = KINDS[kind]
    path = write(tmp_path / f"data.{kind}")
    assert list(build(path, columns=["x"])[0]) == ["x"]
    with pytest.raises(ValueError, match="has no array 'z'; it has 'inner/y', 'x'"):
        build(path, columns=["z"])
    with pytest.raises(FileNotFoundError):
        build(tmp_path / "none")
    with pytest.raises(IndexError, match=f"index {COUNT} is out of range for {COUNT} records"):
        build(path)[COUNT]


def test_a_store_with_one_zarr_array_has_its_rows_as_records(tmp_path):
    zarr.save_array(str(tmp_path / "one.zarr"), CONTENT["x"])
    assert same(ZarrDataSource(tmp_path / "one.zarr")[4], {"array": CONTENT["x"][4]})


def test_a_zipped_zarr_store_is_told(tmp_path):
    with zarr.storage.ZipStore(tmp_path / "x.zip", mode="w") as store:
        zarr.create_array(store, data=np.arange(5))
    with pytest.raises(FileNotFoundError, match=r"x\.zip is not a Zarr store: .* not supported: unzip it"):
        ZarrDataSource(tmp_path / "x.zip")


def test_arrays_of_several_lengths_are_refused(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["a"], file["b"] = np.zeros(3), np.zeros(4)
    with pytest.raises(ValueError, match=r"their lengths are \{'a': 3, 'b': 4\}. Choose some by their names"):
        HDF5DataSource(tmp_path / "x.h5")
    assert len(HDF5DataSource(tmp_path / "x.h5", columns=["b"])) == 4


def test_arrays_of_hdf5_files_behind_any_of_their_names(tmp_path):
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["far"] = np.arange(3) + 10
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"], file["group/y"] = np.arange(3), np.arange(3) + 3
        file["alias"] = file["x"]
        file["soft"] = h5py.SoftLink("/group/y")
        file["other"] = h5py.ExternalLink("other.h5", "/far")
        file["broken"] = h5py.SoftLink("/nowhere")
    names = ["x", "alias", "/x", "group/y", "soft", "other"]
    source = HDF5DataSource(tmp_path / "x.h5", columns=names, allow_other_files=True)
    assert source[1] == {"x": 1, "alias": 1, "/x": 1, "group/y": 4, "soft": 4, "other": 11}
    assert pickle.loads(pickle.dumps(source))[1] == source[1]
    assert len(HDF5DataSource(tmp_path / "x.h5", allow_other_files=True)[0]) == 2  # each array once
    for name in ("broken", "group", "z"):
        with pytest.raises(ValueError, match=f"has no array '{name}'; it has '(x|alias)', 'group/y'|it has 'group/y'"):
            HDF5DataSource(tmp_path / "x.h5", columns=["x", name], allow_other_files=True)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_damaged_zarr_stores_are_read_or_refused_by_name(data, tmp_path_factory):
    path = write_zarr(tmp_path_factory.mktemp("zarr") / "data.zarr")
    files = sorted(file for file in path.rglob("*") if file.is_file())
    damaged = data.draw(st.sampled_from([file for file in files if file.name == "zarr.json"] + files[:3]))
    content = bytearray(damaged.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    damaged.write_bytes(content)
    try:
        source = ZarrDataSource(path)
        assert len(list(source)) == len(source)
    except (ValueError, FileNotFoundError) as error:
        assert "data.zarr" in str(error)


def test_a_checkpoint_knows_the_arrays_of_a_zarr_store(tmp_path):
    path = write_zarr(tmp_path / "data.zarr")
    ds = MapDataset.source(ZarrDataSource(path)).to_iter_dataset()
    state = iter(ds).get_state()
    iter(MapDataset.source(ZarrDataSource(path)).to_iter_dataset()).set_state(state)
    zarr.open_group(path, mode="a").create_array("x", data=CONTENT["x"] + 1, chunks=(10, 3, 5), overwrite=True)
    with pytest.raises(bushel.StateMismatch):
        iter(MapDataset.source(ZarrDataSource(path)).to_iter_dataset()).set_state(state)
    zarr.save_array(str(tmp_path / "one.zarr"), CONTENT["x"], zarr_format=2)
    ZarrDataSource(tmp_path / "one.zarr").fingerprint()


def test_damaged_hdf5_files(tmp_path):
    path = write_hdf5(tmp_path / "data.hdf5")
    content = bytearray(path.read_bytes())
    for length in (0, 10, len(content) // 2):
        (tmp_path / "cut.hdf5").write_bytes(content[:length])
        with pytest.raises(DamagedFile, match=r"cut\.hdf5 is not a complete HDF5 file"):
            HDF5DataSource(tmp_path / "cut.hdf5")
    with h5py.File(path) as file:
        chunk = file["x"].id.get_chunk_info(2)
    content[chunk.byte_offset + chunk.size // 2] ^= 1
    path.write_bytes(content)
    damaged = HDF5DataSource(path)
    assert same(damaged[5], EXPECTED[5])
    with pytest.raises(DamagedFile, match=r"data\.hdf5: the array 'x' cannot be read"):
        damaged[25]


def test_arrays_behind_http(tmp_path):
    path = write_hdf5(tmp_path / "data.hdf5")
    with Web(path.read_bytes()) as web:
        found = HDF5DataSource(f"{web.url}/data.hdf5").__getitems__([7, 3])
    assert same(found.tree, EXPECTED.__getitems__([7, 3]).tree)


# Lines and files.


@settings(max_examples=60, deadline=None)
@given(
    lines=st.lists(st.text(st.characters(blacklist_characters="\r\n", codec="utf-8"), max_size=8)), last=st.booleans()
)
def test_lines_of_text(lines, last, tmp_path_factory):
    path = tmp_path_factory.mktemp("lines") / "x.txt"
    end = "\n" if last or (lines and not lines[-1]) else ""
    path.write_bytes(("\n".join(lines) + (end if lines else "")).encode())
    source = LineDataSource(path)
    assert [line.decode() for line in source] == lines
    assert [source[index].decode() for index in range(len(source))] == lines


def test_lines_that_end_in_carriage_return_and_newline_are_read_without_them(tmp_path):
    (tmp_path / "x.csv").write_bytes(b"a,b\r\n1,2\r\n")
    assert list(MapDataset.source(LineDataSource(tmp_path / "x.csv"))) == [b"a,b", b"1,2"]


PIXELS = np.random.default_rng(1).integers(0, 256, (20, 30, 3), np.uint8)


def encoded(pixels, kind):
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind)
    return out.getvalue()


def test_images_in_folders(tmp_path):
    for label in ("cat", "dog"):
        (tmp_path / label).mkdir()
        (tmp_path / label / "1.png").write_bytes(encoded(PIXELS if label == "cat" else PIXELS[::-1], "png"))
    source = FileDataSource(str(tmp_path / "*/*.png"))
    ds = MapDataset.source(source).map(lambda r: (r["path"].split("/")[-2], decode_image(r["content"])))
    assert same(list(ds), [("cat", PIXELS), ("dog", PIXELS[::-1])])
    with pytest.raises(IndexError):
        source[2]


def test_eight_threads_read_the_right_files(tmp_path):
    for number in range(20):
        (tmp_path / f"{number:02d}.bin").write_bytes(bytes([number]) * (number * 999))
    source = FileDataSource(str(tmp_path / "*.bin"))
    expected = [{"path": path, "content": bytes([n]) * (n * 999)} for n, path in enumerate(source.paths)]
    read_by_eight_threads(source, expected)


@pytest.mark.parametrize("kind", ["png", "bmp", "tiff", "webp"])
def test_images_are_those_of_pillow(kind):
    data = encoded(PIXELS, kind)
    assert np.array_equal(decode_image(data), np.asarray(Image.open(io.BytesIO(data)).convert("RGB")))
    assert decode_image(data, "L").shape == (20, 30, 1)


def test_jpeg_images_are_those_of_pillow_within_rounding():
    smooth = np.linspace(0, 255, 40 * 60 * 3).reshape(40, 60, 3).astype(np.uint8)
    data = simplejpeg.encode_jpeg(smooth, quality=95)
    expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).astype(int)
    assert np.abs(decode_image(data).astype(int) - expected).max() <= 2
    assert decode_image(data, "L").shape == (40, 60, 1)
    assert decode_image(data, None).shape == (40, 60, 3)


@pytest.mark.parametrize("kind", ["jpeg", "png"])
def test_damaged_images_are_refused(kind):
    data = encoded(PIXELS, kind)
    for bad in (b"", b"hello", data[:20], data[: len(data) // 2] if kind == "png" else data[:200]):
        with pytest.raises(ValueError, match=f"These {len(bad)} bytes are not a complete"):
            decode_image(bad)


DEEP = np.array([[0, 1, 255, 256], [1000, 30_000, 65_000, 65_535]])


@pytest.mark.parametrize(
    ("kind", "dtype"), [("png", "uint16"), ("tiff", "uint16"), ("tiff", "int32"), ("tiff", "float32")]
)
def test_images_of_more_than_eight_bits_come_whole_or_not_at_all(kind, dtype):
    data = encoded(DEEP.astype(dtype), kind)
    found = decode_image(data, None)
    assert found.dtype == dtype and found.tolist() == DEEP[:, :, None].tolist()
    for mode in ("RGB", "L", "RGBA"):
        with pytest.raises(ValueError, match=f"do not fit into '{mode}'.*Pass mode=None"):
            decode_image(data, mode)
    assert decode_image(data, "F").tolist() == DEEP[:, :, None].tolist()


def a_deep_png(colours, channels):
    """A PNG image with 16 bits for each channel, which Pillow cannot write."""
    rows = b"".join(b"\0" + DEEP.astype(">u2").repeat(channels, 1)[row].tobytes() for row in range(2))
    parts = (
        (b"IHDR", struct.pack(">IIBBBBB", 4, 2, 16, colours, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows)),
        (b"IEND", b""),
    )
    chunks = (
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def a_deep_tiff():
    """A TIFF image with 16 bits for each of three channels."""
    pixels = DEEP.astype("<u2").repeat(3, 1).tobytes()
    facts = (256, 4), (257, 2), (258, None), (259, 1), (262, 2), (273, 128), (277, 3), (278, 2), (279, len(pixels))
    entries = b"".join(
        struct.pack("<HHII", tag, 3, 3, 122) if value is None else struct.pack("<HHII", tag, 4, 1, value)
        for tag, value in facts
    )
    return (
        struct.pack("<2sHIH", b"II", 42, 8, len(facts)) + entries + bytes(4) + struct.pack("<3H", 16, 16, 16) + pixels
    )


@pytest.mark.parametrize(
    "data",
    [a_deep_png(2, 3), a_deep_png(4, 2), a_deep_png(6, 4), a_deep_tiff(), b"P6 1 1 65535\n\1\2\3\4\5\6"],
    ids=["rgb", "grey and alpha", "rgba", "tiff", "ppm"],
)
def test_colours_of_sixteen_bits_are_refused_and_not_halved(data):
    Image.open(io.BytesIO(data)).load()  # it is a whole one
    for mode in (None, "RGB", "L"):
        with pytest.raises(ValueError, match=r"has 16 bits per channel, but Pillow reads it as .* Write it with 8"):
            decode_image(data, mode)
    assert decode_image(a_deep_png(0, 1), None).tolist() == DEEP[:, :, None].tolist()


def test_an_array_is_no_file():
    with pytest.raises(
        TypeError, match=r"decode_image needs the bytes of an image file, got ndarray\. .* data.tobytes\(\)"
    ):
        decode_image(np.frombuffer(encoded(PIXELS, "png"), np.uint8))
    for kind in (bytearray, memoryview):
        assert np.array_equal(decode_image(kind(encoded(PIXELS, "png"))), PIXELS)
        assert decode_image(kind(encoded(PIXELS, "jpeg"))).shape == PIXELS.shape


@pytest.mark.parametrize("kind", ["jpeg", "png"])
def test_a_mode_that_is_none_is_told(kind):
    with pytest.raises(ValueError, match=r'mode must be "1", .*"RGBX" or "YCbCr", got \'rgb\'\. Did you mean "RGB'):
        decode_image(encoded(PIXELS, kind), "rgb")


@pytest.mark.parametrize("kind", ["WAV", "FLAC"])
def test_sounds_come_back(kind):
    samples = np.random.default_rng(0).integers(-(2**15), 2**15, (1000, 2), np.int16)
    out = io.BytesIO()
    soundfile.write(out, samples, 16_000, format=kind, subtype="PCM_16")
    found, rate = decode_audio(out.getvalue(), "int16")
    assert rate == 16_000
    assert np.array_equal(found, samples)
    with pytest.raises(ValueError, match="These 5 bytes are not a complete sound"):
        decode_audio(b"hello")


@pytest.mark.parametrize(
    "kind", [("WAV", "PCM_16"), ("WAV", "FLOAT"), ("AIFF", "PCM_16"), ("FLAC", None), ("OGG", "VORBIS"), ("MP3", None)]
)
def test_a_sound_cut_short_is_refused(kind):
    out = io.BytesIO()
    noise = np.random.default_rng(0).normal(0, 0.1, (5000, 2))
    soundfile.write(out, noise, 48_000, format=kind[0], subtype=kind[1])
    data = out.getvalue()
    assert decode_audio(data)[0].shape == (5000, 2)
    for cut in (1, 50, 500, len(data) // 2, len(data) - 50):
        with pytest.raises(ValueError, match=f"These {len(data) - cut} bytes are not a complete sound"):
            decode_audio(data[:-cut])


def test_a_sound_whose_writer_did_not_know_its_length_is_read():
    out = io.BytesIO()
    soundfile.write(out, np.zeros((100, 1)), 8_000, format="WAV", subtype="PCM_16")
    data = bytearray(out.getvalue())
    data[4:8] = data[40:44] = b"\xff" * 4  # as programs that write into a pipe do
    assert decode_audio(bytes(data))[0].shape == (100, 1)
    data[40:44] = struct.pack("<I", 201)
    with pytest.raises(ValueError, match="it has 200 of 201 bytes of samples"):
        decode_audio(bytes(data))

"""Sizes and offsets in files that lead backwards, past the end or nowhere: told with the file, and never followed."""

import json
import struct
import tarfile

import h5py
import numpy as np
import pyarrow as pa
import pytest
import zarr
import zarr.codecs
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bushel import DamagedFile
from bushel._src.sources import array_record, protocol_buffers
from bushel.experimental import WebDatasetIterDataset
from bushel.sources import ArrowDataSource, BagzDataSource, HDF5DataSource, LanceDataSource, ZarrDataSource, load_arrays

# Tar files.


def member(name: str, content: bytes, kind: bytes = tarfile.REGTYPE) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.type = len(content), kind
    return info.tobuf(tarfile.USTAR_FORMAT) + content + bytes(-len(content) % 512)


def extended(**facts: str) -> bytes:
    """An extended header for the member that follows."""
    lines = b""
    for key, value in facts.items():
        line = f" {key}={value}\n".encode()
        length = len(line) + len(str(len(line)))
        length = len(line) + len(str(length))
        lines += str(length).encode() + line
    return member("pax", lines, b"x")


def with_size(header: bytes, size: bytes) -> bytes:
    """A header with another size, and the checksum that belongs to it."""
    changed = header[:124] + size.ljust(12, b"\0")[:12] + header[136:148] + b" " * 8 + header[156:512]
    return changed[:148] + b"%06o\0 " % sum(changed) + changed[156:] + header[512:]


def samples_of(path, content: bytes) -> list[dict]:
    """Samples of a tar file: as many as it has bytes would be a loop."""
    path.write_bytes(content + bytes(1024))
    found = []
    for sample in WebDatasetIterDataset(str(path)):
        found.append(sample)
        assert len(found) <= len(content) // 512
    return found


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["b.txt", ".hidden"])
@pytest.mark.parametrize("size", ["-3584", "-1536", "-1", "-0", "+5", " 5", "1_0", "x", "", "9" * 30])
def test_a_size_in_an_extended_header_is_a_number(name, size, tmp_path):
    content = member("a.txt", b"first") + extended(size=size) + member(name, b"second") + member("c.txt", b"third")
    with pytest.raises(DamagedFile, match=r"x\.tar is damaged at byte \d+"):
        samples_of(tmp_path / "x.tar", content)


@pytest.mark.timeout(120)
@settings(max_examples=150, deadline=None)
@given(size=st.one_of(st.binary(max_size=12), st.integers(0, 1 << 40).map(b"%o".__mod__)), pax=st.text(max_size=8))
@example(size=b"\xff" * 12, pax="0")  # minus one, in binary
@example(size=b"-1", pax="-3584")
def test_any_size_leads_forward(size, pax, tmp_path_factory):
    path = tmp_path_factory.mktemp("tar") / "x.tar"
    first, last = member("a.txt", b"first"), member("c.txt", b"third")
    for content in (
        first + with_size(member("b.txt", b"second"), size) + last,
        first + extended(size=pax.replace("\n", "")) + member("b.txt", b"second") + last,
    ):
        try:
            assert samples_of(path, content)[0] == {"__key__": "a", "txt": b"first"}
        except DamagedFile as error:
            assert "x.tar" in str(error)


def test_what_follows_the_end_mark_of_a_tar_file_is_told(tmp_path):
    first, last = member("a.txt", b"first"), member("c.txt", b"third")
    path = tmp_path / "x.tar"
    path.write_bytes(first + bytes(1024) + last + bytes(1024))  # two files joined
    iterator = iter(WebDatasetIterDataset(str(path)))
    assert next(iterator)["txt"] == b"first"
    with pytest.raises(DamagedFile, match=r"byte 2048: there is data after the end mark"):
        next(iterator)
    assert len(samples_of(path, first + last + bytes(20_000))) == 2  # zeros up to a round size are as they should be


# Arrays.


def test_an_archive_whose_end_was_zeroed_is_not_empty(tmp_path):
    path = tmp_path / "x.npz"
    np.savez(path, a=np.arange(9), b=np.arange(4))
    whole = path.read_bytes()
    for low in range(4, 22):
        path.write_bytes(whole[: len(whole) - 22 + low] + bytes(22 - low))
        try:
            assert set(load_arrays(path)) == {"a", "b"}
        except DamagedFile as error:
            assert "x.npz" in str(error)
    path.write_bytes(whole[:-18] + bytes(18))
    with pytest.raises(DamagedFile, match="its directory"):
        load_arrays(path)
    np.savez(path)
    assert load_arrays(path) == {}


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_bytes_before_an_archive_are_told(save, tmp_path):
    path = tmp_path / "x.npz"
    save(path, a=np.arange(9))
    path.write_bytes(b"before" + path.read_bytes())
    with pytest.raises(DamagedFile, match=r"x\.npz is not a complete \.npz file"):
        load_arrays(path)


@pytest.mark.parametrize(
    "shape", ["(3, 2)", "(8, 2)", "(-7, -2)", "(7, 9223372036854775807)", "(4294967296, 4294967296)"]
)
def test_a_shape_that_does_not_fit_the_file(shape, tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.zeros((7, 2)))
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    path.write_bytes(b"\x93NUMPY\x01\0" + struct.pack("<H", 118) + header.encode() + bytes(7 * 2 * 8))
    with pytest.raises(DamagedFile, match=r"x\.npy is not a complete \.npy file"):
        load_arrays(path)


@pytest.mark.parametrize(
    ("shape", "offsets"),
    [
        ([2, 2], [0, 32]),  # one of another size than its offsets
        ([1 << 32, 1 << 32], [0, 0]),  # as many bytes as 0 has in 64 bits
        ([-1, -3], [0, 24]),
        ([4], [-32, 0]),
        ([3], [0, 24]),  # bytes that belong to none
        ([4], [8, 40]),
        ([1 << 62], [0, 1 << 65]),
    ],
)
def test_a_header_of_safetensors_that_cannot_be(shape, offsets, tmp_path):
    header = json.dumps({"x": {"dtype": "F64", "shape": shape, "data_offsets": offsets}}).encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(32 + 8 * (shape == [2, 2])))
    with pytest.raises(DamagedFile, match=r"x\.safetensors is not a complete"):
        load_arrays(path)


# Tables.


def test_an_arrow_file_whose_index_lost_a_batch(tmp_path):
    path = tmp_path / "x.arrow"
    table = pa.table({"x": range(30)})
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=10)
    content = path.read_bytes()
    told = []
    for place in range(content.rfind(b"\xff\xff\xff\xff\0\0\0\0"), len(content) - 4):  # behind the batches
        if content[place : place + 4] == b"\3\0\0\0":
            path.write_bytes(content[:place] + b"\2" + content[place + 1 :])
            with pytest.raises(DamagedFile, match=r"x\.arrow is not a complete Arrow file") as raised:
                ArrowDataSource(path)
            told.append(str(raised.value))
    assert any("its index has 2 record batches, but the file has 3" in one for one in told)


def test_a_second_arrow_stream_behind_the_first_is_told(tmp_path):
    path = tmp_path / "x.arrow"
    table = pa.table({"x": range(30)})
    with pa.ipc.new_stream(str(path), table.schema) as writer:
        writer.write_table(table)
    whole = path.read_bytes()
    assert len(ArrowDataSource(path)) == 30
    path.write_bytes(whole + whole)
    with pytest.raises(DamagedFile, match=rf"it ends at byte {len(whole)} of {2 * len(whole)}"):
        ArrowDataSource(path)


# Records.


def test_offsets_of_a_bag_beyond_63_bits_do_not_wrap(tmp_path):
    path = tmp_path / "x.bag"
    path.write_bytes(bytes(10) + struct.pack("<QQQQ", 5, 1 << 63, (1 << 64) - 5, 10))
    with pytest.raises(DamagedFile, match=r"x\.bag: the offsets of its records are damaged"):
        BagzDataSource(path)


@settings(max_examples=100, deadline=None)
@given(sizes=st.lists(st.integers(0, (1 << 64) - 1), max_size=5), length=st.integers(0, 30))
def test_sizes_of_a_chunk_add_up_to_what_it_holds(sizes, length):
    encoded = b"".join(map(protocol_buffers.encode_varint, sizes))
    chunk = b"\0" + protocol_buffers.encode_varint(len(encoded)) + encoded + bytes(length)
    if sum(sizes) == length:
        ends = array_record.decode_chunk(memoryview(chunk), length, len(sizes))[1]
        assert ends.tolist() == np.cumsum(sizes, dtype=int).tolist()
    else:
        with pytest.raises(ValueError, match="do not add up"):
            array_record.decode_chunk(memoryview(chunk), length, len(sizes))


# Stores of arrays, and libraries.


def test_a_chunk_that_was_cut_short_is_not_read_past_its_end(tmp_path):
    """Blosc trusts the size that the chunk states, and gives what lies behind it in memory."""
    path = tmp_path / "x.zarr"
    group = zarr.open_group(path, mode="w", zarr_format=2)
    group.create_array("a", data=np.arange(600, dtype=np.int32), chunks=(100,))
    chunk = path / "a" / "3"
    chunk.write_bytes(chunk.read_bytes()[:-20])
    source = ZarrDataSource(path)
    assert source[299] == {"a": 299}
    with pytest.raises(DamagedFile, match=r"the chunk a/3 has \d+ bytes, but its header says \d+"):
        source[300]


@pytest.mark.parametrize(
    "options",
    [
        {"shards": (20,), "compressors": [zarr.codecs.BloscCodec()]},
        {"compressors": [zarr.codecs.BloscCodec()]},
        {"compressors": [zarr.codecs.BloscCodec(), zarr.codecs.Crc32cCodec()]},
        {"compressors": [zarr.codecs.GzipCodec(), zarr.codecs.BloscCodec()]},
        {"compressors": None},
    ],
)
def test_chunks_of_any_codecs_are_read(options, tmp_path):
    group = zarr.open_group(tmp_path / "x.zarr", mode="w")
    for name in ("a", "inner/b"):
        group.create_array(name, data=np.arange(60), chunks=(5,), **options)
    source = ZarrDataSource(tmp_path / "x.zarr")
    assert source.__getitems__(range(60)).tree["inner/b"].tolist() == list(range(60))
    assert source[7] == {"a": 7, "inner/b": 7}


@pytest.mark.filterwarnings("ignore:Object at .* is not recognized as a component:UserWarning")  # Zarr's own
@pytest.mark.parametrize(("version", "file"), [(2, ".zarray"), (3, "zarr.json")])
def test_an_array_with_damaged_metadata_is_not_left_out(version, file, tmp_path):
    path = tmp_path / "x.zarr"
    group = zarr.open_group(path, mode="w", zarr_format=version)
    for name in "ab":
        group.create_array(name, data=np.arange(6))
    metadata = path / "b" / file
    metadata.write_text(metadata.read_text().replace('"shape"', '"shape_"'))
    with pytest.raises(DamagedFile, match=r"x\.zarr"):
        ZarrDataSource(path)
    (path / "notes").mkdir()
    (path / "notes" / "x.txt").write_text("no part of the store, and none that stands in the way")
    metadata.write_text(metadata.read_text().replace('"shape_"', '"shape"'))
    with pytest.warns(UserWarning, match="notes"):
        assert len(ZarrDataSource(path)) == 6


@pytest.mark.parametrize(("what", "value"), [("size", 0), ("size", 4), ("mask", 1), ("address", 1 << 40)])
def test_the_entry_of_a_chunk_with_a_checksum_is_checked(what, value, tmp_path):
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        made = file.create_dataset("a", data=np.arange(300, dtype=np.int64), chunks=(100,), fletcher32=True)
        chunk = made.id.get_chunk_info(1)
    entry = struct.pack("<IIQQQ", chunk.size, chunk.filter_mask, *chunk.chunk_offset, 0, chunk.byte_offset)
    content = path.read_bytes()
    assert content.count(entry) == 1
    facts = {"size": chunk.size, "mask": chunk.filter_mask, "address": chunk.byte_offset, what: value}
    other = struct.pack("<IIQQQ", facts["size"], facts["mask"], *chunk.chunk_offset, 0, facts["address"])
    assert HDF5DataSource(path)[150] == {"a": 150}
    path.write_bytes(content.replace(entry, other))
    with pytest.raises(DamagedFile, match=r"x\.h5.*the entry of the chunk at \(100,\) of 'a' is damaged"):
        HDF5DataSource(path)


@pytest.mark.parametrize("libver", [None, "latest"])
@pytest.mark.parametrize("before_bytes", [0, 4096])
def test_chunks_with_checksums_in_any_layout_are_read(libver, before_bytes, tmp_path):
    rng = np.random.default_rng(0)
    with h5py.File(tmp_path / "other.h5", "w", libver=libver) as file:
        file.create_dataset("large", data=rng.random((50, 900)), chunks=(1, 900), fletcher32=True)
    with h5py.File(tmp_path / "x.h5", "w", libver=libver, userblock_size=before_bytes) as file:
        file.create_dataset("edges", data=rng.random((50, 7)), chunks=(8, 3), fletcher32=True, compression="gzip")
        file.create_dataset("empty", shape=(50,), dtype="i4", chunks=(8,), fletcher32=True)
        grown = file.create_dataset("grown", data=np.arange(20), chunks=(8,), fletcher32=True, maxshape=(None,))
        grown.resize((50,))
        shrunk = file.create_dataset("shrunk", data=np.arange(90), chunks=(8,), fletcher32=True, maxshape=(None,))
        shrunk.resize((50,))
        file["link"] = h5py.ExternalLink("other.h5", "/large")
    records = list(HDF5DataSource(tmp_path / "x.h5", allow_other_files=True))
    assert [record["shrunk"] for record in records] == list(range(50))
    assert len(HDF5DataSource(tmp_path / "x.h5", columns=["link"], allow_other_files=True)[49]["link"]) == 900


def test_a_panic_of_lance_is_a_damaged_file(tmp_path):
    """Its PanicException is no Exception, so that `except Exception` would let it end a worker."""
    import lance

    path = tmp_path / "x.lance"
    lance.write_dataset(pa.table({"x": range(20)}), path)
    (manifest,) = path.glob("_versions/*.manifest")
    content = manifest.read_bytes()
    causes = set()
    for place in range(0, len(content), 7):
        manifest.write_bytes(content[:place] + content[place + 1 :])
        try:
            source = LanceDataSource(path)
            source.fingerprint()
            list(source)
        except (DamagedFile, FileNotFoundError) as error:
            assert "x.lance" in str(error)
            causes.add(type(error.__cause__).__name__)
    assert "PanicException" in causes

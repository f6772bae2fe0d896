"""Limits of what is decompressed and decoded: small files that stand for much are refused before they take memory."""

import gzip
import io
import os
import struct
import subprocess
import sys
import zlib

import brotli
import cramjam
import crc32c
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import simplejpeg
import soundfile
import zstandard
from helpers.record_formats import written
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

import bushel.experimental
from bushel import DamagedFile, MapDataset, MultiprocessingOptions, TooLarge
from bushel._src.datasets.grain_classes import TFRecordIterDataset
from bushel._src.sources import decompression, size_limits, tfrecord
from bushel._src.sources.checksums import compute_length_checksums, mask
from bushel._src.trajectory import pixels as robots_images
from bushel.sources import (
    ArrayRecordDataSource,
    BagzDataSource,
    Limits,
    ParquetDataSource,
    convert,
    decode_audio,
    decode_image,
    get_limits,
    load_arrays,
    set_limits,
)

MIB = 1 << 20


@pytest.fixture
def limited(monkeypatch):
    """Changes limits for one test."""
    for variable in size_limits._VARIABLES.values():
        monkeypatch.setenv(variable, "")
    monkeypatch.setattr(size_limits, "_current", None)
    return set_limits


# Small things that stand for large ones.


def zstd_bomb(size: int, *, stated: int | None = None) -> bytes:
    """A frame of zeros: each 128 KiB are a block of 4 bytes."""
    blocks = size >> 17
    header = b"\x28\xb5\x2f\xfd\xc0\x38" + struct.pack("<Q", size if stated is None else stated)
    return header + b"".join(
        ((number == blocks - 1) | 1 << 1 | 1 << 17 << 3).to_bytes(3, "little") + b"\0" for number in range(blocks)
    )


def write_bagz(path, records):
    ends = np.cumsum([len(record) for record in records]).astype("<u8")
    path.write_bytes(b"".join(records) + ends.tobytes())
    return path


def write_gzip_tfrecord(path, size: int):
    """A record of `size` zeros between two small ones, compressed."""

    def packed(data):
        compress = zlib.compressobj(9, wbits=31)
        return compress.compress(data) + compress.flush()

    def header(length):
        lengths = np.array([length], "<u8")
        return lengths.tobytes() + compute_length_checksums(lengths).astype("<u4").tobytes()

    small = header(5) + b"small" + struct.pack("<I", mask(crc32c.crc32c(b"small")))
    piece = packed(bytes(16 * MIB))
    path.write_bytes(packed(small + header(size)) + piece * (size // (16 * MIB)) + packed(b"0000" + small))
    return path


def jpeg_of(height: int, width: int) -> bytes:
    data = bytearray(simplejpeg.encode_jpeg(np.zeros((8, 8, 3), np.uint8)))
    place = data.find(b"\xff\xc0")
    data[place + 5 : place + 9] = struct.pack(">HH", height, width)
    return bytes(data)


def encoded(kind: str, height: int, width: int) -> bytes:
    """An image file whose header states another size than it was written with."""
    if kind == "jpeg":
        return jpeg_of(height, width)
    file = io.BytesIO()
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(file, kind, **({"lossless": True} if kind == "webp" else {}))
    data = bytearray(file.getvalue())
    if kind == "png":
        data[16:24] = struct.pack(">II", width, height)
        data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
    elif kind == "gif":
        data[6:10] = struct.pack("<HH", width, height)
    elif kind == "bmp":
        data[18:26] = struct.pack("<ii", width, height)
    elif kind == "webp":  # VP8L: 14 bits each, after a signature
        place = data.find(b"VP8L") + 9
        size = int.from_bytes(data[place : place + 4], "little") & ~((1 << 28) - 1)
        data[place : place + 4] = (size | (width - 1) | (height - 1) << 14).to_bytes(4, "little")
    return bytes(data)


SIZES = {"jpeg": (65_000, 65_000), "png": (30_000, 30_000), "gif": (60_000, 60_000), "bmp": (20_000, 20_000)}
SIZES["webp"] = (16_000, 16_000)

# Each is refused, with a sentence.


def test_a_record_of_bagz(tmp_path):
    good = zstandard.ZstdCompressor().compress(b"good")
    source = BagzDataSource(write_bagz(tmp_path / "x.bagz", [good, zstd_bomb(3 << 30), good]))
    assert source[0] == source[2] == b"good"
    told = (
        r"x\.bagz: record 1 is not read: it would take 3,221,225,472 bytes once decompressed, but the limit is "
        r"1,073,741,824 bytes\. If you trust the file, raise the limit: "
        r"bushel\.sources\.set_limits\(record_bytes=3221225472\), or the environment variable BUSHEL_MAX_RECORD_BYTES\."
    )
    with pytest.raises(TooLarge, match=told):
        source[1]
    with pytest.raises(TooLarge, match="record 1 is not read"):
        source.__getitems__([0, 2, 1, 0, 2, 0, 2, 0, 2, 0])
    with pytest.raises(TooLarge, match="record 1 is not read"):
        source.__getitems__([0, 1, 2])


def test_a_record_that_lies_about_its_size_or_does_not_tell(tmp_path, limited):
    stream = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(3 * MIB))
    lies = [zstd_bomb(2 * MIB, stated=stated) for stated in (1, MIB, 3 * MIB, 1 << 40)]
    source = BagzDataSource(write_bagz(tmp_path / "x.bagz", [stream, *lies]))
    assert source[0] == bytes(3 * MIB)
    for number in range(1, 5):
        with pytest.raises(ValueError, match=rf"x\.bagz: record {number} is (damaged|not read)"):
            source[number]
    limited(record_bytes=2 * MIB)
    with pytest.raises(TooLarge, match="it would take more than 2,097,152 bytes"):
        source[0]


def test_the_limit_itself_is_allowed(tmp_path, limited):
    source = BagzDataSource(write_bagz(tmp_path / "x.bagz", [zstd_bomb(2 * MIB)]))
    limited(record_bytes=2 * MIB)
    assert source[0] == source.__getitems__([0] * 10)[3] == bytes(2 * MIB)
    limited(record_bytes=2 * MIB - 1)
    for read in (lambda: source[0], lambda: source.__getitems__([0] * 10)):
        with pytest.raises(TooLarge):
            read()


@pytest.mark.parametrize("name", ["zstd", "brotli", "snappy"])
def test_decompressors_give_what_was_announced_and_no_more(name, limited):
    pack, unpack = {
        "zstd": (zstandard.ZstdCompressor().compress, decompression.decompress_zstd),
        "brotli": (lambda data: brotli.compress(data, quality=3), decompression.decompress_brotli),
        "snappy": (lambda data: bytes(cramjam.snappy.compress_raw(data)), decompression.decompress_snappy),
    }[name]
    data = np.random.default_rng(0).integers(0, 4, 3 * MIB, np.uint8).tobytes()
    assert unpack(pack(data), len(data)) == unpack(memoryview(pack(data)), len(data)) == data
    for size in (len(data) - 1, len(data) + 1, 1):
        with pytest.raises(ValueError, match=r"instead of|stated|ends early|announced"):
            if len(unpack(pack(data), size)) != size:
                raise ValueError("other bytes than were announced")
    with pytest.raises(Exception, match=r"(?i)end|decompress|incomplete|corrupt|snappy"):
        unpack(pack(data)[:-5], len(data))
    limited(record_bytes=len(data) - 1)
    with pytest.raises(TooLarge):
        unpack(pack(data), len(data))


def test_brotli_of_other_sizes_than_announced():
    for size in (1, 100_000_000):
        with pytest.raises(ValueError, match="more than the stated 1 bytes" if size == 1 else "ends early|announced"):
            if len(decompression.decompress_brotli(brotli.compress(bytes(1000)), size)) != size:
                raise ValueError("announced otherwise")


def test_zlib_within_a_limit(limited):
    packed = zlib.compress(bytes(MIB))
    limited(record_bytes=MIB)
    assert decompression.decompress_zlib(packed) == bytes(MIB)
    limited(record_bytes=MIB - 1)
    with pytest.raises(TooLarge, match="more than 1,048,575 bytes"):
        decompression.decompress_zlib(packed)
    limited(record_bytes=2 * MIB)
    with pytest.raises(zlib.error):
        decompression.decompress_zlib(packed[:-5])


@pytest.mark.parametrize("name", ["array_record zstd", "array_record brotli", "array_record snappy"])
def test_records_of_array_record(name, tmp_path, limited):
    path = written(tmp_path, name, [b"small", bytes(MIB), b"small"])
    source = ArrayRecordDataSource(path)
    assert source[1] == bytes(MIB)
    limited(record_bytes=MIB // 2)
    with pytest.raises(
        TooLarge, match=rf"{path.name}: (record 1|the chunk of records 0 to 1) is not read: it would take"
    ):
        source[1]


def test_a_compressed_tfrecord_file(tmp_path, limited):
    ds = TFRecordIterDataset(write_gzip_tfrecord(tmp_path / "x.tfrecord.gz", 64 * MIB))
    assert [len(record) for record in ds.with_options(on_error="skip")] == [5, 5]  # its checksum is a wrong one
    limited(record_bytes=16 * MIB)
    it = iter(ds)
    assert next(it) == b"small"
    with pytest.raises(
        TooLarge, match=r"x\.tfrecord\.gz \(record 1, at byte 21\) is not read: it would take 67,108,864"
    ):
        next(it)
    skipping = ds.with_options(on_error="skip", skip_limit=1)
    assert list(skipping) == [b"small", b"small"]  # also the one behind it


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.sampled_from([0, 1, 7, 16, 48, 100, 1000]), min_size=1, max_size=12),
    chunk=st.sampled_from([1, 16, 32, 64, 1000]),
    window=st.sampled_from([16, 17, 100]),
    cut=st.integers(1, 6),
    taken=st.integers(0, 12),
)
def test_compressed_records_are_the_same_in_pieces_of_any_size(sizes, chunk, window, cut, taken, tmp_path, monkeypatch):
    monkeypatch.setattr(tfrecord, "_CHUNK", chunk)
    monkeypatch.setattr(tfrecord, "_WINDOW", window)
    records = [bytes([number]) * size for number, size in enumerate(sizes)]
    plain = written(tmp_path, "tfrecord", records).read_bytes()
    path = tmp_path / "x.tfrecord.gz"
    step = len(plain) // cut + 1
    path.write_bytes(b"".join(gzip.compress(plain[low : low + step]) for low in range(0, len(plain), step)))
    ds = TFRecordIterDataset(path)
    assert list(ds) == records
    it, taken = iter(ds), min(taken, len(records))
    for _ in range(taken):
        next(it)
    later = iter(ds)
    later.set_state(it.get_state())
    assert list(later) == records[taken:]
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(DamagedFile, match=r"x\.tfrecord\.gz ends in the middle"):
        list(ds)


def test_decompressors_of_python_itself(limited):
    """Those of zstd are there from Python 3.14 on, and behave as those of zlib do."""

    def unpack(data, size):
        return decompression._decompress_bounded(zlib.decompressobj(), data, size)

    data = zlib.compress(bytes(1000))
    assert unpack(data, 1000) == unpack(data, 0) == bytes(1000)
    for size, told in (
        (999, "more than the stated 999 bytes"),
        (1001, "it has 1000 bytes instead of 1001"),
        (1, "more than the stated 1 b"),
    ):
        with pytest.raises(ValueError, match=told):
            unpack(data, size)
    with pytest.raises(ValueError, match="ends early"):
        unpack(data[:-4], 0)
    limited(record_bytes=1000)
    assert unpack(data, 0) == bytes(1000)
    limited(record_bytes=999)
    for size in (0, 1000):
        with pytest.raises(TooLarge):
            unpack(data, size)


def test_empty_records_of_every_compression():
    assert decompression.decompress_brotli(brotli.compress(b""), 0) == b""
    assert decompression.decompress_snappy(bytes(cramjam.snappy.compress_raw(b"")), 0) == b""
    assert decompression.decompress_zstd(zstandard.ZstdCompressor().compress(b""), 0) == b""
    assert decompression.decompress_zlib(zlib.compress(b"")) == b""


@pytest.mark.parametrize("kind", SIZES)
@pytest.mark.parametrize("decode", [decode_image, robots_images.decode_image])
def test_images_that_are_too_large_are_refused(kind, decode):
    height, width = SIZES[kind]
    with pytest.raises(ValueError, match=rf"({height} x {width}|exceeds limit|no complete image)") as raised:
        decode(encoded(kind, height, width))
    if kind in ("jpeg",):
        told = r"These \d+ bytes are an image that is not decoded: it would take 4,225,000,000 pixels once decoded"
        assert raised.match(told + r" \(65000 x 65000\), but the limit is 134,217,728 pixels\. If you trust the file")


@pytest.mark.parametrize("kind", SIZES)
@pytest.mark.parametrize("decode", [decode_image, robots_images.decode_image])
def test_the_limit_of_images(kind, decode, limited):
    data = encoded(kind, 8, 8)
    limited(image_pixels=64)
    assert decode(data).shape[:2] == (8, 8)
    limited(image_pixels=63)
    with pytest.raises(TooLarge, match=r"8 x 8\), but the limit is 63 pixels.*set_limits\(image_pixels=64\)"):
        decode(data)


@pytest.mark.parametrize("decode", [decode_image, robots_images.decode_image])
def test_no_program_is_run_for_an_image(decode):
    file = io.BytesIO()
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(file, "eps")
    with pytest.raises(ValueError, match="EPS files are not decoded, because they are programs"):
        decode(file.getvalue())


def test_sounds_that_are_too_long_are_refused(limited):
    file = io.BytesIO()
    soundfile.write(file, np.zeros((1000, 2), np.float32), 8000, format="FLAC")
    data = bytearray(file.getvalue())
    assert decode_audio(bytes(data))[0].shape == (1000, 2)
    data[21:26] = bytes([data[21] | 0x0F, 255, 255, 255, 255])  # how many samples there are
    with pytest.raises(ValueError, match=r"These .* bytes are (a sound that is not decoded|no complete sound)"):
        decode_audio(bytes(data))
    limited(record_bytes=7999)
    with pytest.raises(TooLarge, match="a sound that is not decoded: it would take 8,000 bytes"):
        decode_audio(file.getvalue())


def test_arrays_that_are_too_large_are_refused(tmp_path, limited):
    np.savez_compressed(tmp_path / "x.npz", a=np.zeros(1000))
    np.savez(tmp_path / "plain.npz", a=np.zeros(1000))
    limited(array_bytes=5000)
    with pytest.raises(TooLarge, match=r"x\.npz is not read: it would take 8,128 bytes.*array_bytes=8128"):
        load_arrays(tmp_path / "x.npz")
    assert load_arrays(tmp_path / "plain.npz")["a"].shape == (1000,)  # takes no more memory than it does on disk


# Where limits come from.


BOMBS = {
    "bytes": lambda: [b"\0" * (300 * MIB)],
    "numbers": lambda: [np.zeros(40 * MIB)],
    "rows": lambda: [b"\0" * MIB] * 300,
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_small_parquet_file_that_would_take_much_memory(bomb, tmp_path, limited):
    table = pa.table({"id": list(range(len(BOMBS[bomb]()))), "x": BOMBS[bomb]()})
    pq.write_table(table, tmp_path / "bomb.parquet", compression="zstd", use_dictionary=bomb == "numbers")
    assert (tmp_path / "bomb.parquet").stat().st_size < MIB
    says = (
        r"bomb\.parquet: the column 'x[\w.]*' of row group 0 is not read: it would take [\d,]+ bytes once decoded, "
        r"[\d,]+ times as many as in the file, but the limit is 1,000 times\. If you trust the file, raise the limit: "
        r"bushel\.sources\.set_limits\(expansion=\d+\), or the environment variable BUSHEL_MAX_EXPANSION\."
    )
    with pytest.raises(TooLarge, match=says):
        ParquetDataSource(tmp_path / "bomb.parquet")[0]
    with pytest.raises(TooLarge, match=says):
        next(iter(bushel.experimental.ParquetIterDataset(str(tmp_path / "bomb.parquet"))))
    with pytest.raises(TooLarge, match=says):
        convert(tmp_path / "bomb.parquet", tmp_path / "out.tfrecord")
    assert ParquetDataSource(tmp_path / "bomb.parquet", columns=["id"])[0] == {"id": 0}
    limited(expansion=10**9)
    assert len(ParquetDataSource(tmp_path / "bomb.parquet")[0]["x"])


def test_a_parquet_file_with_records_beyond_the_limit(tmp_path, limited):
    pq.write_table(pa.table({"x": [b"ab" * 1000]}), tmp_path / "x.parquet")
    limited(record_bytes=1500)
    with pytest.raises(TooLarge, match=r"the column 'x' of row group 0 is not read: .*set_limits\(record_bytes="):
        ParquetDataSource(tmp_path / "x.parquet")[0]


def test_limits_are_set_and_given_back(limited):
    assert get_limits() == Limits()
    assert limited(record_bytes=5, image_pixels=6) == Limits()
    assert get_limits() == Limits(5, 6) and os.environ["BUSHEL_MAX_RECORD_BYTES"] == "5"
    for wrong in (0, -1, 1.5, "1"):
        with pytest.raises((TypeError, ValueError), match="record_bytes must be"):
            limited(record_bytes=wrong)


def test_limits_of_the_environment(limited, monkeypatch):
    monkeypatch.setenv("BUSHEL_MAX_IMAGE_PIXELS", "1000")
    assert get_limits() == Limits(image_pixels=1000)
    monkeypatch.setattr(size_limits, "_current", None)
    monkeypatch.setenv("BUSHEL_MAX_RECORD_BYTES", "1GB")
    with pytest.raises(ValueError, match="BUSHEL_MAX_RECORD_BYTES must be a positive whole number, got '1GB'"):
        get_limits()


def test_workers_have_the_limits_of_the_consumer(tmp_path, limited):
    source = BagzDataSource(write_bagz(tmp_path / "x.bagz", [zstd_bomb(2 * MIB)] * 4))
    limited(record_bytes=MIB)
    ds = MapDataset.source(source).to_iter_dataset().mp_prefetch(MultiprocessingOptions(num_workers=1))
    with iter(ds) as it, pytest.raises(TooLarge, match="the limit is 1,048,576 bytes"):
        next(it)


# Memory.

PROGRAM = """
import os, pathlib, resource, sys
sys.path.insert(0, sys.argv[1])
import test_size_limits as bombs
from bushel import TooLarge

folder = pathlib.Path(sys.argv[2])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
address = 4 << 30
resource.setrlimit(resource.RLIMIT_AS, (address, resource.getrlimit(resource.RLIMIT_AS)[1]))
good = bombs.zstandard.ZstdCompressor().compress(b"good")
bagz = bombs.BagzDataSource(bombs.write_bagz(folder / "x.bagz", [good, bombs.zstd_bomb(8 << 30)]))
many = folder / "many.tfrecord.gz"
cases = {
    "bagz": lambda: bagz[1],
    "bagz in blocks": lambda: bagz.__getitems__([1, 0] * 10),
    "tfrecord": lambda: list(bombs.TFRecordIterDataset(bombs.write_gzip_tfrecord(folder / "x.tfrecord.gz", 4 << 30))),
    "brotli": lambda: bombs.decompression.decompress_brotli(bombs.brotli.compress(bytes(64 << 20), quality=1), 1000),
}
for kind, size in bombs.SIZES.items():
    for decode in (bombs.decode_image, bombs.robots_images.decode_image):
        data = bombs.encoded(kind, *size)
        cases[f"{kind} {decode.__module__}"] = lambda decode=decode, data=data: decode(data)
for name, case in cases.items():
    try:
        case()
    except ValueError as error:
        print(name, type(error).__name__)
    else:
        print(name, "was read")
it = iter(bombs.TFRecordIterDataset(many))  # small records, many in each compressed byte
assert len(next(it)) == 10
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
unit = 1 << 20 if sys.platform == "darwin" else 1 << 10
print("grew", (after - before) // unit)
"""


def test_what_is_refused_takes_no_memory(tmp_path):
    record = compute_length_checksums(np.array([10], "<u8")).astype("<u4").tobytes()
    record = struct.pack("<Q", 10) + record + bytes(10) + struct.pack("<I", mask(crc32c.crc32c(bytes(10))))
    compress = zlib.compressobj(9, wbits=31)
    one = compress.compress(record * 600_000) + compress.flush()
    (tmp_path / "many.tfrecord.gz").write_bytes(one * 40)  # 624 MB of records
    ran = [sys.executable, "-c", PROGRAM, os.path.dirname(__file__), str(tmp_path)]
    threads = {"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": os.path.dirname(os.path.dirname(__file__))}
    ended = subprocess.run(ran, capture_output=True, text=True, env={**os.environ, **threads})
    assert ended.returncode == 0, ended.stderr[-3000:]
    *cases, grew = ended.stdout.splitlines()
    assert len(cases) == 14 and all(case.endswith(("TooLarge", "ValueError")) for case in cases), cases
    assert int(grew.removeprefix("grew ")) < 250, ended.stdout  # MiB

"""Compressed text is read as text or refused, never as lines of compressed bytes: the content decides, not the name."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import pickle
import zipfile

import numpy as np
import pytest
import zstandard
from helpers.servers import BUCKET, Web, s3
from hypothesis import given, settings
from hypothesis import strategies as st

import bushel
from bushel import MapDataset, sources
from bushel._src.base.errors import DamagedFile, TooLarge
from bushel._src.inspection.inspector import inspect_target
from bushel.sources import ArrayRecordDataSource, LineDataSource, convert

LINES = [b'{"a": %d, "text": "%s"}' % (n, b"xy" * (n % 7)) for n in range(400)]
TEXT = b"\n".join(LINES) + b"\n"

COMPRESSED = {
    ".gz": gzip.compress,
    ".zst": zstandard.ZstdCompressor().compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}


@pytest.mark.parametrize("ending", COMPRESSED)
@pytest.mark.parametrize("name", ["x.jsonl{}", "x.jsonl", "x.txt", "x.csv{}"])
def test_compressed_lines_are_lines(tmp_path, ending, name):
    path = tmp_path / name.format(ending)
    path.write_bytes(COMPRESSED[ending](TEXT))
    source = sources.open(path)
    assert isinstance(source, LineDataSource) and list(source) == LINES
    assert source[399] == LINES[399] and source.__getitems__([5, 3, -1]) == [LINES[5], LINES[3], LINES[399]]
    assert pickle.loads(pickle.dumps(source))[17] == LINES[17]
    assert source.fingerprint() == LineDataSource(path).fingerprint()


@pytest.mark.parametrize("ending", COMPRESSED)
def test_workers_inspect_and_convert_read_them_too(tmp_path, ending):
    path = tmp_path / f"x.jsonl{ending}"
    path.write_bytes(COMPRESSED[ending](TEXT))
    convert(path, tmp_path / "x.array_record")
    assert list(ArrayRecordDataSource(tmp_path / "x.array_record")) == LINES
    facts = inspect_target(str(path))
    assert (facts.format, facts.count, facts.damage) == ("lines of text", 400, [])
    misnamed = tmp_path / "y.jsonl"
    misnamed.write_bytes(path.read_bytes())
    convert(misnamed, tmp_path / "y.bagz")
    assert len(sources.BagzDataSource(tmp_path / "y.bagz")) == 400


def test_workers_read_compressed_lines():
    import tempfile

    with tempfile.TemporaryDirectory() as folder, open(f"{folder}/x.jsonl.gz", "wb") as file:
        file.write(gzip.compress(TEXT))
        file.flush()
        stream = MapDataset.source(LineDataSource(file.name)).to_iter_dataset()
        with iter(stream.mp_prefetch(bushel.MultiprocessingOptions(num_workers=2))) as lines:
            assert list(lines) == LINES


@settings(max_examples=60, deadline=None)
@given(
    parts=st.lists(st.binary(max_size=300), max_size=4),
    ending=st.sampled_from(list(COMPRESSED)),
    padding=st.sampled_from([b"", b"\0\0\0\0"]),
)
def test_members_one_after_the_other(tmp_path_factory, parts, ending, padding):
    path = tmp_path_factory.mktemp("lines") / "x.txt"
    content = b"".join(part + b"\n" for part in parts)
    members = [COMPRESSED[ending](part + b"\n") for part in parts] or [COMPRESSED[ending](b"")]
    path.write_bytes((padding if ending != ".zst" else b"").join(members) + padding)
    try:
        found = list(LineDataSource(path))
    except ValueError as error:  # what is inside looks compressed too, or is UTF-16
        assert "compressed" in str(error) or "damaged" in str(error) or "UTF-16" in str(error)
        return
    assert found == [line.removesuffix(b"\r") for line in content.split(b"\n")[:-1]]


@pytest.mark.parametrize("ending", COMPRESSED)
def test_every_cut_and_every_damaged_byte_is_named(tmp_path, ending):
    path = tmp_path / "x.jsonl"
    data = COMPRESSED[ending](b"".join(b"%d\n" % n for n in range(50)))
    expected = [b"%d" % n for n in range(50)]
    for cut in range(12, len(data)):
        path.write_bytes(data[:cut])
        with pytest.raises(DamagedFile, match=r"x.jsonl is damaged: its \w+ data (end early|cannot be decompressed)"):
            LineDataSource(path)
    for place in range(12, len(data)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :])
        try:
            found = list(LineDataSource(path))
        except (DamagedFile, TooLarge):
            continue
        assert found == expected or ending == ".zst"  # a frame of zstd has no checksum by default
    path.write_bytes(data + b"trailing bytes")
    with pytest.raises(DamagedFile, match=r"behind its \w+ data are bytes that are not"):
        LineDataSource(path)


@pytest.mark.parametrize("ending", COMPRESSED)
def test_a_file_that_is_cut_in_its_first_bytes_is_not_text(tmp_path, ending):
    path = tmp_path / f"x.jsonl{ending}"
    for cut in range(1, 12):
        path.write_bytes(COMPRESSED[ending](TEXT)[:cut])
        with pytest.raises(DamagedFile, match=r"x\.jsonl.* is damaged: .*cut short"):
            LineDataSource(path)


@pytest.mark.parametrize("ending", COMPRESSED)
def test_a_bomb_stops_at_the_limit(tmp_path, ending):
    path = tmp_path / f"x.jsonl{ending}"
    path.write_bytes(COMPRESSED[ending](bytes(8 << 20)))
    before = sources.set_limits(record_bytes=1 << 20)
    try:
        with pytest.raises(TooLarge, match=r"x.jsonl.*: it would take more than 1,048,576 bytes once decompressed"):
            LineDataSource(path)
    finally:
        sources.set_limits(record_bytes=before.record_bytes)


def test_twice_compressed_and_more(tmp_path):
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(gzip.compress(gzip.compress(TEXT)))
    assert list(LineDataSource(path)) == LINES
    path.write_bytes(gzip.compress(gzip.compress(gzip.compress(TEXT))))
    with pytest.raises(ValueError, match=r"x\.jsonl\.gz is compressed more than 2 times\. Decompress it first"):
        LineDataSource(path)


def test_other_compressions_are_named(tmp_path):
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("x.jsonl", TEXT)
    path = tmp_path / "x.jsonl"
    for content, name in ((archive.getvalue(), "zip"), (b"\x04\x22\x4d\x18" + bytes(20), "lz4")):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=f"x.jsonl is compressed with {name}, which Bushel does not read as text"):
            LineDataSource(path)
    brotli = tmp_path / "x.jsonl.br"
    brotli.write_bytes(b"\x0b\x02\x80")
    with pytest.raises(ValueError, match=r"x\.jsonl\.br is compressed with Brotli"):
        LineDataSource(brotli)


def test_plain_text_under_the_name_of_a_compressed_file(tmp_path):
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(TEXT)  # as a browser or a proxy leaves it
    assert list(sources.open(path)) == LINES
    path.write_bytes(b"")
    assert len(sources.open(path)) == 0


def test_utf_16_is_named(tmp_path):
    path = tmp_path / "x.txt"
    path.write_text("one\ntwo\n", encoding="utf-16")
    with pytest.raises(
        ValueError, match=r"x\.txt is text in UTF-16 or UTF-32, which cannot be cut into lines of bytes"
    ):
        LineDataSource(path)


@pytest.mark.parametrize("encoding", [None, "gzip"])
def test_compressed_lines_are_read_over_http(encoding):
    with Web({"/x.jsonl": gzip.compress(TEXT)}) as web:
        web.encoding = encoding
        assert list(LineDataSource(f"{web.url}/x.jsonl")) == LINES


def test_compressed_lines_are_read_from_a_store(tmp_path):
    with s3(tmp_path) as put:
        put("x.jsonl", gzip.compress(TEXT))
        assert LineDataSource(f"s3://{BUCKET}/x.jsonl").__getitems__(np.array([0, 399])) == [LINES[0], LINES[399]]

"""The command `bushel convert`: between every two formats, in parallel, verified, and whole or not at all."""

import os
import random
import signal
import subprocess
import sys
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from formats import array_record, bag, tfrecord

from bushel import cli
from bushel.sources import (
    ArrayRecordDataSource,
    BagzDataSource,
    DamagedFile,
    ParquetDataSource,
    TFRecordDataSource,
    convert,
    decode_example,
)

RECORDS = [random.Random(number).randbytes(number * 13 % 3_000) for number in range(250)]


def parquet(path, records):
    pq.write_table(pa.table({"record": pa.array(records, pa.binary())}), path, row_group_size=50)


WRITERS = {
    "array_record": array_record("group_size:1,uncompressed"),
    "tfrecord": tfrecord,
    "bag": bag,
    "bagz": bag,
    "parquet": parquet,
}
READERS = {
    "array_record": ArrayRecordDataSource,
    "tfrecord": TFRecordDataSource,
    "bag": BagzDataSource,
    "bagz": BagzDataSource,
    "parquet": lambda path: [row["record"] for row in ParquetDataSource(path)],
}


def bushel(*words):
    return subprocess.run(
        [sys.executable, "-m", "bushel", *map(str, words)], capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize("to", WRITERS)
@pytest.mark.parametrize("of", WRITERS)
def test_every_format_into_every_other(of, to, tmp_path):
    WRITERS[of](tmp_path / f"in.{of}", RECORDS)
    assert convert(tmp_path / f"in.{of}", tmp_path / "made" / f"out.{to}") == [str(tmp_path / "made" / f"out.{to}")]
    assert list(READERS[to](tmp_path / "made" / f"out.{to}")) == RECORDS
    assert os.listdir(tmp_path / "made") == [f"out.{to}"]


def test_the_command_with_two_workers(tmp_path):
    for number in range(3):
        tfrecord(tmp_path / f"in-{number}.tfrecord", RECORDS[number * 100 : number * 100 + 100])
    done = bushel("convert", tmp_path / "in-*.tfrecord", tmp_path / "out.array_record", "--workers", 2, "--shards", 4)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("250 records, ") and done.stdout.endswith(" MB in 4 files\n")
    assert sorted(path.name for path in tmp_path.glob("out*")) == [
        f"out-0000{n}-of-00004.array_record" for n in range(4)
    ]
    assert list(ArrayRecordDataSource(str(tmp_path / "out-*.array_record"))) == RECORDS


def test_rows_of_a_table_become_examples(tmp_path):
    pq.write_table(pa.table({"x": [1, 2], "text": ["a", "b"], "none": pa.array([None, 1.5])}), tmp_path / "in.parquet")
    convert(tmp_path / "in.parquet", tmp_path / "out.bag")
    first, second = map(decode_example, BagzDataSource(tmp_path / "out.bag"))
    assert (first["x"].tolist(), first["text"]) == ([1], [b"a"])
    assert (second["x"].tolist(), second["none"].tolist()) == ([2], [1.5])


def test_lines_of_text_become_records(tmp_path):
    (tmp_path / "in.jsonl").write_text('{"a": 1}\n{"a": 2}\n')
    convert(tmp_path / "in.jsonl", tmp_path / "out.array_record")
    assert list(ArrayRecordDataSource(tmp_path / "out.array_record")) == [b'{"a": 1}', b'{"a": 2}']


def test_what_is_there_stays_unless_told(tmp_path):
    bag(tmp_path / "in.bag", RECORDS)
    (tmp_path / "out.bag").write_bytes(b"mine")
    done = bushel("convert", tmp_path / "in.bag", tmp_path / "out.bag", "--workers", 1)
    assert done.returncode == 1
    assert "out.bag is there already. Pass overwrite=True (--overwrite) to replace it." in done.stderr
    assert (tmp_path / "out.bag").read_bytes() == b"mine"
    assert cli.main(["convert", f"{tmp_path}/in.bag", f"{tmp_path}/out.bag", "--workers", "1", "--overwrite"]) == 0
    assert list(BagzDataSource(tmp_path / "out.bag")) == RECORDS


@pytest.mark.parametrize("of", ["tfrecord", "array_record"])
def test_a_damaged_source_makes_no_file(of, tmp_path):
    """A flipped bit of a record, in a format that has checksums: it must not get a new checksum that fits."""
    name = f"in.{of}"
    WRITERS[of](tmp_path / name, [b"record %d " % number * 20 for number in range(250)])
    content = bytearray((tmp_path / name).read_bytes())
    content[content.find(b"record 120 ")] ^= 1
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DamagedFile, match=rf"in\.{of}: record 120 is damaged"):
        convert(tmp_path / name, tmp_path / "out.bag")
    assert [path.name for path in tmp_path.iterdir()] == [name]
    done = bushel("convert", tmp_path / name, tmp_path / "out.bag", "--workers", 2)
    assert done.returncode == 1
    assert name in done.stderr and "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_targets_are_local(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    bag(tmp_path / "in.bag", RECORDS)
    assert convert("in.bag", f"file://{tmp_path}/one.bag") == [f"{tmp_path}/one.bag"]
    assert convert("in.bag", "~/two.bag") == [f"{tmp_path}/home/two.bag"]
    with pytest.raises(ValueError, match=r"s3://bucket/x\.bag cannot be written: convert makes local files"):
        convert("in.bag", "s3://bucket/x.bag")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "in.bag", "one.bag"]


def test_what_was_written_wrong_is_noticed(tmp_path, monkeypatch):
    bag(tmp_path / "in.bag", RECORDS)
    from bushel.sources import writers

    real = writers.BagWriter.write
    monkeypatch.setattr(writers.BagWriter, "write", lambda self, record: real(self, record.replace(b"\x07", b"\x08")))
    with pytest.raises(DamagedFile, match="what was written is not what was read back"):
        convert(tmp_path / "in.bag", tmp_path / "out.bag")
    assert [path.name for path in tmp_path.iterdir()] == ["in.bag"]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_conversion_leaves_nothing_that_looks_complete(how, tmp_path):
    bag(tmp_path / "in.bag", [bytes(50_000)] * 4_000)
    words = [sys.executable, "-m", "bushel", "convert", tmp_path / "in.bag", tmp_path / "out.parquet", "--workers", "1"]
    process = subprocess.Popen([*map(str, words)], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("out*")) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(how)
    process.communicate(timeout=60)
    assert process.returncode != 0
    left = [path.name for path in tmp_path.glob("out*")]
    assert all(name.endswith(".part") for name in left)
    if how == signal.SIGINT:
        assert left == []


BAD = {
    "unknown source": (["in.xyz", "out.bag"], "in.xyz cannot be read: its name should end in one of .array_record"),
    "unknown target": (["in.bag", "out.xyz"], "out.xyz cannot be written: its name should end in one of"),
    "several formats": (["in.bag", "in.tfrecord", "out.bagz"], "The sources are of several formats (bag, tfrecord)"),
    "no source": (["none-*.bag", "out.bag"], "No file matches"),
    "no workers": (["in.bag", "out.bagz", "--workers", "0"], "workers must be positive, but got 0"),
}


@pytest.mark.parametrize(("words", "sentence"), BAD.values(), ids=BAD)
def test_bad_words_get_a_sentence(words, sentence, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    bag(tmp_path / "in.bag", RECORDS[:3])
    tfrecord(tmp_path / "in.tfrecord", RECORDS[:3])
    (tmp_path / "in.xyz").write_bytes(b"")
    assert cli.main(["convert", *words]) == 1
    assert f"bushel: {sentence}" in capsys.readouterr().err

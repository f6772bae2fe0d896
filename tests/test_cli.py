"""The command `bushel convert`: between every two formats, in parallel, verified, and whole or not at all."""

import contextlib
import datetime
import decimal
import gzip
import os
import random
import re
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.processes import alive, offspring, run_script
from helpers.record_formats import array_record, bag, tfrecord
from helpers.servers import Web
from hypothesis import given, settings
from hypothesis import strategies as st

from bushel import DamagedFile, __version__
from bushel._src import cli
from bushel.sources import (
    ArrayRecordDataSource,
    BagzDataSource,
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
        [sys.executable, "-m", "bushel", *map(str, words)], capture_output=True, text=True, timeout=250, check=False
    )


@pytest.mark.parametrize("to", WRITERS)
@pytest.mark.parametrize("of", WRITERS)
def test_every_format_into_every_other(of, to, tmp_path):
    WRITERS[of](tmp_path / f"in.{of}", RECORDS)
    assert convert(tmp_path / f"in.{of}", tmp_path / "made" / f"out.{to}").files == (
        str(tmp_path / "made" / f"out.{to}"),
    )
    assert list(READERS[to](tmp_path / "made" / f"out.{to}")) == RECORDS
    assert os.listdir(tmp_path / "made") == [f"out.{to}"]


def test_the_version():
    assert bushel("--version").stdout == f"bushel {__version__}\n"


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


def test_one_file_on_every_machine_unless_shards_says_more(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    (tmp_path / "in.jsonl").write_text("".join(f"line {number}\n" for number in range(20)))
    for name, more in (("one", []), ("two", ["--shards", "2"])):
        assert cli.main(["convert", f"{tmp_path}/in.jsonl", f"{tmp_path}/command/{name}.bag", *more]) == 0
    convert(tmp_path / "in.jsonl", tmp_path / "python" / "one.bag")
    convert(tmp_path / "in.jsonl", tmp_path / "python" / "two.bag", shards=2)
    found = [{path.name: path.read_bytes() for path in (tmp_path / by).iterdir()} for by in ("command", "python")]
    assert found[0] == found[1]
    assert sorted(found[0]) == ["one.bag", "two-00000-of-00002.bag", "two-00001-of-00002.bag"]


def test_more_workers_than_files_are_refused(tmp_path, capsys):
    (tmp_path / "in.txt").write_text("a\n")
    said = "workers=4 have no work with shards=2, because a process writes a whole file. Pass shards=4 (--shards 4) or"
    with pytest.raises(ValueError, match=re.escape(said)):
        convert(tmp_path / "in.txt", tmp_path / "out.bag", shards=2, workers=4)
    words = ["convert", f"{tmp_path}/in.txt", f"{tmp_path}/out.bag", "--shards", "2", "--workers", "4"]
    assert cli.main(words) == 1 and said in capsys.readouterr().err


COLUMNS = {
    "id": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "small": (pa.uint8(), st.integers(0, 255)),
    "large": (pa.uint64(), st.integers(0, 2**63 - 1)),
    "flag": (pa.bool_(), st.booleans()),
    "score": (pa.float32(), st.floats(width=32, allow_nan=False)),
    "wide": (pa.float64(), st.floats(width=32, allow_nan=False)),
    "text": (pa.string(), st.text(max_size=3)),
    "raw": (pa.large_binary(), st.binary(max_size=3)),
    "word": (pa.dictionary(pa.int32(), pa.string()), st.sampled_from(["a", "bc"])),
    "list": (pa.list_(pa.int16()), st.lists(st.integers(-9, 9), max_size=3)),
    "texts": (pa.list_(pa.string()), st.lists(st.text(max_size=2), max_size=2)),
    "pair": (pa.list_(pa.float64(), 2), st.lists(st.floats(width=32, allow_nan=False), min_size=2, max_size=2)),
}
DTYPES = {
    "score": "float32",
    "wide": "float32",
    "pair": "float32",
    "text": None,
    "raw": None,
    "word": None,
    "texts": None,
}
tables = st.integers(1, 12).flatmap(
    lambda count: st.fixed_dictionaries(
        {name: st.lists(st.none() | values, min_size=count, max_size=count) for name, (_, values) in COLUMNS.items()}
    )
)


@settings(max_examples=30)
@given(columns=tables, group=st.integers(1, 12))
def test_rows_of_a_table_become_examples_and_lose_nothing(columns, group, tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    table = pa.table({name: pa.array(values, COLUMNS[name][0]) for name, values in columns.items()})
    pq.write_table(table, folder / "in.parquet", row_group_size=group)
    convert(folder / "in.parquet", folder / "out.bag")
    for row, record in zip(table.to_pylist(), BagzDataSource(folder / "out.bag"), strict=True):
        example = decode_example(record)
        assert set(example) == {name for name, value in row.items() if value is not None}
        for name, found in example.items():
            value = row[name] if isinstance(row[name], list) else [row[name]]
            dtype = DTYPES.get(name, "int64")
            assert (dtype is None) == isinstance(found, list)
            if dtype is None:
                assert found == [item.encode() if isinstance(item, str) else item for item in value]
            else:
                assert (found.dtype, found.tolist()) == (dtype, value)


def test_floats_are_rounded_when_told(tmp_path):
    pq.write_table(pa.table({"x": [[0.5, 0.1], [float("nan")], None, [1e300]]}), tmp_path / "in.parquet")
    with pytest.raises(
        ValueError, match=r"'x' holds float64 numbers such as 0\.1, but a .*To round them, pass round_fl"
    ):
        convert(tmp_path / "in.parquet", tmp_path / "out.bag")
    assert bushel("convert", tmp_path / "in.parquet", tmp_path / "out.bag", "--round-floats").returncode == 0
    found = [decode_example(record) for record in BagzDataSource(str(tmp_path / "out.bag"))]
    assert [example["x"].tolist() for example in found if example][::2] == [[0.5, np.float32(0.1)], [np.inf]]
    assert np.isnan(found[1]["x"]) and found[2] == {}


REFUSED = {
    "date": ([datetime.date(2020, 1, 1)], "is of type date32[day], but a tf.train.Example holds only numbers, bytes"),
    "time": ([datetime.datetime(2020, 1, 1)], "is of type timestamp[us]"),
    "struct": ([{"a": 1}], "is of type struct<a: int64>"),
    "lists of lists": ([[[1]]], "is of type list<element: list<element: int64>>"),
    "decimal": ([decimal.Decimal("1.5")], "is of type decimal128(2, 1)"),
    "nulls in lists": ([[1, 2], [1, None]], "has nulls inside lists"),
    "large numbers": (pa.array([2**63, None], pa.uint64()), f"holds {2**63}, which does not fit into int64"),
}


@pytest.mark.parametrize(("values", "sentence"), REFUSED.values(), ids=REFUSED)
def test_columns_that_no_example_can_hold(values, sentence, tmp_path, capsys):
    pq.write_table(pa.table({"good": list(range(len(values))), "bad": values}), tmp_path / "in.parquet")
    assert cli.main(["convert", f"{tmp_path}/in.parquet", f"{tmp_path}/out.bag"]) == 1
    assert f"bushel: {tmp_path}/in.parquet: column 'bad' {sentence}" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["in.parquet"]


def test_a_column_of_records_alone(tmp_path, capsys):
    pq.write_table(pa.table({"record": ["text", "\u00fc"]}), tmp_path / "text.parquet")
    convert(tmp_path / "text.parquet", tmp_path / "text.bag")
    assert list(BagzDataSource(tmp_path / "text.bag")) == [b"text", "\u00fc".encode()]
    pq.write_table(pa.table({"record": [7]}), tmp_path / "number.parquet")
    convert(tmp_path / "number.parquet", tmp_path / "number.bag")
    assert decode_example(BagzDataSource(tmp_path / "number.bag")[0])["record"].tolist() == [7]
    pq.write_table(pa.table({"record": [b"1", b"2", None]}), tmp_path / "null.parquet", row_group_size=2)
    with pytest.raises(ValueError, match=r"null\.parquet: column 'record' is null in row 2"):
        convert(tmp_path / "null.parquet", tmp_path / "null.bag")


@pytest.mark.parametrize("name", ["x.tfrecord", "x.tfrecord.gz", "x.tfrec", "x.tfrecords", "x.tfrecord-00000-of-00001"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress, zlib.compress])
def test_tfrecord_files_by_any_name_and_compressed(pack, name, tmp_path):
    tfrecord(tmp_path / "plain", RECORDS)
    (tmp_path / name).write_bytes(pack((tmp_path / "plain").read_bytes()))
    made = convert(tmp_path / name, tmp_path / "out.bag", shards=3)
    assert [record for path in made.files for record in BagzDataSource(path)] == RECORDS


def test_a_format_that_the_name_does_not_say(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    tfrecord(tmp_path / "data", RECORDS)
    assert cli.main(["convert", "data", "out.bag"]) == 1
    assert "data cannot be read: its name should end in one of .array_record" in capsys.readouterr().err
    assert cli.main(["convert", "data", "out.bag", "--from", "tfrecord"]) == 0
    assert list(BagzDataSource("out.bag")) == RECORDS
    assert cli.main(["convert", "data", "out.bag", "--from", "zip"]) == 1
    assert 'source_format must be "array_record", "tfrecord", "bag"' in capsys.readouterr().err
    (tmp_path / "x.csv.zip").write_bytes(gzip.compress(b"1"))
    assert cli.main(["convert", "x.csv.zip", "out.bag"]) == 1
    assert "x.csv.zip cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize("of", [*WRITERS, "tfrecord.gz"])
def test_convert_takes_parts_of_files(of, tmp_path):
    WRITERS[of.removesuffix(".gz")](tmp_path / f"in.{of}", RECORDS)
    if of.endswith(".gz"):
        (tmp_path / f"in.{of}").write_bytes(gzip.compress((tmp_path / f"in.{of}").read_bytes()))
    sources = [f"{tmp_path}/in.{of}[30:130]", f"{tmp_path}/in.{of}", f"{tmp_path}/in.{of}[7:7]"]
    made = convert(sources, tmp_path / "out.bag", shards=3, workers=1)
    assert [record for path in made.files for record in BagzDataSource(path)] == RECORDS[30:130] + RECORDS
    with pytest.raises(ValueError, match=rf"in\.{of} has 250 records, so it has no part \[5:251\]"):
        convert(f"{tmp_path}/in.{of}[5:251]", tmp_path / "out.bag")


def conversion_workers(pid=None):
    """The worker processes of conversions that a process runs, by default this one."""
    found = set()
    for child in offspring(pid):
        with contextlib.suppress(OSError):  # ended meanwhile
            if b"conversion_workers.serve" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.add(child)
    return found


@pytest.mark.parametrize("when", ["it starts", "it writes"])
def test_a_worker_that_was_killed_is_an_error(when, tmp_path):
    bag(tmp_path / "in.bag", [bytes(50_000)] * 2_000)
    seen, killed = set(), []

    def kill(done, total):
        seen.update(conversion_workers())
        if seen and not killed and (when == "it starts" or done):
            killed.append(min(seen))
            os.kill(killed[0], signal.SIGKILL)

    with pytest.raises(ChildProcessError) as error:
        convert(tmp_path / "in.bag", tmp_path / "out.parquet", shards=2, workers=2, progress=kill)
    assert re.fullmatch(
        rf"Worker process {killed[0]} was killed by SIGKILL before it had written "
        rf"{tmp_path}/out-0000[01]-of-00002.parquet"
        r"[.\da-f]+part\. The system kills processes if memory runs out: .* use fewer workers\.",
        str(error.value),
    )
    assert [path.name for path in tmp_path.iterdir()] == ["in.bag"]
    assert len(seen) == 2 and not alive(seen)


UNGUARDED = """
    from bushel.sources import BagzDataSource, convert

    with open("runs", "a") as file:
        file.write("x")

    print(convert("in.bag", "out.bag", shards=3, workers=2, overwrite=True).files)
    print(sum(len(BagzDataSource(f"out-0000{shard}-of-00003.bag")) for shard in range(3)))
    try:
        convert("in.bag", "out.parquet", source_format="array_record", shards=2, workers=2)
    except Exception as error:
        print(type(error).__name__)
    print(open("runs").read())
"""


def test_a_plain_script_needs_no_guard_and_runs_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    bag(tmp_path / "in.bag", RECORDS)
    code, out, err = run_script(tmp_path, UNGUARDED)
    assert (code, err) == (0, "")
    made, count, error, runs = out.splitlines()
    assert made == str(tuple(f"out-0000{shard}-of-00003.bag" for shard in range(3)))
    assert (count, error, runs) == ("250", "DamagedFile", "x")


def test_an_error_of_a_worker_comes_with_the_lines_where_it_was_raised(tmp_path):
    tfrecord(tmp_path / "in.tfrecord", RECORDS)
    whole = (tmp_path / "in.tfrecord").read_bytes()
    (tmp_path / "in.tfrecord").write_bytes(whole[:-100] + bytes([whole[-100] ^ 1]) + whole[-99:])
    with pytest.raises(DamagedFile) as error:
        convert(tmp_path / "in.tfrecord", tmp_path / "out.bag", shards=2, workers=2)
    assert "in a worker process:\nTraceback" in "".join(error.value.__notes__)
    assert [path.name for path in tmp_path.iterdir()] == ["in.tfrecord"]


def test_sources_behind_urls_with_options(tmp_path, capsys):
    bag(tmp_path / "in.bag", RECORDS)
    with Web((tmp_path / "in.bag").read_bytes()) as web:
        words = ["convert", f"{web.url}/in.bag", f"{tmp_path}/out.bag", "--overwrite"]
        assert (
            cli.main([*words, "--storage-option", f"cache_dir={tmp_path}/copies", "--storage-option", "timeout_s=5"])
            == 0
        )
        assert list(BagzDataSource(tmp_path / "out.bag")) == RECORDS
        assert len(list(tmp_path.glob("copies/*.copy"))) == 1
        assert cli.main([*words, "--storage-option", "cache_bytes=0"]) == 1
        assert "cache_bytes must be positive" in capsys.readouterr().err
        assert cli.main([*words, "--storage-option", "retries"]) == 1
        assert "--storage-option takes NAME=VALUE" in capsys.readouterr().err


def test_lines_of_text_become_records(tmp_path):
    (tmp_path / "in.jsonl").write_text('{"a": 1}\n{"a": 2}\n')
    convert(tmp_path / "in.jsonl", tmp_path / "out.array_record")
    assert list(ArrayRecordDataSource(tmp_path / "out.array_record")) == [b'{"a": 1}', b'{"a": 2}']


def test_what_is_there_stays_unless_told(tmp_path):
    bag(tmp_path / "in.bag", RECORDS)
    (tmp_path / "out.bag").write_bytes(b"mine")
    done = bushel("convert", tmp_path / "in.bag", tmp_path / "out.bag")
    assert done.returncode == 1
    assert "out.bag exists already. Pass overwrite=True (--overwrite) to replace it." in done.stderr
    assert (tmp_path / "out.bag").read_bytes() == b"mine"
    assert cli.main(["convert", f"{tmp_path}/in.bag", f"{tmp_path}/out.bag", "--overwrite"]) == 0
    assert list(BagzDataSource(tmp_path / "out.bag")) == RECORDS


@pytest.mark.parametrize("of", ["tfrecord", "array_record", "array_record without its package"])
def test_a_damaged_source_makes_no_file(of, tmp_path, monkeypatch):
    """A flipped bit of a record, in a format that has checksums: it must not get a new checksum that fits."""
    of, without, _ = of.partition(" without")
    if without:
        monkeypatch.setitem(sys.modules, "array_record.python.array_record_module", None)
    name = f"in.{of}"
    WRITERS[of](tmp_path / name, [b"record %d " % number * 20 for number in range(250)])
    content = bytearray((tmp_path / name).read_bytes())
    content[content.find(b"record 120 ")] ^= 1
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DamagedFile, match=rf"in\.{of}: record 120 is damaged"):
        convert(tmp_path / name, tmp_path / "out.bag")
    assert [path.name for path in tmp_path.iterdir()] == [name]
    done = bushel("convert", tmp_path / name, tmp_path / "out.bag", "--shards", 2, "--workers", 2)
    assert done.returncode == 1
    assert name in done.stderr and "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_targets_are_paths_of_any_form(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    bag(tmp_path / "in.bag", RECORDS)
    assert convert("in.bag", f"file://{tmp_path}/one.bag").files == (f"{tmp_path}/one.bag",)
    assert convert("in.bag", "~/two.bag").files == (f"{tmp_path}/home/two.bag",)
    with pytest.raises(ValueError, match=r"https://...@host cannot be written: web servers accept no files"):
        convert("in.bag", "https://me:secret@host/x.bag")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "in.bag", "one.bag"]


def test_what_was_written_wrong_is_noticed(tmp_path, monkeypatch):
    bag(tmp_path / "in.bag", RECORDS)
    from bushel._src.sources import record_writers

    real = record_writers.BagWriter.write
    monkeypatch.setattr(
        record_writers.BagWriter, "write", lambda self, record: real(self, record.replace(b"\x07", b"\x08"))
    )
    with pytest.raises(DamagedFile, match=r"records were written, and other records .* were read back"):
        convert(tmp_path / "in.bag", tmp_path / "out.bag")
    assert [path.name for path in tmp_path.iterdir()] == ["in.bag"]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_conversion_leaves_nothing_that_looks_complete(how, tmp_path):
    bag(tmp_path / "in.bag", [bytes(50_000)] * 4_000)
    words = [sys.executable, "-m", "bushel", "convert", tmp_path / "in.bag", tmp_path / "out.parquet"]
    process = subprocess.Popen([*map(str, words)], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 200
    while not list(tmp_path.glob("out*")) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(how)
    process.communicate(timeout=250)
    assert process.returncode != 0
    left = [path.name for path in tmp_path.glob("out*")]
    assert all(name.endswith(".part") for name in left)
    if how == signal.SIGINT:
        assert left == []


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_workers_end_with_the_conversion(how, tmp_path):
    """All that hold the pipe of their errors, in a few seconds, and those that were just starting without a word."""
    bag(tmp_path / "in.bag", [bytes(50_000)] * 8_000)
    words = [
        sys.executable,
        "-m",
        "bushel",
        "convert",
        f"{tmp_path}/in.bag",
        f"{tmp_path}/out.parquet",
        "--shards",
        "2",
        "--workers",
        "2",
    ]
    for seen in (".part", "worker"):
        process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, start_new_session=True)
        deadline = time.monotonic() + 200
        while not (list(tmp_path.glob("out*")) if seen == ".part" else _children(process.pid)):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.killpg(process.pid, how) if how == signal.SIGINT else process.send_signal(how)
        said = process.communicate(timeout=250)[1]
        assert process.returncode == (130 if how == signal.SIGINT else -how)
        assert "Traceback" not in said
        if how == signal.SIGINT:
            assert (said, [path.name for path in tmp_path.glob("out*")]) == ("bushel: interrupted.\n", [])
        for path in tmp_path.glob("out*"):
            path.unlink()


def _children(process):
    return len(conversion_workers(process)) == 2


@pytest.mark.parametrize("to", WRITERS)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_disk_that_is_full_is_told(workers, to, tmp_path):
    bag(tmp_path / "in.bag", [random.Random(number).randbytes(50_000) for number in range(100)])
    words = ["-m", "bushel", "convert", f"{tmp_path}/in.bag", f"{tmp_path}/out.{to}", "--shards", str(workers)]
    words += ["--workers", str(workers)]
    limited = (
        "import os, resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (10**6, 10**6)); "
        "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    )
    done = subprocess.run(
        [sys.executable, "-c", limited, *words], capture_output=True, text=True, timeout=250, check=False
    )
    assert done.returncode == 1
    assert f"writing {tmp_path}/out" in done.stderr and "File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["in.bag"]


def test_a_source_that_is_replaced_meanwhile(tmp_path):
    (tmp_path / "in.txt").write_text("old\n" * 3_000)

    def replace(done, total):
        if done > 1_000:
            (tmp_path / "new.txt").write_text("new\n" * 3_000)
            os.replace(tmp_path / "new.txt", tmp_path / "in.txt")

    with pytest.raises(
        DamagedFile, match=r"in\.txt has changed: it was \['in\.txt', 12000, .*when its records were counted, and it is"
    ):
        convert(tmp_path / "in.txt", tmp_path / "out.bag", shards=3, workers=1, progress=replace)
    assert [path.name for path in tmp_path.iterdir()] == ["in.txt"]


def test_sets_of_bagz_files(tmp_path):
    bag(tmp_path / "in.bag", RECORDS)
    made = convert(tmp_path / "in.bag", tmp_path / "set.bag", shards=3)
    convert(tmp_path / "set@3.bag", tmp_path / "whole.bag")
    assert list(BagzDataSource(tmp_path / "whole.bag")) == RECORDS
    with pytest.raises(ValueError, match=r"set@3\.bag is a name for reading several files"):
        convert(tmp_path / "in.bag", tmp_path / "set@3.bag")
    os.unlink(made.files[1])
    os.mkdir(made.files[1])
    before = (tmp_path / "set-00000-of-00003.bag").read_bytes()
    with pytest.raises(IsADirectoryError, match=r"00001-of-00003\.bag is a folder"):
        convert(tmp_path / "whole.bag", tmp_path / "set.bag", shards=3, overwrite=True)
    assert (tmp_path / "set-00000-of-00003.bag").read_bytes() == before


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


def test_the_formats_may_be_named_instead_of_shown_by_the_ending(tmp_path, capsys):
    tfrecord(tmp_path / "in", RECORDS)
    words = ["convert", f"{tmp_path}/in", f"{tmp_path}/out", "--from", "tfrecord", "--to"]
    assert cli.main([*words, "bagz"]) == 0
    assert list(BagzDataSource(tmp_path / "out", compressed=True)) == RECORDS
    made = convert(tmp_path / "in", tmp_path / "x.other", source_format="tfrecord", format="bagz", shards=2, workers=1)
    assert [os.path.basename(path) for path in made.files] == ["x-00000-of-00002.other", "x-00001-of-00002.other"]
    assert list(BagzDataSource(made.files, compressed=True)) == RECORDS
    with pytest.raises(ValueError, match=r"python needs an ending, such as python\.bagz: of several files each gets"):
        convert(tmp_path / "in", tmp_path / "python", source_format="tfrecord", format="bagz", shards=2)
    assert cli.main([*words, "zip"]) == 1
    assert (
        'format must be "array_record", "tfrecord", "bag", "bagz" or "parquet", got \'zip\'' in capsys.readouterr().err
    )
    with pytest.raises(ValueError, match=r"x\.bag has the ending of bag, but format is bagz: choose another name"):
        convert(tmp_path / "in", tmp_path / "x.bag", source_format="tfrecord", format="bagz")

"""`convert` and `save` are whole or not at all, whatever call a kill hits and whatever request of a store fails.

Law: at any moment a reader of the final names gets all old records or all new ones (or nothing, if there were none).
The same command completes what was interrupted. Old and new files are never under the final names together.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.failing_s3_server import BUCKET, FAULTS, fault_store

import bushel
from bushel import sources
from bushel._src.base import checked_files
from bushel._src.base.errors import DamagedFile
from bushel._src.inspection import inspector
from bushel._src.sources import conversion, file_access, folders
from bushel._src.sources.shard_journals import Journal
from bushel._src.view.targets import open_path
from bushel.sources import BagzDataSource, ParquetDataSource, convert

PROGRAM = Path(__file__).parent.parent / "programs" / "killed_conversion.py"
OLD, NEW = ([f"{name} {number}" for number in range(6)] for name in ("old", "new"))
MODES = ["fresh", "overwrite", "fewer", "one", "fresh one"]


def is_whole(records, fresh):
    return records in (OLD, NEW) or (fresh and records == "FileNotFoundError")


def check_kill(line, mode):
    """Checks one line of `killed_conversion.py`."""
    seen, after, fresh = line["seen"], line["finally"], mode.startswith("fresh")
    assert line["ended"] == -9, line
    committed = seen["pattern"] == NEW
    assert is_whole(seen["pattern"], fresh), line
    assert seen["everything"] == seen["pattern"], line
    # Another number of shards has other names: the new ones are missing as long as the old ones count.
    assert seen["names"] == (seen["pattern"] if committed or mode != "fewer" else "FileNotFoundError"), line
    foreign = [record for records in seen["foreign"] for record in records]
    assert set(foreign) <= set(OLD) or set(foreign) <= set(NEW), line
    if not committed:
        assert foreign == ([] if fresh else OLD), line
    assert isinstance(line["again"], int) or (line["again"] == "exists" and fresh and committed), line
    assert after["pattern"] == after["names"] == NEW, line
    left = [name for name in after["files"] if not re.fullmatch(r"c(-0000\d-of-00003)?\.\w+", name)]
    assert all(name.endswith((".part", ".writing", ".lock")) for name in left), line
    assert not [name for name in left if name.endswith(".lock") and line["again"] != "exists"], line


@pytest.mark.parametrize(
    ("ending", "mode", "step"),
    [
        ("bag", "fresh", 6),
        ("array_record", "overwrite", 5),
        ("bag", "fewer", 7),
        *(
            pytest.param(ending, mode, 1, marks=pytest.mark.slow)
            for ending in ("array_record", "bag", "bagz", "parquet", "tfrecord")
            for mode in MODES
        ),
    ],
)
def test_a_conversion_on_disk_is_whole_whatever_call_kills_it(ending, mode, step, tmp_path):
    command = [sys.executable, str(PROGRAM), str(tmp_path), ending, mode, str(step)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert ended.returncode == 0, ended.stderr
    lines = [json.loads(line) for line in ended.stdout.splitlines()]
    assert lines
    for line in lines:
        check_kill(line, mode)
    kinds = {"new" if line["seen"]["pattern"] == NEW else "old" for line in lines}
    assert step > 1 or mode.endswith("one") or kinds == {"new", "old"}  # kills before and after the journal


# Stores.

OPTIONS = {"retries": 3, "timeout_s": 20}


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "_PART_BYTES", 64)  # so that objects of a few bytes are sent in parts
    with fault_store(tmp_path, monkeypatch) as store:
        for name, records in (("old", OLD), ("new", NEW)):
            (tmp_path / f"{name}.txt").write_text("\n".join(records))
        yield store


class Conversion:
    """A conversion to a store, for the fuzzers below."""

    def __init__(self, folder, scheme="s3", ending="bag", before=3, shards=3):
        self.folder, self.ending, self.before, self.shards = folder, ending, before, shards
        self.base = f"{scheme}://{BUCKET}/x"

    def prepare(self, store):
        store.reset()
        store.objects.clear()
        store.parts.clear()
        if self.before:
            self.write("old", shards=self.before)

    def write(self, name, shards=None, overwrite=False, **options):
        target = f"{self.base}/c.{self.ending}"
        source = self.folder / f"{name}.txt"
        return convert(
            source,
            target,
            shards=shards or self.shards,
            workers=1,  # the store fails in this process
            overwrite=overwrite,
            progress=False,
            target_storage_options={**OPTIONS, **options},
        )

    def run(self, **options):
        return self.write("new", overwrite=self.before > 0, **options)

    def complete(self, store):
        """Runs the same command again."""
        try:
            self.run()
        except FileExistsError:  # the first run had done everything
            assert not self.before and not [name for name in store.objects if name.endswith(".converting")]
        final = re.compile(rf".*/c(-0000\d-of-0000{self.shards})?\.{self.ending}")
        left = [name for name in store.objects if not final.fullmatch(name)]
        assert all(name.endswith(".part") for name in left), left
        assert self.read() == NEW

    def read(self):
        pattern = f"{self.base}/c-*.{self.ending}" if self.shards > 1 else f"{self.base}/c.{self.ending}"
        try:
            rows = list(sources.open(pattern, storage_options=OPTIONS))
        except FileNotFoundError:
            return None
        return [(row["record"] if isinstance(row, dict) else row).decode() for row in rows]

    def check(self, store):
        """Checks the law on what lies in the store now."""
        found = self.read()
        assert found in ((OLD, NEW) if self.before else (None, NEW)), found
        names = [name for name in store.objects if name.endswith(f".{self.ending}")]
        mine = {b"old": 0, b"new": 0}
        for name in names:
            for word in mine:
                mine[word] += word in store.objects[name]
        assert self.ending != "bag" or not (mine[b"old"] and mine[b"new"]), names
        return found


class Saving:
    """`ds.save` to a store, over what another pipeline has saved."""

    def __init__(self, folder, format="bagz", overwrite=True):
        self.base, self.format, self.overwrite = f"s3://{BUCKET}/saved", format, overwrite

    def prepare(self, store):
        store.reset()
        store.objects.clear()
        store.parts.clear()
        if self.overwrite:
            self._save(OLD)

    def _save(self, records, overwrite=False, **options):
        ds = bushel.MapDataset.source(records).map(_as_element)
        ds.save(
            self.base,
            format=self.format,
            shards=3,
            overwrite=overwrite,
            workers=0,
            storage_options={**OPTIONS, **options},
        )

    def run(self, **options):
        self._save(NEW, overwrite=self.overwrite, **options)

    def complete(self, store):
        self._save(NEW, overwrite=self.overwrite)
        assert self.read() == NEW

    def read(self):
        try:
            return [element["text"] for element in sources.open(self.base, storage_options=OPTIONS)]
        except (FileNotFoundError, bushel.UnknownFormat):
            return None

    def check(self, store):
        found = self.read()
        assert found in (None, OLD, NEW), found
        return found


def _as_element(text):
    return {"text": text, "padding": b"x" * 100}


class Caching:
    """`ds.cache` in a store. A pass that cannot be cached gives its elements with a warning."""

    def __init__(self, folder):
        self.base = f"s3://{BUCKET}/cached"

    def prepare(self, store):
        store.reset()
        store.objects.clear()

    def _read(self, **options):
        ds = bushel.MapDataset.source(NEW).to_iter_dataset().map(_as_element)
        return [element["text"] for element in ds.cache(self.base, storage_options={**OPTIONS, **options})]

    def run(self, **options):
        assert self._read(**options) == NEW

    def complete(self, store):
        assert self._read() == NEW and self._read() == NEW

    def check(self, store):
        assert self._read() == NEW
        return NEW


def make_work(kind, folder):
    if kind.startswith("convert"):
        _, scheme, ending, before, shards = kind.split()
        return Conversion(folder, scheme, ending, int(before), int(shards))
    if kind.startswith("save"):
        _, format, overwrite = kind.split()
        return Saving(folder, format, overwrite == "over")
    return Caching(folder)


CHEAP = ["convert s3 bag 3 3", "save bagz over"]
WORKS = [
    *CHEAP,
    "convert s3 bag 0 3",
    "convert s3 bag 4 3",
    "convert s3 bag 1 1",
    "convert s3 array_record 3 3",
    "convert gs bag 3 3",
    "save bagz fresh",
    "save parquet over",
    "cache",
]


def count_requests(work, store):
    work.prepare(store)
    store.reset()
    work.run()
    return list(store.log)


def spread(*cheap_steps):
    """A share of the cheap works in every run, and all of each work as a slow test."""
    whole = [pytest.param(work, 1, marks=pytest.mark.slow) for work in WORKS]
    return [*zip(CHEAP, cheap_steps, strict=True), *whole]


@pytest.mark.filterwarnings("ignore:This pass is not cached")
@pytest.mark.parametrize(("kind", "step"), spread(17, 19))
def test_one_fault_of_a_store_is_no_failure_and_leaves_a_whole(kind, step, store, tmp_path):
    """Every request with every fault. Connections that break, and answers that are lost, are repaired."""
    work = make_work(kind, tmp_path)
    lines = count_requests(work, store)
    for run in range(0, len(lines) * len(FAULTS), step):
        which, fault = divmod(run, len(FAULTS))
        work.prepare(store)
        store.reset(lambda number, line, which=which, fault=fault: FAULTS[fault] if number == which else None)
        work.run()
        store.reset()
        assert work.check(store) == NEW, (lines[which], FAULTS[fault])
        left = [name for name in store.objects if name.endswith((".part", ".converting", ".saving.json"))]
        assert not left, (lines[which], FAULTS[fault], left)


@pytest.mark.filterwarnings("ignore:This pass is not cached")
@pytest.mark.parametrize(("kind", "step"), spread(5, 7))
def test_a_store_that_goes_away_leaves_a_whole_and_the_next_run_completes_it(kind, step, store, tmp_path):
    """From a request on, nothing reaches the store, or no answer arrives: what a kill at this request leaves."""
    work = make_work(kind, tmp_path)
    lines = count_requests(work, store)
    for run in range(0, 2 * len(lines), step):
        which, lost = divmod(run, 2)
        work.prepare(store)

        def fault(number, line, which=which, lost=lost):
            # If the answer is lost, the request itself has been done; nothing after it arrives.
            return None if number < which else "reset after" if lost and number == which else "reset before"

        store.reset(fault)
        if kind == "cache":
            with pytest.warns() if which else pytest.raises(OSError):
                work.run(retries=0)
        else:
            with pytest.raises(OSError):
                work.run(retries=0)
        store.reset()
        work.check(store)
        work.complete(store)


@pytest.mark.parametrize("fault", [(403, "AccessDenied"), (409, "Conflict"), "reset before", "reset after"])
@pytest.mark.parametrize("deed", ["PUT", "COPY", "DELETE", "BEGIN", "PART", "COMPLETE", "LIST"])
def test_a_kind_of_request_that_always_fails_leaves_a_whole(deed, fault, store, tmp_path):
    work = Conversion(tmp_path, before=4)
    work.prepare(store)
    store.reset(lambda number, line: fault if line.startswith(deed) else None)
    if (deed, fault) == ("COMPLETE", "reset after"):  # the objects are there, whatever became of the answers
        work.run(retries=0)
    else:
        with pytest.raises(OSError, match=f"s3://{BUCKET}/x/"):
            work.run(retries=0)
    store.reset()
    work.check(store)
    work.complete(store)


# Examples.


def write_both(folder):
    for name, records in (("old", OLD), ("new", NEW)):
        (folder / f"{name}.txt").write_text("\n".join(records))


def texts(source):
    return [(row["record"] if isinstance(row, dict) else row).decode() for row in source]


def interrupt(folder, ending="bag", before=3, shards=3, renamed=1):
    """Leaves the folder as a conversion does that is killed after `renamed` of the new shards have their names."""
    write_both(folder)
    if before:
        convert(folder / "old.txt", folder / f"c.{ending}", shards=before, workers=1, progress=False)
    real, count = os.replace, 0

    def replace(source, target, **options):
        nonlocal count
        if str(source).endswith(".part"):
            if count == renamed:
                raise KeyboardInterrupt
            count += 1
        return real(source, target, **options)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt) as error:
        patch.setattr(os, "replace", replace)
        convert(
            folder / "new.txt", folder / f"c.{ending}", shards=shards, workers=1, overwrite=before > 0, progress=False
        )
    return error.value


def test_every_reader_goes_by_the_journal(tmp_path):
    interrupt(tmp_path, "bagz")
    names = [tmp_path / f"c-{number:05d}-of-00003.bagz" for number in range(3)]
    assert [name.exists() for name in names] == [True, False, False]
    source = BagzDataSource(f"{tmp_path}/c-*.bagz")
    assert texts(source) == NEW
    assert texts(BagzDataSource(names)) == texts(BagzDataSource(tmp_path / "c@3.bagz")) == NEW
    assert texts(BagzDataSource(tmp_path / "c@*.bagz")) == NEW
    assert texts(BagzDataSource([f"{names[0]}[0:1]", f"{names[2]}[1:2]"])) == [NEW[0], NEW[5]]
    assert texts(sources.open(f"{tmp_path}/c-?????-of-*.bagz")) == NEW
    assert texts(BagzDataSource(f"{tmp_path}/**/c-*.bagz")) == NEW
    assert inspector.inspect_target(str(tmp_path / "c-*.bagz")).count == 6
    assert texts(open_path(str(tmp_path / "c-*.bagz"))) == NEW
    workers = bushel.MultiprocessingOptions(num_workers=1)
    ds = bushel.MapDataset.source(source).to_iter_dataset().mp_prefetch(workers)
    with iter(ds) as it:
        assert [record.decode() for record in it] == NEW


def test_a_source_made_in_between_is_the_one_made_afterwards(tmp_path):
    """Names, versions and the identity in states are those of the final names; a pickle finds the final names."""
    interrupt(tmp_path, renamed=0)
    between = BagzDataSource(f"{tmp_path}/c-*.bag")
    kept = pickle.dumps(between)
    assert convert(tmp_path / "new.txt", tmp_path / "c.bag", shards=3, workers=1, overwrite=True, progress=False)
    after = BagzDataSource(f"{tmp_path}/c-*.bag")
    assert between.fingerprint() == after.fingerprint() and repr(between) == repr(after)
    assert texts(pickle.loads(kept)) == texts(between) == NEW


def test_a_folder_is_inspected_by_the_journal(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    interrupt(folder, "bagz", renamed=0)
    for name in ("old", "new"):
        os.unlink(folder / f"{name}.txt")
    assert inspector.inspect_target(str(folder)).count == 6
    assert texts(open_path(str(folder))) == NEW


def test_the_same_command_does_not_convert_again_what_is_complete(tmp_path, monkeypatch):
    error = interrupt(tmp_path, before=0)
    (note,) = error.__notes__
    assert note == (
        f"bushel: all 3 new files are complete, but some may still have temporary names. {tmp_path}/.c.bag.converting "
        "says where they are, and Bushel reads them from there. Run the same conversion again to complete it."
    )
    monkeypatch.setattr(conversion, "_write_part", None)
    made = convert(tmp_path / "new.txt", tmp_path / "c.bag", shards=3, workers=1, progress=False)
    assert texts(BagzDataSource(made.files)) == NEW
    assert sorted(os.listdir(tmp_path)) == [*(os.path.basename(name) for name in made.files), "new.txt", "old.txt"]


def test_another_conversion_completes_the_interrupted_one_first(tmp_path):
    interrupt(tmp_path, before=0)
    with pytest.raises(FileExistsError, match=r"c-00000-of-00003\.bag exists already\. Pass overwrite=True"):
        convert(tmp_path / "old.txt", tmp_path / "c.bag", shards=3, workers=1, progress=False)
    assert texts(BagzDataSource(f"{tmp_path}/c-*.bag")) == NEW and not list(tmp_path.glob(".c*"))
    convert(tmp_path / "old.txt", tmp_path / "c.bag", shards=2, workers=1, overwrite=True, progress=False)
    assert texts(BagzDataSource(f"{tmp_path}/c-*.bag")) == OLD


def test_shards_of_another_number_are_replaced_or_named(tmp_path):
    write_both(tmp_path)
    convert(tmp_path / "old.txt", tmp_path / "c.bag", shards=4, workers=1, progress=False)
    told = (
        f"{tmp_path}/c-00000-of-00004.bag exists already: one of 4 files of an earlier conversion to another number of "
        "shards. A pattern would find both. Pass overwrite=True (--overwrite) to replace them, or choose another name."
    )
    with pytest.raises(FileExistsError, match=re.escape(told)):
        convert(tmp_path / "new.txt", tmp_path / "c.bag", shards=3, workers=1, progress=False)
    convert(tmp_path / "new.txt", tmp_path / "other.bag", shards=3, workers=1, progress=False)
    convert(tmp_path / "new.txt", tmp_path / "c.bag", progress=False)  # one file is not a shard
    convert(tmp_path / "new.txt", tmp_path / "c.bag", shards=3, workers=1, overwrite=True, progress=False)
    left = [name for name in os.listdir(tmp_path) if name.startswith("c")]
    assert sorted(left) == [*(f"c-0000{number}-of-00003.bag" for number in range(3)), "c.bag"]
    assert texts(BagzDataSource(f"{tmp_path}/c-*.bag")) == NEW


def test_shards_are_split_anew_under_their_own_names(tmp_path):
    """The sources are the old shards of the target, also if their conversion was interrupted."""
    interrupt(tmp_path)
    convert(f"{tmp_path}/c-*.bag", tmp_path / "c.bag", shards=2, workers=1, overwrite=True, progress=False)
    assert texts(BagzDataSource(f"{tmp_path}/c-*.bag")) == NEW and len(list(tmp_path.glob("c-*"))) == 2


def test_a_missing_file_of_an_interrupted_conversion_is_named(tmp_path):
    interrupt(tmp_path)
    (lost,) = tmp_path.glob("c-00002*.part")
    lost.unlink()
    with pytest.raises(FileNotFoundError, match=r"c-00002-of-00003\.bag"):
        BagzDataSource(f"{tmp_path}/c-*.bag")
    told = (
        f"{tmp_path}/c-00002-of-00003.bag is missing: an interrupted conversion had completed it, and it was removed "
        f"since then. Remove {tmp_path}/.c.bag.converting, and convert again."
    )
    with pytest.raises(DamagedFile, match=re.escape(told)):
        convert(tmp_path / "new.txt", tmp_path / "c.bag", shards=3, workers=1, overwrite=True, progress=False)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: data[:-9], "is damaged: it cannot be read as JSON"),
        (lambda data: data.replace(b"c-00001", b"d-00001"), "its content does not fit its checksum"),
        (
            lambda data: Journal(("../x",), (), ".0123456789ab.part").encode(),
            "names files that do not lie in its folder",
        ),
        (lambda data: Journal(("x",), (), "/../y").encode(), "names files that do not lie in its folder"),
        (lambda data: checked_files.json_bytes({"version": 2}), "has version 2; this Bushel reads version 1"),
        (lambda data: checked_files.json_bytes({"version": 1}), "is not a journal of a conversion"),
    ],
)
def test_a_damaged_journal_is_an_error(change, words, tmp_path):
    interrupt(tmp_path)
    journal = tmp_path / ".c.bag.converting"
    journal.write_bytes(change(journal.read_bytes()))
    with pytest.raises(DamagedFile, match=words):
        BagzDataSource(f"{tmp_path}/c-*.bag")
    with pytest.raises(DamagedFile, match=words):
        convert(tmp_path / "new.txt", tmp_path / "c.bag", shards=3, workers=1, overwrite=True, progress=False)


def test_patterns_find_no_temporary_file(tmp_path):
    """A conversion that was killed before it was complete leaves files that no pattern takes for shards."""
    write_both(tmp_path)
    convert(tmp_path / "old.txt", tmp_path / "c.bag", shards=2, workers=1, progress=False)
    (tmp_path / "c-00000-of-00002.bag.0123456789ab.part").write_bytes(b"half")
    assert texts(BagzDataSource(f"{tmp_path}/c-*")) == OLD
    assert len(file_access.find_files(f"{tmp_path}/c-*.part")) == 1


def test_files_that_are_replaced_while_they_are_opened_are_an_error(tmp_path, monkeypatch):
    """Half of the old shards and half of the new ones, opened one after the other, are not taken for a set."""
    write_both(tmp_path)
    convert(tmp_path / "old.txt", tmp_path / "c.parquet", shards=3, workers=1, progress=False)
    real, opened = file_access.open_file, []

    def open_file(path, options=None):
        if str(path).endswith(".parquet") and "c-" in str(path):
            opened.append(path)
            if len(opened) == 2:
                convert(
                    tmp_path / "new.txt", tmp_path / "c.parquet", shards=3, workers=1, overwrite=True, progress=False
                )
        return real(path, options)

    monkeypatch.setattr(file_access, "open_file", open_file)
    with pytest.raises(DamagedFile, match=r"c-00000-of-00003\.parquet has changed"):
        ParquetDataSource(f"{tmp_path}/c-*.parquet")

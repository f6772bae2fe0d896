"""Files that Bushel writes for itself: damaged ones never give other values, and errors name them."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import warnings

import numpy as np
import pytest
from helpers.case_counts import cases
from helpers.record_formats import written

from bushel import DamagedFile, MapDataset
from bushel._src.base import checked_files
from bushel._src.sources import tfrecord
from bushel._src.trajectory import episodes as tables
from bushel._src.trajectory.episodes import Episodes
from bushel._src.trajectory.rlds.reader import RLDSBuilder
from bushel.sources import TFRecordDataSource, check_checksums, write_checksums
from bushel.testing import same
from bushel.trajectory import get_dataset_statistics, load_statistics, save_statistics, write_rlds

# What is kept. Each kind has a folder; `make` fills it, `read` gives the values that are in it.


def square(x):
    return {"square": x * x, "half": x / 2}


class Columns:
    """Made again where they are damaged."""

    def make(self, folder):
        self.read(folder)

    def read(self, folder):
        return np.asarray(MapDataset.range(300).column(square, cache_dir=folder)).tolist()


TRAJECTORIES = [
    {"observation": {"arm": np.eye(5)[: n + 2]}, "action": np.arange(4.0 * n + 8).reshape(-1, 4)} for n in range(3)
]


class Statistics:
    compat = None

    def make(self, folder):
        self.read(folder)

    def read(self, folder):
        return get_dataset_statistics(TRAJECTORIES, ["arm"], ["mine"], folder, progress=False, compat=self.compat)


class OriginalsStatistics(Statistics):
    compat = "crossformer"


class SavedStatistics:
    """A file that a user names: an error, since nothing makes it again."""

    def make(self, folder):
        save_statistics(folder / "mine.json", get_dataset_statistics(TRAJECTORIES, ["arm"], ["x"], progress=False))

    def read(self, folder):
        return load_statistics(folder / "mine.json")


class Tables:
    def make(self, folder):
        table = Episodes.of(
            [
                {"action": np.full((n, 2), n, np.float32), "text": np.array([b"go", b"stop"] * n, object)[:n]}
                for n in (3, 5)
            ],
            fingerprint=["mine", 1],
        )
        tables.save(table, str(folder / "table"))

    def read(self, folder):
        table = tables.load(str(folder / "table"), None)
        frames = np.arange(table.frames)
        leaves = {name: column.take(frames) for name, column in table.columns.items()}
        return leaves, table.lengths, table.fingerprint, table.numbers


class Cache:
    def make(self, folder):
        self.read(folder)

    def read(self, folder):
        return list(MapDataset.range(40).to_iter_dataset().map(square).cache(folder))


class Checksums:
    """Beside a file of the user's: damage of either is told."""

    def make(self, folder):
        (folder / "x.npy").write_bytes(bytes(range(256)) * 8000)
        write_checksums(folder / "x.npy")

    def read(self, folder):
        check_checksums(folder / "x.npy")
        return (folder / "x.npy").read_bytes()


class Offsets:
    """Of the records of a TFRecord file, in the cache folder."""

    def __init__(self, folder):
        self.path = written(folder, "tfrecord", RECORDS)

    def make(self, folder):
        self.read(folder)

    def read(self, folder):
        os.environ["BUSHEL_CACHE_DIR"] = str(folder)
        source = TFRecordDataSource(self.path)
        return [source[index] for index in range(len(source))]


RECORDS = [random.Random(number).randbytes(number * 3) for number in range(40)]


class EpisodeIndices:
    def __init__(self, folder):
        steps = {"observation": {"state": np.ones((3, 2), np.float32)}, "action": np.zeros((3, 2), np.float32)}
        write_rlds({"train": [{"steps": steps}] * 4}, name="mine", data_dir=folder)
        self.builder = RLDSBuilder("mine", folder)

    def make(self, folder):
        self.read(folder)

    def read(self, folder):
        return self.builder.episodes("train").index(progress=False, cache_dir=folder).lengths()


KINDS = {
    "columns": Columns,
    "statistics": Statistics,
    "the original's statistics": OriginalsStatistics,
    "saved statistics": SavedStatistics,
    "tables": Tables,
    "cache": Cache,
    "checksums": Checksums,
    "offsets": Offsets,
    "episode indices": EpisodeIndices,
}
MADE_AGAIN = set(KINDS) - {"saved statistics", "tables", "checksums"}


@pytest.fixture(params=KINDS)
def kind(request, tmp_path, monkeypatch):
    """The kind, a folder that holds it, and the values that are in it."""
    monkeypatch.setenv("BUSHEL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(tfrecord, "_WORTH_KEEPING", 0)
    (tmp_path / "source").mkdir()
    (tmp_path / "whole").mkdir()
    make = KINDS[request.param]
    made = make(tmp_path / "source") if make in (Offsets, EpisodeIndices) else make()
    made.make(tmp_path / "whole")
    values = made.read(tmp_path / "whole")
    return request.param, made, tmp_path / "whole", values


def damage(data: bytes, draw: random.Random) -> bytes | None:
    """Other bytes, or None for a file that is gone."""
    changed = bytearray(data)
    place = draw.randrange(len(data)) if data else 0
    length = draw.choice([1, 2, 8, 100, 4096])
    match draw.randrange(9):
        case 0 | 1 | 2:  # some bits
            for _ in range(draw.choice([1, 1, 2, 5])):
                changed[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        case 3:  # as a power failure leaves it
            changed[place:] = bytes(len(data) - place)
        case 4:
            del changed[place:]
        case 5:
            changed[place : place + length] = draw.randbytes(min(length, len(data) - place))
        case 6:
            del changed[place : place + length]
        case 7:
            changed[place:place] = changed[:length] if draw.random() < 0.5 else draw.randbytes(length)
        case 8:
            return None
    return bytes(changed)


def files_in(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def check_damages(kind, tmp_path, count, seed):
    """Damages one file after another: the same values, or an error that names a file. Returns how often each came."""
    name, made, whole, values = kind
    draw = random.Random(f"{name} {seed}")
    told = 0
    for number in range(count):
        folder = tmp_path / f"copy {number}"
        shutil.copytree(whole, folder)
        path = draw.choice(files_in(folder))
        changed = damage(path.read_bytes(), draw)
        intact = changed == path.read_bytes()
        path.unlink() if changed is None else path.write_bytes(changed)
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            try:
                assert same(made.read(folder), values), (number, path)
                told += bool(warned) or intact or changed is None
            except (ValueError, FileNotFoundError) as error:  # a DamagedFile is a ValueError
                assert name not in MADE_AGAIN and type(error) in (ValueError, DamagedFile, FileNotFoundError), (
                    number,
                    error,
                )
                assert str(folder) in str(error), (number, error)
                told += 1
        if name in MADE_AGAIN and number % 5 == 0:  # and whole again
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                assert same(made.read(folder), values), (number, path)
        shutil.rmtree(folder)
    return told


def test_damage_of_our_own_files_is_told_or_harmless(kind, tmp_path):
    count = cases(100, 200)
    told = check_damages(kind, tmp_path, count, seed=0)
    # Statistics are told by a logger; and a byte of JSON may say nothing.
    assert told > 0.9 * count or kind[0] in ("statistics", "the original's statistics")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_much_damage_of_our_own_files_is_told_or_harmless(kind, tmp_path):
    check_damages(kind, tmp_path, 5_000, seed=1)


# Disks that are full.

FULL = """
import json, logging, os, pathlib, resource, sys, warnings
sys.path.insert(0, sys.argv[1])
from test_own_files import KINDS, Checksums, EpisodeIndices, Offsets, tfrecord, write_checksums

tfrecord._WORTH_KEEPING = 0
Checksums.make = lambda self, folder: write_checksums(folder / "x.npy")
logging.basicConfig(stream=sys.stdout)
warnings.showwarning = lambda message, *_: print(message)
work, ready = pathlib.Path(sys.argv[2]), {}
for name, kind in KINDS.items():
    folder = work / name
    for part in ("source", "kept"):
        (folder / part).mkdir(parents=True)
    ready[name] = kind(folder / "source") if kind in (Offsets, EpisodeIndices) else kind()
(work / "checksums" / "kept" / "x.npy").write_bytes(bytes(2_000))
resource.setrlimit(resource.RLIMIT_FSIZE, (40, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
for name, made in ready.items():
    os.environ["BUSHEL_CACHE_DIR"] = os.environ["HOME"] = str(work / name / "home")
    print("====", name)
    try:
        made.make(work / name / "kept")
    except OSError as error:
        print("raised", error)
"""


def test_a_full_disk_is_told_and_leaves_nothing_half_written(tmp_path):
    ran = [sys.executable, "-c", FULL, os.path.dirname(__file__), str(tmp_path)]
    ended = subprocess.run(ran, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    printed = dict(text.split("\n", 1) for text in ended.stdout.split("==== ")[1:])
    assert set(printed) == set(KINDS)
    for name, text in printed.items():
        left = files_in(tmp_path / name / "kept") + files_in(tmp_path / name / "home")
        assert [path for path in left if path.name != "x.npy" and path.suffix != ".lock"] == [], name
        if name not in ("offsets", "episode indices"):  # which are kept to save time only: nothing is missing
            assert "could not be written (File too large)" in text and str(tmp_path / name) in text, (name, text)
        assert ("raised" in text) == (name == "columns" or name not in MADE_AGAIN), (name, text)


# The helpers themselves.


def test_what_is_written_is_there_whole_or_not_at_all(tmp_path):
    checked_files.write_bytes(tmp_path / "x", b"old")
    with pytest.raises(KeyboardInterrupt), checked_files.replacing(tmp_path / "x") as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert os.listdir(tmp_path) == ["x"] and checked_files.read_bytes(tmp_path / "x") == b"old"


@pytest.mark.parametrize(
    "values", [np.zeros((0, 3)), np.array(5), np.arange(6).reshape(2, 3).T, np.array([b"a", b"bc"])]
)
@pytest.mark.parametrize("mapped", [True, False])
def test_arrays_come_back_as_they_were(values, mapped, tmp_path):
    checked_files.write_array(tmp_path / "x.npy", values)
    for found in (checked_files.read_array(tmp_path / "x.npy", mapped=mapped), np.load(tmp_path / "x.npy")):
        assert found.dtype == values.dtype and found.shape == values.shape and np.array_equal(found, values)


@pytest.mark.parametrize("content", [{}, {"a": [1.5, float("nan")], "ü": None, "b": {"c": -0.0}}])
def test_json_comes_back_as_it_was(content, tmp_path):
    checked_files.write_json(tmp_path / "x.json", content)
    assert repr(checked_files.read_json(tmp_path / "x.json")) == repr(content)


def test_objects_are_not_pickled(tmp_path):
    with pytest.raises(ValueError, match="allow_pickle=False"):
        checked_files.write_array(tmp_path / "x.npy", np.array([{}], object))
    assert os.listdir(tmp_path) == []


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "x")
    checked_files.write_bytes(tmp_path / "link", b"content")
    assert (tmp_path / "link").is_symlink() and checked_files.read_bytes(tmp_path / "x") == b"content"

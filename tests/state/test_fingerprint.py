"""Sources in checkpoints: files that move, files that change, and a fingerprint of one's own."""

import os
import pathlib
import shutil

import numpy as np
import pytest
from restoring import difference, saved

from bushel import MapDataset, StateMismatch
from bushel.sources import file_fingerprint


class Lines:
    """The lines of text files, by path: a source as a user would write it."""

    def __init__(self, paths):
        self.paths = [os.fspath(path) for path in paths]
        self.lines = [line for path in self.paths for line in pathlib.Path(path).read_text().splitlines()]

    def __len__(self):
        return len(self.lines)

    def __getitem__(self, index):
        return self.lines[index]


class LinesWithRepr(Lines):
    def __repr__(self):
        return f"LinesWithRepr({self.paths})"


class LinesWithFingerprint(Lines):
    def fingerprint(self):
        return file_fingerprint(self.paths)


FILE_SOURCES = [Lines, LinesWithRepr, LinesWithFingerprint]


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    paths = []
    for name in ("a.txt", "b.txt"):
        path = pathlib.Path("here", name)
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(f"{name} {n}\n" for n in range(3)))
        os.utime(path, ns=(10**18, 10**18))
        paths.append(path)
    return paths


def moved(paths, folder):
    folder.mkdir()
    return [shutil.copy2(path, folder / path.name) for path in paths]


@pytest.mark.parametrize("source", FILE_SOURCES)
def test_moved_files_are_the_same_data(files, source):
    old = MapDataset.source(source(files))
    new = MapDataset.source(source(moved(files, pathlib.Path("there"))))
    assert list(old) == list(new)
    assert difference(old, new) == []


def touched(path):
    os.utime(path, ns=(10**18 + 1, 10**18 + 1))


def rewritten(path):
    path.write_text(path.read_text().replace("0", "9"))


def longer(path):
    path.write_text(path.read_text().replace("0", "00"))
    os.utime(path, ns=(10**18, 10**18))


def renamed(path):
    path.rename(path.with_name("c.txt"))


@pytest.mark.parametrize("source", FILE_SOURCES)
@pytest.mark.parametrize("change", [touched, rewritten, longer])
def test_changed_files_are_other_data(files, source, change):
    old = MapDataset.source(source(files))
    state = saved(old)
    change(files[1])
    new = MapDataset.source(source(files))
    with pytest.raises(StateMismatch, match=r"~ source\(.*\): same name, other data"):
        iter(new).set_state(state)


@pytest.mark.parametrize("source", FILE_SOURCES)
def test_files_in_another_order_are_other_data(files, source):
    assert difference(MapDataset.source(source(files)), MapDataset.source(source(files[::-1]))) != []


@pytest.mark.parametrize("source", FILE_SOURCES)
def test_files_of_another_name_are_other_data(files, source):
    state = saved(MapDataset.source(source(files)))
    renamed(files[1])
    with pytest.raises(StateMismatch):
        iter(MapDataset.source(source([files[0], files[1].with_name("c.txt")]))).set_state(state)


def test_a_path_that_names_no_file_counts_by_its_text():
    assert file_fingerprint("s3://bucket/a-*.record") == ["s3://bucket/a-*.record"]
    assert file_fingerprint(["gs://a", pathlib.PurePosixPath("no/such/file")]) == ["gs://a", "no/such/file"]


class Records:
    """A source that says nothing of itself."""

    def __init__(self, count=10):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return index


class Versioned(Records):
    def __init__(self, version, count=10):
        super().__init__(count)
        self.version = version

    def fingerprint(self):
        return {"version": self.version}


def test_a_fingerprint_of_ones_own_decides():
    same = difference(MapDataset.source(Versioned("v1")), MapDataset.source(Versioned("v1")))
    other = difference(MapDataset.source(Versioned("v1")), MapDataset.source(Versioned("v2")))
    assert same == []
    assert other == ["~ source(Versioned): same name, other data"]


def test_a_fingerprint_of_ones_own_may_leave_the_length_open():
    # A data set that grows between runs, by the user's own word.
    assert difference(MapDataset.source(Versioned("v1")), MapDataset.source(Versioned("v1", count=12))) == []


def test_long_lists_and_large_arrays_are_compared_by_samples():
    # The limit of what is compared: what lies between the samples is not seen. Lengths and shapes always are.
    numbers, array = list(range(1000)), np.zeros((1000, 100))
    other_numbers, other_array = numbers.copy(), array.copy()
    other_numbers[1] = other_array[1, 0] = -1
    assert difference(MapDataset.source(numbers), MapDataset.source(other_numbers)) == []
    assert difference(MapDataset.source(array), MapDataset.source(other_array)) == []
    assert difference(MapDataset.source(numbers[:100]), MapDataset.source(other_numbers[:100])) != []
    assert difference(MapDataset.source(array[:50]), MapDataset.source(other_array[:50])) != []


def test_a_source_without_a_fingerprint_counts_by_type_and_length():
    # The limit of what can be known without reading: values of a user's source are not compared.
    one, two = Records(), Records()
    two.offset = 7
    assert difference(MapDataset.source(one), MapDataset.source(two)) == []

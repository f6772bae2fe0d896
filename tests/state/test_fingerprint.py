"""Sources in checkpoints: files that move, files that change, and a fingerprint of one's own."""

import copy
import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest
from helpers.state_mismatches import difference, saved

from bushel import IterDataset, MapDataset, StateMismatch
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


def test_a_state_compares_very_long_lists_and_large_arrays_by_samples():
    # The limit of what a state compares: what lies between the samples is not seen. Lengths and shapes always are.
    numbers, array, records = list(range(100_001)), np.zeros((6000, 100)), [[n] for n in range(1001)]
    other_numbers, other_array, other_records = numbers.copy(), array.copy(), [*records[:1], [-1], *records[2:]]
    other_numbers[1] = other_array[1, 0] = -1
    assert difference(MapDataset.source(numbers), MapDataset.source(other_numbers)) == []
    assert difference(MapDataset.source(array), MapDataset.source(other_array)) == []
    assert difference(MapDataset.source(records), MapDataset.source(other_records)) == []
    assert difference(MapDataset.source(numbers[:-1]), MapDataset.source(other_numbers[:-1])) != []
    assert difference(MapDataset.source(array[:5000]), MapDataset.source(other_array[:5000])) != []
    assert difference(MapDataset.source(records[:-1]), MapDataset.source(other_records[:-1])) != []


class Named(Records):
    """A source whose repr tells what it reads."""

    def __init__(self, name, decoder=None):
        super().__init__()
        self.name, self.decoder = name, decoder

    def __repr__(self):
        return f"Named({self.name!r}, {self.decoder!r})"

    def __iter__(self):
        return iter(range(10))


def test_a_repr_of_ones_own_counts():
    assert difference(MapDataset.source(Named("v1")), MapDataset.source(Named("v1"))) == []
    assert difference(MapDataset.source(Named("v1")), MapDataset.source(Named("v2"))) == [
        "- source(Named('v1', None))",
        "+ source(Named('v2', None))",
    ]


def test_a_repr_too_long_to_be_shown_counts():
    one, two = (MapDataset.source(Named("v" * 200 + end)) for end in "ab")
    assert difference(one, two) == ["~ source(Named): same name, other data"]
    assert "vvv" not in str(saved(one))


class Decoder:
    """An object without a repr of its own."""


class Buffer:
    def __repr__(self):
        return f"Buffer(0x{id(self):012x})"


@pytest.mark.parametrize("decoder", [Decoder, Buffer, object, lambda: lambda x: x])
def test_addresses_in_a_repr_do_not_count(decoder):
    one, two = Named("v1", decoder()), Named("v1", decoder())
    assert repr(one) != repr(two)
    assert difference(MapDataset.source(one), MapDataset.source(two)) == []


def test_the_order_of_a_set_in_a_repr_does_not_count():
    program = (
        "from bushel import MapDataset\n"
        "class Named:\n"
        "    __len__ = lambda self: 3\n"
        "    __getitem__ = lambda self, index: index\n"
        '    __repr__ = lambda self: f\'Named({set("abcdefgh")}, {frozenset("xyzuvw")})\'\n'
        "print(iter(MapDataset.source(Named())).get_state()['bushel']['identity'][-1])"
    )
    printed = [
        subprocess.run(
            [sys.executable, "-c", program], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    ]
    assert printed[0] == printed[1] != b""


class WithRoot(Lines):
    """A source of files that names their folder, and what it makes of them."""

    def __init__(self, root, names, split):
        super().__init__([os.path.join(root, name) for name in names])
        self.root, self.split = root, split

    def __repr__(self):
        return f"WithRoot(root={self.root!r}, split={self.split!r})"


def test_the_repr_of_a_source_of_files_counts_without_their_folder(files):
    names = [path.name for path in files]
    moved(files, pathlib.Path("there"))
    here, there = (MapDataset.source(WithRoot(root, names, "train")) for root in ("here", "there"))
    assert difference(here, there) == []
    assert difference(here, MapDataset.source(WithRoot("here", names, "test"))) == [
        "- source(WithRoot(root='here', split='train'))",
        "+ source(WithRoot(root='here', split='test'))",
    ]


def test_the_attributes_of_a_source_of_files_count_without_their_folder(files):
    def build(root, scale):
        source = WithRoot(root, [path.name for path in files], "train")
        source.scale = scale
        return MapDataset.source(source)

    moved(files, pathlib.Path("there"))
    assert difference(build("here", 2), build("there", 2)) == []
    assert difference(build("here", 2), build("here", 3)) == [
        "~ source(WithRoot(root='here', split='train')): same name, other data"
    ]


def test_the_values_of_a_dict_count():
    one, two = {0: "a", 1: "b"}, {0: "a", 1: "c"}
    assert difference(MapDataset.source(one), MapDataset.source(dict(one))) == []
    assert difference(MapDataset.source(one), MapDataset.source(two)) != []


@pytest.mark.parametrize(
    ("one", "other"),
    [([1, 2], [1, 3]), (range(3), range(4)), (np.arange(3), np.arange(1, 4)), (Named("v1"), Named("v2"))],
    ids=["list", "range", "array", "repr"],
)
def test_what_a_stream_iterates_over_counts(one, other):
    assert difference(IterDataset.source(one), IterDataset.source(copy.copy(one))) == []
    assert difference(IterDataset.source(one), IterDataset.source(other)) != []


class Settings:
    def __init__(self, size):
        self.size = size


def test_a_source_without_a_fingerprint_counts_by_its_class_its_length_and_its_attributes():
    one, two, three, four, five = (Records() for _ in range(5))
    two.offset = 7
    three.settings, four.settings = Settings(1), Settings(2)
    changed = ["~ source(Records): same name, other data"]
    assert difference(MapDataset.source(one), MapDataset.source(two)) == changed
    assert difference(MapDataset.source(three), MapDataset.source(four)) == changed
    # A handle may be opened when the source is read, so it does not count.
    with open(os.devnull) as five.handle:
        one.handle = None
        assert difference(MapDataset.source(one), MapDataset.source(five)) == []
    assert difference(MapDataset.source(one), MapDataset.source(OtherCode())) == [
        "- source(Records)",
        "+ source(OtherCode)",
    ]


class OtherCode(Records):
    def __getitem__(self, index):
        return index + 1


def test_what_a_source_remembers_while_it_is_read_does_not_count():
    class Remembers(Records):
        def __init__(self):
            super().__init__()
            self.cache = {}

        def __getitem__(self, index):
            return self.cache.setdefault(index, index)

    used = MapDataset.source(Remembers())
    assert used[3] == 3
    assert difference(used, MapDataset.source(Remembers())) == []
    assert difference(MapDataset.source(Remembers()), used) == []

"""What is kept on disk (caches, columns, saved folders) knows its data: in full, by a fingerprint, or it says no."""

import os
import pathlib

import numpy as np
import pandas
import pyarrow
import pytest

import bushel
from bushel import IterDataset, MapDataset
from bushel._src.state.digest import examine
from bushel.sources import ArrayDataSource, FileDataSource, RaggedDataSource, SharedMemoryDataSource

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
"""Some sources below leave files open, as programs do."""


def rows(changed=None):
    values = list(range(3000))
    if changed is not None:
        values[77] = changed
    return values


class Rows:
    """A source of a user, with values in memory."""

    def __init__(self, values):
        self.values = values

    def __len__(self):
        return len(self.values)

    def __getitem__(self, index):
        return self.values[index]


class OwnStream(IterDataset):
    def __init__(self, values):
        super().__init__()
        self.values = values

    def __iter__(self):
        return iter(bushel.IterDataset.source(self.values))


IN_MEMORY = {
    "list": lambda values: MapDataset.source(values),
    "tuple": lambda values: MapDataset.source(tuple(values)),
    "dict": lambda values: MapDataset.source(dict(enumerate(values))),
    "list of dicts": lambda values: MapDataset.source([{"a": [value]} for value in values]).map(lambda e: e["a"][0]),
    "array": lambda values: MapDataset.source(np.array(values)).map(int),
    "rows of an array": lambda values: MapDataset.source(np.tile(values, (200, 1)).T).map(lambda row: int(row[150])),
    "ArrayDataSource": lambda values: MapDataset.source(ArrayDataSource(np.array(values))).map(int),
    "ragged": lambda values: MapDataset.source(RaggedDataSource(np.array(values), np.arange(3001))).map(min),
    "pandas": lambda values: MapDataset.source(pandas.DataFrame({"x": values})).map(lambda e: int(e["x"])),
    "pandas texts": lambda values: MapDataset.source(pandas.DataFrame({"x": list(map(str, values))})).map(
        lambda e: int(e["x"])
    ),
    "pyarrow": lambda values: MapDataset.source(pyarrow.table({"x": values})).map(lambda e: int(e["x"])),
    "shared memory": lambda values: MapDataset.source(SharedMemoryDataSource(values)),
    "own source": lambda values: MapDataset.source(Rows(values)),
    "own source of an array": lambda values: MapDataset.source(Rows(np.array(values))).map(int),
    "iterable": lambda values: bushel.IterDataset.source(values),
    "own stream": OwnStream,
}  # fmt: skip


@pytest.mark.parametrize("make", IN_MEMORY.values(), ids=IN_MEMORY)
def test_one_record_of_thousands_counts(tmp_path, make):
    def stream(ds):
        return ds.to_iter_dataset() if isinstance(ds, MapDataset) else ds

    assert list(stream(make(rows())).cache(tmp_path / "cache")) == rows()
    assert list(stream(make(rows(-1))).cache(tmp_path / "cache")) == rows(-1)
    assert len(os.listdir(tmp_path / "cache")) == 2
    assert list(stream(make(rows())).cache(tmp_path / "cache")) == rows()
    assert len(os.listdir(tmp_path / "cache")) == 2
    make(rows()).save(tmp_path / "saved", format="bagz")
    make(rows()).save(tmp_path / "saved", format="bagz")
    with pytest.raises(FileExistsError, match="or from other data"):
        make(rows(-1)).save(tmp_path / "saved", format="bagz")
    if isinstance(make(rows()), MapDataset):
        for values in (rows(), rows(-1), rows()):
            assert make(values).column(lambda x: x, cache_dir=tmp_path / "column").values.tolist() == values
        assert len(list((tmp_path / "column").glob("*.npy"))) == 2


def test_chunks_and_slices_of_a_table_do_not_count(tmp_path):
    table = pyarrow.table({"x": rows(), "name": [str(n) for n in rows()]})
    longer = pyarrow.concat_tables([table.slice(0, 10), table.slice(0, 1000), table.slice(1000)])
    for each in (table, longer.slice(10)):
        list(MapDataset.source(each).to_iter_dataset().cache(tmp_path))
    assert len(os.listdir(tmp_path)) == 1


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "rows.txt"
    path.write_text("1\n2\n3\n")
    return path


class Lines:
    """A source of a user that reads a file when it is asked for a record."""

    def __init__(self, path):
        self.path = str(path)

    def __len__(self):
        return 3

    def __getitem__(self, index):
        with open(self.path) as file:
            return int(file.read().split()[index])


class LinesByHelper(Lines):
    def __getitem__(self, index):
        return read_file(self.path, index)


def read_file(path, index):
    return int(pathlib.Path(path).read_text().split()[index])


class LinesOfHandle:
    def __init__(self, path):
        self.file = open(path)  # noqa: SIM115

    def __len__(self):
        return 3

    def __getitem__(self, index):
        self.file.seek(2 * index)
        return int(self.file.read(1))


class LinesOfPath(Lines):
    def __init__(self, path):
        self.path = pathlib.Path(path)

    def __getitem__(self, index):
        return int(self.path.read_text().split()[index])


class LinesOfNumPy(Lines):
    def __getitem__(self, index):
        return int(np.loadtxt(self.path)[index])


class LinesByImport(Lines):
    def __getitem__(self, index):
        import linecache

        return int(linecache.getline(self.path, index + 1))


class ReadInConstructor:
    """Its constructor has read the file. Its code reads nothing any more, so its attributes are all that counts."""

    def __len__(self):
        return len(self.values)

    def __init__(self, path):
        with open(path) as file:
            self.values = list(map(int, file.read().split()))

    def __getitem__(self, index):
        return self.values[index]


class WithFingerprint(Lines):
    def fingerprint(self):
        return bushel.sources.file_fingerprint(self.path)


class WithPaths(Lines):
    @property
    def paths(self):
        return [self.path]


class StreamOfFile(IterDataset):
    def __init__(self, path):
        super().__init__()
        self.path = str(path)

    def __iter__(self):
        return iter(bushel.IterDataset.source(lambda: map(int, open(self.path))))


def generate(path):
    def generator():
        with open(path) as file:
            yield from map(int, file)

    return bushel.IterDataset.source(generator)


UNKNOWN = {
    "open": lambda path: MapDataset.source(Lines(path)),
    "helper": lambda path: MapDataset.source(LinesByHelper(path)),
    "handle": lambda path: MapDataset.source(LinesOfHandle(path)),
    "path": lambda path: MapDataset.source(LinesOfPath(path)),
    "NumPy": lambda path: MapDataset.source(LinesOfNumPy(path)),
    "import": lambda path: MapDataset.source(LinesByImport(path)),
    "stream": StreamOfFile,
    "generator": generate,
}
KNOWN = {
    "constructor": lambda path: MapDataset.source(ReadInConstructor(path)),
    "fingerprint": lambda path: MapDataset.source(WithFingerprint(path)),
    "paths": lambda path: MapDataset.source(WithPaths(path)),
    "FileDataSource": lambda path: MapDataset.source(FileDataSource(str(path))).map(lambda r: r["content"]),
}
KEPT = {
    "cache": lambda ds, folder, **trust: list(
        (ds.to_iter_dataset() if isinstance(ds, MapDataset) else ds).cache(folder, **trust)
    ),
    "save": lambda ds, folder, **trust: ds.save(folder, format="bagz", **trust),
    "column": lambda ds, folder, **trust: ds.column(lambda x: int(x), cache_dir=folder, **trust),
}


@pytest.mark.parametrize("keep", KEPT)
@pytest.mark.parametrize("make", UNKNOWN.values(), ids=UNKNOWN)
def test_a_source_that_cannot_be_known_is_an_error_that_says_what_to_do(tmp_path, text, make, keep):
    ds = make(text)
    if keep == "column" and not isinstance(ds, MapDataset):
        pytest.skip("a stream has no columns")
    with pytest.raises(ValueError, match=r"fingerprint\(self\).*trust_source=True"):
        KEPT[keep](ds, tmp_path / "kept")
    KEPT[keep](make(text), tmp_path / "kept", trust_source=True)
    assert os.listdir(tmp_path / "kept")


@pytest.mark.parametrize("make", [*UNKNOWN.values(), *KNOWN.values()], ids=[*UNKNOWN, *KNOWN])
def test_states_and_caches_in_memory_take_any_source(text, make):
    ds = make(text)
    stream = ds.to_iter_dataset() if isinstance(ds, MapDataset) else ds
    assert len(list(stream.cache())) in (1, 3)
    it = iter(stream)
    it.set_state(it.get_state())


@pytest.mark.parametrize("make", KNOWN.values(), ids=KNOWN)
def test_a_file_that_changes_is_seen(tmp_path, text, make):
    first = list(make(text).to_iter_dataset().cache(tmp_path / "kept"))
    assert list(make(text).to_iter_dataset().cache(tmp_path / "kept")) == first
    assert len(os.listdir(tmp_path / "kept")) == 1
    text.write_text("4\n5\n60\n")
    assert list(make(text).to_iter_dataset().cache(tmp_path / "kept")) != first


def test_operations_of_ones_own_need_no_fingerprint(tmp_path):
    class Own(MapDataset):
        def __len__(self):
            return len(self._parent)

        def __getitem__(self, index):
            return self._parent[index] + len(open(os.devnull).read())

    assert list(MapDataset.range(3).pipe(Own).to_iter_dataset().cache(tmp_path)) == [0, 1, 2]


def test_weights_of_a_mixture_by_key_count_on_disk(tmp_path):
    def mixture(weight):
        parts = {name: MapDataset.range(low, low + 40).to_iter_dataset() for name, low in (("a", 0), ("b", 100))}
        return IterDataset.mix(parts, {"a": 1, "b": weight})

    first, second = (list(mixture(weight).cache(tmp_path)) for weight in (1, 3))
    assert first != second == list(mixture(3))


def test_a_cache_knows_its_data_before_its_functions_run(tmp_path):
    def build():
        table = {}
        return MapDataset.range(4).map(lambda x: table.setdefault(x, x)).to_iter_dataset().cache(tmp_path)

    ds = build()
    assert list(ds) == list(ds) == list(build()) == [0, 1, 2, 3]
    assert len(os.listdir(tmp_path)) == 1


@pytest.mark.parametrize("library", ["zarr", "h5py"])
def test_an_array_in_a_file_is_not_read(tmp_path, library):
    if library == "zarr":
        import zarr

        array = zarr.create_array(str(tmp_path / "array"), shape=(4,), dtype="i4")
    else:
        import h5py

        array = h5py.File(tmp_path / "array.h5", "w").create_dataset("a", shape=(4,), dtype="i4")
    before = examine(array)
    array[:] = 5
    assert examine(array).digest == before.digest
    assert list(before.unseen.values()) == [f"{type(array).__name__}: its values lie in files"]
    ds = MapDataset.range(4).map(lambda index: int(array[index]))
    assert "its values lie in files" in str(bushel.explain_identity(ds))

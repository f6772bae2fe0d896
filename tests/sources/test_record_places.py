"""`find_file` names the file that holds a record: read alone, that file has the same record at that position."""

import numpy as np
import pytest

from bushel import MapDataset, sources
from bushel._src.sources.plain_files import FileDataSource
from bushel._src.view.panels.origin import find_file


def find(source, record):
    place = find_file(source, record)
    assert place is not None
    return place


def check(source, open_one):
    for record in range(len(source)):
        path, place = find(source, record)
        assert open_one(path)[place] == source[record], record


def test_a_record_of_several_text_files_has_its_file_and_place(tmp_path):
    for number, count in enumerate((3, 0, 5)):
        (tmp_path / f"{number}.txt").write_text("".join(f"{number} {line}\n" for line in range(count)))
    check(sources.open(f"{tmp_path}/*.txt"), sources.open)


def test_parquet_files_of_several_row_groups(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for number, count in enumerate((7, 5)):
        table = pa.table({"x": [100 * number + row for row in range(count)]})
        pq.write_table(table, tmp_path / f"{number}.parquet", row_group_size=3)
    check(sources.open(f"{tmp_path}/*.parquet"), sources.open)


def test_a_record_of_several_hdf5_files_has_its_file_and_place(tmp_path):
    h5py = pytest.importorskip("h5py")
    for number in range(2):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file["x"] = np.arange(4) + 10 * number
    source = sources.HDF5DataSource([f"{tmp_path}/{number}.h5" for number in range(2)])
    check(source, lambda path: sources.HDF5DataSource(path))


def test_saved_elements_and_whole_files(tmp_path):
    MapDataset.range(10).map(str).save(tmp_path / "saved", format="bagz", shards=3)
    saved = sources.open(tmp_path / "saved")
    places = [find(saved, record) for record in range(10)]
    assert len({path for path, _ in places}) == 3 and places[0][1] == 0
    (tmp_path / "a.json").write_text("{}")
    assert find_file(FileDataSource(f"{tmp_path}/*.json"), 0) == (f"{tmp_path}/a.json", 0)


def test_sources_without_files():
    assert find_file(range(3), 1) is None and find_file(np.arange(3), 1) is None

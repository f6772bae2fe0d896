"""A folder opens as its files do: for every ending that `sources.open` reads, alone and beside other files."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bushel import MapDataset, sources
from bushel._src.base.errors import UnknownFormat
from bushel._src.inspection.inspector import inspect_target
from bushel._src.sources import source_by_path
from bushel._src.sources.record_writers import ArrayRecordWriter, BagWriter, TFRecordWriter
from bushel._src.sources.source_by_path import ArrayFiles
from bushel._src.view.targets import open_path

COUNT = 5
ENDINGS = source_by_path.list_endings()


def write_file(path: str) -> None:
    """A file, or a folder such as "x.zarr", with COUNT records in the format of its ending."""
    numbers = np.arange(COUNT)
    found = source_by_path.find_format(path)
    assert found is not None
    if found.name in ("ArrayRecord", "TFRecord", "Bagz"):
        kind = {"ArrayRecord": ArrayRecordWriter, "TFRecord": TFRecordWriter, "Bagz": BagWriter}[found.name]
        writer = kind(path, path.endswith(".bagz"))  # only the ending .bagz says that records are compressed
        for number in numbers:
            writer.write(b"record %d" % number)
        writer.close()
    elif found.name == "lines of text":
        lines = "".join(f"line {number}\n" for number in numbers).encode()
        ending = path.rpartition(".")[2]
        if ending == "zst":
            import zstandard

            lines = zstandard.compress(lines)
        elif ending in ("gz", "bz2", "xz"):
            import bz2
            import gzip
            import lzma

            lines = {"gz": gzip, "bz2": bz2, "xz": lzma}[ending].compress(lines)
        Path(path).write_bytes(lines)
    elif found.name == "NumPy array":
        np.save(path, numbers)
    elif found.name == "NumPy archive":
        np.savez(path, x=numbers)
    elif found.name == "safetensors":
        pytest.importorskip("safetensors.numpy").save_file({"x": numbers}, path)
    elif found.name == "HDF5":
        with pytest.importorskip("h5py").File(path, "w") as file:
            file["x"] = numbers
    elif found.name == "Zarr":
        pytest.importorskip("zarr").open_group(path, mode="w").create_array("x", data=numbers)
    else:
        arrow = pytest.importorskip("pyarrow")
        table = arrow.table({"x": numbers})
        if found.name == "Parquet":
            pytest.importorskip("pyarrow.parquet").write_table(table, path)
        elif found.name == "Lance":
            pytest.importorskip("lance").write_dataset(table, path)
        else:
            pytest.importorskip("pyarrow.feather").write_feather(table, path)


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_folder_of_any_format_opens(ending, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    write_file(str(folder / f"one{ending}"))
    (folder / "README.md").write_text("what this is")
    (folder / "meta.json").write_text("{}")
    opened, expected = open_path(str(folder)), sources.open(str(folder / f"one{ending}"))
    assert len(opened) == len(expected) == COUNT
    assert str(opened[3]) == str(expected[3])
    facts = inspect_target(str(folder))
    assert (facts.format, facts.damage) == (inspect_target(str(folder / f"one{ending}")).format, [])


@pytest.mark.parametrize("ending", ENDINGS)
def test_files_in_several_folders_are_one_data_set(ending, tmp_path):
    for part in ("a", "b"):
        (tmp_path / "data" / part).mkdir(parents=True)
        write_file(str(tmp_path / "data" / part / f"part{ending}"))
    opened = open_path(str(tmp_path / "data"))
    if isinstance(opened, ArrayFiles):  # each file has arrays of its own
        first = sources.load_arrays(str(tmp_path / "data" / "a" / f"part{ending}"))
        expected = {"array": first} if isinstance(first, np.ndarray) else first
        assert len(opened) == 2
        assert str(opened[0]) == str({"path": str(tmp_path / "data" / "a" / f"part{ending}")} | expected)
    else:
        assert len(opened) == 2 * COUNT
    assert len(inspect_target(str(tmp_path / "data")).files) == 2


def test_the_table_is_what_open_reads(tmp_path):
    for ending in ENDINGS:
        write_file(str(tmp_path / f"x{ending}"))
        assert len(sources.open(str(tmp_path / f"x{ending}"))) == COUNT
    for name, said in (
        ("x.tar", "in order"),
        ("x.tfrecord.gz", "in order"),
        ("x.md", "does not know the format"),
    ):
        (tmp_path / name).write_bytes(b"")
        with pytest.raises(UnknownFormat, match=said):
            sources.open(str(tmp_path / name))


def test_shards_and_folders_of_classes_open(tmp_path):
    shards = tmp_path / "shards"
    shards.mkdir()
    for number in range(2):
        write_file(str(shards / "x.tfrecord"))
        (shards / "x.tfrecord").rename(shards / f"x.tfrecord-0000{number}-of-00002")
    assert len(open_path(str(shards))) == 2 * COUNT
    for name in ("cat/1.png", "dog/2.JPG", "dog/notes.txt~"):
        (tmp_path / "pets" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(tmp_path / "pets" / name, "PNG")
    assert [record["path"].rpartition("/")[2] for record in open_path(str(tmp_path / "pets"))] == ["1.png", "2.JPG"]


def test_a_folder_that_is_not_opened_says_why(tmp_path):
    with pytest.raises(ValueError, match=r"has no files\. Name a file"):
        open_path(str(tmp_path))
    (tmp_path / "x.md").write_text("")
    with pytest.raises(ValueError, match="has 1 file, and none of a format that Bushel reads"):
        open_path(str(tmp_path))
    (tmp_path / "x.tar").write_text("")
    with pytest.raises(ValueError, match=r"format WebDataset \(tar\), which can only be read in order"):
        open_path(str(tmp_path))
    np.save(tmp_path / "x.npy", np.arange(3))
    with pytest.raises(ValueError, match=r"files of several formats \(.npy, .tar\). Name those to read"):
        open_path(str(tmp_path))


def test_map_dataset_of_a_folder(tmp_path):
    write_file(str(tmp_path / "x.bag"))
    assert MapDataset.source(open_path(str(tmp_path)))[2] == b"record 2"

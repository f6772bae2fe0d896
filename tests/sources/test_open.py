"""`sources.open`: all that `bushel inspect` reads, by position, and the words for what it cannot do."""

from __future__ import annotations

import re

import numpy as np
import pytest
from helpers import example_datasets

import bushel
from bushel import MapDataset, sources
from bushel._src.inspection.inspector import inspect_target
from bushel._src.sources.source_by_path import UnknownFormat
from bushel.testing import same

IN_ORDER = {
    "c.tfrecord.gz": bushel.experimental.TFRecordIterDataset,
    "w.tar": bushel.experimental.WebDatasetIterDataset,
}
COUNTS = {
    "rlds/mine": 4,
    "rlds/mine/1.0.0": 4,
    "npz": 4,
    "robomimic.hdf5": 4,
    "lerobot": 5 + 6 + 7 + 8,
    "saved": 30,
    "pictures": 2,
    "pictures/2.jpg": 1,
    "pictures/*/*.png": 1,
    "e.tfrecord-*": 60,
    "a.arrow": 10,
    "h.h5": 20,
    "l.lance": 100,
    "t.parquet": 1000,
    "w.safetensors": 3,
    "x.csv": 51,
    "x.npy": 10,
    "x.npz": 10,
    "z.zarr": 30,
    **dict.fromkeys(("a.array_record", "b.bagz"), 60),
    "x.jsonl": 50,
    "x.txt": 2,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("all")
    example_datasets.write_all(folder)
    return folder


@pytest.mark.parametrize("name", COUNTS)
def test_what_inspect_reads_is_opened(folder, name):
    assert inspect_target(f"{folder}/{name}").format
    source = sources.open(f"{folder}/{name}")
    assert len(source) == COUNTS[name]
    last = MapDataset.source(source)[len(source) - 1]
    assert same(last, MapDataset.source(source)[-1])


def test_the_table_above_names_all_formats(folder):
    files = {path.name for path in folder.iterdir()} - set(IN_ORDER)
    assert files == {re.sub(r"\*", "00000-of-00003", name).partition("/")[0] for name in COUNTS} | {
        f"e.tfrecord-0000{number}-of-00003" for number in range(3)
    }


@pytest.mark.parametrize("name", IN_ORDER)
def test_what_can_only_be_read_in_order_names_the_class_that_reads_it(folder, name):
    with pytest.raises(UnknownFormat, match="can only be read in order") as error:
        sources.open(folder / name)
    assert f"`bushel.experimental.{IN_ORDER[name].__name__}(path)`" in str(error.value)
    assert next(iter(IN_ORDER[name](str(folder / name))))


def test_sources_open_reads_only_the_asked_columns(folder):
    for name, column in (("t.parquet", "id"), ("l.lance", "v"), ("h.h5", "labels"), ("z.zarr", "x"), ("x.npz", "b")):
        assert list(sources.open(folder / name, columns=[column])[1]) == [column]
    with pytest.raises(ValueError, match=r"b\.bagz has no columns: its records are whole\. Leave out columns=\['x'\]"):
        sources.open(folder / "b.bagz", columns=["x"])
    with pytest.raises(ValueError, match=r"saved has no columns\. Leave out columns=\['x'\]"):
        sources.open(folder / "saved", columns=["x"])


def test_a_folder_that_is_not_completely_saved_is_refused(tmp_path):
    def stop(x):
        if x == 25:
            raise KeyError(x)
        return {"x": x}

    with pytest.raises(KeyError):
        MapDataset.range(40).map(stop).save(tmp_path, shards=4)
    for _ in range(2):
        with pytest.raises(UnknownFormat, match=r"has files of `ds\.save`, but no bushel\.json: the saving was interr"):
            sources.open(tmp_path)
        (tmp_path / ".saving.json").unlink(missing_ok=True)
    assert len(sources.open(f"{tmp_path}/part-*.bag")) == 20


def test_sources_open_asks_for_a_split_where_there_are_several(tmp_path):
    steps = {"action": np.zeros((3, 2), np.float32)}
    episodes = {"train": [{"steps": steps}] * 3, "val": [{"steps": steps}]}
    bushel.trajectory.write_rlds(episodes, name="arm", data_dir=tmp_path)
    for place in (tmp_path / "arm", tmp_path / "arm" / "1.0.0"):
        assert len(sources.open(place, split="train")) == 3 and len(sources.open(place, split="val")) == 1
        with pytest.raises(ValueError, match=r"has the splits 'train', 'val'\. .*`bushel\.sources\.open\(path, split="):
            sources.open(place)
    (tmp_path / "lines.txt").write_text("a\n")
    with pytest.raises(ValueError, match=r"lines\.txt has no split\. Leave out split='train'"):
        sources.open(tmp_path / "lines.txt", split="train")


def test_the_splits_of_other_data_sets_of_robots(folder):
    assert len(sources.open(folder / "npz", split="train[:2]")) == 2
    with pytest.raises(ValueError, match=r"lerobot is a LeRobot data set, which `open` reads as a whole"):
        sources.open(folder / "lerobot", split="train")

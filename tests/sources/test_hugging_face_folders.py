"""Folders that `save_to_disk` of Hugging Face datasets has written are read as what they are, not as TFDS's."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from bushel import sources
from bushel._src.base.errors import DamagedFile
from bushel._src.inspection.inspector import inspect_target
from bushel._src.sources.source_by_path import UnknownFormat


def save_to_disk(folder, counts):
    """The files that `save_to_disk` writes, without importing the package, which takes seconds."""
    folder.mkdir(parents=True)
    names, begin = [], 0
    for number, count in enumerate(counts):
        table = pa.table({"x": list(range(begin, begin + count)), "y": ["a"] * count})
        names.append(f"data-{number:05d}-of-{len(counts):05d}.arrow")
        with pa.ipc.new_stream(str(folder / names[-1]), table.schema) as writer:
            writer.write_table(table)
        begin += count
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    (folder / "dataset_info.json").write_text(json.dumps({"citation": "", "description": "", "features": {}}))


def test_the_rows_are_read_in_order(tmp_path):
    save_to_disk(tmp_path / "saved", [4, 3])
    source = sources.open(tmp_path / "saved")
    assert [row["x"] for row in source] == list(range(7)) and source[6]["y"] == "a"
    assert inspect_target(str(tmp_path / "saved")).format == "Arrow"


def test_several_splits_are_named(tmp_path):
    for split in ("test", "train"):
        save_to_disk(tmp_path / "saved" / split, [2])
    (tmp_path / "saved" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(UnknownFormat, match=r"is a DatasetDict of Hugging Face .*saved/train'\)`, .*saved/test'\)`\."):
        sources.open(tmp_path / "saved")


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"_data_files": [1]}'])
def test_a_damaged_list_of_files_is_named(tmp_path, content):
    save_to_disk(tmp_path / "saved", [2])
    (tmp_path / "saved" / "state.json").write_text(content)
    with pytest.raises(DamagedFile, match=r"state\.json does not name the files of the data set"):
        sources.open(tmp_path / "saved")

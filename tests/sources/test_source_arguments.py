"""One word for one thing in the arguments of all sources, and data first."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from bushel import sources
from bushel.trajectory import LeRobotSource

SOURCES = [getattr(sources, name) for name in sources.__all__ if name.endswith(("DataSource", "FixedRecords"))]
FILES = [
    *(each for each in SOURCES if {"path", "paths"} & set(inspect.signature(each).parameters)),
    LeRobotSource,
    sources.load_arrays,
    sources.open,
]
POSITIONAL = {
    "ArrayRecordDataSource": ["paths", "reader_options"],  # Grain's
    "RangeDataSource": ["start", "stop", "step"],  # Grain's
    "RaggedDataSource": ["values", "offsets"],  # both are data
}


@pytest.mark.parametrize("source", [each for each in SOURCES if each is not sources.RandomAccessDataSource])
def test_only_the_data_are_positional(source):
    parameters = inspect.signature(source).parameters.values()
    positional = [each.name for each in parameters if each.kind is not each.KEYWORD_ONLY]
    assert positional == POSITIONAL.get(source.__name__, positional[:1])


@pytest.mark.parametrize("read", FILES)
def test_what_reads_files_has_the_words_of_the_table(read):
    names = set(inspect.signature(read).parameters)
    assert "storage_options" in names and len({"path", "paths"} & names) == 1
    assert not names & {"names", "keys", "folder", "options", "cache", "data_dir"}
    assert len(FILES) > 12


def test_a_second_positional_argument_is_told_its_name():
    with pytest.raises(TypeError, match=r"Write `ParquetDataSource\(paths, columns=\[\"text\"\]\)`"):
        sources.ParquetDataSource("x.parquet", ["id"])  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"Write `TFDSDataSource\(path, split=\"train\"\)`"):
        sources.TFDSDataSource("mnist", "train")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"Write `FixedRecords\(source, dtype=np.int32, shape=\(3,\)\)`"):
        sources.FixedRecords([], np.int32, (3,))  # type: ignore[call-arg]

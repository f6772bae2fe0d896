"""Tables in memory as sources: their rows are the records, wherever they are read."""

from __future__ import annotations

import pickle
from typing import Any

import grain
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet
import pytest

import bushel
from bushel.sources import ParquetDataSource
from bushel.testing import same

COLUMNS: dict[str, Any] = {
    "x": [1, 2, 3],
    "y": [0.5, float("nan"), 2.0],
    "name": ["a", None, "c"],
    "tokens": [[1], [], [2, 3]],
    "flag": [True, False, True],
}


def table() -> pa.Table:
    return pa.table(COLUMNS)


def frame(**more: Any) -> pd.DataFrame:
    return pd.DataFrame(COLUMNS, **more)


def rows(source: Any) -> list[Any]:
    return list(bushel.MapDataset.source(source))


def test_rows_of_an_arrow_table_are_those_of_the_file(tmp_path):
    pa.parquet.write_table(table(), tmp_path / "x.parquet")
    expected = rows(ParquetDataSource(tmp_path / "x.parquet"))
    assert same(rows(table()), expected)
    assert same(rows(table().combine_chunks().to_batches()[0]), expected)
    assert same([bushel.MapDataset.source(table())[i] for i in range(3)], expected)
    chunks = pa.concat_tables([table().slice(0, 1), table().slice(1)])
    assert same(rows(chunks), expected)


def test_rows_of_a_pandas_frame_go_by_position():
    found = rows(frame(index=[7, 0, 1]))
    assert same(
        found,
        [
            {"x": np.int64(1), "y": np.float64(0.5), "name": "a", "tokens": [1], "flag": np.True_},
            {"x": np.int64(2), "y": np.float64("nan"), "name": None, "tokens": [], "flag": np.False_},
            {"x": np.int64(3), "y": np.float64(2.0), "name": "c", "tokens": [2, 3], "flag": np.True_},
        ],
    )
    assert type(found[0]["x"]) is np.int64


def test_types_of_pandas_that_numpy_does_not_have():
    given = pd.DataFrame(
        {
            "nullable": pd.array([1, None], dtype="Int64"),
            "kind": pd.Categorical(["u", "v"]),
            "day": pd.to_datetime(["2020-01-01", "2020-01-02"]),
            "zone": pd.to_datetime(["2020-01-01", "2020-01-02"]).tz_localize("UTC"),
        }
    )
    first, second = rows(given)
    assert (first["nullable"], second["nullable"], first["kind"]) == (1, None, "u")
    assert first["day"] == np.datetime64("2020-01-01")
    assert first["zone"] == pd.Timestamp("2020-01-01", tz="UTC")


@pytest.mark.parametrize("make", [table, frame])
def test_a_loader_reads_rows_too(make):
    sampler = bushel.samplers.SequentialSampler(3)
    assert [row["x"] for row in bushel.DataLoader(data_source=make(), sampler=sampler)] == [1, 2, 3]
    assert [row["x"] for row in bushel.load(make(), num_epochs=1)] == [1, 2, 3]


@pytest.mark.parametrize("make", [table, frame])
def test_batches_of_numbers_are_columns(make):
    given = make()
    numbers = given.select(["x", "y"]) if make is table else given[["x", "y"]]
    (batch,) = bushel.MapDataset.source(numbers).shuffle(seed=1).batch(3)
    assert sorted(batch["x"].tolist()) == [1, 2, 3]
    assert batch["x"].dtype == np.int64


@pytest.mark.parametrize("make", [table, frame])
def test_writing_into_rows_leaves_the_table_as_it_is(make):
    def write(row: dict[str, Any]) -> dict[str, Any]:
        row["tokens"] = np.append(row["tokens"], 0) if isinstance(row["tokens"], np.ndarray) else row["tokens"]
        if isinstance(row["tokens"], list):
            row["tokens"].append(0)
        row["new"] = 1
        return row

    given = make()
    ds = bushel.MapDataset.source(given).map(write)
    assert same(list(ds), list(ds))
    assert same([list(x) for x in rows(given)], [list(x) for x in rows(make())])
    assert [list(row["tokens"]) for row in rows(given)] == COLUMNS["tokens"]


@pytest.mark.parametrize("make", [table, frame])
def test_states_know_their_table(make):
    it = iter(bushel.MapDataset.source(make()))
    next(it)
    state = it.get_state()
    again = iter(bushel.MapDataset.source(make()))
    again.set_state(state)
    assert next(again)["x"] == 2
    changed = pa.table({**COLUMNS, "x": [1, 2, 4]}) if make is table else frame().assign(x=[1, 2, 4])
    with pytest.raises(bushel.StateMismatch):
        iter(bushel.MapDataset.source(changed)).set_state(state)


@pytest.mark.parametrize("make", [table, frame])
def test_a_source_of_rows_survives_a_pickle_and_says_what_it_is(make):
    source = bushel.MapDataset.source(make())._node.source
    assert same([*map(pickle.loads(pickle.dumps(source)).__getitem__, range(3))], rows(make()))
    assert "3 rows: x, y, name" in repr(bushel.MapDataset.source(make()))
    assert source[-1]["x"] == 3
    with pytest.raises(IndexError, match="index 3 is out of range for 3 records"):
        source[3]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (lambda: pa.table([[1], [2]], names=["a", "a"]), "This table has 2 columns 'a'"),
        (lambda: pd.concat([frame(), frame()], axis=1), "This frame has 2 columns 'x'.*Rename them"),
        (lambda: pd.DataFrame(index=range(3)), "This frame has no columns"),
        (lambda: pd.Series([1, 2], index=[1, 0]), r"by labels \(1, 0, ...\).*series.to_numpy\(\)"),
        (lambda: pa.dataset.dataset(table()), r"has no positions.*dataset.to_table\(\).*ParquetDataSource"),
        (lambda: {"x": np.zeros(3)}, "has the keys 'x'.*ArrayDataSource"),
    ],
)
def test_what_has_no_rows_to_read_is_refused(given, sentence):
    with pytest.raises((TypeError, ValueError), match=sentence):
        bushel.MapDataset.source(given())


def test_what_gives_records_already_stays_as_it_is():
    assert rows(pd.Series([5, 6])) == [5, 6]
    assert rows(pd.Index([5, 6])) == [5, 6]
    assert [x.as_py() for x in rows(pa.array([5, 6]))] == [5, 6]


def test_we_differ_rows_of_tables():
    with pytest.raises(KeyError):
        grain.MapDataset.source(frame())[0]
    assert isinstance(grain.MapDataset.source(table())[0], pa.ChunkedArray)  # a column
    assert bushel.MapDataset.source(table())[0]["x"] == bushel.MapDataset.source(frame())[0]["x"] == 1

"""`to_arrow` and `to_pandas`: elements as one table, and back again by `MapDataset.source`."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bushel
from bushel import MapDataset

pandas = pytest.importorskip("pandas")
pyarrow = pytest.importorskip("pyarrow")

ROWS = [
    {"id": 1, "name": "a", "score": 0.5, "ok": True, "blob": b"\0x", "box": {"x": np.float32(1), "ids": np.arange(2)}},
    {"id": 2, "name": "bé", "score": -1.0, "ok": False, "blob": b"", "box": {"x": np.float32(2), "ids": np.arange(0)}},
]
COLUMNS = ["id", "name", "score", "ok", "blob", "box.x", "box.ids"]


def test_nested_elements_have_a_column_for_each_value():
    ds = MapDataset.source(ROWS)
    table, frame = ds.to_arrow(), ds.to_pandas()
    assert table.column_names == COLUMNS and list(frame.columns) == COLUMNS
    assert table["box.ids"].to_pylist() == [[0, 1], []] and table["blob"].to_pylist() == [b"\0x", b""]
    assert table["box.x"].type == pyarrow.float32() and frame["box.x"].dtype == np.float32
    assert frame["name"].tolist() == ["a", "bé"] and float(np.mean(frame["score"])) == -0.25
    assert frame["ok"].dtype == bool and frame["box.ids"][0].tolist() == [0, 1]


@pytest.mark.parametrize("kind", ["to_arrow", "to_pandas"])
@given(
    rows=st.lists(
        st.fixed_dictionaries(
            {
                "int": st.integers(-(2**63), 2**63 - 1),
                "float": st.floats(allow_nan=False),
                "text": st.text(st.characters(exclude_categories=["Cs"])),
                "vector": st.lists(st.integers(-9, 9), max_size=4).map(lambda values: np.array(values, np.int16)),
                "half": st.floats(width=32, allow_nan=False).map(np.float32),
            }
        ),
        min_size=1,
        max_size=8,
    )
)
def test_what_a_table_holds_is_read_back(kind, rows):
    table = getattr(MapDataset.source(rows), kind)()
    for row, again in zip(rows, MapDataset.source(table), strict=True):
        assert again.keys() == row.keys()
        for name, value in row.items():
            np.testing.assert_array_equal(again[name], value)
        assert again["vector"].dtype == np.int16 and again["half"].dtype == np.float32


@pytest.mark.parametrize(
    "shapes", [[(2, 3), (2, 3)], [(2, 3), (1, 3)], [(2, 3), (2, 4)], [(2, 1, 2)] * 3, [(0, 2), (3, 2)]]
)
def test_arrays_with_several_axes_are_lists_of_lists(shapes):
    arrays = [np.arange(np.prod(shape), dtype=np.uint8).reshape(shape) for shape in shapes]
    ds = MapDataset.source(arrays).map(lambda array: {"image": array})
    assert ds.to_arrow()["image"].to_pylist() == [array.tolist() for array in arrays]
    for found, array in zip(ds.to_pandas()["image"], arrays, strict=True):
        np.testing.assert_array_equal(found, array)
        assert found.dtype == np.uint8


def test_dtypes_are_kept():
    day = np.datetime64("2026-11-19")
    for dtype in ("int8", "uint64", "float16", "float64", "bool"):
        ds = MapDataset.source(np.zeros((3, 2), dtype)).map(lambda row: {"scalar": row[0], "row": row, "day": day})
        table, frame = ds.to_arrow(), ds.to_pandas()
        assert table["scalar"].type == table["row"].type.value_type == pyarrow.from_numpy_dtype(np.dtype(dtype))
        assert frame["scalar"].dtype == dtype and frame["row"][1].dtype == dtype
        assert table["day"].to_pylist()[0] == frame["day"][0].date() == day.item()


def test_other_byte_orders_give_the_same_values():
    ds = MapDataset.source(np.arange(4, dtype=">i4").reshape(2, 2)).map(lambda row: {"row": row})
    assert ds.to_arrow()["row"].to_pylist() == [[0, 1], [2, 3]]


def test_elements_that_are_no_dicts_are_one_column():
    assert MapDataset.range(3).to_arrow().to_pydict() == {"value": [0, 1, 2]}
    assert MapDataset.source(["a", "b"]).to_pandas().to_dict("list") == {"value": ["a", "b"]}
    pairs = MapDataset.range(2).zip(MapDataset.range(5, 7))
    assert pairs.to_pandas()["value"].tolist() == [(0, 5), (1, 6)]


def test_a_missing_key_and_none_are_missing_values():
    ds = MapDataset.source([{"a": 1}, {"b": "x"}, {"a": None, "b": "y"}])
    assert ds.to_arrow().to_pydict() == {"a": [1, None, None], "b": [None, "x", "y"]}
    assert ds.to_pandas()["a"].isna().tolist() == [False, True, True]
    assert ds.to_pandas()["b"].isna().tolist() == [True, False, False]
    table = pyarrow.table({"text": ["a", None]})
    assert MapDataset.source(table).to_arrow().to_pydict() == table.to_pydict()


def test_filtered_elements_and_streams():
    ds = MapDataset.range(10).filter(lambda x: x % 3 == 0)
    assert ds.to_arrow()["value"].to_pylist() == [0, 3, 6, 9]
    stream = ds.to_iter_dataset().map(lambda x: {"x": x}).take(2)
    assert stream.to_pandas()["x"].tolist() == [0, 3]
    nothing = MapDataset.range(4).filter(lambda x: False)
    assert nothing.to_arrow().num_columns == 0 and len(nothing.to_pandas()) == 0


@pytest.mark.parametrize("workers", [2, bushel.MultiprocessingOptions(2)])
def test_workers_give_the_same_table(workers):
    ds = MapDataset.range(500).map(lambda x: {"x": x, "row": np.full(2000, x)})
    assert ds.to_arrow(workers=workers).equals(ds.to_arrow())
    frame = ds.to_pandas(workers=workers)
    assert frame["row"].map(np.sum).tolist() == [2000 * x for x in range(500)]


def test_the_table_shares_no_memory_with_the_data():
    data = np.arange(6).reshape(3, 2)
    frame = MapDataset.source(data).map(lambda row: {"row": row}).to_pandas()
    frame["row"][0][:] = 9
    assert data.tolist() == [[0, 1], [2, 3], [4, 5]]


def test_progress_is_shown():
    seen = []
    with bushel.on_progress(lambda name, done, total: seen.append((name, done, total))):
        MapDataset.range(3).to_arrow()
    assert seen[-1] == ("to_arrow", 3, 3)


def test_a_pass_for_a_table_is_no_pass_of_training(recwarn):
    ds = MapDataset.range(5).shuffle(seed=0)
    assert ds.to_arrow()["value"].to_pylist() == ds.to_pandas()["value"].tolist() == list(ds)
    assert not recwarn.list


@pytest.mark.parametrize("method", ["to_arrow", "to_pandas"])
def test_what_is_no_table_is_refused(method):
    with pytest.raises(ValueError, match=rf"^{method}: an endless dataset is no table. Leave out `repeat\(\)`, or"):
        getattr(MapDataset.range(3).repeat(), method)()
    with pytest.raises(ValueError, match=r"Element 0 has two values for the column 'a\.b'. Rename one of its keys"):
        getattr(MapDataset.source([{"a": {"b": 1}, "a.b": 2}]), method)()
    with pytest.raises(TypeError, match=r"The key 3 is no text, and the name of a column is one"):
        getattr(MapDataset.source([{3: 1}]), method)()


def test_values_that_arrow_has_not_are_named():
    with pytest.raises(TypeError, match=r"The values of 'x' are no column of Arrow: .*Map the elements to arrays"):
        MapDataset.source([{"x": 1}, {"x": "a"}]).to_arrow()
    with pytest.raises(TypeError, match=r"The values of 'x' are no column of Arrow"):
        MapDataset.source([{"x": object()}]).to_arrow()


@pytest.mark.parametrize(
    ("name", "method", "sentence"),
    [
        ("pandas", "to_pandas", "to_pandas needs the package 'pandas': pip install pandas"),
        ("pyarrow", "to_arrow", "Tables of Arrow need the package 'pyarrow': pip install"),
    ],
)
def test_a_missing_package_is_named(monkeypatch, name, method, sentence):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError) as caught:
        getattr(MapDataset.range(2), method)()
    assert str(caught.value).startswith(sentence)


def test_masks_are_not_dropped_in_silence():
    masked = np.ma.masked_array([1, 2], mask=[True, False])
    ds = MapDataset.range(1).map(lambda x: {"x": masked})
    assert ds.to_arrow()["x"].to_pylist() == [[None, 2]]
    assert np.ma.is_masked(ds.to_pandas()["x"][0])

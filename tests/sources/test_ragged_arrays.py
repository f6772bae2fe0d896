"""Sequences in one long array: what comes out, and what is refused."""

from __future__ import annotations

from typing import Any

import cloudpickle
import numpy as np
import pytest

import bushel
from bushel import MapDataset
from bushel._src.base.blocks import rows_of
from bushel._src.base.trees import leaves
from bushel.sources import RaggedDataSource
from bushel.testing import same


def test_records_are_slices_of_their_own():
    values = np.arange(10)
    source = RaggedDataSource({"a": values, "b": (values * 2.0,)}, [0, 3, 3, 10])
    assert len(source) == 3 and source.lengths.tolist() == [3, 0, 7]
    assert bushel.testing.same(source[-1], {"a": values[3:], "b": (values[3:] * 2.0,)})
    ds = MapDataset.source(source)
    ds[0]["a"][:] = 9
    rows: Any = ds.get([0, 2])
    rows[0]["a"][:] = 9
    assert values.tolist() == list(range(10))
    assert bushel.testing.same(ds.get([2, 0]), [source[2], source[0]])
    assert repr(source) == "RaggedDataSource(3 sequences of {'a': int64[10], 'b': (float64[10])})"
    with pytest.raises(IndexError, match="index 3 is out of range for 3 records"):
        source[3]


def test_mapped_values_go_to_other_processes_by_name(tmp_path):
    np.save(tmp_path / "values.npy", np.arange(100_000))
    values = np.load(tmp_path / "values.npy", mmap_mode="r")
    source = RaggedDataSource(values, [0, 50_000, 100_000])
    sent = cloudpickle.dumps(source)
    assert len(sent) < 2000
    assert cloudpickle.loads(sent)[1].tolist() == list(range(50_000, 100_000))


@pytest.mark.parametrize(
    ("values", "offsets", "sentence"),
    [
        (np.arange(4), [0, 3], "end with 4, the number of values; they go from 0 to 3"),
        (np.arange(4), [1, 4], "must begin with 0"),
        (np.arange(4), [0, 3, 2, 4], "never decrease"),
        (np.arange(4), [], "offsets must be a list of integers"),
        (np.arange(4), [0.0, 4.0], "offsets must be a list of integers, got float64"),
        ({"a": np.arange(4), "b": np.arange(5)}, [0, 4], "need a first axis of the same length"),
    ],
)
def test_what_does_not_fit_is_refused(values, offsets, sentence):
    with pytest.raises(ValueError, match=sentence):
        RaggedDataSource(values, offsets)


def test_ragged_arrays_are_identified_by_their_data():
    one, other = (MapDataset.source(RaggedDataSource(np.arange(4) + n, [0, 1, 4])) for n in (0, 1))
    with pytest.raises(bushel.StateMismatch, match="other data"):
        iter(other).set_state(iter(one).get_state())


@pytest.mark.parametrize(
    "tree", [lambda values: values, lambda values: {"t": values}, lambda values: (values, [values])]
)
def test_records_are_copied_only_for_who_may_write(tree):
    values = np.arange(10)
    plan = MapDataset.source(RaggedDataSource(tree(values), [0, 3, 3, 10]))._node.plan(np.array([2, 0]))
    for read, shares in ((plan.look, True), (plan.take, False)):
        rows = rows_of(read(0, 2))
        assert same(rows, [tree(values[3:]), tree(values[:3])])
        assert [np.shares_memory(leaf, values) for row in rows for leaf in leaves(row)] == [shares] * len(leaves(rows))

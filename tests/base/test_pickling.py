"""NumPy's texts keep their zeros on every way between processes and into files."""

from __future__ import annotations

import pickle
import sys

import cloudpickle
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bushel
from bushel._src.base.exact_values import dump_elements, whole_text
from bushel.testing import same

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers need not import the tests

TEXTS = [np.bytes_(b"a\0"), np.str_("a\0\0"), np.bytes_(b"\0"), np.str_(""), np.str_("\ud800\0")]


@given(st.one_of(st.text(st.characters()).map(np.str_), st.binary().map(np.bytes_)))
def test_a_pickle_keeps_a_text_whole(text):
    back = pickle.loads(dump_elements({"x": [text]}))["x"][0]
    assert type(back) is type(text) and whole_text(back) == whole_text(text)


def test_numpy_itself_loses_them():
    assert len(pickle.loads(pickle.dumps(np.bytes_(b"a\0")))) == 1, "if this fails, `TEXT_REDUCERS` can go"


@pytest.mark.parametrize("how", ["workers", "cache in files", "cache in memory"])
def test_texts_are_the_same_on_every_way(tmp_path, how):
    ds = bushel.MapDataset.range(5).map(lambda x: TEXTS[x]).to_iter_dataset()
    if how == "workers":
        ds = ds.mp_prefetch(bushel.MultiprocessingOptions(num_workers=1))
    else:
        ds = ds.cache(*([tmp_path] if how == "cache in files" else [])).repeat(2)
    assert all(same(found, TEXTS[number % 5]) for number, found in enumerate(ds))


def test_same_sees_zeros_and_masks():
    assert not same(np.bytes_(b"a\0"), np.bytes_(b"a")) and same(np.str_("a\0"), np.str_("a\0"))
    masked = np.ma.array([1, 2], mask=[0, 1])
    assert same(masked, masked.copy()) and not same(masked, np.array([1, 2]))
    assert not same(masked, np.ma.array([1, 2], mask=[0, 0])) and not same(masked, np.ma.array([2, 2], mask=[0, 1]))

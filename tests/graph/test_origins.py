"""`origin` agrees with what is read, and reads nothing."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from helpers.reordering_pipelines import Records, moved
from hypothesis import given, settings
from hypothesis import strategies as st

import bushel
from bushel import MapDataset
from bushel.experimental import ZipMapDataset


def flat(element):
    """The records in an element, in order: pairs of numbers, in whatever lists and tuples."""
    if isinstance(element, tuple) and len(element) == 2 and not isinstance(element[0], (tuple, list)):
        return [element]
    return [record for part in element for record in flat(part)]


def told(explanation):
    return [record.record for record in explanation.records]


@st.composite
def shaped(draw):
    ds = draw(moved(depth=3))
    for kind in draw(st.lists(st.sampled_from(["batch", "zip", "where", "order", "sample", "shuffle"]), max_size=3)):
        if kind == "batch":
            ds = ds.batch(draw(st.integers(1, 3)), batch_fn=list)
        elif kind == "zip":
            ds = ZipMapDataset([ds, ds.shuffle(3), ds])
        elif kind == "shuffle":
            ds = ds.shuffle(4)
        elif ds._node.epochs is bushel._src.graph.node.Epochs.SAME:
            values = np.arange(len(ds)) * 3 % 5
            if kind == "where":
                ds = ds.where(values >= 0)
            else:
                ds = ds.order_by(values) if kind == "order" else ds.sample(values + 1, seed=4)
    return ds


@settings(max_examples=120, deadline=None)
@given(ds=shaped(), index=st.integers(-50, 500))
def test_origin_names_the_records_that_are_read(ds, index):
    assert told(ds.origin(index)) == [number for _, number in flat(ds[index])]


@settings(max_examples=40, deadline=None)
@given(ds=shaped(), start=st.integers(0, 5), size=st.integers(1, 3), drop=st.booleans())
def test_an_iterator_explains_its_next_steps(ds, start, size, drop):
    stream = ds.to_iter_dataset().map(lambda x: x).batch(size, batch_fn=list, drop_remainder=drop)
    with iter(stream) as it:
        list(itertools.islice(it, start))
        explained = it.origins(4)
        found = list(itertools.islice(it, 4))
    assert [told(step) for step in explained] == [[number for _, number in flat(batch)] for batch in found]
    assert [step.index for step in explained] == list(range(start, start + len(found)))[: len(explained)]


class Unreadable(Records):
    def __getitem__(self, index):
        raise AssertionError("read")


def test_nothing_is_read_and_epochs_and_components_are_told():
    a, b = MapDataset.source(Unreadable(0, 3)), MapDataset.source(Unreadable(1, 2))
    mixture = MapDataset.mix(
        [a.shuffle(1), MapDataset.concatenate([b, a])], [1, 1], exact=True, when_exhausted="restart"
    )
    ds = mixture.map(lambda x: x).batch(4)
    found = [record for step in range(4) for record in ds.origin(step).records]
    first = [record for record in found if record.component == (0,)]
    assert len(first) == 8 and [record.epoch for record in first] == [0, 0, 0, 1, 1, 1, 2, 2]
    second = [record for record in found if record.component[0] == 1]
    assert [(record.component, record.record, record.epoch) for record in second[:7]] == [
        ((1, 0), 0, 0),
        ((1, 0), 1, 0),
        ((1, 1), 0, 0),
        ((1, 1), 1, 0),
        ((1, 1), 2, 0),
        ((1, 0), 0, 1),
        ((1, 0), 1, 1),
    ]
    assert str(found[0]) == f"record {found[0].record} of Unreadable, epoch 0, component 0"
    assert str(ds.origin(0)).startswith("element 0 is made of\n  record ")


def test_workers_change_nothing_of_what_is_told():
    ds = MapDataset.range(30).shuffle(2).batch(4).repeat(2).to_iter_dataset()
    with iter(ds.mp_prefetch(bushel.MultiprocessingOptions(num_workers=2))) as it:
        next(it)
        step = it.origins()[0]
        assert told(step) == next(it).tolist()


def test_what_cannot_be_told_is_refused():
    ds = MapDataset.range(10)
    with pytest.raises(ValueError, match="Elements may be missing"):
        iter(ds.filter(bool)).origins()
    with pytest.raises(ValueError, match="depends on what was read before"):
        iter(ds.to_iter_dataset().filter(bool)).origins()
    with pytest.raises(IndexError, match="is empty: it has no element 0"):
        MapDataset.range(0).origin(0)
    with pytest.raises(TypeError, match="index must be an integer"):
        ds.origin(1.5)
    assert iter(ds[:2]).origins(9) == [ds.origin(0), ds.origin(1)]

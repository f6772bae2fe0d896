"""The two kinds of dataset: which methods each has, what a stream knows of its length, how epochs repeat."""

from __future__ import annotations

import io
import itertools
import sys
import warnings

import numpy as np
import pytest
import tqdm
from hypothesis import given
from hypothesis import strategies as st

import bushel
from bushel import IterDataset, MapDataset
from bushel.testing import check_resumes_anywhere


def public(kind):
    return {name for name in vars(kind) if not name.startswith("_")}


ONLY_MAP = sorted(public(MapDataset) - {name for kind in IterDataset.__mro__ for name in vars(kind)})
ONLY_ITER = sorted(public(IterDataset) - {name for kind in MapDataset.__mro__ for name in vars(kind)})


@pytest.mark.parametrize("name", ONLY_ITER)
def test_a_method_of_streams_says_how_to_get_there(name):
    with pytest.raises(AttributeError) as caught:
        getattr(MapDataset.range(3).map(str), name)
    assert str(caught.value).startswith(
        f"A MapDataset has no `{name}`, an IterDataset has: write `ds.to_iter_dataset().{name}(...)`."
    )


@pytest.mark.parametrize("name", sorted({*ONLY_MAP} - {"to_iter_dataset"}))
def test_a_method_of_map_datasets_says_where_to_call_it(name):
    with pytest.raises(AttributeError, match=f"An IterDataset has no `{name}`, a MapDataset has: call it before"):
        getattr(MapDataset.range(3).to_iter_dataset(), name)


def test_each_kind_has_methods_of_its_own():
    assert {"mp_prefetch", "unbatch", "cache", "with_options"} <= set(ONLY_ITER)
    assert {"shuffle", "where", "column", "pack", "get", "origin"} <= set(ONLY_MAP)


def test_a_stream_says_what_shuffles_streams():
    with pytest.raises(AttributeError, match="use `window_shuffle`"):
        MapDataset.range(3).to_iter_dataset().shuffle()


@pytest.mark.parametrize("ds", [MapDataset.range(3).map(str), MapDataset.range(3).to_iter_dataset()])
def test_a_name_that_neither_has_is_reported_by_the_public_class(ds):
    kind = "MapDataset" if isinstance(ds, MapDataset) else "IterDataset"
    with pytest.raises(AttributeError, match=f"^'{kind}' object has no attribute 'nothing'$"):
        ds.nothing  # noqa: B018
    assert not hasattr(ds, "_nothing") and getattr(ds, "nothing", 3) == 3


def test_an_error_inside_a_property_of_the_user_is_shown():
    class Own(MapDataset):
        def __len__(self):
            return 3

        def __getitem__(self, index):
            return index

        @property
        def broken(self):
            return self.not_there

    with pytest.raises(AttributeError, match="'MapDataset' object has no attribute 'not_there'"):
        Own().broken  # noqa: B018


OPERATIONS = {
    "map": lambda ds, n: ds.map(lambda x: x),
    "map_with_index": lambda ds, n: ds.map_with_index(lambda i, x: x),
    "random_map": lambda ds, n: ds.random_map(lambda x, rng: x, seed=1),
    "batch": lambda ds, n: ds.batch(n, batch_fn=list),
    "batch, whole ones": lambda ds, n: ds.batch(n, drop_remainder=True, batch_fn=list),
    "limit": lambda ds, n: ds.limit(n),
    "repeat": lambda ds, n: ds.repeat(n),
    "window_shuffle": lambda ds, n: ds.window_shuffle(n, seed=2),
    "seed": lambda ds, n: ds.seed(n),
    "prefetch": lambda ds, n: ds.prefetch(n),
    "workers": lambda ds, n: ds.mp_prefetch(bushel.MultiprocessingOptions(num_workers=0)),
    "options": lambda ds, n: ds.with_options(filter_warn_threshold_ratio=None),
    "cache": lambda ds, n: ds.cache(),
    "zip": lambda ds, n: ds.zip(ds, strict=False),
}


@given(
    length=st.integers(0, 40),
    steps=st.lists(st.tuples(st.sampled_from(sorted(OPERATIONS)), st.integers(1, 5)), max_size=5),
)
def test_the_length_of_a_stream_is_the_number_of_its_elements(length, steps):
    ds = MapDataset.range(length).to_iter_dataset()
    for name, number in steps:
        ds = OPERATIONS[name](ds, number)
    assert len(ds) == sum(1 for _ in ds)


def test_an_endless_stream_has_no_length():
    """So that a bar of tqdm around it counts, and shows no number of batches that never comes. A MapDataset without end
    has `sys.maxsize` elements, as in Grain, but tqdm gets no total."""
    ds = MapDataset.range(3).repeat()
    assert len(ds) == sys.maxsize and len(ds.batch(2)) > 2**32
    for endless in (ds, ds.batch(2)):
        bar = tqdm.tqdm(endless, file=io.StringIO())
        assert bar.total is None and next(iter(bar)) is not None
    assert tqdm.tqdm(MapDataset.range(3).repeat(4), file=io.StringIO()).total == 12
    stream = ds.to_iter_dataset()
    for endless in (
        stream,
        stream.batch(2),
        ds.batch(2).to_iter_dataset(),
        MapDataset.range(3).to_iter_dataset().repeat(),
    ):
        with pytest.raises(TypeError, match="This IterDataset has no end: "):
            len(endless)
        assert tqdm.tqdm(endless, file=io.StringIO()).total is None


@pytest.mark.parametrize(
    "ds",
    [
        MapDataset.range(9).to_iter_dataset().filter(bool),
        MapDataset.range(9).filter(bool).to_iter_dataset().batch(2),
        MapDataset.range(9).to_iter_dataset().flat_map(lambda x: [x]),
        MapDataset.range(9).to_iter_dataset().with_options(on_error="skip"),
        bushel.IterDataset.source([1, 2]),
    ],
)
def test_a_length_that_is_not_known_is_a_type_error(ds):
    with pytest.raises(TypeError, match="not known without reading"):
        len(ds)
    assert ds, "a dataset is true, whatever is known of its length"
    assert list(ds), "list() asks for a length and does without one"


def test_an_empty_stream_is_true():
    assert MapDataset.range(0).to_iter_dataset() and not len(MapDataset.range(0).to_iter_dataset())


WARNING = "was read to its end before, and a new iterator gives the same order again"


def shuffled():
    return MapDataset.range(6).seed(3).shuffle().batch(2)


@pytest.mark.parametrize("ds", [shuffled(), shuffled().to_iter_dataset().prefetch(2)])
def test_a_second_pass_over_a_shuffled_dataset_warns_once(ds):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first = [batch.tolist() for batch in ds]
    with pytest.warns(UserWarning, match=WARNING) as caught:
        assert [batch.tolist() for batch in ds] == first
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(ds)


@pytest.mark.parametrize(
    "ds", [MapDataset.range(6).batch(2), shuffled().repeat(2), shuffled().to_iter_dataset().repeat(2)]
)
def test_datasets_in_order_or_repeated_do_not_warn(ds):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            list(ds)


def test_a_look_at_a_dataset_is_no_pass(tmp_path):
    ds = shuffled().map(lambda batch: batch)
    list(ds)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ds.describe()
        ds.save(tmp_path / "saved", format="tfrecord")
    assert caught == []


def test_restoring_a_state_or_stopping_early_does_not_warn():
    ds = shuffled()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(itertools.islice(ds, 2))
        it = iter(ds)
        next(it)
        state = it.get_state()
        rest = [batch.tolist() for batch in it]
        it = iter(ds)
        assert it.get_state()["next_index"] == 0
        it.set_state(state)
        assert [batch.tolist() for batch in it] == rest


def test_repeat_gives_a_new_order_every_epoch():
    epochs = np.array(list(MapDataset.range(60).seed(0).shuffle().repeat(3))).reshape(3, 60)
    assert len({tuple(epoch) for epoch in epochs.tolist()}) == 3
    assert (np.sort(epochs, axis=1) == np.arange(60)).all()


def test_the_base_class_is_for_types_and_not_for_subclasses():
    assert issubclass(MapDataset, bushel.Dataset) and issubclass(IterDataset, bushel.Dataset)
    with pytest.raises(TypeError, match=r"Write `class Records\(bushel.MapDataset\)` for elements by index"):
        type("Records", (bushel.Dataset,), {})


def test_both_kinds_say_their_shapes_in_one_way():
    ds = MapDataset.range(5).batch(2, drop_remainder=True)
    for either in (ds, ds.to_iter_dataset()):
        assert either.element_spec() == bushel.experimental.get_element_spec(ds) and either.element_spec().shape == (2,)
    with pytest.raises(NotImplementedError):
        MapDataset.source([1]).element_spec()
    with pytest.raises(NotImplementedError, match="not known without reading"):
        IterDataset.source([1]).element_spec()


def test_any_iterable_is_a_stream():
    ds = IterDataset.source(lambda: (x * x for x in range(6))).filter(lambda x: x % 2 == 0)
    assert list(ds) == list(ds) == [0, 4, 16] and repr(ds).startswith("IterDataset.source(")
    check_resumes_anywhere(ds.batch(2))

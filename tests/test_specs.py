"""Shapes and dtypes without reading: `get_element_spec` says what Grain's says, and it says what comes."""

import functools
from typing import Any

import grain
import numpy as np
import pytest

import bushel
from bushel import MapDataset
from bushel.experimental import ShapeDtypeStruct, ShapeDtypeStructProtocol, get_element_spec
from bushel.sources import ArrayDataSource


def pipelines(library):
    """The same pipelines, of either library."""
    experimental = library.experimental

    class Wrap(library.transforms.Map):
        def map(self, element):
            return {"wrapped": element}

        def output_spec(self, input_spec):
            return {"wrapped": input_spec}

    class Twice(library.transforms.RandomMap):
        def random_map(self, element, rng):
            return element, element

        def output_spec(self, input_spec):
            return input_spec, input_spec

    class Numbered(library.transforms.MapWithIndex):
        def map_with_index(self, index, element):
            return element

        def output_spec(self, input_spec):
            return input_spec

    class Split(experimental.FlatMapTransform):
        max_fan_out = 2

        def flat_map(self, element):
            return [element]

    class Collate:
        def __call__(self, rows):
            return np.stack(rows).astype(np.float32)

        def output_spec(self, input_spec, batch_size, drop_remainder):
            size = batch_size if drop_remainder else None
            return experimental.ShapeDtypeStruct((size, *input_spec.shape), np.float32)

    ten = library.MapDataset.range(10)
    stream = ten.to_iter_dataset()
    return {
        "range": ten,
        "shuffle": ten.seed(1).shuffle(),
        "slice": ten[2:5],
        "repeat": ten.repeat(2),
        "batch": ten.batch(3),
        "batch that drops": ten.batch(3, drop_remainder=True),
        "batch of batches": ten.batch(3, drop_remainder=True).batch(2),
        "batch_fn": ten.batch(3, batch_fn=list),
        "batch_fn with a spec": ten.batch(3, batch_fn=Collate()),
        "partial batch_fn with a spec": ten.batch(3, drop_remainder=True, batch_fn=functools.partial(Collate())),
        "filter": ten.filter(bool),
        "map": ten.map(str),
        "map with a spec": ten.map(Wrap()),
        "random_map with a spec": ten.random_map(Twice(), seed=1),
        "map_with_index with a spec": ten.map_with_index(Numbered()),
        "flat_map": ten.apply(Split()),
        "mix": library.MapDataset.mix([ten, ten]),
        "concatenate": library.MapDataset.concatenate([ten.map(Wrap()), ten.map(Wrap())]),
        "zip": experimental.ZipMapDataset([ten, ten.map(Wrap())]),
        "list": library.MapDataset.source([1, 2, 3]),
        "stream": stream,
        "stream batch": stream.batch(4),
        "stream batch that drops": ten.map(Wrap()).to_iter_dataset().batch(4, drop_remainder=True),
        "stream map": stream.map(lambda x: x),
        "stream map with a spec": stream.map(Wrap()),
        "stream random_map with a spec": stream.seed(1).random_map(Twice()),
        "stream filter": stream.filter(bool),
        "stream flat_map": stream.apply(Split()),
        "stream mix": library.IterDataset.mix([stream, stream]),
    }


def spec(library, name):
    """A spec as text, or the type of the error."""
    try:
        return repr(library.experimental.get_element_spec(pipelines(library)[name]))
    except Exception as error:
        return type(error).__name__


@pytest.mark.parametrize("name", pipelines(bushel))
def test_specs_are_grains(name):
    assert spec(bushel, name) == spec(grain, name)


def fits(leaf, struct):
    array = np.asarray(leaf)
    same_rank = array.ndim == len(struct.shape)
    return same_rank and all(want in (None, have) for want, have in zip(struct.shape, array.shape, strict=True))


@pytest.mark.parametrize("name", [name for name in pipelines(bushel) if "Error" not in spec(bushel, name)])
def test_what_comes_fits_the_spec(name):
    ds = pipelines(bushel)[name]
    expected = get_element_spec(ds)
    for element in ds:
        assert _all_fit(element, expected)


def _all_fit(element, struct):
    if isinstance(struct, dict):
        return element.keys() == struct.keys() and all(_all_fit(element[key], struct[key]) for key in struct)
    if isinstance(struct, tuple):
        return all(_all_fit(a, b) for a, b in zip(element, struct, strict=True))
    return fits(element, struct) and np.asarray(element).dtype == np.dtype(struct.dtype)


def test_arrays_know_their_shapes():
    source = ArrayDataSource({"x": np.zeros((5, 2), np.float32), "y": np.zeros(5, np.int8)})
    ds = MapDataset.source(source).seed(0).shuffle()
    assert get_element_spec(ds) == {
        "x": ShapeDtypeStruct((2,), np.dtype(np.float32)),
        "y": ShapeDtypeStruct((), np.dtype(np.int8)),
    }
    assert get_element_spec(ds.batch(2))["x"].shape == (None, 2)
    for element in ds.batch(2, drop_remainder=True):
        assert _all_fit(element, get_element_spec(ds.batch(2, drop_remainder=True)))


def test_a_source_may_say_its_shapes():
    class Known:
        def __len__(self):
            return 3

        def __getitem__(self, index):
            return np.zeros(4)

        def element_spec(self):
            return ShapeDtypeStruct((4,), np.float64)

    assert get_element_spec(MapDataset.source(Known()).batch(2)) == ShapeDtypeStruct((None, 4), np.float64)


def test_a_dataset_of_ones_own_may_say_its_shapes():
    class Known(MapDataset):
        def __len__(self):
            return 3

        def __getitem__(self, index: Any) -> Any:
            return 1.0

        @property
        def _element_spec(self):
            return ShapeDtypeStruct((), np.float64)

    assert get_element_spec(Known().batch(3, drop_remainder=True)) == ShapeDtypeStruct((3,), np.float64)


SENTENCES = {
    "map": (
        lambda: MapDataset.range(3).map(str),
        "Cannot infer element spec for transform str because it does not implement `output_spec` method. "
        "Implement `str.output_spec(self, input_spec)`, which returns a tree of ShapeDtypeStruct.",
    ),
    "list": (
        lambda: MapDataset.source([1, 2]),
        "The shapes of list of 2 are not known without reading it. "
        "Give the source an `element_spec()` method that returns a tree of ShapeDtypeStruct.",
    ),
    "batch_fn": (
        lambda: MapDataset.range(3).batch(2, batch_fn=list),
        "The shapes of batches made by list are not known: give it an "
        "`output_spec(input_spec, batch_size, drop_remainder)` method.",
    ),
}


@pytest.mark.parametrize(("build", "sentence"), SENTENCES.values(), ids=SENTENCES)
def test_where_shapes_are_not_known_the_way_out_is_told(build, sentence):
    with pytest.raises((ValueError, NotImplementedError)) as raised:
        get_element_spec(build())
    assert str(raised.value) == sentence


def test_no_record_is_read():
    class Unread:
        def __len__(self):
            return 3

        def __getitem__(self, index):
            raise AssertionError("a record was read")

        def element_spec(self):
            return ShapeDtypeStruct((), np.int64)

    get_element_spec(MapDataset.source(Unread()).seed(0).shuffle().batch(2).to_iter_dataset().batch(2))


def test_a_struct_has_a_shape_and_a_dtype():
    assert isinstance(ShapeDtypeStruct((), np.int64), ShapeDtypeStructProtocol)
    assert isinstance(np.zeros(3), ShapeDtypeStructProtocol)
    assert not isinstance(3, ShapeDtypeStructProtocol)

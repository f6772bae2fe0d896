"""Digests of arrays take values and no padding: equal data have equal digests, whatever lies between the values."""

import numpy as np
import pytest
from helpers.numpy_versions import STRING_DTYPES
from helpers.state_mismatches import difference
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from bushel import MapDataset
from bushel._src.graph.columns import Column, NodeValues
from bushel._src.state.digest import digest, whole_digest

ALIGNED = np.dtype([("id", "i1"), ("x", "f8"), ("tags", "i2", (3,)), ("end", "i1")], align=True)
NESTED = np.dtype([("flag", "?"), ("point", ALIGNED, (2,)), ("wide", np.longdouble)], align=True)


def filled(dtype, count, byte):
    """An array of one value throughout, whose memory held `byte` everywhere before."""
    array = np.frombuffer(bytearray([byte]) * (dtype.itemsize * count), dtype=dtype)
    for field in dtype.names or [...]:
        fill(array, field)
    set_padding(array, byte)
    return array


def fill(array, field):
    part = array[field]
    if part.dtype.names:
        for name in part.dtype.names:
            fill(part, name)
    else:
        part[...] = np.arange(part.size).reshape(part.shape) % 2


def set_padding(array, byte):
    """Sets the last six bytes of each longdouble of Intel's processors, which has 80 bits in 16 bytes."""
    if array.dtype.char in "gG" and np.finfo(np.longdouble).nmant == 63:
        array.view(np.uint8).reshape(-1, 16)[:, 10:] = byte


def with_padding_of(array, byte):
    """The same values in memory that held `byte` everywhere before."""
    memory = np.frombuffer(bytearray([byte]) * max(1, array.nbytes), np.uint8)[: array.nbytes].copy()
    other = memory.view(array.dtype).reshape(array.shape)
    copy_values(other, array)
    return other


def copy_values(to, array):
    if array.dtype.names is None:
        to[...] = array
    else:
        for name in array.dtype.names:
            copy_values(to[name], array[name])


DTYPES = [ALIGNED, NESTED, np.dtype(np.longdouble), np.dtype(np.clongdouble)]


@pytest.mark.parametrize("dtype", DTYPES, ids=["aligned", "nested", "longdouble", "clongdouble"])
@pytest.mark.parametrize("count", [3, 5000])
def test_padding_does_not_count(dtype, count):
    one, two = filled(dtype, count, 0x00), filled(dtype, count, 0xAB)
    assert one.view(np.uint8).tobytes() != two.view(np.uint8).tobytes() or np.finfo(np.longdouble).nmant != 63
    assert digest(one) == digest(two)
    assert whole_digest(one) == whole_digest(two)
    assert difference(MapDataset.source(one), MapDataset.source(two)) == []
    assert difference(MapDataset.source(list(one)), MapDataset.source(list(two))) == []


def test_padding_of_a_column_does_not_count():
    node = MapDataset.range(2000)._node
    one, two = (Column((NodeValues(node, filled(np.dtype(np.longdouble), 2000, byte)),)) for byte in (0x00, 0xAB))
    assert one._digest == two._digest != Column((NodeValues(node, one.values + 1),))._digest


@pytest.mark.parametrize("dtype", DTYPES, ids=["aligned", "nested", "longdouble", "clongdouble"])
def test_every_value_counts(dtype):
    array = filled(dtype, 3, 0)
    for name in dtype.names or [""]:
        other = array.copy()
        changed = other[name] if name else other
        if changed.dtype.names:
            changed = changed["end"]
        changed[..., -1] = changed[..., -1] == 0
        assert digest(array) != digest(other), name


def test_names_of_fields_count():
    one = np.zeros(2, [("a", "i4"), ("b", "i4")])
    assert digest(one) != digest(one.view([("a", "i4"), ("c", "i4")]))
    assert digest(one) != digest(one.view([("b", "i4"), ("a", "i4")]))


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_a_digest_is_a_function_of_values(data):
    scalars = st.one_of(
        hnp.scalar_dtypes(), hnp.array_dtypes(max_size=4), st.sampled_from([np.dtype("g"), np.dtype("G"), NESTED])
    )
    array = data.draw(hnp.arrays(data.draw(scalars), st.integers(0, 5)))
    same = with_padding_of(array, data.draw(st.integers(0, 255)))
    assert digest(array) == digest(same) == digest(with_padding_of(array[::-1], 7)[::-1])


@settings(max_examples=60, deadline=None)
@given(
    one=st.tuples(st.floats(width=64), st.floats(width=64)),
    two=st.tuples(st.floats(width=64), st.floats(width=64)),
)
def test_a_longdouble_counts_to_its_last_bit(one, two):
    def value(pair):  # more digits than a float64 has
        with np.errstate(all="ignore"):
            return np.longdouble(pair[0]) + np.longdouble(pair[1])

    a, b = np.array([value(one)]), np.array([value(two)])
    if np.isnan(a[0]) and np.isnan(b[0]):
        return
    assert (digest(a) == digest(b)) == (a[0] == b[0] and np.signbit(a[0]) == np.signbit(b[0]))


def test_the_smallest_step_of_a_longdouble_counts():
    for value in (
        np.longdouble(1),
        np.finfo(np.longdouble).max,
        np.finfo(np.longdouble).tiny,
        np.longdouble("-1e4000"),
    ):
        one = np.array([value])
        assert digest(one) != digest(np.nextafter(one, np.longdouble(0)))
    infinite = [digest(np.array([value], np.longdouble)) for value in (np.inf, -np.inf, np.nan, 0.0, -0.0)]
    assert len(set(infinite)) == 5


def test_orders_in_memory_and_strides_do_not_count():
    array = np.arange(60_000.0).reshape(100, 600)
    assert digest(array) == digest(np.asfortranarray(array)) == digest(np.repeat(array, 2, axis=1)[:, ::2])


def test_values_under_a_mask_do_not_count():
    mask = [True, False, False]
    one, two = np.ma.array([1, 2, 3], mask=mask), np.ma.array([9, 2, 3], mask=mask)
    assert digest(one) == digest(two)
    assert digest(one) != digest(np.ma.array([1, 2, 3], mask=[False, False, False]))
    assert digest(one) != digest(np.ma.array([1, 2, 4], mask=mask))


@pytest.mark.parametrize("kind", ["U", *STRING_DTYPES])
def test_texts_of_any_length_count_by_their_letters(kind):
    one, two = (np.array(["x" * 100, "short", word], dtype=kind) for word in ("same", "same"))
    assert digest(one) == digest(two) != digest(np.array(["x" * 100, "short", "other"], dtype=kind))

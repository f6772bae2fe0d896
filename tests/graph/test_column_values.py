"""A column holds what the function returned, value and type, however its records were cut into pieces, or refuses."""

from __future__ import annotations

import enum
import fractions
import itertools
import operator
import sys

import cloudpickle
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import bushel
from bushel import MapDataset, MultiprocessingOptions
from bushel._src.datasets import computed_columns as computing

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers need not import the tests

HERE, TWO = MultiprocessingOptions(num_workers=0), MultiprocessingOptions(num_workers=2)

SMALL = st.sampled_from([0, 1, -1, 7, 2**31, -(2**40), 2**53, -(2**53)])
LARGE = st.sampled_from([2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63), 2**62])
UNSIGNED = st.sampled_from([2**63, 2**63 + 1, 2**64 - 1])
FLOATS = st.sampled_from([0.0, -0.0, 0.5, 1e300, float("inf"), float("nan"), 2.0**63])
TEXTS = st.sampled_from(["", "a", "ab", "a\0b", "\0a", "é\U0001f600", "a longer text"])
RAW = st.sampled_from([b"", b"a", b"ab", b"a\0b", b"\0a", b"a longer text"])
SCALARS = st.sampled_from(
    [
        np.int8(-3),
        np.uint8(200),
        np.int32(2**31 - 1),
        np.uint64(2**64 - 1),
        np.uint64(3),
        np.int64(2**53 + 1),
        np.float16(0.5),
        np.float32(0.1),
        np.float64(0.1),
        np.longdouble(1) / 3,
        np.complex64(1 + 2j),
    ]
)
ODD = st.sampled_from(
    [
        True,
        np.bool_(False),
        2**64,
        -(2**63) - 1,
        "a\0",
        b"a\0",
        np.bytes_(b"a\0"),
        None,
        fractions.Fraction(1, 3),
        np.datetime64("2020-01-01"),
        np.datetime64("2020-01-01T00:00:00.1"),
        np.timedelta64(5, "s"),
        1j,
        np.array([1, 2]),
        np.array([2**63, 1], np.uint64),
        np.array([1.5, 2]),
        np.array([1, 2, 3]),
        np.array("a"),
        np.ma.array([1, 2], mask=[0, 1]),
        {"a": 1},
        {"a": 2**63},
        {"a": 0.5},
        {"a": "x"},
        {"a": 1, "b": 2},
        [1, 2],
    ]
)


@st.composite
def many_values(draw) -> list:
    """Mostly values of one type, or of a few that go together, with now and then one that does not."""
    kinds = draw(
        st.sampled_from(
            [
                [SMALL],
                [SMALL, LARGE],
                [SMALL, UNSIGNED],
                [UNSIGNED],
                [SMALL, FLOATS],
                [SMALL, LARGE, FLOATS],
                [FLOATS],
                [TEXTS],
                [RAW],
                [st.booleans()],
                [SCALARS],
                [SCALARS, SMALL],
                [ODD],
                [SMALL, TEXTS],
            ]
        )
    )
    values = draw(st.lists(st.one_of(kinds), min_size=1, max_size=12))
    if draw(st.integers(0, 4)) == 0:
        values.insert(draw(st.integers(0, len(values))), draw(ODD))
    return values * draw(st.sampled_from([1, 1, 2]))


def kind_of(value) -> str | None:
    """The kind of a value; None for what no column holds."""
    if isinstance(value, (str, bytes)):
        return None if value[-1:] in ("\0", b"\0") else "U" if isinstance(value, str) else "S"
    if isinstance(value, np.ma.MaskedArray) or not isinstance(
        value, (bool, int, float, complex, np.generic, np.ndarray)
    ):
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        return "i" if -(2**63) <= value < 2**64 else None
    array = np.asarray(value)
    return {"u": "i", "M": str(array.dtype), "m": str(array.dtype)}.get(array.dtype.kind, array.dtype.kind)


def integers_of(value) -> list[int]:
    return np.asarray(value, object).reshape(-1).tolist() if kind_of(value) == "i" else []


def are_accepted(values: list) -> bool:
    """What the page on columns says, in plain Python."""
    if any(isinstance(value, dict) for value in values):
        if not all(isinstance(value, dict) and value.keys() == values[0].keys() for value in values):
            return False
        return all(are_accepted([value[key] for value in values]) for key in values[0])
    kinds = set(map(kind_of, values))
    if None in kinds or len({np.shape(value) for value in values}) > 1:
        return False
    integers = [number for value in values for number in integers_of(value)]
    if kinds == {"i"}:
        return min(integers) >= -(2**63) and max(integers) < (2**64 if min(integers) >= 0 else 2**63)
    if kinds <= {"i", "f", "c"}:
        return all(int(float(number)) == number for number in integers)
    return len(kinds) == 1


def assert_same(found, value, mixed: bool) -> None:
    if isinstance(value, dict):
        for key in value:
            assert_same(found[key], value[key], mixed)
        return
    found = np.asarray(found)
    if kind_of(value) in ("S", "U"):
        assert found.item() == np.asarray(value).item() and found.dtype.kind == kind_of(value)
        return
    original = np.asarray(value)
    assert found.shape == original.shape
    if original.dtype.kind in "iu":
        assert [int(number) for number in found.real.reshape(-1)] == [int(number) for number in original.reshape(-1)]
    else:
        if found.dtype.kind == "c" and original.dtype.kind != "c":
            assert not found.imag.any()
            found = found.real
        assert np.array_equal(found.astype(original.dtype), original, equal_nan=original.dtype.kind in "fc")
        if original.dtype.kind in "fc":
            assert (np.signbit(found.real) == np.signbit(original.real)).all()
    if not mixed:
        assert {"u": "i"}.get(found.dtype.kind, found.dtype.kind) == {"u": "i"}.get(
            original.dtype.kind, original.dtype.kind
        )


class Nth:
    """The value of a record. The first run may stop at a record, as a killed one does."""

    def __init__(self, values):
        self.values, self.stops_at = values, None

    def __call__(self, x):
        if x == self.stops_at:
            raise KeyboardInterrupt
        return self.values[x]

    def __reduce__(self):
        return Nth, (self.values,)


def column_of(values, monkeypatch, size, options=HERE, cache=None, stops_at=None):
    """The array of the column, or the error."""
    function = Nth(values)
    ds = MapDataset.range(len(values))
    with monkeypatch.context() as patch:
        patch.setattr(computing, "_range_size", lambda length: size)
        patch.setattr(computing, "_SAVE_EVERY_S", 0.0)
        try:
            if stops_at is not None:
                function.stops_at = stops_at
                try:
                    ds.column(function, workers=options, cache_dir=cache)
                except KeyboardInterrupt:
                    function.stops_at = None
            return np.asarray(ds.column(function, workers=options, cache_dir=cache))
        except (TypeError, ValueError) as error:
            return error


@settings(max_examples=3000, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    values=many_values(),
    size=st.sampled_from([1, 2, 3, 5, 100]),
    stops_at=st.none() | st.integers(0, 8),
    saved=st.booleans(),
)
@example(values=[1, 2**63, 3], size=1, stops_at=2, saved=True)
@example(values=[2**63, -1], size=1, stops_at=None, saved=False)
@example(values=[0.5, 2**53 + 1], size=1, stops_at=1, saved=True)
@example(values=[np.datetime64("2020-01-01"), np.datetime64("2020-01-01T00:00:00.1")], size=1, stops_at=1, saved=True)
@example(values=[{"a": 1}, {"a": 2**64 - 1}], size=1, stops_at=1, saved=True)
def test_a_column_holds_what_the_function_returned_or_refuses(
    values, size, stops_at, saved, monkeypatch, tmp_path_factory
):
    folder = tmp_path_factory.mktemp("columns") if saved else None
    found = column_of(values, monkeypatch, size, cache=folder, stops_at=stops_at if saved else None)
    if not are_accepted(values):
        assert isinstance(found, (TypeError, ValueError))
        return
    assert isinstance(found, np.ndarray), found
    kinds = set(map(kind_of, values))
    for one, value in zip(found, values, strict=True):
        assert_same(one, value, mixed=len(kinds) > 1 or isinstance(value, dict))
    # In every other order, and as one piece, the column has the same dtype.
    assert column_of(values[::-1], monkeypatch, 2).dtype.newbyteorder("=") == found.dtype
    assert column_of(values, monkeypatch, 100).dtype == found.dtype


@pytest.mark.parametrize(
    "values",
    [
        [5, 2**63 + 1, 7] * 30,
        [5, 0.5, 7] * 30,
        [b"a", b"a\0b", b"abc"] * 30,
        [{"a": 1, "b": "x"}, {"b": "yy", "a": 2**64 - 1}] * 40,
        [np.float32(0.1), np.float64(0.1), 3] * 30,
        [np.datetime64("2020-01-01"), np.datetime64("NaT", "D")] * 40,
    ],
)
def test_workers_change_no_value(values, monkeypatch, tmp_path):
    alone = column_of(values, monkeypatch, 100)
    assert isinstance(alone, np.ndarray), alone
    for cache in (None, tmp_path):
        found = column_of(values, monkeypatch, 7, options=TWO, cache=cache)
        assert found.dtype == alone.dtype and found.tolist() == alone.tolist()


class Color(enum.IntEnum):
    RED = 3


def test_the_dtypes_that_the_page_promises():
    def dtype(*values):
        return MapDataset.source(list(values)).column(lambda value: value).dtype

    assert dtype(1, 2) == dtype(1, np.int8(2)) == dtype(np.uint8(1), np.uint16(2)) == dtype(Color.RED) == np.int64
    assert dtype(np.uint8(1), np.uint8(2)) == np.uint8
    assert dtype(1, 2**63) == dtype(np.uint64(1), 2**64 - 1) == dtype(np.uint64(1)) == np.uint64
    assert dtype(1, 0.5) == dtype(np.float32(0.5), 1) == dtype(np.float32(0.5), 0.1) == np.float64
    assert dtype(np.float32(0.5), np.float16(1)) == np.float32
    assert dtype("a", "abc") == np.dtype("U3") and dtype(b"a", b"abc") == np.dtype("S3")
    assert dtype(True, np.bool_(False)) == np.bool_


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ([1, 2, 2**64], r"returned, for element 2, 18446744073709551616\. A column holds integers of 64 bits"),
        (
            [1, 2**63, -5],
            r"element 2 has -5 and element 1 has 9223372036854775808: neither int64 nor uint64",
        ),
        ([0.5, 2**53 + 1], r"element 0 has 0.5, and as a float the integer 9007199254740993 of element 1 "),
        ([b"ab", b"a\0"], r"for element 1, b'a\\x00'\. NumPy's arrays of texts drop zeros at the end"),
        (["ab", "a\0"], r"for element 1, 'a\\x00'\. NumPy's arrays of texts drop zeros at the end"),
        ([1, "a"], r"element 0 has 1 \(int64\) and element 1 has 'a' \(<U1\)"),
        (["a", b"a"], r"element 0 has 'a' \(<U1\) and element 1 has b'a' \(\|S1\)"),
        ([1, True], r"element 1 has True \(bool\)\. Return values of one type"),
        ([{"a": 1}, {"a": "x"}], r"needs in the field 'a' values of one type and shape; element 0"),
        ([{"a": 1}, {"b": 1}], r"for element 1, \{'b': 1\}, and others with the fields \['a'\]"),
        ([{"a": 1}, 5], r"for element 1, 5, and others with the fields"),
        ([{1: 1}], r"for element 0, \{1: 1\}"),
        ([np.ma.array([1], mask=[1])], r"A column does not keep masks"),
        ([np.array([object()])], "A column needs a number"),
    ],
)
def test_what_no_column_holds_is_named(values, sentence, tmp_path):
    ds = MapDataset.range(len(values))
    for cache in (None, tmp_path):
        with pytest.raises((TypeError, ValueError), match=sentence):
            ds.column(Nth(values), workers=HERE, cache_dir=cache)


def test_parts_of_a_mixture_have_one_dtype():
    small, large, empty = MapDataset.source([1, 2]), MapDataset.source([2**63 + 1, 5]), MapDataset.source([])[0:0]
    both = MapDataset.concatenate([small, large])
    column = both.column(lambda x: x)
    assert column.dtype == np.uint64 and np.asarray(column).tolist() == [1, 2, 2**63 + 1, 5]
    assert list(both.where(column % 2 == 1)) == [1, 2**63 + 1, 5]
    with pytest.raises(ValueError, match="element 0 has -1 and element 2 has 9223372036854775809"):
        MapDataset.concatenate([MapDataset.source([-1, 2]), large]).column(lambda x: x)
    with_none = MapDataset.concatenate([empty, small])
    assert with_none.column(lambda x: x).dtype == np.int64


def test_a_list_of_values_is_not_rounded_either():
    ds = MapDataset.range(3)
    assert list(ds.order_by([2**63 + 1, 2**63, 5])) == [2, 1, 0]
    with pytest.raises(ValueError, match="neither int64 nor uint64 holds both"):
        ds.order_by([2**63, -1, 0])
    with pytest.raises(ValueError, match="more than an int64 holds"):
        ds.pack([2**63, 1, 1], 10)


OPERATIONS = [
    operator.add,
    operator.sub,
    operator.mul,
    operator.mod,
    operator.floordiv,
    operator.eq,
    operator.ne,
    operator.lt,
    operator.le,
    operator.gt,
    operator.ge,
    max,
    min,
]
IN_NUMPY = {max: np.maximum, min: np.minimum}
NUMBERS = SMALL | LARGE | UNSIGNED | st.integers(-20, 20)


@settings(max_examples=300, deadline=None)
@given(
    values=st.lists(NUMBERS, min_size=1, max_size=6).filter(are_accepted),
    other=NUMBERS | st.integers(-(2**70), 2**70) | st.sampled_from([0.5, 2.0**53, 2.0**63, float("nan")]),
    operation=st.sampled_from(OPERATIONS),
    narrow=st.booleans(),
    swapped=st.booleans(),
)
@example(values=[3], other=5, operation=operator.sub, narrow=True, swapped=False)
@example(values=[2**63 + 1, 3], other=-1, operation=operator.mul, narrow=False, swapped=False)
@example(values=[2**53 + 1], other=2.0**53, operation=operator.eq, narrow=False, swapped=False)
def test_arithmetic_with_integers_is_that_of_python(values, other, operation, narrow, swapped):
    if narrow and all(0 <= value < 256 for value in values):
        column = MapDataset.source(values).column(np.uint8)
    else:
        column = MapDataset.source(values).column(lambda value: value)
    if isinstance(other, float) and operation not in OPERATIONS[5:11]:
        return  # a result that is a float is rounded, as in Python
    if operation in (operator.mod, operator.floordiv) and (other == 0 or (swapped and 0 in values)):
        return
    pairs = [(other, value) if swapped else (value, other) for value in values]
    expected = [operation(*pair) for pair in pairs]
    call = IN_NUMPY.get(operation, operation)
    try:
        found = call(other, column) if swapped else call(column, other)
    except (TypeError, ValueError, OverflowError):
        assert not are_accepted(expected)
        return
    assert np.asarray(found).tolist() == expected


def test_columns_with_columns_and_several_results():
    ds = MapDataset.source([2**63 + 5, 3])
    large, signed = ds.column(lambda x: x), ds.column(lambda x: x % 7 - 5)
    assert np.asarray(large + signed).tolist() == [x + x % 7 - 5 for x in ds]
    assert np.asarray(large > signed).tolist() == [True, True]
    quotient, rest = divmod(large, 10)
    assert np.asarray(quotient).tolist() == [x // 10 for x in ds] and np.asarray(rest).tolist() == [x % 10 for x in ds]
    assert np.asarray(ds.column(np.uint64) ** 1).tolist() == list(ds)
    assert np.asarray(MapDataset.source([200, 3]).column(np.uint8) ** 2).tolist() == [40000, 9]
    with pytest.raises(TypeError, match=r"multiply returned, for element 0, 1475\d+\. A column holds integers"):
        np.multiply(large, 16)
    with pytest.raises(OverflowError, match="up to 6400 bits"):
        np.power(large, 100)


def test_a_text_that_ends_in_zeros_equals_no_other():
    ds = MapDataset.source([b"a", b"b"])
    column = ds.column(lambda x: x)
    assert list(ds.where(column == b"a")) == [b"a"]
    with pytest.raises(ValueError, match=r"equal of a column and b'a\\x00': NumPy drops zeros at the end"):
        np.equal(column, b"a\0")
    with pytest.raises(TypeError, match="drop zeros at the end"):
        MapDataset.source([b"a", b"a\0"]).column(lambda x: x)


def test_vectorized_functions_in_pieces_of_several_dtypes():
    ds = MapDataset.source(bushel.sources.ArrayDataSource({"x": np.arange(300)}))

    def large_at_the_end(tree):
        x = tree["x"]
        return x if x.max() < 200 else x.astype(np.uint64) + np.uint64(2**63)

    column = ds.column(large_at_the_end, vectorized=True)
    assert column.dtype == np.uint64
    with pytest.raises(TypeError, match="values of dtype object"):
        ds.column(lambda tree: tree["x"].astype(object), vectorized=True)


def test_every_order_of_pieces(monkeypatch):
    values = [1, 2**63, np.int8(-1), 0.5]
    for order in itertools.permutations(values[:2]):
        assert column_of(list(order), monkeypatch, 1).dtype == np.uint64
    for order in itertools.permutations(values[:3]):
        assert isinstance(column_of(list(order), monkeypatch, 1), ValueError)
    for order in itertools.permutations(values):
        found = column_of(list(order), monkeypatch, 1)
        assert found.dtype == np.float64 if not isinstance(found, Exception) else isinstance(found, ValueError)

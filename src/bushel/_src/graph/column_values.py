"""The values of a column: which are accepted, the dtype that holds all of them, and exact arithmetic."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from operator import countOf
from typing import Any

import numpy as np

from bushel._src.base.exact_values import ends_in_zero, find_rounded, show

_LARGE = 1 << 63  # the first integer that int64 cannot hold

Group = tuple[np.ndarray | None, np.ndarray]
"""Values of one dtype, and their rows in the range: None for all rows."""

SortedValuesOfRange = tuple[dict[str, list[Group]], tuple[int, str] | None]
"""The values of a range of elements by field, and the first row that no column holds, with the reason.

A value that is no dict has the field "". A tree of arrays, so that workers send it as they send elements.
"""

_WAYS_OUT = {
    "zero": "NumPy's arrays of texts drop zeros at the end. Return a number, such as a hash, or remove the zeros.",
    "wide": "A column holds integers of 64 bits. Return a smaller number, such as `value % 2**64`, or `float(value)`.",
    "kind": (
        "A column needs a number, a small array of one shape, or a flat dict of them for each element; "
        "a text or bytes will do too."
    ),
}


def sort_values(values: Sequence[Any]) -> SortedValuesOfRange:
    """Return the values of a range of elements, one by one, as arrays of one dtype each.

    Nothing is converted but from Python's types.
    """
    first = values[0]
    if not isinstance(first, Mapping) and not _is_structured(first):
        groups, refused = _sort_leaves(values, "")
        return {"": groups}, refused
    names = _names_of(first)
    refused = None if names else (0, f"{show(first)}. {_WAYS_OUT['kind']}")
    if countOf(map(type, values), dict) < len(values) or len(set(map(tuple, values))) > 1:  # not all of one order
        for row, value in enumerate(values):
            found = _names_of(value) if isinstance(value, Mapping) or _is_structured(value) else []
            if set(found) != set(names):
                reason = f"{show(value)}, and others with the fields {names}. Return the same fields for all elements."
                return {}, (row, reason)
    by_field: dict[str, list[Group]] = {}
    for name in names:
        by_field[name], wrong = _sort_leaves([value[name] for value in values], name)
        refused = min(filter(None, (refused, wrong)), default=None)
    return by_field, refused


def sort_arrays(tree: Any) -> SortedValuesOfRange:
    """Return the values of a range as a function of whole columns has returned them: an array, or a flat dict of
    arrays.
    """
    fields: dict[Any, Any] = dict(tree) if isinstance(tree, Mapping) else _split_fields(tree)
    if not fields or any(type(leaf) is not np.ndarray or not _is_kept(leaf.dtype) for leaf in fields.values()):
        return {}, (0, f"{_describe_dtypes(tree)}. {_WAYS_OUT['kind']}")
    if isinstance(tree, Mapping) and not all(isinstance(name, str) and name for name in fields):
        return {}, (0, f"a dict with the keys {list(fields)}. Name the fields with texts.")
    return {
        name: [(None, leaf.astype(leaf.dtype.newbyteorder("="), copy=False))] for name, leaf in fields.items()
    }, None


def _describe_dtypes(tree: Any) -> str:
    if isinstance(tree, Mapping):
        return "{" + ", ".join(f"{name!r}: {_describe_dtypes(leaf)}" for name, leaf in tree.items()) + "}"
    return f"values of dtype {tree.dtype}" if isinstance(tree, np.ndarray) else type(tree).__name__


def _is_structured(value: Any) -> bool:
    return isinstance(value, (np.void, np.ndarray)) and value.dtype.names is not None


def _names_of(value: Any) -> list[Any]:
    names = list(value.dtype.names) if _is_structured(value) else list(value)
    return names if all(isinstance(name, str) and name for name in names) else []


def _split_fields(array: Any) -> dict[str, Any]:
    if isinstance(array, np.ndarray) and array.dtype.names:
        return {name: array[name] for name in array.dtype.names}
    return {"": array}


def _is_kept(dtype: np.dtype[Any]) -> bool:
    """Return whether columns hold values of this dtype: those that a `.npy` file gives back as they were."""
    if dtype.hasobject or dtype.kind not in "biufcSUmMV":
        return False
    return np.lib.format.descr_to_dtype(np.lib.format.dtype_to_descr(dtype)) == dtype


def _sort_leaves(values: Sequence[Any], field: str) -> tuple[list[Group], tuple[int, str] | None]:
    """Return values of one field in groups of one dtype and shape, and the first one that no column holds."""
    kinds = set(map(type, values))
    if len(kinds) == 1 and (convert := _FAST.get(next(iter(kinds)))) is not None:
        array = convert(values)
        if array is not None:
            return [(None, array)], None
    groups: dict[Any, tuple[list[int], list[np.ndarray]]] = {}
    for row, value in enumerate(values):
        array = _as_array(value)
        if isinstance(array, str):
            place = f" in the field {field!r}" if field else ""
            return [], (row, f"{show(value)}{place}. {array}")
        text = array.dtype.kind in "SU"
        rows, arrays = groups.setdefault((array.dtype.kind if text else array.dtype, array.shape), ([], []))
        rows.append(row)
        arrays.append(array)
    if len(groups) == 1:
        return [(None, np.stack(arrays)) for _, arrays in groups.values()], None
    return [(np.array(rows), np.stack(arrays)) for rows, arrays in groups.values()], None


def _as_array(value: Any) -> np.ndarray | str:
    """Return a value as an array of its own dtype; a sentence if no column holds it."""
    if isinstance(value, (str, bytes)):
        if ends_in_zero(value):
            return _WAYS_OUT["zero"]
        return np.array(str.__str__(value) if isinstance(value, str) else bytes.__getitem__(value, slice(None)))
    if isinstance(value, (np.generic, np.ndarray)):
        if isinstance(value, np.ma.MaskedArray):
            return "A column does not keep masks. Return `value.filled(...)`."
        array = np.asarray(value)
    elif isinstance(value, bool):
        array = np.array(bool(value))
    elif isinstance(value, int):
        number = int(value)
        if not -_LARGE <= number < 2 * _LARGE:
            return _WAYS_OUT["wide"]
        array = np.array(number, np.uint64 if number >= _LARGE else np.int64)
    elif isinstance(value, (float, complex)):
        array = np.array(complex(value) if isinstance(value, complex) else float(value))
    elif hasattr(value, "__array__") and hasattr(value, "dtype"):  # an array of JAX or PyTorch
        array = np.asarray(value)
    else:
        return _WAYS_OUT["kind"]
    if array.dtype.names is not None or array.dtype.hasobject:
        return _WAYS_OUT["kind"]
    if not _is_kept(array.dtype):
        return f"No column holds values of {array.dtype}. Return another type, such as `np.asarray(value, np.float32)`."
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _integers(values: Sequence[int]) -> np.ndarray | None:
    try:
        return np.array(values, np.int64)
    except OverflowError:
        return None


def _texts(values: Sequence[Any]) -> np.ndarray | None:
    return None if any(map(ends_in_zero, values)) else np.array(values)


def _convert_to(kind: Any) -> Callable[[Sequence[Any]], np.ndarray | None]:
    return lambda values: np.array(values, kind)


_FAST: dict[type, Callable[[Sequence[Any]], np.ndarray | None]] = {
    **{kind: _convert_to(kind) for kind in np.sctypeDict.values() if np.dtype(kind).kind in "biufc"},
    **{float: _convert_to(np.float64), bool: _convert_to(np.bool_), int: _integers, str: _texts, bytes: _texts},
}
"""How values that are all of one type become an array; None where one of them needs a closer look."""


Seen = tuple[int, Any]
"""An element and its value, for messages."""


def _find_first(values: np.ndarray, mask: np.ndarray, number: Callable[[int], int]) -> Seen | None:
    places = np.flatnonzero(mask)
    if not len(places):
        return None
    return number(int(places[0]) // values[0].size), int(values.reshape(-1)[places[0]])


@dataclasses.dataclass(frozen=True)
class FieldType:
    """What is known of the values of one field: their dtypes, and the integers that decide which dtype holds all."""

    shape: tuple[int, ...] | None = None
    dtypes: Mapping[np.dtype[Any], Seen] = dataclasses.field(default_factory=dict)
    negative: Seen | None = None
    large: Seen | None = None
    rounded: Seen | None = None

    def extend(self, values: np.ndarray, number: Callable[[int], int]) -> FieldType:
        """With more values. `number` gives the element of a row. Raises if a column cannot hold them together."""
        if not len(values):
            return self
        dtype, first = values.dtype, (number(0), values[0])
        if self.shape is not None and values.shape[1:] != self.shape:
            before = next(iter(self.dtypes.values()))
            raise TypeError(
                f"values of one type and shape; element {before[0]} has {before[1].dtype}{list(self.shape)} and "
                f"element {first[0]} has {dtype}{list(values.shape[1:])}. Return arrays of one shape."
            )
        negative, large, rounded = self.negative, self.large, self.rounded
        if dtype.kind in "iu" and values.size:
            low, high = int(values.min()), int(values.max())
            if low < 0 and negative is None:
                negative = _find_first(values, values < 0, number)
            if high >= _LARGE and large is None:
                large = _find_first(values, values >= _LARGE, number)
            if max(-low, high) > 1 << 53 and rounded is None:
                rounded = _find_first(values, find_rounded(values), number)
        dtypes = {**self.dtypes, dtype: self.dtypes.get(dtype, first)}
        known = FieldType(values.shape[1:], dtypes, negative, large, rounded)
        known.find_dtype()
        return known

    def find_dtype(self) -> np.dtype[Any]:
        """Return the dtype that holds all values as they are. Raise TypeError or ValueError if there is none."""
        dtypes = list(self.dtypes)
        kinds = {dtype.kind for dtype in dtypes}
        if len(dtypes) == 1:
            return dtypes[0]
        if kinds <= {"i", "u"}:
            if self.large is None:
                return np.dtype(np.int64)
            if self.negative is None:
                return np.dtype(np.uint64)
            raise ValueError(
                f"integers that one dtype holds; element {self.negative[0]} has {self.negative[1]} and element "
                f"{self.large[0]} has {self.large[1]}: neither int64 nor uint64 holds both. "
                "Return `value % 2**64`, or `float(value)`."
            )
        if kinds <= set("iufc"):
            if self.rounded is not None and kinds & {"i", "u"}:
                at, value = next(seen for dtype, seen in self.dtypes.items() if dtype.kind in "fc")
                raise ValueError(
                    f"integers or floats; element {at} has {show(value)}, and as a float the integer "
                    f"{self.rounded[1]} of element {self.rounded[0]} would become {int(float(self.rounded[1]))}. "
                    "Return integers for all elements, or `float(value)`."
                )
            if len(kinds) == 1:
                return np.result_type(*dtypes)
            return np.result_type(*dtypes, np.complex128 if "c" in kinds else np.float64)
        if kinds in ({"S"}, {"U"}):
            return max(dtypes, key=lambda dtype: dtype.itemsize)
        (one, a), (two, b) = self._first_two()
        raise TypeError(
            f"values of one type and shape; element {a[0]} has {show(a[1])} ({one}) and element {b[0]} has "
            f"{show(b[1])} ({two}). Return values of one type, such as `str(value)` or `float(value)`."
        )

    def _first_two(self) -> list[tuple[np.dtype[Any], Seen]]:
        """Return the first value, and the first one that does not go with it."""
        (one, a), *others = sorted(self.dtypes.items(), key=lambda pair: pair[1][0])
        alike = "iufc" if one.kind in "iufc" else one.kind if one.kind in "SU" else ""
        two, b = next(pair for pair in others if pair[0].kind not in alike)
        return [(one, a), (two, b)]


def _first_row(group: Group) -> int:
    return 0 if group[0] is None else int(group[0][0])


def _number(begin: int, rows: np.ndarray | None, row: int) -> int:
    """Return the element of a row of a group whose range begins with element `begin`."""
    return begin + (row if rows is None else int(rows[row]))


@dataclasses.dataclass(frozen=True)
class ValueType:
    """What is known of the values of a column: the type of each field."""

    name: str
    """Of the function, for messages."""
    fields: Mapping[str, FieldType] = dataclasses.field(default_factory=dict)

    def extend(self, begin: int, sorted_values: SortedValuesOfRange) -> ValueType:
        """With a range whose first value is that of element `begin`. Raises if a column cannot hold it."""
        groups, refused = sorted_values
        if refused is not None:
            raise TypeError(f"{self.name} returned, for element {begin + refused[0]}, {refused[1]}")
        if self.fields and set(groups) != set(self.fields):
            old, new = (sorted(names) if names != {""} else "no" for names in (set(self.fields), set(groups)))
            raise TypeError(
                f"A column needs values of one type and shape; {self.name} returned values with {old} fields, and from "
                f"element {begin} on values with {new} fields. Return the same fields for all elements."
            )
        fields = {}
        for field in self.fields or groups:
            known = self.fields.get(field, FieldType())
            try:
                for rows, values in sorted(groups[field], key=_first_row):
                    known = known.extend(values, functools.partial(_number, begin, rows))
            except (TypeError, ValueError) as error:
                target = f" in the field {field!r}" if field else ""
                raise type(error)(f"A column needs{target} {error} They come from {self.name}.") from None
            fields[field] = known
        return dataclasses.replace(self, fields=fields)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the column; float64 if there are no values."""
        if not self.fields:
            return np.dtype(np.float64)
        if set(self.fields) == {""}:
            return self.fields[""].find_dtype()
        return np.dtype([(name, known.find_dtype(), known.shape or ()) for name, known in self.fields.items()])

    def join(self, ranges: Sequence[tuple[int, SortedValuesOfRange]]) -> np.ndarray:
        """Return ranges, each with its number of values, as one array.

        They are among those that this type was made of.
        """
        shape = self.fields[""].shape or () if "" in self.fields else ()
        values = np.zeros((sum(count for count, _ in ranges), *shape), self.dtype)
        begin = 0
        for count, (groups, _) in ranges:
            for field, parts in groups.items():
                target = values[begin : begin + count] if not field else values[field][begin : begin + count]
                for rows, array in parts:
                    target[slice(None) if rows is None else rows] = array
            begin += count
        return values


def join_arrays(arrays: Sequence[np.ndarray], name: str) -> list[np.ndarray]:
    """Return arrays of values with one dtype for all of them, which holds each value as it is.

    Raise if there is none.
    """
    if len(arrays) == 1 or not any(map(len, arrays)):
        return list(arrays)
    known, begin = ValueType(name), 0
    ranges = [(len(array), sort_arrays(array)) for array in arrays]
    for count, sorted_values in ranges:
        if count:
            known = known.extend(begin, sorted_values)
        begin += count
    shape = next((array.shape[1:] for array in arrays if len(array)), ())
    return [
        array
        if len(array) and array.dtype == known.dtype
        else known.join([(count, sorted_values)])
        if count
        else np.zeros((0, *shape), known.dtype)
        for array, (count, sorted_values) in zip(arrays, ranges, strict=True)
    ]


def collect_values(values: Any, name: str) -> np.ndarray:
    """Return a list of values as one array that holds each as it is.

    Anything else becomes an array by NumPy's rules.
    """
    if not isinstance(values, (list, tuple)) or not values or isinstance(values[0], (list, tuple)):
        return np.asarray(values)
    sorted_values = sort_values(values)
    return ValueType(name).extend(0, sorted_values).join([(len(values), sorted_values)])


_COMPARISONS = (np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal)

_INTEGER_OPERATIONS: dict[np.ufunc, Callable[..., Any]] = {
    np.add: operator.add,
    np.subtract: operator.sub,
    np.multiply: operator.mul,
    np.negative: operator.neg,
    np.absolute: operator.abs,
    np.square: lambda number: number * number,
    np.maximum: max,
    np.minimum: min,
}
"""Operations whose extremes are found from the extremes of their arguments."""

_WITHIN = (np.floor_divide, np.remainder, np.divmod)
"""Operations whose results are no larger than their arguments."""

_GROWING = (np.power, np.left_shift)

_MOST_BITS = 4096  # of an intermediate result


def calculate(ufunc: np.ufunc, inputs: Sequence[Any]) -> tuple[np.ndarray, ...]:
    """Return the outputs of a function of NumPy.

    At least one of `inputs` is an array, and others may be single values.
    """
    for value in inputs:
        if isinstance(value, (str, bytes)) and ends_in_zero(value):
            raise ValueError(
                f"{ufunc.__name__} of a column and {show(value)}: NumPy drops zeros at the end of a text, so it would "
                "be taken for another text. No value of a column ends in a zero."
            )
    if _needs_python(ufunc, inputs):
        with np.errstate(invalid="ignore"):  # a comparison with NaN is no error
            found = ufunc(*(_as_objects(value) for value in inputs))
        outputs = found if ufunc.nout > 1 else (found,)
        return tuple(_as_integers(ufunc, np.asarray(output)) for output in outputs)
    found = ufunc(*inputs)
    return tuple(map(np.asarray, found)) if ufunc.nout > 1 else (np.asarray(found),)


def _as_objects(value: Any) -> Any:
    return value.astype(object) if isinstance(value, (np.ndarray, np.generic)) else value


def _as_integers(ufunc: np.ufunc, values: np.ndarray) -> np.ndarray:
    """Return an array of Python's integers as one of int64 or uint64; other arrays as they are."""
    if values.dtype != object:
        return values
    return collect_values(values.reshape(-1).tolist(), ufunc.__name__).reshape(values.shape)


def _needs_python(ufunc: np.ufunc, inputs: Sequence[Any]) -> bool:
    """Return whether NumPy's own result could differ from Python's."""
    kinds = [_kind(value) for value in inputs]
    if ufunc in _COMPARISONS and sorted(kinds) == ["f", "i"]:
        integers, floats = (inputs[kinds.index(kind)] for kind in "if")
        # NumPy compares an integer of Python's with an array as the array's dtype, and arrays as float64.
        as_given = isinstance(floats, np.ndarray) and not isinstance(integers, np.ndarray)
        digits = np.finfo(np.asarray(floats).dtype).nmant if as_given else 52
        return max(map(abs, _extremes(integers)), default=0) > 1 << digits
    if set(kinds) != {"i"}:
        return False
    arrays = [value.dtype for value in inputs if isinstance(value, (np.ndarray, np.generic))]
    result = np.result_type(*arrays)
    if result.kind not in "iu":  # int64 and uint64: NumPy takes float64
        return ufunc in _COMPARISONS or ufunc in _INTEGER_OPERATIONS or ufunc in _WITHIN or ufunc in _GROWING
    limits = np.iinfo(result)
    plain = [value for value in inputs if not isinstance(value, (np.ndarray, np.generic))]
    fits = all(limits.min <= value <= limits.max for value in plain)
    if ufunc in _COMPARISONS:
        return not fits
    if ufunc in _WITHIN:  # but for the lowest integer divided by -1
        return not fits or (result.kind == "i" and limits.min in _extremes(inputs[0]))
    if ufunc in _INTEGER_OPERATIONS:
        corners = list(itertools.product(*map(_extremes, inputs)))
        found = [_INTEGER_OPERATIONS[ufunc](*corner) for corner in corners]
        return not fits or min(found, default=0) < limits.min or max(found, default=0) > limits.max
    if ufunc in _GROWING:
        base, exponent = (max(map(abs, _extremes(value)), default=0) for value in inputs)
        bits = exponent * base.bit_length() if ufunc is np.power else exponent + base.bit_length()
        if bits > _MOST_BITS:
            raise OverflowError(f"{ufunc.__name__} of a column: a result would have up to {bits} bits.")
        return bits >= np.iinfo(result).bits - 1
    return False


def _kind(value: Any) -> str:
    """'i' for integers, 'f' for floats, '' for anything else."""
    if isinstance(value, (np.ndarray, np.generic)):
        return {"i": "i", "u": "i", "f": "f"}.get(value.dtype.kind, "")
    if isinstance(value, bool):
        return ""
    return "i" if isinstance(value, int) else "f" if isinstance(value, float) else ""


def _extremes(value: Any) -> tuple[int, ...]:
    if not isinstance(value, (np.ndarray, np.generic)):
        return (int(value),)
    return (int(value.min()), int(value.max())) if value.size else ()

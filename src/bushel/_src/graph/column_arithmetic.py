"""Arithmetic on the values of columns: NumPy's, but exact where NumPy would wrap around, round, or drop zeros.

Integers are as in Python. Floats are as in NumPy.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bushel._src.base.exact import ends_in_zero, show
from bushel._src.graph.column_values import collect_values

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
    """The outputs of a function of NumPy. At least one of `inputs` is an array, and others may be single values."""
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
    """An array of Python's integers as one of int64 or uint64; other arrays as they are."""
    if values.dtype != object:
        return values
    return collect_values(values.reshape(-1).tolist(), ufunc.__name__).reshape(values.shape)


def _needs_python(ufunc: np.ufunc, inputs: Sequence[Any]) -> bool:
    """Whether NumPy's own result could differ from Python's."""
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

"""Values exactly as they are, where NumPy would change them: large integers, zeros at the end of texts, padding.

Messages between processes are in `engine/pool/wire.py`, caches on disk in `graph/cache_stores.py`.
"""

from __future__ import annotations

import copyreg
import io
import pickle
from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np

_FLOAT_BITS = 53  # of the significand of a float64


def find_rounded(integers: np.ndarray) -> np.ndarray:
    """Return a mask of the integers that a float64 cannot hold exactly.

    >>> find_rounded(np.array([0, 2**53, 2**53 + 1, -(2**62)])).tolist()
    [False, False, True, False]
    """
    if integers.dtype.itemsize < 8:
        return np.zeros(integers.shape, bool)
    flat = np.asarray(integers).reshape(-1)  # arithmetic on arrays wraps around, and warns for single numbers
    bits = flat.astype(np.uint64)
    if flat.dtype.kind == "i":
        bits = np.where(flat < 0, ~bits + np.uint64(1), bits)
    lowest = np.maximum(bits & (~bits + np.uint64(1)), np.uint64(1))
    return ((bits // lowest) >> np.uint64(_FLOAT_BITS) > 0).reshape(integers.shape)


def is_rounded(integer: int) -> bool:
    """Return whether a float64 cannot hold this integer exactly."""
    if -(1 << _FLOAT_BITS) <= integer <= 1 << _FLOAT_BITS:
        return False
    try:
        return int(float(integer)) != integer
    except OverflowError:
        return True


def ends_in_zero(text: str | bytes) -> bool:
    """Return whether a text ends in a zero, which NumPy's arrays of texts drop without a word."""
    return text[-1:] in ("\0", b"\0")


def find_ending_in_zero(texts: Iterable[str | bytes]) -> int | None:
    """Return the number of the first text that ends in a zero; None if there is none."""
    return next((number for number, text in enumerate(texts) if ends_in_zero(text)), None)


def show(value: Any, width: int = 60) -> str:
    """Return a value as it reads in a message, cut if it is long."""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, np.generic) and not isinstance(value, (str, bytes, np.void)):
        shown = str(value)
    elif type(value) is np.ndarray:
        shown = f"array({np.array2string(value, threshold=8, separator=', ')}, {value.dtype})"
    else:
        shown = repr(value[: width + 1]) if isinstance(value, (str, bytes)) else repr(value)
    shown = " ".join(shown.split())
    return shown if len(shown) <= width else shown[: width - 3] + "..."


def same_values(converted: np.ndarray, original: np.ndarray) -> bool:
    """Return whether `converted` holds the values of `original`: numbers as numbers, texts as texts, times as times.

    >>> same_values(np.array([1.0]), np.array([1])), same_values(np.array(["1"]), np.array([1]))
    (True, False)
    """
    new, old = converted.dtype, original.dtype
    if new == old:
        return True
    if old.names is not None:
        return new.names == old.names and all(same_values(converted[name], original[name]) for name in old.names)
    if old.kind in "iu":
        if new.kind in "iu":
            return bool(np.array_equal(converted, original))
        return new.kind in "fc" and _holds(converted, original)
    if old.kind in "bfc":
        return new.kind in ("biufc" if old.kind == "b" else "fc") and bool(
            np.array_equal(converted.astype(old), original, equal_nan=old.kind != "b")
        )
    if old.kind in "Mm":
        return new.kind == old.kind and bool(
            np.array_equal(np.isnat(converted), np.isnat(original))
            and np.array_equal(converted.astype(old)[~np.isnat(original)], original[~np.isnat(original)])
        )
    return new.kind == old.kind and old.kind in "SU"


def _holds(floats: np.ndarray, integers: np.ndarray) -> bool:
    if floats.dtype.kind == "c":
        floats = np.real(floats)
    if floats.dtype.itemsize >= 8:
        return not find_rounded(integers).any()
    return bool((floats.astype(np.float64) == integers).all())


def remove_padding(array: np.ndarray) -> list[tuple[str, np.ndarray]]:
    """Split an array into named arrays whose bytes are all values.

    The bytes between the fields of a structured array, and those at the end of a `longdouble`, are padding. Nobody
    sets them, so two arrays of equal values may differ in them. Ordinary arrays come back as they are, named "".

    >>> points = np.zeros(2, np.dtype([("id", "i1"), ("x", "f8")], align=True))
    >>> points.itemsize, [(name, part.itemsize) for name, part in remove_padding(points)]
    (16, [('.id', 1), ('.x', 8)])
    """
    kind = array.dtype
    if kind.names is not None:
        return [(f".{name}{rest}", part) for name in kind.names for rest, part in remove_padding(array[name])]
    if kind.char == "G":
        return [
            (f" {side}{rest}", part)
            for side, half in (("real", np.real(array)), ("imaginary", np.imag(array)))
            for rest, part in remove_padding(half)
        ]
    if kind.char == "g" and kind.itemsize > 8:
        return _split_longdouble(array)
    return [("", array)]


def _split_longdouble(array: np.ndarray) -> list[tuple[str, np.ndarray]]:
    """Return the values as three float64 numbers and an exponent: no format of a longdouble has more than 159 bits."""
    finite = np.isfinite(array)
    rest, exponent = np.frexp(np.where(finite, array, 0))
    parts = [("", np.where(finite, 0.0, array).astype(np.float64)), (" exponent", exponent.astype(np.int32))]
    for number in range(3):
        high = rest.astype(np.float64)
        rest = rest - high
        parts.append((f" part {number}", high))
    return parts


def whole_text(text: np.str_ | np.bytes_) -> str | bytes:
    r"""Return NumPy's text or bytes as Python's, with the zeros at its end, which `str`, `item` and arrays leave out.

    >>> whole_text(np.bytes_(b"a\0"))
    b'a\x00'
    """
    return bytes(text) if isinstance(text, bytes) else str.__str__(text)


def _reduce_text(text: np.str_ | np.bytes_) -> Any:
    return type(text), (whole_text(text),)


TEXT_REDUCERS: dict[Any, Any] = {np.str_: _reduce_text, np.bytes_: _reduce_text}
"""How NumPy's texts are pickled. NumPy's own way loses the zeros at their end."""


class DispatchTable(dict[Any, Any]):
    """Functions that reduce types for pickle: those given here, otherwise those registered with `copyreg`."""

    def __missing__(self, kind: Any) -> Any:
        return copyreg.dispatch_table[kind]


class _ElementPickler(pickle.Pickler):
    dispatch_table: ClassVar[Any] = DispatchTable(TEXT_REDUCERS)


def dump_elements(value: Any) -> bytes:
    """Pickle elements like `pickle.dumps`, and keeps the zeros at the end of NumPy's texts."""
    with io.BytesIO() as file:
        _ElementPickler(file, protocol=5).dump(value)
        return file.getvalue()
